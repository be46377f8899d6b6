"""Machines in trouble harm only themselves, and `panda machine ls` says what became of them."""
import os
import signal
import subprocess

import pytest

from conftest import CGROUPS, FEW, GUEST, TOP, Panda, count, wait_for


@pytest.fixture
def neighbour(panda):
    """A machine beside the troubled one; it must answer at the end, and have kept its memory."""
    m = panda.fresh()
    m.keep()
    m.ask("word = 'kept'")
    yield m
    assert m.ask("word") == "kept"
    assert m.fork()[0].ask("word") == "kept"


def ended(panda, machine, *why):
    """Waits until ls reports the end, with these words; then every verb must say it, too, and stop must clear it."""
    line = wait_for("the end of " + machine.id, lambda: (l := panda.ls()[machine.id]).startswith("ended") and l)
    for word in why:
        assert word in line
    for verb in ["exec", machine.id, "--", "true"], ["fork", machine.id], ["pause", machine.id], ["snapshot", machine.id, "s"]:
        panda.refused(*verb, code=1, says=[machine.id, "has ended"])
    machine.stop()
    assert machine.id not in panda.ls()


def start_in(panda, procs, machine, *cmd):
    """A command that may never come back."""
    p = panda.start("exec", machine.id, "--", *cmd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    procs.append(p)
    return p


def test_a_machine_whose_first_process_dies_has_crashed(panda, neighbour, box, procs):
    box.put("/root/crash.py", (GUEST / "crash.py").read_bytes())
    p = start_in(panda, procs, box, "python3", "/root/crash.py")
    assert p.wait(180) != 0
    ended(panda, box, "crashed", "Kernel panic")


def test_a_machine_whose_kernel_panics_has_crashed(panda, neighbour, box, procs):
    box.sh("echo 1 >/proc/sys/vm/panic_on_oom")
    p = start_in(panda, procs, box, "python3", "-c", "x = [bytearray(1 << 20) for _ in range(4096)]")
    assert p.wait(180) != 0
    ended(panda, box, "crashed", "Kernel panic")


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSEGV])
def test_a_machine_whose_process_is_killed_is_reported(panda, neighbour, box, sig):
    os.kill(box.book()["pid"], sig)
    ended(panda, box)


@pytest.mark.parametrize("how, why", [(0x4321FEDC, "powered off"), (0x01234567, "rebooted")])
def test_a_machine_that_goes_of_its_own_will_is_reported(panda, neighbour, box, procs, how, why):
    start_in(panda, procs, box, "python3", "-c", f"import ctypes; ctypes.CDLL(None).reboot({how})")
    ended(panda, box, why)


def test_a_child_crashes_alone(panda, box, procs):
    box.put("/root/crash.py", (GUEST / "crash.py").read_bytes())
    one, two = box.fork(2)
    start_in(panda, procs, one, "python3", "/root/crash.py")
    ended(panda, one, "crashed")
    assert box.answers() and two.answers()
    start_in(panda, procs, box, "python3", "/root/crash.py")
    ended(panda, box, "crashed")
    assert two.answers()


def test_a_program_that_takes_all_memory_is_killed_and_its_machine_goes_on(panda, neighbour, box):
    box.keep()
    box.ask("word = 'kept'")
    box.ask("open('/proc/self/oom_score_adj', 'w').write('-1000')")
    for _ in range(1 if FEW else 3):
        r = box.try_("python3", "-c", "x = [bytearray(1 << 20) for _ in range(4096)]", timeout=120)
        assert r.code == 128 + signal.SIGKILL, r
        assert box.ask("word") == "kept"
    assert panda.ls()[box.id].startswith("running")


def test_a_machine_that_meets_the_hosts_limit_ends_and_says_so(panda, neighbour, box, procs):
    """Its limit is its memory and some room; here it is lowered, so that the guest cannot stay below it."""
    limits = [*CGROUPS.glob(f"memory/panda/{box.id}/memory.limit_in_bytes"), *CGROUPS.glob(f"panda/{box.id}/memory.max")]
    if not limits:
        pytest.skip("no cgroup of this host limits memory")
    for swap in CGROUPS.glob(f"memory/panda/{box.id}/memory.memsw.limit_in_bytes"):
        limits.append(swap)
    for limit in limits:
        limit.write_text(str(100 << 20))
    start_in(panda, procs, box, "python3", "-c", "x = [bytearray(1 << 20) for _ in range(400)]")
    ended(panda, box, "memory")


def test_a_fork_bomb_harms_only_itself(panda, neighbour, box, procs):
    start_in(panda, procs, box, "python3", "-c", "import os\nwhile True:\n try: os.fork()\n except OSError: pass")
    for _ in range(count(20, 20)):
        assert neighbour.answers()
    assert box.id in panda.ls()
    box.stop()


def test_threads_without_end_harm_only_their_machine(panda, neighbour, box, procs):
    code = "import threading\nwhile True:\n try: threading.Thread(target=threading.Event().wait, daemon=True).start()\n except Exception: pass"
    start_in(panda, procs, box, "python3", "-c", code)
    for _ in range(count(20, 20)):
        assert neighbour.answers()
    assert box.id in panda.ls()
    box.stop()


def test_a_machine_under_a_fork_bomb_gets_well_when_the_bomb_is_gone(panda, neighbour, box):
    """The command is killed with all it started by its timeout, as any other."""
    bomb = "import os, time\nfor _ in range(300):\n  if os.fork() == 0: time.sleep(1000)\ntime.sleep(1000)"
    assert box.try_("python3", "-c", bomb, opts=["--timeout", "5"], timeout=120).code == 124
    wait_for("all of it to be gone", lambda: int(box.sh("ls -d /proc/[0-9]* | wc -l")) < 60)
    assert box.answers()


def test_a_full_disk_harms_only_itself_and_can_be_emptied(panda, neighbour):
    upper = panda.home / "small.img"
    subprocess.run([TOP / "tools/image", "--upper", "64M", upper], check=True, capture_output=True)
    box = panda.boot("--upper", upper)
    r = box.try_("sh", "-c", "cat /dev/zero >/root/full", timeout=120)
    assert r.code != 0 and b"No space left on device" in r.err
    assert box.sh("echo still here") == "still here\n"
    child, = box.fork()
    for m in box, child:
        r = m.try_("sh", "-c", "echo more >/root/more && sync && cat /root/more")
        m.sh("rm /root/full; sync; echo again >/root/again; sync")
        assert m.run("cat", "/root/again") == "again\n"
    upper.unlink()


def test_a_machine_on_a_full_host_disk_harms_only_itself(panda, neighbour):
    """The file system below its run directory has no room: the guest's disk fails, the machine can be stopped."""
    small = Panda(panda.home, "small")
    small.kept = panda.kept  # one store: sweeping this must not take what the others start from
    small.run_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", small.run_dir], check=True)
    try:
        box = small.boot()
        panda.seen |= small.seen
        box.try_("sh", "-c", "head -c 64M /dev/urandom >/root/big; sync", timeout=120)
        assert box.id in small.ls()
        box.stop()
        assert small.in_run_dir() == []
    finally:
        small.sweep()
        subprocess.run(["umount", small.run_dir], check=True)
        small.run_dir.rmdir()


def test_busy_machines_leave_time_for_others(panda, neighbour, procs):
    """More machines that never rest than there are cpus."""
    for _ in range(4):
        start_in(panda, procs, panda.fresh(), "sh", "-c", "while :; do :; done")
    for _ in range(5):
        assert neighbour.answers()
