"""The code interpreter as others meet it: real clients (Jupyter's, OpenAI's, Anthropic's), several contexts, and what an interrupt ends.

The real clients are those of the image code-interpreter: it is mounted here, and they run on this host, as a user's would.
"""
import json
import os
import struct
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import TOP, need, wait_for
from server import BUILD, patience
from streams import Events
from test_streams_repl import Session

ROOM = 'mount -t erofs -o loop,ro "$1" "$2" && mount --bind "$3" "$2/mnt" && mount --bind "$4" "$2/tmp" && cd "$2" && shift 4 && exec chroot . "$@"'


@pytest.fixture
def as_user(world, tmp_path):
    """as_user(*command, **env): runs a command with the libraries of code-interpreter; our repository is /mnt there, tmp_path is /tmp."""
    need(world, "code-interpreter")
    image = json.loads((BUILD / "templates/code-interpreter.json").read_text())["image"]
    root = tmp_path / "root"
    root.mkdir()

    def run(*command, **env):
        return subprocess.run(["unshare", "-m", "sh", "-c", ROOM, "room", image, root, TOP, tmp_path, *command], capture_output=True, text=True,
                              timeout=120 * patience(), env={"PATH": os.environ["PATH"], "HOME": "/tmp", "PANDASTACK_API": world.url,
                                                             "PANDASTACK_TOKEN": world.key, "PYTHONPATH": "/mnt/sdk/python/src", **env})

    if run("true").returncode:
        pytest.skip("this host cannot mount the image")
    return run


# ---- contexts ----

def test_contexts_of_both_languages_in_forks_and_after_sleep(templates_pandad):
    """Each has its own variables, in every copy of the machine."""
    p = templates_pandad
    need(p, "agent")
    id = p.create(template="agent")
    mine = [Session(p, id), Session(p, id), Session(p, id, language="javascript"), Session(p, id, language="javascript")]
    for i, s in enumerate(mine):
        s.run(f"{'' if i < 2 else 'let '}x = {i}")
    child = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    theirs = [Session(p, child, s.sid) for s in mine]
    for s in theirs:
        s.run("x += 10")
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    p.do("POST", f"/v1/sandboxes/{child}/hibernate")
    p.do("POST", f"/v1/sandboxes/{id}/wake")
    assert [s.value("x") for s in mine] == ["0", "1", "2", "3"]
    assert [s.value("x") for s in theirs] == ["10", "11", "12", "13"]  # woken by the first cell
    for s in mine:
        s.run("x += 20")
    again = p.do("POST", f"/v1/sandboxes/{child}/fork")["children"][0]
    assert [Session(p, again, s.sid).value("x") for s in mine] == ["10", "11", "12", "13"]
    assert [s.value("x") for s in mine] == ["20", "21", "22", "23"]
    assert {i["id"] for i in p.do("GET", f"/v1/sandboxes/{again}/repl/sessions")} == {s.sid for s in mine}
    p.clear()


CHILDREN = {
    "python": ("import subprocess\nserver = subprocess.Popen(['sleep', '1000'])\nimport time; time.sleep(0.02)\nserver.pid",
               "p = subprocess.Popen(['sh', '-c', 'echo $$; sleep 1000; true'])\np.wait()"),
    "javascript": ("const server = require('child_process').spawn('sleep', ['1000']); await new Promise(r => setTimeout(r, 20)); server.pid",
                   "require('child_process').execSync('echo $$; sleep 1000; true', { stdio: 'inherit' })"),
}


@pytest.mark.parametrize("language", CHILDREN)
def test_an_interrupt_ends_what_the_cell_has_started(templates_pandad, language):
    p = templates_pandad
    need(p, "agent")
    id = p.create(template="agent")
    s = Session(p, id, language=language)
    server, child = CHILDREN[language]
    server = s.value(server)
    for how in "interrupt", "timeout", "gone":
        e = Events(p, "POST", f"{s.at}/{s.sid}/run/stream", {"code": child, "timeout_ms": 3000 if how == "timeout" else 0})
        pid = next(iter(e))[1]["chunk"].strip()
        if how == "interrupt":
            p.do("POST", f"{s.at}/{s.sid}/interrupt", expect=204)
        if how == "gone":
            e.close()
        else:
            assert e.until("exit")[-1][1]["timed_out"] is (how == "timeout")
        wait_for(f"the child to go ({how})", lambda: p.sh(id, f"kill -0 {pid} && ! grep -q '^State:.Z' /proc/{pid}/status")["exit_code"] != 0)
        assert s.value("6 * 7") == "42"
    assert p.sh(id, f"kill -0 {server}")["exit_code"] == 0, "what an earlier cell has started stays"
    p.clear()


