"""Guests that write on the host's disk: past the end of their own, and until there is none left."""
import os

from conftest import wait_for

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
