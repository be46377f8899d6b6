"""Snapshots on disk: they come back anywhere, any number of times; damaged and foreign ones do not."""
import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import zlib

import pytest

from conftest import ENGINE, FEW, count

OTHER = "kvm" if ENGINE == "um" else "um"
UM = tuple(map(int, re.match(r"(\d+)\.(\d+)", os.uname().release).groups())) >= (6, 7)  # what that engine needs


@pytest.fixture
def saved(panda):
    """The directory of snapshot "one"; the machine it was taken of is gone. Made once; each test has its own files' names."""
    place, once = panda.store / "snapshots" / "one", panda.home / "saved"
    if not once.exists():
        take(panda.fresh())
        subprocess.run(["cp", "-al", place, once], check=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-al", once, place], check=True)
    return place


def take(box):
    box.keep()
    box.ask("word = 'kept'; import os; blob = os.urandom(4 << 20)")
    box.sh("echo on disk >/root/file")
    box.snapshot("one")
    box.stop()


def change(path, how):
    """Replaces a file by a changed copy. Never in place: it may have other names, the base image even."""
    copy = path.with_name(".changed")
    subprocess.run(["cp", "--sparse=always", path, copy], check=True)
    os.chmod(copy, 0o600)
    with open(copy, "r+b") as f:
        how(f)
    os.rename(copy, path)


def flip(offset, bit=0):
    def how(f):
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 1 << bit]))
    return how


def first_data(path):
    """Where the file has its first byte that is no hole."""
    with open(path, "rb") as f:
        return os.lseek(f.fileno(), 0, os.SEEK_DATA)


def forge(path, change_text):
    """A manifest that says something else and whose digest is right: what another host could have made."""
    def how(f):
        text = f.read().decode()
        head, rest = text[:text.index(",") + 1], text[text.index(",") + 1:]
        rest = change_text(rest)
        f.seek(0)
        f.truncate()
        f.write((re.sub("[0-9a-f]{64}", hashlib.sha256(rest.encode()).hexdigest(), head) + rest).encode())
    change(path, how)


def refused(panda, name, says, *opts):
    r = panda.refused("restore", *opts, name, code=1, says=says)
    assert panda.in_run_dir() == [], "nothing was started"
    return r


def test_a_snapshot_comes_back_in_another_process_after_its_machine_ended(panda, saved):
    m, = panda.restore("one")
    assert m.ask("word, len(blob)") == ["kept", 4 << 20]
    assert m.run("cat", "/root/file") == "on disk\n"


def test_a_snapshot_comes_back_after_the_death_of_whoever_started_it(panda, procs):
    """Machine and snapshot belong to no process: the shell that made them is killed, with all its children."""
    name = panda.new_id()
    panda.seen.add(name)
    script = '"$0" machine boot --id "$1" && "$0" machine exec "$1" -- sh -c "echo kept >/root/file" && ' \
             '"$0" machine snapshot "$1" one && echo made && exec cat'
    p = subprocess.Popen(["sh", "-c", script, panda.program, name], env=panda.env, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, start_new_session=True)
    procs.append(p)
    while p.stdout.readline() not in (b"made\n", b""):
        pass
    os.killpg(p.pid, 9)
    assert p.wait(180) == -9
    assert panda.ls()[name].startswith("running")
    assert panda.try_("exec", name, "--", "cat", "/root/file").out == b"kept\n"
    panda.do("stop", name)
    assert panda.restore("one")[0].run("cat", "/root/file") == "kept\n"


def test_ten_machines_come_back_from_one_snapshot_at_the_same_time(panda, saved):
    n = count(10, 10)
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        machines = [m for some in pool.map(lambda _: panda.restore("one"), range(n)) for m in some]
        blobs = set(pool.map(lambda m: m.ask("__import__('hashlib').sha256(blob).hexdigest()"), machines))
    assert len({m.id for m in machines}) == n and len(blobs) == 1
    for n, m in enumerate(machines):
        m.ask(f"word += ' {n}'")
        m.sh('echo "$1" >>/root/file', str(n))
    for n, m in enumerate(machines):
        assert m.ask("word") == f"kept {n}"
        assert m.run("cat", "/root/file") == f"on disk\n{n}\n"