def test_results_without_end(pandad):
    """Much of everything: cut with a word about it, or whole; and the context lives."""
    s = Session(pandad, pandad.create())
    value = s.value("'x' * 20_000_000")
    assert len(value) < 1_100_000 and value.endswith("more characters)")
    assert [r["text/plain"] for r in s.run("for i in range(10_000): display(i)")["results"]] == [str(i) for i in range(10_000)]
    r = s.run("print('y' * 20_000_000)")
    assert r["truncated"] is True and set(r["stdout"]) == {"y"}
    r = s.run("class Big:\n  def _repr_png_(self): return bytes(9_000_000)\nfor _ in range(4): display(Big())\n'last'")
    assert r["truncated"] is True and len(r["results"]) == 3
    assert s.run("import os\nos.write(1, bytes(range(128, 256)))\nNone")["stdout"] == "\ufffd" * 128
    assert s.run("input('? ')")["error"].startswith("EOFError: nobody can answer")
    assert s.value("1") == "1"


# ---- Jupyter ----

JUPYTER = """
import asyncio, functools, json, os, sys
import websocket
from jupyter_server.gateway.managers import GatewayKernelManager
from jupyter_server.utils import url_path_join

# what JupyterLab's side of this connection does by itself
websocket.create_connection = functools.partial(websocket.create_connection,
                                                header=["Authorization: Bearer " + os.environ["JUPYTER_GATEWAY_AUTH_TOKEN"]])

async def main(kernel, *cells):
    m = GatewayKernelManager()
    if kernel:
        m.kernel_id, m.kernel_url = kernel, url_path_join(m.kernels_url, kernel)
        m.kernel = await m.refresh_model()
    else:
        await m.start_kernel(kernel_name="python3")
    c = m.client()
    await c.start_channels()
    await c.wait_for_ready(timeout=100)
    seen = []
    for code in cells:
        asked, said = c.execute(code, allow_stdin=False), []
        while not said or said[-1]["content"].get("execution_state") != "idle":
            message = await c.get_iopub_msg(timeout=100)
            if message["parent_header"].get("msg_id") == asked:
                said.append(message)
        print(code, *(m["msg_type"] for m in said), file=sys.stderr)
        seen.append([m["content"] for m in said if m["msg_type"] in ("stream", "execute_result", "display_data", "error")])
    print(json.dumps([m.kernel_id, seen]), flush=True)
    os._exit(0)

asyncio.run(main(*sys.argv[1:]))
"""


def test_jupyters_own_client_through_the_proxy(world, as_user, tmp_path):
    """A kernel in the sandbox for a client outside; it goes on in forks and after hibernation."""
    p, id = world, world.create(template="code-interpreter")
    (tmp_path / "client.py").write_text(JUPYTER)
    p.do("POST", f"/v1/sandboxes/{id}/execs", {"cmd": "panda-jupyter"})
    wait_for("the server", lambda: p.ask("GET", f"/v1/sandboxes/{id}/proxy/8888/api").status == 200)

    def run(sandbox, kernel, *cells):
        r = as_user("python3", "/tmp/client.py", kernel, *cells, JUPYTER_GATEWAY_URL=f"{p.url}/v1/sandboxes/{sandbox}/proxy/8888",
                    JUPYTER_GATEWAY_AUTH_SCHEME="Bearer", JUPYTER_GATEWAY_AUTH_TOKEN=p.key)
        assert r.returncode == 0, r.stderr
        kernel, seen = json.loads(r.stdout)
        print(r.stderr)  # shown when something of it is missing
        return kernel, [[c.get("text") or c.get("ename") or c["data"] for c in cell] for cell in seen]

    kernel, (printed, value, failed, drawn) = run(
        id, "", "x = 6\nprint('printed')", "x * 7", "1/0", "%matplotlib inline\nimport matplotlib.pyplot as plt; plt.plot([1]); plt.show()")
    assert (printed, value, failed) == (["printed\n"], [{"text/plain": "42"}], ["ZeroDivisionError"])
    assert len(drawn[0]["image/png"]) > 1000
    child = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    assert run(child, kernel, "x += 1; x")[1] == [[{"text/plain": "7"}]]
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    assert p.do("GET", f"/v1/sandboxes/{id}")["status"] == "hibernated"
    assert run(id, kernel, "x") == (kernel, [[{"text/plain": "6"}]])  # woken by the request


