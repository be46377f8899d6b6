"""The resident interpreters, without a sandbox: requests in, answers out."""
import base64
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PANDA = Path(__file__).resolve().parents[2] / "templates/common/files/usr/lib/panda"
DEADLINE_S = 20


class Repl:
    """One interpreter; run() gives all answers to a cell, up to "done"."""

    def __init__(self, command, cwd, env=()):
        self.p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  cwd=cwd, env={**os.environ, **dict(env)}, bufsize=0)
        self.n, self.rest = 0, b""

    def ask(self, code, **more):
        self.n += 1
        data = json.dumps({"id": self.n, "code": code, **more}).encode()
        self.p.stdin.write(b"%d\n%s" % (len(data), data))

    def answer(self):
        end = time.monotonic() + DEADLINE_S
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.p.stdout], [], [], max(end - time.monotonic(), 0))
            assert ready, f"no answer within {DEADLINE_S} s; so far {self.rest!r}"
            data = os.read(self.p.stdout.fileno(), 1 << 16)
            assert data, f"it is gone: {self.p.wait()}, {self.p.stderr.read()!r}"
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def answers(self):
        got = []
        while not got or got[-1]["type"] != "done":
            got.append(self.answer())
        return Cell(got)

    def run(self, code, **more):
        self.ask(code, **more)
        cell = self.answers()
        assert all(a["id"] in (self.n, None) for a in cell.all), cell
        return cell


class Cell:
    def __init__(self, all):
        self.all, self.exit = all, all[-1]["exit"]

    def __repr__(self):
        return repr(self.all)

    def text(self, type):
        return "".join(a["text"] for a in self.all if a["type"] == type)

    @property
    def stdout(self):
        return self.text("stdout")

    @property
    def results(self):
        return [a["data"] for a in self.all if a["type"] == "result"]

    @property
    def value(self):
        found = [a["data"]["text/plain"] for a in self.all if a["type"] == "result" and a["main"]]
        assert len(found) == 1 and self.exit == 0, self
        return found[0]

    @property
    def error(self):
        found = [a for a in self.all if a["type"] == "error"]
        assert len(found) == 1, self
        return found[0]


def closing(repl):
    yield repl
    repl.p.stdin.close()
    try:
        assert repl.p.wait(10) == 0  # the end of requests is its end
    finally:
        repl.p.kill()
        repl.p.wait()
        repl.p.stdout.close()
        repl.p.stderr.close()


@pytest.fixture
def identity(tmp_path):
    file = tmp_path / "machine-id"
    file.write_text("first\n")
    return file


@pytest.fixture
def py(tmp_path, identity):
    yield from closing(Repl([sys.executable, PANDA / "repl.py", identity], tmp_path))


@pytest.fixture
def js(tmp_path, identity):
    if shutil.which("node") is None:
        pytest.skip("this host has no node")
    yield from closing(Repl([PANDA / "repl-node"], tmp_path, {"PANDA_GENERATION": str(identity)}))


# --- Python

def test_names_stay_from_cell_to_cell(py):
    assert py.run("x = 6").all == [{"id": 1, "type": "done", "exit": 0}]
    assert py.run("x * 7").value == "42"
    assert py.run("_ + 1").value == "43"


def test_none_and_a_semicolon_show_nothing(py):
    assert py.run("None").results == []
    assert py.run("1;").results == []
    assert py.run("").exit == 0


def test_output_of_subprocesses_and_of_c_is_seen_in_order(py):
    c = py.run("import os, subprocess, sys\nprint('a')\nsubprocess.run(['echo', 'b'])\nos.write(1, b'c\\n')\nprint('d', end='')")
    assert c.stdout == "a\nb\nc\nd"
    assert py.run("print('e', file=sys.stderr)").text("stderr") == "e\n"


def test_output_is_there_while_the_cell_runs(py, tmp_path):
    go = tmp_path / "go"
    py.ask(f"import os, time\nprint('first', end='')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('last')")
    assert py.answer()["text"] == "first"  # without a line end, too
    go.touch()
    assert py.answers().stdout == "last\n"


def test_much_output_arrives_whole(py):
    c = py.run("import subprocess\nfor i in range(100000): print(i)\nsubprocess.run(['seq', '0', '99999'])\nNone")
    assert c.stdout == "".join(f"{i}\n" for i in range(100000)) * 2


def test_one_print_larger_than_the_pipe(py):
    for _ in range(5):  # the output thread once waited for a lock that the cell held, and the cell for the thread
        assert py.run("print('y' * 3000000)").text("stdout") == "y" * 3000000 + "\n"


