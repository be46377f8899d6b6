"""Volumes of sandboxes that run: attached, detached, grown, copied; and what a rewind leaves of them."""
import os
import signal
import subprocess
import threading

import pytest

from conftest import FEW, wait_for
from test_server_volumes import volume, with_volume

BYTES = 12_000_000 if FEW else 20_000_000  # of a file that must not change


def attach(p, id, name="data", path="/workspace", **more):
    return p.do("POST", f"/v1/sandboxes/{id}/volumes", dict(name=name, path=path, **more), expect=201)


def detach(p, id, name="data", force=False):
    return p.ask("DELETE", f"/v1/sandboxes/{id}/volumes/{name}" + ("?force=1" if force else ""))


def out(p, id, cmd):
    a = p.sh(id, cmd)
    assert a["exit_code"] == 0, (cmd, a)
    return a["stdout"]


def fsck(p, clean=True):
    """Every volume's file is a file system without errors; one that is attached may have a journal to be played back."""
    for f in p.volumes():
        r = subprocess.run(["e2fsck", "-fn", str(p.data / "volumes" / f)], capture_output=True, text=True)
        assert r.returncode == 0 or not clean and "recovering journal" in r.stdout.lower(), (f, r.stdout, r.stderr)


def used(p, name="data"):
    return p.do("GET", f"/v1/volumes/{name}")["used_bytes"]


# ---- attach and detach ----

def test_attached_and_detached_while_it_runs(pandad):
    volume(pandad)
    one, two = pandad.create(), pandad.create()
    pandad.sh(one, "mkdir -p /workspace; echo hidden >/workspace/under")
    assert attach(pandad, one) == [{"name": "data", "path": "/workspace", "read_only": False, "copy": False}]
    assert pandad.do("GET", f"/v1/sandboxes/{one}")["volumes"][0]["path"] == "/workspace"
    assert pandad.do("GET", "/v1/volumes/data")["mounted_by"] == [one]
    out(pandad, one, "echo kept >/workspace/f; test ! -e /workspace/under")
    a = pandad.ask("POST", f"/v1/sandboxes/{two}/volumes", {"name": "data"})
    assert (a.status, a.json["code"]) == (409, "volume_busy") and one in a.json["error"], a
    assert detach(pandad, one).status == 204
    assert out(pandad, one, "cat /workspace/under; ls /workspace") == "hidden\nunder\n"
    assert pandad.do("GET", f"/v1/sandboxes/{one}/volumes") == []
    fsck(pandad)
    attach(pandad, two, path="/mnt/x")
    assert out(pandad, two, "cat /mnt/x/f") == "kept\n"
    assert detach(pandad, one).status == 404
    types = [e["type"] for e in pandad.do("GET", f"/v1/sandboxes/{one}/events")["events"]]
    assert "sandbox.volume_attached" in types and "sandbox.volume_detached" in types


def test_what_is_in_use_is_not_detached_unless_forced(pandad):
    volume(pandad)
    id = pandad.create()
    attach(pandad, id)
    out(pandad, id, "echo before >/workspace/f; (cd /workspace; exec 9>>f; exec sleep 1000) >/dev/null 2>&1 &")
    a = detach(pandad, id)
    assert (a.status, a.json["code"]) == (409, "volume_busy") and "force" in a.json["error"], a
    assert out(pandad, id, "cat /workspace/f") == "before\n"
    assert detach(pandad, id, force=True).status == 204
    assert out(pandad, id, "ls /workspace; cat /proc/mounts | grep -c pvol || true") == "0\n"
    other = pandad.create(volumes=[{"name": "data", "path": "/d"}])
    assert out(pandad, other, "cat /d/f") == "before\n"
    pandad.do("DELETE", f"/v1/sandboxes/{other}")
    # Its device is open still: the next volume gets another one, and the process cannot harm it.
    volume(pandad, "second")
    attach(pandad, id, "second", "/second")
    assert out(pandad, id, "grep -o '/dev/pvol[0-9] /second' /proc/mounts") == "/dev/pvol1 /second\n"
    assert detach(pandad, id, "second").status == 204
    fsck(pandad)


