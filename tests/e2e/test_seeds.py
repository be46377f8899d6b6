"""Every code block of the seed documents, taken from the documents, run as it stands.

What a document leaves to its reader is put around a block: a model that answers by script stands in for OpenAI's and
Anthropic's, and names that a block uses but does not make are supplied. Nothing leaves this machine: what clones from the
internet fails inside of the sandbox, as the block itself allows. The one block that insists on a page gets it from a little
internet, whose authority its sandbox is told to trust.
"""
import json
import os
import shlex
import struct
import sys
import types
import zlib

import pytest

import seeds
from conftest import need, user
from little_internet import LittleInternet
from server import NetPandad


@pytest.fixture
def online(server_home, monkeypatch, tmp_path):
    """The same, and sandboxes reach https://example.com, of the little internet."""
    with LittleInternet() as net:
        p = NetPandad(net, server_home / "seeds-online", templates=["browser"], bakes=server_home / "bakes").start()
        try:
            monkeypatch.setattr("pandastack.Sandbox.create", trusting(net.authority()))
            yield from user(p, monkeypatch, tmp_path)
        finally:
            p.close()


def trusting(authority):
    """Sandbox.create, of a sandbox whose browser takes certificates of this authority, as it would those of a company."""
    import pandastack
    create = pandastack.Sandbox.create

    def wrapped(*args, **kw):
        sb = create(*args, **kw)
        sb.filesystem.write("/tmp/authority.pem", authority)
        done = sb.exec("mkdir -p /root/.pki/nssdb && certutil -d sql:/root/.pki/nssdb -N --empty-password &&"
                       "certutil -d sql:/root/.pki/nssdb -A -n ours -t C,, -i /tmp/authority.pem")
        assert done.exit_code == 0, done.stderr
        return sb
    return wrapped


def run(document, number, **names):
    text = seeds.blocks(document)[number]
    scope = dict(names)
    scope.setdefault("__name__", "__seed__")
    exec(compile(text, f"seed {document} block {number}", "exec"), scope)
    return scope


def test_every_block_is_here():
    """A block that nobody runs would be forgotten."""
    here = open(__file__).read()
    for document in "000", "001", "002", "003", "004":
        for i in range(len(seeds.blocks(document))):
            assert f'run("{document}", {i}' in here, f"{document} block {i} is not run"


# ---- models that answer by script ----

def fake_openai(code, seen):
    """Asks to run code once, then says what came back."""
    ns = types.SimpleNamespace

    class OpenAI:
        def __init__(self):
            self.chat = ns(completions=ns(create=self.create))

        def create(self, model, messages, tools):
            seen.append([dict(m) for m in messages])
            last = messages[-1]
            if last["role"] == "tool":
                return ns(choices=[ns(message=ns(tool_calls=None, content="it said " + last["content"].strip()))])
            call = ns(id="call_1", function=ns(name="run_python", arguments=json.dumps({"code": code})))
            return ns(choices=[ns(message=ns(tool_calls=[call], content=None))])

    return types.SimpleNamespace(OpenAI=OpenAI)


def fake_anthropic(code):
    ns = types.SimpleNamespace

    class Anthropic:
        def __init__(self):
            self.messages = ns(create=self.create)

        def create(self, model, max_tokens, tools, messages):
            last = messages[-1]
            if last["role"] == "user" and isinstance(last["content"], list):
                return ns(stop_reason="end_turn", content=[ns(type="text", text="The answer is " + last["content"][0]["content"])])
            return ns(stop_reason="tool_use", content=[ns(type="tool_use", name="run_code", id="t1", input={"code": code})])

    return types.SimpleNamespace(Anthropic=Anthropic)


# ---- AI agents ----

def test_ai_agents_one_sandbox_per_turn(world, monkeypatch):
    need(world, "code-interpreter")
    seen = []
    monkeypatch.setitem(sys.modules, "openai", fake_openai("import pandas; print('pandas', 6 * 7)", seen))
    scope = run("000", 0, json=json, shlex=shlex)
    assert scope["agent_turn"]("what is it?") == "it said pandas 42"
    assert [m["role"] for m in seen[-1]] == ["user", "tool"]
    assert world.do("GET", "/v1/sandboxes") == []


