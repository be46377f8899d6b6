"""A user of the host, without a token and without rights, tries the files, sockets and processes of pandad and its machines."""
import json
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conftest import BUILD, HOSTILE, wait_for


@pytest.fixture
def open_home():
    """Where any user may come: what keeps a stranger out below it is pandad's own."""
    home = Path(tempfile.mkdtemp(prefix="panda-open.", dir="/var/tmp"))
    home.chmod(0o755)
    yield home
    shutil.rmtree(home, ignore_errors=True)


def what_is_there(*tops):
    found = {"files": [], "directories": [], "sockets": []}
    for top in tops:
        for path in [top, *top.rglob("*")]:
            mode = path.lstat().st_mode
            kind = "sockets" if stat.S_ISSOCK(mode) else "directories" if stat.S_ISDIR(mode) else "files" if stat.S_ISREG(mode) else None
            if kind:
                found[kind].append(str(path))
    return found


@pytest.mark.core
def test_a_stranger_gets_at_nothing(open_home, new_pandad):
    """Asleep, awake, saved, and with a volume: every file and socket below the data and run directories, every process."""
    p = new_pandad(start=False, data_dir=open_home / "data", run_dir=open_home / "run")
    p.data, p.run = open_home / "data", open_home / "run"
    p.start().stop()  # it has made its directories
    shutil.copy(BUILD / "templates/base.json", p.data / "templates")
    p.start()
    awake, asleep = p.create(), p.create()
    p.do("POST", f"/v1/sandboxes/{asleep}/hibernate")
    p.do("POST", f"/v1/sandboxes/{awake}/snapshots")
    p.sh(awake, "echo secret >/root/secret; setsid sh -c 'while :; do sleep 0.01; done' </dev/null >/dev/null 2>&1 &")
    machine = lambda: sorted(p.processes(all=True)[awake])
    pids = [p.process.pid, *wait_for("the guest's kernel and stubs of its processes", lambda: len(machine()) > 2 and machine())]
    ask = what_is_there(p.data, p.run) | {"processes": pids}
    ask["groups"] = [str(f) for top in Path("/sys/fs/cgroup").glob(f"**/{p.group}") for f in top.rglob("*")
                     if f.name in ("cgroup.procs", "tasks", "cgroup.kill", "cgroup.freeze", "memory.max", "memory.limit_in_bytes")]
    assert len(ask["files"]) > 10 and len(ask["sockets"]) >= 2 and ask["groups"], ask
    done = subprocess.run([sys.executable, HOSTILE / "stranger.py"], input=json.dumps(ask), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    for path in "/v1/sandboxes", f"/v1/sandboxes/{awake}", f"/v1/sandboxes/{awake}/fs?path=/root/secret", "/v1/events":
        assert p.ask("GET", path, token="").status == 401
    assert p.sh(awake, "cat /root/secret")["stdout"] == "secret\n"
