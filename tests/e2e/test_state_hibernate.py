"""Hibernation: what it leaves in memory (nothing), on disk (what is new), and what it survives."""
import contextlib
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

from conftest import count, wait_for


def hibernate(p, id):
    assert p.do("POST", f"/v1/sandboxes/{id}/hibernate") == {"status": "hibernated"}


def files(p, id):
    """(name, inode, bytes on disk) of what it sleeps in."""
    return {(f.name, f.stat().st_ino, f.stat().st_blocks * 512) for f in (p.data / "store/snapshots" / f"hib-{id}").iterdir()}


def end_machines(p):
    """As the host would: every process gone, and what was in memory with them. Only the data directory is left."""
    for pids in p.processes(all=True).values():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # its PID 1 took it along
                os.kill(pid, signal.SIGKILL)
    wait_for("all processes to be gone", lambda: not p.processes(all=True))
    p.drop_groups()
    shutil.rmtree(p.run, ignore_errors=True)


def reboot(p):
    p.kill9()
    end_machines(p)
    p.start()


def memory_of(pid):
    """Names of the memory files a process holds or maps."""
    held = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            held.add(os.readlink(fd))
    mapped = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {h for h in held if "memfd:" in h} | {m for m in mapped if "memfd:" in m}


def test_it_sleeps_again_and_only_what_is_new_is_written(pandad):
    id = pandad.create()
    baked = {f.stat().st_ino for d in (pandad.data / "store/snapshots").glob("tpl-*") for f in d.iterdir()}
    pandad.sh(id, "head -c 20000000 /dev/urandom >/dev/shm/big; sha256sum </dev/shm/big >/root/sum")
    hibernate(pandad, id)
    first = {f for f in files(pandad, id) if f[1] not in baked and f[2] > 10_000_000}
    assert first, "the 20 MB are in a layer of its own"
    pandad.sh(id, "echo little >/dev/shm/little")
    wait_for("the first sleep to be put aside", lambda: pandad.slept() == {id})
    hibernate(pandad, id)
    second = files(pandad, id)
    assert first <= second, "the same file, not another copy"
    wait_for("the first sleep to go", lambda: not pandad.slept())
    assert pandad.sh(id, "sha256sum </dev/shm/big | cmp - /root/sum && cat /dev/shm/little")["stdout"] == "little\n"


def test_a_second_snapshot_writes_only_what_is_new(pandad):
    id = pandad.create()
    pandad.sh(id, "head -c 20000000 /dev/urandom >/dev/shm/big")
    baked = {f.stat().st_ino for d in (pandad.data / "store/snapshots").glob("tpl-*") for f in d.iterdir()}
    taken = []
    for _ in range(2):
        snap = pandad.do("POST", f"/v1/sandboxes/{id}/snapshots")["id"]
        found = (pandad.data / "store/snapshots" / snap).iterdir()
        taken.append({f.stat().st_ino for f in found if f.stat().st_blocks * 512 > 10_000_000} - baked)
    assert taken[0] and taken[0] == taken[1]
    hibernate(pandad, id)
    assert taken[0] <= {ino for _, ino, _ in files(pandad, id)}, "nor does a hibernation"


def test_a_hibernated_sandbox_uses_no_memory(new_pandad):
    p = new_pandad()
    id = p.create(checkpoints="auto")
    p.sh(id, "head -c 30000000 /dev/urandom >/dev/shm/big")
    p.sh(id, "true")
    hibernate(p, id)
    assert id not in p.processes() and id not in p.cgroups()
    wait_for("pandad to let go of its memory", lambda: not memory_of(p.process.pid))
    assert not list((p.run / "machines").glob(id)), "and its run directory, which is in memory, too"


def test_it_survives_a_reboot_of_the_host(new_pandad):
    p = new_pandad()
    id, awake = p.create(), p.create()
    p.sh(id, "echo memory >/dev/shm/m; echo disk >/root/d")
    hibernate(p, id)
    reboot(p)
    assert p.do("GET", f"/v1/sandboxes/{id}")["status"] == "hibernated"
    assert p.do("GET", f"/v1/sandboxes/{awake}")["status"] == "failed"
    assert p.sh(id, "cat /dev/shm/m /root/d")["stdout"] == "memory\ndisk\n"