def test_bytes_that_are_no_text_and_split_characters(py):
    c = py.run("import os, time\nos.write(1, b'\\xff')\nos.write(1, 'ü'.encode()[:1])\ntime.sleep(0.1)\nos.write(1, 'ü'.encode()[1:])\nNone")
    assert c.stdout == "\ufffdü"
    assert "\\ud800" in py.run("print('\\ud800')").stdout
    assert py.run("'\\0\\ud800'").value


def test_an_error_tells_the_cells_own_lines(py):
    py.run("def f(x):\n    return 1 / x\n")
    c = py.run("y = 0\nf(y)")
    assert c.exit == 1 and c.error["name"] == "ZeroDivisionError" and c.error["value"] == "division by zero"
    told = "".join(c.error["traceback"])
    assert 'File "<cell 2>", line 2, in <module>\n    f(y)' in told
    assert 'File "<cell 1>", line 2, in f\n    return 1 / x' in told
    assert "repl.py" not in told
    assert py.run("1").exit == 0


def test_a_syntax_error_runs_nothing(py):
    c = py.run("print('never')\nx ==== 1")
    assert c.exit == 1 and c.error["name"] == "SyntaxError" and c.stdout == ""
    told = "".join(c.error["traceback"])
    assert 'File "<cell 1>", line 2' in told and "x ==== 1" in told and "repl.py" not in told and "During" not in told


def test_exceptions_that_misbehave(py):
    assert py.run("class E(Exception):\n    def __str__(self): raise ValueError\nraise E").error["name"] == "E"
    assert py.run("class R:\n    def __repr__(self): raise ValueError('r')\nR()").error["name"] == "ValueError"
    assert py.run("raise ExceptionGroup('g', [ValueError(1)])").error["name"] == "ExceptionGroup"
    assert py.run("f = lambda: f()\nf()").error["name"] == "RecursionError"
    assert py.run("class G:\n    def __getattr__(self, name): raise RuntimeError(name)\n    def __repr__(self): return 'g'\nG()").value == "g"
    assert py.run("2").value == "2"


@pytest.mark.parametrize("code, exit, stderr", [
    ("import sys; sys.exit()", 0, ""), ("exit(3)", 3, ""), ("raise SystemExit('why')", 1, "why\n"), ("exit(256 + 7)", 7, ""),
])
def test_exit_ends_the_cell_only(py, code, exit, stderr):
    c = py.run(code)
    assert c.exit == exit and c.text("stderr") == stderr
    assert py.run("5").value == "5"


def test_await_at_top_level(py):
    assert py.run("import asyncio\nasync def f(): await asyncio.sleep(0); return 3\nawait f()").value == "3"
    assert py.run("t = asyncio.create_task(f())") .exit == 1  # no loop runs here
    assert py.run("asyncio.run(f())").value == "3"
    assert py.run("await asyncio.gather(f(), f())").value == "[3, 3]"
    told = "".join(py.run("async def boom(): 1/0\nawait boom()").error["traceback"])
    assert "in boom" in told and "base_events" not in told
    assert py.run("async def g():\n    for i in range(3): yield i\n[x async for x in g()]").value == "[0, 1, 2]"
    assert py.run("async for x in g(): print(x, end='')").stdout == "012"


def test_sigint_interrupts_the_cell_and_nothing_else(py):
    py.run("x = 1")
    py.p.send_signal(signal.SIGINT)  # between cells: nobody is meant
    for code in "print('on')\nwhile True: pass", "print('on')\nimport time; time.sleep(60)", \
            "print('on')\nimport asyncio\nawait asyncio.sleep(60)":
        py.ask(code)
        assert py.answer()["text"] == "on\n"
        py.p.send_signal(signal.SIGINT)
        c = py.answers()
        assert c.exit == 1 and c.error["name"] == "KeyboardInterrupt" and "repl.py" not in "".join(c.error["traceback"])
    assert py.run("1 + 1").value == "2"


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)", "import os; os.system('sleep 60')",
                                  "import asyncio; await asyncio.sleep(60)", "import subprocess; subprocess.run(['sleep', '60'])"])
def test_a_timeout_leaves_the_names(py, code):
    py.run("x = 1")
    c = py.run(code, timeout_ms=100)
    assert c.exit == 124 and c.error["name"] == "TimeoutError" and "100 ms" in c.error["value"]
    assert py.run("x", timeout_ms=5000).value == "1"


