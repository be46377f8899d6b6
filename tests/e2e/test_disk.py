"""The writable disk: forks in the middle of heavy writes give file systems without a flaw."""
import re
import subprocess
import zlib
from pathlib import Path

from conftest import FEW, GUEST, wait_for

# What e2fsck may say about a disk that was cut off in the middle: that it played the journal back, and
# what each mount would do then (files that were deleted while open). Free counts in the superblock are
# not journalled; ext4 itself computes them anew at every mount.
HARMLESS = re.compile(
    r"e2fsck |.*: recovering journal|Pass \d|.*FILE SYSTEM WAS MODIFIED|Clearing orphaned inode|$"
    r"|.*: \d+/\d+ files|Setting free (inodes|blocks) count|Free (blocks|inodes) count wrong \(|Fix\? yes")


def fsck(*args):
    # An extent tree that could be shorter is no flaw.
    r = subprocess.run(["e2fsck", "-E", "no_optimize_extents", *args], capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr


def assert_clean(panda, machine, tmp_path):
    """The disk as it is at this very moment must be whole once its journal is played back."""
    disk = tmp_path / machine.id
    panda.do("export", machine.id, "1", disk, timeout=120)
    code, text = fsck("-fy", disk)
    assert code in (0, 1), text
    strange = [line for line in text.splitlines() if not HARMLESS.match(line)]
    assert not strange, text
    code, text = fsck("-fn", disk)
    assert code == 0, text
    disk.unlink()


def test_forks_during_heavy_writes_are_e2fsck_clean(panda, box, tmp_path):
    """Forks while processes work the file system; parent and children all go on and are checked."""
    box.put("/root/churn.py", (GUEST / "churn.py").read_bytes())
    box.sh(f"for i in {'1 2' if FEW else '1 2 3 4'}; do setsid python3 /root/churn.py </dev/null >/root/churn.log 2>&1 & done")
    wait_for("work to begin", lambda: box.try_("sh", "-c", "ls /root/churn/1/*").code == 0)
    machines = [box]
    for _ in range(1 if FEW else 3):
        machines += machines[0].fork()
        assert_clean(panda, machines[-1], tmp_path)
        assert_clean(panda, box, tmp_path)
    for m in machines:
        before = m.sh("ls -lR /root/churn | cksum")
        wait_for(f"{m.id} to go on writing", lambda: m.sh("ls -lR /root/churn | cksum") != before)
        assert m.run("cat", "/root/churn.log") == ""
        assert "EXT4-fs error" not in (panda.run_dir / "machines" / m.id / "console.log").read_text()
    for m in machines:
        m.run("pkill", "-f", "churn.py")
        m.run("sync")
        m.sh("echo 3 >/proc/sys/vm/drop_caches; tar -cf - /root/churn 2>/dev/null | cksum")
        assert_clean(panda, m, tmp_path)


def test_what_was_synced_is_on_the_disk(panda, box, tmp_path):
    """A power cut right after a sync, not a shutdown: the file is there, byte for byte."""
    box.sh("seq 1 200000 >/root/numbers; sync")
    disk = tmp_path / "disk"
    panda.do("export", box.id, "1", disk)
    assert fsck("-fy", disk)[0] in (0, 1)
    got = subprocess.run(["debugfs", "-R", "cat /upper/root/numbers", disk], capture_output=True)
    assert got.stdout == "".join(f"{n}\n" for n in range(1, 200001)).encode(), got.stderr


def test_a_big_file_survives_fork_after_fork(box):
    """It is written before, overwritten in part after each fork, and read from the disk, not from the cache."""
    box.sh(f"head -c {'16M' if FEW else '64M'} /dev/urandom >/root/big")
    for turn in range(2 if FEW else 5):
        child, = box.fork()
        for m, seed in (box, "p"), (child, "c"):
            m.sh(f"yes {seed}{turn} | dd of=/root/big bs=4096 seek={turn * 1000} count=500 conv=notrunc iflag=fullblock 2>/dev/null; sync")
        sums = []
        for m in box, child:
            warm = m.run("sha256sum", "/root/big")
            m.sh("echo 3 >/proc/sys/vm/drop_caches")
            assert m.run("sha256sum", "/root/big") == warm
            sums.append(warm)
        assert sums[0] != sums[1]
        child.stop()


def test_the_image_below_is_never_written(panda, box):
    """Everything of the base image can be changed in the guest; the file on the host stays as it was."""
    image = panda.env["PANDA_IMAGE"]
    sum = lambda: zlib.crc32(Path(image).read_bytes())
    before = sum()
    box.sh("echo mine >/etc/debian_version; rm /etc/os-release; rm -rf /usr/share/common-licenses; sync")
    assert box.fork()[0].run("cat", "/etc/debian_version") == "mine\n"
    assert panda.boot().run("cat", "/etc/debian_version") != "mine\n"
    assert sum() == before
