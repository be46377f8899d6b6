"""An agent with OpenAI's client: the model writes Python, a sandbox runs it.

The sandbox lives as long as the conversation, and its interpreter stays: what one call has loaded, the next one has.
"""
import json
import sys

from openai import OpenAI

from pandastack import Sandbox

MODEL = "gpt-4o"
MAX_STEPS = 20
TOOLS = [{
    "type": "function",
    "function": {
        "name": "run_python",
        "description": "Runs Python in a sandbox and returns what it printed and the value of its last line. Variables stay between "
                       "calls. pandas, numpy, matplotlib and scikit-learn are installed.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}]


def run_python(context, arguments):
    """What the model gets to read: output, the last value, the error. Never an exception of ours: it can mend its code."""
    try:
        code = json.loads(arguments)["code"]
    except (ValueError, KeyError) as e:
        return f"the arguments are not JSON with code in it: {e}"
    run = context.run_code(code, timeout_seconds=60)
    parts = [run.stdout, run.text or "", str(run.error or "")]
    if run.timed_out:
        parts.append("stopped after 60 seconds; the variables are still there")
    return "\n".join(part for part in parts if part)[:10_000] or "(no output)"


def agent(task):
    client = OpenAI()
    messages = [{"role": "user", "content": task}]
    with Sandbox.create(template="code-interpreter", ttl_seconds=3600) as sandbox, sandbox.create_code_context() as context:
        for _ in range(MAX_STEPS):
            message = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message)
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": run_python(context, call.function.arguments)})
    return f"no answer after {MAX_STEPS} steps"


if __name__ == "__main__":
    print(agent(" ".join(sys.argv[1:]) or "What is the 30th Fibonacci number?"))
