#!/usr/bin/env python3
"""repl.py - the resident Python of a sandbox: runs cells, keeps their variables.

Reads requests from stdin, each `<n>\\n` and n bytes of JSON:
  {"id": any, "code": str, "timeout_ms"?: int, "bake"?: true}
Writes answers to stdout, one JSON object a line, all with the request's id:
  {"type": "stdout" | "stderr", "text": str}            while the cell runs; what subprocesses print, too
  {"type": "result", "data": {mime: str}, "main": bool}  main: the value of the last expression; else display(), figures.
                                                         Of a matplotlib figure the data are in it, too (chart.py)
  {"type": "error", "name", "value", "traceback": [str]}
  {"type": "done", "exit": int}                          always, and last. 0; 1 after an error; 124 after the timeout;
                                                         else what SystemExit said
Output of background work while no cell runs has the id null. SIGINT interrupts the running cell (KeyboardInterrupt is
its error) and what it has started, not what earlier ones have; it is ignored between cells. A timeout is a SIGINT of our own.
The second one of a cell is not for any "except:" to take; code that is deaf all the same has to be killed.

"bake" says that a snapshot will be taken after this cell: what exists by now is moved out of the garbage
collector's sight, so that collections in thousands of clones do not write to, and so copy, pages they could share; and where the
kernel can note what memory cells use, the code runs once more, for nobody (rehearse()). It shows nothing, and
__panda_take__(environment, directory) is there afterwards, once: whoever takes over an interpreter that was started before its
time gives it what it would have been started with.

Clones would all draw the same "random" numbers. The machine id changes with each of them; we look at it before each
cell, and seed again when it is another one.
"""
import ast
import base64
import builtins
import codecs
import contextlib
import fcntl
import gc
import importlib
import importlib.util
import io
import json
import linecache
import os
import select
import signal
import sys
import threading
import time
import traceback
import types

REQUEST_MAX = 64 << 20    # bytes of one request
READ_SIZE = 64 << 10      # bytes of output in one answer
TEXT_MAX = 1 << 20        # characters of a text/plain result; more is cut, with a note
DATA_MAX = 16 << 20       # characters of any other form of a result; larger ones are left out
FLUSH_S = 0.05            # unfinished lines are shown after this time
LATE_S = 0.05             # a SIGINT that the main thread has not noticed by then came just before it began to wait
HARDER_S = 1.0            # after a timeout: once more, and for those who wait deaf their children end
CHASE_S = 0.8             # how long those who are told to end are watched; less than HARDER_S
TICKS = os.sysconf("SC_CLK_TCK")
SORT_SIZE = 100 << 10     # for this much the allocator looks through all that is free
TIMED_OUT = 124           # as timeout(1) says
NOTES = "/proc/panda-learn"  # of panda-um, see rehearse()
FIRST_CELL = "import sys\nprint(sys.maxsize)\nsys.maxsize"
OURS = __file__, os.path.join(os.path.dirname(__file__), "magic.py"), ast.__file__
CHART = "application/vnd.pandastack.chart.v1+json"
PLAIN = int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, type(None)  # these have no other forms
FORMS = {  # method of an object -> the form it gives
    "_repr_html_": "text/html", "_repr_markdown_": "text/markdown", "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png", "_repr_jpeg_": "image/jpeg", "_repr_latex_": "text/latex",
    "_repr_json_": "application/json", "_repr_javascript_": "application/javascript",
}


def sibling(name):
    """A module beside us; the user's modules never are."""
    name, path = f"panda_{name}", os.path.join(os.path.dirname(__file__), f"{name}.py")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def clean(text):
    """JSON for others: half a surrogate pair is not a character."""
    return text.encode("utf-8", "replace").decode("utf-8")


def cut(text):
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text) - TEXT_MAX} more characters)"


