"""A tenant sends archives that no host has written: to get memory it may not have, or a machine state of its own making."""
import hashlib
import io
import json
import random
import tarfile

import pytest

from conftest import count

HEAD = 4  # files of an archive that say what is in it: record.json, manifest.json, state, the first map


def export(p, id, token):
    """The first files of what the server exports, as (name, bytes); the rest of it is only data."""
    c = p.connection(60)
    c.request("GET", f"/v1/snapshots/{id}/export", headers={"Authorization": f"Bearer {token}"})
    r = c.getresponse()
    assert r.status == 200, r.read()
    files = []
    with tarfile.open(fileobj=r, mode="r|") as t:
        for m in t:
            files.append((m.name, t.extractfile(m).read()))
            if len(files) == HEAD:
                break
    c.close()
    return files


def archive(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as t:
        for name, data in files:
            m = tarfile.TarInfo(name)
            m.size = len(data)
            t.addfile(m, io.BytesIO(data))
    return out.getvalue()


def forged(files, keep_signature, record=None, state=None, **manifest):
    """As one would who has read the source: other values, and each digest made anew."""
    files = dict(files)
    if state:
        files["state"] = state
        manifest["state"] = {"digest": hashlib.sha256(state).hexdigest(), "size": len(state)}
    m = json.loads(files["manifest.json"])
    m.update(manifest)
    del m["sha256"]
    body = json.dumps(m, separators=(",", ":"))[1:] + "\n"
    files["manifest.json"] = f'{{"sha256":"{hashlib.sha256(body.encode()).hexdigest()}",{body}'.encode()
    r = json.loads(files["record.json"])
    r.update(record or {})
    r["manifest_sha256"] = hashlib.sha256(files["manifest.json"]).hexdigest()
    if not keep_signature:
        del r["signature"]
    files["record.json"] = json.dumps(r).encode()
    return archive(files.items())


@pytest.fixture
def attacker(pandad):
    """A tenant, the head of an archive of its own snapshot, and at the end a look at another's sandbox."""
    pid, other = pandad.process.pid, pandad.create()
    token = pandad.do("POST", "/v1/me/tokens", {"tenant": "attacker"})["token"]
    id = pandad.do("POST", "/v1/sandboxes", {"template": "base"}, token=token)["id"]
    snap = pandad.do("POST", f"/v1/sandboxes/{id}/snapshots", {}, token=token)["id"]
    yield token, export(pandad, snap, token)
    pandad.do("DELETE", f"/v1/sandboxes/{id}", token=token)
    pandad.do("DELETE", f"/v1/snapshots/{snap}", token=token)
    assert pandad.sh(other, "echo here")["stdout"] == "here\n"
    assert pandad.process.poll() is None and pandad.process.pid == pid, pandad.tail()


def send(p, data, token):
    return p.ask("POST", "/v1/snapshots/import", data, token=token, timeout=60)


GIB = 1 << 30
FORGERIES = {
    "memory of 200 GiB": dict(memory_size=200 * GIB),
    "memory of 200 GiB, and a template that is not there": dict(memory_size=200 * GIB, record={"template": "none"}),
    "another state": dict(state=b"\xcc" * 8192),
    "another template": dict(record={"template": "browser"}),
    "another tenant's sandbox": dict(record={"sandbox_id": "00000000-0000-4000-8000-000000000000"}),
}


@pytest.mark.core
def test_a_tenant_cannot_bring_a_machine_of_its_own_making(pandad, attacker):
    token, files = attacker
    before = pandad.snapshots()
    for what, change in FORGERIES.items():
        a = send(pandad, forged(files, True, **change), token)
        assert a.status == 400 and a.json["code"] == "parcel_invalid" and "signed" in a.json["error"], (what, a)
        a = send(pandad, forged(files, False, **change), token)
        assert a.status == 403 and a.json["code"] == "archive_untrusted" and "admin" in a.json["error"], (what, a)
    # An admin is told what is wrong with it, too.
    for size in 200, 300:
        a = send(pandad, forged(files, False, memory_size=size * GIB), pandad.key)
        assert (a.status, a.json["code"]) == ((413, "too_large") if size == 200 else (400, "parcel_invalid")), a
    assert pandad.snapshots() == before
    assert len(pandad.do("GET", "/v1/snapshots", token=token)["snapshots"]) == 1


def test_disks_that_no_machine_has(pandad, attacker):
    token, files = attacker
    disks = json.loads(dict(files)["manifest.json"])["disks"]
    for size, want in (100 * GIB, (413, "too_large")), (300 * GIB, (400, "parcel_invalid")), (4095, (400, "parcel_invalid")):
        disks[-1]["size"] = size
        a = send(pandad, forged(files, False, disks=disks), pandad.key)
        assert (a.status, a.json["code"]) == want, (size, a)


def test_damage_at_random_is_refused_in_words(pandad, attacker):
    """What has to be parsed before a digest can speak for it: heads of files, record, manifest, state, a map."""
    token, files = attacker
    whole, bare = archive(files), forged(files, False)
    for seed in range(count(200, 5000)):
        r = random.Random(seed)
        data = bytearray(r.choice((whole, bare)))
        for _ in range(r.randint(1, 4)):
            at = r.randrange(min(len(data), r.choice((600, 4096, 8192, len(data)))))
            data[at] = r.randrange(256)
        if r.random() < 0.2:
            del data[r.randrange(len(data)):]
        a = send(pandad, bytes(data), r.choice((token, pandad.key)))
        assert a.status in (400, 403, 409, 413) and a.json["error"], (seed, a)
        assert a.json["code"] in ("parcel_invalid", "archive_untrusted", "too_large", "snapshot_foreign"), (seed, a)
