"""A little internet in network namespaces of this machine, for tests of the sandboxes' network.

    guest (a namespace per sandbox) == tap == [slot] == host ---- internet   11.1.1.1 web, .2 other, .3 cdn, .4 wild, .53 DNS
                                                          \\---- lan        10.9.0.5 database, 169.254.169.254 metadata

`host` is a namespace, too: net-bed (tests/unit/net/bed.c) or pandad runs in there, and nothing of the machine's own network is
touched. The addresses look public to our rules; no packet leaves the machine: no namespace has a way out.

Run as a program it is what runs inside: `serve ROLE` answers, `guest` does as it is told, one JSON line each way.
"""
import contextlib
import inspect
import itertools
import json
import os
import queue
import random
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PYTHON = "/usr/bin/python3"
BUILD = Path(os.environ.get("PANDA_BUILD", Path(__file__).resolve().parents[2] / "build"))
BED = Path(os.environ.get("PANDA_NET_BED", BUILD / "tests" / "unit" / "net" / "net-bed"))
GUEST_MAC = "06:00:ac:1f:ff:02"
GATEWAY_MAC = "06:00:ac:1f:ff:01"
WEB, OTHER, CDN, WILD, DNS = "11.1.1.1", "11.1.1.2", "11.1.1.3", "11.1.1.4", "11.1.1.53"
HOST_PUBLIC, HOST_LAN, DATABASE, METADATA = "11.0.0.2", "10.9.0.1", "10.9.0.5", "169.254.169.254"
MARK = b"panda-mark-"
# What root in a guest can put on the wire and nobody may ever see: Attempts.frame(). The first are none of ours at all ...
ALL6 = {"proto": 17, "ethertype": 0x86DD}
FRAMES = {
    "spoof-ip": {"src": "172.31.255.1"}, "spoof-ip2": {"src": "10.200.0.5"}, "spoof-pub": {"src": "11.1.1.2"}, "spoof-zero": {"src": "0.0.0.0"},
    "spoof-loop": {"src": "127.0.0.1"}, "spoof-mac": {"mac": "06:00:ac:1f:ff:03"}, "spoof-gw": {"mac": GATEWAY_MAC},
    "frag-first": {"frag": 0x2000}, "frag-last": {"frag": 0x0010}, "frag-tcp": {"frag": 0x2000, "proto": 6, "dport": 80},
    "options": {"options": True}, "gre": {"proto": 47}, "sctp": {"proto": 132}, "ipip": {"proto": 4}, "igmp": {"proto": 2}, "esp": {"proto": 50},
    "6in4": {"proto": 41}, "dccp": {"proto": 33}, "udplite": {"proto": 136}, "raw255": {"proto": 255},
    "v6": ALL6, "v6-multi": {**ALL6, "to6": "ff02::1"}, "v6-gw": {**ALL6, "to6": "fe80::400:acff:fe1f:ff01"}, "v6-tcp": {**ALL6, "proto": 6},
    "v6-mapped": {**ALL6, "to6": "::ffff:11.1.1.1"}, "v6-icmp": {**ALL6, "proto": 58, "to6": "ff02::2", "hop": 255}, "v6-ula": {**ALL6, "to6": "fd00::1"},
    "vlan": {"vlan": 0x8100}, "qinq": {"vlan": 0x88A8}, "odd-type": {"ethertype": 0x88CC}, "pppoe": {"ethertype": 0x8864}, "mpls": {"ethertype": 0x8847},
    "rarp": {"ethertype": 0x8035},
    # ... and these are for nobody a guest may talk to.
    "meta": {"to": METADATA}, "lan": {"to": DATABASE}, "multi": {"to": "239.1.1.1"}, "bcast": {"to": "255.255.255.255"}, "zero": {"to": "0.0.0.0"},
    "host": {"to": HOST_PUBLIC}, "host-lan": {"to": HOST_LAN}, "slot": {"to": "10.200.0.2"}, "dns": {"to": DNS, "dport": 53},
    "dot": {"to": DNS, "dport": 853}, "meta-tcp": {"to": METADATA, "proto": 6, "dport": 80}, "last-hop": {"to": DATABASE, "hop": 1},
}
ODD_FRAMES = list(FRAMES).index("meta")
NUMBERS = itertools.count(1)


def patient(seconds):
    """So much longer as the host is busy (server.py is not there where this file runs in a sandbox)."""
    from server import patience
    return seconds * patience()


def sh(text, check=True):
    done = subprocess.run("set -e; " + text, shell=True, capture_output=True, text=True, timeout=patient(30))
    assert not check or done.returncode == 0, f"{text}: {done.stderr}"
    return done.stdout


# What runs inside the namespaces ---------------------------------------------------------------------------------------


