"""pandad killed at every named step of every operation: the next one finishes or undoes it, and nothing is left."""
import contextlib
import json
import sqlite3
import subprocess

import pytest

from conftest import wait_for
from server import BUILD
from test_builds import order

OPERATIONS = {
    "create": lambda p, id: p.ask("POST", "/v1/sandboxes", {"template": "base"}),
    "fork": lambda p, id: p.ask("POST", f"/v1/sandboxes/{id}/fork-tree", {"count": 3}),
    "snapshot": lambda p, id: p.ask("POST", f"/v1/sandboxes/{id}/snapshots"),
    "forget": lambda p, id: p.ask("DELETE", "/v1/snapshots/" + p.do("POST", f"/v1/sandboxes/{id}/snapshots")["id"]),
    "hibernate": lambda p, id: p.ask("POST", f"/v1/sandboxes/{id}/hibernate"),
    "wake": lambda p, id: p.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "true"}),
    "pause": lambda p, id: p.ask("POST", f"/v1/sandboxes/{id}/pause"),
    "resume": lambda p, id: p.ask("POST", f"/v1/sandboxes/{id}/resume"),
    "kill": lambda p, id: p.ask("DELETE", f"/v1/sandboxes/{id}"),
    "volume": lambda p, id: (p.ask("POST", "/v1/volumes", {"name": "v", "size_mb": 64}),
                             p.ask("DELETE", "/v1/volumes/v")),
    "bake": lambda p, id: p.ask("POST", "/v1/sandboxes", {"template": "base"}),
    "build": lambda p, id: order(p, "mine", "FROM base\nRUN true\n"),
    "unpack": lambda p, id: order(p, "mine", "FROM scratch\n"),
    "rebake": None,  # test_rebake.py
    "save": lambda p, id: (p.ask("POST", f"/v1/sandboxes/{id}/save-as-template", {"name": "mine"}),
                           p.ask("DELETE", "/v1/templates/mine")),
    "checkpoint": lambda p, id: p.ask("POST", f"/v1/sandboxes/{id}/checkpoints"),
    "import": None,  # test_state_archive.py
    "attach": None,  # test_server_volumes_live.py
    "detach": None,
    "resize": None,
    "copy": None,
    "diff": lambda p, id: p.ask("GET", f"/v1/sandboxes/{id}/diff?to=" + p.do("POST", f"/v1/sandboxes/{id}/checkpoints")["id"]),
    "rewind": lambda p, id: (p.ask("POST", f"/v1/sandboxes/{id}/checkpoints"), p.sh(id, "echo later >/root/later"),
                             p.ask("POST", f"/v1/sandboxes/{id}/rewind"), p.ended()),
    "prepare": lambda p, id: None,
}


def names():
    try:
        out = subprocess.run([str(BUILD / "src/daemon/pandad"), "--list-faults"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ["pandad-is-not-built"]
    return [n for n in out.stdout.split() if OPERATIONS.get(n.split(".")[0], True)]


def whole(p, id, gone_is_fine=False):
    """The sandbox that was there before has all it had."""
    a = p.ask("GET", f"/v1/sandboxes/{id}")
    if a.status == 404 and gone_is_fine:
        return
    assert a.status == 200, a
    if a.json["status"] == "paused":
        p.do("POST", f"/v1/sandboxes/{id}/resume")
    assert p.sh(id, "cat /dev/shm/m /root/d")["stdout"] == "memory\ndisk\n"


def consistent(p):
    """What runs, what is on disk and what is on record say the same."""
    with contextlib.closing(sqlite3.connect(f"file:{p.data}/panda.db?mode=ro", uri=True)) as db:
        machine = {id: json.loads(doc).get("machine", id) for id, doc in db.execute("SELECT id, doc FROM sandboxes")}
    live = {machine[s["id"]] for s in p.do("GET", "/v1/sandboxes") if s["status"] in ("running", "paused")}
    asleep = {s["id"] for s in p.do("GET", "/v1/sandboxes") if s["status"] == "hibernated"}
    assert set(p.processes()) == live
    known = {s["id"] for s in p.do("GET", "/v1/snapshots")["snapshots"]} | {f"hib-{i}" for i in asleep}
    assert set(p.snapshots()) == known
    assert p.slept() <= {s["id"] for s in p.do("GET", "/v1/sandboxes")} - asleep
    # The others are made ahead, for sandboxes to come.
    assert live <= set(p.machines())
    assert p.cgroups() <= set(p.machines())


@pytest.mark.parametrize("fault", names())
def test_killed_at(new_pandad, fault):
    operation = fault.split(".")[0]
    p = new_pandad(start=False)
    if operation == "bake":
        for d in (p.data / "store/snapshots").glob("tpl-*"):
            subprocess.run(["rm", "-r", str(d)], check=True)
    id = None
    if operation not in ("bake", "prepare"):
        p.start()
        id = p.create()
        p.sh(id, "echo memory >/dev/shm/m; echo disk >/root/d; sync")
        if operation == "wake":
            p.do("POST", f"/v1/sandboxes/{id}/hibernate")
        if operation == "resume":
            p.do("POST", f"/v1/sandboxes/{id}/pause")
        p.stop()
    p.start(fault=fault, wait=operation != "prepare")
    try:
        OPERATIONS[operation](p, id)
    except OSError:
        pass  # it died under our hands, as it should
    assert p.ended() == -9, f"{fault} was never reached: {p.tail()}"
    p.start()
    wait_for("the books to agree", lambda: consistent(p) is None)
    if id:
        whole(p, id, gone_is_fine=operation == "kill")
    if operation == "kill":
        wait_for("the kill to be finished", lambda: p.ask("GET", f"/v1/sandboxes/{id}").status == 404)
    assert p.sh(p.create(), "echo fresh")["stdout"] == "fresh\n"
