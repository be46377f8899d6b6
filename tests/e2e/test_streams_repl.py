"""Code in interpreters that stay: their variables outlive cells, forks, hibernation and pandad."""
import json
import threading
import time

import pytest

from conftest import need, wait_for
from server import patience
from streams import Events


class Session:
    def __init__(self, p, id, sid=None, **body):
        self.p, self.id = p, id
        self.at = f"/v1/sandboxes/{id}/repl/sessions"
        if sid is None:
            a = p.ask("POST", self.at, body)
            if a.status == 500 and "repl.py" in a.json["error"]:
                pytest.skip("the image has no resident interpreter")
            assert a.status == 201, a
            sid = a.json["id"]
        self.sid = sid

    def ask(self, code, **more):
        return self.p.ask("POST", f"{self.at}/{self.sid}/run", {"code": code, **more})

    def run(self, code, **more):
        a = self.ask(code, **more)
        assert a.status == 200, a
        return a.json

    def value(self, code):
        return self.run(code)["results"][-1]["text/plain"]


def test_variables_stay(pandad):
    s = Session(pandad, pandad.create())
    assert s.run("x = 41") | {"duration_ms": 0} == {"stdout": "", "stderr": "", "exit": 0, "duration_ms": 0, "results": []}
    assert s.value("x + 1") == "42"
    r = s.run("import sys; print('out'); print('err', file=sys.stderr)")
    assert (r["stdout"], r["stderr"]) == ("out\n", "err\n")
    r = s.run("print('before'); 1/0")
    assert (r["stdout"], r["exit"], r["error"]) == ("before\n", 1, "ZeroDivisionError: division by zero")
    assert "Traceback" in r["stderr"]
    assert s.run("raise SystemExit(3)")["exit"] == 3
    r = s.run("class H:\n  def _repr_html_(self): return '<b>h</b>'\nH()")
    assert r["results"][0]["text/html"] == "<b>h</b>"
    assert s.run("print('ü€𝄞')")["stdout"] == "ü€𝄞\n"
    assert s.value("x") == "41"


def test_much_output_comes_whole(pandad):
    s = Session(pandad, pandad.create())
    for n in 300_000, 3_000_000:
        assert s.run(f"print('y' * {n})")["stdout"] == "y" * n + "\n"
    png = s.run("class P:\n  def _repr_png_(self): return bytes(range(256)) * 8000\nP()")["results"][0]["image/png"]
    import base64
    assert base64.b64decode(png) == bytes(range(256)) * 8000


def test_a_timeout_is_an_error_and_the_session_lives(pandad):
    s = Session(pandad, pandad.create())
    s.run("x = 1")
    start = time.monotonic()
    a = s.ask("import time; time.sleep(1000)", timeout_ms=300)
    assert a.status == 500 and a.json["error"] == "cell timeout after 300ms"
    assert time.monotonic() - start < 5 * patience()
    assert s.value("x") == "1"


