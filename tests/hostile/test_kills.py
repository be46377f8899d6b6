"""pandad is killed at random moments, while clients create, fork, hibernate, save and delete: nothing is lost, nothing is left."""
import random
import threading
import time

import pytest

from conftest import count, wait_for
from server import patience


class Keeper(threading.Thread):
    """A client with a few sandboxes of its own. It knows what was answered, and so what must be there."""

    def __init__(self, p, n, stop):
        super().__init__(daemon=True)
        self.p, self.n, self.stop, self.r = p, n, stop, random.Random(n)
        self.sure = {}  # id -> what is in it; its create was answered, its delete not asked for
        self.gone = set()  # its delete was answered
        self.saved = {}  # snapshot -> what is in it
        self.wrong = []
        self.steps = 0

    def ask(self, method, path, body=None, expect=(200, 201, 204)):
        """The answer; None when pandad went away meanwhile, or comes up just now."""
        try:
            a = self.p.ask(method, path, body, timeout=30)
        except OSError:
            return None
        except Exception as e:  # http.client: the answer was cut
            assert type(e).__module__ == "http.client", e
            return None
        if a.status not in expect:
            self.wrong.append((method, path, a.status, a.body[:300]))
            return None
        return a

    def sh(self, id, cmd):
        a = self.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": cmd, "timeout_seconds": 60 * patience()})
        return a and a.json["stdout"]

    def begin(self):
        a = self.ask("POST", "/v1/sandboxes", {"template": "base", "ttl_seconds": 3600})
        if a:
            id, word = a.json["id"], f"{self.n}-{self.steps}"
            self.sure[id] = None  # until its content was written, only that it is there is known
            if self.sh(id, f"echo {word} | tee /dev/shm/word >/root/word; sync; cat /root/word") == word + "\n":
                self.sure[id] = word

    def fork(self, id):
        a = self.ask("POST", f"/v1/sandboxes/{id}/fork-tree", {"count": 2})
        for c in a.json["children"] if a else []:
            self.sure[c["id"]] = self.sure[id]

    def save(self, id):
        a = self.ask("POST", f"/v1/sandboxes/{id}/snapshots")
        if a:
            self.saved[a.json["id"]] = self.sure[id]

    def hibernate(self, id):
        self.ask("POST", f"/v1/sandboxes/{id}/hibernate")

    def look(self, id):
        self.check(id)

    def end(self, id):
        self.sure.pop(id)
        if self.ask("DELETE", f"/v1/sandboxes/{id}", expect=(200, 204, 404)):
            self.gone.add(id)

    def check(self, id):
        """True once pandad has answered."""
        said = self.sh(id, "cat /dev/shm/word /root/word")
        word = self.sure[id]
        if said is not None and word and said != f"{word}\n{word}\n":
            self.wrong.append((id, "should hold", word, "holds", said))
        return said is not None

    def run(self):
        while not self.stop.is_set():
            self.steps += 1
            if not self.sure or (len(self.sure) < 4 and self.r.random() < 0.4):
                self.begin()
            else:
                id = self.r.choice(sorted(self.sure))
                self.r.choice([self.look, self.look, self.hibernate, self.save, self.fork, self.end, self.end])(id)
            while len(self.saved) > 2:
                snap = next(iter(self.saved))
                if self.ask("DELETE", f"/v1/snapshots/{snap}", expect=(200, 204, 404)):
                    del self.saved[snap]
                elif self.stop.is_set():
                    break


@pytest.mark.parametrize("kills", [count(10, 200)])
def test_pandad_dies_at_any_moment(new_pandad, kills):
    p = new_pandad(log="warn")
    p.do("DELETE", f"/v1/sandboxes/{p.create()}")
    r, stop = random.Random(11), threading.Event()
    clients = [Keeper(p, n, stop) for n in range(4)]
    for c in clients:
        c.start()
    for _ in range(kills):
        before = [c.steps for c in clients]
        wait_for("clients to go on", lambda: all(c.steps > s for c, s in zip(clients, before)), 120)
        time.sleep(r.uniform(0, 0.3))  # the moment is what is tried here
        p.kill9()
        p.start()
    stop.set()
    for c in clients:
        c.join(300)
        assert not c.is_alive()
    assert not [w for c in clients for w in c.wrong], [c.wrong for c in clients]
    known = {s["id"] for s in p.do("GET", "/v1/sandboxes")}
    for c in clients:
        assert not c.gone & known, "deleted, and there again"
        assert set(c.sure) <= known, "lost"
        for id in c.sure:
            assert c.check(id), p.tail()
        for snap, word in c.saved.items():
            id = p.do("POST", "/v1/sandboxes", {"from_snapshot": snap})["id"]
            assert not word or p.sh(id, "cat /dev/shm/word /root/word")["stdout"] == f"{word}\n{word}\n"
        assert not c.wrong, c.wrong
    assert sum(c.steps for c in clients) > 10 * len(clients)
