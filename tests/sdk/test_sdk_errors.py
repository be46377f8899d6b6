"""Exceptions: the class, what they carry, what they advise."""

import pickle
import socket

import pytest

import pandastack
from pandastack import Client, Sandbox
from pandastack.exceptions import (
    APIConnectionError,
    APITimeoutError,
    AuthError,
    BadRequestError,
    CommandError,
    ConflictError,
    HostFull,
    NotFoundError,
    PandastackError,
    QuotaExceeded,
    RateLimited,
    SandboxTimeout,
    ServerError,
)


@pytest.mark.parametrize(
    "status,code,kind",
    [
        (400, "bad_request", BadRequestError),
        (401, "unauthorized", AuthError),
        (403, "forbidden", AuthError),
        (404, "sandbox_not_found", NotFoundError),
        (405, "method_not_allowed", BadRequestError),
        (409, "sandbox_paused", ConflictError),
        (413, "too_large", BadRequestError),
        (429, "rate_limited", RateLimited),
        (429, "quota_exceeded", QuotaExceeded),
        (500, "internal", ServerError),
        (502, "guest_gone", ServerError),
        (503, "host_full", HostFull),
        (503, "shutting_down", ServerError),
        (507, "disk_full", HostFull),
    ],
)
def test_status_and_code_choose_the_class(server, client, status, code, kind):
    body = {"error": "the sentence", "code": code, "request_id": "req7"}
    server.on("GET", "/v1/me", (status, body, {"Retry-After": "3"}))
    with pytest.raises(PandastackError) as caught:
        client.me()
    e = caught.value
    assert type(e) is kind
    assert (e.status_code, e.code, e.request_id, e.response) == (status, code, "req7", body)
    assert "the sentence" in str(e) and "req7" in str(e)
    if status == 429:
        assert e.retry_after == 3
    assert len(server.asked()) == 1  # no answer is asked for twice


def test_the_message_says_the_next_step(server, client, box):
    server.on("POST", "/v1/sandboxes/sb-1/exec", (409, {"error": "the sandbox is paused", "code": "sandbox_paused"}))
    with pytest.raises(ConflictError, match=r"the sandbox is paused; call resume\(\) first"):
        box.exec("true")


@pytest.mark.parametrize(
    "body,text",
    [
        (b"plain text", "plain text"),
        ({"message": "m"}, "m"),
        ({"detail": "d"}, "d"),
        ({"error": {"message": "nested", "code": "c"}}, "nested"),
        (b"", "status 500"),
        ([], "[]"),
    ],
)
def test_every_known_shape_of_an_error_body(server, client, body, text):
    server.on("GET", "/v1/me", (500, body))
    with pytest.raises(ServerError) as caught:
        client.me()
    assert text in caught.value.message


def test_the_request_id_is_taken_from_the_header_too(server, client):
    server.on("GET", "/v1/me", (500, b"x", {"X-Request-Id": "h1"}))
    with pytest.raises(ServerError) as caught:
        client.me()
    assert caught.value.request_id == "h1"


def test_success_that_is_not_json_is_reported(server, client):
    server.on("GET", "/v1/me", b"<html>")
    with pytest.raises(APIConnectionError, match="not JSON"):
        client.me()


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    with pytest.raises(APIConnectionError, match="refused; start pandad"):
        Client("k", f"http://127.0.0.1:{port}").me()


def test_a_server_that_stays_silent_times_out(server):
    server.on("GET", "/v1/me", lambda r, peer: peer.rfile.read(1) and None)
    with pytest.raises(APITimeoutError) as caught:
        Client("k", server.url, timeout=0.1).me()
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, APIConnectionError)
    assert len(server.asked()) == 1


def test_an_answer_that_stops_in_the_middle_is_an_error(server, client):
    def short(r, peer):
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")
        peer.cut()

    server.on("GET", "/v1/me", short)
    with pytest.raises(APIConnectionError, match="lost before the answer was complete"):
        client.me()


def test_check_raises_with_the_result(server, box):
    server.on("POST", "/v1/sandboxes/sb-1/exec", {"stdout": "o", "stderr": "boom", "exit_code": 3})
    with pytest.raises(CommandError, match="exit code 3 from: false\nboom") as caught:
        box.exec("false", check=True)
    assert (caught.value.exit_code, caught.value.stdout, caught.value.result.stderr) == (3, "o", "boom")


def test_a_timeout_is_a_result_and_with_check_an_exception(server, box):
    server.on("POST", "/v1/sandboxes/sb-1/exec", {"stdout": "part", "stderr": "", "exit_code": 124, "timed_out": True})
    r = box.exec("sleep 9", timeout_seconds=1)
    assert (r.exit_code, r.timed_out, r.stdout, r.ok) == (124, True, "part", False)
    with pytest.raises(SandboxTimeout) as caught:
        box.exec("sleep 9", timeout_seconds=1, check=True)
    assert caught.value.result.stdout == "part"


def test_exceptions_survive_a_process_pool():
    e = NotFoundError("m", status_code=404, code="c", request_id="r", response={"a": 1})
    back = pickle.loads(pickle.dumps(e))
    assert (type(back), str(back), back.response) == (NotFoundError, str(e), {"a": 1})
    assert str(pickle.loads(pickle.dumps(SandboxTimeout("late")))) == "late"


def test_both_spellings_of_the_base_class():
    assert pandastack.PandaStackError is pandastack.PandastackError


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000,
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20000,
        b"HTTP/1.1 200 OK\r\nContent",
    ],
)
def test_an_answer_that_is_no_http_is_a_lost_connection(server, client, raw):
    server.on("GET", "/v1/me", lambda r, peer: peer.send(raw) or peer.cut())
    with pytest.raises(APIConnectionError):
        client.me()
    assert client.transport._idle == []


def test_what_comes_before_the_answer_is_skipped(server, client):
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    server.on("GET", "/v1/me", lambda r, peer: peer.send(raw))
    assert client.me() == {} == client.me()
    assert {r.connection for r in server.asked()} == {1}
