"""What the end-to-end tests share: the real `panda machine`, in a run directory and a store of their own.

Every session works in <tmp>/panda-e2e.*, which it keeps locked; tmp_path is in there, too. A session that
was killed leaves one without a lock, and the next session clears it. After each test all machines are
stopped, and the test fails when anything of them is left: a process, a cgroup, a mount, a file.

PANDA, PANDA_KERNEL, PANDA_IMAGE and PANDA_UPPER name other programs and images than those in PANDA_BUILD (build/).
PANDA_SOAK=1 makes loops long (`make soak`): the counts are at count(). PANDA_FEW=1 makes them short.
PANDA_ENGINE=kvm runs all on machines of that engine (tools/test-kvm).
PANDA_CREW=DIR: several processes share one list of tests, and each takes what none has taken yet (tools/test).
"""
import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from server import BUILD, RUN, NetPandad, Pandad, patience

TOP = Path(__file__).resolve().parents[2]
GUEST = TOP / "tests" / "guest"
PREFIX = "panda-e2e."
HOME = pytest.StashKey()
CGROUPS = Path("/sys/fs/cgroup")
NAMES = itertools.count(1)
ENGINE = os.environ.get("PANDA_ENGINE", "um")
FEW = os.environ.get("PANDA_FEW") == "1"
FILES = {"PANDA_IMAGE": "base.img", "PANDA_UPPER": "upper.img"}
FILES |= {"PANDA_VMM": "panda-vmm", "PANDA_VMLINUX": "panda-vmlinux"} if ENGINE == "kvm" else {"PANDA_KERNEL": "panda-um"}


