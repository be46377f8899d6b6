"""Bakes: detected when they are damaged, made again for another kernel or agent, replaced while they are in use."""
import hashlib
import http.client
import json
import os
import signal
import threading

import pytest

from conftest import wait_for
from test_builds import bakes, build, log, order, own, save  # noqa: F401


def description(p, name):
    (path,) = [f for f in (p.data / "templates").glob(f"*.{name}.json")]
    return path, json.loads(path.read_text())


def another_kernel(p, bake):
    """As if the template had been saved before the kernel was replaced."""
    path = p.data / "store/snapshots" / bake / "manifest.json"
    text = path.read_text()
    kernel = json.loads(text)["kernel"]
    rest = text[len('{"sha256":"') + 64 + len('",'):].replace(f'"{kernel}"', '"' + "0" * len(kernel) + '"')
    path.unlink()  # it may be one of several names of a file
    path.write_text('{"sha256":"' + hashlib.sha256(rest.encode()).hexdigest() + '",' + rest)


def another_agent(p, name):
    path, d = description(p, name)
    d["wire"] = 1
    path.write_text(json.dumps(d))


def told(p):
    """Events of templates that were made again."""
    return [e for e in p.do("GET", "/v1/events")["events"] if e["type"] == "template.rebaked"]


@pytest.mark.parametrize("why", ["kernel", "agent"])
def test_a_saved_template_of_another_age_is_made_from_its_disk(own, why):
    id = own.create()
    own.sh(id, "echo disk >/root/d; echo memory >/dev/shm/m; nohup sleep 4321 >/dev/null 2>&1 & true")
    save(own, id, "mine")
    old = own.create(template="mine")
    before = bakes(own)
    own.stop()
    path, d = description(own, "mine")
    if why == "kernel":
        another_kernel(own, d["snapshot"])
    else:
        another_agent(own, "mine")
    own.start()
    got = []

    def create():
        got.append(own.sh(own.create(template="mine"), "cat /root/d; cat /dev/shm/m; pgrep -fx 'sleep 4321'; pwd"))

    threads = [threading.Thread(target=create) for _ in range(4)]  # they wait for the one that makes it
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [r["stdout"] for r in got] == ["disk\n/workspace\n"] * 4, got
    text = own.log.read_text()
    assert text.count("baked again from its disk") == 1, own.tail()
    (event,) = told(own)
    assert "mine" in str(event) and "programs that ran" in str(event), event
    assert own.sh(old, "cat /dev/shm/m")["stdout"] == "memory\n"  # what runs goes on
    _, now = description(own, "mine")
    assert now["snapshot"] != d["snapshot"] and now["rebaked"]["why"]
    t = own.do("GET", "/v1/templates/mine")
    assert "programs" in t["note"], t
    wait_for("the old bake to go", lambda: len(bakes(own)) == len(before) and d["snapshot"] not in bakes(own))
    assert [f for f in os.listdir(own.data / "templates") if f.startswith(".")] == []
    own.stop()
    own.start()
    assert own.sh(own.create(template="mine"), "cat /root/d")["stdout"] == "disk\n"
    assert own.log.read_text().count("baked again from its disk") == 1
    # and it can be built on, and saved
    build(own, "child", "FROM mine\nRUN cat /root/d >/root/e")
    assert own.sh(own.create(template="child"), "cat /root/e")["stdout"] == "disk\n"


def test_its_start_command_runs_again(own):
    build(own, "served", "FROM base\nWORKDIR /srv\nRUN echo page >index.html\nHEALTHCHECK CMD curl -fs http://127.0.0.1:8000/\n"
                         "CMD exec python3 -m http.server 8000")
    own.stop()
    another_kernel(own, description(own, "served")[1]["snapshot"])
    own.start()
    assert own.sh(own.create(template="served"), "curl -fs http://127.0.0.1:8000/index.html")["stdout"] == "page\n"


@pytest.mark.parametrize("fault", ["rebake.booted", "rebake.saved", "rebake.put"])
def test_killed_while_it_is_made_again(own, fault):
    id = own.create()
    own.sh(id, "echo disk >/root/d")
    save(own, id, "mine")
    had = bakes(own)
    own.stop()
    another_kernel(own, description(own, "mine")[1]["snapshot"])
    own.start(fault=fault)
    with pytest.raises((OSError, http.client.HTTPException)):  # an answer would be one of a create that failed
        pytest.fail(str(own.ask("POST", "/v1/sandboxes", {"template": "mine"})))
    assert own.ended() == -9, own.tail()
    own.start()
    assert own.sh(own.create(template="mine"), "cat /root/d")["stdout"] == "disk\n"
    wait_for("the old bakes to go", lambda: len(bakes(own)) == len(had))
    assert [f for f in os.listdir(own.data / "templates") if f.startswith(".")] == []
    assert not [m for m in own.machines() if m.startswith("b_")]