def started_since(ticks, roots):
    """{pid: what it runs} of these processes and their descendants, as far as they began at this time after boot or later, and live."""
    children, runs = {}, {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(name)
            with open(f"/proc/{pid}/stat", "rb") as stat, open(f"/proc/{pid}/cmdline", "rb") as command:
                fields = stat.read().rpartition(b")")[2].split()  # what stands before may hold anything
                if int(fields[19]) >= ticks and fields[0] != b"Z":
                    children.setdefault(int(fields[1]), []).append(pid)
                    runs[pid] = command.read()
    found = [*roots]
    for pid in found:
        found += children.pop(pid, ())
    return {pid: runs[pid] for pid in found if pid in runs and pid != os.getpid()}


def system(command):
    """os.system(), but that one is deaf while it waits."""
    import subprocess
    code = subprocess.call(os.fspath(command), shell=True, close_fds=False)
    return -code if code < 0 else code << 8


def no_input(prompt=""):
    """input()"""
    print(prompt, end="", flush=True)
    raise EOFError("nobody can answer input() here: write the value into the code")


def once_more(frame, event, arg):
    """For sys.settrace(): KeyboardInterrupt on the next line."""
    if event == "line":
        raise KeyboardInterrupt


class Output:
    """Our answers, and what anybody writes to fds 1 and 2 as answers.

    A thread reads both pipes; at the end of a cell the main thread does, too, so that all a cell has
    printed is out before its last word.
    """

    def __init__(self, out, watch, signals, signalled):
        self.out = out
        self.out_lock = threading.Lock()
        self.read_lock = threading.Lock()
        self.id = None
        self.watch = watch  # called by the thread while a cell runs, says after how many seconds again
        self.signals, self.signalled = signals, signalled  # a pipe, and what is called by it when that has something
        self.wake_r, self.wake_w = os.pipe()
        self.streams = {}
        self.ends = {}  # of fd 1 and 2
        for fd, name in (1, "stdout"), (2, "stderr"):
            r, w = os.pipe()
            with contextlib.suppress(OSError):  # fewer, larger answers, and a print() seldom has to wait
                fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 256 << 10)
            os.set_blocking(r, False)
            os.dup2(w, fd)
            self.ends[fd] = w
            self.streams[r] = name, codecs.getincrementaldecoder("utf-8")("replace")
        threading.Thread(target=self.pump, name="panda-output", daemon=True).start()

    def send(self, type, **rest):
        data = json.dumps({"id": self.id, "type": type, **rest}).encode() + b"\n"
        with self.out_lock:
            while data:
                data = data[os.write(self.out, data):]

    def drain(self, final=False):
        """Sends what is in the pipes now."""
        with self.read_lock:
            for fd, (name, decoder) in self.streams.items():
                while True:
                    try:
                        data = os.read(fd, READ_SIZE)
                    except BlockingIOError:
                        break
                    text = decoder.decode(data)
                    if text:
                        self.send(name, text=text)
                    if len(data) < READ_SIZE:
                        break
                text = decoder.decode(b"", True) if final else ""
                if text:
                    self.send(name, text=text)

    def reopen(self):
        """A cell may have closed what it did not open."""
        for fd, end in self.ends.items():
            try:
                os.fstat(fd)
            except OSError:
                os.dup2(end, fd)

    def begin(self, id):
        self.drain()
        self.id = id
        os.write(self.wake_w, b"x")

    def pump(self):
        poll = select.poll()
        for fd in (*self.streams, self.wake_r, self.signals):
            poll.register(fd, select.POLLIN)
        while True:
            again = self.watch()
            for fd, _ in poll.poll(None if again is None else again * 1000):
                if fd == self.wake_r:
                    os.read(fd, 64)
                elif fd == self.signals:
                    self.signalled()
            self.drain()