def count(usual, soak):
    """How often a loop goes round: `usual` in every test run, `soak` with PANDA_SOAK=1; in emulated machines a fifth."""
    if FEW:
        return min(usual, max(3, usual // 5))
    return soak if os.environ.get("PANDA_SOAK") == "1" else usual


@contextlib.contextmanager
def alone():
    """One session at a time: a home that has no lock yet looks like one whose session was killed."""
    with open(Path(tempfile.gettempdir()) / ".panda-e2e", "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if os.geteuid() != 0 or config.option.collectonly:
        return
    with alone():
        home = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = open(home / "lock", "w")
        fcntl.flock(lock, fcntl.LOCK_EX)
    config.stash[HOME] = home, lock
    config.option.basetemp = config.option.basetemp or home / "tmp"


def pytest_unconfigure(config):
    if HOME in config.stash:
        home, lock = config.stash[HOME]
        with lock:
            shutil.rmtree(home, ignore_errors=True)  # what cannot be removed failed a test, and goes with the next session


def bundles(items):
    """{name: tests} that one process runs, one after another: those of a file, for what its fixtures made, and all files that
    need the larger templates, which are baked once per process. In a rig, each test but those with a pandad, whose template is
    baked once. What takes longest comes first."""
    file = lambda t: t.nodeid.partition("::")[0]
    if FEW:
        dear = {t.nodeid for t in items if "server_home" in t.fixturenames}
        unit = lambda t: "pandad" if t.nodeid in dear else t.nodeid
    else:
        dear = {file(t) for t in items if "templates_pandad" in t.fixturenames}
        unit = lambda t: "templates" if file(t) in dear else file(t)
    found = {}
    for t in items:
        found.setdefault(unit(t).replace("/", "."), []).append(t)
    return dict(sorted(found.items(), key=lambda bundle: bundle[0] not in ("pandad", "templates")))


def taken(items, crew):
    """Tests for this process. Whoever makes the file with a bundle's name has it."""
    for name, tests in bundles(items).items():
        try:
            open(Path(crew, name), "x").close()
        except FileExistsError:
            continue
        yield from tests


def pytest_runtestloop(session):
    crew = os.environ.get("PANDA_CREW")
    if not crew or session.testsfailed or session.config.option.collectonly:
        return None  # pytest's own
    mine = taken(session.items, crew)
    item = next(mine, None)
    while item:
        following = next(mine, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """In a rig, failures are shown as they come: a run may be cut off before its end."""
    report = (yield).get_result()
    if FEW and report.failed:
        item.config.get_terminal_writer().line(f"\n{report.longreprtext}")


def wait_for(what, look, seconds=60):
    """Asks look() until it says something true and returns that; fails with the last answer otherwise."""
    began = time.monotonic()
    while True:
        last = look()
        if last:
            return last
        waited = time.monotonic() - began
        assert waited < seconds * patience(), f"waited {waited:.0f} s for {what}; last seen: {last!r}"
        time.sleep(0.01)


class Result:
    def __init__(self, args, code, out, err):
        self.args, self.code, self.out, self.err = args, code, out, err

    @property
    def text(self):
        return self.out.decode()

    def __repr__(self):
        return f"{self.args}: exit {self.code}, stdout {self.out[-800:]!r}, stderr {self.err[-800:]!r}"


class Panda:
    """The command line. Remembers every id that it saw, to look for what is left of it."""

    def __init__(self, home, run="run"):
        self.home = home
        self.run_dir, self.store = home / run, home / "store"
        self.program = os.environ.get("PANDA", str(BUILD / "src/cli/panda"))
        self.env = dict(os.environ, PANDA_RUN=str(self.run_dir), PANDA_STORE=str(self.store))
        for name, file in FILES.items():
            self.env.setdefault(name, str(BUILD / file))
        self.env["PANDA_ENGINE"] = ENGINE
        self.kept = []
        self.seen = set()

    def start(self, *args, **kw):
        """Starts `panda machine ARGS` and does not wait."""
        kw.setdefault("stdin", subprocess.DEVNULL)
        kw.setdefault("stdout", subprocess.PIPE)
        kw.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen([self.program, "machine", *map(str, args)], env=self.env, **kw)

    def try_(self, *args, stdin=None, timeout=60, **kw):
        """Runs it to its end, whatever the exit code."""
        p = self.start(*args, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, **kw)
        try:
            out, err = p.communicate(stdin, timeout=timeout * patience())
        except subprocess.TimeoutExpired as e:
            p.kill()
            out, err = p.communicate()
            raise AssertionError(f"no end within {e.timeout:.0f} s: {Result(args, None, out, err)}") from None
        return Result(args, p.returncode, out, err)

    def do(self, *args, **kw):
        r = self.try_(*args, **kw)
        assert r.code == 0, r
        return r

    def refused(self, *args, code, says):
        """It must fail with this exit code and one sentence for the user that has these words in it."""
        r = self.try_(*args)
        assert r.code == code, r
        assert r.err.decode().startswith("panda"), r
        for word in [says] if isinstance(says, str) else says:
            assert word in r.err.decode(), r
        return r

    def new_id(self):
        return f"e2e-{os.getpid()}-{next(NAMES)}"

    def _machines(self, *args):
        ids = self.do(*args, timeout=120).text.split()
        self.seen.update(ids)
        return [Machine(self, i) for i in ids]

    def baked(self):
        """A snapshot of a machine in which nothing has happened yet: taken once, and there until the session ends."""
        if not self.kept:
            first = self.boot()
            first.snapshot("baked")
            first.stop()
            self.kept = ["baked"]
        return self.kept[0]

    def fresh(self):
        """A machine in which nothing has happened yet. Where a boot takes seconds (KVM emulated), a restored one."""
        return self.restore(self.baked())[0] if FEW else self.boot()

    def boot(self, *args):
        name = self.new_id()
        self.seen.add(name)
        return self._machines("boot", "--id", name, *args)[0]

    def restore(self, name, n=1):
        return self._machines("restore", name, "-n", n)

    def ls(self):
        """{id: the rest of its line}"""
        lines = self.do("ls").text.splitlines()
        return {line.split()[0]: " ".join(line.split()[1:]) for line in lines}

    def in_run_dir(self):
        try:
            ids = set(os.listdir(self.run_dir / "machines"))
        except FileNotFoundError:
            return []
        self.seen |= ids
        return sorted(ids)

    def sweep(self):
        """Stops all machines; forgets all snapshots."""
        ids = self.in_run_dir()
        if ids:
            self.do("stop", *ids)
        for name in self.do("snapshots").text.split():
            if name not in self.kept:
                self.do("delete", name)
        self.do("gc")

    def left(self):
        """What is still there of any machine this session ever had."""
        found = [f"run/machines/{i}" for i in self.in_run_dir()]
        if (self.store / "snapshots").is_dir():
            found += [f"store/snapshots/{n}" for n in os.listdir(self.store / "snapshots") if n not in self.kept]
        for parent in [*CGROUPS.glob("panda"), *CGROUPS.glob("*/panda")]:
            found += [str(d) for d in parent.iterdir() if d.name in self.seen]
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                groups = Path("/proc", pid, "cgroup").read_text().splitlines()
            except OSError:
                continue
            if any(part in self.seen for line in groups for part in line.split("/")):
                found.append(f"process {pid}")
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return found + [m for m in mounts if str(self.home) in m]


class Machine:
    def __init__(self, panda, id):
        self.panda, self.id = panda, id

    def try_(self, *cmd, opts=(), **kw):
        return self.panda.try_("exec", *opts, self.id, "--", *cmd, **kw)

    def run(self, *cmd, **kw):
        r = self.try_(*cmd, **kw)
        assert r.code == 0, r
        return r.text

    def sh(self, script, *args, **kw):
        return self.run("sh", "-c", script, "sh", *args, **kw)

    def python(self, code):
        return self.run("python3", "-c", code)

    def put(self, path, data):
        self.run("sh", "-c", 'cat >"$1"', "sh", path, stdin=data, opts=["-i"])

    def fork(self, n=1):
        return self.panda._machines("fork", self.id, "-n", n)

    def snapshot(self, name):
        self.panda.do("snapshot", self.id, name, timeout=120)

    def pause(self):
        self.panda.do("pause", self.id)

    def resume(self):
        self.panda.do("resume", self.id)

    def stop(self):
        self.panda.do("stop", self.id)

    def book(self):
        return json.loads((self.panda.run_dir / "machines" / self.id / "machine.json").read_text())

    def cpu_ns(self):
        """What all its processes have used, from its cgroup."""
        for stat in CGROUPS.glob(f"cpuacct/panda/{self.id}/cpuacct.usage"):
            return int(stat.read_text())
        for stat in [*CGROUPS.glob(f"panda/{self.id}/cpu.stat"), *CGROUPS.glob(f"*/panda/{self.id}/cpu.stat")]:
            for line in stat.read_text().splitlines():
                if line.startswith("usage_usec"):
                    return int(line.split()[1]) * 1000
        pytest.skip("no cgroup of this host counts cpu time")

    def answers(self):
        return self.run("echo", "here") == "here\n"

    def keep(self):
        """Starts a Python in the guest that stays; ask() talks to it, in this machine and its forks."""
        self.put("/root/keeper.py", (GUEST / "keeper.py").read_bytes())
        self.sh("mkfifo /root/in /root/out; setsid python3 /root/keeper.py </dev/null >/root/keeper.log 2>&1 &")
        assert self.ask("6 * 7") == 42

    def ask(self, code, timeout=60):
        """Runs code (an expression, or statements) in the Python that keep() started."""
        r = self.try_("sh", "-c", "cat >/root/in && cat /root/out", stdin=code.encode(), opts=["-i"], timeout=timeout)
        assert r.code == 0, r
        answer = json.loads(r.out)
        assert "error" not in answer, answer["error"]
        return answer["value"]


def sweep_stale():
    """Clears what sessions left that were killed: nobody holds the lock of their directory."""
    for home in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with open(home / "lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # it runs right now
            for pid in filter(str.isdigit, os.listdir("/proc")):
                with contextlib.suppress(OSError):  # gone meanwhile
                    if f"{home}/".encode() in Path("/proc", pid, "cmdline").read_bytes():
                        os.kill(int(pid), signal.SIGKILL)  # its pandad, which would go on without a home
            for group in [*CGROUPS.glob("pandae2e-*"), *CGROUPS.glob("*/pandae2e-*")]:
                if not os.path.exists(f"/proc/{group.name.split('-')[1]}"):
                    stale = Pandad(home / "stale", templates=())
                    stale.group = group.name
                    stale.run = RUN / group.name
                    stale.scrub()
            for run in [m.parent for m in home.glob("*/machines")]:
                Panda(home, run.name).sweep()
                if os.path.ismount(run):
                    subprocess.run(["umount", run], check=True)
            for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):  # disks of a test's own
                if line.split()[4].startswith(f"{home}/"):
                    subprocess.run(["umount", "-l", line.split()[4]], check=True)
            shutil.rmtree(home)


@pytest.fixture(scope="session")
def session_panda(pytestconfig):
    if os.geteuid() != 0:
        pytest.skip("machines need root on this host")
    p = Panda(pytestconfig.stash[HOME][0])
    for file in p.program, *(p.env[n] for n in FILES):
        assert os.access(file, os.R_OK), f"{file} is missing: run 'make up'"
    with alone():
        sweep_stale()
    yield p
    p.kept = []
    p.sweep()
    left = p.left()
    assert not left, f"left behind: {left}"


@pytest.fixture
def panda(session_panda):
    yield session_panda
    session_panda.sweep()
    left = session_panda.left()
    assert not left, f"left behind: {left}"


@pytest.fixture
def box(panda):
    return panda.fresh()


@pytest.fixture
def procs():
    """Popen objects to kill and reap when the test is over, whichever way it ends."""
    started = []
    yield started
    for p in started:
        if p.poll() is None:
            p.send_signal(signal.SIGKILL)
        p.communicate()


@pytest.fixture(scope="session")
def server_home(session_panda):
    """Where pandads of this session live, and where the bake is that they share."""
    home = session_panda.home / "servers"
    first = Pandad(home / "first").start()
    first.do("DELETE", f"/v1/sandboxes/{first.create()}")
    first.stop()
    shutil.copytree(first.data / "store", home / "bakes", copy_function=os.link, symlinks=True)
    first.close()
    return home


@pytest.fixture(scope="module")
def net():
    from little_internet import LittleInternet  # wants what only these tests need
    with LittleInternet() as net:
        yield net


@pytest.fixture(scope="module")
def shared_net_pandad(net, server_home):
    p = NetPandad(net, server_home / f"net-{next(NAMES)}", bakes=server_home / "bakes").start()
    yield p
    p.close()
    assert not net.links() and not net.tables(), "nothing of ours stays in the host's network"


@pytest.fixture
def net_pandad(shared_net_pandad):
    """In the `host` namespace of a little internet, without sandboxes."""
    yield shared_net_pandad
    shared_net_pandad.clear()


@pytest.fixture(scope="session")
def shared_pandad(server_home):
    p = Pandad(server_home / "shared", bakes=server_home / "bakes").start()
    yield p
    p.close()


@pytest.fixture
def pandad(shared_pandad):
    """One pandad for many tests; what a test made is gone when it ends."""
    if shared_pandad.process.poll() is not None:
        shared_pandad.start()
    yield shared_pandad
    shared_pandad.clear()


@pytest.fixture
def new_pandad(server_home):
    """new_pandad(**config): a pandad of the test's own, to be killed, filled and broken."""
    made = []

    def new(start=True, **config):
        p = Pandad(server_home / f"own-{next(NAMES)}", bakes=server_home / "bakes", **config)
        made.append(p)
        return p.start() if start else p

    yield new
    errors = []
    for p in made:
        try:
            p.close()
        except Exception as e:  # the others must be closed, too
            errors.append(e)
    if errors:
        raise errors[0]


TEMPLATES = ["base", "code-interpreter", "agent", "python-data", "browser"]


@pytest.fixture(scope="session")
def templates_pandad(server_home):
    """One pandad with all templates that are built here; each is baked when a test first asks for it."""
    have = [t for t in TEMPLATES if (BUILD / "templates" / f"{t}.json").exists()]
    p = Pandad(server_home / "templates", templates=have, bakes=server_home / "bakes").start()
    yield p
    p.close()


@pytest.fixture
def world(templates_pandad, monkeypatch, tmp_path):
    yield from user(templates_pandad, monkeypatch, tmp_path)


def user(p, monkeypatch, tmp_path):
    """What a user has: a token in the environment, a directory to work in."""
    monkeypatch.setenv("PANDASTACK_API", p.url)
    monkeypatch.delenv("PANDASTACK_API_KEY", raising=False)
    monkeypatch.setenv("PANDASTACK_TOKEN", p.key)
    monkeypatch.chdir(tmp_path)
    import pandastack
    pandastack.set_default_client(None)
    yield p
    p.clear()
    pandastack.set_default_client(None)


def need(p, *names):
    known = {t["name"] for t in p.do("GET", "/v1/templates")}
    for name in names:
        if name not in known:
            pytest.skip(f"the template {name} is not built here: PANDA_TEMPLATES names it for tools/up")
