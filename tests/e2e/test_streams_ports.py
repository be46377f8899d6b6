"""HTTP to ports inside a sandbox: by route, by signed link, by host name."""
import base64
import hashlib
import http.client
import json
import os
import socket
import time

import pytest

from conftest import wait_for
from streams import Events, WebSocket, rss_kib

# A service of a few lines, with everything a proxy may get wrong.
SERVICE = r'''
import base64, hashlib, socket, socketserver, struct, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while (n := int(self.rfile.readline(), 16)):
                data += self.rfile.read(n); self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))
    def say(self, data, *headers, status=200):
        self.send_response(status)
        for k, v in headers: self.send_header(k, v)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD": self.wfile.write(data)
    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/echo":
            head = "".join(f"{k}: {v}\n" for k, v in self.headers.items())
            self.say(f"{self.command} {self.path}\n{head}".encode(), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("Keep-Alive", "x"))
        elif path == "/origin":
            self.say(b"mine", ("Service-Worker-Allowed", "/"), ("Clear-Site-Data", '"*"'), ("Alt-Svc", 'h3="evil.example:443"'),
                     ("Strict-Transport-Security", "max-age=9"), ("X-Plain", "yes"))
        elif path == "/chunked":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for i in range(100):
                p = f"piece {i}\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(p), p))
            self.wfile.write(b"0\r\n\r\n")
        elif path == "/close":
            self.close_connection = True
            self.send_response(200); self.end_headers()
            self.wfile.write(b"until the end" * 1000)
        elif path == "/cut":
            self.send_response(200); self.send_header("Content-Length", "1000"); self.end_headers()
            self.wfile.write(b"short"); self.wfile.flush(); self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif path == "/early":
            self.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"); self.say(b"after hints")
        elif path == "/empty": self.send_response(204); self.end_headers()
        elif path == "/same": self.send_response(304); self.send_header("ETag", '"x"'); self.end_headers()
        elif path == "/nonsense": self.wfile.write(b"SSH-2.0-whatever\r\n\r\n"); self.close_connection = True
        elif path == "/silent": self.close_connection = True
        elif path == "/big":
            self.send_response(200); self.send_header("Content-Length", str(64 << 20)); self.end_headers()
            for _ in range(64): self.wfile.write(b"b" * (1 << 20))
        elif path == "/events":
            self.send_response(200); self.send_header("Content-Type", "text/event-stream"); self.end_headers()
            for i in range(3):
                self.wfile.write(f"data: {i}\n\n".encode()); self.wfile.flush()
                if i < 2: go.wait(); go.clear()
            self.close_connection = True
        elif path == "/go": go.set(); self.say(b"")
        elif path == "/ws":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101); self.send_header("Upgrade", "websocket"); self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()); self.end_headers()
            self.close_connection = True
            while True:
                first, n = self.rfile.read(2); n &= 127
                if n == 126: n = struct.unpack(">H", self.rfile.read(2))[0]
                mask = self.rfile.read(4); data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(n)))
                self.wfile.write(bytes([first]) + (bytes([n]) if n < 126 else b"\x7e" + struct.pack(">H", n)) + data)
                if first & 15 == 8: return
        else: self.say(b"no such page", status=404)
    do_HEAD = do_DELETE = do_OPTIONS = do_GET
    def do_POST(self):
        data = self.body()
        self.say(f"{self.command} {len(data)} {hashlib.md5(data).hexdigest()}".encode())
    do_PUT = do_PATCH = do_POST

go = threading.Event()
ThreadingHTTPServer.address_family = socket.AF_INET6 if len(sys.argv) > 2 else socket.AF_INET
s = ThreadingHTTPServer(("::1" if len(sys.argv) > 2 else "127.0.0.1", int(sys.argv[1])), H)
print("ready", flush=True)
s.serve_forever()
'''


def serve(p, id, port, *more):
    p.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/service.py", SERVICE)
    eid = p.do("POST", f"/v1/sandboxes/{id}/execs", {"argv": ["python3", "/root/service.py", str(port), *more]})["id"]
    info = wait_for("the service", lambda: (i := p.do("GET", f"/v1/sandboxes/{id}/execs/{eid}"))["stdout_to"] >= 6 and i)
    assert info["running"], p.do("GET", f"/v1/sandboxes/{id}/execs/{eid}/output")
    return f"/v1/sandboxes/{id}/proxy/{port}"


def visitors(p, id, port=8000):
    """The host name for everyone, of a port that is declared from now on."""
    url = p.do("POST", f"/v1/sandboxes/{id}/ports", {"port": port})["preview_url"]
    return url.removeprefix("http://").rstrip("/").rpartition(":")[0]


