"""Strangers and tenants at the door of pandad: they send requests without end, without a token, and bodies that never end."""
import contextlib
import re
import signal
import socket

import pytest


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
