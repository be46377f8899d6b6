"""Files: whole, streamed, listed, watched."""

import io
import os
import threading

import pytest

from pandastack import APIConnectionError, NotFoundError

P = "/v1/sandboxes/sb-1/fs"
MISSING = (404, {"error": "no such file", "code": "file_not_found"})


class Disk:
    def __init__(self, server):
        self.files = {}
        self.server = server
        server.on("PUT", P, self.put)
        server.on("GET", P, self.get)

    def put(self, r, peer):
        path = r.query["path"]
        self.files[path] = (self.files.get(path, b"") if r.query.get("append") else b"") + r.body
        return {"path": path, "bytes": len(r.body)}

    def get(self, r, peer):
        data = self.files.get(r.query["path"])
        if data is None:
            return MISSING
        if "range" in r.headers:
            a, _, b = r.headers["range"].partition("=")[2].partition("-")
            return 206, data[int(a) : int(b) + 1 if b else None]
        return data


@pytest.fixture
def disk(server):
    return Disk(server)


@pytest.fixture
def fs(box):
    return box.filesystem


def test_bytes_come_back_as_they_went(disk, fs):
    data = bytes(range(256)) * 10
    assert fs.write("/tmp/a b+ü", data) == {"path": "/tmp/a b+ü", "bytes": 2560}
    assert fs.read("/tmp/a b+ü") == data
    fs.write("/t", "tëxt")
    assert fs.read("/t") == "tëxt".encode() and fs.read_text("/t") == "tëxt"
    fs.append("/t", "!")
    assert fs.read_text("/t") == "tëxt!"
    fs.write("/t", b"")
    assert fs.read("/t") == b""


def test_every_kind_of_data(disk, fs, tmp_path):
    (tmp_path / "f").write_bytes(b"skip-file")
    with open(tmp_path / "f", "rb") as f:
        f.read(5)
        fs.write("/f", f, mode=0o600)
    assert disk.files["/f"] == b"file" and disk.server.asked()[-1].headers["content-length"] == "4"
    assert disk.server.asked()[-1].query["mode"] == "0600"
    fs.write("/i", (bytes([c]) for c in b"pieces"))
    assert disk.files["/i"] == b"pieces" and disk.server.asked()[-1].headers["transfer-encoding"] == "chunked"
    for data in (bytearray(b"x"), memoryview(b"x"), io.BytesIO(b"x")):
        fs.write("/x", data)
        assert disk.files["/x"] == b"x"


def test_an_append_is_never_sent_twice(disk, fs, server):
    fs.append("/log", "1")  # from now on there is a kept connection that could be taken for a stale one
    real = disk.put

    def answer_lost(r, peer):
        real(r, peer)
        return peer.cut()

    server.on("PUT", P, answer_lost)
    with pytest.raises(APIConnectionError, match="unknown whether"):
        fs.append("/log", "2")
    assert disk.files["/log"] == b"12"


def test_parts(disk, fs):
    disk.files["/f"] = b"0123456789"
    assert fs.read("/f", offset=3, length=4) == b"3456" and fs.read("/f", offset=8) == b"89"
    assert fs.read("/f", length=0) == b""
    assert disk.server.asked()[-2].headers["range"] == "bytes=3-6"
    with pytest.raises(ValueError):
        fs.read("/f", offset=-1)


def test_a_missing_file(disk, fs, server):
    with pytest.raises(NotFoundError) as caught:
        fs.read("/no")
    assert caught.value.code == "file_not_found"
    server.on("GET", P + "/stat", MISSING)
    assert fs.exists("/no") is False
    server.on("GET", P + "/stat", (404, {"error": "no such sandbox", "code": "sandbox_not_found"}))
    with pytest.raises(NotFoundError):  # not a file that is missing
        fs.exists("/no")
    server.on("GET", P + "/stat", {"name": "f", "is_dir": False, "size": 3, "mode": "f", "perm": "0644", "mtime": 1})
    assert fs.exists("/f") and fs.stat("/f").perm == "0644" and fs.stat("/f").path == "/f" and fs.stat("/f").is_file