@pytest.fixture
def web(pandad):
    id = pandad.create()
    return id, serve(pandad, id, 8000)


def test_requests_are_rewritten_and_nothing_of_ours_leaks(pandad, web):
    id, at = web
    a = pandad.ask("GET", f"{at}/echo?a=1&access_token={pandad.key}&b=%20x", headers={
        "X-Mine": "yes", "Connection": "close, X-Hop", "X-Hop": "no", "TE": "trailers", "X-Forwarded-For": "6.6.6.6", "Cookie": "c=d"})
    first, *lines = a.body.decode().splitlines()
    head = dict(line.split(": ", 1) for line in lines)
    assert first == "GET /echo?a=1&b=%20x"
    assert "Authorization" not in head and pandad.key not in a.body.decode()
    assert (head["X-Mine"], head["Cookie"], head["X-Forwarded-For"], head["X-Forwarded-Proto"]) == ("yes", "c=d", "127.0.0.1", "http")
    assert head["Host"] == head["X-Forwarded-Host"] == f"127.0.0.1:{pandad.port}"
    assert id not in a.body.decode()
    assert "X-Hop" not in head and "TE" not in head and head["Connection"] == "close"
    assert "keep-alive" not in a.headers
    c = http.client.HTTPConnection("127.0.0.1", pandad.port)
    c.request("GET", f"{at}/echo", headers={"Authorization": f"Bearer {pandad.key}"})
    assert c.getresponse().headers.get_all("Set-Cookie") == [f"a=1; Path={at}/", f"b=2; Path={at}/"]
    c.close()
    assert pandad.ask("GET", f"{at}/nope").status == 404
    assert pandad.ask("DELETE", f"{at}/echo").body.startswith(b"DELETE /echo")


def test_a_guest_says_nothing_about_the_origin_it_shares(pandad, web):
    """A page below our own path could otherwise take all of that origin with a service worker, or send it elsewhere."""
    id, at = web
    token = pandad.do("POST", f"/v1/sandboxes/{id}/preview-token", {"port": 8000})["token"]
    wide = {"service-worker-allowed", "clear-site-data", "alt-svc", "strict-transport-security"}
    for path, host in (f"{at}/origin", None), (f"/v1/p/{token}/origin", None), ("/origin", visitors(pandad, id)):
        a = pandad.ask("GET", path, headers={"Host": host} if host else {})
        said = {k.lower() for k in a.headers}
        assert a.headers["referrer-policy"] == "same-origin"
        assert a.headers.get("content-security-policy", "").startswith("sandbox allow-scripts ") == (host is None)
        assert a.body == b"mine" and "x-plain" in said
        assert said & wide == (wide if host else set()), path


def test_every_kind_of_body(pandad, web):
    _, at = web
    assert pandad.do("GET", f"{at}/chunked") == "".join(f"piece {i}\n" for i in range(100)).encode()
    assert pandad.do("GET", f"{at}/close") == b"until the end" * 1000
    assert pandad.do("GET", f"{at}/early") == b"after hints"
    a = pandad.ask("GET", f"{at}/empty")
    assert (a.status, a.body) == (204, b"") and "content-length" not in a.headers
    a = pandad.ask("GET", f"{at}/same")
    assert (a.status, a.body, a.headers["etag"]) == (304, b"", '"x"')
    a = pandad.ask("HEAD", f"{at}/echo")
    assert (a.status, a.body) == (200, b"") and int(a.headers["content-length"]) > 10
    data = os.urandom(3_000_000)
    said = f"POST {len(data)} {hashlib.md5(data).hexdigest()}".encode()
    assert pandad.do("POST", f"{at}/x", data) == said
    assert pandad.do("POST", f"{at}/x", iter([data[:7], data[7:2_000_000], data[2_000_000:]])) == said
    assert pandad.do("PUT", f"{at}/x", b"") == f"PUT 0 {hashlib.md5(b'').hexdigest()}".encode()


def test_a_connection_can_be_used_again(pandad, web):
    _, at = web
    c = http.client.HTTPConnection("127.0.0.1", pandad.port, timeout=180)
    for path in ("/chunked", "/echo", "/close", "/empty", "/echo"):
        c.request("GET", at + path, headers={"Authorization": f"Bearer {pandad.key}"})
        r = c.getresponse()
        r.read()
        assert r.status in (200, 204)
    c.close()