def interrupted(repl, code):
    """The answers to a cell that gets a SIGINT when it has said so; as pandad sends it: to the interpreter alone."""
    repl.ask(code)
    assert repl.answer()["text"] == "on\n"
    repl.p.send_signal(signal.SIGINT)
    return repl.answers()


def alive(pid):
    """A process that has ended and was not yet waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go between opening and reading
        return False


def wait_gone(*pids):
    end = time.monotonic() + DEADLINE_S
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end, [Path(f"/proc/{pid}/stat").read_text() for pid in pids if alive(pid)]
        time.sleep(0.01)


@pytest.fixture
def nest(tmp_path):
    """A command that starts another, and both wait; their numbers are in files beside it."""
    (tmp_path / "nest").write_text(f"echo $$ >{tmp_path}/outer\nsh -c 'echo $$ >{tmp_path}/inner; echo on; exec sleep 1000'\necho went on\n")
    return f"sh {tmp_path}/nest"


def wait_nest_gone(tmp_path):
    wait_gone(*(int(f.read_text() or 0) for f in tmp_path.glob("*er")))


@pytest.mark.parametrize("sent, how", [
    (True, "import os; os.system({0!r}); print('went on')"), (True, "import os\nwhile True: os.system({0!r})"), (True, "!{0}"),
    (True, "import subprocess; subprocess.run({0!r}, shell=True)"),
    (True, "import subprocess, time; subprocess.Popen({0!r}, shell=True); time.sleep(1000)"),
    (False, "import os; os.system({0!r}); print('went on')"), (False, "import subprocess, time; subprocess.Popen({0!r}, shell=True); time.sleep(1000)"),
])
def test_what_a_cell_started_ends_with_it(py, tmp_path, nest, sent, how):
    c = interrupted(py, how.format(nest)) if sent else py.run(how.format(nest), timeout_ms=1000)
    assert "went on" not in c.stdout and c.error["name"] == ("KeyboardInterrupt" if sent else "TimeoutError")
    wait_nest_gone(tmp_path)
    assert py.run("1").value == "1"


def test_what_is_started_after_the_interrupt_ends_too(py, js, tmp_path):
    """As by a shell that was just about to."""
    (tmp_path / "late").write_text("trap 'echo $$ >outer; sh -c \"echo \\$\\$ >inner; exec sleep 1000\"' INT\necho on\nsleep 1000\n")
    for repl, code in (py, "import subprocess; subprocess.Popen(['sh', 'late']).wait()"), \
            (js, "require('child_process').spawnSync('sh', ['late'], { stdio: 'inherit' })"):
        assert interrupted(repl, code).error["name"] == "KeyboardInterrupt"
        assert repl.run("1").value == "1"
        wait_for_file(tmp_path / "inner")
        wait_nest_gone(tmp_path)
        (tmp_path / "inner").unlink()


def test_what_earlier_cells_started_stays(py):
    py.run("import subprocess, time\nserver = subprocess.Popen(['sleep', '1000'])\ntime.sleep(0.02)")  # a tick of its clock
    pid = int(py.run("server.pid").value)
    assert interrupted(py, "print('on'); time.sleep(1000)").error["name"] == "KeyboardInterrupt"
    assert py.run("time.sleep(1000)", timeout_ms=100).exit == 124
    assert alive(pid) and py.run("server.kill(); server.wait()").value == "-9"


def test_the_shell_of_c_is_ended_with_its_cell(py):
    """C's system() ignores SIGINT while it waits."""
    c = py.run("import ctypes; ctypes.CDLL(None).system(b'sleep 1000'); print('went on')", timeout_ms=100)
    assert c.exit == 124 and c.error["name"] == "TimeoutError"
    assert py.run("1").value == "1"


def test_os_system_says_how_it_went(py):
    assert py.run("import os; [os.waitstatus_to_exitcode(os.system(c)) for c in ('exit 3', b'true', 'kill -9 $$')]").value == "[3, 0, -9]"


def test_an_interrupt_ends_its_own_cell_and_no_later_one(py):
    """One that the main thread has noticed is not sent again (LATE_S later)."""
    for _ in range(25):
        assert interrupted(py, "print('on')\nwhile True: pass").error["name"] == "KeyboardInterrupt"
        assert py.run("import time; time.sleep(0.07)").exit == 0