def test_cells_of_one_session_take_turns(pandad):
    s = Session(pandad, pandad.create())
    s.run("n = 0")
    threads = [threading.Thread(target=s.run, args=("import time; m = n; time.sleep(0.02); n = m + 1",)) for _ in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert s.value("n") == "10"


def test_streams_interrupts_and_clients_that_go(pandad):
    s = Session(pandad, pandad.create())
    e = Events(pandad, "POST", f"{s.at}/{s.sid}/run/stream", {"code": "print('one', flush=True)\nimport time\ntime.sleep(1000)"})
    assert next(iter(e)) == ("stdout", {"chunk": "one\n"})
    pandad.do("POST", f"{s.at}/{s.sid}/interrupt", expect=204)
    seen = e.until("exit")
    assert seen[-2][0] == "error" and seen[-2][1]["name"] == "KeyboardInterrupt" and seen[-1][1]["exit"] == 1
    e = Events(pandad, "POST", f"{s.at}/{s.sid}/run/stream", {"code": "print('two', flush=True)\ntime.sleep(1000)"})
    assert next(iter(e)) == ("stdout", {"chunk": "two\n"})
    e.close()  # the cell goes with it
    assert s.value("6 * 7") == "42"
    e = Events(pandad, "POST", f"{s.at}/{s.sid}/run/stream", {"code": "'v'"})
    assert e.until("exit")[0] == ("result", {"text/plain": "'v'"})


def test_sessions_in_forks_after_hibernation_and_under_the_next_pandad(new_pandad):
    p = new_pandad()
    id = p.create()
    s = Session(p, id)
    s.run("x = [1]")
    child = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    twin = Session(p, child, s.sid)
    assert twin.value("x.append(2); x") == "[1, 2]" and s.value("x.append(3); x") == "[1, 3]"
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    assert s.value("x") == "[1, 3]"
    p.kill9()
    p.start()
    assert s.value("x") == "[1, 3]" and twin.value("x") == "[1, 2]"
    assert [i["id"] for i in p.do("GET", s.at)] == [s.sid]


LIAR = r"""
import json, sys
while True:
    request = json.loads(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
    sys.stdout.buffer.write(b"[" + b"{}," * 7_000_000 + b"0]\n")
    print(json.dumps({"id": request["id"], "type": "done", "exit": 0}), flush=True)
"""


def peak_mib(p):
    return int(open(f"/proc/{p.process.pid}/status").read().split("VmHWM:")[1].split()[0]) >> 10


def test_an_interpreter_that_answers_in_a_million_values_costs_little(new_pandad):
    """Parsed, its one line would be 1.5 GiB in pandad, and seconds for everybody."""
    p = new_pandad()
    id = p.create()
    if p.sh(id, "ls /usr/lib/panda/repl.py")["exit_code"]:
        pytest.skip("the image has no resident interpreter")
    p.do("PUT", f"/v1/sandboxes/{id}/fs?path=/usr/lib/panda/repl.py", LIAR.encode())
    s = Session(p, id)
    before = peak_mib(p)
    r = s.run("1", timeout_ms=int(60000 * patience()))
    assert (r["exit"], r["results"]) == (0, []) and "left out" in r["stderr"], r
    assert peak_mib(p) < before + 200


def test_sessions_come_and_go(pandad):
    id = pandad.create()
    s = Session(pandad, id)
    more = [Session(pandad, id) for _ in range(7)]
    a = pandad.ask("POST", s.at, {})
    assert (a.status, a.json["code"]) == (429, "too_many")
    listed = pandad.do("GET", s.at)
    assert {i["id"] for i in listed} == {s.sid, *(m.sid for m in more)} and listed[0]["language"] == "python"
    for m in more:
        pandad.do("DELETE", f"{m.at}/{m.sid}", expect=204)
    wait_for("them to go", lambda: [i["id"] for i in pandad.do("GET", s.at)] == [s.sid])
    for path in f"{s.at}/nope/run", f"{s.at}/{more[0].sid}/run":
        a = pandad.ask("POST", path, {"code": "1"})
        assert (a.status, a.json["code"]) == (404, "session_not_found")
    assert pandad.ask("POST", s.at, {"language": "cobol"}).status == 400
    r = s.run("import os; os._exit(9)")
    assert r["exit"] == 9 and "the interpreter has ended" in r["stderr"]
    assert s.ask("1").status == 404


def test_the_default_session_of_a_python_template(new_pandad):
    p = new_pandad(start=False)
    doc = json.loads((p.data / "templates/base.json").read_text())
    doc.update(name="resident", aliases=[], runner="python", prelude="import json\nanswer = 42")
    (p.data / "templates/resident.json").write_text(json.dumps(doc))
    p.start()
    id = p.create(template="resident")
    s = Session(p, id, "default")
    assert s.value("answer, json.dumps([1])") == "(42, '[1]')"
    s.run("answer += 1")
    assert s.value("answer") == "43"
    other = Session(p, p.create(), "default")
    assert other.ask("1").status == 404, "not in templates of another kind"
    # it was there before the sandbox, whose variables it has all the same; a prelude's names stay
    id = p.create(template="resident", env={"MINE": "ü€'\"\\", "TZ": "Asia/Tokyo"})
    fork = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    look = "import os, time; (os.environ.get('MINE'), os.getcwd(), time.tzname[0], answer)"
    got = []
    threads = [threading.Thread(target=lambda: got.append(Session(p, id, "default").value(look))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [repr(("ü€'\"\\", "/workspace", "JST", 42))] * 3
    s = Session(p, id, "default")
    s.run("os.environ['MINE'] = 'changed'; os.chdir('/tmp')")
    assert s.value(look) == repr(("changed", "/tmp", "JST", 42))  # once
    assert Session(p, fork, "default").value(look) == got[0]
    late = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    assert Session(p, late, "default").value(look) == repr(("changed", "/tmp", "JST", 42))


def test_the_first_context_was_there_before_its_sandbox(new_pandad):
    """A template with a prelude leaves a Python for whoever wants the first one; nobody else sees it."""
    p = new_pandad(start=False)
    doc = json.loads((p.data / "templates/base.json").read_text())
    doc.update(name="ready", aliases=[], prelude="import json\njson.warm = True\ndel json", env={"OF_TEMPLATE": "t"})
    (p.data / "templates/ready.json").write_text(json.dumps(doc))
    p.start()
    warm = "import json, os; getattr(json, 'warm', False)"

    id = p.create(template="ready", env={"MINE": "ü€'\"\\", "TZ": "Asia/Tokyo"})
    assert p.do("GET", f"/v1/sandboxes/{id}/repl/sessions") == []
    fork = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    s = Session(p, id)
    assert s.value("[n for n in dir() if not n.startswith('__')]") == "['display']" and s.value(warm) == "True"
    assert s.value("os.environ['OF_TEMPLATE'], os.environ['MINE'], os.getcwd()") == repr(("t", "ü€'\"\\", "/workspace"))
    assert s.value("import time; time.tzname[0]") == "'JST'"
    assert "<cell 1>" not in s.run("1/0")["traceback"][1] and "<cell" in s.run("1/0")["traceback"][1]
    assert [i["id"] for i in p.do("GET", s.at)] == [s.sid]
    second = Session(p, id)
    assert second.sid != s.sid and second.value(warm) == "False" and second.value("os.environ['MINE'][0]") == "'ü'"
    assert Session(p, fork).value(warm) == "True"  # it was forked before
    late = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    assert Session(p, late).value(warm) == "False"  # and this one has its parent's, in use

    id, got = p.create(template="ready"), []
    threads = [threading.Thread(target=lambda: got.append(Session(p, id))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({s.sid for s in got}) == 4 and sorted(s.value(warm) for s in got) == ["False"] * 3 + ["True"]


def test_fresh_interpreters(pandad):
    id = pandad.create()
    at = f"/v1/sandboxes/{id}/repl"
    r = pandad.do("POST", at, {"code": "print(6*7)"})
    assert (r["language"], r["stdout"], r["exit_code"]) == ("python", "42\n", 0)
    r = pandad.do("POST", at, {"code": "echo $((6*7)); exit 3", "language": "bash"})
    assert (r["stdout"], r["exit_code"]) == ("42\n", 3)
    assert pandad.do("POST", at, {"code": "x = 1\n" * 100_000 + "print(x)"})["stdout"] == "1\n"
    assert pandad.ask("POST", at, {"code": "1", "language": "cobol"}).json["code"] == "unsupported_language"
    assert pandad.ask("POST", at, {}).status == 400
    assert "python" in pandad.do("GET", "/v1/repl/languages")


# ---- Node, in a machine of its own ----

def test_a_node_that_stays(templates_pandad):
    p = templates_pandad
    need(p, "agent")
    id = p.create(template="agent")
    s = Session(p, id, language="javascript")
    s.run("const seen = [1]; let n = 41; function next() { return ++n }")
    assert s.value("next()") == "42" and s.value("await Promise.resolve(seen.length)") == "1"
    assert s.run("({ a: [1, 2] })")["results"][0]["application/json"] == '{"a":[1,2]}'
    assert s.run("console.log('out'); console.error('err')")["stdout"] == "out\n"
    r = s.run("null.x")
    assert r["exit"] == 1 and r["error"].startswith("TypeError: ") and any("cell_" in line for line in r["traceback"])
    a = s.ask("for (;;);", timeout_ms=300)
    assert a.status == 500 and "cell timeout" in a.json["error"]
    child = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    twin = Session(p, child, s.sid)
    assert twin.value("seen.push(2); next()") == "43" and s.value("seen.length") == "1"
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    assert p.do("GET", f"/v1/sandboxes/{id}")["status"] == "hibernated"
    assert s.value("next()") == "43" and s.value("seen") == "[ 1 ]"  # woken by the cell
    assert twin.value("seen") == "[ 1, 2 ]"
    listed = p.do("GET", s.at)
    assert [(i["id"], i["language"]) for i in listed] == [(s.sid, "javascript")]
    p.clear()


JS_DRAWS = """
const c = require('crypto'), { Worker } = require('worker_threads');
[c.randomBytes(16).toString('hex'), c.randomUUID(), globalThis.crypto.randomUUID(), c.randomInt(2 ** 47), await new Promise(r => c.randomInt(2 ** 47, (e, n) => r(n))),
 globalThis.crypto.getRandomValues(new Uint32Array(4)).join(), Math.random(), [..."random"].map(() => Math.floor(Math.random() * 1e6)).join(),
 c.generateKeyPairSync('ed25519').publicKey.export({ type: 'spki', format: 'der' }).toString('hex'),
 (await globalThis.crypto.subtle.exportKey('jwk', await globalThis.crypto.subtle.generateKey({ name: 'AES-GCM', length: 256 }, true, ['encrypt']))).k,
 await new Promise(r => new Worker("require('worker_threads').parentPort.postMessage(require('crypto').randomBytes(16).toString('hex'))", { eval: true }).on('message', r))
].join('|')"""


def test_the_random_numbers_of_a_running_node_differ_in_every_fork(templates_pandad):
    """In parent and children, from everything that draws; and again when the machine comes back from the disk twice."""
    p = templates_pandad
    need(p, "agent")
    id = p.create(template="agent")
    s = Session(p, id, language="javascript")
    drew = lambda s: s.value(JS_DRAWS).strip("'").split("|")
    assert len(drew(s)) == 11  # and by that it has drawn ahead
    children = [c["id"] for c in p.do("POST", f"/v1/sandboxes/{id}/fork-tree", {"count": 3})["children"]]
    again = p.do("POST", f"/v1/sandboxes/{children[0]}/fork")["children"][0]
    for column in zip(*(drew(Session(p, i, s.sid)) for i in (id, *children, again))):
        assert len(set(column)) == len(column), column
    snap = p.do("POST", f"/v1/sandboxes/{id}/snapshots")["id"]
    twins = [p.do("POST", "/v1/sandboxes", {"from_snapshot": snap})["id"] for _ in range(2)]
    for column in zip(*(drew(Session(p, i, s.sid)) for i in (id, *twins))):
        assert len(set(column)) == len(column), column
    p.clear()


def test_a_node_program_of_the_users_own_is_seeded_in_every_fork(templates_pandad):
    p = templates_pandad
    need(p, "agent")
    id = p.create(template="agent")
    p.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/server.js", b"""
        require('http').createServer((q, a) => {
            require('/usr/lib/panda/reseed.js')();
            a.end(require('crypto').randomUUID() + Math.random());
        }).listen(9000, '127.0.0.1', () => require('fs').writeFileSync('/root/up', ''));
    """)
    p.sh(id, "setsid node --require /usr/lib/panda/reseed.js /root/server.js </dev/null >/root/log 2>&1 & "
             "until [ -e /root/up ]; do sleep 0.05; done; curl -sS http://127.0.0.1:9000")
    children = [c["id"] for c in p.do("POST", f"/v1/sandboxes/{id}/fork-tree", {"count": 2})["children"]]
    said = [p.sh(i, "curl -sS http://127.0.0.1:9000")["stdout"] for i in (id, *children)]
    assert len(set(said)) == 3 and all(len(text) > 40 for text in said), said
    p.clear()


def test_a_running_node_cell_is_seen_and_interrupted(templates_pandad):
    p = templates_pandad
    need(p, "agent")
    s = Session(p, p.create(template="agent"), language="node")
    e = Events(p, "POST", f"{s.at}/{s.sid}/run/stream", {"code": "let kept = 7; console.log('one'); await new Promise(() => {})"})
    assert next(iter(e)) == ("stdout", {"chunk": "one\n"})
    p.do("POST", f"{s.at}/{s.sid}/interrupt", expect=204)
    seen = e.until("exit")
    assert seen[-2][1]["name"] == "KeyboardInterrupt" and seen[-1][1]["exit"] == 1
    assert s.value("kept") == "7"
    assert s.value("for (let i = 0; i < 100; i++) new Array(1e5).fill(i); 'collected'") == "'collected'"  # also what the cell awaited
    p.clear()


def test_contexts_of_two_languages_side_by_side(templates_pandad):
    p = templates_pandad
    need(p, "agent")
    id = p.create(template="agent")
    py, other, js = Session(p, id), Session(p, id), Session(p, id, language="javascript")
    py.run("who = 'one'")
    other.run("who = 'two'")
    js.run("const who = 'three'")
    assert (py.value("who"), other.value("who"), js.value("who")) == ("'one'", "'two'", "'three'")
    assert py.value("import asyncio\nawait asyncio.sleep(0, 'awaited')") == "'awaited'"
    p.clear()
