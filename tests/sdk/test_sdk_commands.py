"""Detached commands: the output is gap-free whatever happens to connections."""

import base64
import random
import threading

import pytest

from conftest import BOX
from pandastack import APIConnectionError, NotFoundError, Sandbox, SandboxTimeout, ServerError
from pandastack._sync import commands

P = "/v1/sandboxes/sb-1/execs"
INFO = {"id": "7", "pid": 12, "command": "make", "running": True, "detached": True, "pty": False, "exit_code": None,
        "signal": None, "timed_out": False, "stdout_from": 0, "stdout_to": 0, "stderr_from": 0, "stderr_to": 0}


class Log:
    """A command's output on the server: answers from any offset, and hangs up after some bytes when told to."""

    def __init__(self, stdout, stderr=b"", kept_from=0, piece=5, cuts=(), exit=None):
        self.data = {"stdout": stdout, "stderr": stderr}
        self.kept_from = kept_from
        self.piece = piece
        self.cuts = list(cuts)  # per connection: how many pieces before it breaks
        self.exit = exit or {"exit_code": 0, "timed_out": False}
        self.asked = []

    def __call__(self, r, peer):
        at = {s: max(int(r.query.get(f"{s}_offset", 0)), self.kept_from if s == "stdout" else 0) for s in self.data}
        self.asked.append((r.query["stdout_offset"], r.query["stderr_offset"]))
        left = self.cuts.pop(0) if self.cuts else None
        peer.sse()
        peer.event("start", {f"{s}_offset": at[s] for s in at})
        while any(at[s] < len(self.data[s]) for s in at):
            for s in at:
                raw = self.data[s][at[s] : at[s] + self.piece]
                if not raw:
                    continue
                if left == 0:
                    return peer.cut()
                left = left if left is None else left - 1
                peer.event(s, {"chunk_b64": base64.b64encode(raw).decode(), "offset": at[s]})
                at[s] += len(raw)
        if left == 0:
            return peer.cut()
        peer.event("exit", self.exit)
        peer.end()


@pytest.fixture
def command(server, box):
    server.on("POST", P, (201, {"id": "7", "pid": 12}))
    server.on("GET", P + "/7", INFO)
    return box.start("make", cwd="/w", stdin=True)


def test_start_sends_what_was_said(server, box):
    server.on("POST", P, (201, {"id": "7", "pid": 12}))
    c = box.start(["top"], pty=True, rows=10, cols=20, timeout_seconds=5, env={"A": "1"}, user="u", hold=True)
    assert server.asked()[0].json == {"hold": True, "argv": ["top"], "timeout_seconds": 5, "env": {"A": "1"}, "user": "u", "pty": True, "rows": 10, "cols": 20}
    assert (c.id, c.pid, c.exit_code) == ("7", 12, None)


def test_the_output_is_an_iterator(server, command):
    log = Log("héllo wörld".encode(), b"err")
    server.on("GET", P + "/7/output", log)
    pieces = list(command.output())
    assert b"".join(p.data for p in pieces if p.stream == "stdout") == "héllo wörld".encode()
    assert "".join(p.text for p in pieces if p.stream == "stdout") == "héllo wörld"
    assert command.exit_code == 0
    assert server.asked("GET")[-1].query["follow"] == "1" and server.asked("GET")[-1].query["encoding"] == "base64"
    assert "".join(p.text for p in command if p.stream == "stderr") == "err"