def test_ai_agents_persistent_workspace(world):
    need(world, "code-interpreter")
    from pandastack import Sandbox, Volume
    scope = run("000", 1, Sandbox=Sandbox, Volume=Volume, user_id=7)
    assert world.do("GET", "/v1/volumes")[0]["name"] == "user-7-workspace"
    with Sandbox(template="code-interpreter", volumes=[scope["vol"].mount("/workspace")]) as sb:
        sb.run("cd /workspace && git init -q . && echo kept >file")
    run("000", 1, Sandbox=Sandbox, Volume=Volume, user_id=7)
    with Sandbox(template="code-interpreter", volumes=[scope["vol"].mount("/workspace")]) as sb:
        assert sb.run("cat /workspace/file").stdout == "kept\n"


def test_ai_agents_fork_on_explore(world):
    need(world, "python-data")
    import pandastack

    def Sandbox(**kw):
        """The document takes a data set for granted."""
        sb = pandastack.Sandbox(**kw)
        sb.filesystem.write("/data.csv", "a,b\n1,2\n,4\n5,\n7,8\n")
        return sb

    scope = run("000", 2, Sandbox=Sandbox)
    assert len(scope["branches"]) == 3
    assert "count" in scope["winner"].run("print(df_fillna.describe() if 'df_fillna' in dir() else df.describe())").stdout
    assert scope["parent"].run("print('df_dropna' in dir())").stdout.strip() == "False", "branches do not touch their parent"
    scope["winner"].close()
    scope["parent"].close()


# ---- How to give your AI agent a sandbox ----

def test_give_your_agent_a_sandbox(world, monkeypatch, capsys):
    need(world, "code-interpreter")
    scope = run("001", 0)
    assert scope["RUN_CODE_TOOL"]["name"] == "run_code"
    tool = run("001", 1, __name__="__main__")
    assert capsys.readouterr().out == "5050\n"
    assert "ZeroDivisionError" in tool["run_code"]("1/0") and "[exit 1]" in tool["run_code"]("1/0")
    assert tool["run_code"]("x = 1").startswith("(no output")
    fibonacci = "a, b = 0, 1\nfor _ in range(30): a, b = b, a + b\nprint(a)"
    monkeypatch.setitem(sys.modules, "anthropic", fake_anthropic(fibonacci))
    run("001", 2, __name__="__main__", RUN_CODE_TOOL=scope["RUN_CODE_TOOL"], run_code=tool["run_code"])
    assert capsys.readouterr().out == "The answer is 832040\n"
    assert world.do("GET", "/v1/sandboxes") == []


def test_one_sandbox_per_session(world):
    need(world, "code-interpreter")
    from pandastack import Sandbox
    run("001", 3, Sandbox=Sandbox)
    assert world.do("GET", "/v1/sandboxes") == []


# ---- A sandbox for AI agent computer use ----

def test_computer_use_shell_tool(world, capsys):
    need(world, "agent")
    run("002", 0)
    first, second = capsys.readouterr().out.splitlines()
    assert ast_dict(first) == {"stdout": "cleaned\n", "stderr": "", "exit_code": 0}
    assert set(ast_dict(second)) == {"stdout", "stderr", "exit_code"}
    assert world.do("GET", "/v1/sandboxes") == []


def ast_dict(text):
    import ast
    return ast.literal_eval(text)