class Kernel:
    def __init__(self, source, out, identity):
        self.source, self.identity = source, identity
        self.main = types.ModuleType("__main__")
        self.main.__dict__.update(__builtins__=__builtins__, display=self.display, __annotations__={})
        sys.modules["__main__"] = self.main  # pickle and multiprocessing look there
        self.count = 0
        self.active = False  # between a request and its last answer
        self.running = self.shielded = self.pending = False
        self.began = self.began_ticks = 0
        self.interrupts = 0  # of this cell
        self.heard = 0  # SIGINTs that on_sigint() has seen
        self.late = None  # what heard was when one came, and when to look again
        self.nudged = None  # at which heard that was done
        self.deadline = self.stopped_at = None
        self.loop = None
        self.streams = {}
        self.libc = None  # once somebody has loaded ctypes
        self.silent = False
        self.who = self.machine()
        self.pid = os.getpid()
        self.flush_wanted = threading.Event()
        self.signals_r, self.signals_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.output = Output(out, self.watch, self.signals_r, self.signalled)
        self.open_streams()
        threading.Thread(target=self.flusher, name="panda-flush", daemon=True).start()
        sys.displayhook = lambda value: None if value is None else self.display(value)

    def open_streams(self):
        for name in "stdout", "stderr":
            if name in self.streams and not self.streams[name].closed:
                continue
            raw = io.FileIO({"stdout": 1, "stderr": 2}[name], "w", closefd=False)
            stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
            self.streams[name] = stream

    # --- signals and time

    def listen(self):
        """SIGINT is ours. Python writes to that pipe as soon as one comes, before it gets to call on_sigint()."""
        signal.signal(signal.SIGINT, self.on_sigint)
        signal.set_wakeup_fd(self.signals_w, warn_on_full_buffer=False)

    def new_signals(self):
        with contextlib.suppress(BlockingIOError):
            return os.read(self.signals_r, 4096)
        return b""

    def signalled(self):
        heard = self.heard
        if signal.SIGINT in self.new_signals():
            self.late = heard, time.monotonic() + LATE_S

    def nudge(self):
        """Python looks for signals, then calls the system, and waits there: one that comes in between is not noticed."""
        heard, self.late = self.late[0], None
        if heard == self.heard != self.nudged and signal.getsignal(signal.SIGINT) == self.on_sigint:
            self.nudged = heard
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def on_sigint(self, _, frame):
        self.new_signals()  # first: what signalled() still finds after it has seen heard is another one
        self.heard += 1
        if not self.running:
            return
        self.interrupts += 1
        if os.getpid() == self.pid:
            self.signal_children(signal.SIGINT)
        if self.shielded:
            self.pending = True
            return
        if self.interrupts > 1:  # on its next line, too, what catches this one is out of its try
            while frame is not None:
                if frame.f_code.co_filename not in OURS:
                    frame.f_trace = once_more
                frame = frame.f_back
            sys.settrace(once_more)
        raise KeyboardInterrupt

    def signal_children(self, signo):
        """As a terminal would, but those of earlier cells have been left there to stay. A shell that was about to start a
        command may do so all the same, and wait for it: so we look again at those we have told, and at what they run by then.
        """
        told, found, end = {}, started_since(self.began_ticks, [self.pid]), time.monotonic() + CHASE_S
        while found and time.monotonic() < end:
            for pid in found:
                with contextlib.suppress(OSError):
                    os.kill(pid, signo) if told.get(pid) != found[pid] else None
            told = found
            time.sleep(0.005)
            found = started_since(self.began_ticks, told)

    @contextlib.contextmanager
    def shield(self):
        """An answer goes out whole, or the other side could not read on."""
        if threading.current_thread() is not threading.main_thread() or self.shielded:
            yield
            return
        self.shielded = True
        try:
            yield
        finally:
            self.shielded = False
            if self.pending:
                self.pending = False
                raise KeyboardInterrupt

    def flusher(self):
        """Not in the output thread: the cell holds a stream's lock while it waits for that thread to read."""
        while True:
            self.flush_wanted.wait()
            self.flush_wanted.clear()
            for stream in list(self.streams.values()):
                with contextlib.suppress(Exception):
                    stream.flush()

    def watch(self):
        """What the output thread does every now and then while a cell runs."""
        if not self.active:
            return None
        now = time.monotonic()
        if now - self.began >= FLUSH_S:  # most cells are over by then
            self.flush_wanted.set()
        if self.stopped_at is None and self.deadline is not None and now >= self.deadline:
            self.stopped_at = now
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        elif self.stopped_at is not None and now >= self.stopped_at + HARDER_S:
            if not self.interrupts:  # C waits deaf for a child of its own
                self.signal_children(signal.SIGINT if self.stopped_at < self.deadline + HARDER_S else signal.SIGKILL)
            self.stopped_at = now
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        soon = [FLUSH_S]
        if self.late and now >= self.late[1]:
            self.nudge()
        elif self.late:
            soon.append(self.late[1] - now)
        if self.deadline is not None and self.stopped_at is None:
            soon.append(max(self.deadline - now, 0.001))
        return min(soon)

    # --- identity

    def machine(self):
        try:
            with open(self.identity, "rb") as f:
                return f.read(64)
        except OSError:
            return None

    def reseed(self):
        who = self.machine()
        if who == self.who:
            return
        self.who = who
        mods = sys.modules
        with contextlib.suppress(Exception):
            if "random" in mods:
                mods["random"].seed()
            if "numpy.random" in mods:  # a number: what seed() itself would do reaches all over numpy
                mods["numpy.random"].seed(int.from_bytes(os.urandom(4), "big"))
            if "torch" in mods:
                mods["torch"].seed()
            if "ssl" in mods:
                mods["ssl"].RAND_add(os.urandom(32), 32.0)
            if "tempfile" in mods:
                mods["tempfile"]._name_sequence = None

    # --- results

    def forms(self, value):
        """The bundle {mime: text} of a value. text/plain is always in it."""
        data = {}
        kind = type(value)
        figure = sys.modules.get("matplotlib.figure")
        maker = str(kind.__module__).partition(".")[0]
        if kind in PLAIN:
            pass
        elif figure is not None and isinstance(value, figure.Figure):
            data["image/png"] = self.png(value)
            with contextlib.suppress(Exception):  # what is no chart is a picture all the same
                chart = sibling("chart").chart(value)
                data.update({CHART: json.dumps(chart)} if chart else {})
            sys.modules["matplotlib.pyplot"].close(value) if "matplotlib.pyplot" in sys.modules else None
        elif maker == "plotly" and hasattr(value, "to_plotly_json"):
            data["application/vnd.plotly.v1+json"] = value.to_json()
        elif maker == "bokeh" and hasattr(value, "document"):
            data["application/vnd.bokeh.v1+json"] = json.dumps(importlib.import_module("bokeh.embed").json_item(value))
        else:
            data.update(self.asked(value))
        if "text/plain" not in data:
            data["text/plain"] = repr(value)
        data["text/plain"] = cut(data["text/plain"])
        return {mime: clean(text) for mime, text in data.items() if mime == "text/plain" or len(text) <= DATA_MAX}

    def asked(self, value):
        if isinstance(value, type):
            return
        with contextlib.suppress(Exception):
            bundle = getattr(value, "_repr_mimebundle_", None)
            if callable(bundle):
                got = bundle(include=None, exclude=None)
                got = got[0] if isinstance(got, tuple) else got
                yield from ((mime, self.text_of(mime, v)) for mime, v in got.items() if v is not None)
        for method, mime in FORMS.items():
            with contextlib.suppress(Exception):  # a form that cannot be had is no error of the cell
                ask = getattr(value, method, None)
                if not callable(ask):
                    continue
                got = ask()
                got = got[0] if isinstance(got, tuple) else got
                if got is not None:
                    yield mime, self.text_of(mime, got)

    @staticmethod
    def text_of(mime, value):
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return value if isinstance(value, str) else json.dumps(value)

    @staticmethod
    def png(figure):
        file = io.BytesIO()
        figure.savefig(file, format="png", bbox_inches="tight")
        return base64.b64encode(file.getvalue()).decode()

    def display(self, *values, **_):
        """Shows values in all their forms, as display() of IPython does."""
        for value in values:
            self.result(value, False)

    def result(self, value, main):
        data = self.forms(value)
        self.flush()
        if self.silent:
            return
        with self.shield():
            self.output.drain()
            self.output.send("result", data=data, main=main)

    def figures(self):
        """Shows the open figures of pyplot and closes them: plt.show(), and the end of each cell."""
        helpers = sys.modules.get("matplotlib._pylab_helpers")
        if helpers is None:
            return
        for manager in helpers.Gcf.get_all_fig_managers():
            helpers.Gcf.destroy(manager)  # first: one that cannot be drawn would be tried again and again
            self.result(manager.canvas.figure, False)

    # --- cells

    def run(self, code):
        """Returns the exit code."""
        self.count += 1
        name = f"<cell {self.count}>"
        linecache.cache[name] = len(code), None, code.splitlines(True), name  # no mtime: stays
        try:
            self.running = True
            for part, shown in self.compiled(code, name):
                value = self.evaluate(part)
                if shown and value is not None:
                    self.main.__dict__["_"] = value
                    self.result(value, True)
            self.figures()
            if "panda_magic" in sys.modules:
                sys.modules["panda_magic"].over()
            return 0 if self.stopped_at is None else self.failed(None)  # something in it took our SIGINT
        except SystemExit as e:
            if e.code is None or isinstance(e.code, int):
                return (e.code or 0) & 0xff
            print(e.code, file=sys.stderr)
            return 1
        except BaseException as e:
            self.running = False
            sys.settrace(None)
            return self.failed(e)
        finally:
            self.running = False

    def compiled(self, code, name):
        """The cell as one or two code objects, and whether to show their value."""
        tree = None
        with contextlib.suppress(SyntaxError):
            tree = ast.parse(code, name)
        if tree is None:
            tree = sibling("magic").translate(code, name)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr) and not code.rstrip().endswith(";"):
            tree.body.pop()
        else:
            last = None
        if tree.body:
            yield compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), False
        if last is not None:
            yield compile(ast.Expression(last.value), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), True

    def evaluate(self, part):
        if not part.co_flags & 0x80:  # CO_COROUTINE: there is an await at top level
            return eval(part, self.main.__dict__)
        import asyncio
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(eval(part, self.main.__dict__))
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                with contextlib.suppress(BaseException):  # it may have other plans
                    self.loop.run_until_complete(asyncio.wait({task}, timeout=HARDER_S))
            raise

    def failed(self, e):
        if self.stopped_at is not None and (e is None or isinstance(e, KeyboardInterrupt)):
            text = f"the cell was stopped after {self.timeout_ms} ms"
            error = {"name": "TimeoutError", "value": text, "traceback": self.lines(e) if e else []}
            exit = TIMED_OUT
        else:
            try:
                value = str(e)
            except Exception:
                value = "<its text cannot be had>"
            error, exit = {"name": type(e).__name__, "value": cut(clean(value)), "traceback": self.lines(e)}, 1
        self.flush()
        self.output.drain()
        self.output.send("error", **error)
        return exit

    @staticmethod
    def lines(e):
        """The traceback without our own frames; they are nobody's business."""
        try:
            told = first = traceback.TracebackException(type(e), e, e.__traceback__)
            while told is not None:
                told.stack = traceback.StackSummary.from_list(
                    [f for f in told.stack if f.filename not in OURS and f.name != "run_until_complete"])
                told = told.__cause__ or told.__context__
            lines = [clean(line) for line in first.format()]
            return lines if first.stack or not lines[0].startswith("Traceback") else lines[1:]
        except Exception:
            return [f"{type(e).__name__}\n"]

    def flush(self):
        for stream in sys.stdout, sys.stderr, *self.streams.values():
            with contextlib.suppress(Exception):
                stream.flush()
        if self.libc is None and "ctypes" in sys.modules:
            self.libc = sys.modules["ctypes"].CDLL(None)
        if self.libc is not None:  # libraries print through C's own buffers
            with contextlib.suppress(Exception):
                self.libc.fflush(None)

    def settle(self):
        """Before a snapshot. Every page that a clone writes it has to copy, so what would be written all over memory
        at some later time is done now: C's allocator merges and sorts what was freed when it is next asked for much.
        """
        self.who = None
        self.reseed()  # OpenSSL, for one, sets itself up when first asked
        self.flush()
        builtins.__panda_take__ = self.take
        self.tidy()

    @staticmethod
    def tidy():
        gc.collect()
        with contextlib.suppress(Exception):
            import ctypes
            ctypes.CDLL(None).malloc_trim(0)
            bytearray(SORT_SIZE)
        gc.freeze()

    def rehearse(self, code):
        """Every clone begins with no memory mapped, and what it uses comes page by page, at a price, unless the kernel knows it.
        So cells run for nobody while it takes notes: this one again, for what may be wanted later, then as little as a first
        cell does. Whoever bakes says when that is over. Nothing of it stays.
        """
        try:
            notes = open(NOTES, "wb", buffering=0)
        except OSError:
            return  # another kind of kernel
        id, out, count, names = self.output.id, self.output.out, self.count, dict(self.main.__dict__)
        with notes, open(os.devnull, "wb", buffering=0) as nobody:
            self.output.out = nobody.fileno()
            notes.write(b"begin")
            self.cell({"code": code})
            self.tidy()
            notes.write(b"later")
            self.who = None  # a clone is somebody else
            self.cell({"code": FIRST_CELL})
            self.output.out = out
        self.output.id, self.count = id, count
        self.main.__dict__.clear()
        self.main.__dict__.update(names)

    def take(self, environment, directory):
        del builtins.__panda_take__
        self.count = 0
        os.environ.update(environment)
        time.tzset()
        with contextlib.suppress(OSError):
            os.chdir(directory)

    # --- requests

    def read_request(self):
        """The next request; None at the end."""
        size = self.source.readline(16)
        if not size:
            return None
        if not size[:-1].isdigit() or size[-1:] != b"\n" or int(size) > REQUEST_MAX:
            raise ValueError(f"a request starts with its size in bytes, at most {REQUEST_MAX}, not {size!r}")
        data = self.source.read(int(size))
        if len(data) < int(size):
            return None
        request = json.loads(data)
        timeout = request.get("timeout_ms") if isinstance(request, dict) else ""
        if not isinstance(timeout, (int, float, type(None))) or not isinstance(request.get("code"), str):
            raise ValueError("a request is an object with code and, if need be, timeout_ms")
        return request

    def serve(self):
        self.listen()
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        while True:
            request = self.read_request()
            if request is None:
                return
            exit = self.cell(request)
            if request.get("bake"):
                self.settle()
                self.rehearse(request["code"])
            self.output.send("done", exit=exit)
            self.output.id = None

    def cell(self, request):
        """All but its last word; returns the exit code."""
        self.timeout_ms = request.get("timeout_ms")
        self.stopped_at = None
        self.began = time.monotonic()
        self.began_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
        self.interrupts = 0
        self.deadline = self.began + self.timeout_ms / 1000 if self.timeout_ms else None
        self.active = True
        self.output.begin(request.get("id"))
        self.silent = bool(request.get("bake"))
        exit = 1
        try:
            self.reseed()
            exit = self.run(request["code"])
        except KeyboardInterrupt as e:  # it came in the last moment
            self.running = False
            exit = self.failed(e)
        except Exception as e:  # a value that cannot be shown
            self.running = False
            exit = self.failed(e)
        if os.getpid() != self.pid:  # a child that the cell forked: requests are not its business
            self.flush()
            os._exit(exit)
        self.active = self.pending = self.shielded = False
        self.output.reopen()
        self.open_streams()
        self.listen()  # the cell may have set another
        self.flush()
        self.output.drain(True)
        return exit


