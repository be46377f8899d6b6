"""A host without power in the middle of things: whole or not there, on a disk of its own that is looked at by e2fsck."""
import contextlib
import random
import shutil
import subprocess
import threading
import time

import pytest

from conftest import count, wait_for
from server import RUN
from test_server_faults import consistent
from test_state_hibernate import end_machines, hibernate


class Disk:
    """The data directory of a pandad as a disk of its own, which can be as it is when the power goes.

    Nothing but what is synced reaches the image: the journal's own timer is off for the time of a test, and files are
    written back only after half a minute. So a copy of the image is what a disk holds after a cut."""

    def __init__(self, p):
        self.p, self.keep, self.image = p, p.home / "keep", RUN / f"{p.group}.img"
        shutil.move(p.data, self.keep)
        p.data.mkdir()
        subprocess.run(["truncate", "-s", "1500M", str(self.image)], check=True)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-m", "0", str(self.image)], check=True)
        self.mount()
        subprocess.run(["cp", "-a", "--sparse=always", f"{self.keep}/.", str(p.data)], check=True)
        subprocess.run(["sync", "-f", str(p.data)], check=True)

    def mount(self):
        subprocess.run(["mount", "-o", "loop,commit=300", str(self.image), str(self.p.data)], check=True)

    def unmount(self):
        subprocess.run(["umount", str(self.p.data)], check=True)

    def cut(self):
        """Everything ends here and now, and the host is started again."""
        copy = self.image.with_suffix(".cut")
        self.p.kill9()
        subprocess.run(["cp", "--sparse=always", str(self.image), str(copy)], check=True)
        end_machines(self.p)
        self.unmount()
        copy.rename(self.image)
        self.mount()  # replays the journal
        self.unmount()
        subprocess.run(["e2fsck", "-fn", str(self.image)], check=True, capture_output=True)
        self.mount()

    def close(self):
        p = self.p
        if p.process and p.process.poll() is None:
            p.kill9()
        end_machines(p)
        self.unmount()
        self.image.unlink()
        p.data.rmdir()
        shutil.move(self.keep, p.data)


@pytest.fixture
def disk(new_pandad):
    p = new_pandad(start=False, disk_reserve_mb=1)
    d = Disk(p)
    try:
        yield d
    finally:
        d.close()


class Before:
    """A sandbox that sleeps, one that runs, and a snapshot, all of it on the disk for certain."""

    def __init__(self, p):
        self.p = p
        p.start()
        self.asleep, self.awake = p.create(), p.create()
        for id in self.asleep, self.awake:
            p.sh(id, "echo memory >/dev/shm/m; echo disk >/root/d; head -c 9000000 /dev/urandom >/dev/shm/r; sha256sum /dev/shm/r >/root/sum")
        hibernate(p, self.asleep)
        self.snap = p.do("POST", f"/v1/sandboxes/{self.awake}/snapshots")["id"]
        p.stop()

    def whole(self, id):
        assert self.p.sh(id, "cat /dev/shm/m /root/d; sha256sum -c /root/sum")["stdout"] == "memory\ndisk\n/dev/shm/r: OK\n"

    def check(self, slept=True, kept=True):
        """slept: the one that slept must sleep still. kept: the snapshot must be there."""
        p = self.p
        wait_for("the books to agree", lambda: consistent(p) is None)
        status = {s["id"]: s["status"] for s in p.do("GET", "/v1/sandboxes")}
        assert status[self.asleep] == "hibernated" if slept else status[self.asleep] in ("hibernated", "failed")
        assert status[self.awake] in ("hibernated", "failed")
        for id in self.asleep, self.awake:
            if status[id] == "hibernated":
                self.whole(id)
        found = [s["id"] for s in p.do("GET", "/v1/snapshots")["snapshots"]]
        assert self.snap in found or not kept
        for snap in found:
            self.whole(p.create(from_snapshot=snap))


CUTS = {
    "hibernate.saved": lambda p, b: hibernate(p, b.awake),
    "forget.deleted": lambda p, b: p.do("DELETE", f"/v1/snapshots/{b.snap}"),
    "snapshot.saved": lambda p, b: p.do("POST", f"/v1/sandboxes/{b.awake}/snapshots"),
    "hibernate.sealed": lambda p, b: hibernate(p, b.awake),
    "hibernate.stopped": lambda p, b: hibernate(p, b.awake),
    "snapshot.sealed": lambda p, b: p.do("POST", f"/v1/sandboxes/{b.awake}/snapshots"),
    "forget.recorded": lambda p, b: p.do("DELETE", f"/v1/snapshots/{b.snap}"),
    "wake.running": lambda p, b: p.sh(b.asleep, "true"),
    "wake.kept": lambda p, b: p.sh(b.asleep, "true"),
}


@pytest.mark.parametrize("fault", list(CUTS)[:count(2, 9)])
def test_the_power_goes_at(disk, fault):
    p, before = disk.p, Before(disk.p)
    p.start(fault=fault)
    with contextlib.suppress(OSError):
        CUTS[fault](p, before)
    assert p.ended() == -9, f"{fault} was never reached: {p.tail()}"
    disk.cut()
    p.start()
    before.check(slept=fault != "wake.kept", kept=not fault.startswith("forget"))


def test_what_was_answered_is_there_without_power(disk):
    """Hibernate and snapshot: no record was synced yet, and nothing is missed."""
    p, before = disk.p, Before(disk.p)
    p.start()
    hibernate(p, before.awake)
    disk.cut()
    p.start()
    assert p.do("GET", f"/v1/sandboxes/{before.awake}")["status"] == "hibernated"
    before.check()


def test_the_power_goes_at_any_moment(disk):
    """Of a hibernation, a snapshot, a delete or a wake; 1 time, 25 with PANDA_SOAK=1."""
    p = disk.p
    r = random.Random(11)
    for _ in range(count(1, 25)):
        before = Before(p)
        p.start()
        what = r.choice(sorted(CUTS))
        t = threading.Thread(target=lambda: pytest.raises(Exception, lambda: (CUTS[what](p, before), 1 / 0)))
        t.start()
        time.sleep(r.uniform(0, 0.25))  # no wait for anything: this is the moment
        disk.cut()
        t.join()
        p.start()
        before.check(slept=not what.startswith("wake"), kept=not what.startswith("forget"))
        p.clear()
        p.stop()
