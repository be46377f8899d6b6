"""Strangers and tenants at the door of pandad: they send requests without end, without a token, and bodies that never end."""
import contextlib
import json
import re
import signal
import socket

import pytest

from conftest import wait_for


def status(data):
    """The statuses of all whole replies in what a connection got."""
    return [int(n) for n in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]


class Line:
    """One connection, by hand."""

    def __init__(self, pandad, host="127.0.0.1", source=None):
        self.sock = socket.create_connection((host, pandad.port), timeout=60, source_address=source and (source, 0))
        self.got = b""

    def send(self, method, path, n=1, token=None, body=b""):
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        head += f"Content-Length: {len(body)}\r\n" if body else ""
        self.sock.sendall((head.encode() + b"\r\n" + body) * n)

    def statuses(self, n):
        """Of the next n replies, or of those that came before the other side closed."""
        while len(status(self.got)) < n:
            piece = self.sock.recv(1 << 16)
            if not piece:
                break
            self.got += piece
        return status(self.got)

    def reply(self):
        """The body of the one reply that comes."""
        self.statuses(1)
        while b"\r\n\r\n" not in self.got:
            self.got += self.sock.recv(1 << 16)
        head, _, body = self.got.partition(b"\r\n\r\n")
        length = int(re.search(rb"Content-Length: (\d+)", head)[1])
        while len(body) < length:
            body += self.sock.recv(1 << 16)
        return body.decode()

    def close(self):
        self.sock.close()


def metric(text, name):
    """The sum of all lines of a metric; name may have labels."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"pandastack_{name}"))


@contextlib.contextmanager
def held(pandad):
    """What is sent meanwhile waits in sockets: pandad finds all of it at once."""
    pandad.process.send_signal(signal.SIGSTOP)
    yield
    pandad.process.send_signal(signal.SIGCONT)


@pytest.mark.core
def test_who_asks_once_is_served_before_those_who_ask_a_hundred_times_at_once(pandad):
    """A stranger sends 200 requests without a token on each of 20 connections, all before a neighbour's only request. The neighbour
    is told how many were served before: counted, not measured."""
    refused = 'http_requests_total{method="GET",route="/v1/sandboxes",status="401"}'
    each, lines = 200, [Line(pandad) for _ in range(20)]
    before = metric(pandad.ask("GET", "/metrics").body.decode(), refused)
    neighbour = Line(pandad)
    with held(pandad):
        for line in lines:
            line.send("GET", "/v1/sandboxes", each)
        neighbour.send("GET", "/metrics")
    served = metric(neighbour.reply(), refused) - before
    for line in lines:
        assert line.statuses(each) == [401] * each
        line.close()
    assert served <= 200, f"{served} of {each * len(lines)} were served first"
    neighbour.close()


@pytest.mark.core
def test_a_stranger_who_takes_all_connections_gives_idle_ones_to_others(new_pandad):
    """A stranger opens as many connections as there may be, from two addresses, and leaves them idle. Another client gets a place,
    and so does its next connection; one address cannot have more than its share."""
    pandad = new_pandad(connections_max=24, connections_per_address=16, proxies="127.0.0.9")
    idle = [Line(pandad, source=f"127.0.0.{2 + n // 16}") for n in range(24)]
    for line in idle:
        line.send("GET", "/healthz")
        assert line.statuses(1) in ([200], []), line.got  # []: it made place for a later one
    for _ in range(10):
        line = Line(pandad, source="127.0.0.5")
        line.send("GET", "/v1/me", token=pandad.key)
        assert line.statuses(1) == [200], line.got
        line.close()
    busy = []
    for _ in range(16):
        busy.append(Line(pandad, source="127.0.0.6"))
        busy[-1].send("GET", "/v1/events?follow=1", token=pandad.key)
        assert busy[-1].statuses(1) == [200]
    more = Line(pandad, source="127.0.0.6")
    assert more.statuses(1) == [503] and b"from your address" in more.got
    text = Line(pandad, source="127.0.0.5")
    text.send("GET", "/metrics")
    text = text.reply()
    assert metric(text, "http_connections_refused_total") == 1
    assert metric(text, "http_connections_closed_idle_total") >= 16
    assert metric(text, "http_connections ") <= 25
    for line in idle + busy + [more]:
        line.close()


@pytest.mark.core
def test_tokens_cannot_be_tried_without_end(new_pandad):
    """An address that guesses tokens is told to wait before its next token is looked at, even if that one is right. Another address
    is served, and one behind which a valid token is in use keeps that one."""
    pandad = new_pandad(failed_logins_per_minute=20, proxies="127.0.0.9")

    def ask(source, token):
        line = Line(pandad, source=source)
        line.send("GET", "/v1/me", token=token)
        got = line.statuses(1)
        head = line.got
        line.close()
        return got[0], head

    guess = "pds_" + 32 * "0"
    assert ask("127.0.0.3", pandad.key)[0] == 200
    for source in ("127.0.0.2", "127.0.0.3"):
        seen = [ask(source, guess)[0] for _ in range(40)]
        assert seen[:20] == [401] * 20 and 429 in seen and set(seen) == {401, 429}, seen
    while (answer := ask("127.0.0.2", guess))[0] == 401:
        pass  # time gives one back every three seconds
    assert answer[0] == 429 and re.search(rb"Retry-After: [1-3]\r\n", answer[1]) and b"no valid token" in answer[1], answer
    assert ask("127.0.0.3", pandad.key)[0] == 200, "it used a valid token before"
    assert ask("127.0.0.4", pandad.key)[0] == 200
    assert [ask("127.0.0.9", guess)[0] for _ in range(40)] == [401] * 40, "a proxy is not counted"


@pytest.mark.core
def test_strangers_cannot_empty_the_audit_log(pandad):
    """Strangers send 20,000 POSTs without a token on ten connections. What tenants did is still on record, and all of the flood is one
    entry."""
    mark = pandad.do("POST", "/v1/me/tokens", {"tenant": "door", "label": "mark"}, headers={"X-Request-Id": "the-mark"})
    entries = lambda: metric(pandad.ask("GET", "/metrics").body.decode(), "audit_entries ")
    pandad.do("GET", "/v1/audit")  # what came before is written
    before, lines, each = entries(), [Line(pandad) for _ in range(10)], 2000
    for _ in range(0, each, 200):
        for line in lines:
            line.send("POST", "/v1/sandboxes", 200)
        for line in lines:
            assert line.statuses(200) == [401] * 200
            line.got = b""
    for line in lines:
        line.close()
    seen = pandad.do("GET", "/v1/audit?limit=1000")["entries"]
    assert [e["path"] for e in seen if e["request_id"] == "the-mark"] == ["/v1/me/tokens"]
    refused = [e for e in seen if e["status"] == 401 and e["path"] == "/v1/sandboxes" and e["address"] == "127.0.0.1"]
    # A minute may end in the middle, and others may have read the log.
    assert sum(e["count"] for e in refused) >= each * len(lines) and len(refused) < 20, refused
    assert entries() - before < 20
    pandad.do("DELETE", f"/v1/me/tokens/{mark['prefix']}")


def resident(pandad):
    """KiB of memory that pandad has."""
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pandad.process.pid}/status").read())[1])


@pytest.mark.core
def test_bodies_that_never_end_take_what_a_tenant_may_have(new_pandad):
    """A tenant begins 300 requests of 4 MiB and ends none. pandad holds no more for it than it may, another tenant is served, and when
    all have hung up the memory is the host's again."""
    pandad = new_pandad(held_mb_per_tenant=64)
    other = pandad.do("POST", "/v1/me/tokens", {"tenant": "other", "label": "x"})["token"]
    body = b'{"template": "' + b"x" * ((4 << 20) - 100)
    small, lines = resident(pandad), []
    for _ in range(300):
        line = Line(pandad)
        head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {pandad.key}\r\nContent-Length: {4 << 20}\r\n\r\n"
        with contextlib.suppress(ConnectionError):  # it was refused, and has its answer
            line.sock.sendall(head.encode() + body)
        lines.append(line)
    assert pandad.do("GET", "/v1/me", token=other)["usage"]["held_bytes"] == 0
    me = wait_for("the bodies", lambda: (me := pandad.do("GET", "/v1/me"))["usage"]["held_bytes"] > 32 << 20 and me)
    assert me["usage"]["held_bytes"] <= me["limits"]["held_bytes"] == 64 << 20
    large = pandad.ask("POST", "/v1/sandboxes", {"template": "x" * (3 << 20)}, token=other)
    assert large.status == 400, "another tenant has its own limit"
    text = pandad.ask("GET", "/metrics").body.decode()
    assert metric(text, "held_tenants_refused_total") > 200 and metric(text, "held_bytes_max") < 80 << 20
    for line in lines:
        line.close()
    wait_for("an end of what is held", lambda: pandad.do("GET", "/v1/me")["usage"]["held_bytes"] == 0)
    wait_for("its memory", lambda: resident(pandad) <= small + (32 << 10))


