"""What only machines behind KVM have: vcpus, memory that goes back to the host, a monitor with threads."""
import json
import re
import subprocess
from pathlib import Path

import pytest

from conftest import ENGINE, wait_for
from server import BUILD

pytestmark = pytest.mark.skipif(ENGINE != "kvm", reason="not the engine that is tested: tools/test-kvm")

MIB = 1 << 20


def memory_mib(machine):
    """What its monitor and its guest have in memory, copied from a layer or new."""
    status = Path(f"/proc/{machine.book()['pid']}/status").read_text()
    return sum(int(re.search(rf"^{name}:\s*(\d+) kB", status, re.M)[1]) for name in ("RssAnon", "RssShmem")) / 1024


@pytest.mark.parametrize("cpus", [1, 4, 8])
def test_a_machine_has_the_vcpus_it_was_given_and_so_have_its_forks(panda, cpus):
    m = panda.boot("--cpus", cpus)
    child, = m.fork()
    for x in m, child:
        assert x.run("nproc") == f"{cpus}\n"
        # each of them answers when it alone may
        assert x.sh(f"for c in $(seq 0 {cpus - 1}); do taskset -c $c sh -c 'echo $1' sh $c; done").split() == [str(c) for c in range(cpus)]


def test_a_machine_that_is_busy_on_all_vcpus_forks_and_both_go_on(panda):
    m = panda.boot("--cpus", 2)
    m.sh("""for c in 0 1; do
        setsid taskset -c $c sh -c 'n=0; while :; do n=$((n + 1)); [ $((n % 1000)) -ne 0 ] || echo $n >/dev/shm/$0; done' $c </dev/null >/dev/null 2>&1 &
    done""")
    counts = lambda x: [int(n) for n in x.sh("cat /dev/shm/0 /dev/shm/1 2>/dev/null || :").split()]
    wait_for("both to count", lambda: len(counts(m)) == 2)
    child, = m.fork()
    for x in m, child:
        before = counts(x)
        wait_for("both to go on", lambda: all(a > b for a, b in zip(counts(x), before)))


def test_what_a_guest_frees_goes_back_to_the_host(box):
    """All but what is in blocks of 2 MiB that somebody else has a page of: up to 14 MiB were seen."""
    box.keep()
    box.ask(f"import os; big = b'x' * {80 * MIB}")
    full = memory_mib(box)
    assert full > 80
    box.ask("del big; import gc; gc.collect()")
    wait_for("its memory to shrink", lambda: memory_mib(box) < full - 40, seconds=60)
    assert box.answers()


def test_a_volume_takes_nothing_until_there_is_one(panda, tmp_path):
    """And its device is there for whoever opens it, in whichever order files came."""
    m = panda.fresh()
    disks = lambda x: sorted(d for d in x.run("ls", "/sys/block").split() if not d.startswith("loop"))
    assert disks(m) == ["vda", "vdb"]
    assert b"No such device or address" in m.try_("cat", "/dev/pvol5").err
    assert disks(m) == ["vda", "vdb"]
    m.snapshot("without")
    files = [tmp_path / name for name in "ab"]
    for n, file in enumerate(files):
        file.write_bytes(bytes([65 + n]) * MIB)
    m, = panda._machines("restore", "without", *(word for file in files for word in ("--volume", file)))
    assert disks(m) == ["vda", "vdb"]
    assert m.run("head", "-c", "3", "/dev/pvol1") == "BBB"
    assert disks(m) == ["pvol0", "pvol1", "vda", "vdb"]
    assert m.run("head", "-c", "3", "/dev/pvol0") == "AAA"
    child, = panda._machines("fork", m.id, "--volume", tmp_path / "c", "--volume", tmp_path / "d")
    assert child.run("head", "-qc", "2", "/dev/pvol0", "/dev/pvol1") == "AABB"


