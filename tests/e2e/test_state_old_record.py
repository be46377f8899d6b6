"""A power cut takes what SQLite had not synced: the record may be older than what is on disk."""
import contextlib
import json
import os
import random
import re
import signal
import sqlite3
import subprocess

from conftest import wait_for


def forget(p, id, state):
    """The record as it was before the last writes."""
    with contextlib.closing(sqlite3.connect(p.data / "panda.db")) as db:
        db.execute("UPDATE sandboxes SET state = ? WHERE id = ?", (state, id))
        db.commit()


def test_what_was_hibernated_counts_whatever_the_record_says(new_pandad):
    p = new_pandad()
    id = p.create()
    p.sh(id, "echo memory >/dev/shm/m; echo disk >/root/d")
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    for state in ("running", "paused", "hibernating", "waking"):
        p.kill9()
        forget(p, id, state)
        p.start()
        assert p.do("GET", f"/v1/sandboxes/{id}")["status"] == "hibernated", state
    assert p.sh(id, "cat /dev/shm/m /root/d")["stdout"] == "memory\ndisk\n"
    wait_for("what it slept in to go", lambda: p.snapshots() == [])


def test_a_rewind_that_the_record_forgot(new_pandad):
    """With another word in the record: the machine it names is the one that counts."""
    p = new_pandad()
    id = p.create(checkpoints="auto")
    p.sh(id, "echo 1 >/root/n")
    p.sh(id, "echo 2 >/root/n")
    p.do("POST", f"/v1/sandboxes/{id}/rewind")
    p.kill9()
    forget(p, id, "rewinding")
    p.start()
    assert p.do("GET", f"/v1/sandboxes/{id}")["status"] == "running"
    assert p.sh(id, "cat /root/n")["stdout"] == "1\n"


# ---- volumes ----

# Whole files and directories are fsynced, one file is replaced by rename, others go (which is a discard). When all of a round is
# fsynced, its number goes to another device, unbuffered: whoever sees that write knows what must be on the volume.
ROUNDS = """
import os
seen = os.open("/dev/pvol1", os.O_RDWR | os.O_SYNC)
def put(name, k):
    fd = os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.write(fd, (b"%04d\\n" % k) * 2000)
    os.fsync(fd)
    os.close(fd)
def sync_dir():
    fd = os.open("/w", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
for k in range(1, 9):
    put("/w/new", k)
    os.rename("/w/new", "/w/state")
    put("/w/f%d" % k, k)
    if k > 2:
        os.unlink("/w/f%d" % (k - 2))
    sync_dir()
    os.pwrite(seen, b"%04d" % k + bytes(4092), 0)
"""
STRACE = re.compile(r"^(\w+)\((\d+)(?:, (.*))?\) += (\d+)$")


def bytes_of(text):
    return bytes.fromhex(text.replace("\\x", ""))


def recorded(log):
    """What the machine did to its volumes 0 and 1, in order: (volume, "write", offset, data), (volume, "punch", offset, length), (volume, "flush")."""
    for line in log.read_text().splitlines():
        m = STRACE.match(line)
        if not m or int(m[2]) not in (336, 337):
            continue
        call, volume, args = m[1], int(m[2]) - 336, m[3]
        if call == "fdatasync":
            yield volume, "flush"
        elif call == "fallocate":
            offset, length = args.rsplit(", ", 2)[1:]
            yield volume, "punch", int(offset), int(length)
        elif call in ("pwrite64", "pwritev"):
            data = b"".join(bytes_of(d) for d in re.findall(r'"((?:\\x[0-9a-f]{2})*)"', args))
            offset = int(args.rsplit(", ", 1)[1])
            assert len(data) == int(m[4]), line[:200]
            yield volume, "write", offset, data


def blocks(op):
    """Each 4 KiB block of it may reach the disk alone."""
    if op[1] == "write":
        return [(op[2] + i, op[3][i:i + 4096]) for i in range(0, len(op[3]), 4096)]
    return [(op[2] + i, bytes(4096)) for i in range(0, op[3], 4096)]


