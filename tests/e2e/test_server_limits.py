"""What a sandbox may take: its disk, the patience of who waits for it, and what stands behind that when its kernel does not care."""
import contextlib
import signal
import threading

import pytest

from conftest import wait_for
from server import patience


def available_kib(pandad, id):
    return int(pandad.sh(id, "df -k --output=avail / | tail -n1")["stdout"])


def test_a_smaller_disk_is_full_sooner(pandad):
    id = pandad.create(disk_gb=1)
    assert pandad.do("GET", f"/v1/sandboxes/{id}")["disk_gb"] == 1
    assert (1 << 20) - 1000 <= available_kib(pandad, id) <= 1 << 20
    assert pandad.sh(id, "fallocate -l 500M /root/fits")["exit_code"] == 0
    r = pandad.sh(id, "fallocate -l 600M /root/does-not || { rm -f /root/does-not; false; }")
    assert r["exit_code"] != 0 and "No space left" in r["stderr"]
    left = available_kib(pandad, id) - 1024  # blocks of its own that a file needs
    assert pandad.sh(id, f"fallocate -l {left}K /root/rest")["exit_code"] == 0
    a = pandad.ask("PUT", f"/v1/sandboxes/{id}/fs?path=/root/more", b"x" * (4 << 20))
    assert a.status == 507 and a.json["code"] == "disk_full", a
    assert pandad.sh(id, "rm /root/rest; echo enough >/root/more && cat /root/more")["stdout"] == "enough\n"


def test_the_host_keeps_what_the_guest_keeps(pandad):
    """Else a disk of 1 GiB could take all 8 of its image, one deleted file after the other."""
    id = pandad.create(disk_gb=1)
    layers = pandad.data / "disks" / id

    def taken():
        return sum(f.stat().st_blocks * 512 for f in layers.iterdir())

    pandad.sh(id, "head -c 100000000 /dev/urandom >/root/f && sync")
    assert taken() > 90_000_000
    pandad.sh(id, "rm /root/f && sync")
    wait_for("the blocks to go", lambda: taken() < 20_000_000)


def test_the_limit_stays_with_forks_snapshots_and_sleep(pandad):
    id = pandad.create(disk_gb=2)
    snapshot = pandad.do("POST", f"/v1/sandboxes/{id}/snapshots", {})["id"]
    (child,) = pandad.do("POST", f"/v1/sandboxes/{id}/fork-tree", {"count": 1})["children"]
    again = pandad.create(from_snapshot=snapshot)
    smaller = pandad.create(from_snapshot=snapshot, disk_gb=1)
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    for sandbox, gb in (child["id"], 2), (again, 2), (smaller, 1), (id, 2):
        assert (gb << 20) - 1000 <= available_kib(pandad, sandbox) <= gb << 20
        assert pandad.do("GET", f"/v1/sandboxes/{sandbox}")["disk_gb"] == gb


def test_more_than_the_template_has_is_what_the_template_has(pandad):
    whole = pandad.create()
    id = pandad.create(disk_gb=1000)
    assert pandad.do("GET", f"/v1/sandboxes/{id}")["disk_gb"] == pandad.do("GET", f"/v1/sandboxes/{whole}")["disk_gb"] == 8
    assert abs(available_kib(pandad, id) - available_kib(pandad, whole)) < 1 << 10


def test_no_file_of_a_machine_outgrows_the_largest_there_can_be(pandad):
    """Whatever its kernel does: the host's kernel says no. A volume of 64 GiB may be attached at any time."""
    id = pandad.create()
    seen = set()
    for pid in pandad.processes()[id]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/limits") as f:  # those of its guest come and go
            seen.add(tuple(next(line.split()[3:5] for line in f if line.startswith("Max file size"))))
    assert seen == {(str((64 << 30) + (64 << 20)),) * 2}