def test_the_device_itself_in_use_is_noticed(pandad):
    volume(pandad)
    id = pandad.create()
    attach(pandad, id)
    out(pandad, id, "exec 8</dev/pvol0; sleep 1000 >/dev/null 2>&1 &")
    a = detach(pandad, id)
    assert (a.status, a.json["code"]) == (409, "volume_busy"), a
    out(pandad, id, "echo still >/workspace/f")
    out(pandad, id, "pkill sleep; while pgrep sleep >/dev/null; do sleep 0.02; done")
    assert detach(pandad, id).status == 204


def test_bad_changes_are_refused_in_words(pandad):
    volume(pandad)
    id = pandad.create(volumes=[{"name": "data", "path": "/d"}])
    for body, status in ({}, 400), ({"name": "none"}, 404), ({"name": "data", "path": "/e"}, 400), ({"name": "data", "path": "e"}, 400), \
            ({"name": "data", "path": "/proc"}, 400), ({"name": 5}, 400):
        a = pandad.ask("POST", f"/v1/sandboxes/{id}/volumes", body)
        assert a.status == status and a.json["error"], (body, a)
    volume(pandad, "second", 16)
    a = pandad.ask("POST", f"/v1/sandboxes/{id}/volumes", {"name": "second", "path": "/proc"})
    assert a.status >= 400 and "path" in a.json["error"], a
    assert [v["name"] for v in pandad.do("GET", f"/v1/sandboxes/{id}/volumes")] == ["data"]
    pandad.do("POST", f"/v1/sandboxes/{id}/pause")
    a = pandad.ask("POST", f"/v1/sandboxes/{id}/volumes", {"name": "second"})
    assert (a.status, a.json["code"]) == (409, "sandbox_paused"), a
    pandad.do("POST", f"/v1/sandboxes/{id}/resume")
    for n in range(3):
        volume(pandad, f"v{n}", 16)
        attach(pandad, id, f"v{n}", f"/v{n}")
    a = pandad.ask("POST", f"/v1/sandboxes/{id}/volumes", {"name": "second"})
    assert a.status == 400 and "4 volumes" in a.json["error"], a


def test_a_sleeping_sandbox_wakes_up_for_it_and_sleeps_with_it(pandad):
    volume(pandad)
    volume(pandad, "second")
    id = pandad.create()
    attach(pandad, id, "second", "/second")
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    attach(pandad, id)
    assert detach(pandad, id, "second").status == 204  # what is left is not in the first place of the list
    out(pandad, id, "echo 1 >/workspace/f; exec 9>>/workspace/f; sleep 1000 >/dev/null 2>&1 &")
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    assert out(pandad, id, "echo 2 >>/workspace/f; cat /workspace/f") == "1\n2\n"
    child = pandad.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    assert pandad.do("GET", f"/v1/sandboxes/{child}/volumes")[0]["copy"]
    out(pandad, child, "echo 3 >>/workspace/f")
    assert out(pandad, id, "cat /workspace/f") == "1\n2\n"
    pandad.do("POST", f"/v1/sandboxes/{child}/hibernate")
    assert out(pandad, child, "cat /workspace/f") == "1\n2\n3\n"
    # A copy does not keep others from the volume, and goes when it is detached.
    assert pandad.do("GET", "/v1/volumes/data")["mounted_by"] == [id]
    pandad.sh(child, "pkill sleep; while pgrep sleep >/dev/null; do sleep 0.02; done")
    assert detach(pandad, child).status == 204
    wait_for("its copy to go", lambda: len(pandad.volumes()) == 2)
    attach(pandad, child, "second", "/second")


# ---- grow ----

def size_in(p, id, path="/workspace"):
    return int(out(p, id, f"df -m --output=size {path} | tail -1"))


def test_a_volume_grows_while_it_is_written_and_while_nobody_has_it(pandad):
    volume(pandad)
    id = with_volume(pandad)
    out(pandad, id, f"head -c {BYTES} /dev/urandom >/workspace/f; cd /workspace; sha256sum f >sum")
    assert size_in(pandad, id) < 64
    v = pandad.do("PATCH", "/v1/volumes/data", {"size_mb": 512}, expect=200)
    assert v["size_mb"] == 512 and v["used_bytes"] < 64 << 20
    assert size_in(pandad, id) > 440
    out(pandad, id, f"head -c {5 * BYTES} /dev/zero | tr '\\0' x >/workspace/g; cd /workspace; sha256sum -c sum; rm g")
    for body, word in ({"size_mb": 100}, "smaller"), ({"size_mb": 70000}, "size_mb"), ({}, "size_mb"):
        a = pandad.ask("PATCH", "/v1/volumes/data", body)
        assert a.status == 400 and word in a.json["error"], a
    assert detach(pandad, id).status == 204
    assert pandad.do("PATCH", "/v1/volumes/data", {"size_gb": 20})["size_mb"] == 20480
    fsck(pandad)
    attach(pandad, id)
    assert size_in(pandad, id) > 19000
    out(pandad, id, "cd /workspace; sha256sum -c sum")
    assert used(pandad) < 100 << 20  # thin
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    pandad.do("PATCH", "/v1/volumes/data", {"size_gb": 21})
    assert size_in(pandad, id) > 20480
    assert detach(pandad, id).status == 204
    fsck(pandad)