def test_large_files_are_streamed_both_ways(disk, fs, tmp_path):
    data = os.urandom(5 << 20)
    (tmp_path / "in").write_bytes(data)
    os.chmod(tmp_path / "in", 0o755)
    fs.upload(tmp_path / "in", "/big")
    assert disk.files["/big"] == data and disk.server.asked()[-1].query["mode"] == "0755"
    assert fs.download("/big", tmp_path / "out") == len(data)
    assert (tmp_path / "out").read_bytes() == data
    sink = io.BytesIO()
    fs.download("/big", sink)
    assert sink.getvalue() == data
    sizes = [len(p) for p in fs.read_stream("/big")]
    assert sum(sizes) == len(data) and max(sizes) <= 256 << 10
    assert {r.connection for r in disk.server.asked()} == {1}


def test_a_download_that_breaks_leaves_the_local_file_alone(server, fs, tmp_path):
    def half(r, peer):
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)
        peer.cut()

    server.on("GET", P, half)
    (tmp_path / "out").write_bytes(b"before")
    with pytest.raises(APIConnectionError, match="999000 bytes are missing"):
        fs.download("/big", tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"] and (tmp_path / "out").read_bytes() == b"before"
    server.on("GET", P, MISSING)
    with pytest.raises(NotFoundError):
        fs.download("/big", tmp_path / "new")
    assert os.listdir(tmp_path) == ["out"]


def test_names(server, fs):
    for verb, status in (("mkdir", 201), ("rename", 200), ("chmod", 200), ("symlink", 201)):
        server.on("POST", f"{P}/{verb}", (status, {"path": "/x"}))
    server.on("DELETE", P, (204,))
    fs.mkdir("/a/b", mode=0o700)
    fs.rename("/a", "/b", replace=False)
    fs.chmod("/b", 0o755)
    fs.chmod("/b", "0644")
    fs.symlink("/b", "/l")
    fs.remove("/b")
    assert [r.json for r in server.asked("POST")] == [
        {"path": "/a/b", "parents": True, "mode": "0700"},
        {"from": "/a", "to": "/b", "replace": False},
        {"path": "/b", "mode": "0755"},
        {"path": "/b", "mode": "0644"},
        {"target": "/b", "path": "/l"},
    ]
    assert server.asked("DELETE")[0].query == {"path": "/b"}


def test_list_and_walk(server, fs):
    tree = {
        "/r": [("a", True, "d"), ("f", False, "f")],
        "/r/a": [("g", False, "f"), ("loop", True, "l"), ("gone", True, "d")],
        "/r/a/loop": [("never", False, "f")],
    }

    def dir_(r, peer):
        path = r.query["path"]
        if path not in tree:
            return MISSING
        return {"path": path, "entries": [{"name": n, "is_dir": d, "size": 1, "mode": m} for n, d, m in tree[path]]}

    server.on("GET", P + "/dir", dir_)
    assert [(e.name, e.path, e.is_dir) for e in fs.list("/r")] == [("a", "/r/a", True), ("f", "/r/f", False)]
    assert [e.path for e in fs.walk("/r")] == ["/r/a", "/r/f", "/r/a/g", "/r/a/loop", "/r/a/gone"]
    with pytest.raises(NotFoundError):
        list(fs.walk("/none"))
    server.on("GET", P + "/dir", {"path": "/e", "entries": None})
    assert fs.list("/e") == []


def test_a_watch_stands_before_the_body_runs(server, fs):
    change = threading.Event()
    hung_up = threading.Event()

    def watch(r, peer):
        peer.sse()
        peer.chunk(b": ping\n\n")
        peer.event("ready", {})
        change.wait(10)
        peer.event("change", {"type": "created", "path": "/w/f", "is_dir": False, "cookie": 0})
        peer.event("change", {"type": "deleted", "path": "/w/f", "is_dir": False, "cookie": 0})
        peer.rfile.read(1)
        hung_up.set()

    server.on("GET", P + "/watch", watch)
    with fs.watch("/w", recursive=True) as w:
        change.set()
        assert [(e.type, e.path) for e in (next(w), next(w))] == [("created", "/w/f"), ("deleted", "/w/f")]
    assert hung_up.wait(5) and server.asked()[0].query == {"path": "/w", "recursive": "1"}
