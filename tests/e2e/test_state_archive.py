"""A snapshot as one file: out of one host, into another; damage is found before anybody sees it."""
import http.client
import io
import json
import socket
import tarfile

import pytest

from conftest import wait_for


def export(p, id, to):
    c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=180)
    c.request("GET", f"/v1/snapshots/{id}/export", headers={"Authorization": f"Bearer {p.key}"})
    r = c.getresponse()
    assert r.status == 200, r.read()
    n = 0
    with open(to, "wb") as f:
        while piece := r.read(1 << 20):
            n += f.write(piece)
    assert n == int(r.getheader("Content-Length"))
    c.close()


def send(p, data, **kw):
    return p.ask("POST", "/v1/snapshots/import", data, timeout=120, **kw)


def tenant(p, name):
    return p.do("POST", "/v1/me/tokens", {"tenant": name})["token"]


@pytest.fixture(scope="module")
def parcel(server_home, tmp_path_factory):
    from server import Pandad
    p = Pandad(tmp_path_factory.mktemp("from"), bakes=server_home / "bakes" if (server_home / "bakes").is_dir() else None)
    try:
        p.start()
        id = p.create()
        p.sh(id, "echo disk >/root/d; echo memory >/dev/shm/m; sleep 1000 & echo $! >/root/pid; sync")
        snap = p.do("POST", f"/v1/sandboxes/{id}/snapshots", {"name": "mine"})["id"]
        file = tmp_path_factory.mktemp("parcel") / "s.tar"
        export(p, snap, file)
        (file.parent / "key").write_text((p.data / "archive_key.pub").read_text())
        p.close()
    finally:
        p.scrub()
    return file


def test_it_is_a_tar_that_others_can_read(parcel):
    with tarfile.open(parcel) as t:
        names = t.getnames()
        assert names[:3] == ["record.json", "manifest.json", "state"]
        assert all(n.endswith((".map", ".data")) for n in names[3:])
        assert json.load(t.extractfile("record.json"))["name"] == "mine"
    assert parcel.stat().st_size < 1 << 30


def test_it_lives_on_elsewhere(pandad, parcel):
    with open(parcel, "rb") as f:
        a = send(pandad, f)
    assert a.status == 201, a
    snap = a.json
    assert snap["name"] == "mine" and snap["template"] == "base" and snap["size_bytes"] > 0
    assert snap["imported"] == "unknown_key"  # it is another host's, and an admin sent it
    assert snap["memory_mb"] == 512 and snap["disk_gb"] == 8
    assert snap["id"] in [s["id"] for s in pandad.do("GET", "/v1/snapshots")["snapshots"]]
    id = pandad.create(from_snapshot=snap["id"])
    assert pandad.sh(id, "cat /root/d /dev/shm/m; kill -0 $(cat /root/pid) && echo alive")["stdout"] == "disk\nmemory\nalive\n"
    pandad.do("DELETE", f"/v1/snapshots/{snap['id']}")
    wait_for("its files to go", lambda: snap["id"] not in pandad.snapshots())


def refused(p, data, *kinds):
    a = send(p, data)
    assert a.status == 400 or a.json["code"] in kinds, a
    assert a.json["code"] in ("parcel_invalid", *kinds), a
    assert p.do("GET", "/v1/snapshots")["snapshots"] == []
    wait_for("nothing to be left", lambda: p.snapshots() == [])


def small(parcel, change):
    """The same with only its small files, changed; whatever comes behind is not reached."""
    out = io.BytesIO()
    with tarfile.open(parcel) as t, tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as o:
        for m in t.getmembers()[:4]:
            data = t.extractfile(m).read()
            for m, data in change(m, data):
                m.size = len(data)
                o.addfile(m, io.BytesIO(data))
    return out.getvalue()