@pytest.mark.core
def test_output_that_nobody_reads_takes_what_a_tenant_may_have(new_pandad):
    """A tenant asks for 16 MiB of output in 24 calls at once and reads no answer. What is held has a limit, and another tenant's command
    has all its output."""
    pandad = new_pandad(held_mb_per_tenant=64)
    other = pandad.do("POST", "/v1/me/tokens", {"tenant": "other", "label": "x"})["token"]
    id = pandad.create()
    theirs = pandad.do("POST", "/v1/sandboxes", {"template": "base"}, token=other)["id"]
    body = json.dumps({"cmd": "head -c 16M /dev/zero", "max_output_bytes": 16 << 20, "timeout_seconds": 60}).encode()
    small, lines = resident(pandad), [Line(pandad) for _ in range(24)]
    for line in lines:
        line.send("POST", f"/v1/sandboxes/{id}/exec", token=pandad.key, body=body)
    a = pandad.do("POST", f"/v1/sandboxes/{theirs}/exec", {"cmd": "head -c 2M /dev/zero", "max_output_bytes": 4 << 20}, token=other)
    assert len(a["stdout"]) == 2 << 20 and not a.get("truncated")
    for line in lines:
        line.statuses(1)  # the head of its answer, and no more
    text = pandad.ask("GET", "/metrics").body.decode()
    assert metric(text, "held_bytes_max") < 100 << 20
    pandad.do("DELETE", f"/v1/sandboxes/{theirs}", token=other)
    for line in lines:
        line.close()
    wait_for("an end of what is held", lambda: pandad.do("GET", "/v1/me")["usage"]["held_bytes"] == 0)
    wait_for("its memory", lambda: resident(pandad) <= small + (32 << 10))