@pytest.mark.parametrize("code", ["while True:\n    try:\n        time.sleep(1000)\n    except: pass",
                                  "while True:\n    try: time.sleep(1000)\n    except BaseException:\n        print('caught')",
                                  "while True:\n    try: time.sleep(1000)\n    except:\n        time.sleep(1000)",
                                  "def f():\n    while True:\n        try:\n            while True: pass\n        except: continue\nf()"])
def test_who_catches_every_interrupt_ends_with_the_second(py, code):
    py.run("import time; x = 1")
    py.ask("print('on')\n" + code)
    assert py.answer()["text"] == "on\n"
    end = time.monotonic() + DEADLINE_S
    while not select.select([py.p.stdout], [], [], 0.2)[0] or py.answer()["type"] == "stdout":
        assert time.monotonic() < end
        py.p.send_signal(signal.SIGINT)
    assert py.answer()["type"] == "done"
    assert py.run(code, timeout_ms=100).exit == 124
    assert py.run("x").value == "1"
    assert py.run("import sys; sys.gettrace()").results == []


def test_a_task_that_is_not_to_be_cancelled(py):
    c = interrupted(py, "import asyncio\nasync def f():\n    while True:\n        try: await asyncio.sleep(1000)\n"
                        "        except asyncio.CancelledError: pass\nprint('on')\nawait f()")
    assert c.error["name"] == "KeyboardInterrupt"
    assert py.run("await asyncio.sleep(0, 5)").value == "5"


@pytest.mark.parametrize("wait", ["time.sleep(1000)", "await asyncio.sleep(1000)"])
def test_an_interrupt_that_comes_just_before_it_waits(py, wait):
    """As if it had come between Python's last look and the system call: another thread has it, and nothing ends the wait."""
    c = py.run("import asyncio, signal, threading, time\n"
               f"threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start(); {wait}")
    assert c.error["name"] == "KeyboardInterrupt"
    assert py.run("1 + 1").value == "2"


def test_who_ignores_interrupts_ends_with_its_last_line(py):
    assert interrupted(py, "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('on'); time.sleep(0.3); 1").value == "1"
    assert interrupted(py, "print('on'); time.sleep(1000)").error["name"] == "KeyboardInterrupt"  # of its own cell only


def test_rich_forms(py):
    py.run("class Rich:\n"
           "    def _repr_html_(self): return '<b>x</b>'\n"
           "    def _repr_png_(self): return b'\\x89PNG'\n"
           "    def _repr_svg_(self): raise ValueError\n"
           "    def _repr_json_(self): return {'a': 1}\n"
           "    def __repr__(self): return 'Rich'\n"
           "class Bundle:\n"
           "    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/plain': 'b', 'application/x': {'y': 2}}, {}\n")
    (data,) = py.run("Rich()").results
    assert data == {"text/html": "<b>x</b>", "image/png": base64.b64encode(b"\x89PNG").decode(),
                    "application/json": '{"a": 1}', "text/plain": "Rich"}
    assert py.run("Bundle()").results == [{"text/plain": "b", "application/x": '{"y": 2}'}]
    assert list(py.run("Rich").results[0]) == ["text/plain"]  # the class is not one of its objects
    c = py.run("print('before')\ndisplay(Rich(), 2)\nprint('after')")
    assert [a["type"] for a in c.all] == ["stdout", "result", "result", "stdout", "done"]


def test_a_huge_result_is_cut(py):
    text = py.run("'x' * (2 << 20)").value
    assert len(text) < (1 << 20) + 100 and text.endswith("more characters)")


def test_clones_draw_numbers_of_their_own(py, identity):
    py.run("import random; random.seed(1)")
    same = py.run("random.random()").value
    py.run("random.seed(1)")
    assert py.run("random.random()").value == same
    py.run("random.seed(1)")
    identity.write_text("second\n")
    assert py.run("random.random()").value != same


def test_pickle_finds_what_cells_define(py):
    assert py.run("import pickle\nclass A:\n    x = 1\npickle.loads(pickle.dumps(A())).x").value == "1"
    py.run("def f():\n    return 1")
    assert py.run("import inspect; print(inspect.getsource(f))").stdout == "def f():\n    return 1\n"


def test_modules_beside_the_user(py, tmp_path):
    (tmp_path / "mine.py").write_text("value = 12\n")
    assert py.run("import mine; mine.value").value == "12"
    assert py.run("import repl").error["name"] == "ModuleNotFoundError"


