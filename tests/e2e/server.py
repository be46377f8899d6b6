"""A real pandad for tests: its own directories, port, control group and API key; see fixtures in conftest.py.

`Pandad.close()` kills everything it started and fails the test when anything is left: a process, a
control group, a machine's directory, a snapshot. The bake of the base template is made once per
session and shared by hard links.
"""
import contextlib
import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
CGROUPS = Path("/sys/fs/cgroup")
RUN = Path("/dev/shm")  # in memory, as /run is where pandad lives by default
sys.path.insert(0, str(TOP / "sdk/python/src"))
BUILD = Path(os.environ.get("PANDA_BUILD", TOP / "build"))


def patience():
    """How much longer than on a quiet host things may take: a deadline is there to end what hangs, and says nothing about speed."""
    return max(1, os.getloadavg()[0] / os.cpu_count()) * (5 if os.environ.get("PANDA_FEW") == "1" else 1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.body[:400]!r}>"


class Unix(http.client.HTTPConnection):
    """HTTP over a unix socket: those are not in a network namespace."""

    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Pandad:
    def __init__(self, home, templates=("base",), bakes=None, **config):
        self.home = Path(home)
        self.home.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.group = f"pandae2e-{os.getpid()}-{self.port}"
        self.data, self.run = self.home / "data", RUN / self.group
        self.key = None
        self.process = None
        self.log = self.home / "log"
        (self.data / "templates").mkdir(parents=True, exist_ok=True)
        for name in templates:
            shutil.copy(BUILD / "templates" / f"{name}.json", self.data / "templates")
        if bakes and Path(bakes).is_dir():
            subprocess.run(["cp", "-al", str(bakes), str(self.data / "store")], check=True)
        self.config = dict(listen=f"127.0.0.1:{self.port}", data_dir=self.data, run_dir=self.run,
                           engine=os.environ.get("PANDA_ENGINE", "um"), kernel=BUILD / "panda-um", vmm=BUILD / "panda-vmm",
                           vmlinux=BUILD / "panda-vmlinux", upper_image=BUILD / "upper.img",
                           cgroup_parent=self.group, disk_reserve_mb=64, memory_reserve_mb=256, log="debug",
                           network="no")  # nothing a test does may leave this machine; tests of the network have one of their own
        self.config.update(config)

    @property
    def url(self):
        listen = self.config["listen"]
        return listen if listen.startswith("unix:") else "http://" + listen

    def start(self, fault=None, wait=True, preexec=None):
        assert self.process is None or self.process.poll() is not None
        args = [str(BUILD / "src/daemon/pandad")]
        for k, v in self.config.items():
            args += ["--set", f"{k}={v}"]
        env = dict(os.environ)
        env.pop("PANDA_FAULT", None)
        if fault:
            env["PANDA_FAULT"] = fault
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(args, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=log, preexec_fn=preexec)
        # known without asking it: it may have ended already
        self.standard = ["/dev/null", f"pipe:[{os.fstat(self.process.stdout.fileno()).st_ino}]", str(self.log.resolve())]
        threading.Thread(target=self._read_key, args=(self.process.stdout,), daemon=True).start()
        if wait:
            self.wait_ready()
        return self

    def _read_key(self, pipe):
        for line in pipe:
            if b"API key" in line:
                self.key = Path(line.split()[-1].decode()).read_text().strip()
        pipe.close()

    def _standard_fds(self):
        return [os.readlink(f"/proc/{self.process.pid}/fd/{n}") for n in range(3)]

    def wait_ready(self, seconds=60):
        began = time.monotonic()
        while True:
            assert self.process.poll() is None, f"pandad ended with {self.process.returncode}: {self.tail()}"
            try:
                if self.ask("GET", "/healthz", token="").status == 200 and self.key:
                    return
            except OSError:
                pass
            assert time.monotonic() < began + seconds * patience(), f"pandad does not answer: {self.tail()}"
            time.sleep(0.01)

    def tail(self, n=3000):
        return self.log.read_text(errors="replace")[-n:]

    def kill9(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60 * patience())

    def stop(self):
        """As systemd would: it must end by itself, and well."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60 * patience()) == 0, self.tail()

    def ended(self, seconds=60):
        self.process.wait(seconds * patience())
        return self.process.returncode

    def ask(self, method, path, body=None, token=None, headers=None, timeout=60):
        """One request on a connection of its own. A dict or list as body is sent as JSON."""
        c = self.connection(timeout * patience())
        h = dict(headers or {})
        token = self.key if token is None else token
        if token:
            h.setdefault("Authorization", f"Bearer {token}")
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            h.setdefault("Content-Type", "application/json")
        try:
            c.request(method, path, body, h)
            r = c.getresponse()
            return Answer(r.status, dict((k.lower(), v) for k, v in r.getheaders()), r.read())
        finally:
            c.close()

    def connection(self, timeout):
        if self.url.startswith("unix:"):
            return Unix(self.url[5:], timeout)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def do(self, method, path, body=None, expect=None, **kw):
        a = self.ask(method, path, body, **kw)
        assert (a.status == expect) if expect else (200 <= a.status < 300), f"{method} {path}: {a}"
        return a.json if a.body and "json" in a.headers.get("content-type", "") else a.body

    def create(self, **body):
        body.setdefault("template", "base")
        return self.do("POST", "/v1/sandboxes", body)["id"]

    def sh(self, id, cmd, **body):
        body.setdefault("timeout_seconds", 60 * patience())
        return self.do("POST", f"/v1/sandboxes/{id}/exec", dict(cmd=cmd, **body))

    def client(self, **kw):
        import pandastack
        return pandastack.Client(api_key=self.key, api_url=self.url, **kw)

    # ---- what is there ----

    def machines(self):
        """Directories of machines, also of those that are only prepared."""
        try:
            return sorted(os.listdir(self.run / "machines"))
        except FileNotFoundError:
            return []

    def waiting(self):
        """Ids whose process was made ahead: no machine has it yet."""
        machines = self.run / "machines"
        return {id for id in self.machines() if (machines / id / "control").exists() and not (machines / id / "machine.json").exists()}

    def processes(self, all=False):
        """{machine id: pids} of every process in a control group of ours; all: also of those that wait for a machine."""
        found = {}
        waiting = self.waiting()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                groups = Path("/proc", pid, "cgroup").read_text().splitlines()
                if Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    continue  # ended; whoever is its parent now has not looked yet
            except OSError:
                continue
            for line in groups:
                parts = line.split(":")[2].split("/")
                if self.group in parts and parts[-1] != self.group:
                    below = [x for x in parts[parts.index(self.group) + 1:] if not x.startswith("tenant.")]
                    found.setdefault(below[0], set()).add(int(pid))
        waiting |= self.waiting()  # they come and go meanwhile
        return {id: pids for id, pids in found.items() if all or id not in waiting}

    def signal(self, id, number):
        """To all processes of a machine. Those of its guest come and go."""
        for pid in self.processes()[id]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def cgroups(self):
        """Ids that have a control group, in any hierarchy; and tenants' groups that have no machine, which there should be none of."""
        ids = set()
        for parent in [*CGROUPS.glob(self.group), *CGROUPS.glob(f"*/{self.group}")]:
            for d in filter(Path.is_dir, parent.iterdir()):
                inside = {x.name for x in d.iterdir() if x.is_dir()} if d.name.startswith("tenant.") else set()
                ids |= inside or {d.name}
        return ids

    def group_of(self, id):
        """Where the cpu is shared out: its control group, if there is one."""
        found = [g for tree in (CGROUPS, *CGROUPS.iterdir()) for g in (tree / self.group / id, *tree.glob(f"{self.group}/tenant.*/{id}"))
                 if (g / "cpu.shares").exists() or (g / "cpu.weight").exists()]
        return found[0] if found else None

    def snapshots(self):
        try:
            names = os.listdir(self.data / "store/snapshots")
        except FileNotFoundError:
            return []
        return sorted(n for n in names if not n.startswith(("tpl-", "was-")))

    def slept(self):
        """Ids of sandboxes whose last sleep is kept, for its layers, while they are awake."""
        return {d.name[4:] for d in (self.data / "store/snapshots").glob("was-*")}

    def volumes(self):
        return sorted(os.listdir(self.data / "volumes")) if (self.data / "volumes").is_dir() else []

    def left(self):
        found = [f"machine {m}" for m in self.machines()]
        found += [f"process of {m}: {p}" for m, p in self.processes(all=True).items()]
        found += [f"control group of {m}" for m in self.cgroups()]
        found += [f"snapshot {s}" for s in self.snapshots()] + [f"what {s} slept in" for s in self.slept()]
        found += [f"volume {v}" for v in self.volumes()]
        return found + [m for m in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.home) in m]

    def clear(self):
        """All sandboxes, snapshots and volumes, as a user would."""
        now = self._standard_fds()
        assert now == self.standard, f"it closes fds that are not its own: {now} instead of {self.standard}"
        for sb in self.do("GET", "/v1/sandboxes"):
            self.ask("DELETE", f"/v1/sandboxes/{sb['id']}")
        for s in self.do("GET", "/v1/snapshots")["snapshots"]:
            self.do("DELETE", f"/v1/snapshots/{s['id']}")
        for v in self.do("GET", "/v1/volumes?snapshots=1"):
            self.do("DELETE", f"/v1/volumes/{v['name']}")

    def close(self):
        """Ends everything; fails when something is left behind."""
        try:
            if self.process is None or self.process.poll() is not None:
                self.start()
            self.clear()
            self.stop()
            left = self.left()
            assert not left, f"left behind: {left}\n{self.tail()}"
        finally:
            self.scrub()

    def scrub(self):
        """By force, whatever state things are in."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pids in self.processes(all=True).values():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while self.processes(all=True) and time.monotonic() < end:
            time.sleep(0.01)
        self.drop_groups()
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)

    def drop_groups(self):
        for parent in [*CGROUPS.glob(self.group), *CGROUPS.glob(f"*/{self.group}")]:
            for d in [*sorted(parent.rglob("*"), reverse=True), parent]:
                if d.is_dir():
                    try:
                        d.rmdir()
                    except OSError:
                        pass


class NetPandad(Pandad):
    """In the host's namespace of a little internet (little_internet.py): its sandboxes have a network."""

    def __init__(self, net, home, **kw):
        super().__init__(home, network="yes", resolver=net.resolver, listen=f"unix:{home}.sock", **kw)
        self.space = f"/run/netns/{net.host}"

    def start(self, **kw):
        return super().start(preexec=lambda: self.enter(), **kw)

    def enter(self):
        fd = os.open(self.space, os.O_RDONLY)
        if ctypes.CDLL(None).setns(fd, 0x40000000) != 0:
            os._exit(99)
        os.close(fd)