def test_deleted_while_it_is_made_again(own):
    save(own, own.create(), "mine")
    own.stop()
    bake = description(own, "mine")[1]["snapshot"]
    another_kernel(own, bake)
    own.start()
    had = bakes(own)
    seen = []
    t = threading.Thread(target=lambda: seen.append(own.ask("POST", "/v1/sandboxes", {"template": "mine"})))
    t.start()
    wait_for("it to begin", lambda: [m for m in own.machines() if m.startswith("b_")])
    own.do("DELETE", "/v1/templates/mine")
    t.join()
    wait_for("its bakes to go", lambda: bakes(own) <= had - {bake})
    assert own.ask("GET", "/v1/templates/mine").status == 404 and len(seen) == 1


@pytest.mark.parametrize("damage", ["manifest", "cut", "state", "layer"])
def test_a_damaged_bake_of_the_hosts_is_made_again(own, damage):
    own.create()
    (bake,) = bakes(own)
    own.stop()
    at = own.data / "store/snapshots" / bake
    files = {"manifest": "manifest.json", "cut": "manifest.json", "state": "state"}
    victim = at / files[damage] if damage in files else max((f for f in at.iterdir() if f.suffix != ".map"), key=lambda f: f.stat().st_size)
    data = victim.read_bytes() if damage != "layer" else b""
    victim.unlink()
    if damage != "manifest":
        victim.write_bytes(data[:len(data) // 2])
    own.start()
    assert own.sh(own.create(), "echo fine")["stdout"] == "fine\n"
    assert "template baked template=base" in own.tail(), own.tail()


def largest(snapshot):
    return max((f for f in snapshot.iterdir() if f.suffix != ".map" and f.name not in ("state", "manifest.json")), key=lambda f: f.stat().st_blocks)


def test_one_flipped_bit_in_a_bake_is_found(own):
    own.create()
    (bake,) = bakes(own)
    own.stop()
    victim = largest(own.data / "store/snapshots" / bake)
    data = victim.read_bytes()
    victim.unlink()  # other tests use that file
    victim.write_bytes(data)
    own.start()
    own.create()
    assert "template baked template=base" not in own.tail()  # as good as before
    own.stop()
    at = data.find(b"\x7fELF")
    with open(victim, "r+b") as f:
        f.seek(at)
        f.write(b"\x7eELF")
    own.start()
    assert own.sh(own.create(), "echo fine")["stdout"] == "fine\n"
    assert "template baked template=base" in own.tail(), own.tail()
    assert os.listdir(own.data / "store/checked") == list(bakes(own))


def test_one_flipped_bit_in_a_step_or_a_template_of_ones_own(own):
    build(own, "x", "FROM base\nRUN head -c 3000000 /dev/urandom >/root/r; sync; echo first >/root/d")
    own.stop()
    for snapshot in (own.data / "store/snapshots").iterdir():
        if snapshot.name in bakes(own) and len(snapshot.name) != 40:
            continue  # the base's
        for victim in snapshot.iterdir():
            if victim.name == "state":
                data = bytearray(victim.read_bytes())
                data[len(data) // 2] ^= 1
                victim.unlink()
                victim.write_bytes(data)
    own.start()
    a = own.ask("POST", "/v1/sandboxes", {"template": "x"})
    assert a.status >= 500 and "build it again" in a.json["error"], a
    _, text = build(own, "x", "FROM base\nRUN head -c 3000000 /dev/urandom >/root/r; sync; echo first >/root/d", replace="true")
    assert "as before" not in text
    assert own.sh(own.create(template="x"), "cat /root/d")["stdout"] == "first\n"


def test_two_builds_of_one_name(own):
    """The one that is done later is there in the end, whole; the other has left nothing."""
    had = bakes(own)
    text = "FROM base\nRUN echo %d >/root/which; head -c 300000 /dev/urandom >/root/mass; sha256sum </root/mass >/root/sum"
    a, b = (order(own, "x", text % i, replace="true") for i in (1, 2))
    assert (a.status, b.status) == (202, 202)
    for o in a, b:
        log(own, o.json["id"], follow=True)
        assert own.do("GET", f"/v1/templates/builds/{o.json['id']}")["status"] == "done"
    r = own.sh(own.create(template="x"), "cat /root/which; sha256sum </root/mass | cmp - /root/sum && echo whole")
    assert r["stdout"] in ("1\nwhole\n", "2\nwhole\n")
    wait_for("the other bake to go", lambda: len(bakes(own)) == len(had) + 1)
    # without replace, one of them is told so
    a, b = (order(own, "y", text % i) for i in (3, 4))
    ends = []
    for o in a, b:
        log(own, o.json["id"], follow=True)
        ends.append(own.do("GET", f"/v1/templates/builds/{o.json['id']}"))
    assert sorted(e["status"] for e in ends) == ["done", "failed"]
    assert [e for e in ends if e["status"] == "failed" and "already" in e["error"]], ends
    assert own.sh(own.create(template="y"), "cat /root/which")["stdout"] in ("3\n", "4\n")
    wait_for("nothing to be left of it", lambda: len(bakes(own)) == len(had) + 2)


def test_a_new_version_goes_live_at_once(own):
    """Who creates meanwhile gets the old one or the new one, and all of it."""
    text = "FROM base\nRUN echo %d >/root/a\nRUN echo %d >/root/b"
    build(own, "x", text % (0, 0))
    kept = own.create(template="x")
    seen, stop = set(), threading.Event()

    def create():
        while not stop.is_set():
            id = own.create(template="x")
            seen.add(own.sh(id, "cat /root/a /root/b")["stdout"])
            own.do("DELETE", f"/v1/sandboxes/{id}")

    t = threading.Thread(target=create)
    t.start()
    try:
        for i in 1, 2:
            build(own, "x", text % (i, i), replace="true")
        wait_for("the last one to be seen", lambda: "2\n2\n" in seen)
    finally:
        stop.set()
        t.join()
    assert seen <= {"0\n0\n", "1\n1\n", "2\n2\n"}, seen
    assert own.sh(kept, "cat /root/a /root/b")["stdout"] == "0\n0\n"


def test_a_new_version_of_the_hosts_goes_live_at_once(own):
    """What tools/image has made anew: creates get the old one or the new one, what runs keeps its own, and the old bake goes with its layers."""
    path = own.data / "templates/base.json"
    plain = json.loads(path.read_text())
    own.create()
    (first,) = bakes(own)

    def layers(bake):
        return set(os.listdir(own.data / "store/snapshots" / bake)) - {"state", "manifest.json"}

    def publish(i):
        new = path.with_name(".base.new")
        new.write_text(json.dumps({**plain, "warm": [*plain["warm"], f"head -c 3000000 /dev/urandom >/root/mass; sync; echo {i} >/root/a"]}))
        new.rename(path)
        own.process.send_signal(signal.SIGHUP)

    look = "cat /root/a 2>/dev/null; [ ! -e /root/mass ] || wc -c </root/mass"
    seen, stop = set(), threading.Event()

    def create():
        while not stop.is_set():
            id = own.create()
            seen.add(own.sh(id, look)["stdout"])
            own.do("DELETE", f"/v1/sandboxes/{id}")

    publish(1)
    wait_for("the first new one", lambda: own.sh(own.create(), look)["stdout"] == "1\n3000000\n")
    (second,) = wait_for("the bake of before to go", lambda: bakes(own) if first not in bakes(own) else None)
    kept, had = own.create(), layers(second)
    check = own.sh(kept, "sha256sum </root/mass")["stdout"]
    t = threading.Thread(target=create)
    t.start()
    try:
        wait_for("somebody to create", lambda: seen)
        publish(2)
        wait_for("the last one to be seen", lambda: "2\n3000000\n" in seen)
    finally:
        stop.set()
        t.join()
    assert seen == {"1\n3000000\n", "2\n3000000\n"}, seen
    wait_for("the old bake to go", lambda: len(bakes(own)) == 1 and second not in bakes(own))
    (third,) = bakes(own)
    mine = had - layers(third)
    assert mine
    wait_for("its layers to go", lambda: not mine & set(os.listdir(own.data / "store/layers")))
    # but for those who run with them: they are read, and forked
    child = own.do("POST", f"/v1/sandboxes/{kept}/fork", {}, expect=201)["children"][0]
    for id in kept, child:
        assert own.sh(id, "cat /root/a; sha256sum </root/mass")["stdout"] == "1\n" + check
