"""Files through the API: any size, any bytes, whole or not at all."""
import hashlib
import http.client
import os
import threading
import time
from urllib.parse import quote

import pytest

from conftest import wait_for
from streams import Events, rss_kib


def fs(id, path, what="fs", **more):
    return f"/v1/sandboxes/{id}/{what}?path={quote(path)}" + "".join(f"&{k}={v}" for k, v in more.items())


@pytest.mark.parametrize("size", [0, 1, 65536, 1 << 20, 7_654_321])
def test_what_was_written_is_read(pandad, size):
    id = pandad.create()
    data = os.urandom(size)
    path = "/root/new folder/ü+%.bin"
    assert pandad.do("PUT", fs(id, path), data) == {"path": path, "bytes": size}
    a = pandad.ask("GET", fs(id, path))
    assert (a.status, a.headers["content-type"], a.body) == (200, "application/octet-stream", data)
    assert int(a.headers["content-length"]) == size
    a = pandad.ask("HEAD", fs(id, path))
    assert (a.status, a.headers["content-length"], a.body) == (200, str(size), b"")
    # Chunked, as clients send what they do not know the length of.
    assert pandad.do("PUT", fs(id, path), iter([data[:100], data[100:]]))["bytes"] == size
    assert pandad.sh(id, f"md5sum <'{path}'")["stdout"].split()[0] == hashlib.md5(data).hexdigest()


def test_300_mib_pass_through_without_growing_pandad(pandad):
    id = pandad.create()
    piece = os.urandom(1 << 20)
    size = 300 << 20
    pandad.sh(id, "true")
    before, top, done = rss_kib(pandad.process.pid), [0], threading.Event()

    def watch():
        while not done.wait(0.02):
            top[0] = max(top[0], rss_kib(pandad.process.pid))

    t = threading.Thread(target=watch)
    t.start()
    try:
        start = time.monotonic()
        c = http.client.HTTPConnection("127.0.0.1", pandad.port, timeout=120)
        c.putrequest("PUT", fs(id, "/root/big"))
        c.putheader("Authorization", f"Bearer {pandad.key}")
        c.putheader("Content-Length", str(size))
        c.endheaders()
        for _ in range(300):
            c.send(piece)
        r = c.getresponse()
        assert r.status == 200, r.read()
        r.read()
        wrote = time.monotonic() - start
        start = time.monotonic()
        c.request("GET", fs(id, "/root/big"), headers={"Authorization": f"Bearer {pandad.key}"})
        r = c.getresponse()
        n = 0
        for _ in range(300):
            assert r.read(1 << 20) == piece, f"after {n} bytes"
            n += 1 << 20
        assert r.read() == b""
        read = time.monotonic() - start
    finally:
        done.set()
        t.join()
    print(f"write {300 / wrote:.0f} MiB/s, read {300 / read:.0f} MiB/s, grown {top[0] - before} KiB")
    assert top[0] - before < 4096, f"{top[0] - before} KiB"


def test_a_reader_that_does_not_read_holds_nothing_up(pandad):
    id = pandad.create()
    pandad.sh(id, "truncate -s 2G /root/sparse")
    before = rss_kib(pandad.process.pid)
    slow = [Events(pandad, "GET", fs(id, "/root/sparse"), small=True) for _ in range(8)]
    assert all(e.status == 200 for e in slow)
    for _ in range(20):
        assert pandad.do("GET", fs(id, "/etc/hostname"))
    assert rss_kib(pandad.process.pid) - before < 8 * 1024
    for e in slow:
        e.close()


def test_ranges(pandad):
    id = pandad.create()
    pandad.do("PUT", fs(id, "/root/f"), "0123456789")
    for text, part, where in (("bytes=2-4", b"234", "bytes 2-4/10"), ("bytes=7-", b"789", "bytes 7-9/10"),
                              ("bytes=8-100", b"89", "bytes 8-9/10")):
        a = pandad.ask("GET", fs(id, "/root/f"), headers={"Range": text})
        assert (a.status, a.body, a.headers["content-range"]) == (206, part, where)
    for text, body, at in ("bytes=-3", b"789", "7-9"), ("bytes=-10", b"0123456789", "0-9"), ("bytes=-500", b"0123456789", "0-9"):
        a = pandad.ask("GET", fs(id, "/root/f"), headers={"Range": text})
        assert (a.status, a.body, a.headers["content-range"]) == (206, body, f"bytes {at}/10"), text
    for text in "bytes=-0", "bytes=-", "bytes=--1", "bytes=-3,0-1", "bytes=-99999999999999999999":
        assert pandad.ask("GET", fs(id, "/root/f"), headers={"Range": text}).body == b"0123456789", text
    a = pandad.ask("GET", fs(id, "/root/nothing"), headers={"Range": "bytes=-3"})
    assert a.status == 404 and a.json["code"] == "file_not_found"
    a = pandad.ask("GET", fs(id, "/root/f"), headers={"Range": "bytes=10-"})
    assert (a.status, a.headers["content-range"], a.json["code"]) == (416, "bytes */10", "bad_range")
    assert pandad.ask("GET", fs(id, "/root/f"), headers={"Range": "lines=1-2"}).body == b"0123456789"


