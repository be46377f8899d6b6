"""What tests of streams need: server-sent events as they come, and a WebSocket of a few lines."""
import base64
import json
import os
import socket
import struct
from pathlib import Path

from server import patience


class Events:
    """A request whose answer is read piece by piece; iterating gives (event name, data)."""

    def __init__(self, pandad, method, path, body=None, timeout=60, small=False):
        self.c = pandad.connection(timeout * patience())
        self.c.connect()
        if small:  # so that little fits between the server and a reader that does not read
            self.c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        headers = {"Authorization": f"Bearer {pandad.key}", "Content-Type": "application/json"}
        self.c.request(method, path, json.dumps(body) if body is not None else None, headers)
        self.r = self.c.getresponse()
        self.status = self.r.status

    def __iter__(self):
        name, data = None, []
        for line in self.r:
            line = line.decode().rstrip("\n")
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].strip())
            elif not line and data:
                yield name, json.loads("\n".join(data))
                name, data = None, []

    def until(self, wanted):
        """All up to and with the first event of that name."""
        seen = []
        for name, data in self:
            seen.append((name, data))
            if name == wanted:
                return seen
        raise AssertionError(f"no event {wanted!r}; last seen: {seen[-3:]}")

    def close(self):
        self.r.close()
        self.c.close()


class WebSocket:
    def __init__(self, pandad, path, host=None, token=None, protocol=None):
        c = pandad.connection(180)
        c.connect()
        self.s = c.sock
        head = [f"GET {path} HTTP/1.1", f"Host: {host or '127.0.0.1'}", "Connection: Upgrade", "Upgrade: websocket",
                "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}"]
        if token != "":
            head.append(f"Authorization: Bearer {token or pandad.key}")
        self.s.sendall("\r\n".join(head + ["", ""]).encode())
        self.rest = b""
        while b"\r\n\r\n" not in self.rest:
            self.rest += self._more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        self.status = int(head.split()[1])
        self.head = head.decode()
        self.code = None

    def _more(self):
        data = self.s.recv(65536)
        if not data:
            raise EOFError("the other side is gone")
        return data

    def _take(self, n):
        while len(self.rest) < n:
            self.rest += self._more()
        data, self.rest = self.rest[:n], self.rest[n:]
        return data

    def send(self, data, opcode=None):
        opcode = opcode or (1 if isinstance(data, str) else 2)
        data = data.encode() if isinstance(data, str) else data
        n, mask = len(data), os.urandom(4)
        head = bytes([0x80 | opcode])
        head += bytes([0x80 | n]) if n < 126 else (b"\xfe" + struct.pack(">H", n) if n < 65536 else b"\xff" + struct.pack(">Q", n))
        long_mask = (mask * (n // 4 + 1))[:n]
        data = (int.from_bytes(data, "big") ^ int.from_bytes(long_mask, "big")).to_bytes(n, "big")
        self.s.sendall(head + mask + data)

    def json(self, value):
        self.send(json.dumps(value))

    def recv(self):
        """(text?, payload); None after a close frame, whose code is then in .code"""
        while True:
            first, second = self._take(2)
            n = second & 127
            if n == 126:
                n = struct.unpack(">H", self._take(2))[0]
            elif n == 127:
                n = struct.unpack(">Q", self._take(8))[0]
            data = self._take(n)
            opcode = first & 15
            if opcode == 8:
                self.code = struct.unpack(">H", data[:2])[0] if data else None
                try:
                    self.send(data, 8)
                except OSError:
                    pass
                return None
            if opcode == 9:
                self.send(data, 10)
            elif opcode in (0, 1, 2):
                return opcode == 1, data

    def until(self, text):
        """Reads binary frames until these bytes have come; gives all so far."""
        got = b""
        while text not in got:
            frame = self.recv()
            assert frame is not None, f"closed before {text!r} came: {got[-500:]!r}"
            if not frame[0]:
                got += frame[1]
        return got

    def close(self):
        self.s.close()


def rss_kib(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
