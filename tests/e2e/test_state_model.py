"""Random walks of commands, checkpoints, rewinds, forks, hibernations, snapshots and deaths against a simple model."""
import random

import pytest

from conftest import count, wait_for

FILES = ["/root/a", "/root/b", "/dev/shm/c"]


class Box:
    def __init__(self, files):
        self.files = dict(files)
        self.points = {}  # name: files; only those the model made
        self.order = []


class Walk:
    def __init__(self, p, seed):
        self.p, self.r = p, random.Random(seed)
        self.boxes = {p.create(): Box({})}
        self.snaps = {}
        self.n = 0

    def check(self, id):
        got = self.p.sh(id, f"for f in {' '.join(FILES)}; do echo $f $(cat $f 2>/dev/null); done")["stdout"]
        want = "".join(f"{f} {self.boxes[id].files.get(f, '')}".rstrip() + "\n" for f in FILES)
        assert "".join(line.rstrip() + "\n" for line in got.splitlines()) == want, (id, self.n)

    def write(self, id, box):
        f, v = self.r.choice(FILES), str(self.r.randrange(1 << 30))
        self.p.sh(id, f"echo {v} >{f}")
        box.files[f] = v

    def remove(self, id, box):
        f = self.r.choice(FILES)
        self.p.sh(id, f"rm -f {f}")
        box.files.pop(f, None)

    def checkpoint(self, id, box):
        if len(box.order) >= 12:
            return
        name = f"p{self.n}"
        self.p.do("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": name})
        box.points[name] = dict(box.files)
        box.order.append(name)

    def rewind(self, id, box):
        if not box.order:
            assert self.p.ask("POST", f"/v1/sandboxes/{id}/rewind", {"to": "p0"}).status == 404
            return
        name = self.r.choice(box.order)
        self.p.do("POST", f"/v1/sandboxes/{id}/rewind", {"to": name})
        box.files = dict(box.points[name])
        box.order = box.order[:box.order.index(name) + 1]  # later ones are gone

    def fork(self, id, box):
        if len(self.boxes) < 5:
            child = self.p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
            self.boxes[child] = Box(box.files)

    def kill(self, id, box):
        if len(self.boxes) > 1:
            self.p.do("DELETE", f"/v1/sandboxes/{id}")
            del self.boxes[id]

    def hibernate(self, id, box):
        self.p.do("POST", f"/v1/sandboxes/{id}/hibernate")
        box.order, box.points = [], {}

    def snapshot(self, id, box):
        if len(self.snaps) < 3:
            self.snaps[self.p.do("POST", f"/v1/sandboxes/{id}/snapshots")["id"]] = dict(box.files)

    def restore(self, id, box):
        if self.snaps and len(self.boxes) < 5:
            snap = self.r.choice(sorted(self.snaps))
            self.boxes[self.p.create(from_snapshot=snap)] = Box(self.snaps[snap])

    def forget(self, id, box):
        if self.snaps:
            snap = self.r.choice(sorted(self.snaps))
            self.p.do("DELETE", f"/v1/snapshots/{snap}")
            del self.snaps[snap]

    def compare(self, id, box):
        other = self.r.choice(sorted(self.boxes))
        d = self.p.do("GET", f"/v1/sandboxes/{id}/diff?to={other}")
        a, b = ({f: v for f, v in x.files.items() if f.startswith("/root/")} for x in (box, self.boxes[other]))
        said = {k: {c["path"] for c in d[k]} & set(FILES) for k in ("added", "changed", "removed")}
        assert said == {"added": set(b) - set(a), "removed": set(a) - set(b),
                        "changed": {f for f in set(a) & set(b) if a[f] != b[f]}}, (self.n, d)

    def step(self):
        self.n += 1
        id = self.r.choice(sorted(self.boxes))
        what = self.r.choices(
            [self.write, self.remove, self.checkpoint, self.rewind, self.fork, self.kill, self.hibernate,
             self.snapshot, self.restore, self.forget, self.compare],
            [8, 2, 6, 6, 3, 2, 1, 1, 2, 1, 3])[0]
        what(id, self.boxes[id])
        if id in self.boxes and what != self.hibernate:
            self.check(id)


def in_store(p):
    return {f.name for f in (p.data / "store/layers").iterdir()}


def in_use(p):
    """Files of layers that some snapshot, template or sleep has."""
    return {f.name for d in (p.data / "store/snapshots").iterdir() for f in d.iterdir()} - {"manifest.json", "state"}


@pytest.mark.parametrize("seed", range(count(3, 40)))
def test_a_random_walk(pandad, seed):
    w = Walk(pandad, seed)
    for _ in range(count(60, 1000)):
        w.step()
    for id, box in w.boxes.items():
        w.check(id)
        names = [c["name"] for c in pandad.do("GET", f"/v1/sandboxes/{id}/checkpoints")["checkpoints"]]
        assert names == box.order[::-1]
    wait_for("one machine each", lambda: len(pandad.processes()) == len(w.boxes))
    wait_for("no snapshot too many", lambda: set(pandad.snapshots()) == set(w.snaps))
    wait_for("no layer too many", lambda: in_store(pandad) <= in_use(pandad))