def test_what_notebooks_write(py):
    assert py.run("!echo out; echo err >&2").stdout == "out\n"
    assert py.run("%matplotlib inline\n1").value == "1"
    assert py.run("%%bash\nfor i in 1 2; do echo $i; done").stdout == "1\n2\n"
    assert py.run("if True:\n    !echo deep").stdout == "deep\n"
    assert py.run("text = \"\"\"\n!not a command\n%nor this\n\"\"\"\nout = !printf 'a\\nb'\ntext.strip(), out").value == \
        "('!not a command\\n%nor this', ['a', 'b'])"
    assert py.run("!echo one \\\n    two\n3").stdout == "one two\n"
    assert py.run("%%writefile notes.txt\nhello\n%not a magic").stdout == "Writing notes.txt\n"
    assert py.run("%%writefile -a notes.txt\n!").exit == 0 and py.run("open('notes.txt').read()").value == "'hello\\n%not a magic!'"
    assert py.run("%cd /\n%env A=b c\n!pwd; echo $A").stdout == "/\n/\nb c\n"
    assert py.run("x = %pwd\nx").value == "'/'"
    c = py.run("%time sum([40, 2])")
    assert c.value == "42" and c.stdout.startswith("Wall time: ")
    c = py.run("%%time\nn = 1\nn")
    assert c.value == "1" and c.stdout.startswith("Wall time: ") and py.run("2").stdout == ""
    assert " per loop (" in py.run("%timeit n + 1").stdout
    assert py.run("%run x.py").error["value"].startswith("%run is not known here")
    c = py.run("!true\n!true\nx ==== 1")  # the mistake, not what we made of the rest
    assert c.error["name"] == "SyntaxError" and "line 3" in "".join(c.error["traceback"]) and "x ==== 1" in "".join(c.error["traceback"])


def test_input_has_an_end_and_requests_are_safe(py):
    c = py.run("input('name? ')")
    assert c.stdout == "name? " and c.error["name"] == "EOFError" and "nobody can answer" in c.error["value"]
    assert py.run("import subprocess; subprocess.run(['cat'])\n7").value == "7"


def test_output_of_a_thread_after_its_cell(py):
    py.run("import threading, os\ngo = threading.Event()\nt = threading.Thread(target=lambda: (go.wait(), os.write(1, b'late\\n')))\nt.start()")
    assert py.run("go.set(); t.join()").stdout == "late\n"


def test_a_forked_child_does_not_answer(py):
    c = py.run("import os\nchild = os.fork()\nif child == 0:\n    print('child')\nelse:\n    os.waitpid(child, 0)\n    print('parent')")
    assert sorted(c.stdout.split()) == ["child", "parent"]
    assert py.run("3").value == "3"


def test_closed_and_replaced_streams(py):
    assert py.run("import sys; sys.stdout.close(); sys.stderr.close()").exit == 0
    assert py.run("print('again')").stdout == "again\n"
    py.run("import os; os.close(1); os.close(2)")
    assert py.run("print('there'); os.write(2, b'too')").stdout == "there\n"
    py.run("old = sys.stdout; sys.stdout = None")
    assert py.run("1").value == "1"
    py.run("sys.stdout = old")
    assert py.run("print('back')").stdout == "back\n"


def test_a_bake_keeps_names(py):
    assert py.run("x = [1]", bake=True).exit == 0
    assert py.run("import gc; x, gc.get_freeze_count() > 1000").value == "([1], True)"


def test_who_takes_a_baked_one_gives_it_its_environment(py, tmp_path):
    c = py.run("print('said'); display(1); kept = 1", bake=True)
    assert c.results == []  # a bake shows nothing
    assert py.run(f"__panda_take__({{'A': 'ü'}}, {str(tmp_path.parent)!r})").exit == 0
    assert py.run("import os; os.environ['A'], os.getcwd(), kept").value == repr(("ü", str(tmp_path.parent), 1))
    assert py.run("__panda_take__({}, '/')").error["name"] == "NameError"  # once


@pytest.mark.parametrize("bad", [b"hello\n", b"99999999999\n", b"-5\n", b"\n", b"3\n[1]", b"5\nhello", b"2\n{}"])
def test_a_broken_frame_is_the_end(tmp_path, bad):
    for command in [[sys.executable, PANDA / "repl.py"]] + ([[PANDA / "repl-node"]] if shutil.which("node") else []):
        p = subprocess.run(command, input=bad + b" " * 20, capture_output=True, cwd=tmp_path, timeout=DEADLINE_S)
        assert p.returncode == 2, (command, p)
        assert json.loads(p.stdout.splitlines()[0])["name"] == "ProtocolError"