def test_every_possible_cut_leaves_no_gap_and_no_repetition(server, command, monkeypatch):
    monkeypatch.setattr(commands, "sleep", lambda s: None)
    stdout, stderr = random.Random(1).randbytes(60), "ünïcödé".encode() * 3
    whole = -(-60 // 5) + -(-len(stderr) // 5)
    for first in range(whole + 1):
        log = Log(stdout, stderr, cuts=[first, 2, 0])
        server.on("GET", P + "/7/output", log)
        pieces = list(command.output())
        for name, want in (("stdout", stdout), ("stderr", stderr)):
            mine = [p for p in pieces if p.stream == name]
            assert b"".join(p.data for p in mine) == want
            assert [p.offset for p in mine] == [sum(len(q.data) for q in mine[:i]) for i in range(len(mine))]
        assert "".join(p.text for p in pieces if p.stream == "stderr") == "ünïcödé" * 3
        assert len(log.asked) > 1


def test_a_server_that_repeats_is_trimmed(server, command):
    def answer(r, peer):
        peer.sse()
        peer.event("stdout", {"chunk": "abc", "offset": 0})
        peer.event("stdout", {"chunk": "bcd", "offset": 1})
        peer.event("stdout", {"chunk": "cd", "offset": 2})
        peer.event("exit", {"exit_code": 0})
        peer.end()

    server.on("GET", P + "/7/output", answer)
    assert "".join(p.text for p in command.output()) == "abcd"


def test_a_gap_does_not_damage_what_follows_it(server, command):
    def answer(r, peer):
        peer.sse()
        peer.event("stdout", {"chunk_b64": base64.b64encode(b"a\xc3").decode(), "offset": 0})
        peer.event("gap", {"stream": "stdout", "offset": 9})
        peer.event("stdout", {"chunk_b64": base64.b64encode(b"b").decode(), "offset": 9})
        peer.event("exit", {"exit_code": 0})
        peer.end()

    server.on("GET", P + "/7/output", answer)
    assert [(p.text, p.offset) for p in command.output()] == [("a", 0), ("b", 9)]


def test_a_restarting_server_is_waited_for(server, command, monkeypatch):
    waits = []
    monkeypatch.setattr(commands, "sleep", waits.append)
    log = Log(b"all of it")
    answers = iter([(503, {"error": "shutting down", "code": "shutting_down"}), (502, {"error": "upstream", "code": "upstream"})])

    def answer(r, peer):
        return next(answers, None) or log(r, peer)

    server.on("GET", P + "/7/output", answer)
    assert "".join(p.text for p in command.output()) == "all of it"
    assert waits == [0.05, 0.1]


def test_a_server_that_stays_away_is_given_up(server, command, monkeypatch):
    monkeypatch.setattr(commands, "sleep", lambda s: None)
    server.on("GET", P + "/7/output", lambda r, peer: peer.cut())
    with pytest.raises(APIConnectionError, match=r"goes on: attach\('7'\)"):
        list(command.output(reconnect_seconds=0.05))


@pytest.mark.parametrize(
    "answer,kind",
    [
        ((404, {"error": "x", "code": "exec_not_found"}), NotFoundError),
        ((502, {"error": "x", "code": "guest_gone"}), ServerError),
        ((500, {"error": "x", "code": "internal"}), ServerError),
    ],
)
def test_what_waiting_cannot_mend_is_raised_at_once(server, command, answer, kind):
    server.on("GET", P + "/7/output", answer)
    with pytest.raises(kind):
        list(command.output())
    assert len(server.asked("GET", P + "/7/output")) == 1


def test_from_an_offset_and_without_following(server, command):
    log = Log(b"0123456789")
    server.on("GET", P + "/7/output", log)
    assert "".join(p.text for p in command.output(stdout_offset=4, follow=False)) == "456789"
    assert log.asked == [("4", "0")] and "follow" not in server.asked("GET", P + "/7/output")[0].query


def test_wait_collects_and_says_what_is_missing(server, command):
    server.on("GET", P + "/7/output", Log("ä".encode() * 4, b"e", piece=3, exit={"exit_code": 137, "signal": 9}))
    out = []
    r = command.wait(on_stdout=out.append)
    assert (r.stdout, r.stderr, r.exit_code, r.signal, r.truncated) == ("ääää", "e", 137, 9, False)
    assert "".join(out) == "ääää"
    server.on("GET", P + "/7/output", Log(b"0123456789", kept_from=6))
    r = command.wait()
    assert (r.stdout, r.truncated) == ("6789", True)


def test_wait_has_a_limit_and_the_command_goes_on(server, command):
    release = threading.Event()

    def slow(r, peer):
        peer.sse()
        peer.event("stdout", {"chunk": "so far", "offset": 0})
        release.wait(10)

    server.on("GET", P + "/7/output", slow)
    with pytest.raises(SandboxTimeout, match="still runs after 0.2 s") as caught:
        command.wait(timeout=0.2)
    release.set()
    assert caught.value.result.stdout == "so far" and command.exit_code is None


def test_a_talkative_command_does_not_stretch_the_limit(server, command):
    stop = threading.Event()

    def chatter(r, peer):
        peer.sse()
        n = 0
        while not stop.wait(0.01):
            peer.event("stdout", {"chunk": "x", "offset": n})
            n += 1

    server.on("GET", P + "/7/output", chatter)
    with pytest.raises(SandboxTimeout):
        command.wait(timeout=0.3)
    stop.set()


def test_poll_and_attach(server, box, command):
    assert command.poll() is None
    server.on("GET", P + "/7", {**INFO, "running": False, "exit_code": 3})
    assert command.poll() == 3
    n = len(server.asked())
    assert command.poll() == 3 and len(server.asked()) == n  # an end is final
    again = box.attach(7)
    assert (again.id, again.pid, again.command, again.exit_code) == ("7", 12, "make", 3)
    with pytest.raises(NotFoundError):
        box.attach("8")
    server.on("GET", P, [INFO])
    assert box.execs()[0].command == "make"


def test_stdin_and_signals(server, command):
    server.on("POST", P + "/7/stdin", (204,))
    server.on("POST", P + "/7/signal", (204,))
    command.send_stdin("é\n")
    command.send_stdin(b"\xff", eof=True)
    command.close_stdin()
    fed = server.asked("POST", P + "/7/stdin")
    assert [(r.body, r.query.get("eof")) for r in fed] == [("é\n".encode(), None), (b"\xff", "1"), (b"", "1")]
    command.signal("SIGINT")
    command.signal(15, tree=True)
    command.kill()
    sent = [r.json for r in server.asked("POST", P + "/7/signal")]
    assert sent == [{"signal": "INT", "tree": False}, {"signal": 15, "tree": True}, {"signal": "KILL", "tree": True}]