def check_volume(image, must, tmp):
    """After the journal is played back there is nothing to repair, and all that was fsynced is there."""
    subprocess.run(["e2fsck", "-y", "-E", "journal_only", str(image)], capture_output=True)
    r = subprocess.run(["e2fsck", "-fn", str(image)], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr
    names = ["state"] + [f"f{k}" for k in range(1, 9)]
    cmd = tmp / "cmd"
    cmd.write_text("".join(f"dump /{n} {tmp / n}\n" for n in names))
    for n in names:
        (tmp / n).unlink(missing_ok=True)
    subprocess.run(["debugfs", "-f", str(cmd), str(image)], capture_output=True, check=True)
    have = {n: (tmp / n).read_text().split() for n in names if (tmp / n).exists()}
    if must:
        assert len(set(have["state"])) == 1 and len(have["state"]) == 2000 and must <= int(have["state"][0]) <= must + 1, (must, have["state"][:3])
    for k in range(1, 9):
        whole = have.get(f"f{k}") == ["%04d" % k] * 2000
        if k in (must, must - 1) and not (k == must - 1 and f"f{must + 1}" in have):
            assert whole, (must, k, have.get(f"f{k}"))
        elif k < must - 1:
            assert f"f{k}" not in have, (must, k)  # its end was fsynced, too
        elif f"f{k}" in have and k < must + 1:
            assert whole, (must, k)


def test_a_volume_after_a_power_cut_at_any_moment(pandad, tmp_path):
    """Every write and flush of a machine is recorded; then the disk is cut off before each flush with none, all or some of the blocks that were
    written since the flush before it."""
    for name in "data", "seen":
        pandad.do("POST", "/v1/volumes", {"name": name, "size_mb": 16})
    id = pandad.create(volumes=[{"name": "data", "path": "/w"}, {"name": "seen", "path": "/s"}])
    assert pandad.sh(id, "umount /s; sync")["exit_code"] == 0
    book = json.loads((pandad.run / "machines" / id / "machine.json").read_text())
    inode = next(v["ino"] for v in book["volumes"] if v["slot"] == 0)
    file = next(f for f in (pandad.data / "volumes").iterdir() if f.stat().st_ino == inode)
    base = file.read_bytes()
    log = tmp_path / "log"
    s = subprocess.Popen(["strace", "-p", str(book["pid"]), "-e", "trace=pwrite64,pwritev,fdatasync,fallocate", "-e", "signal=none", "-xx",
                          "-s", "9999999", "-X", "raw", "-o", str(log)], stderr=subprocess.PIPE)
    try:
        assert b"attached" in s.stderr.readline()
        r = pandad.sh(id, f"python3 -c '{ROUNDS}'")
        assert r["exit_code"] == 0, r
    finally:
        s.send_signal(signal.SIGINT)
        s.communicate(timeout=180)
    ops = list(recorded(log))
    assert sum(op[1] == "flush" for op in ops) >= 24 and any(op[1] == "punch" for op in ops)

    rng = random.Random(5)
    durable, since, must, promised = bytearray(base), [], 0, 0
    image = tmp_path / "image"
    cuts = 0
    for op in ops:
        if op[0] == 1:
            if op[1] == "write":
                promised = must = int(op[3][:4])  # that round's fsyncs have returned: what they promised is flushed
            continue
        if op[1] != "flush":
            since += blocks(op)
            continue
        for pick in (lambda: False), (lambda: True), (lambda: rng.random() < 0.5), (lambda: rng.random() < 0.1):
            cut = bytearray(durable)
            for offset, data in since:
                if pick():
                    cut[offset:offset + len(data)] = data
            image.write_bytes(cut)
            check_volume(image, must, tmp_path)
            cuts += 1
        for offset, data in since:
            durable[offset:offset + len(data)] = data
        since = []
    assert promised == 8 and cuts >= 90


def test_everything_is_killed_and_what_was_fsynced_is_there(new_pandad):
    p = new_pandad()
    p.do("POST", "/v1/volumes", {"name": "data", "size_mb": 64})
    id = p.create(volumes=[{"name": "data", "path": "/w"}])
    p.sh(id, "for i in $(seq 20); do echo $i >/w/f$i; sync /w/f$i; done; (while :; do echo x >>/w/log; done) >/dev/null 2>&1 &")
    p.kill9()
    p.signal(id, signal.SIGKILL)
    p.start()
    assert p.do("GET", f"/v1/sandboxes/{id}")["status"] == "failed"
    other = p.create(volumes=[{"name": "data", "path": "/w"}])  # plays the journal back
    assert p.sh(other, "cat /w/f* | sort -n | tr '\\n' ' '")["stdout"].split() == [str(i) for i in range(1, 21)]
    p.do("DELETE", f"/v1/sandboxes/{other}/volumes/data")
    file, = (p.data / "volumes").iterdir()
    r = subprocess.run(["e2fsck", "-fn", str(file)], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout


def test_a_volume_is_as_large_as_its_record_says(new_pandad):
    """Growing is a longer file and a record; after a power cut one of them may be missing."""
    p = new_pandad()
    p.do("POST", "/v1/volumes", {"name": "data", "size_mb": 64})
    p.do("PATCH", "/v1/volumes/data", {"size_mb": 128})
    file, = (p.data / "volumes").iterdir()
    for size in 64, 256:
        p.kill9()
        os.truncate(file, size << 20)
        p.start()
        assert file.stat().st_size == 128 << 20
    id = p.create(volumes=[{"name": "data", "path": "/w"}])
    assert 100 < int(p.sh(id, "df -m --output=size /w | tail -1")["stdout"]) < 128