FAKE = {
    "matplotlib/__init__.py": "def use(name): global backend; backend = name\n",
    "matplotlib/figure.py": "class Figure:\n    def savefig(self, file, **kw): file.write(b'\\x89PNG' + repr(sorted(kw)).encode())\n",
    "matplotlib/_pylab_helpers.py": "class Gcf:\n    figs = []\n    get_all_fig_managers = classmethod(lambda c: list(c.figs))\n"
                                    "    destroy = classmethod(lambda c, m: c.figs.remove(m))\n",
    "matplotlib/pyplot.py": "from types import SimpleNamespace as N\nfrom . import figure as f, _pylab_helpers as h\n"
                            "def figure():\n    show.__signature__ = None  # the real one does this, too\n    m = N(canvas=N(figure=f.Figure()))\n    h.Gcf.figs.append(m)\n    return m.canvas.figure\n"
                            "def show(): raise RuntimeError\n"
                            "def close(fig): h.Gcf.figs[:] = [m for m in h.Gcf.figs if m.canvas.figure is not fig]\n",
}


def test_figures_are_shown_once(py, tmp_path):
    """With a stand-in for matplotlib; the real one is tested in the sandbox."""
    for name, text in FAKE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert py.run("import matplotlib.pyplot as plt\nmatplotlib = __import__('matplotlib'); matplotlib.backend").value == "'agg'"
    c = py.run("plt.figure(); plt.figure(); plt.show(); print('shown')\nNone")
    assert [a["type"] for a in c.all] == ["result", "result", "stdout", "done"]
    assert len(py.run("f = plt.figure()").results) == 1  # left open: shown at the end
    (data,) = py.run("plt.figure()").results  # the value, and not once more at the end
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")


def test_a_bokeh_figure_is_json(py, tmp_path):
    """With a stand-in for bokeh, which Debian does not have."""
    for name, text in {"__init__": "", "io": "def show(x): raise RuntimeError\n", "embed": "def json_item(f): return {'doc': f.n}\n",
                       "plotting": "class figure:\n    document, n = None, 3\n"}.items():
        (tmp_path / "bokeh").mkdir(exist_ok=True)
        (tmp_path / "bokeh" / f"{name}.py").write_text(text)
    (data,) = py.run("from bokeh.plotting import figure\nfigure()").results
    assert json.loads(data["application/vnd.bokeh.v1+json"]) == {"doc": 3}
    assert len(py.run("import bokeh.io\nbokeh.io.show(figure())").results) == 1


# --- Node

def test_js_names_stay_and_may_be_said_again(js):
    assert js.run("const x = 6; let y = 7; var z = 1; function f() { return x * y }").results == []
    assert js.run("f()").value == "42"
    assert js.run("const x = 2; x + y").value == "9"
    assert js.run("_ + 1").value == "10"
    assert js.run("undefined").results == []


@pytest.mark.parametrize("code, value", [
    ("null", "null"), ("10n ** 20n", "100000000000000000000n"), ("-0", "-0"), ("NaN", "NaN"), ("'a'", "'a'"), ("Symbol('s')", "Symbol(s)"),
    ("new Map([[1, 2]])", "Map(1) { 1 => 2 }"), ("await Promise.resolve(3)", "3"), ("await import('os').then(m => m.EOL)", "'\\n'"),
])
def test_js_values(js, code, value):
    assert js.run(code).value == value


def test_js_plain_values_are_json_too(js):
    (data,) = js.run("({ a: [1, 2] })").results
    assert json.loads(data["application/json"]) == {"a": [1, 2]} and data["text/plain"] == "{ a: [ 1, 2 ] }"
    (data,) = js.run("const loop = {}; loop.loop = loop; loop").results
    assert list(data) == ["text/plain"]


def test_js_imports(js, tmp_path):
    (tmp_path / "mine.mjs").write_text("export default 5; export const six = 6;\n")
    (tmp_path / "old.js").write_text("module.exports = 7\n")
    assert js.run("import fs from 'fs'\nimport { join as j, sep } from 'node:path'\nimport * as os from 'os'\n"
                  "fs.existsSync('/') + j('a', 'b') + sep + os.EOL").value == "'truea/b/\\n'"
    assert js.run("import five, { six } from './mine.mjs'\nfive + six + require('./old.js')").value == "18"