def test_replace_is_all_or_nothing_and_append_appends(pandad):
    id = pandad.create()
    pandad.do("PUT", fs(id, "/root/f", mode="0600"), "old")
    c = http.client.HTTPConnection("127.0.0.1", pandad.port, timeout=180)
    c.putrequest("PUT", fs(id, "/root/f"))
    c.putheader("Authorization", f"Bearer {pandad.key}")
    c.putheader("Content-Length", "1000000")
    c.endheaders()
    c.send(b"n" * 500000)
    assert pandad.do("GET", fs(id, "/root/f")) == b"old", "while it is being written"
    c.close()
    wait_for("the half file to go", lambda: pandad.sh(id, "ls -A /root | grep -c panda-; true")["stdout"] == "0\n")
    assert pandad.do("GET", fs(id, "/root/f")) == b"old"
    pandad.do("PUT", fs(id, "/root/f", append=1), " and more")
    assert pandad.do("GET", fs(id, "/root/f")) == b"old and more"
    assert pandad.do("GET", fs(id, "/root/f", "fs/stat"))["perm"] == "0600"


def test_directories_and_links(pandad):
    id = pandad.create()
    p = f"/v1/sandboxes/{id}/fs"
    assert pandad.do("POST", f"{p}/mkdir", {"path": "/root/a/b"}, expect=201) == {"path": "/root/a/b"}
    for n in "z", "x", "y":
        pandad.do("PUT", fs(id, f"/root/a/{n}"), n)
    pandad.do("POST", f"{p}/symlink", {"target": "x", "path": "/root/a/link"}, expect=201)
    pandad.do("POST", f"{p}/chmod", {"path": "/root/a/x", "mode": "0755"})
    d = pandad.do("GET", fs(id, "/root/a", "fs/dir"))
    assert [(e["name"], e["mode"], e["is_dir"]) for e in d["entries"]] == [
        ("b", "d", True), ("link", "l", False), ("x", "f", False), ("y", "f", False), ("z", "f", False)]
    assert d["entries"][1]["target"] == "x" and d["entries"][2]["perm"] == "0755" and d["entries"][2]["path"] == "/root/a/x"
    assert pandad.do("GET", fs(id, "/root/a/link", "fs/stat"))["mode"] == "f"
    assert pandad.do("GET", fs(id, "/root/a/link", "fs/stat", follow=0))["mode"] == "l"
    pandad.do("POST", f"{p}/rename", {"from": "/root/a/x", "to": "/root/a/w"})
    a = pandad.ask("POST", f"{p}/rename", {"from": "/root/a/w", "to": "/root/a/y", "replace": False})
    assert (a.status, a.json["code"]) == (409, "exists")
    pandad.do("DELETE", fs(id, "/root/a"), expect=204)
    assert pandad.ask("GET", fs(id, "/root/a", "fs/stat")).status == 404
    pandad.sh(id, "mkdir /root/many; cd /root/many; seq 1 10000 | xargs touch")
    names = [e["name"] for e in pandad.do("GET", fs(id, "/root/many", "fs/dir"))["entries"]]
    assert sorted(map(int, names)) == list(range(1, 10001))


def test_errors_have_a_kind(pandad):
    id = pandad.create()
    for method, path, status, code in (
            ("GET", fs(id, "/nowhere"), 404, "file_not_found"), ("GET", fs(id, "/etc"), 400, "is_a_directory"),
            ("GET", fs(id, "etc/passwd"), 400, "bad_path"), ("GET", f"/v1/sandboxes/{id}/fs", 400, "bad_path"),
            ("GET", fs(id, "/x" * 3000), 400, "bad_path"), ("PUT", fs(id, "/etc"), 400, "is_a_directory"),
            ("PUT", fs(id, "/etc/passwd/x"), 400, "not_a_directory"), ("PUT", fs(id, "/x", mode="rw"), 400, "bad_request"),
            ("GET", fs(id, "/etc/passwd", "fs/dir"), 400, "not_a_directory"), ("DELETE", fs(id, "/nowhere"), 404, "file_not_found"),
            ("DELETE", fs(id, "/"), 400, "bad_path"), ("GET", fs(id, "/nowhere", "fs/watch"), 404, "file_not_found")):
        a = pandad.ask(method, path, "x" if method == "PUT" else None)
        assert (a.status, a.json["code"]) == (status, code), (method, path[:80], a)


def test_a_full_disk_says_so(pandad):
    id = pandad.create()
    pandad.sh(id, "mkdir /mnt/small; mount -t tmpfs -o size=1m none /mnt/small")
    a = pandad.ask("PUT", fs(id, "/mnt/small/f"), bytes(8 << 20))
    assert (a.status, a.json["code"]) == (507, "disk_full") and "the sandbox's disk is full" in a.json["error"]
    assert pandad.sh(id, "ls -A /mnt/small")["stdout"] == ""


def test_a_watch_tells_what_happens(pandad):
    id = pandad.create()
    pandad.sh(id, "mkdir -p /root/w/deep")
    e = Events(pandad, "GET", fs(id, "/root/w", "fs/watch", recursive=1))
    assert next(iter(e)) == ("ready", {})
    pandad.sh(id, "cd /root/w; echo x >deep/f; mv deep/f g; mkdir new; echo y >new/h; rm g")
    seen = []
    for name, d in e:
        assert name == "change"
        seen.append((d["type"], d["path"]))
        if d["type"] == "deleted":
            break
    for wanted in (("created", "/root/w/deep/f"), ("written", "/root/w/deep/f"), ("moved_from", "/root/w/deep/f"),
                   ("moved_to", "/root/w/g"), ("created", "/root/w/new"), ("deleted", "/root/w/g")):
        assert wanted in seen, (wanted, seen)
    assert any(path == "/root/w/new/h" for _, path in seen)
    e.close()
