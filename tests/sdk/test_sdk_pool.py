"""Connections: kept, shared between threads, replaced when the server closed them, never trusted twice."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import BOX, EXEC
from pandastack import Client, Sandbox
from pandastack.exceptions import APIConnectionError, BadRequestError, HostFull


def test_one_connection_serves_one_thread(server, client):
    with Sandbox.create(client=client) as sb:
        for _ in range(5):
            assert sb.exec("echo hi").stdout == "hi\n"
        sb.filesystem  # making handles asks nobody
    assert {r.connection for r in server.asked()} == {1}
    assert [r.method for r in server.asked()] == ["POST"] * 6 + ["DELETE"]


def test_threads_never_mix_their_answers_and_keep_their_connections(server, client):
    gate = threading.Barrier(5, timeout=10)

    def fork(r, peer):
        gate.wait()  # all five are in the server at the same time
        return 201, {"sandbox": {**BOX, "id": r.json["metadata"]["n"]}}

    server.on("POST", "/v1/sandboxes/sb-1/fork", fork)
    base = Sandbox.from_info(client, BOX)
    for _ in range(3):
        with ThreadPoolExecutor(5) as pool:
            children = list(pool.map(lambda n: base.fork(metadata={"n": n}), [f"c{i}" for i in range(5)]))
        assert [c.id for c in children] == [f"c{i}" for i in range(5)]
    assert len({r.connection for r in server.asked()}) == 5  # the second and third round opened none


def test_many_threads_many_requests(server, client):
    server.on("POST", "/v1/sandboxes/sb-1/exec", lambda r, p: {**EXEC, "stdout": r.json["cmd"]})
    sb = Sandbox.from_info(client, BOX)
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda i: sb.exec(f"c{i}").stdout, range(400))) == [f"c{i}" for i in range(400)]
    assert len({r.connection for r in server.asked()}) <= 16


def test_a_connection_closed_by_the_server_is_noticed_before_it_is_used(server, client):
    client.request("GET", "/sandboxes/sb-1")
    server.drop_all()
    client.transport._idle[0].sock.recv(1, socket.MSG_PEEK)  # wait until the end has arrived here
    # A POST may not be repeated, so only noticing it beforehand makes this work.
    assert Sandbox.from_info(client, BOX).exec("x").stdout == "hi\n"
    assert [r.connection for r in server.asked()] == [1, 2]


def dies_once(state):
    """An answer that reads the request and closes, but only on a connection that served before."""

    def answer(r, peer):
        if r.connection == 1:
            state.append(r)
            peer.cut()
            return None
        return BOX if r.method == "GET" else EXEC if r.method == "POST" else (204,)

    return answer


@pytest.mark.parametrize(
    "method,path,kw",
    [("GET", "/sandboxes/sb-1", {}), ("DELETE", "/sandboxes/sb-1", {}), ("PUT", "/sandboxes/sb-1/fs", {"body": b"x"})],
)
def test_what_may_be_repeated_is_repeated_once(server, client, method, path, kw):
    server.on("GET", "/v1/me", {})
    client.me()
    state = []
    server.on(method, "/v1" + path, dies_once(state))
    client.transport.request(method, path, **kw)
    assert len(state) == 1 and [r.connection for r in server.asked(method)][-2:] == [1, 2]


@pytest.mark.parametrize(
    "method,path,kw",
    [
        ("POST", "/sandboxes/sb-1/exec", {"json": {"cmd": "x"}}),
        ("PATCH", "/sandboxes/sb-1/lifecycle", {"json": {}}),
        ("PUT", "/sandboxes/sb-1/fs", {"body": iter([b"x"]), "length": 1}),
        ("PUT", "/sandboxes/sb-1/fs", {"body": b"x", "retry": False}),
    ],
)
def test_what_changes_something_is_never_repeated(server, client, method, path, kw):
    server.on("GET", "/v1/me", {})
    client.me()
    state = []
    server.on(method, "/v1" + path, dies_once(state))
    with pytest.raises(APIConnectionError, match="unknown whether the request took effect"):
        client.transport.request(method, path, **kw)
    assert len(server.asked(method)) == 1


def test_a_fresh_connection_is_not_tried_twice(server, client):
    server.on("GET", "/v1/me", lambda r, peer: peer.cut())
    with pytest.raises(APIConnectionError):
        client.me()
    assert len(server.asked()) == 1


def test_no_storm_when_the_second_connection_dies_too(server, client):
    server.on("GET", "/v1/version", {})
    client.version()
    server.on("GET", "/v1/me", lambda r, peer: peer.cut())
    with pytest.raises(APIConnectionError):
        client.me()
    assert len(server.asked("GET", "/v1/me")) == 2


def test_a_repeated_delete_that_finds_nothing_did_its_work(server, client):
    server.on("GET", "/v1/me", {})
    client.me()

    def gone(r, peer):
        if r.connection == 1:
            return peer.cut()
        return 404, {"error": "no such sandbox", "code": "sandbox_not_found"}

    server.on("DELETE", "/v1/sandboxes/sb-1", gone)
    assert Sandbox.from_info(client, BOX).kill() is True


def test_a_connection_the_server_wants_closed_is_not_kept(server, client):
    server.on("GET", "/v1/me", (200, {}, {"Connection": "close"}))
    client.me()
    client.me()
    assert [r.connection for r in server.asked()] == [1, 2]


def test_after_an_error_answer_the_connection_is_kept(server, client):
    server.on("GET", "/v1/me", (400, {"error": "no"}))
    for _ in range(3):
        with pytest.raises(BadRequestError):
            client.me()
    assert {r.connection for r in server.asked()} == {1}


def test_an_upload_stops_when_the_server_has_refused_it(server, client):
    answered = threading.Event()
    sent = []

    def read_head_only(peer, number):
        while peer.rfile.readline().strip():
            pass
        peer.send(b'HTTP/1.1 507 X\r\nContent-Length: 36\r\n\r\n{"error":"full","code":"disk_full"}  ')
        answered.set()
        peer.rfile.read()  # until the client hangs up
        return None

    def pieces():
        for i in range(1000):
            sent.append(i)
            yield b"x" * 1000
            answered.wait(10)

    server._read = read_head_only
    with pytest.raises(HostFull, match="full"):
        client.transport.request("PUT", "/sandboxes/sb-1/fs", body=pieces(), length=1000 * 1000)
    assert len(sent) <= 2
    assert client.transport._idle == []  # half a request went through it


def test_a_forked_process_uses_connections_of_its_own(server, client):
    server.on("GET", "/v1/me", {})
    client.me()
    pid = os.fork()
    if pid == 0:
        try:
            client.me()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    client.me()
    assert [r.connection for r in server.asked()] == [1, 2, 1]


def test_closing_the_client_closes_what_it_kept(server):
    c = Client("k", server.url)
    server.on("GET", "/v1/me", {})
    c.me()
    sock = c.transport._idle[0].sock
    c.close()
    assert sock.fileno() == -1


def test_chunked_answers_and_answers_that_end_with_the_connection(server, client):
    def chunked(r, peer):
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"a"', b":", b"1}"):
            peer.chunk(piece)
        peer.end()

    server.on("GET", "/v1/me", chunked)
    assert client.me() == {"a": 1} == client.me()
    assert {r.connection for r in server.asked()} == {1}

    def until_close(r, peer):
        peer.send(b'HTTP/1.1 200 OK\r\n\r\n{"b":2}')
        peer.cut()

    server.on("GET", "/v1/me", until_close)
    assert client.me() == {"b": 2}


def test_an_abandoned_stream_frees_its_descriptor_at_once(server, client):
    hold = threading.Event()

    def endless(r, peer):
        peer.sse()
        peer.event("event", {"type": "t"})
        hold.wait(10)

    server.on("GET", "/v1/events", endless)
    before = len(os.listdir("/proc/self/fd"))
    stream = client.transport.stream("GET", "/events")
    assert stream.read()
    inside = set(os.listdir("/proc/self/fd"))
    stream.close()
    assert len(inside) - len(os.listdir("/proc/self/fd")) == 1 and len(inside) > before
    assert stream.read() == b""
    hold.set()


def test_a_stream_can_be_closed_by_another_thread(server, client):
    server.on("GET", "/v1/events", lambda r, peer: peer.sse() or peer.rfile.read(1) and None)
    stream = client.transport.stream("GET", "/events")
    got = []
    reader = threading.Thread(target=lambda: got.append(stream.read()))
    reader.start()
    stream.close()
    reader.join(5)
    assert got == [b""]