def test_a_snapshot_is_not_changed_by_those_who_run_from_it(panda, saved):
    sums = lambda: {f.name: zlib.crc32(f.read_bytes()) for f in saved.iterdir() if f.stat().st_size < 1 << 29}
    before = sums()
    for m in panda.restore("one", 2 if FEW else 3):
        m.ask("blob = os.urandom(4 << 20)")
        m.sh("head -c 4M /dev/urandom >/root/new; sync")
    assert sums() == before
    panda.do("restore", "--verify", "one")


def test_snapshots_of_snapshots_and_a_fork_between(panda, saved):
    m, = panda.restore("one")
    turns = [str(n) for n in range(count(5, 5))]
    for turn in turns:
        m, = m.fork()
        m.ask(f"word += ' {turn}'")
        m.sh('echo "$1" >>/root/file', turn)
        m.snapshot(f"next-{turn}")
        m, = panda.restore(f"next-{turn}")
    assert m.ask("word") == " ".join(["kept", *turns])
    assert m.sh("cat /root/file").split() == ["on", "disk", *turns]


def test_a_deleted_snapshot_does_not_disturb_what_runs_from_it(panda, saved):
    m, = panda.restore("one")
    panda.do("delete", "one")
    panda.do("gc")
    panda.refused("restore", "one", code=1, says="one")
    assert m.ask("word, len(blob)") == ["kept", 4 << 20]
    assert m.fork()[0].ask("word") == "kept"


def test_a_name_is_given_only_once_and_the_first_stays(panda, saved):
    m, = panda.restore("one")
    panda.refused("snapshot", m.id, "one", code=1, says="one")
    assert m.ask("word") == "kept"
    assert panda.restore("one")[0].ask("word") == "kept"


@pytest.mark.parametrize("bad", ["UPPER", "../up", "a/b", "x" * 65])
def test_a_name_that_cannot_be_one_is_refused(panda, box, bad):
    panda.refused("snapshot", box.id, bad, code=1, says="snapshot")
    panda.refused("restore", bad, code=1, says="snapshot")