def zone():
    """Names the DNS server knows: (name, type) -> list of (type, text)."""
    return {
        "web.example": [("A", WEB)], "other.example": [("A", OTHER)], "a.wild.example": [("A", WILD)],
        "deep.b.wild.example": [("A", WILD)], "wild.example": [("A", WILD)],
        "www.example": [("CNAME", "edge.cdn.example"), ("A", CDN)],
        "half.example": [("A", DATABASE), ("A", WEB)], "rebind.example": [("A", DATABASE)],
        "meta.example": [("A", METADATA)], "loopback.example": [("A", "127.0.0.1")],
        "alias-private.example": [("CNAME", "db.corp.example"), ("A", DATABASE)],
        "step.example": [("CNAME", "step2.example")], "step2.example": [("CNAME", "web.example")],
        "circle.example": [("CNAME", "circle2.example")], "circle2.example": [("CNAME", "circle.example")],
        "huge.example": [("A", f"11.2.{i // 250}.{i % 250 + 1}") for i in range(120)],
        "txt.example": [("TXT", '"hello"')], "short.example": [("A", WEB)],
        "glue.example": [("MX", "10 mail.example."), ("A", DATABASE)],
        "example.com": [("A", WEB)],
    }


PAGE = "<!doctype html><title>Example Domain</title><h1>Example Domain</h1>"


def certificate(where):
    """Makes where/key and where/cert, a certificate for example.com; returns that of the authority behind it, whose key is gone."""
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    ca = ["-keyout", f"{where}/ca.key", "-out", f"{where}/ca", "-subj", "/CN=a little authority"]
    leaf = ["-keyout", f"{where}/key", "-out", f"{where}/cert", "-subj", "/CN=example", "-CA", f"{where}/ca", "-CAkey", f"{where}/ca.key",
            "-addext", "subjectAltName=DNS:example.com", "-addext", "basicConstraints=critical,CA:FALSE"]
    for more in ca, leaf:
        subprocess.run(make + more, check=True, capture_output=True)
    return Path(where, "ca").read_text()


