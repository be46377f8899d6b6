"""Many hands on one sandbox: whatever is asked at once, everybody gets an answer that makes sense, and nothing breaks."""
import random
import threading

import pytest

from conftest import count

FINE = {200, 201, 204, 404, 409}  # done, gone already, or not now
CUT = {"guest_gone", "guest_unreachable", "machine_gone"}  # 502: it was killed or put back in the middle of that


class Crowd:
    """What can be asked of a sandbox with a checkpoint "x", a snapshot, two children, and of the volume "crowd"."""

    def __init__(self, p):
        self.p = p
        p.ask("POST", "/v1/volumes", {"name": "crowd", "size_mb": 64})
        self.id = p.create(checkpoints="auto")
        p.do("POST", f"/v1/sandboxes/{self.id}/checkpoints", {"name": "x"})
        snap = p.do("POST", f"/v1/sandboxes/{self.id}/snapshots")["id"]
        kids = [c["id"] for c in p.do("POST", f"/v1/sandboxes/{self.id}/fork-tree", {"count": 2})["children"]]
        me = f"/v1/sandboxes/{self.id}"
        self.all = {
            "fork": ("POST", me + "/fork", {}), "fork-tree": ("POST", me + "/fork-tree", {"count": 2}),
            "race": ("POST", me + "/race", {"commands": ["true", "sleep 0.1"]}),
            "hibernate": ("POST", me + "/hibernate"), "wake": ("POST", me + "/wake"),
            "pause": ("POST", me + "/pause"), "resume": ("POST", me + "/resume"), "kill": ("DELETE", me),
            "exec": ("POST", me + "/exec", {"cmd": "echo hi"}), "write": ("PUT", me + "/fs?path=/root/x", b"x"),
            "checkpoint": ("POST", me + "/checkpoints", {}), "forget": ("DELETE", me + "/checkpoints/x"),
            "rewind": ("POST", me + "/rewind", {"to": "x"}), "snapshot": ("POST", me + "/snapshots"),
            "from": ("POST", "/v1/sandboxes", {"from_snapshot": snap}), "delete": ("DELETE", f"/v1/snapshots/{snap}"),
            "promote 0": ("POST", f"/v1/sandboxes/{kids[0]}/promote", {}),
            "promote 1": ("POST", f"/v1/sandboxes/{kids[1]}/promote", {}),
            "diff": ("GET", me + f"/diff?to={kids[0]}"), "merge": ("POST", me + "/merge", {"child": kids[0]}),
            "attach": ("POST", me + "/volumes", {"name": "crowd", "path": "/mnt/v"}),
            "detach": ("DELETE", me + "/volumes/crowd"), "drop": ("DELETE", "/v1/volumes/crowd"),
            "grow": ("PATCH", "/v1/volumes/crowd", {"size_mb": 96}),
            "copy": ("POST", "/v1/volumes/crowd/snapshots", {}),
            "ttl": ("PATCH", me + "/lifecycle", {"ttl_seconds": 500}),
        }

    def at_once(self, names):
        """{name: answer}"""
        said = {}

        def one(name):
            said[name] = self.p.ask(*self.all[name], timeout=120)

        threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in names]
        for t in threads:
            t.start()
        for t in threads:
            t.join(0.5)
        self.p.ask("POST", f"/v1/sandboxes/{self.id}/resume")  # what was open when it was paused waits for this
        for t in threads:
            t.join(120)
        missing = set(names) - set(said)
        assert not missing, f"no answer to {missing} in {names}: {self.p.tail()}"
        return said


def check(said):
    for name, a in said.items():
        assert a.status in FINE or (a.status == 502 and a.json["code"] in CUT), (name, a, said)
        assert a.status < 400 or a.json["error"], (name, a)


def test_everything_at_once(new_pandad):
    p = new_pandad()
    r = random.Random(5)
    for _ in range(count(8, 300)):
        c = Crowd(p)
        check(c.at_once(r.sample(sorted(c.all), r.randint(4, 12))))
        p.clear()


@pytest.mark.parametrize("names", [("fork", "hibernate"), ("kill", "rewind"), ("promote 0", "promote 1"), ("attach", "drop"),
                                   ("from", "delete"), ("hibernate", "kill", "exec"), ("rewind", "hibernate", "fork"),
                                   ("attach", "detach", "copy", "kill")], ids="-".join)
def test_two_hands(pandad, names):
    for _ in range(count(2, 20)):
        c = Crowd(pandad)
        check(c.at_once(names))
        pandad.clear()


def test_a_refused_fork_closes_nothing(pandad):
    """It closed fd 0, which by then was the connection of somebody else."""
    id = pandad.create()
    pandad.do("POST", f"/v1/sandboxes/{id}/pause")
    for what, body in ("fork", {}), ("fork-tree", {"count": 3}), ("race", {"commands": ["true"]}):
        assert pandad.ask("POST", f"/v1/sandboxes/{id}/{what}", body).status == 409
    assert pandad.standard == pandad._standard_fds()
