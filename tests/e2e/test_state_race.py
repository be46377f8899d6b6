"""race: fork for each command, keep the first child whose command passes, kill the rest."""
import socket
import json
import time

from conftest import wait_for
from server import patience


def race(p, id, commands, **kw):
    return p.do("POST", f"/v1/sandboxes/{id}/race", dict(commands=commands, **kw))


def ids(p):
    return {s["id"] for s in p.do("GET", "/v1/sandboxes")}


def alone(p, *keep):
    wait_for("the losers to be gone", lambda: ids(p) == set(keep))
    wait_for("their machines, too", lambda: len(p.processes()) == len(keep))


def test_the_first_that_passes_is_kept(pandad):
    id = pandad.create()
    pandad.sh(id, "echo start >/root/n; echo mem >/dev/shm/m")
    r = race(pandad, id, ["sleep 30", "sleep 0.1; exit 3", {"cmd": "sleep 0.3; echo won >>/root/n; cat /root/n"},
                          "sleep 30; exit 0"])
    assert r["winner_index"] == 2 and r["result"]["stdout"] == "start\nwon\n"
    states = [o["state"] for o in r["outcomes"]]
    assert states == ["killed", "lost", "won", "killed"]
    assert r["outcomes"][1]["result"]["exit_code"] == 3
    winner = r["winner"]["id"]
    assert r["winner"]["parent_id"] == id and r["winner"]["fork_tree_id"] == r["tree_id"]
    assert pandad.sh(winner, "cat /root/n /dev/shm/m")["stdout"] == "start\nwon\nmem\n"
    assert pandad.sh(id, "cat /root/n")["stdout"] == "start\n"
    alone(pandad, id, winner)


def test_nobody_passes(pandad):
    id = pandad.create()
    r = race(pandad, id, ["exit 1", "echo no; exit 2"])
    assert r["winner"] is None and r["winner_index"] is None and r["result"] is None
    assert [o["result"]["exit_code"] for o in r["outcomes"]] == [1, 2]
    assert [o["state"] for o in r["outcomes"]] == ["lost", "lost"]
    alone(pandad, id)


def test_what_passes_can_be_said(pandad):
    id = pandad.create()
    r = race(pandad, id, ["echo a", "echo b", "echo b; exit 1"], accept='exit_code == 0 && stdout contains "b"')
    assert r["winner_index"] == 1
    r = race(pandad, id, ["exit 5", "exit 6"], accept="exit_code == 6")
    assert r["winner_index"] == 1
    for bad in ("exit_code = 0", "true", "exit_code == 0 &&", 'stdout contains ""', "x"):
        a = pandad.ask("POST", f"/v1/sandboxes/{id}/race", {"commands": ["true"], "accept": bad})
        assert a.status == 400 and "accept" in a.json["error"], (bad, a)


def test_time_is_over(pandad):
    id = pandad.create()
    began = time.monotonic()
    r = race(pandad, id, ["sleep 1000", "sleep 1000"], timeout_seconds=0.5)
    assert time.monotonic() - began < 10 * patience()
    assert r["winner"] is None and {o["state"] for o in r["outcomes"]} <= {"killed", "lost"}
    alone(pandad, id)


def test_whoever_asked_is_gone(pandad):
    id = pandad.create()
    body = json.dumps({"commands": ["sleep 60"] * 3, "timeout_seconds": 60})
    with socket.create_connection(("127.0.0.1", pandad.port)) as s:
        s.sendall((f"POST /v1/sandboxes/{id}/race HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {pandad.key}\r\n"
                   f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
        wait_for("the children", lambda: len(ids(pandad)) == 4)
    alone(pandad, id)


def test_gone_at_once(pandad):
    id = pandad.create()
    body = json.dumps({"commands": ["sleep 60"] * 3})
    with socket.create_connection(("127.0.0.1", pandad.port)) as s:
        s.sendall((f"POST /v1/sandboxes/{id}/race HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {pandad.key}\r\n"
                   f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
    alone(pandad, id)


def test_wrong_requests(pandad):
    id = pandad.create()
    for body in ({}, {"commands": []}, {"commands": ["x"] * 17}, {"commands": [""]}, {"commands": [1]},
                 {"commands": "true"}, {"commands": ["true"], "timeout_seconds": -1},
                 {"commands": ["true"], "timeout_seconds": "x"}, {"commands": ["true"], "accept": 1}):
        a = pandad.ask("POST", f"/v1/sandboxes/{id}/race", body)
        assert a.status == 400, (body, a)
    alone(pandad, id)


def test_a_child_that_dies_in_the_race(pandad):
    id = pandad.create()
    r = race(pandad, id, ["echo o >/proc/sysrq-trigger; sleep 1000", "sleep 0.5; echo ok"], timeout_seconds=50)
    assert r["winner_index"] == 1 and r["outcomes"][0]["state"] in ("failed", "killed", "lost")
    alone(pandad, id, r["winner"]["id"])
