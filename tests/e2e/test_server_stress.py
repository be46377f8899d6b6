"""A disk that is full or read-only, many at once, long runs: clear errors, nothing lost, nothing grows."""
import concurrent.futures
import os
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

from conftest import count, wait_for
from server import patience


@pytest.fixture
def small_disk(new_pandad):
    """A pandad whose data directory is a disk of its own, of 1.5 GiB: the base image is in it, too."""
    p = new_pandad(start=False, disk_reserve_mb=1)
    keep, image = p.home / "keep", p.home / "disk.img"
    shutil.move(p.data, keep)
    p.data.mkdir()
    subprocess.run(["truncate", "-s", "1500M", str(image)], check=True)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", str(image), str(p.data)], check=True)
    try:
        subprocess.run(["cp", "-a", "--sparse=always", f"{keep}/.", str(p.data)], check=True)
        p.start()
        yield p
        p.clear()
        p.stop()
        assert [x for x in p.left() if str(p.data) not in x] == []
    finally:
        if p.process and p.process.poll() is None:
            p.process.kill()
            p.process.wait()
        subprocess.run(["umount", "-l", str(p.data)], check=True)
        p.data.rmdir()
        shutil.move(keep, p.data)
        p.key = None  # it has never run there, and will make another


def fill(path):
    """Until not a byte fits."""
    with open(path, "wb", buffering=0) as f:
        for size in 1 << 20, 4096, 1:
            try:
                while True:
                    f.write(b"x" * size)
            except OSError:
                pass


def writable(path):
    try:
        (path / "probe").write_text("x")
    except OSError:
        return False
    (path / "probe").unlink()
    return True


def test_a_full_disk_loses_nothing_and_says_so(small_disk):
    p = small_disk
    id = p.create()
    p.sh(id, "echo 42 >/dev/shm/x")
    fill(p.data / "ballast")
    for what in lambda: p.ask("POST", "/v1/sandboxes", {}), \
            lambda: p.ask("POST", f"/v1/sandboxes/{id}/snapshots"), \
            lambda: p.ask("POST", f"/v1/sandboxes/{id}/hibernate"), \
            lambda: p.ask("POST", f"/v1/sandboxes/{id}/fork"), \
            lambda: p.ask("POST", "/v1/volumes", {"name": "v"}):
        a = what()
        assert a.status in (503, 507) and a.json["code"] in ("disk_full", "host_full", "snapshot_no_space"), a
        assert a.json["error"], a
    assert p.sh(id, "cat /dev/shm/x")["stdout"] == "42\n", "what runs goes on"
    (p.data / "ballast").unlink()
    assert p.do("POST", f"/v1/sandboxes/{id}/hibernate") == {"status": "hibernated"}
    assert p.sh(id, "cat /dev/shm/x")["stdout"] == "42\n"
    assert p.sh(p.create(), "echo ok")["stdout"] == "ok\n"


def test_a_full_disk_does_not_keep_sandboxes_alive(small_disk):
    p = small_disk
    id = p.create()
    fill(p.data / "ballast")
    p.ask("DELETE", f"/v1/sandboxes/{id}")
    wait_for("its machine to be gone", lambda: id not in p.processes())
    (p.data / "ballast").unlink()
    p.kill9()
    p.start()
    assert p.ask("GET", f"/v1/sandboxes/{id}").status in (200, 404)
    assert all(s["status"] == "failed" for s in p.do("GET", "/v1/sandboxes"))


def test_a_full_disk_can_be_emptied_as_the_errors_say(small_disk):
    """Not a byte is left for records either; what is deleted is gone, also for the next pandad."""
    p = small_disk
    id = p.create()
    p.sh(id, "head -c 30000000 /dev/urandom >/dev/shm/x")
    snap = p.do("POST", f"/v1/sandboxes/{id}/snapshots")["id"]
    p.do("POST", "/v1/volumes", {"name": "v", "size_mb": 64})
    fill(p.data / "ballast")
    a = p.ask("POST", "/v1/sandboxes", {})
    assert a.status == 503 and "delete snapshots or volumes" in a.json["error"], a
    p.do("DELETE", f"/v1/snapshots/{snap}", expect=204)
    p.do("DELETE", "/v1/volumes/v", expect=204)
    assert p.sh(p.create(), "echo ok")["stdout"] == "ok\n"
    p.kill9()
    p.start()
    assert p.do("GET", "/v1/snapshots")["snapshots"] == [] == p.do("GET", "/v1/volumes") and p.volumes() == []
    assert p.sh(id, "wc -c </dev/shm/x")["stdout"] == "30000000\n"
    (p.data / "ballast").unlink()