# ---- space ----

def test_what_is_deleted_is_given_back(pandad):
    volume(pandad, size_mb=256)
    id = with_volume(pandad)
    empty = used(pandad)
    out(pandad, id, "head -c 100000000 /dev/urandom >/workspace/f; sync")
    assert used(pandad) > empty + 90_000_000
    out(pandad, id, "rm /workspace/f; sync")
    wait_for("the space", lambda: used(pandad) < empty + 10_000_000 or pandad.sh(id, "sync") is None)
    out(pandad, id, "mount -o remount,nodiscard /workspace; head -c 50000000 /dev/urandom >/workspace/f; sync; rm /workspace/f; sync")
    assert used(pandad) > empty + 40_000_000
    out(pandad, id, "fstrim /workspace")
    assert used(pandad) < empty + 10_000_000


# ---- snapshots and clones ----

WRITER = """
import os, time
fd = os.open("/workspace/log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
for i in range(10**9):
    os.write(fd, b"%08d\\n" % i)
    if i % 50 == 0:
        os.fsync(fd)
        time.sleep(0.05)  # a machine stands still while its host syncs: leave it some time for the rest
"""


def test_a_snapshot_is_one_moment_of_a_volume_that_is_written(pandad):
    volume(pandad, size_mb=512)
    id = with_volume(pandad)
    out(pandad, id, f"head -c {BYTES} /dev/urandom >/workspace/f; cd /workspace; sha256sum f >sum")
    out(pandad, id, f"python3 -c '{WRITER}' >/dev/null 2>&1 & until test -s /workspace/log; do sleep 0.02; done")
    s = pandad.do("POST", "/v1/volumes/data/snapshots", {"name": "monday"}, expect=201)
    assert (s["kind"], s["source"], s["size_mb"]) == ("snapshot", "data", 512)
    assert s["used_bytes"] < 80 << 20
    out(pandad, id, "rm /workspace/f")
    assert [x["name"] for x in pandad.do("GET", "/v1/volumes/data/snapshots")] == ["monday"]
    assert [x["name"] for x in pandad.do("GET", "/v1/volumes")] == ["data"]
    # Many read it, nobody writes it.
    readers = [pandad.create(volumes=[{"name": "monday", "path": "/m", "read_only": True}]) for _ in range(2)]
    for r in readers:
        out(pandad, r, "cd /m; sha256sum -c sum")
        lines = out(pandad, r, "cat /m/log").split()
        assert lines == ["%08d" % i for i in range(len(lines))]
    a = pandad.ask("POST", "/v1/sandboxes", {"template": "base", "volumes": [{"name": "monday", "path": "/m"}]})
    assert (a.status, a.json["code"]) == (409, "conflict") and "snapshot" in a.json["error"], a
    assert pandad.ask("PATCH", "/v1/volumes/monday", {"size_gb": 2}).status == 409
    assert pandad.ask("DELETE", "/v1/volumes/monday").status == 409
    # And volumes are made from it.
    v = pandad.do("POST", "/v1/volumes", {"name": "tuesday", "from": "monday", "size_gb": 1}, expect=201)
    assert (v["kind"], v["source"], v["size_mb"]) == ("volume", "monday", 1024)
    attach(pandad, readers[0], "tuesday", "/t")
    out(pandad, readers[0], "cd /t; sha256sum -c sum; echo more >more")
    assert size_in(pandad, readers[0], "/t") > 900
    out(pandad, id, "test ! -e /workspace/more; pkill python3; while pgrep python3 >/dev/null; do sleep 0.02; done")
    for who, name in (id, "data"), (readers[0], "tuesday"):
        assert detach(pandad, who, name).status == 204
    fsck(pandad)