# ---- the clients of model vendors ----

class Model:
    """A model's API on loopback: answers by script, keeps what it was asked, and minds the order of messages as the real ones do."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.asked.append(body)
                data = json.dumps(model.answers.pop(0)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def openai(*messages):
    choices = [{"index": i, "finish_reason": "stop", "logprobs": None, "message": {"role": "assistant", "refusal": None, **m}} for i, m in enumerate(messages)]
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}


def openai_call(id, arguments):
    return openai({"content": None, "tool_calls": [{"id": id, "type": "function", "function": {"name": "run_python", "arguments": arguments}}]})


def anthropic(*blocks):
    return {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": list(blocks), "stop_sequence": None,
            "stop_reason": "tool_use" if any(b["type"] == "tool_use" for b in blocks) else "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}


def use(id, name, **given):
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def says(text):
    return {"type": "text", "text": text}


def run_example(as_user, name, model, *args):
    r = as_user("python3", f"/mnt/examples/{name}", *args, OPENAI_BASE_URL=f"{model.url}/v1", OPENAI_API_KEY="k", ANTHROPIC_BASE_URL=model.url,
                ANTHROPIC_API_KEY="k")
    assert r.returncode == 0, r.stderr
    assert model.answers == [], "not all was asked for"
    return r.stdout, r.stderr


def test_the_openai_example_with_its_real_client(as_user):
    with Model(openai_call("c1", '{"code": "x = 6"}'), openai_call("c2", '{"code": "x * 7"}'), openai_call("c3", "{this is no JSON"),
               openai({"content": "it is 42"})) as model:
        assert run_example(as_user, "openai_agent.py", model, "multiply")[0] == "it is 42\n"
    messages = model.asked[-1]["messages"]
    assert [m["role"] for m in messages] == ["user"] + ["assistant", "tool"] * 3
    assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == [m["tool_calls"][0]["id"] for m in messages if m["role"] == "assistant"]
    assert [m["content"] for m in messages if m["role"] == "tool"][:2] == ["(no output)", "42"] and "JSON" in messages[-1]["content"]


def test_the_anthropic_example_with_its_real_client(as_user):
    with Model(anthropic(says("let me see"), use("t1", "python", code="x = 6\nprint('set')"), use("t2", "shell", command="exit 3")),
               anthropic(use("t3", "python", code="x * 7")), anthropic(says("it is 42"))) as model:
        assert run_example(as_user, "anthropic_agent.py", model, "multiply")[0] == "it is 42\n"
    messages = model.asked[-1]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [(r["tool_use_id"], r["content"], r["is_error"]) for m in messages[2::2] for r in m["content"]] == \
        [("t1", "set\n", False), ("t2", "\n[exit code 3]", True), ("t3", "42", False)]


def test_the_coding_example_with_its_real_client(as_user):
    good = "def median(numbers):\n    s = sorted(numbers)\n    n = len(s)\n    return s[n // 2] if n % 2 else (s[n // 2 - 1] + s[n // 2]) / 2\n"
    with Model(openai({"content": "no idea"}, {"content": f"```python\n{good}```"}, {"content": None})) as model:
        out, err = run_example(as_user, "coding_agent.py", model)
    assert out == good + "\n" and "1 of 3 fixes pass" in err


def test_the_browser_example_with_its_real_client(world, as_user):
    need(world, "browser")
    with Model(anthropic(use("a", "computer", action="left_click", coordinate=[180, 155])), anthropic(use("b", "computer", action="type", text="Ada")),
               anthropic(says("done"))) as model:
        assert run_example(as_user, "browser_agent.py", model)[0] == "done\n"
    messages = model.asked[-1]["messages"]
    shots = [messages[0]["content"][1], *(m["content"][0]["content"][0] for m in messages[2::2])]
    import base64
    assert [struct.unpack(">II", base64.b64decode(s["source"]["data"])[16:24]) for s in shots] == [(1024, 768)] * 3