def test_a_disk_that_turns_read_only_refuses_and_what_runs_goes_on(small_disk):
    """As ext4 does after an error."""
    p = small_disk
    id = p.create()
    device = next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if f" {p.data} " in line)
    Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("a test\n")
    wait_for("it to be read-only", lambda: not writable(p.data))
    for what in ("/v1/sandboxes", {}), (f"/v1/sandboxes/{id}/snapshots",), (f"/v1/sandboxes/{id}/hibernate",), \
            (f"/v1/sandboxes/{id}/fork",), ("/v1/volumes", {"name": "v"}):
        a = p.ask("POST", *what)
        assert a.status in (503, 507) and a.json["code"] in ("disk_full", "host_full", "snapshot_io"), a
    assert p.sh(id, "echo ok")["stdout"] == "ok\n"
    p.ask("DELETE", f"/v1/sandboxes/{id}")
    wait_for("its machine to be gone", lambda: id not in p.processes())


def footprint(p):
    """What may not grow: fds, threads, memory of pandad; processes, files and groups around it."""
    proc = Path("/proc", str(p.process.pid))
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    files = [os.path.join(d, name) for d, _, names in os.walk(p.data / "store") for name in names]
    return {"fds": len(os.listdir(proc / "fd")), "threads": int(status["Threads"]), "rss_kib": int(status["VmRSS"].split()[0]),
            "machines": len(p.machines()), "groups": len(p.cgroups()), "processes": len(p.processes(all=True)), "files": len(files), "names": sorted(files)}


def settled(p):
    """After the last answer: what is made ahead is there again, and connections are closed."""
    last, end = None, time.monotonic() + 15 * patience()
    time.sleep(3)  # what is dropped is looked at once more by the next sweep
    while time.monotonic() < end:
        now = footprint(p)
        if last and {k: v for k, v in now.items() if k != "rss_kib"} == {k: v for k, v in last.items() if k != "rss_kib"} and \
                now["machines"] == 8:
            return now
        last = now
        time.sleep(0.1)
    return last


def no_growth(before, after, room_kib):
    new = set(after.pop("names")) - set(before.pop("names"))
    for key in before:
        room = room_kib if key == "rss_kib" else 0
        assert after[key] <= before[key] + room, f"{key} grew: {before} -> {after}; new files: {[(f, os.stat(f).st_nlink) for f in sorted(new)]}"


def test_create_and_kill_leave_nothing(new_pandad):
    p = new_pandad(log="warn")

    def life(i):
        id = p.create()
        if i % 10 == 0:
            assert p.sh(id, f"echo {i}")["stdout"] == f"{i}\n"
        p.do("DELETE", f"/v1/sandboxes/{id}", expect=204)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(life, range(100)))  # everything that is allocated once
        before = settled(p)
        list(pool.map(life, range(count(300, 10000))))
    after = settled(p)
    no_growth(before, after, 2048)