def test_a_tenant_brings_one_of_a_host_that_this_one_knows(new_pandad, parcel, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# none yet\n")
    p = new_pandad(import_keys=keys)
    guest = tenant(p, "guests")
    with open(parcel, "rb") as f:
        a = send(p, f.read(1 << 20), token=guest)
    assert a.status == 403 and a.json["code"] == "archive_untrusted", a
    key = (parcel.parent / "key").read_text().split()[0]
    assert key in a.json["error"], a
    keys.write_text(f"{key} the host beside this one\n")  # it counts at once
    with open(parcel, "rb") as f:
        a = send(p, f, token=guest)
    assert a.status == 201 and a.json["imported"] == "signed" and a.json["workspace"] == "guests", a
    id = p.do("POST", "/v1/sandboxes", {"from_snapshot": a.json["id"]}, token=guest)["id"]
    out = p.do("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "cat /root/d /dev/shm/m"}, token=guest)
    assert out["stdout"] == "disk\nmemory\n"
    assert p.do("GET", f"/v1/sandboxes/{id}", token=guest)["memory_mb"] == 512
    p.do("DELETE", f"/v1/sandboxes/{id}", token=guest)
    p.do("DELETE", f"/v1/snapshots/{a.json['id']}", token=guest)


def test_a_file_of_keys_that_is_none_is_told_at_the_start(new_pandad, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("hello\n")
    p = new_pandad(start=False, import_keys=keys)
    p.start(wait=False)
    assert p.ended() != 0
    assert "keys:1: a line begins with a key" in p.tail(), p.tail()
    keys.write_text("")
    p.start()


def test_cut_off_and_empty(pandad, parcel):
    with open(parcel, "rb") as f:
        start = f.read(3 << 20)
    refused(pandad, b"")
    refused(pandad, b"x" * 2000)
    for n in (100, 512, 700, 5000, len(start)):
        refused(pandad, start[:n])


def test_names_sizes_and_order(pandad, parcel):
    def renamed(was, name):
        def change(m, data):
            if m.name == was or (was == "map" and m.name.endswith(".map")):
                m.name = name
            return [(m, data)]
        return change

    for name in ("../../etc/passwd", "/etc/passwd", "x", "0" * 64 + ".map", "0" * 64 + ".data", "state"):
        refused(pandad, small(parcel, renamed("map", name)))
    refused(pandad, small(parcel, renamed("record.json", "manifest.json")))
    refused(pandad, small(parcel, lambda m, d: [(m, d + b"x")] if m.name == "state" else [(m, d)]))
    refused(pandad, small(parcel, lambda m, d: [(m, d), (m, d)]))
    refused(pandad, small(parcel, lambda m, d: [(m, d.replace(b'"memory_size"', b'"memory_sise"'))]), "snapshot_foreign")
    refused(pandad, small(parcel, lambda m, d: [(m, d[:60] + b"\xff" * 8 + d[68:])] if m.name.endswith(".map") else [(m, d)]))


def test_one_bit_in_each_page_of_a_chunk(pandad, parcel):
    """Found by its digest, and nothing stays. (Pages that no map names do not count, so all of them.)"""
    data = bytearray(parcel.read_bytes())
    with tarfile.open(parcel) as t:
        last = [m for m in t.getmembers() if m.name.endswith(".data")][-1]
    for page in range(0, min(last.size, 65536), 4096):
        data[last.offset_data + page + 7] ^= 1
    refused(pandad, bytes(data))


def test_a_client_that_goes_away(pandad, parcel):
    with socket.create_connection(("127.0.0.1", pandad.port)) as s, open(parcel, "rb") as f:
        s.sendall((f"POST /v1/snapshots/import HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {pandad.key}\r\n"
                   f"Content-Length: {parcel.stat().st_size}\r\n\r\n").encode())
        s.sendall(f.read(2 << 20))
        wait_for("it to begin", lambda: len(pandad.snapshots()) == 1)
    wait_for("it to be undone", lambda: pandad.snapshots() == [])
    assert pandad.do("GET", "/v1/snapshots")["snapshots"] == []


def test_a_reader_that_goes_away(pandad):
    id = pandad.create()
    snap = pandad.do("POST", f"/v1/sandboxes/{id}/snapshots")["id"]
    with socket.create_connection(("127.0.0.1", pandad.port)) as s:
        s.sendall(f"GET /v1/snapshots/{snap}/export HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {pandad.key}\r\n\r\n".encode())
        assert b"200" in s.recv(1000)
    pandad.do("DELETE", f"/v1/snapshots/{snap}")
    assert pandad.ask("GET", f"/v1/snapshots/{snap}/export").status == 404
    assert pandad.do("GET", "/healthz")


@pytest.mark.parametrize("fault", ["import.recorded", "import.verified"])
def test_killed_in_the_middle(new_pandad, parcel, fault):
    p = new_pandad(start=False)
    p.start(fault=fault)
    try:
        with open(parcel, "rb") as f:
            send(p, f)
    except OSError:
        pass
    assert p.ended() == -9
    p.start()
    assert p.do("GET", "/v1/snapshots")["snapshots"] == [] and p.snapshots() == []
