"""Volumes on a file system that shares blocks (XFS with reflink): copies are whole, are one moment, and cost nothing.

What copies cost is asked of the file system itself; the same copies on ext4, with every byte written, are in test_server_volumes_live.py.
"""
import os
import subprocess

import pytest

from conftest import wait_for
from test_server_volumes import volume, with_volume
from test_server_volumes_live import attach, fsck, out

MIB = 1 << 20
DATA = 40  # MiB of it that nobody can compress or leave out


@pytest.fixture
def sharing(new_pandad):
    """A pandad whose volumes are on an XFS of their own."""
    with open("/proc/filesystems") as f:
        if "\txfs\n" not in f.read():
            pytest.skip("this kernel has no XFS")
    p = new_pandad(start=False)
    image, at = p.home / "xfs.img", p.data / "volumes"
    at.mkdir()
    subprocess.run(["truncate", "-s", "512M", image], check=True)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, at], check=True)
    try:
        p.start()
        yield p
        p.clear()
        p.stop()
    finally:
        if p.process and p.process.poll() is None:
            p.process.kill()
            p.process.wait()
        subprocess.run(["umount", "-l", at], check=True)


def taken(p):
    """MiB in use on the disk of the volumes."""
    os.sync()
    s = os.statvfs(p.data / "volumes")
    return (s.f_blocks - s.f_bfree) * s.f_frsize / MIB


def test_copies_share_what_they_hold(sharing):
    p = sharing
    volume(p, size_mb=128)
    id = with_volume(p)
    out(p, id, f"head -c {DATA * MIB} /dev/urandom >/workspace/f; sync; sha256sum </workspace/f >/root/sum")
    sum = out(p, id, "cat /root/sum")
    before = taken(p)
    assert before > DATA
    p.do("POST", "/v1/volumes/data/snapshots", {"name": "then"}, expect=201)  # while it is attached and could be written
    child = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]  # has a copy of its own
    p.do("POST", "/v1/volumes", {"name": "clone", "from": "then"}, expect=201)
    grown = taken(p) - before
    assert grown < DATA / 2, f"three copies of {DATA} MiB took {grown:.1f} MiB: nothing is shared"
    # From here on each goes its own way.
    out(p, id, "head -c 1000000 /dev/zero | dd of=/workspace/f conv=notrunc,fsync 2>/dev/null; echo new >/workspace/g; sync")
    assert out(p, child, "sha256sum </workspace/f; test ! -e /workspace/g") == sum
    attach(p, child, "then", "/then", read_only=True)
    attach(p, child, "clone", "/clone")
    assert out(p, child, "sha256sum </then/f; sha256sum </clone/f") == sum * 2
    out(p, child, "echo mine >/clone/f; sync")
    assert out(p, child, "sha256sum </then/f") == sum
    for i in child, id:
        p.do("DELETE", f"/v1/sandboxes/{i}", expect=204)
    fsck(p)
    p.do("DELETE", "/v1/volumes/data")
    p.do("DELETE", "/v1/volumes/then")
    wait_for("the space of what nobody has any more", lambda: taken(p) < before)