def test_a_truncated_file_is_refused(panda, saved):
    """Each file of a snapshot in turn, cut by a byte, to half, to nothing, and taken away."""
    for file in sorted(saved.iterdir()):
        size, kept = file.stat().st_size, panda.home / "kept"
        os.rename(file, kept)
        refused(panda, "one", "one")
        for cut in (size - 1,) if FEW else (size - 1, size // 2, 0):
            os.link(kept, file)
            change(file, lambda f: f.truncate(cut))
            refused(panda, "one", "one")
            os.unlink(file)
        os.rename(kept, file)
    assert panda.restore("one")[0].ask("word") == "kept"


def test_a_file_with_something_behind_its_end_is_refused(panda, saved):
    for file in sorted(saved.iterdir()):
        kept = panda.home / "kept"
        os.rename(file, kept)
        os.link(kept, file)
        change(file, lambda f: (f.seek(0, 2), f.write(b"x")))
        refused(panda, "one", "one")
        os.rename(kept, file)


def head_length(path):
    """Of a map file: what a restore reads. The table behind it names the data, which only --verify reads."""
    with open(path, "rb") as f:
        fixed = f.read(56)
    assert fixed[:8] == b"PANDALYR"
    return 56 + struct.unpack_from("<Q", fixed, 48)[0]


def test_a_flipped_bit_in_the_manifest_or_a_map_is_refused(panda, saved):
    """At 40 places of each file, 400 with PANDA_SOAK=1."""
    n = count(40, 400)
    for file in [saved / "manifest.json", *sorted(saved.glob("*.map"))]:
        size = head_length(file) if file.suffix == ".map" else file.stat().st_size
        kept = panda.home / "kept"
        os.rename(file, kept)
        for i in range(min(n, size)):
            os.link(kept, file)
            change(file, flip(i * size // min(n, size), i % 8))
            refused(panda, "one", "one")
            os.unlink(file)
        os.rename(kept, file)
    assert panda.restore("one")[0].ask("word") == "kept"


def test_a_flipped_bit_in_memory_disk_or_state_is_refused_when_every_byte_is_checked(panda, saved):
    """A plain restore does not read what nobody touches, so this is the work of --verify."""
    files = [f for f in saved.iterdir() if f.name != "manifest.json" and f.stat().st_blocks]  # none: a layer of nothing but holes
    assert len(files) >= 4
    files = sorted(files)
    for file in [*files[:-1:3], files[-1]] if FEW else files:  # some of each kind
        where = head_length(file) if file.suffix == ".map" else first_data(file) + 1000
        if where == file.stat().st_size:
            continue  # a map of nothing but zeros has no table
        kept = panda.home / "kept"
        os.rename(file, kept)
        os.link(kept, file)
        change(file, flip(where, 3))
        refused(panda, "one", "one", "--verify")
        os.rename(kept, file)
    panda.do("restore", "--verify", "one", timeout=120)


def test_a_layer_of_another_snapshot_is_refused(panda, saved):
    m, = panda.restore("one")
    m.ask("blob = os.urandom(4 << 20)")
    m.snapshot("two")
    m.stop()
    ours, theirs = (json.loads((d / "manifest.json").read_text())["memory"] for d in (saved, saved.parent / "two"))
    mine = next(l["digest"] for l in theirs if l not in ours)
    for end in "", ".map":
        os.rename(saved.parent / "two" / (mine + end), saved / (ours[0]["digest"] + end))
    refused(panda, "one", "one")


@pytest.mark.parametrize("change_text, says", [
    # A host with both kinds says that the kernel is another.
    (lambda t: t.replace(f'"engine":"{ENGINE}"', f'"engine":"{OTHER}"'), ["engine", OTHER] if ENGINE == "um" or not UM else ["kernel"]),
    (lambda t: re.sub('"kernel":"[^"]*"', '"kernel":"some-other-build"', t), ["kernel"]),
    (lambda t: t.replace('"cpu_flags":[', '"cpu_flags":["amx_from_the_future",').replace(",]", "]"), ["amx_from_the_future"]),
    (lambda t: t.replace('"format":1,', '"format":2,'), ["format"]),
    (lambda t: t.replace('"page_size":4096', '"page_size":65536'), ["one"]),
    (lambda t: re.sub('"memory_size":[0-9]*', '"memory_size":268435456', t), ["one"]),
    (lambda t: t.replace('"format":1,', '"format":1,"surprise":1,'), ["one"]),
    (lambda t: "[]", ["one"]),
    (lambda t: "", ["one"]),
], ids=["engine", "kernel", "cpu", "format", "page-size", "memory-size", "unknown-field", "no-object", "empty"])
def test_a_foreign_snapshot_is_refused_and_says_why(panda, saved, change_text, says):
    forge(saved / "manifest.json", change_text)
    refused(panda, "one", says)


def test_a_machine_that_dies_at_its_start_tells_how(panda, saved):
    """Its state is nonsense, with digests that are right: only the kernel itself can find out."""
    state = saved / "state"
    old = hashlib.sha256(state.read_bytes()).hexdigest()
    change(state, lambda f: (f.seek(64), f.write(bytes(200))))
    new = hashlib.sha256(state.read_bytes()).hexdigest()
    forge(saved / "manifest.json", lambda t: t.replace(old, new))
    r = panda.refused("restore", "one", code=1, says="did not start")
    assert re.search(r"its kernel (ended with status \d+|was ended by signal \d+, [A-Z])", r.err.decode()), r


def test_a_directory_that_is_no_snapshot_is_refused(panda, box):
    box.stop()
    panda.do("snapshots")
    place = panda.store / "snapshots" / "one"
    place.mkdir()
    refused(panda, "one", "one")
    for name in "manifest.json", "state":
        (place / name).write_bytes(os.urandom(5000))
    refused(panda, "one", "one")
    shutil.rmtree(place)


def test_a_link_out_of_the_store_is_not_followed(panda, saved, tmp_path):
    stolen = tmp_path / "state"
    shutil.copy(saved / "state", stolen)
    os.unlink(saved / "state")
    os.symlink(stolen, saved / "state")
    refused(panda, "one", "one")
