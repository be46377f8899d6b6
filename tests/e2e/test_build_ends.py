"""Builds that do not end by themselves, or not well: each leaves what was there before, and says what to do next."""
import http.client
import os

from conftest import patience, wait_for
from test_builds import build, log, order, own  # noqa: F401
from test_server_stress import small_disk  # noqa: F401

# Deaf to signals, with a child that left its session, and something on its disk and in its memory. A step that ended is kept, so
# this is the first; its files are sent all the same.
HANGS = ("FROM base\n"
         "RUN trap '' INT TERM HUP; head -c 3000000 /dev/urandom | tee /root/big >/dev/shm/big; sync; setsid sh -c 'trap \"\" TERM; sleep 4321' & \\\n"
         "    echo begun; while :; do sleep 0.1; done\n")
FILES = {f"f{i}": os.urandom(100000) for i in range(3)}


def there(p):
    """All that a build could leave behind; of machines only those of builds: jails are made ahead for sandboxes, and come and go."""
    machines = [x for x in (*p.machines(), *p.processes(), *p.cgroups()) if x.startswith("b_")]
    files = {str(f.relative_to(p.data)) for top in ("store", "templates", "builds") for f in (p.data / top).rglob("*") if f.is_file()}
    return sorted(files), machines, p.ask("GET", "/v1/templates/x").status


def same(p, id, before):
    """As before, but for the record and the log of the build."""
    want = (sorted({*before[0], f"builds/{id}/build.json", f"builds/{id}/log"}), *before[1:])
    seen = []

    def look():
        seen[:] = there(p)
        return tuple(seen) == want

    try:
        wait_for("all of it to go", look)
    except AssertionError:
        assert tuple(seen) == want  # shows what differs


def hanging(p):
    id = order(p, "x", HANGS, FILES).json["id"]
    wait_for("it to begin", lambda: "begun\n" in log(p, id))
    return id


def ended(p, id):
    return wait_for("its end", lambda: (b := p.do("GET", f"/v1/templates/builds/{id}"))["status"] in ("done", "failed") and b)


def test_a_build_has_a_time(new_pandad):
    limit = int(8 * patience())
    p = new_pandad(build_seconds=limit)
    before = there(p)
    id = hanging(p)
    b = ended(p, id)
    assert b["status"] == "failed" and b["ended_at"], b
    assert b["error"] == (f"Dockerfile:2: RUN: the build took longer than {limit} s: build a part of it as a template of its own and go on FROM that, "
                          "or have the server's build_seconds raised")
    assert log(p, id).endswith(f"failed: {b['error']}\n")
    same(p, id, before)
    build(p, "fine", "FROM base\nRUN true")
    p.do("DELETE", "/v1/templates/fine")


def test_whatever_ends_a_build_that_hangs_nothing_is_left(own):
    before = there(own)
    id = hanging(own)
    own.do("DELETE", f"/v1/templates/builds/{id}", expect=204)
    assert "stopped by request" in ended(own, id)["error"]
    same(own, id, before)
    before = there(own)
    id = order(own, "x", "FROM base\nCMD sleep 4321\nHEALTHCHECK CMD false\n").json["id"]
    wait_for("it to wait for its check", lambda: "baking\n" in log(own, id))
    own.do("DELETE", f"/v1/templates/builds/{id}", expect=204)
    assert "stopped by request" in ended(own, id)["error"]
    same(own, id, before)
    for end in own.kill9, own.stop:
        before = there(own)
        id = hanging(own)
        end()
        own.start()
        b = ended(own, id)
        assert b["status"] == "failed" and b["error"] == "the server ended while this was being built: build it again", b
        same(own, id, before)


def test_a_client_that_goes_away(own):
    """Whoever follows the log may leave: the build goes on. (In the middle of an order: test_oci.py.)"""
    id = order(own, "x", "FROM base\nRUN echo early; sleep 1\nRUN echo late").json["id"]
    for _ in range(2):
        c = http.client.HTTPConnection("127.0.0.1", own.port, timeout=60 * patience())
        c.request("GET", f"/v1/templates/builds/{id}/logs?follow=1", headers={"Authorization": f"Bearer {own.key}"})
        r, seen = c.getresponse(), b""
        while b'"early"' not in seen:
            seen += r.read1(4096)
        c.close()
    assert ended(own, id)["status"] == "done"
    assert "\nlate\n" in log(own, id)


def test_a_build_that_fills_the_hosts_disk(small_disk):
    p = small_disk
    room = os.statvfs(p.data)
    with open(p.data / "ballast", "wb") as f:
        os.posix_fallocate(f.fileno(), 0, room.f_bavail * room.f_frsize - (30 << 20))
    before = there(p)
    b, text = build(p, "x", "FROM base\nRUN head -c 60000000 /dev/urandom >/root/big && echo written", status="failed")
    assert "\nwritten\n" in text and "disk" in b["error"], (b, text)
    same(p, b["id"], before)
    os.unlink(p.data / "ballast")
    build(p, "x", "FROM base\nRUN true")
    p.do("DELETE", "/v1/templates/x")
