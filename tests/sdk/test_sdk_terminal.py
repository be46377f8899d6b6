"""Terminals over WebSocket."""

import json
import threading

import pytest

from conftest import frame
from pandastack import APIConnectionError, NotFoundError, SandboxTimeout, ServerError
from pandastack import _ws

P = "/v1/sandboxes/sb-1/exec/pty"


def shell(seen, at_end=b""):
    """Echoes what is typed in upper case; "exit" ends it with code 7."""

    def answer(r, peer):
        peer.upgrade(r)
        peer.send(frame(_ws.PING, b"are you there") + frame(_ws.BINARY, b"$ "))
        while True:
            f = peer.frame()
            if f is None:
                return
            seen.append(f)
            if f[0] == _ws.BINARY and f[1] == b"exit\n":
                peer.send(frame(_ws.BINARY, b"bye") + frame(_ws.TEXT, b'{"exit":7}') + frame(_ws.CLOSE, b"\x03\xe8"))
                seen.append(peer.frame())
                return
            if f[0] == _ws.BINARY:
                up = f[1].upper()
                peer.send(frame(_ws.BINARY, up[:2], fin=False))
                peer.send(frame(_ws.CONT, up[2:]))

    return answer


def test_a_session(server, box):
    seen = []
    server.on("GET", P, shell(seen))
    with box.terminal(rows=40, cols=120, cmd="bash") as t:
        assert t.read_until(r"\$ ") == b"$ "
        t.send("hello\n")
        assert t.receive() == b"HELLO\n"
        t.resize(10, 20)
        t.send(b"exit\n")
        assert b"".join(t) == b"bye" and t.exit_code == 7
        with pytest.raises(APIConnectionError, match="closed"):
            t.send("x")
    server.settle()
    assert server.asked()[0].query == {"rows": "40", "cols": "120", "cmd": "bash"}
    assert server.asked()[0].headers["authorization"] == "Bearer pds_test"
    assert seen[0] == (_ws.PONG, b"are you there")
    assert json.loads(seen[2][1]) == {"resize": {"rows": 10, "cols": 20}}
    assert seen[-1] == (_ws.CLOSE, b"\x03\xe8")  # the handshake of the end is answered


def test_nothing_in_time(server, box):
    server.on("GET", P, shell([]))
    with box.terminal() as t:
        t.read_until(r"\$")
        with pytest.raises(SandboxTimeout, match="showed nothing"):
            t.receive(timeout=0.05)
        with pytest.raises(SandboxTimeout, match="did not appear"):
            t.read_until("never", timeout=0.05)
        t.send("still there")
        assert t.receive(5) == b"STILL THERE"


def test_one_thread_reads_while_another_types(server, box):
    server.on("GET", P, shell([]))
    with box.terminal() as t:
        got = []
        reader = threading.Thread(target=lambda: got.extend(t))
        reader.start()
        for i in range(200):
            t.send(b"%04d" % i)
        t.send(b"exit\n")
        reader.join(10)
        assert not reader.is_alive()
    assert b"".join(got) == b"$ " + b"".join(b"%04d" % i for i in range(200)) + b"bye"


def test_a_connection_that_just_ends(server, box):
    def gone(r, peer):
        peer.upgrade(r)
        peer.send(frame(_ws.BINARY, b"x"))
        peer.cut()

    server.on("GET", P, gone)
    t = box.terminal()
    assert list(t) == [b"x"] and t.exit_code is None and t.wait() is None


def test_first_output_in_the_packet_of_the_upgrade(server, box):
    def eager(r, peer):
        real, buffered = peer.send, []
        peer.send = buffered.append
        peer.upgrade(r)
        peer.send = real
        real(b"".join(buffered) + frame(_ws.BINARY, b"early"))
        peer.frame()

    server.on("GET", P, eager)
    with box.terminal() as t:
        assert t.receive(5) == b"early"


def test_refusals_are_ordinary_errors(server, box):
    server.on("GET", P, (404, {"error": "no such sandbox", "code": "sandbox_not_found"}))
    with pytest.raises(NotFoundError) as caught:
        box.terminal()
    assert caught.value.code == "sandbox_not_found"


def test_a_server_that_is_no_websocket_server(server, box):
    def fake(r, peer):
        peer.send(b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: nonsense\r\n\r\n")

    server.on("GET", P, fake)
    with pytest.raises(APIConnectionError, match="does not speak WebSocket"):
        box.terminal()


def test_broken_frames_end_it(server, box):
    def bad(r, peer):
        peer.upgrade(r)
        peer.send(b"\xff\xff\xff")
        peer.rfile.read()

    server.on("GET", P, bad)
    with pytest.raises(APIConnectionError, match="broke the WebSocket protocol"):
        box.terminal().receive(5)


def test_an_error_message(server, box):
    def failing(r, peer):
        peer.upgrade(r)
        peer.send(frame(_ws.TEXT, b'{"error":"guest gone"}'))
        peer.frame()

    server.on("GET", P, failing)
    with pytest.raises(ServerError, match="guest gone"):
        box.terminal().receive(5)