def test_compressed_it_takes_less_and_is_all_there(new_pandad):
    p = new_pandad(compress_hibernated="yes", compress_snapshots="yes")
    id = p.create()
    p.sh(id, "yes panda | head -c 30000000 >/dev/shm/m; echo disk >/root/d")
    hibernate(p, id)
    where = p.data / "store/snapshots" / f"hib-{id}"
    squashed = list(where.glob("*.zst"))
    assert squashed and sum(f.stat().st_size for f in squashed) < 8_000_000
    reboot(p)
    for turn in range(3):
        assert p.sh(id, "yes panda | head -c 30000000 | cmp - /dev/shm/m && cat /root/d")["stdout"] == "disk\n"
        p.sh(id, f"echo {turn} >>/dev/shm/turns")
        hibernate(p, id)
    assert p.sh(id, "cat /dev/shm/turns")["stdout"] == "0\n1\n2\n"
    snap = p.do("POST", f"/v1/sandboxes/{id}/snapshots")["id"]
    assert list((p.data / "store/snapshots" / snap).glob("*.zst"))
    made = [p.create(from_snapshot=snap) for _ in range(2)]
    parcel = p.do("GET", f"/v1/snapshots/{snap}/export")
    p.do("DELETE", f"/v1/snapshots/{snap}")
    made.append(p.create(from_snapshot=p.do("POST", "/v1/snapshots/import", parcel)["id"]))
    for other in made:
        assert p.sh(other, "cat /dev/shm/turns /root/d")["stdout"] == "0\n1\n2\ndisk\n"


def test_a_damaged_compressed_sleep_is_named_and_not_woken(new_pandad):
    p = new_pandad(compress_hibernated="yes")
    id = p.create()
    p.sh(id, "head -c 5000000 /dev/urandom >/dev/shm/m")
    hibernate(p, id)
    file = max((p.data / "store/snapshots" / f"hib-{id}").glob("*.zst"), key=lambda f: f.stat().st_size)
    good = file.read_bytes()
    os.chmod(file, 0o600)
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 1
    file.write_bytes(bad)
    a = p.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "true"})
    assert a.status >= 500 and file.name in a.json["error"], a
    assert p.do("GET", f"/v1/sandboxes/{id}")["status"] == "hibernated"
    file.write_bytes(good)
    assert p.sh(id, "stat -c %s /dev/shm/m")["stdout"] == "5000000\n"


def test_many_sleep_and_wake_at_random(new_pandad):
    """8 sandboxes for some rounds; 100 for ten minutes with PANDA_SOAK=1. Each counts its wakes itself."""
    p = new_pandad(log="warn")
    r = random.Random(5)
    ids = [p.create(metadata={"n": str(n)}) for n in range(count(8, 100))]
    counted = dict.fromkeys(ids, 0)
    for id in ids:
        p.sh(id, "echo 0 >/dev/shm/count; echo 0 >/root/count")
    ends = time.monotonic() + count(0, 600)
    plan = [[r.choice(ids) for _ in range(6)] for _ in range(4)]
    wrong = []

    def walk(seed, mine):
        pick = random.Random(seed)
        try:
            for id in mine:
                once(id)
            while time.monotonic() < ends:
                once(pick.choice(owned[seed]))
        except Exception as e:  # told to the test below
            wrong.append(e)

    def once(id):
        hibernate(p, id)
        got = p.sh(id, "for f in /dev/shm/count /root/count; do echo $(($(cat $f) + 1)) >$f; cat $f; done")["stdout"]
        counted[id] += 1
        assert got == f"{counted[id]}\n" * 2, (id, got)

    owned = [ids[k::4] for k in range(4)]
    threads = [threading.Thread(target=walk, args=(k, [i for i in plan[k] if i in owned[k]])) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong
    for id in ids:
        hibernate(p, id)
    wait_for("nothing but pandad to be left in memory", lambda: not p.processes())
    wait_for("what they slept in before to go", lambda: not p.slept(), seconds=60)
    names = {n for id in ids for n, _, _ in files(p, id)}
    tpl = {f.name for d in (p.data / "store/snapshots").glob("tpl-*") for f in d.iterdir()}
    wait_for("no layer too many", lambda: {f.name for f in (p.data / "store/layers").iterdir()} <= names | tpl, seconds=60)
    p.kill9()
    p.start()
    for id in ids:
        assert p.sh(id, "cat /dev/shm/count /root/count")["stdout"] == f"{counted[id]}\n" * 2