def test_forks_of_a_sandbox_that_writes(pandad):
    """Memory and volumes of a child are of one moment, also of those that are copied while the parent goes on."""
    volume(pandad, size_mb=256)
    volume(pandad, "small", 16)
    id = pandad.create(volumes=[{"name": "data", "path": "/workspace"}, {"name": "small", "path": "/small"}])
    out(pandad, id, f"head -c {BYTES} /dev/urandom >/workspace/f; cd /workspace; sha256sum f >sum")
    out(pandad, id, f"python3 -c '{WRITER}' >/dev/null 2>&1 & until test -s /workspace/log; do sleep 0.02; done")
    out(pandad, id, f"python3 -c '{WRITER.replace('/workspace', '/small')}' >/dev/null 2>&1 & until test -s /small/log; do sleep 0.02; done")
    children = pandad.do("POST", f"/v1/sandboxes/{id}/fork-tree", {"count": 1 if FEW else 3})["children"]
    for c in [x["id"] for x in children] + [id]:
        out(pandad, c, "cd /workspace; sha256sum -c sum; wc -l <log >/root/lines")
        # The child's writer goes on, too.
        wait_for("more lines", lambda: out(pandad, c, "test $(wc -l </workspace/log) -gt $(cat /root/lines) && echo yes || true"))
        out(pandad, c, "pkill python3; while pgrep python3 >/dev/null; do sleep 0.02; done")
        for log in "/workspace/log", "/small/log":
            lines = out(pandad, c, f"cat {log}").split()
            assert lines == ["%08d" % i for i in range(len(lines))]
        out(pandad, c, "dmesg | grep -i 'EXT4-fs error' && exit 1; cd /; umount /workspace /small")
    fsck(pandad)


def test_copies_of_what_nobody_writes(pandad):
    volume(pandad)
    id = with_volume(pandad)
    out(pandad, id, "echo 1 >/workspace/f")
    assert detach(pandad, id).status == 204
    first = pandad.do("POST", "/v1/volumes/data/snapshots", expect=201)["name"]  # without a name
    assert first.startswith("data-2")
    assert pandad.do("POST", "/v1/volumes", {"name": "clone", "from": "data"}, expect=201)["size_mb"] == 64
    attach(pandad, id, "clone", "/c")
    assert out(pandad, id, "cat /c/f") == "1\n"
    for path, body, status in ("/v1/volumes/data/snapshots", {"name": "clone"}, 409), ("/v1/volumes/data/snapshots", {"name": "a/b"}, 400), \
            ("/v1/volumes/none/snapshots", {"name": "x"}, 404), ("/v1/volumes", {"name": "x", "from": "none"}, 404), \
            ("/v1/volumes", {"name": "x", "from": "data", "size_mb": 32}, 400):
        a = pandad.ask("POST", path, body)
        assert a.status == status and a.json["error"], (path, body, a)
    pandad.do("DELETE", "/v1/volumes/data")
    assert out(pandad, id, "cat /c/f") == "1\n"
    assert [x["name"] for x in pandad.do("GET", "/v1/volumes?snapshots=1")] == ["clone", first]


def test_a_snapshot_needs_a_clean_volume(pandad):
    """After a kill -9 of the machine there is a journal to be played back, which a reader of the snapshot could not do."""
    volume(pandad)
    id = with_volume(pandad)
    out(pandad, id, "echo fsynced >/workspace/f; sync; echo more >/workspace/g")
    pandad.signal(id, signal.SIGKILL)
    wait_for("its end", lambda: pandad.do("GET", f"/v1/sandboxes/{id}")["status"] == "failed")
    a = pandad.ask("POST", "/v1/volumes/data/snapshots", {"name": "s"})
    assert (a.status, a.json["code"]) == (409, "volume_unclean") and "attach" in a.json["error"], a
    assert pandad.ask("GET", "/v1/volumes/s").status == 404
    pandad.do("POST", "/v1/volumes", {"name": "clone", "from": "data"}, expect=201)
    assert detach(pandad, id).status == 204  # of a failed one: off its record
    other = pandad.create()
    attach(pandad, other, "clone", "/c")
    attach(pandad, other)
    assert out(pandad, other, "cat /c/f /workspace/f") == "fsynced\nfsynced\n"
    pandad.do("POST", "/v1/volumes/data/snapshots", {"name": "s"}, expect=201)