def test_js_output(js):
    c = js.run("console.log('a'); console.error('b'); process.stdout.write('c')\nrequire('child_process').execSync('echo d; echo e >&2', { stdio: 'inherit' }); 1")
    assert c.stdout == "a\ncd\n" and c.text("stderr") == "b\ne\n"
    assert c.all[-2]["type"] == "result"  # after all that was printed
    c = js.run("const { spawnSync } = require('child_process'); spawnSync('seq', ['0', '99999'], { stdio: 'inherit' }).status")
    assert c.stdout == "".join(f"{i}\n" for i in range(100000)) and c.value == "0"
    assert js.run("console.log('\\ud800')").stdout == "\ufffd\n"


def test_js_output_is_there_while_the_cell_runs(js, tmp_path):
    go = tmp_path / "go"
    js.ask(f"console.log('first'); while (!require('fs').existsSync({json.dumps(str(go))}));")
    assert js.answer()["text"] == "first\n"
    go.touch()
    assert js.answers().exit == 0


def test_js_errors(js):
    c = js.run("function f() { throw new TypeError('no') }\nf()")
    assert c.exit == 1 and c.error["name"] == "TypeError" and c.error["value"] == "no"
    told = "".join(c.error["traceback"])
    assert "at f (cell_1.js:1:22)" in told and "cell_1.js:2:1" in told and "repl.js" not in told and "node:" not in told
    assert js.run("x +").error["name"] == "SyntaxError"
    assert js.run("await Promise.reject(new RangeError('r'))").error["name"] == "RangeError"
    assert js.run("throw 5").error["value"] == "5"
    assert js.run("1").value == "1"


def test_js_answers_all_that_was_asked_before_the_end(js):
    for i in range(3):
        js.ask(f"await null; {i}")
    js.p.stdin.close()
    assert [js.answers().value for _ in range(3)] == ["0", "1", "2"]
    assert js.p.wait(DEADLINE_S) == 0


def test_js_exit_ends_the_cell_only(js):
    assert js.run("process.exit(3)").exit == 3
    assert js.run("await null; process.exit(4)").exit == 4
    assert js.run("5").value == "5"


def test_js_background_errors_do_not_end_it(js):
    js.run("setTimeout(() => { throw new Error('late') }, 1); Promise.reject(new Error('lost')); 1")
    c = js.run("await new Promise(r => setTimeout(r, 50)); 2")
    assert c.value == "2"


@pytest.mark.parametrize("code", ["for (;;);", "await new Promise(() => {})"])
def test_js_interrupt_and_timeout(js, code):
    js.run("const x = 1")
    js.p.send_signal(signal.SIGINT)  # between cells: nobody is meant
    assert js.run("x").value == "1"
    js.ask("console.log('on'); " + code)
    assert js.answer()["text"] == "on\n"
    js.p.send_signal(signal.SIGINT)
    c = js.answers()
    assert c.exit == 1 and c.error["name"] == "KeyboardInterrupt"
    c = js.run(code, timeout_ms=100)
    assert c.exit == 124 and c.error["name"] == "TimeoutError"
    assert js.run("x").value == "1"


@pytest.mark.parametrize("code", ["on(); for (;;);", "on(); for (;;) console.log('x')", "on(); for (;;) process.stdout.write('y'.repeat(1 << 20))",
                                  "on(); for (;;) await null", "on(); await new Promise(() => {})", "await new Promise(r => setTimeout(r, 1)); on(); for (;;);",
                                  "on(); for (;;) { try { for (;;); } catch {} }", "on(); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)"])
def test_js_can_be_interrupted_at_any_moment(js, code):
    js.run("const x = 1, on = () => console.log('on')")
    for i in range(8):
        js.ask(code)
        assert js.answer()["text"] == "on\n"
        time.sleep(i * 0.0003)
        js.p.send_signal(signal.SIGINT)
        c = js.answers()
        assert c.exit == 1 and c.error["name"] == "KeyboardInterrupt"
        c = js.run("console.log('again'); x")
        assert c.value == "1" and c.stdout.endswith("again\n")


def test_js_clones_throw_away_what_they_have_drawn_ahead(js, identity):
    js.run("const c = require('crypto'), draw = c.randomUUID, random = Math.random; let n = 0; c.randomUUID = () => (n++, draw())")
    assert js.run("n").value == "0"
    identity.write_text("second\n")
    ahead = int(js.run("n").value)
    assert ahead >= 128
    assert js.run("n").value == str(ahead)  # once for each life
    assert js.run("Math.random === random && random() >= 0 && random() < 1 && random() != random()").value == "true"