def test_what_goes_wrong_upstream(pandad, web):
    id, at = web
    for path in "/nonsense", "/silent":
        a = pandad.ask("GET", at + path)
        assert (a.status, a.json["code"]) == (502, "upstream"), a
    with pytest.raises((http.client.HTTPException, OSError)):  # cut, so that nobody takes it for whole
        pandad.ask("GET", f"{at}/cut")
    a = pandad.ask("GET", f"/v1/sandboxes/{id}/proxy/9/")
    assert (a.status, a.json["code"]) == (502, "upstream") and "nothing listens" in a.json["error"]
    for port in "0", "65536", "x":
        assert pandad.ask("GET", f"/v1/sandboxes/{id}/proxy/{port}/").status == 400


def test_large_answers_keep_the_readers_pace(pandad, web):
    id, at = web
    before = rss_kib(pandad.process.pid)
    slow = [Events(pandad, "GET", f"{at}/big", small=True) for _ in range(4)]
    assert pandad.do("GET", f"{at}/big") == b"b" * (64 << 20)
    assert rss_kib(pandad.process.pid) - before < 8 * 1024
    for e in slow:
        e.close()


def test_events_come_one_by_one(pandad, web):
    _, at = web
    c = http.client.HTTPConnection("127.0.0.1", pandad.port, timeout=180)
    c.request("GET", f"{at}/events", headers={"Authorization": f"Bearer {pandad.key}"})
    r = c.getresponse()
    for i in range(3):
        assert r.readline() + r.readline() == f"data: {i}\n\n".encode()
        if i < 2:  # it says the next only when it is asked to: nothing was held back
            pandad.do("GET", f"{at}/go")
    assert r.read() == b""
    c.close()


def test_websockets_pass(pandad, web):
    id, at = web
    for w in (WebSocket(pandad, f"{at}/ws"), WebSocket(pandad, "/ws", host=visitors(pandad, id), token="")):
        assert w.status == 101 and "sec-websocket-accept" in w.head.lower()
        for text in "hello", "x" * 5000, "":
            w.send(text)
            assert w.recv() == (True, text.encode())
        w.send(b"\x03\xe8", 8)
        assert w.recv() is None and w.code == 1000
        w.close()


def test_ipv6_only_services_are_found(pandad):
    id = pandad.create()
    at = serve(pandad, id, 8001, "six")
    assert pandad.ask("GET", f"{at}/echo").status == 200
    assert [p["port"] for p in pandad.do("GET", f"/v1/sandboxes/{id}/ports")] == [8001]


def test_ports_are_seen_declared_and_forgotten(pandad, web):
    id, at = web
    ports = f"/v1/sandboxes/{id}/ports"
    seen = {"port": 8000, "listening": True, "source": "detected", "proxy_url": f"{at}/", "preview_url": None}
    assert pandad.do("GET", ports) == [seen]
    made = pandad.do("POST", ports, {"port": 3000, "label": "web"}, expect=201)
    assert (made["port"], made["label"], made["source"]) == (3000, "web", "user")
    assert [(p["port"], p["listening"], p["source"]) for p in pandad.do("GET", ports)] == [(3000, False, "user"), (8000, True, "detected")]
    assert pandad.do("GET", f"/v1/sandboxes/{id}")["metadata"]["port.3000"] == "web"
    pandad.do("DELETE", f"{ports}/3000", expect=204)
    pandad.do("DELETE", f"{ports}/3000", expect=404)
    for bad in {}, {"port": 0}, {"port": 22}, {"port": "x"}, {"port": 70000}:
        assert pandad.ask("POST", ports, bad).status == 400
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    assert pandad.do("GET", ports) == [] and pandad.do("GET", f"/v1/sandboxes/{id}")["status"] == "hibernated"
    assert pandad.ask("GET", f"{at}/echo").status == 200, "a request to a port wakes it, and the service is still there"