def test_mixed_work_leaves_nothing(new_pandad):
    """Everything at once, for a while (10 minutes with PANDA_SOAK=1)."""
    p = new_pandad(log="warn")

    def life(i):
        id = p.create(metadata={"i": str(i)})
        p.sh(id, f"echo {i} >/dev/shm/x; echo {i} >/root/x")
        if i % 3 == 0:
            kids = [c["id"] for c in p.do("POST", f"/v1/sandboxes/{id}/fork-tree", {"count": 2})["children"]]
            assert [p.sh(k, "cat /dev/shm/x")["stdout"] for k in kids] == [f"{i}\n"] * 2
            for k in kids:
                p.do("DELETE", f"/v1/sandboxes/{k}")
        if i % 4 == 1:
            p.do("POST", f"/v1/sandboxes/{id}/hibernate")
        if i % 4 == 2:
            p.do("POST", f"/v1/sandboxes/{id}/pause")
            p.do("POST", f"/v1/sandboxes/{id}/resume")
        if i % 5 == 3:
            s = p.do("POST", f"/v1/sandboxes/{id}/snapshots")["id"]
            other = p.do("POST", "/v1/sandboxes", {"from_snapshot": s})["id"]
            assert p.sh(other, "cat /root/x")["stdout"] == f"{i}\n"
            p.do("DELETE", f"/v1/sandboxes/{other}")
            p.do("DELETE", f"/v1/snapshots/{s}")
        p.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/f", b"x" * 100000)
        assert p.ask("GET", f"/v1/sandboxes/{id}/fs?path=/root/f").body == b"x" * 100000
        assert p.sh(id, "cat /root/x /dev/shm/x")["stdout"] == f"{i}\n{i}\n"
        p.do("DELETE", f"/v1/sandboxes/{id}")
        return i + 1

    def until(end):
        i = 0
        while time.monotonic() < end:
            i = life(i)

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(life, range(30)))
        before = settled(p)
        list(pool.map(until, [time.monotonic() + count(10, 600)] * 6))
    after = settled(p)
    no_growth(before, after, 4096)


def test_many_idle_sandboxes(new_pandad):
    """1,000 with PANDA_SOAK=1; each of them answers, and pandad stays small."""
    p = new_pandad(log="warn")
    n = count(60, 1000)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda _: p.create(ttl_seconds=3600), range(n)))
        wait_for("connections to agents to be given back", lambda: footprint(p)["fds"] < n + 100, 30)
        assert footprint(p)["rss_kib"] < 20 << 10
        assert len(p.do("GET", "/v1/sandboxes")) == n
        said = list(pool.map(lambda i: p.sh(i, "hostname")["stdout"].strip(), ids))
        assert len(set(said)) == n
        list(pool.map(lambda i: p.do("DELETE", f"/v1/sandboxes/{i}"), ids))


def test_builders_that_hang_up_while_their_files_are_written(new_pandad, monkeypatch):
    """Pieces wait for the only thread, and whoever sent them is gone by then."""
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=4096")  # what is freed is unmapped: a late look is the end
    p = new_pandad(threads=1)
    head = (f"POST /v1/templates/build HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {p.key}\r\n"
            "Content-Type: multipart/form-data; boundary=B\r\nContent-Length: 100000000\r\n\r\n"
            '--B\r\nContent-Disposition: form-data; name="dockerfile"\r\n\r\nFROM base\r\n'
            '--B\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n').encode()
    for _ in range(20):
        many = [socket.create_connection(("127.0.0.1", p.port)) for _ in range(64)]
        for s in many:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            try:
                s.sendall(head + b"y" * 100000)
            except OSError:
                pass  # refused: there are enough of them at once
        for s in reversed(many):  # the last wait longest
            s.close()
    assert p.ask("GET", "/v1/sandboxes").status == 200, p.tail()
    assert p.process.poll() is None
    wait_for("what they sent to go", lambda: not os.listdir(p.data / "builds"))


def test_a_guest_that_floods_its_console_fills_nothing(pandad):
    id = pandad.create()
    log = pandad.run / "machines" / id / "console.log"
    flood = """
import os
for file, text in ("printk_devkmsg", "on"), ("printk", "8"):
    open("/proc/sys/kernel/" + file, "w").write(text + "\\n")
kmsg = os.open("/dev/kmsg", os.O_WRONLY)
for i in range(6000):
    os.write(kmsg, b"<1>" + b"x" * 900)
"""
    pandad.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/flood.py", flood.encode())
    assert pandad.sh(id, "python3 /root/flood.py")["exit_code"] == 0
    wait_for("the console to be cut", lambda: 0 < log.stat().st_size <= 1 << 20)
    assert pandad.sh(id, "echo '<1>the last word' >/dev/kmsg")["exit_code"] == 0
    wait_for("it to be heard", lambda: b"the last word" in pandad.do("GET", f"/v1/sandboxes/{id}/logs?tail=9"))
    pandad.do("DELETE", f"/v1/sandboxes/{id}")
