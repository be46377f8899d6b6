"""Guests that write on the host's disk: past the end of their own, and until there is none left."""
import os
import shutil
import subprocess

import pytest

from conftest import wait_for
from server import RUN
from test_state_hibernate import end_machines

MIB = 1 << 20

WRITE_RAW = """
import os, sys
at, end = int(sys.argv[1]) << 20, int(sys.argv[2]) << 20
fd = os.open("/dev/" + os.path.basename(os.path.realpath("/dev/pblk1")), os.O_WRONLY)
while at < end:
    at += os.pwrite(fd, b"\\xa5" * (1 << 20), at)
    os.fsync(fd)
print("wrote it all")
"""


def taken(pandad, id):
    """Bytes of the host that the files of its machine take."""
    return sum(f.stat().st_blocks * 512 for f in (pandad.data / "disks" / id).iterdir())


def test_who_writes_past_its_disk_gb_is_stopped(new_pandad):
    """Root writes on the block device below its file system, which knows of no limit."""
    p = new_pandad()
    id, other = p.create(disk_gb=1, ttl_seconds=3600), p.create()
    p.do("PUT", f"/v1/sandboxes/{id}/fs?path=/dev/shm/raw.py", WRITE_RAW.encode())
    p.sh(id, "setsid python3 /dev/shm/raw.py 256 8000 </dev/null >/dev/shm/raw.log 2>&1 &")
    sandbox = wait_for("it to be stopped", lambda: (s := p.do("GET", f"/v1/sandboxes/{id}"))["status"] != "running" and s, seconds=120)
    wait_for("the disk to be still", lambda: (a := taken(p, id)) and os.sync() is None and taken(p, id) == a)
    assert taken(p, id) < (1024 + 256 + 64 + 1024 + 64) * MIB, "disk_gb, tables, room, and what is too much in any case"
    assert sandbox["status"] in ("paused", "failed"), sandbox
    assert "disk" in sandbox.get("status_detail", sandbox.get("end_reason")), sandbox
    a = p.ask("POST", f"/v1/sandboxes/{id}/resume")
    assert a.status in (409, 507), a
    events = [e["type"] for e in p.do("GET", f"/v1/sandboxes/{id}/events")["events"]]
    assert "sandbox.disk_overrun" in events, events
    assert p.sh(other, "echo here")["stdout"] == "here\n"
    p.do("DELETE", f"/v1/sandboxes/{id}")


class Small:
    """A data directory on a disk of its own."""

    def __init__(self, p, mib):
        self.p, self.keep, self.image = p, p.home / "keep", RUN / f"{p.group}.img"
        shutil.move(p.data, self.keep)
        p.data.mkdir()
        subprocess.run(["truncate", "-s", f"{mib}M", str(self.image)], check=True)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-m", "0", str(self.image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(self.image), str(p.data)], check=True)
        subprocess.run(["cp", "-a", "--sparse=always", f"{self.keep}/.", str(p.data)], check=True)

    def free(self):
        st = os.statvfs(self.p.data)
        return st.f_bavail * st.f_frsize

    def fill(self, name, leave):
        """Takes all but so many bytes, without writing them."""
        with open(self.p.data / name, "w") as f:
            at, step = 0, self.free()
            while step >= 4096:
                step = min(step, self.free() - leave) // 4096 * 4096
                if step <= 0:
                    break
                try:
                    os.posix_fallocate(f.fileno(), at, step)
                    at += step
                except OSError:
                    step //= 2

    def close(self):
        p = self.p
        for name in "filler", "rest":
            (p.data / name).unlink(missing_ok=True)
        try:
            if p.process.poll() is not None:
                p.start()
            p.clear()
            p.stop()
        finally:
            if p.process.poll() is None:
                p.kill9()
            end_machines(p)
        subprocess.run(["umount", str(p.data)], check=True)
        self.image.unlink()
        p.data.rmdir()
        shutil.move(self.keep, p.data)


@pytest.fixture
def small(new_pandad):
    s = Small(new_pandad(start=False, disk_reserve_mb=128), 1500)
    try:
        yield s
    finally:
        s.close()


def test_a_disk_that_is_full_stops_who_fills_it_and_no_one_else(small):
    p = small.p
    p.start()
    writer, other, third = p.create(ttl_seconds=3600), p.create(ttl_seconds=3600, metadata={"text": "x" * 4000}), p.create()
    p.sh(other, "true")
    small.fill("filler", 192 * MIB)
    p.sh(writer, "setsid sh -c 'i=0; while :; do head -c 8000000 /dev/urandom >/root/f$i && sync; i=$((i+1)); done' "
                 "</dev/null >/dev/null 2>&1 &")
    status = lambda id: p.do("GET", f"/v1/sandboxes/{id}")
    wait_for("the writer to be held", lambda: status(writer)["status"] == "paused")
    assert "nearly full" in status(writer)["status_detail"]
    assert small.free() > 64 * MIB
    assert 'sandboxes_held{reason="disk_reserve"} 1' in p.do("GET", "/metrics").decode()
    assert status(other)["status"] == "running" and p.sh(other, "echo here")["stdout"] == "here\n"
    assert p.ask("POST", f"/v1/sandboxes/{writer}/resume").status == 507
    a = p.ask("POST", "/v1/sandboxes", {"template": "base"})
    assert a.status == 503 and a.json["code"] == "host_full", a

    small.fill("rest", 0)  # another program on this disk does not stop
    assert small.free() < MIB
    for i in range(100):
        p.do("PATCH", f"/v1/sandboxes/{other}/lifecycle", {"ttl_seconds": 4000 + i})
    p.do("DELETE", f"/v1/sandboxes/{third}")
    p.kill9()
    p.start()
    assert status(other)["ttl_seconds"] == 4099 and p.ask("GET", f"/v1/sandboxes/{third}").status == 404
    assert status(writer)["status"] == "paused"
    p.do("PATCH", f"/v1/sandboxes/{other}/lifecycle", {"ttl_seconds": 5000})

    for name in "filler", "rest":
        (p.data / name).unlink()
    wait_for("the writer to go on", lambda: status(writer)["status"] == "running")
    assert p.sh(writer, "echo again")["stdout"] == "again\n"
    p.do("DELETE", f"/v1/sandboxes/{writer}")
    assert p.sh(p.create(), "echo new")["stdout"] == "new\n"