def test_a_guest_that_hangs_is_told_and_comes_back(new_pandad):
    silent = round(patience())  # on a busy host a guest that is well may say nothing for a second
    pandad = new_pandad(silent_seconds=silent)
    id = pandad.create()
    assert pandad.sh(id, f"sleep {silent + 2}; echo awake")["stdout"] == "awake\n"  # says nothing for long, and is well
    pandad.signal(id, signal.SIGSTOP)
    a = pandad.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "true"})
    assert a.status == 502 and a.json["code"] == "guest_silent", a
    sandbox = pandad.do("GET", f"/v1/sandboxes/{id}")
    assert sandbox["status"] == "running" and "does not answer" in sandbox["status_detail"]
    a = pandad.ask("GET", f"/v1/sandboxes/{id}/fs?path=/etc/hostname", timeout=5)  # others do not wait for it to fail again
    assert a.status == 502 and a.json["code"] == "guest_silent", a
    pandad.signal(id, signal.SIGCONT)
    wait_for("an answer", lambda: "status_detail" not in pandad.do("GET", f"/v1/sandboxes/{id}"))
    assert pandad.sh(id, "echo again")["stdout"] == "again\n"
    types = [e["type"] for e in pandad.do("GET", f"/v1/sandboxes/{id}/events")["events"]]
    assert types.count("sandbox.silent") == types.count("sandbox.answers") == 1, types


STOP_THE_AGENT = """
import ctypes, os, time
if os.fork(): os._exit(0)
os.setsid()
libc = ctypes.CDLL(None, use_errno=True)
while not os.path.exists("/root/go"): time.sleep(0.01)
for request in 0x4206, 0x4207:  # PTRACE_SEIZE, PTRACE_INTERRUPT
    libc.ptrace(request, 1, 0, 0)
while True: time.sleep(100)
"""


def test_guests_that_never_answer_hold_nobody_up(new_pandad):
    """Root in a guest stops its agent; ten forks of that wait for theirs, more than pandad has threads at first."""
    p = new_pandad()
    id = p.create()
    p.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/stop.py", STOP_THE_AGENT.encode())
    p.sh(id, "python3 /root/stop.py </dev/null >/dev/null 2>&1")

    def silent():
        try:
            p.ask("PUT", f"/v1/sandboxes/{id}/fs?path=/root/go", b"", timeout=1)
        except TimeoutError:
            return True

    wait_for("the agent to be silent", silent)
    answers = []

    def forks():
        try:
            answers.append(p.ask("POST", f"/v1/sandboxes/{id}/fork-tree", {"count": 10}, timeout=300))
        except ConnectionError:  # its pandad was killed
            pass

    fork = threading.Thread(target=forks, daemon=True)
    fork.start()

    def waiting():
        return len(p.do("GET", f"/v1/sandboxes?parent_id={id}&status=creating"))

    wait_for("its children to be started", lambda: waiting() == 10)
    other = p.do("POST", "/v1/sandboxes", {"template": "base"})["id"]
    assert p.sh(other, "echo here")["stdout"] == "here\n"
    assert waiting() == 10 and not answers, "it had to wait until some were given up"
    p.kill9()  # else its end waits for them
    fork.join(60)


@pytest.mark.parametrize("body", [{"argv": ["tail", "/dev/zero"]}, {"cmd": "tail /dev/zero; exit $?"}])
def test_a_command_that_takes_all_memory_is_told_so(pandad, body):
    id = pandad.create()
    r = pandad.do("POST", f"/v1/sandboxes/{id}/exec", body)
    assert r["exit_code"] == 137 and r["oom_killed"] is True, r
    events = [e for e in pandad.do("GET", f"/v1/sandboxes/{id}/events")["events"] if e["type"] == "exec.oom_killed"]
    assert len(events) == 1 and events[0]["payload"]["exit_code"] == 137, events
    for other in "kill -9 $$", "sh -c 'kill -9 $$'; exit $?", "echo 'Out of memory: Killed process 1' >/dev/kmsg; kill -9 $$":
        r = pandad.sh(id, other)
        assert r["exit_code"] == 137 and "oom_killed" not in r, r