def test_kill_ends_a_copy(pandad):
    volume(pandad, size_mb=512)
    id = with_volume(pandad)
    out(pandad, id, "head -c 200000000 /dev/urandom >/workspace/f; sync")
    answers = []
    t = threading.Thread(target=lambda: answers.append(pandad.ask("POST", "/v1/volumes/data/snapshots", {"name": "s"})))
    t.start()
    wait_for("the copy", lambda: len(pandad.volumes()) == 2)
    pandad.do("DELETE", f"/v1/sandboxes/{id}")
    t.join(60)
    assert answers[0].status in (201, 409), answers
    if answers[0].status == 409:
        assert pandad.ask("GET", "/v1/volumes/s").status == 404 and len(pandad.volumes()) == 1


def test_a_copy_that_does_not_fit(new_pandad, tmp_path):
    """Clear words, nothing left behind, and the volume goes on."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=280m", "none", str(small)], check=True)
    try:
        p = new_pandad(start=False)
        (p.data / "volumes").symlink_to(small)
        p.start()
        volume(p, size_mb=256)
        id = with_volume(p)
        out(p, id, "head -c 160000000 /dev/urandom >/workspace/f; sync; sha256sum /workspace/f >/root/sum")
        a = p.ask("POST", "/v1/volumes/data/snapshots", {"name": "s"})
        assert (a.status, a.json["code"]) == (507, "disk_full"), a
        assert p.ask("GET", "/v1/volumes/s").status == 404 and len(p.volumes()) == 1
        out(p, id, "echo more >/workspace/g; sync; sha256sum -c /root/sum")
        # The same while it is being written, and it is the machine that finds no room.
        out(p, id, "(while :; do dd if=/dev/urandom of=/workspace/f bs=1M count=150 conv=notrunc,fsync; done) >/dev/null 2>&1 &")
        a = p.ask("POST", "/v1/volumes/data/snapshots", {"name": "s"})
        assert (a.status, a.json["code"]) == (507, "disk_full"), a
        assert out(p, id, "cat /workspace/g") == "more\n"
        p.do("DELETE", f"/v1/sandboxes/{id}")
        fsck(p)
        p.clear()
    finally:
        p.stop()
        (p.data / "volumes").unlink()
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_the_same_from_python(pandad):
    from pandastack import ConflictError, Sandbox, Volume
    client = pandad.client()
    vol = Volume.get_or_create(name="data", size_gb=0.0625, client=client)
    assert Volume.get_or_create("data", client=client).size_mb == 64
    with Sandbox.create("base", client=client) as sb, Sandbox.create("base", client=client) as other:
        sb.attach_volume(vol, "/w")
        sb.exec("echo 1 >/w/f", check=True)
        try:
            other.attach_volume(vol)
            raise AssertionError("two writers")
        except ConflictError as e:
            assert e.code == "volume_busy"
        assert vol.resize(size_gb=1).size_mb == 1024
        snap = vol.snapshot("monday")
        clone = snap.clone("tuesday")
        other.attach_volume(snap.mount("/m"))
        other.attach_volume(clone.mount("/t", read_only=True))
        assert other.exec("cat /m/f /t/f").stdout == "1\n1\n" and len(other.volumes) == 2
        assert [s.name for s in vol.snapshots()] == ["monday"] and vol.refresh().mounted_by == [sb.id]
        sb.detach_volume(vol)
        other.detach_volume("monday")
        other.detach_volume(clone)
        for v in vol, snap, clone:
            v.delete()
    assert client.volumes.list(snapshots=True) == []


# ---- quota ----

def test_quota_of_volumes(pandad):
    token = pandad.do("POST", "/v1/me/tokens", {"tenant": "vq", "quota": {"volumes": 2, "volumes_mb": 100}})["token"]

    def ask(*args):
        return pandad.ask(*args, token=token)
    try:
        assert ask("POST", "/v1/volumes", {"name": "a", "size_mb": 40}).status == 201
        for method, path, body in ("POST", "/v1/volumes", {"name": "b", "size_mb": 61}), ("PATCH", "/v1/volumes/a", {"size_mb": 101}), \
                ("POST", "/v1/volumes", {"name": "b", "from": "a", "size_mb": 80}):
            a = ask(method, path, body)
            assert (a.status, a.json["code"]) == (429, "quota_exceeded") and "100 MiB" in a.json["error"], a
        assert ask("POST", "/v1/volumes/a/snapshots", {"name": "s"}).status == 201
        a = ask("POST", "/v1/volumes", {"name": "b", "size_mb": 16})
        assert (a.status, a.json["code"]) == (429, "quota_exceeded") and "2 volumes" in a.json["error"], a
        me = ask("GET", "/v1/me").json
        assert me["usage"]["volumes"] == 2 and me["usage"]["volumes_mb"] == 80 and me["quota"]["volumes"] == 2
    finally:
        for v in ask("GET", "/v1/volumes?snapshots=1").json:
            ask("DELETE", f"/v1/volumes/{v['name']}")


# ---- rewind ----

def test_a_rewind_leaves_volumes_as_they_are(pandad):
    volume(pandad)
    id = pandad.create(checkpoints="auto", volumes=[{"name": "data", "path": "/workspace"}])
    pandad.sh(id, "echo 1 >/root/n; echo 1 >/workspace/n; exec 9>>/workspace/open; sleep 1000 >/dev/null 2>&1 &")
    pandad.sh(id, "echo 2 >/root/n; echo 2 >/workspace/n; dd if=/dev/urandom of=/workspace/big bs=1M count=20 2>/dev/null")
    pandad.do("POST", f"/v1/sandboxes/{id}/rewind", {"steps": 1})
    assert out(pandad, id, "cat /root/n /workspace/n; stat -c %s /workspace/big") == "1\n2\n20971520\n"
    # What was open then gives errors; what is opened now works.
    assert pandad.sh(id, "echo x >/proc/$(pgrep sleep)/fd/9; sync -f /proc/$(pgrep sleep)/fd/9")["exit_code"] != 0
    out(pandad, id, "echo 3 >/workspace/n; sync")
    for _ in range(3):
        pandad.do("POST", f"/v1/sandboxes/{id}/rewind")
        assert out(pandad, id, "cat /workspace/n") == "3\n"
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    assert out(pandad, id, "cat /workspace/n") == "3\n"
    assert detach(pandad, id).status == 204
    fsck(pandad)


def test_a_rewind_keeps_what_is_attached_now(pandad):
    volume(pandad)
    volume(pandad, "second")
    id = pandad.create(volumes=[{"name": "data", "path": "/workspace"}])
    pandad.sh(id, "echo 1 >/workspace/f; sync")
    pandad.do("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": "then"})
    assert detach(pandad, id).status == 204
    attach(pandad, id, "second", "/second")
    pandad.sh(id, "echo 2 >/second/f")
    pandad.do("POST", f"/v1/sandboxes/{id}/rewind", {"to": "then"})
    assert out(pandad, id, "ls /workspace; cat /second/f") == "2\n"
    other = with_volume(pandad)
    assert out(pandad, other, "cat /workspace/f") == "1\n"
    assert detach(pandad, id, "second").status == 204
    assert detach(pandad, other).status == 204
    pandad.do("POST", f"/v1/sandboxes/{id}/rewind", {"to": "then"})  # with none at all
    assert out(pandad, id, "ls /workspace; grep -c pvol /proc/mounts || true") == "0\n"
    fsck(pandad)


def test_a_failed_sandbox_is_put_back_with_its_volume_unless_others_have_it(pandad):
    volume(pandad)
    id = pandad.create(volumes=[{"name": "data", "path": "/workspace"}])
    pandad.sh(id, "echo 1 >/workspace/f; sync")
    pandad.do("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": "then"})
    pandad.signal(id, signal.SIGKILL)
    wait_for("its end", lambda: pandad.do("GET", f"/v1/sandboxes/{id}")["status"] == "failed")
    other = with_volume(pandad)
    a = pandad.ask("POST", f"/v1/sandboxes/{id}/rewind", {"to": "then"})
    assert (a.status, a.json["code"]) == (409, "volume_busy") and other in a.json["error"], a
    pandad.sh(other, "echo 2 >/workspace/f")
    assert detach(pandad, other).status == 204
    pandad.do("POST", f"/v1/sandboxes/{id}/rewind", {"to": "then"})
    assert out(pandad, id, "cat /workspace/f") == "2\n"


def test_a_snapshot_of_a_sandbox_starts_without_its_volumes(pandad):
    volume(pandad)
    id = with_volume(pandad)
    pandad.sh(id, "echo 1 >/workspace/f; sync")
    s = pandad.do("POST", f"/v1/sandboxes/{id}/snapshots")
    two = pandad.do("POST", "/v1/sandboxes", {"from_snapshot": s["id"]})["id"]
    assert out(pandad, two, "ls /workspace; grep -c pvol /proc/mounts || true") == "0\n"
    pandad.do("DELETE", f"/v1/sandboxes/{id}")
    attach(pandad, two)
    assert out(pandad, two, "cat /workspace/f") == "1\n"


# ---- a hostile kernel ----

def test_a_volume_that_its_machine_made_longer(pandad):
    """It has the file, so it can; and that is the end of it. What is too much is nobody's."""
    volume(pandad)
    id = with_volume(pandad)
    out(pandad, id, "echo kept >/workspace/f; sync")
    file, = pandad.volumes()
    os.truncate(pandad.data / "volumes" / file, 1 << 30)
    wait_for("its end", lambda: pandad.do("GET", "/v1/volumes/data")["mounted_by"] == [])
    other = pandad.create()
    attach(pandad, other)
    assert out(pandad, other, "cat /workspace/f") == "kept\n" and size_in(pandad, other) < 64
    assert (pandad.data / "volumes" / file).stat().st_size == 64 << 20