def test_js_openssl_is_seeded_again(tmp_path):
    """The piece in C, made as tools/image makes it: OpenSSL asks the kernel for entropy when it is called."""
    if shutil.which("node") is None or shutil.which("strace") is None:
        pytest.skip("this host has no node or no strace")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-fno-stack-protector", "-nostdlib", "-Wl,-z,now,-z,relro",
                    "-o", tmp_path / "reseed.node", PANDA / "reseed.c"], check=True)
    asks = lambda calls: len(re.findall(r"getrandom\(.*, 0\) +=", subprocess.run(
        ["strace", "-f", "-e", "trace=getrandom", "node", "-e", "require('crypto').randomBytes(8); const r = require(process.argv[1]);" + calls,
         tmp_path / "reseed.node"], check=True, capture_output=True, text=True).stderr))
    assert asks("r.add(); r.add()") >= asks("") + 4  # each time ours, and OpenSSL's own


def test_js_what_computes_in_the_background_can_be_interrupted(js):
    js.run("const x = 1; setTimeout(() => { for (;;); }, 0)")
    js.ask("await new Promise(r => setTimeout(r, 1))")
    while True:
        js.p.send_signal(signal.SIGINT)  # again: it may have come before the cell
        if select.select([js.p.stdout], [], [], 0.5)[0]:
            break
    assert js.answers().error["name"] == "KeyboardInterrupt"
    assert js.run("x").value == "1"


@pytest.mark.parametrize("how", ["require('child_process').execSync({0})", "require('child_process').spawnSync({0}, {{ shell: true, stdio: 'inherit' }})",
                                 "require('child_process').exec({0}); await new Promise(() => {{}})"])
def test_js_what_a_cell_started_ends_with_it(js, tmp_path, nest, how):
    js.run("const x = 1")
    js.ask(how.format(json.dumps(nest)))
    wait_for_file(tmp_path / "inner")
    js.p.send_signal(signal.SIGINT)
    c = js.answers()
    assert c.error["name"] == "KeyboardInterrupt" and "went on" not in c.stdout
    wait_nest_gone(tmp_path)
    assert js.run("x").value == "1"


def wait_for_file(file):
    end = time.monotonic() + DEADLINE_S
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < end, file
        time.sleep(0.01)


def test_js_a_child_that_does_not_want_to_end(js):
    js.run("const x = 1")
    assert js.run("require('child_process').execSync('trap \"\" INT; sleep 1000')", timeout_ms=500).exit == 124
    assert js.run("x").value == "1"


def test_js_what_earlier_cells_started_stays(js):
    pid = int(js.run("const server = require('child_process').spawn('sleep', ['1000']); await new Promise(r => setTimeout(r, 20)); server.pid").value)
    js.ask("console.log('on'); for (;;);")
    assert js.answer()["text"] == "on\n"
    js.p.send_signal(signal.SIGINT)
    assert js.answers().error["name"] == "KeyboardInterrupt"
    assert alive(pid) and js.run("server.kill(9)").value == "true"


@pytest.mark.parametrize("sleep", ["ms => new Promise(r => setTimeout(r, ms))", "require('timers/promises').setTimeout",
                                   "ms => require('fs/promises').stat('/')"])
def test_js_what_awaited_does_not_go_on_after_an_interrupt(js, sleep):
    js.run(f"let n = 0, m = 0; const sleep = {sleep}")
    js.run("(async () => { for (;;) { m++; await sleep(2) } })(); 1")  # of a cell that was not interrupted: this one goes on
    js.ask("console.log('on'); setInterval(() => n++, 1); for (;;) { n++; await sleep(1) }")
    assert js.answer()["text"] == "on\n"
    js.p.send_signal(signal.SIGINT)
    assert js.answers().error["name"] == "KeyboardInterrupt"
    assert js.run("const at = n, before = m; for (let i = 0; i < 20 || m == before && i < 1e6; i++) await sleep(5); [n - at, m > before]").value == "[ 0, true ]"
    assert js.run("Promise.resolve(5)").value == "Promise { 5 }"


def test_js_a_hog_that_an_interrupted_cell_has_left(js):
    js.run("const x = 1")
    js.ask("console.log('on'); setTimeout(() => { for (;;); }, 50); await new Promise(() => {})")
    assert js.answer()["text"] == "on\n"
    js.p.send_signal(signal.SIGINT)
    assert js.answers().error["name"] == "KeyboardInterrupt"
    assert js.run("await new Promise(r => setTimeout(r, 100)); x").value == "1"