def test_computer_use_browser(online, capsys):
    run("002", 1)
    shot = open("shot.png", "rb").read()
    assert shot[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack("!II", shot[16:24]) == (1280, 720)
    assert capsys.readouterr().out == f"page title: Example Domain | screenshot: {len(shot)} bytes\n"
    assert online.do("GET", "/v1/sandboxes") == []


def test_computer_use_branches(world, capsys):
    need(world, "agent")
    run("002", 2)
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 3 and all(line.endswith("-> fail") for line in out), "without a network there is nothing to test"
    assert world.do("GET", "/v1/sandboxes") == []


# ---- Build a code interpreter ----

def test_code_interpreter_table(world, capsys):
    need(world, "code-interpreter")
    run("003", 0)
    out = capsys.readouterr().out
    assert "exit: 0" in out and "total: 13.07" in out and "stderr" not in out


def decoded(png):
    """(width, height, RGBA) of a picture as matplotlib writes it; every checksum is looked at."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        data, (crc,) = png[at + 8:at + 8 + size], struct.unpack(">I", png[at + 8 + size:at + 12 + size])
        assert crc == zlib.crc32(kind + data), kind
        parts[kind] = parts.get(kind, b"") + data
        at += 12 + size
    assert kind == b"IEND"
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert (depth, colour, interlaced) == (8, 6, 0)
    lines, out, above = zlib.decompress(parts[b"IDAT"]), bytearray(), bytes(width * 4)
    assert len(lines) == height * (width * 4 + 1)
    for y in range(height):
        how, line = lines[y * (width * 4 + 1)], bytearray(lines[y * (width * 4 + 1) + 1:(y + 1) * (width * 4 + 1)])
        for x in range(width * 4 if how else 0):
            left, up, corner = (line[x - 4], above[x], above[x - 4]) if x >= 4 else (0, above[x], 0)
            near = min((left, up, corner), key=lambda v: abs(left + up - corner - v))
            line[x] = line[x] + (0, left, up, (left + up) // 2, near)[how] & 255
        out += line
        above = line
    return width, height, bytes(out)


def test_code_interpreter_plot(world, capsys):
    need(world, "code-interpreter")
    run("003", 1)
    width, height, pixels = decoded(open("plot.png", "rb").read())
    assert 800 < width <= 960 and 400 < height <= 480  # 8 by 4 inches at 120 dpi, less its margins
    colours = {pixels[i:i + 3] for i in range(0, len(pixels), 4)}
    assert {b"\xff\xff\xff", b"\x1f\x77\xb4", b"\xff\x7f\x0e"} <= colours, "paper, sine and cosine"
    assert capsys.readouterr().out == f"pulled {os.path.getsize('plot.png')} bytes\n"


def test_code_interpreter_cells(world, capsys):
    need(world, "code-interpreter")
    run("003", 2)
    assert capsys.readouterr().out.split() == ["rows:", "1000", "max", "y:", "998001"]


def test_code_interpreter_class(world):
    need(world, "code-interpreter")
    interp = run("003", 3)["CodeInterpreter"]()
    assert interp.run("print(2 ** 10)") == {"exit_code": 0, "stdout": "1024\n", "stderr": ""}
    interp.close()
    assert world.do("GET", "/v1/sandboxes") == []


# ---- How to build a sandboxed AI coding agent ----

def test_coding_agent_snippet(world, capsys):
    need(world, "code-interpreter")
    run("004", 0)
    out = capsys.readouterr().out
    assert "exit: 0" in out and "hello from" in out and "python 3." in out


def test_coding_agent_loop(world):
    need(world, "code-interpreter")

    class Model:
        def __init__(self, *codes):
            self.codes, self.seen = list(codes), []

        def next_action(self, messages):
            self.seen.append(messages[-1])
            if self.codes:
                return types.SimpleNamespace(is_final=False, code=self.codes.pop(0))
            return types.SimpleNamespace(is_final=True, text=messages[-1]["content"]["stdout"])

    scope = run("004", 1)
    model = Model("open('/workspace/x', 'w').write('kept')", "print(open('/workspace/x').read())")
    assert scope["agent_loop"](model, "task") == "kept\n"
    assert scope["agent_loop"](Model(*["1/0"] * 20), "task", max_steps=2) == "hit max_steps without finishing"
    assert world.do("GET", "/v1/sandboxes") == []


def test_coding_agent_best_of_five(world, capsys):
    need(world, "code-interpreter")
    run("004", 2, generate_n_fixes=lambda n: [f"patch {i}" for i in range(n)])
    assert capsys.readouterr().out == "0/5 candidate fixes passed the test suite\n", "nothing could be cloned"
    assert world.do("GET", "/v1/sandboxes") == []
