"""Every file of examples/, run as it stands: with models that answer by script in place of the real clients."""
import base64
import json
import runpy
import struct
import sys
import types

import pytest

from conftest import TOP, need

EXAMPLES = TOP / "examples"
ns = types.SimpleNamespace


class Script:
    """Answers one after the other; remembers what it was told."""

    def __init__(self, *answers):
        self.answers, self.told = list(answers), []

    def create(self, **kw):
        self.told.append({**kw, "messages": list(kw["messages"])})
        assert self.answers, "the example asks more often than it should"
        answer = self.answers.pop(0)
        return answer(kw) if callable(answer) else answer


@pytest.fixture
def models(monkeypatch):
    """models(openai=script, anthropic=script)"""

    def put(openai=None, anthropic=None):
        if openai:
            client = ns(chat=ns(completions=openai))
            monkeypatch.setitem(sys.modules, "openai", ns(OpenAI=lambda: client))
        if anthropic:
            client = ns(messages=anthropic, beta=ns(messages=anthropic))
            monkeypatch.setitem(sys.modules, "anthropic", ns(Anthropic=lambda: client))

    return put


def example(name):
    return types.SimpleNamespace(**runpy.run_path(str(EXAMPLES / name)))


def test_every_example_is_run_and_listed():
    here, page = open(__file__).read(), (EXAMPLES / "README.md").read_text()
    for file in EXAMPLES.glob("*.py"):
        assert f'"{file.name}"' in here and f"[{file.name}]({file.name})" in page


# ---- agents ----

def openai_call(code, id="c1"):
    call = ns(id=id, function=ns(name="run_python", arguments=json.dumps({"code": code})))
    return ns(choices=[ns(message=ns(role="assistant", content=None, tool_calls=[call]))])


def openai_says(text):
    return ns(choices=[ns(message=ns(role="assistant", content=text, tool_calls=None))])


def test_openai_agent(world, models):
    need(world, "code-interpreter")
    script = Script(openai_call("import pandas as pd\nn = pd.Series([1, 2, 3]).sum()\nprint('loaded')"),
                    openai_call("n * 7", "c2"), openai_call("1/0", "c3"),
                    lambda asked: openai_says("it is " + asked["messages"][-3]["content"]))
    models(openai=script)
    assert example("openai_agent.py").agent("multiply") == "it is 42"
    told = [m["content"] for m in script.told[-1]["messages"] if isinstance(m, dict) and m["role"] == "tool"]
    assert told[0] == "loaded\n" and told[1] == "42" and "ZeroDivisionError" in told[2]
    assert world.do("GET", "/v1/sandboxes") == []


def use(name, id, **given):
    return ns(type="tool_use", name=name, id=id, input=given)


def says(text):
    return ns(stop_reason="end_turn", content=[ns(type="text", text=text)])


def calls(*blocks):
    return ns(stop_reason="tool_use", content=[ns(type="text", text="let me see"), *blocks])


def test_anthropic_agent(world, models):
    need(world, "code-interpreter")
    script = Script(calls(use("python", "t1", code="x = 6\nopen('/workspace/x', 'w').write('six')\nprint('done')"),
                          use("shell", "t2", command="cat x; exit 3")),
                    calls(use("python", "t3", code="x * 7")),
                    lambda asked: says("the answer is " + asked["messages"][-1]["content"][0]["content"]))
    models(anthropic=script)
    assert example("anthropic_agent.py").agent("multiply") == "the answer is 42"
    first, second = script.told[1]["messages"][-1]["content"]
    assert (first["tool_use_id"], first["content"], first["is_error"]) == ("t1", "done\n", False)
    assert (second["content"], second["is_error"]) == ("six\n[exit code 3]", True)
    assert world.do("GET", "/v1/sandboxes") == []


# ---- a code interpreter ----

def size_of(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def test_code_interpreter(world, tmp_path, capsys):
    need(world, "code-interpreter")
    example("code_interpreter.py").main()
    out = capsys.readouterr().out
    assert "shown: image/png" in out and "line chart 'Revenue by region', y in k€" in out
    assert "north: [['2026-01', 120], ['2026-02', 150], ['2026-03', 135]]" in out
    assert "KeyError: 'profit'" in out and "timed out: True | rows: 6" in out
    assert "<table" in (tmp_path / "table.html").read_text()
    width, height = size_of((tmp_path / "revenue.png").read_bytes())
    assert 400 < width < 1000 and 300 < height < 800


# ---- computer use ----

def test_browser_agent(world, models):
    need(world, "browser")

    def act(id, **action):
        return calls(use("computer", id, **action))

    script = Script(act("a", action="screenshot"), act("b", action="left_click", coordinate=[180, 155]), act("c", action="type", text="Ada"),
                    act("d", action="fly"), act("e", action="left_click", coordinate=[180, 215]), says("it says: Thank you, Ada"))
    models(anthropic=script)
    assert example("browser_agent.py").agent("order a lamp for Ada") == "it says: Thank you, Ada"
    seen = [m["content"] for m in script.told[-1]["messages"] if m["role"] == "user"]
    shots = [base64.b64decode(seen[0][1]["source"]["data"])]
    shots += [base64.b64decode(c[0]["content"][0]["source"]["data"]) for c in seen[1:] if not c[0]["is_error"]]
    assert [size_of(png) for png in shots] == [(1024, 768)] * 5
    assert len({shots[0], shots[3], shots[4]}) == 3, "typing and clicking can be seen"
    assert [c[0]["is_error"] for c in seen[1:]] == [False, False, False, True, False]
    assert "no action fly" in seen[4][0]["content"][0]["text"]
    assert world.do("GET", "/v1/sandboxes") == []


# ---- a coding agent ----

GOOD = "def median(numbers):\n    s = sorted(numbers)\n    n = len(s)\n    return s[n // 2] if n % 2 else (s[n // 2 - 1] + s[n // 2]) / 2\n"


def test_coding_agent(world, models, capsys):
    need(world, "agent")
    wrong = ["def median(numbers):\n    return 2\n", "this is no Python", "def median(numbers):\n    while True: numbers.sort()\n"[:20]]
    fixes = [*wrong, f"```python\n{GOOD}```"]
    script = Script(ns(choices=[ns(message=ns(content=text)) for text in fixes]))
    models(openai=script)
    assert example("coding_agent.py").repair(n=4) == GOOD
    assert capsys.readouterr().err == "1 of 4 fixes pass\n"
    assert script.told[0]["n"] == 4 and "2 failed, 1 passed" in script.told[0]["messages"][0]["content"]
    assert world.do("GET", "/v1/sandboxes") == []


# ---- a workspace ----

def test_workspace(world, capsys):
    example("workspace.py").main()
    assert capsys.readouterr().out == "todo: buy lamps\nleft outside: False\ngrace has: nothing yet\n"
    assert {v["name"] for v in world.do("GET", "/v1/volumes")} == {"workspace-ada", "workspace-grace"}
    assert world.do("GET", "/v1/sandboxes") == []