# ---- kill -9 of pandad at each step ----

def agrees(p, id):
    """What the record says is what the guest has mounted, and every file belongs to a volume."""
    volumes = p.do("GET", f"/v1/sandboxes/{id}/volumes")
    mounts = out(p, id, "grep ^/dev/pvol /proc/mounts || true").splitlines()
    assert sorted(m.split()[1] for m in mounts) == sorted(v["path"] for v in volumes)
    for v in volumes:
        out(p, id, f"touch {v['path']}/touched && sync")
    assert len(p.volumes()) == len(p.do("GET", "/v1/volumes?snapshots=1"))
    return [v["name"] for v in volumes]


CHANGES = {
    "attach": lambda p, id: p.ask("POST", f"/v1/sandboxes/{id}/volumes", {"name": "more", "path": "/more"}),
    "detach": lambda p, id: detach(p, id),
    "resize": lambda p, id: p.ask("PATCH", "/v1/volumes/data", {"size_mb": 128}),
    "copy": lambda p, id: p.ask("POST", "/v1/volumes/data/snapshots", {"name": "s"}),
    "rewind": lambda p, id: p.ask("POST", f"/v1/sandboxes/{id}/rewind", {"to": "then"}),
}


@pytest.mark.parametrize("fault", ["attach.recorded", "attach.done", "detach.recorded", "detach.done", "resize.grown", "resize.recorded",
                                   "resize.done", "copy.recorded", "copy.made", "rewind.started", "rewind.recorded", "rewind.stopped",
                                   "rewind.cleaned"])
