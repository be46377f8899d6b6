"""Volumes: files of the host that a machine uses in place, also one whose snapshot knew nothing of them."""
import hashlib
import os
import re
import signal
import socket
import struct
import subprocess

import pytest

from conftest import FEW, wait_for

MIB = 1 << 20


def make_volume(path, mib=64):
    """A sparse file with an empty ext4 that leaves the guest nothing to do in the background."""
    with open(path, "wb") as f:
        f.truncate(mib * MIB)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-J", "size=4", "-E",
                    "lazy_itable_init=0,lazy_journal_init=0,assume_storage_prezeroed=1", path], check=True)
    return path


def assert_whole(path):
    """Played back, its file system has no flaw."""
    subprocess.run(["e2fsck", "-fp", path], capture_output=True)
    r = subprocess.run(["e2fsck", "-fn", path], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def kill(machine):
    """The machine's process ends as in a power cut; what is left is cleared away."""
    os.kill(machine.book()["pid"], signal.SIGKILL)
    wait_for("it to end", lambda: "killed" in machine.panda.ls()[machine.id])
    machine.stop()


@pytest.fixture
def baked(panda):
    """A snapshot of a machine that never had a volume."""
    return panda.baked()


@pytest.fixture
def restored(panda, baked):
    """restored(FILE, ...): a machine from the snapshot with these volumes at /v0, /v1 and so on."""
    def restore(*files, mount=True):
        words = []
        for n, file in enumerate(files):
            words += ["--volume", file] + (["--mount", f"{n}:/v{n}"] if mount else [])
        m, = panda._machines("restore", baked, *words)
        return m
    return restore


def test_what_was_synced_survives_a_kill_and_is_there_in_another_machine(restored, tmp_path):
    file = make_volume(tmp_path / "v")
    m = restored(file)
    m.sh("seq 1 100000 >/v0/numbers; mkdir /v0/d; python3 -c 'import os; os.fsync(os.open(\"/v0/numbers\", 0))'")
    kill(m)
    assert needs_recovery(file)
    m = restored(file)
    assert m.sh("cksum </v0/numbers") == m.sh("seq 1 100000 | cksum")
    m.run("umount", "/v0")
    m.stop()
    assert not needs_recovery(file)
    assert_whole(file)


def needs_recovery(file):
    return "needs_recovery" in subprocess.run(["dumpe2fs", "-h", file], capture_output=True, text=True, check=True).stdout


def test_a_machine_that_powers_off_leaves_its_volumes_clean(panda, restored, tmp_path):
    """Also one that is mounted inside another, and with a process at work there."""
    files = [make_volume(tmp_path / f"v{n}") for n in range(2)]
    words = [w for n, f in enumerate(files) for w in ("--volume", f, "--mount", f"{n}:/v{'/in' * n}")]
    m, = panda._machines("restore", "baked", *words)
    m.sh("echo kept >/v/in/x; cd /v/in; setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
    assert all(map(needs_recovery, files))
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(panda.run_dir / "machines" / m.id / "agent"))
        s.sendall(struct.pack("<IBBBBII", 4, 0xa1, 51, 0, 0, 1, 0))  # SHUTDOWN, without grace
    wait_for("it to end", lambda: "powered off" in panda.ls()[m.id])
    m.stop()
    assert not any(map(needs_recovery, files))
    assert restored(files[1]).run("cat", "/v0/x") == "kept\n"


def test_a_sync_in_the_guest_is_a_sync_on_the_host(restored, tmp_path):
    """A system call of the kernel process, seen from outside: the filter lets it through and it comes before the answer."""
    if subprocess.run(["sh", "-c", "command -v strace"], capture_output=True).returncode:
        pytest.skip("no strace on this host")
    m = restored(make_volume(tmp_path / "v"))
    log = tmp_path / "trace"
    with subprocess.Popen(["strace", "-e", "trace=fdatasync", "-o", log, "-p", str(m.book()["pid"])],
                          stderr=subprocess.PIPE, text=True) as trace:
        assert "attached" in trace.stderr.readline()
        m.python("import os; f = open('/v0/x', 'w'); f.write('x'); f.flush(); os.fsync(f.fileno())")
        trace.send_signal(signal.SIGINT)
    assert re.search(r"fdatasync\(336\) += 0", log.read_text()), log.read_text()


def test_a_volume_for_reading_cannot_be_written(panda, restored, tmp_path):
    file = make_volume(tmp_path / "v")
    m = restored(file)
    m.sh("echo kept >/v0/x")
    m.run("umount", "/v0")
    m.stop()
    before = sha(file)
    m, other = restored(f"{file}:ro"), restored(f"{file}:ro")  # any number of readers
    assert m.run("cat", "/v0/x") == other.run("cat", "/v0/x") == "kept\n"
    assert b"Read-only file system" in m.try_("touch", "/v0/y").err
    assert m.try_("mount", "-o", "remount,rw", "/v0").code != 0
    r = m.try_("dd", "if=/dev/zero", "of=/dev/pvol0", "bs=4096", "count=1", "conv=fsync")
    assert r.code != 0, r
    assert m.try_("blkdiscard", "-f", "/dev/pvol0").code != 0
    panda.refused("restore", "baked", "--volume", file, code=1, says="in use")
    m.stop()
    other.stop()
    assert sha(file) == before


def test_a_volume_cut_off_while_written_must_be_attached_for_writing_first(panda, restored, tmp_path):
    file = make_volume(tmp_path / "v")
    m = restored(file)
    m.sh("echo kept >/v0/x; sync; echo more >/v0/y; sync -d /v0/y")
    kill(m)
    panda.refused("restore", "baked", "--volume", f"{file}:ro", "--mount", "0:/v0", code=1,
                  says=["volume 0 at /v0", "attach it writable once"])
    m = restored(file)
    m.run("umount", "/v0")
    m.stop()
    assert restored(f"{file}:ro").run("cat", "/v0/x") == "kept\n"


def test_two_machines_of_one_snapshot_have_a_volume_each(restored, tmp_path):
    files = [make_volume(tmp_path / f"v{n}") for n in range(2)]
    machines = [restored(f) for f in files]
    for n, m in enumerate(machines):
        m.sh(f"echo {n} >/v0/me; sync")
    for n, m in enumerate(machines):
        assert m.run("cat", "/v0/me") == f"{n}\n"
        m.stop()
    for n, f in enumerate(files):
        assert subprocess.run(["debugfs", "-R", "cat /me", f], capture_output=True).stdout == f"{n}\n".encode()


def test_all_slots_at_once_and_at_a_cold_boot(panda, restored, tmp_path):
    files = [make_volume(tmp_path / f"v{n}", 16) for n in range(6)]
    m = restored(*files)
    for n in range(6):
        m.sh(f"echo {n} >/v{n}/me")
    m.run("umount", *(f"/v{n}" for n in range(6)))
    m.stop()
    m = panda.boot("--volume", files[5], "--mount", "0:/deep/down/here")
    assert m.run("cat", "/deep/down/here/me") == "5\n"
    panda.refused("boot", *(w for f in (*files, "x") for w in ("--volume", f)), code=2, says="at most 6")


def test_a_fork_gets_a_copy_as_of_that_moment(panda, restored, tmp_path):
    """While a program appends to a file; afterwards each goes its own way, on a file system of its own without a flaw."""
    file, copy = make_volume(tmp_path / "v"), tmp_path / "copy"
    m = restored(file)
    # Not without a pause: what is read again below would grow faster than a slow host reads.
    m.sh("setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n; [ $((n % 200)) != 0 ] || sleep 0.02; done' </dev/null >/v0/count 2>&1 &")
    wait_for("it to write", lambda: int(m.sh("wc -l </v0/count")) > 1000)
    child, = panda._machines("fork", m.id, "--volume", copy)
    for x in m, child:
        before = int(x.sh("wc -l </v0/count"))
        wait_for("it to go on", lambda: int(x.sh("wc -l </v0/count")) > before)
        x.run("pkill", "-f", "while")
    for name, x in ("parent", m), ("child", child):
        x.sh(f"echo {name} >/v0/me; sync; echo 3 >/proc/sys/vm/drop_caches")
        n = int(x.sh("wc -l </v0/count"))
        assert x.sh("cksum </v0/count") == x.sh(f"seq 1 {n} | cksum")
    for name, x, f in ("parent", m, file), ("child", child, copy):
        assert x.run("cat", "/v0/me") == f"{name}\n"
        log = (panda.run_dir / "machines" / x.id / "console.log").read_text()
        assert "error" not in log.lower(), log
        x.run("umount", "/v0")
        x.stop()
        assert_whole(f)


# Writes a number past all caches and reads it back a moment later: most stops fall between the two.
BACK_AND_FORTH = """
import mmap, os, time
fd, block, n, at = os.open("/dev/pvol0", os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, 4096), 0, (64 << 20) - 4096
while True:
    n += 1
    block[:8] = n.to_bytes(8, "little")
    os.pwrite(fd, block, at)
    time.sleep(0.002)
    os.preadv(fd, [block], at)
    with open("/root/turn" if block[:8] == n.to_bytes(8, "little") else "/root/wrong", "w") as f:
        f.write(f"{n}")
"""


def test_a_fork_never_meets_what_its_parent_wrote_afterwards(panda, restored, tmp_path):
    file = tmp_path / "v"
    file.write_bytes(b"x" * 64 * MIB)  # what is written lies behind all that has to be copied
    m = restored(file, mount=False)
    m.put("/root/b.py", BACK_AND_FORTH.encode())
    m.sh("setsid python3 /root/b.py </dev/null >/root/log 2>&1 &")
    wait_for("it to begin", lambda: m.try_("cat", "/root/turn").out)
    for turn in range(2 if FEW else 3):
        child, = panda._machines("fork", m.id, "--volume", tmp_path / f"copy{turn}")
        for x in m, child:
            before = x.run("cat", "/root/turn")
            wait_for("it to go on", lambda: x.run("cat", "/root/turn") not in ("", before))
            assert x.try_("cat", "/root/wrong").code != 0, x.run("cat", "/root/wrong", "/root/turn")
        child.stop()


def test_a_parent_goes_on_when_its_forker_is_killed(panda, restored, tmp_path, procs):
    """It stands still while its volume is copied; the end of whoever copies is the end of that."""
    file, copy = tmp_path / "v", tmp_path / "copy"
    with open(file, "wb") as f:
        for _ in range(100 if FEW else 400):
            f.write(b"x" * MIB)
    m = restored(file, mount=False)
    forker = panda.start("fork", m.id, "--volume", copy)
    procs.append(forker)
    wait_for("the copy to begin", lambda: copy.exists())
    forker.send_signal(signal.SIGSTOP)
    assert forker.poll() is None, "the copy was over before it could be stopped: make the file larger"
    with pytest.raises(AssertionError, match="no end"):
        m.try_("true", timeout=2)
    forker.kill()
    assert m.answers()
    assert m.fork()[0].answers()
    m.pause()
    m.resume()
    assert m.answers()


def test_what_a_volume_holds_is_in_no_snapshot(panda, restored, tmp_path):
    """Written without the cache: what a machine has cached is its memory."""
    size = lambda: int(subprocess.run(["du", "-sk", panda.store], capture_output=True, check=True).stdout.split()[0])
    m = restored(make_volume(tmp_path / "v", 256))
    m.snapshot("before")
    before = size()
    m.sh(f"dd if=/dev/urandom of=/v0/big bs=1M count={100 if not FEW else 40} oflag=direct 2>/dev/null; sync")
    m.snapshot("after")
    assert size() - before < 30 * 1024
    assert len(m.book()["disks"]) == 2
    assert [v["slot"] for v in m.book()["volumes"]] == [0]


def test_a_machine_that_slept_finds_its_volume_mounted(panda, restored, tmp_path):
    """An open file and a position in it are as they were. It is given the same file again."""
    file = make_volume(tmp_path / "v")
    m = restored(file)
    m.keep()
    m.ask("global f; f = open('/v0/log', 'a+'); f.write('one\\n'); f.flush()")
    m.pause()  # nothing may happen between its last picture and its end
    m.snapshot("asleep")
    m.stop()
    m, = panda._machines("restore", "asleep", "--volume", file)
    m.ask("f.write('two\\n'); f.flush(); import os; os.fsync(f.fileno())")
    assert m.run("cat", "/v0/log") == "one\ntwo\n"
    kill(m)
    assert restored(file).run("cat", "/v0/log") == "one\ntwo\n"


def test_a_machine_that_wakes_without_its_volume_gets_errors_there_and_only_there(panda, restored, tmp_path):
    file = make_volume(tmp_path / "v")
    m = restored(file)
    m.sh("head -c 1M /dev/urandom >/v0/data; sync; echo 3 >/proc/sys/vm/drop_caches")
    m.snapshot("asleep")
    m.stop()
    r = panda.do("restore", "asleep")
    assert "was saved with a volume 0 and has none now" in r.err.decode()
    panda.seen.add(r.text.strip())
    m = type(m)(panda, r.text.strip())
    assert b"Input/output error" in m.try_("cat", "/v0/data").err
    assert m.run("blockdev", "--getsize64", "/dev/pvol0") == "0\n"
    m.sh("echo fine >/root/x; sync -f /root/x")
    assert m.fork()[0].run("cat", "/root/x") == "fine\n"


def test_a_full_host_is_an_error_in_the_guest_and_no_more(panda, restored, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24M", "tmpfs", small], check=True)
    try:
        m = restored(make_volume(small / "v", 64))
        r = m.try_("dd", "if=/dev/urandom", "of=/v0/big", "bs=1M", "count=48", "conv=fsync")
        assert r.code != 0, r
        assert b"Input/output error" in r.err or b"No space left" in r.err, r
        m.sh("head -c 10M /dev/urandom >/root/own; sync -f /root/own")
        assert m.fork()[0].answers()
        kill(m)
        panda.sweep()
    finally:
        subprocess.run(["umount", small], check=True)


def test_what_is_deleted_is_given_back_to_the_host(restored, tmp_path):
    file = make_volume(tmp_path / "v", 256)
    m = restored(file)
    used = lambda: os.stat(file).st_blocks * 512
    size = 32 if FEW else 100
    m.sh(f"head -c {size}M /dev/urandom >/v0/big; sync")
    assert used() > size * MIB
    m.sh("rm /v0/big; sync")
    wait_for("holes", lambda: used() < 20 * MIB)


def test_the_end_of_a_volume_is_its_end(restored, tmp_path):
    file = tmp_path / "v"
    file.write_bytes(b"\0" * (4 * MIB - 4096) + b"e" * 4096)
    m = restored(file, mount=False)
    assert m.run("blockdev", "--getsize64", "/dev/pvol0") == f"{4 * MIB}\n"
    m.sh("dd if=/dev/pvol0 bs=4096 skip=1023 2>/dev/null | tr -d e | wc -c | grep -qx 0")
    assert m.run("dd", "if=/dev/pvol0", "bs=4096", "skip=1024") == ""
    assert m.try_("dd", "if=/dev/zero", "of=/dev/pvol0", "bs=4096", "seek=1023", "count=2", "conv=fsync").code != 0
    assert os.stat(file).st_size == 4 * MIB
    assert file.read_bytes()[-4096:] == b"\0" * 4096


def test_what_is_no_volume_is_refused(panda, baked, tmp_path):
    odd, empty, blank = tmp_path / "odd", tmp_path / "empty", tmp_path / "blank"
    odd.write_bytes(b"x" * 5000)
    empty.touch()
    blank.write_bytes(b"\0" * MIB)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for file, says in (odd, "4096"), (empty, "4096"), (fifo, "no volume"), (tmp_path, "directory"), (tmp_path / "no", "No such file"):
        panda.refused("restore", baked, "--volume", file, code=1, says=says)
    panda.refused("restore", baked, "--volume", blank, "--mount", "0:/v", code=1, says="no file system")
    panda.refused("restore", baked, "--mount", "0:/v", code=1, says="--volume")
    panda.refused("restore", baked, "--volume", blank, "--mount", "0:/proc", code=1, says="path of its own")
    panda.refused("restore", baked, "--volume", blank, "--mount", "7:/v", code=2, says="N:/PATH")
    panda.refused("restore", baked, "--volume", blank, "-n", 2, code=1, says="only one machine")
    assert panda.in_run_dir() == []


def test_idle_with_a_volume_is_idle(restored, tmp_path):
    """Once its journal has settled. Of an hour it would take less than a second."""
    m = restored(make_volume(tmp_path / "v"))
    m.sh("echo x >/v0/x; sync")

    def quiet():
        from time import monotonic, sleep
        cpu, t = m.cpu_ns(), monotonic()
        sleep(2)  # what is measured, not a way to wait
        return (m.cpu_ns() - cpu) / (monotonic() - t) < 1e9 / 3600
    wait_for("quiet", quiet, seconds=60)