def test_every_thread_of_a_monitor_is_locked_in(panda):
    booted = panda.boot("--cpus", 2)
    restored, = booted.fork()
    # The process's and its own; and what a restored one was behind when it read its state.
    for m, filters in (booted, 2), (restored, 3):
        tasks = [(t / "status").read_text() for t in Path(f"/proc/{m.book()['pid']}/task").iterdir()]
        assert len(tasks) >= 3  # two vcpus and the devices
        for status in tasks:
            field = lambda name: re.search(rf"^{name}:\s*(\S+)", status, re.M)[1]
            assert field("Seccomp") == "2" and field("NoNewPrivs") == "1"
            assert int(field("CapEff"), 16) == int(field("CapPrm"), 16) == 0
            assert int(field("Seccomp_filters")) >= filters
            assert int(field("Uid")) != 0


def test_a_machine_with_more_vcpus_than_there_may_be_is_refused(panda):
    panda.refused("boot", "--cpus", "9", code=2, says="1 to 8")


def test_a_server_takes_kvm_by_itself_and_its_sandboxes_do_all_they_do(new_pandad):
    """engine = auto. One sandbox runs, forks, sleeps and wakes; a volume comes and goes; a template names its engine."""
    p = new_pandad(start=False, engine="auto")
    doc = json.loads((BUILD / "templates/base.json").read_text())
    for engine in "um", "kvm":
        doc.update(name=f"on-{engine}", aliases=[], engine=engine)
        (p.data / "templates" / f"on-{engine}.json").write_text(json.dumps(doc))
    p.start()
    about = p.do("GET", "/version")
    assert (about["engine"], about["isolation"]) == ("kvm", "kvm")
    id = p.create()
    assert p.do("GET", f"/v1/sandboxes/{id}")["isolation"] == "kvm"
    assert p.sh(id, "echo kept >/dev/shm/f; grep -c virtio_mmio /proc/cmdline")["stdout"] == "1\n"
    child = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    assert p.sh(child, "cat /dev/shm/f; echo child >/dev/shm/f")["stdout"] == "kept\n"
    assert p.do("GET", f"/v1/sandboxes/{child}")["isolation"] == "kvm"
    p.do("DELETE", f"/v1/sandboxes/{child}")

    p.do("POST", "/v1/volumes", {"name": "data", "size_mb": 16}, expect=201)
    p.do("POST", f"/v1/sandboxes/{id}/volumes", {"name": "data", "path": "/data"}, expect=201)
    assert p.sh(id, "echo here >/data/f; exec 9</data/f; (sleep 1000 9<&9) >/dev/null 2>&1 &")["exit_code"] == 0
    a = p.ask("DELETE", f"/v1/sandboxes/{id}/volumes/data")
    assert (a.status, a.json["code"]) == (409, "volume_busy"), a
    assert p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    assert p.do("GET", f"/v1/sandboxes/{id}")["isolation"] == "kvm"  # of what has no machine now
    assert p.sh(id, "cat /dev/shm/f /data/f; pkill sleep; while pgrep sleep >/dev/null; do :; done")["stdout"] == "kept\nhere\n"
    assert p.ask("DELETE", f"/v1/sandboxes/{id}/volumes/data").status == 204
    assert p.sh(id, "ls /data; blockdev --getsize64 /dev/pvol0")["stdout"] == "0\n"

    assert p.do("POST", "/v1/sandboxes", {"template": "on-kvm"})["isolation"] == "kvm"
    a = p.ask("POST", "/v1/sandboxes", {"template": "on-um"})
    if a.status >= 400:  # where Linux is older than 6.7
        assert "engine 'um' does not work on this host, which has: kvm" in a.json["error"], a
    else:
        assert a.json["isolation"] == "user-mode-kernel", a


def test_the_doctor_says_that_it_is_kvm_and_whether_um_works_too(panda):
    r = subprocess.run([panda.program, "doctor", "--json"], env=panda.env, capture_output=True, text=True)
    rows = {row["name"]: row for row in json.loads(r.stdout)}
    assert rows["engine kvm"]["state"] == "ok" and rows["engine"]["detail"].startswith("auto is kvm")
    if rows["engine um"]["state"] == "ok":
        return
    assert "6.7" in rows["engine um"]["detail"]
    panda.refused("boot", "--engine", "um", "--kernel", panda.env["PANDA_KERNEL"], code=1, says=["PAGEMAP_SCAN", "engine = kvm"])
    assert panda.in_run_dir() == []
