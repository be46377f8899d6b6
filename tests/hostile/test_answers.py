"""Root in a guest takes the agent's place and answers pandad with what it likes (issue: what a guest may answer)."""
import os

import pytest

from conftest import wait_for
from streams import rss_kib
from takeover import ATTACHED, END, EXITED, READY, REPLIES, STARTED, brings, end, row, take_over

MANY = 3_000_000  # frames of one kind: 36 MB of READY, 200 MB of EXITED, had each been taken


def records(pandad):
    """How large what pandad writes down is."""
    return sum((pandad.data / name).stat().st_size for name in ("panda.db", "panda.db-wal") if (pandad.data / name).exists())


@pytest.fixture
def served(pandad):
    """Another tenant's sandbox, which is served during and after the attack by the same pandad, and that does not grow."""
    pid = pandad.process.pid
    token = pandad.do("POST", "/v1/me/tokens", {"tenant": "neighbour", "label": "neighbour"})["token"]
    other = pandad.do("POST", "/v1/sandboxes", {"template": "base"}, token=token)["id"]

    def look():
        a = pandad.do("POST", f"/v1/sandboxes/{other}/exec", {"cmd": "echo here"}, token=token)
        assert a["stdout"] == "here\n"
        assert pandad.process.poll() is None and pandad.process.pid == pid, pandad.tail()

    look()
    rss, wrote = rss_kib(pid), records(pandad)
    yield look
    look()
    assert rss_kib(pid) - rss < 32 * 1024, "pandad has grown"
    assert records(pandad) - wrote < 4 << 20, "its records have grown"
    pandad.do("DELETE", f"/v1/sandboxes/{other}", token=token)


def taken(pandad, plan):
    """A sandbox whose agent says END 22 to what has no answer of its own, and that does."""
    id = pandad.create()
    take_over(pandad, id, {"": [end(22, "taken")], **plan})
    refused = wait_for("the takeover", lambda: (a := pandad.ask("GET", f"/v1/sandboxes/{id}/fs?path=/etc/hostname")).status != 200 and a)
    assert "taken" in refused.json["error"], refused
    return id


@pytest.mark.core
def test_an_agent_that_talks_nonsense_ends_its_own_connection(pandad, served):
    id = taken(pandad, {})
    for nonsense in [row(None, payload=os.urandom(512))], [row(None, payload=b"\xff" * 12)], [row(99)]:
        a = pandad.ask("GET", f"/v1/sandboxes/{id}/fs?path=/{brings(*nonsense)}")
        assert a.status >= 500, a
        served()


@pytest.mark.core
def test_floods_of_replies_fill_neither_memory_nor_records(pandad, served):
    """The agent answers a command, a watch, the output of a command and a file with millions of each reply, after the one that is
    right. What is told of that is short, and one frame of each kind at most is on record."""
    attach = 33
    for name, reply in REPLIES.items():
        id = taken(pandad, {str(attach): [row(ATTACHED), row(reply, MANY), end()]})
        answers = [
            pandad.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "true #" + brings(row(STARTED), row(reply, MANY), end())}),
            pandad.ask("POST", f"/v1/sandboxes/{id}/exec/stream", {"cmd": "true #" + brings(row(STARTED), row(reply, MANY), end())}),
            pandad.ask("GET", f"/v1/sandboxes/{id}/fs/watch?path=/{brings(row(READY), row(reply, MANY), end())}"),
            pandad.ask("GET", f"/v1/sandboxes/{id}/fs?path=/{brings(row(reply, MANY), end())}"),
            pandad.ask("GET", f"/v1/sandboxes/{id}/execs/1/output?follow=1"),
        ]
        for a in answers:
            assert len(a.body) < 4096, (name, len(a.body), a.body[:300])
        served()
        events = pandad.do("GET", f"/v1/sandboxes/{id}/events")["events"]
        assert sum(e["type"] == "exec.oom_killed" for e in events) <= 2, (name, len(events))  # the two commands
        pandad.do("DELETE", f"/v1/sandboxes/{id}")


@pytest.mark.parametrize("reply", [READY, EXITED, END])
def test_a_lie_in_one_call_leaves_the_others_alone(pandad, served, reply):
    """One answer against the table ends its own call: a watch on the same connection goes on. The next one ends both."""
    id = taken(pandad, {})
    watch = pandad.connection(60)
    watch.request("GET", f"/v1/sandboxes/{id}/fs/watch?path=/{brings(row(READY))}", headers={"Authorization": f"Bearer {pandad.key}"})
    r = watch.getresponse()
    assert r.status == 200 and r.readline() == b"event: ready\n"
    lie = end() if reply == END else row(reply)
    assert pandad.ask("GET", f"/v1/sandboxes/{id}/fs/stat?path=/{brings(lie)}").json["code"] == "upstream"
    served()
    again = pandad.ask("GET", f"/v1/sandboxes/{id}/fs/stat?path=/{brings(end(2, 'nothing there'))}")
    assert again.status == 404, again
    assert pandad.ask("GET", f"/v1/sandboxes/{id}/fs/stat?path=/{brings(lie)}").json["code"] == "guest_gone"
    rest = r.read()
    assert b"event: error" in rest and b"guest_gone" in rest, rest
    watch.close()