def test_signed_links_open_one_port_for_a_time(pandad, web):
    id, _ = web
    make = f"/v1/sandboxes/{id}/preview-token"
    link = pandad.do("POST", make, {"port": 8000})
    path = link["url"].split(f":{pandad.port}", 1)[1]
    a = pandad.ask("GET", path + "echo?x=1", token="")
    assert a.status == 200 and a.body.startswith(b"GET /echo?x=1\n")
    # Changed in any place it is no link of ours.
    token = link["token"]
    payload, mac = token.split(".")
    other = base64.urlsafe_b64encode(base64.urlsafe_b64decode(payload + "==").replace(b"|8000|", b"|8001|")).decode().rstrip("=")
    for bad in (other + "." + mac, payload + "." + mac[:-2] + "AA", payload, token[:-1], "x.y", "."):
        a = pandad.ask("GET", f"/v1/p/{bad}/echo", token="")
        assert (a.status, a.json["code"]) == (401, "unauthorized"), bad

    def used():  # a busy host may be too late for one
        token = pandad.do("POST", make, {"port": 8000, "ttl_seconds": 1})["token"]
        return pandad.ask("GET", f"/v1/p/{token}/echo", token="").status == 200 and token
    short = wait_for("a link that is used in time", used)
    a = wait_for("its end", lambda: (a := pandad.ask("GET", f"/v1/p/{short}/echo", token="")).status != 200 and a)
    assert a.status == 401 and "expired" in a.json["error"]
    some = pandad.do("POST", make, {"port": 8000, "paths": ["/echo", "/static/"]})["token"]
    assert pandad.ask("GET", f"/v1/p/{some}/echo", token="").status == 200
    for path in "chunked", "echoes", "", "echo/../chunked", "echo/%2e%2e/chunked", "static/..%2fchunked":
        assert pandad.ask("GET", f"/v1/p/{some}/{path}", token="").status == 403, path
    for bad in {}, {"port": 8000, "ttl_seconds": 0}, {"port": 8000, "ttl_seconds": 700000}, {"port": 8000, "paths": ["x"]}:
        assert pandad.ask("POST", make, bad).status == 400, bad
    pandad.stop()
    pandad.start()
    assert pandad.ask("GET", f"/v1/p/{token}/echo", token="").status == 200, "links outlive a restart"


def test_host_names(pandad, web):
    id, _ = web

    def visit(host, path="/echo", token="", **headers):
        return pandad.ask("GET", path, token=token, headers={"Host": host, **headers})
    name = pandad.do("GET", f"/v1/sandboxes/{id}")["preview_name"]
    a = visit(f"8000-{name}.localhost")
    assert (a.status, a.json["code"]) == (403, "forbidden") and "--add 8000" in a.json["error"]
    host = visitors(pandad, id)
    assert host == f"8000-{name}.localhost"
    for h in host, f"{host}:{pandad.port}", host.upper():
        a = visit(h)
        assert a.status == 200 and f"Host: {h}\n" in a.body.decode() and id not in a.body.decode()
    # What belongs to the service passes, its own Authorization too.
    a = visit(host, "/echo?access_token=theirs", Authorization="Basic x")
    assert b"access_token=theirs" in a.body and b"Authorization: Basic x" in a.body
    assert visit("8000-aaaaaaaaaaaaaaaaaaaa.localhost").status == 404
    assert pandad.ask("GET", "/healthz", token="", headers={"Host": f"x-{id}.localhost"}).json["status"] == "ok"
    # By the id, as clients make it, with a token or a link: neither goes on to the service.
    assert visit(f"8000-{id}.localhost").status == 401
    a = visit(f"8000-{id}.localhost", token=pandad.key)
    assert a.status == 200 and pandad.key not in a.body.decode()
    link = pandad.do("POST", f"/v1/sandboxes/{id}/preview-token", {"port": 8000})
    assert link["host_url"] == f"http://{host}:{pandad.port}/?panda_preview={link['token']}"
    a = visit(f"8000-{id}.localhost", f"/echo?panda_preview={link['token']}&a=1")
    assert (a.status, a.headers["location"]) == (302, "/echo?a=1")
    cookie = a.headers["set-cookie"].split(";")[0]
    a = visit(f"8000-{id}.localhost", Cookie=f"theirs=1; {cookie}")
    assert a.status == 200 and b"Cookie: theirs=1\n" in a.body
    # Nobody wakes it by visiting; its owner's link does.
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    a = visit(host)
    assert (a.status, a.json["code"]) == (409, "sandbox_hibernated")
    assert pandad.do("GET", f"/v1/sandboxes/{id}")["status"] == "hibernated"
    assert visit(host, Cookie=cookie).status == 200
    # A fork is another one, and what was given away can be taken back; for good.
    child = pandad.do("POST", f"/v1/sandboxes/{id}/fork", {})["children"][0]
    assert visitors(pandad, child) != host
    new = pandad.do("POST", f"/v1/sandboxes/{id}/preview/rotate")["preview_name"]
    pandad.kill9()
    pandad.start()
    assert visit(host).status == 404 and visit(f"8000-{new}.localhost").status == 200
    assert visit(f"8000-{new}.localhost", Cookie=cookie).status == 200  # as everyone
    a = pandad.ask("GET", f"/v1/p/{link['token']}/echo", token="")
    assert a.status == 401 and "revoked" in a.json["error"]