def noise(question, r):
    """An answer to this question with A records, and something wrong with it, another thing for each r."""
    head, asked = bytearray(question[:2] + b"\x81\x80\x00\x01\x00\x03\x00\x00\x00\x00"), question[12:question.index(b"\0", 12) + 5]
    records = bytearray(b"".join(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04" + socket.inet_aton(a) for a in (WEB, OTHER, DATABASE)))
    for part in r.choices([head[2:], records], k=2):
        for _ in range(r.randint(0, 4)):
            part[r.randrange(len(part))] = r.choice([0, 0x3f, 0xc0, 0xff, r.randrange(256)])
    if r.random() < 0.5:  # numbers of records, and a pointer to somewhere
        head[r.randrange(4, 12)] ^= r.choice([1, 0x80, 0xff])
        at = r.randrange(0, 36, 12) + 12 * (r.random() < 0.2)
        records[at % 36:at % 36 + 2] = (0xc000 | r.randrange(100)).to_bytes(2, "big")
    answer = bytes(head) + asked + bytes(records) + r.randbytes(r.choice([0, 0, 1, 500]))
    return answer[:r.choice([len(answer)] * 3 + [r.randrange(len(answer))])]


class Server:
    """All the services of one namespace, on threads."""

    def __init__(self, role):
        self.role = role
        self.marks = []
        self.asked = []
        self.heard = []  # the hosts that requests were for
        self.names = {}

    def run(self):
        if self.role == "internet":
            for port in (80, 8080, 9000, 853):
                self.tcp(port)
            with tempfile.TemporaryDirectory(prefix="panda-tls.") as where:
                self.authority = certificate(where)
                for port in 443, 8443:
                    self.tls(port, where)
            self.greet(2222)
            self.udp(9999)
            self.udp(443)
            self.dns()
        elif self.role == "lan":
            for port in (80, 5432):
                self.tcp(port)
        else:
            for port in (22, 8080):
                self.tcp(port)
        self.sniff()
        print("up", flush=True)
        for line in sys.stdin:
            word = line.split()
            if word[0] == "marks":
                print(json.dumps(self.marks), flush=True)
            elif word[0] == "asked":
                print(json.dumps(self.asked), flush=True)
            elif word[0] == "heard":
                print(json.dumps(self.heard), flush=True)
            elif word[0] == "authority":
                print(json.dumps(self.authority), flush=True)
            elif word[0] == "clear":
                self.marks.clear()
                self.asked.clear()
                self.heard.clear()
                print("{}", flush=True)

    def thread(self, fn, *args):
        threading.Thread(target=fn, args=args, daemon=True).start()

    def listen(self, port, kind, addr="0.0.0.0"):
        s = socket.socket(socket.AF_INET, kind)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((addr, port))
        if kind == socket.SOCK_STREAM:
            s.listen(128)
        return s

    def tcp(self, port):
        """HTTP, one request after another; `GET /hold` keeps the connection and repeats what comes, as a WebSocket does."""
        s = self.listen(port, socket.SOCK_STREAM)

        def talk(c):
            stream = c.makefile("rb")
            try:
                c.settimeout(60)
                while self.answer(c, stream, port):
                    pass
            except (OSError, ValueError):
                pass
            finally:
                stream.close()
                c.close()

        def run():
            while True:
                c, _ = s.accept()
                self.thread(talk, c)
        self.thread(run)

    def answer(self, c, stream, port):
        """One request; False when the connection is done."""
        head = stream.readline(65536)
        if not head:
            return False
        while (line := stream.readline(65536)) not in (b"\r\n", b"\n", b""):
            head += line
        fields = [line.split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line]
        values = {k.strip().lower(): v.strip().decode("latin1") for k, v in fields}
        self.heard += [v.strip().decode("latin1") for k, v in fields if k.strip().lower() == b"host"]
        body = 0
        if values.get(b"transfer-encoding") == "chunked":
            while (n := int(stream.readline(100).strip() or b"0", 16)):
                body += len(stream.read(n + 2)) - 2
            stream.readline(100)
        elif b"content-length" in values:
            body = len(stream.read(int(values[b"content-length"])))
        if b"/hold" in head or (values.get(b"upgrade", "").lower() == "websocket" and b"/no" not in head):
            c.sendall(b"held" if b"/hold" in head else b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            while (got := stream.read1(65536)):
                c.sendall(got)
            return False
        if b"/big" in head:
            c.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 50000000\r\n\r\n")
            for _ in range(50):
                c.sendall(bytes(1000000))
            return False
        text = f"{self.role} {c.getsockname()[0]}:{port}{f' {body} bytes' if body else ''}".encode()
        old = b"HTTP/1.1" not in head
        c.sendall(b"HTTP/1.%d 200 OK\r\nContent-Length: %d\r\n\r\n" % (0 if old else 1, len(text)) + text)
        return not old and values.get(b"connection", "").lower() != "close"

    def greet(self, port):
        """Speaks first, as SSH does; then repeats what comes."""
        s = self.listen(port, socket.SOCK_STREAM)

        def talk(c):
            with c:
                c.sendall(b"hello, who is it?")
                while (got := c.recv(4096)):
                    c.sendall(got)

        def run():
            while True:
                c, _ = s.accept()
                self.thread(talk, c)
        self.thread(run)

    def tls(self, port, where):
        s = self.listen(port, socket.SOCK_STREAM)
        ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ctx.load_cert_chain(f"{where}/cert", f"{where}/key")
        ctx.sni_callback = lambda sock, name, _: self.names.__setitem__(id(sock), name)

        def talk(raw):
            try:
                raw.settimeout(60)
                c = ctx.wrap_socket(raw, server_side=True)
                head = c.recv(4096)
                if b"/big" in head:
                    c.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 20000000\r\n\r\n")
                    for _ in range(20):
                        c.sendall(bytes(1000000))
                    c.close()
                    return
                if b"/hold" in head:
                    c.sendall(b"held")
                    while True:
                        got = c.recv(4096)
                        if not got:
                            return
                        c.sendall(got)
                name = self.names.get(id(c))
                body = (PAGE if name == "example.com" else f"tls {c.getsockname()[0]} {name}").encode()
                c.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                c.close()
            except OSError:
                raw.close()

        def run():
            while True:
                c, _ = s.accept()
                self.thread(talk, c)
        self.thread(run)

    def udp(self, port):
        """Echo; a socket per address, so that it answers from the one that was asked."""
        def run(s):
            while True:
                data, peer = s.recvfrom(4096)
                s.sendto(data, peer)
        for addr in (WEB, OTHER):
            self.thread(run, self.listen(port, socket.SOCK_DGRAM, addr))

    def dns_answer(self, wire, over_tcp):
        import dns.flags
        import dns.message
        import dns.rcode
        import dns.rrset
        q = dns.message.from_wire(wire)
        name = q.question[0].name.to_text(omit_final_dot=True).lower()
        kind = q.question[0].rdtype
        self.asked.append(name)
        r = dns.message.make_response(q)
        r.flags |= dns.flags.RA
        known = zone().get(name)
        if known is None and name.endswith(".tunnel.example"):
            known = [("A", WEB)]
        if name.endswith(".crowd.example"):  # 0.crowd.example to 255.crowd.example: 32 addresses each
            known = [("A", f"11.3.{name.split('.')[0]}.{i}") for i in range(1, 33)]
        if name.endswith(".silent.example"):
            return None
        if name == "bad.example":
            return wire[:2] + b"\x81\x80\x00\x01\x00\x05\x00\x00\x00\x00" + wire[12:30] + b"\xc0\xff\xff"
        if name == "pointer.example":  # compression that points at itself
            head = wire[:2] + b"\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00" + wire[12:12 + len(name) + 2 + 4]
            at = len(head)
            return head + bytes([0xC0 | at >> 8, at & 255]) + b"\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04" + socket.inet_aton(WEB)
        if name.endswith(".noise.example"):
            return noise(wire, random.Random(name))
        if known is None:
            r.set_rcode(dns.rcode.NXDOMAIN)
            return r.to_wire()
        owner = name
        ttl = 1 if name == "short.example" else 60
        for t, text in known:
            if t == "CNAME":
                if kind in (1, 5):
                    r.answer.append(dns.rrset.from_text(owner + ".", ttl, "IN", "CNAME", text + "."))
                    owner = text
            elif {"A": 1, "TXT": 16, "MX": 15}[t] == kind:
                found = r.find_rrset(r.answer, dns.name.from_text(owner + "."), 1, kind, create=True)
                found.update(dns.rrset.from_text(owner + ".", ttl, "IN", t, text))
            elif t == "A" and kind == 15:
                r.additional.append(dns.rrset.from_text("mail.example.", ttl, "IN", "A", text))
        out = r.to_wire(max_size=65535)
        if not over_tcp and len(out) > 1232:
            r.answer = r.answer[:0]
            r.flags |= dns.flags.TC
            out = r.to_wire()
        return out

    def dns(self):
        u, t = self.listen(53, socket.SOCK_DGRAM, DNS), self.listen(53, socket.SOCK_STREAM, DNS)

        def run_udp():
            while True:
                data, peer = u.recvfrom(4096)
                try:
                    out = self.dns_answer(data, False)
                    if out is None:
                        continue
                    if b"\x05forge" in data.lower():  # an answer with another id comes first
                        u.sendto(bytes([out[0] ^ 1]) + out[1:].replace(socket.inet_aton(WEB), socket.inet_aton(OTHER)), peer)
                    u.sendto(out, peer)
                except Exception as e:  # noqa: BLE001: a server that dies makes every later test fail for the wrong reason
                    print(f"dns: {e!r}", file=sys.stderr, flush=True)

        def run_tcp():
            while True:
                c, _ = t.accept()
                try:
                    n = struct.unpack("!H", c.recv(2))[0]
                    out = self.dns_answer(c.recv(n), True)
                    c.sendall(struct.pack("!H", len(out)) + out)
                except Exception as e:  # noqa: BLE001
                    print(f"dns: {e!r}", file=sys.stderr, flush=True)
                c.close()
        self.thread(run_udp)
        self.thread(run_tcp)

    def sniff(self):
        """Remembers every packet with our mark in it: what a guest tried to smuggle out and did arrive."""
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))

        def run():
            while True:
                frame, where = s.recvfrom(65536)
                if where[2] == socket.PACKET_OUTGOING:
                    continue
                at = frame.find(MARK)
                if at >= 0:
                    self.marks.append(frame[at + len(MARK):at + len(MARK) + 16].split(b"\0")[0].decode())
        self.thread(run)


class Attempts:
    """What a guest tries. Each returns a short word or text; "no" when it was refused at once, "silence" when nothing came back."""

    def __init__(self):
        self.held = {}

    @staticmethod
    def sort(e):
        if isinstance(e, (socket.timeout, TimeoutError)):
            return "silence"
        return "no"

    def tcp(self, addr, port, host=None, wait=10):
        try:
            with socket.create_connection((addr, port), wait) as s:
                s.sendall(b"GET / HTTP/1.0\r\n" + (f"Host: {host}\r\n" if host else "").encode() + b"\r\n")
                return s.recv(4096).decode().split("\r\n\r\n")[1] if s else ""
        except (OSError, IndexError) as e:
            return self.sort(e)

    def say(self, addr, port, *parts, answers=0, end=":80", wait=10):
        """Says the parts, each after an answer to the one before; all that came, to the end or to so many answers of HTTP, the last with this end."""
        got = b""
        try:
            with socket.create_connection((addr, port), wait) as s:
                for i, part in enumerate(parts):
                    s.sendall(part.encode("latin1"))
                    if i < len(parts) - 1:
                        got += s.recv(65536)
                while not answers or got.count(b"HTTP/1.1 ") < answers or not got.endswith(end.encode()):
                    part = s.recv(65536)
                    if not part:
                        break
                    got += part
        except OSError as e:
            got += b" " + self.sort(e).encode()
        return got.decode("latin1")

    def greeted(self, addr, port, text, wait=10):
        """What a server says that speaks first; then text, and its answer."""
        try:
            with socket.create_connection((addr, port), wait) as s:
                got = s.recv(100)
                s.sendall(text.encode("latin1"))
                return (got + b"|" + s.recv(100)).decode("latin1")
        except OSError as e:
            return self.sort(e)

    def udp(self, addr, port, wait=1.0):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(wait)
            try:
                s.connect((addr, port))
                s.send(b"hello")
                return s.recv(100).decode()
            except OSError as e:
                return self.sort(e)

    def hold(self, key, addr, port):
        s = socket.create_connection((addr, port), 30)
        s.sendall(b"GET /hold HTTP/1.0\r\n\r\n")
        got = s.recv(4)
        self.held[key] = s
        return got.decode()

    def echo(self, addr, port, n):
        """Sends n bytes and reads them back: how many came."""
        assert self.hold("echo", addr, port) == "held"
        got = self.push("echo", n)
        self.drop("echo")
        return got

    def hold_tls(self, key, addr, sni):
        ctx = ssl.create_default_context()
        ctx.check_hostname = False
        ctx.verify_mode = ssl.CERT_NONE
        s = ctx.wrap_socket(socket.create_connection((addr, 443), 30), server_hostname=sni)
        s.sendall(b"GET /hold HTTP/1.0\r\n\r\n")
        self.held[key] = s
        return s.recv(4).decode()

    def drop(self, key):
        self.held.pop(key).close()
        return "gone"

    def push(self, key, n):
        """Through a held connection and back."""
        s, got = self.held[key], 0
        s.settimeout(10)
        for at in range(0, n, 50000):
            part = min(50000, n - at)
            s.sendall(b"x" * part)
            want = got + part
            while got < want:
                got += len(s.recv(65536))
        return got

    def poke(self, key):
        """Whether a held connection still lives."""
        s = self.held[key]
        s.settimeout(10)
        try:
            s.sendall(b"ping")
            return s.recv(4).decode() or "end"
        except ConnectionError:
            return "reset"
        except OSError as e:
            return self.sort(e)

    def tls(self, addr, sni, port=443, path="/", wait=5, split=False):
        ctx = ssl.create_default_context()
        ctx.check_hostname = False
        ctx.verify_mode = ssl.CERT_NONE
        try:
            with socket.create_connection((addr, port), wait) as raw:
                if split:
                    return self.tls_in_pieces(raw, ctx, sni)
                with ctx.wrap_socket(raw, server_hostname=sni) as s:
                    s.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                    got = bytearray()
                    while (part := s.recv(65536)):
                        got += part
                    body = bytes(got).split(b"\r\n\r\n", 1)[1]
                    return body.decode() if path == "/" else str(len(body))
        except (OSError, IndexError) as e:
            return self.sort(e)

    def tls_in_pieces(self, raw, ctx, sni):
        """The ClientHello in many small packets."""
        inc, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        obj = ctx.wrap_bio(inc, out, server_hostname=sni)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(10):
            try:
                obj.do_handshake()
                return "handshake"
            except ssl.SSLWantReadError:
                pass
            data = out.read()
            for i in range(0, len(data), 40):
                raw.sendall(data[i:i + 40])
            got = raw.recv(65536)
            if not got:
                return "no"
            inc.write(got)
        return "no"

    def garbage(self, addr, port, hexdata):
        """Bytes that are no hello, or half of one."""
        try:
            with socket.create_connection((addr, port), 3) as s:
                s.sendall(bytes.fromhex(hexdata))
                return s.recv(100).decode("latin1") or "end"
        except OSError as e:
            return self.sort(e)

    def name(self, name, kind="A", server="172.31.255.1", tcp=False, wait=4):
        import dns.exception
        import dns.message
        import dns.query
        import dns.rcode
        q = dns.message.make_query(name, kind)
        try:
            r = (dns.query.tcp if tcp else dns.query.udp)(q, server, timeout=wait)
        except (dns.exception.Timeout, TimeoutError):
            return "silence"
        except (OSError, EOFError):
            return "no"
        if r.rcode() != dns.rcode.NOERROR:
            return dns.rcode.to_text(r.rcode())
        found = sorted(i.to_text() for rr in r.answer for i in rr if dns.rdatatype.to_text(rr.rdtype) == kind)
        return " ".join(found) or "nothing"

    def ask_raw(self, hexdata, wait=2):
        """Bytes to the resolver; the answer as hex."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(wait)
            s.connect(("172.31.255.1", 53))
            s.send(bytes.fromhex(hexdata))
            try:
                return s.recv(4096).hex()
            except OSError as e:
                return self.sort(e)

    def flood_names(self, count, pattern):
        """Many questions without waiting; how many got which rcode."""
        import dns.message
        import dns.rcode
        got = {}
        wires = [dns.message.make_query(pattern.format(i=i), "A").to_wire() for i in range(count)]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(1.5)
            s.connect(("172.31.255.1", 53))
            for i, wire in enumerate(wires):
                s.send(wire)
                if i % 20 == 19:
                    for _ in range(20):
                        try:
                            word = dns.rcode.to_text(s.recv(4096)[3] & 15)
                        except OSError:
                            word = "silence"
                        got[word] = got.get(word, 0) + 1
        return got

    def ping(self, addr, wait=10):
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as s:
            s.settimeout(wait)
            body = struct.pack("!BBHHH", 8, 0, 0, 77, 1) + b"ping"
            body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
            try:
                s.sendto(body, (addr, 0))
                end = time.monotonic() + wait
                while time.monotonic() < end:
                    got, peer = s.recvfrom(200)
                    if got[20] == 0 and peer[0] == addr:
                        return "pong"
                    if got[20] == 3:
                        return "no"
                return "silence"
            except OSError as e:
                return self.sort(e)

    def frame(self, mark, to=WEB, src="172.31.255.2", mac=GUEST_MAC, proto=17, frag=0, options=False, dport=9999, ethertype=0x0800,
              vlan=False, to6=None, hop=64):
        """A raw frame, as root in a guest can make them. The mark tells whether it arrived anywhere."""
        payload = MARK + mark.encode() + b"\0" * 20
        if proto == 17:
            l4 = struct.pack("!HHHH", 5555, dport, 8 + len(payload), 0) + payload
        elif proto == 6:
            l4 = struct.pack("!HHIIBBHHH", 5555, dport, 1, 0, 5 << 4, 2, 1000, 0, 0) + payload
        else:
            l4 = payload
        opt = b"\x83\x07\x04" + socket.inet_aton(WEB) + b"\0" if options else b""  # loose source route
        ihl = 5 + len(opt) // 4
        ip = struct.pack("!BBHHHBBH4s4s", 0x40 | ihl, 0, 20 + len(opt) + len(l4), 7, frag, hop, proto, 0, socket.inet_aton(src),
                         socket.inet_aton(to)) + opt
        ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
        if ethertype == 0x86DD:
            ip = struct.pack("!IHBB", 6 << 28, len(l4), proto, hop) + socket.inet_pton(socket.AF_INET6, "fe80::2") + \
                socket.inet_pton(socket.AF_INET6, to6 or "2600::1")
        kind = (struct.pack("!HH", vlan, 5) if vlan else b"") + struct.pack("!H", ethertype)
        frame = bytes.fromhex(GATEWAY_MAC.replace(":", "") + mac.replace(":", "")) + kind + ip + l4
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as s:
            s.bind(("eth0", 0))
            s.send(frame)
        return "sent"

    def arp(self, op, sender_mac, sender_ip, target_ip, wait=1.0):
        """An ARP packet; who answered."""
        mac = bytes.fromhex(sender_mac.replace(":", ""))
        body = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, op, mac, socket.inet_aton(sender_ip), bytes(6), socket.inet_aton(target_ip))
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806)) as s:
            s.bind(("eth0", 0))
            s.settimeout(wait)
            s.send(b"\xff" * 6 + bytes.fromhex(GUEST_MAC.replace(":", "")) + b"\x08\x06" + body)
            try:
                while True:
                    got = s.recv(100)
                    if struct.unpack("!H", got[20:22])[0] == 2 and got[28:32] == socket.inet_aton(target_ip):
                        return got[22:28].hex(":")
            except OSError:
                return "silence"

    def many(self, addr, port, count):
        """Opens connections and keeps them: how many came about."""
        kept = []
        for _ in range(count):
            try:
                kept.append(socket.create_connection((addr, port), 1.5))
            except OSError:
                break
        n = len(kept)
        for s in kept:
            s.close()
        return n

    def keep(self, key, addr, port, count):
        """Opens connections and keeps them until let_go: how many came about."""
        kept = self.held.setdefault(key, [])
        for i in range(count):
            try:
                kept.append(socket.create_connection((addr, port), 1.5))
            except OSError:
                return i
        return count

    def let_go(self, key):
        for s in self.held.pop(key):
            s.close()

    def scatter(self, count):
        """Questions, each from another port; how many were answered."""
        import dns.message
        wire = dns.message.make_query("web.example", "A").to_wire()
        n = 0
        for _ in range(count):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.settimeout(2)
                s.sendto(wire, ("172.31.255.1", 53))
                try:
                    n += len(s.recv(4096)) > 12
                except OSError:
                    pass
        return n

    def ask_many(self, count, pattern):
        """Sends questions and waits for no answer."""
        import dns.message
        s = self.held.setdefault("asker", socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        for i in range(count):
            s.sendto(dns.message.make_query(pattern.format(i=i), "A").to_wire(), ("172.31.255.1", 53))

    def fetch(self, addr, port, limit_s=8, host=None):
        """Downloads /big for so long: bytes per second."""
        with socket.create_connection((addr, port), 3) as s:
            s.sendall(b"GET /big HTTP/1.0\r\n" + (f"Host: {host}\r\n" if host else "").encode() + b"\r\n")
            s.settimeout(3)
            start, n = time.monotonic(), 0
            while time.monotonic() - start < limit_s:
                got = s.recv(1 << 20)
                if not got:
                    break
                n += len(got)
            return n / (time.monotonic() - start)

    def dns_time(self, name, count):
        """Microseconds a question takes, the median."""
        import dns.message
        wire = dns.message.make_query(name, "A").to_wire()
        times = []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(2)
            s.connect(("172.31.255.1", 53))
            for _ in range(count):
                a = time.perf_counter()
                s.send(wire)
                s.recv(4096)
                times.append(time.perf_counter() - a)
        return sorted(times)[count // 2] * 1e6


def checksum(data):
    data += b"\0" * (len(data) % 2)
    n = sum(struct.unpack(f"!{len(data) // 2}H", data))
    n = (n >> 16) + (n & 0xFFFF)
    return ~(n + (n >> 16)) & 0xFFFF


def guest_main():
    tries = Attempts()
    print("up", flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            out = getattr(tries, ask["do"])(*ask.get("args", []), **ask.get("kw", {}))
        except Exception as e:  # noqa: BLE001: the test shall see it
            out = f"failed: {e!r}"
        print(json.dumps(out), flush=True)


# What the tests see ------------------------------------------------------------------------------------------------------


class Child:
    """A program in a namespace that answers lines with lines."""

    def __init__(self, ns, *argv, **kw):
        self.proc = subprocess.Popen(["ip", "netns", "exec", ns, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **kw)
        self.lines = queue.Queue()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.proc.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def line(self, seconds=90):
        got = self.lines.get(timeout=patient(seconds))
        assert got is not None, "the program in the namespace has ended"
        return got

    def say(self, text):
        self.proc.stdin.write(text + "\n")
        self.proc.stdin.flush()

    def ask(self, text, seconds=90):
        self.say(text)
        return json.loads(self.line(seconds))

    def end(self, how=None):
        if how:
            self.proc.send_signal(how)
        else:
            self.proc.stdin.close()
        try:
            self.proc.wait(patient(20))
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            raise


class Bed(Child):
    """net-bed, in the host namespace. Events are kept beside the answers."""

    def __init__(self, net, ready=2, resolver=DNS, *more):
        self.events = []
        self.net = net
        super().__init__(net.host, str(BED), str(ready), resolver, *map(str, more))
        assert self.line() == "ok"

    def read(self):
        for line in self.proc.stdout:
            if line.startswith("event "):
                w = line.split()
                self.events.append(dict(slot=w[1], verdict=w[2], proto=int(w[3]), addr=w[4], port=int(w[5]), name=w[6], why=w[7],
                                        up=int(w[8]), down=int(w[9])))
            else:
                self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def do(self, text, seconds=60):
        """The answer's words; an AssertionError with its text when it is no."""
        self.say(text)
        got = self.line(seconds)
        assert got.startswith("ok"), f"{text}: {got}"
        return got.split()[1:]

    def end(self, how=None):
        super().end(how)
        assert how or self.proc.returncode == 0, f"net-bed ended with {self.proc.returncode}"  # a sanitizer has spoken

    def refused(self, text):
        self.say(text)
        got = self.line()
        assert got.startswith("no "), f"{text}: {got}"
        return got[3:]

    def numbers(self, text):
        return {k: float(v) for k, v in (w.split("=") for w in self.do(text))}

    def saw(self, seconds=60, **want):
        """Waits for an event with these values."""
        end = time.monotonic() + seconds
        while True:
            for e in list(self.events):
                if all(e[k] == v for k, v in want.items()):
                    return e
            assert time.monotonic() < end, f"no event {want}; the last: {self.events[-8:]}"
            time.sleep(0.01)


class Guest(Child):
    """A namespace behind a slot's tap, and somebody in there who tries things."""

    def __init__(self, net, bed, name):
        self.name, self.net = name, net
        self.ns = f"{net.tag}-{name}"
        sh(f"ip netns add {self.ns}")
        net.spaces.append(self.ns)
        self.machine = int(bed.do(f"guest {name} /run/netns/{self.ns}")[0])
        net.machines.append(self.machine)
        sh(f"ip -n {self.ns} link set lo up; ip -n {self.ns} link set eth0 address {GUEST_MAC} mtu 1500 up;"
           f"ip -n {self.ns} addr add 172.31.255.2/30 dev eth0; ip -n {self.ns} route add default via 172.31.255.1")
        super().__init__(self.ns, PYTHON, __file__, "guest")
        assert self.line() == "up"

    def attempt(self, do, *args, **kw):
        wait = inspect.signature(getattr(Attempts, do)).parameters.get("wait")
        if wait:
            usual = kw.get("wait", wait.default)
            kw["wait"] = min(patient(usual), 4 * usual)  # what never comes is waited for, too
        return self.ask(json.dumps(dict(do=do, args=args, kw=kw)), 90)

    def run(self, command, seconds=20):
        """A real program in the guest; name server as in a sandbox."""
        done = subprocess.run(["ip", "netns", "exec", self.ns, "sh", "-c", command], capture_output=True, text=True,
                              timeout=patient(seconds))
        return done.returncode, done.stdout + done.stderr

    def close(self):
        self.end()
        with contextlib.suppress(ProcessLookupError):  # a test may have killed it, and init reaped it
            os.kill(self.machine, signal.SIGKILL)
        self.net.machines.remove(self.machine)
        sh(f"ip netns del {self.ns}")
        self.net.spaces.remove(self.ns)


def sweep():
    """Clears namespaces of test runs that were killed: their names begin with a process that is no more."""
    for ns in sh("ip netns list").split():
        found = re.match(r"pt(\d+)x", ns)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            sh(f"ip netns pids {ns} | xargs -r kill -9; ip netns del {ns}", check=False)


class LittleInternet:
    resolver = DNS

    def __init__(self):
        self.tag = f"pt{os.getpid()}x{next(NUMBERS)}"
        self.host, self.internet, self.lan = (f"{self.tag}-{n}" for n in ("host", "internet", "lan"))
        self.spaces, self.machines, self.children = [], [], []

    def __enter__(self):
        sweep()
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self):
        # One test run at a time puts things together: names of links are given in the machine's own namespace for a moment.
        for ns in (self.host, self.internet, self.lan):
            sh(f"ip netns add {ns}; ip -n {ns} link set lo up")
            self.spaces.append(ns)
        h, i, l = self.host, self.internet, self.lan
        sh(f"ip -n {h} link add up0 type veth peer name down0 netns {i}; ip -n {h} link add lan0 type veth peer name lan0 netns {l};"
           f"ip -n {h} addr add {HOST_PUBLIC}/24 dev up0; ip -n {h} link set up0 up; ip -n {h} addr add {HOST_LAN}/24 dev lan0;"
           f"ip -n {h} link set lan0 up; ip -n {h} route add default via 11.0.0.1; ip -n {h} route add {METADATA} via {DATABASE};"
           f"ip -n {i} addr add 11.0.0.1/24 dev down0; ip -n {i} link set down0 up;"
           f"ip -n {l} addr add {DATABASE}/24 dev lan0; ip -n {l} link set lan0 up;"
           # The lan would answer a sandbox, if one ever got there.
           f"ip -n {l} addr add {METADATA}/32 dev lo; ip -n {l} route add default via {HOST_LAN}")
        for a in (WEB, OTHER, CDN, WILD, DNS, "11.1.1.5"):
            sh(f"ip -n {i} addr add {a}/32 dev lo")
        self.world = self.serve(self.internet, "internet")
        self.inner = self.serve(self.lan, "lan")
        self.own = self.serve(self.host, "host")

    def serve(self, ns, role):
        c = Child(ns, PYTHON, __file__, "serve", role)
        self.children.append(c)
        assert c.line() == "up"
        return c

    def marks(self):
        """Marks that arrived anywhere but in the guest."""
        return sorted(set(sum((c.ask("marks") for c in self.children), [])))

    def authority(self):
        """The certificate to trust for example.com."""
        return self.world.ask("authority")

    def clear(self):
        for c in self.children:
            c.ask("clear")

    def bed(self, *args):
        b = Bed(self, *args)
        self.children_beds = getattr(self, "children_beds", []) + [b]
        return b

    def links(self):
        return [line.split()[1].split("@")[0] for line in sh(f"ip -n {self.host} -o link").splitlines() if " pn" in line]

    def tables(self):
        return sh(f"ip netns exec {self.host} nft list tables").split("\n")[:-1]

    def __exit__(self, *_):
        for pid in self.machines:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for b in getattr(self, "children_beds", []) + self.children:
            if b.proc.poll() is None:
                b.proc.kill()
                b.proc.wait(60)  # namespaces go with it
        for ns in self.spaces:
            sh(f"ip netns pids {ns} | xargs -r kill -9", check=False)
            sh(f"ip netns del {ns}", check=False)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        Server(sys.argv[2]).run()
    else:
        guest_main()
