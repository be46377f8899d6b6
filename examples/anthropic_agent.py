"""An agent with Anthropic's client and two tools: Python that stays, and a shell. Both work in the same sandbox."""
import sys

import anthropic

from pandastack import Sandbox

MODEL = "claude-sonnet-4-5"
MAX_STEPS = 20
TOOLS = [
    {
        "name": "python",
        "description": "Runs Python and returns what it printed and the value of its last line. Variables stay between calls.",
        "input_schema": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
    {
        "name": "shell",
        "description": "Runs a shell command in /workspace and returns its output and exit code.",
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
]


def use(sandbox, context, name, given):
    """(text for the model, did it fail)"""
    if name == "python":
        run = context.run_code(given["code"], timeout_seconds=60)
        return run.stdout + (run.text or "") + str(run.error or ""), not run.ok
    run = sandbox.exec(given["command"], timeout_seconds=60, cwd="/workspace")
    return f"{run.output}\n[exit code {run.exit_code}]", run.exit_code != 0


def agent(task):
    client = anthropic.Anthropic()
    messages = [{"role": "user", "content": task}]
    with Sandbox.create(template="code-interpreter", ttl_seconds=3600) as sandbox, sandbox.create_code_context() as context:
        for _ in range(MAX_STEPS):
            answer = client.messages.create(model=MODEL, max_tokens=4096, tools=TOOLS, messages=messages)
            messages.append({"role": "assistant", "content": answer.content})
            if answer.stop_reason != "tool_use":
                return "".join(block.text for block in answer.content if block.type == "text")
            results = []
            for block in answer.content:
                if block.type == "tool_use":
                    text, failed = use(sandbox, context, block.name, block.input)
                    results.append({"type": "tool_result", "tool_use_id": block.id, "content": text[:10_000] or "(no output)",
                                    "is_error": failed})
            messages.append({"role": "user", "content": results})
    return f"no answer after {MAX_STEPS} steps"


if __name__ == "__main__":
    print(agent(" ".join(sys.argv[1:]) or "Which of the numbers below 10,000 has the most divisors? Check it with a program."))