class AfterImport:
    """Calls hooks[name](module) once that module has been imported."""

    def __init__(self, hooks):
        self.hooks = hooks

    def find_spec(self, name, path, target=None):
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        whole = spec.loader.exec_module

        def exec_module(module):
            whole(module)
            with contextlib.suppress(Exception):
                hook(module)

        spec.loader.exec_module = exec_module
        return spec


def main():
    # "--session <id> ..." is not for us: pandad finds us by it in the list of commands.
    identity = sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("--") else "/etc/machine-id"
    requests, answers = os.dup(0), os.dup(1)  # not inherited by what cells start
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    kernel = Kernel(os.fdopen(requests, "rb"), answers, identity)

    def show(*_, **__):  # a plain function: pyplot writes attributes to it
        kernel.figures()

    hooks = {
        "matplotlib": lambda m: m.use("agg"),
        "matplotlib.axes": lambda m: sibling("chart").watch(m),
        "matplotlib.pyplot": lambda m: setattr(m, "show", show),
        "bokeh.io": lambda m: setattr(m, "show", lambda model, *_, **__: kernel.display(model)),
        "bokeh.plotting": lambda m: setattr(m, "show", lambda model, *_, **__: kernel.display(model)),
        "plotly.io": lambda m: setattr(m, "show", lambda fig, *_, **__: kernel.display(fig)),
        "IPython.core.display_functions": lambda m: setattr(m, "display", kernel.display),
    }
    sys.meta_path.insert(0, AfterImport(hooks))
    os.system, builtins.input = system, no_input
    sys.argv[:] = [""]
    sys.path[0] = ""  # modules beside the user's files, not beside ours
    try:
        kernel.serve()
    except ValueError as e:
        kernel.output.send("error", name="ProtocolError", value=str(e), traceback=[])
        os._exit(2)
    kernel.flush()
    os._exit(0)  # threads of the user's do not keep us


main()