def test_pandad_killed_at(new_pandad, fault):
    change = fault.split(".")[0]
    p = new_pandad(start=False).start(fault=fault)
    volume(p)
    volume(p, "more")
    id = with_volume(p)
    out(p, id, "echo kept >/workspace/f; sync")
    p.do("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": "then"})
    out(p, id, "echo later >/workspace/g; sync; echo later >/root/g")
    try:
        CHANGES[change](p, id)
    except OSError:
        pass
    assert p.ended() == -9
    p.start()
    assert p.do("GET", f"/v1/sandboxes/{id}")["status"] == "running"
    has = agrees(p, id)
    assert "data" in has and ("more" in has) == (change == "attach"), has
    assert out(p, id, "cat /workspace/f /workspace/g") == "kept\nlater\n"
    if change == "rewind":
        assert p.sh(id, "test -e /root/g")["exit_code"] == (0 if fault == "rewind.started" else 1)
    elif change == "resize":
        large = p.do("GET", "/v1/volumes/data")["size_mb"] == 128
        assert large == (fault != "resize.grown") and (size_in(p, id) > 64) == large
    elif change == "copy":
        assert p.do("GET", "/v1/volumes/data/snapshots") == []
    # And again, to its end.
    if change != "rewind":
        a = CHANGES[change](p, id)
        assert a.status < 300 or change == "attach" and a.status == 400, a
    else:
        assert detach(p, id).status == 204
    agrees(p, id)
    for name in agrees(p, id):
        assert detach(p, id, name).status == 204
    fsck(p)
