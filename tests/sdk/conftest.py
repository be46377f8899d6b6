"""A server of a few lines that speaks the wire, so that the SDK's own logic can be tried without pandad.

Each test says what the server answers; the server writes down what it was asked. Connections are real sockets on
loopback, so cuts, stale connections and odd packet borders are what they are in life.
"""

import base64
import hashlib
import json
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

SRC = Path(__file__).resolve().parents[2] / "sdk" / "python" / "src"
sys.path.insert(0, str(SRC))


class Request:
    def __init__(self, method, target, headers, body, connection):
        self.method = method
        parts = urlsplit(target)
        self.path = parts.path
        self.query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        self.headers = headers
        self.body = body
        self.connection = connection  # its number, in the order of arrival

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.method} {self.path} on connection {self.connection}"


class Peer:
    """The server's end of a connection, for answers that are more than one piece."""

    def __init__(self, sock):
        self.sock = sock
        self.rfile = sock.makefile("rb")

    def send(self, data):
        self.sock.sendall(data)

    def sse(self):
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    def chunk(self, data):
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, name, data):
        self.chunk(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())

    def end(self):
        self.send(b"0\r\n\r\n")

    def cut(self):
        """Ends the connection in the middle of whatever it was."""
        try:
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)  # not SSLSocket's: reads would go on without TLS
        except OSError:
            pass

    def upgrade(self, request):
        key = request.headers["sec-websocket-key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        self.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )

    def frame(self):
        """One frame of the client, unmasked: (opcode, data). None at the end."""
        head = self.rfile.read(2)
        if len(head) < 2:
            return None
        assert head[1] & 0x80, "a client must mask"
        n = head[1] & 0x7F
        if n == 126:
            n = int.from_bytes(self.rfile.read(2), "big")
        elif n == 127:
            n = int.from_bytes(self.rfile.read(8), "big")
        mask = self.rfile.read(4)
        data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(n)))
        return head[0] & 0x0F, data


def frame(opcode, data, fin=True):
    n = len(data)
    head = bytes([(0x80 if fin else 0) | opcode])
    if n < 126:
        head += bytes([n])
    elif n < 65536:
        head += b"\x7e" + n.to_bytes(2, "big")
    else:
        head += b"\x7f" + n.to_bytes(8, "big")
    return head + data


class Server:
    def __init__(self, tls=None):
        self.tls = tls
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.requests = []
        self.routes = {}
        self.failures = []
        self._lock = threading.Lock()
        self._peers = []
        self._threads = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def on(self, method, path, answer):
        """answer: a value (200 and JSON), (status, value), (status, value, headers), or a function of
        (request, peer) that returns one of these, or None when it wrote the answer itself."""
        self.routes[method, path] = answer

    def asked(self, method=None, path=None):
        with self._lock:
            return [r for r in self.requests if method in (None, r.method) and path in (None, r.path)]

    def _accept(self):
        number = 0
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number += 1
            if self.tls is not None:
                try:
                    sock = self.tls.wrap_socket(sock, server_side=True)
                except OSError:
                    sock.close()
                    number -= 1
                    continue
            peer = Peer(sock)
            t = threading.Thread(target=self._serve, args=(peer, number), daemon=True)
            with self._lock:
                self._peers.append(peer)
                self._threads.append(t)
            t.start()

    def drop_all(self):
        """What a restart looks like to clients: every connection ends."""
        with self._lock:
            peers, self._peers = self._peers, []
        for p in peers:
            p.cut()

    def _read(self, peer, number):
        line = peer.rfile.readline()
        if not line:
            return None
        method, target, _ = line.decode().split()
        headers = {}
        while True:
            h = peer.rfile.readline().decode().strip()
            if not h:
                break
            name, _, value = h.partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                n = int(peer.rfile.readline(), 16)
                body += peer.rfile.read(n)
                peer.rfile.readline()
                if n == 0:
                    break
        else:
            body = peer.rfile.read(int(headers.get("content-length", 0)))
        return Request(method, target, headers, body, number)

    def _serve(self, peer, number):
        try:
            while True:
                request = self._read(peer, number)
                if request is None:
                    return
                with self._lock:
                    self.requests.append(request)
                answer = self.routes.get((request.method, request.path))
                if answer is None:
                    answer = (404, {"error": f"no route {request}", "code": "not_found", "request_id": "r404"})
                if callable(answer):
                    answer = answer(request, peer)
                    if answer is None:
                        continue
                headers = {}
                status = 200
                if isinstance(answer, tuple):
                    status, *more = answer
                    answer = more[0] if more else None
                    headers = more[1] if len(more) > 1 else {}
                raw = answer if isinstance(answer, bytes) else b"" if answer is None else json.dumps(answer).encode()
                top = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
                # With a status line of its own packet, so that nobody relies on packets.
                peer.send(f"HTTP/1.1 {status} X\r\n".encode())
                peer.send(f"{top}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        except (OSError, ValueError):
            pass  # the client went away
        except Exception as e:  # a fault of the test itself must not pass as a lost connection
            self.failures.append(e)
        finally:
            peer.cut()
            peer.rfile.close()
            peer.sock.close()

    def settle(self):
        """Until the server has seen the end of every connection; the client must have left them."""
        for t in self._threads:
            t.join(5)
            assert not t.is_alive()

    def close(self):
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        self.drop_all()
        for t in self._threads:
            t.join(5)
        assert not self.failures, self.failures


BOX = {"id": "sb-1", "template": "base", "status": "running", "cpu": 2, "memory_mb": 512, "runner": "shell",
       "isolation": "user-mode-kernel", "boot_ms": 4, "boot_mode": "snapshot", "created_at": "2026-01-01T00:00:00Z",
       "persistent": False, "ttl_seconds": None, "metadata": {"a": "b"}}
EXEC = {"stdout": "hi\n", "stderr": "", "exit_code": 0, "duration_ms": 3, "timed_out": False}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    """No test sees the settings of whoever runs it."""
    for name in ("PANDASTACK_API_KEY", "PANDASTACK_TOKEN", "PANDASTACK_API", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def server():
    s = Server()
    s.on("POST", "/v1/sandboxes", (201, BOX))
    s.on("GET", "/v1/sandboxes/sb-1", BOX)
    s.on("DELETE", "/v1/sandboxes/sb-1", (204,))
    s.on("POST", "/v1/sandboxes/sb-1/exec", EXEC)
    yield s
    s.close()


@pytest.fixture
def client(server):
    from pandastack import Client

    with Client(api_key="pds_test", api_url=server.url, timeout=10) as c:
        yield c


@pytest.fixture
def box(client):
    from pandastack import Sandbox

    return Sandbox.from_info(client, BOX)
