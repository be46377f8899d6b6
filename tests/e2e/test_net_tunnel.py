"""Raw TCP into sandboxes: `panda port-forward`, and the tunnel it uses."""
import hashlib
import http.client
import os
import re
import socket
import ssl
import subprocess
import threading

import pytest

from conftest import NAMES, count, wait_for
from server import Pandad
from streams import rss_kib
from test_cli import Cli

# Ports 7001: echo. 7002: reads to the end, then answers with a digest. 7003: answers and ends its half, then counts what still comes
# and leaves it in a file. 7004: reads nothing until /root/go is there. 7005: resets.
SERVICE = r'''
import hashlib, os, socket, struct, threading, time

def echo(c):
    while (d := c.recv(65536)): c.sendall(d)
def digest(c):
    h, n = hashlib.sha256(), 0
    while (d := c.recv(65536)): h.update(d); n += len(d)
    c.sendall(f"{n} {h.hexdigest()}".encode())
def half(c):
    c.sendall(b"all of it"); c.shutdown(socket.SHUT_WR)
    n = 0
    while (d := c.recv(65536)): n += len(d)
    open("/root/half.new", "w").write(str(n)); os.rename("/root/half.new", "/root/half")
def lazy(c):
    while not os.path.exists("/root/go"): time.sleep(0.05)
    digest(c)
def rude(c):
    c.recv(1)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

def one(f, c):
    with c: f(c)
def serve(port, f):
    s = socket.create_server(("127.0.0.1", port), backlog=256)
    while True:
        c, _ = s.accept()
        threading.Thread(target=one, args=(f, c), daemon=True).start()
for i, f in enumerate([echo, digest, half, lazy, rude]):
    threading.Thread(target=serve, args=(7001 + i, f)).start()
print("ready", flush=True)
'''


@pytest.fixture
def cli(pandad, tmp_path):
    return Cli(pandad, tmp_path)


def serving(pandad):
    id = pandad.create()
    pandad.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/service.py", SERVICE)
    eid = pandad.do("POST", f"/v1/sandboxes/{id}/execs", {"argv": ["python3", "/root/service.py"]})["id"]
    wait_for("the service", lambda: pandad.do("GET", f"/v1/sandboxes/{id}/execs/{eid}")["stdout_to"] >= 6)
    return id


@pytest.fixture
def box(pandad):
    return serving(pandad)


@pytest.fixture
def forward(cli, box, procs):
    def new(remote, id=box):
        p = cli.popen("port-forward", id, f"0:{remote}")
        procs.append(p)
        line = p.stdout.readline().decode()
        assert (m := re.match(r"127\.0\.0\.1:(\d+) leads to port", line)), (line, p.poll(), p.stderr.read())
        return int(m[1])
    return new


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=180)


def read_all(s):
    data = b""
    while (d := s.recv(65536)):
        data += d
    return data


def test_bytes_go_both_ways_and_each_half_ends_on_its_own(pandad, box, forward):
    data = os.urandom(4 << 20)
    with connect(forward(7002)) as s:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        assert read_all(s).decode() == f"{len(data)} {hashlib.sha256(data).hexdigest()}"
    with connect(forward(7003)) as s:
        assert read_all(s) == b"all of it"
        s.sendall(data)  # their half has ended, ours has not
    wait_for("the other half", lambda: pandad.ask("GET", f"/v1/sandboxes/{box}/fs?path=/root/half").body == str(len(data)).encode())


def test_several_ports_in_one_go(cli, box, procs):
    p = cli.popen("port-forward", box, "0:7001", "0:7003")
    procs.append(p)
    echo, half = (int(re.match(rf"127\.0\.0\.1:(\d+) leads to port {port} of", p.stdout.readline().decode())[1]) for port in (7001, 7003))
    with connect(echo) as s:
        s.sendall(b"hello")
        assert s.recv(100) == b"hello"
        with connect(half) as t:  # while the other is open
            assert read_all(t) == b"all of it"
    cli.refused("port-forward", box, "0:7001", "0:x", says="like 8080:80")
    cli.refused("port-forward", box, "0:7001", f"{echo}:7002", says="cannot listen")


def test_many_at_once(forward):
    port, wrong = forward(7001), []

    def one(i):
        data = os.urandom(100_000)
        with connect(port) as s:
            t = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)))
            t.start()
            if read_all(s) != data:
                wrong.append(i)
            t.join()

    def guarded(i):
        try:
            one(i)
        except OSError as e:
            wrong.append((i, e))

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count(40, 400))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not wrong, wrong
    assert not any(t.is_alive() for t in threads)


def test_who_does_not_read_makes_the_sender_wait_and_nobody_else(pandad, box, forward):
    port, data = forward(7004), b"x" * (64 << 20)
    before = rss_kib(pandad.process.pid)
    with connect(port) as s:
        s.settimeout(2)
        sent = 0
        try:
            while sent < len(data):
                sent += s.send(data[sent:sent + 65536])
        except TimeoutError:
            pass
        assert sent < 32 << 20, "somebody takes all there is"
        assert rss_kib(pandad.process.pid) - before < 8 << 10
        assert pandad.sh(box, "echo there")["stdout"] == "there\n"
        pandad.sh(box, "touch /root/go")
        s.settimeout(60)
        s.sendall(data[sent:])
        s.shutdown(socket.SHUT_WR)
        assert read_all(s).decode() == f"{len(data)} {hashlib.sha256(data).hexdigest()}"


def test_traffic_wakes_a_sandbox_and_ends_of_its_life_are_resets(pandad, box, forward):
    port = forward(7001)
    s = connect(port)
    s.sendall(b"before")
    assert s.recv(100) == b"before"
    pandad.do("POST", f"/v1/sandboxes/{box}/hibernate")
    with pytest.raises(ConnectionResetError):
        s.recv(100)
    s.close()
    with connect(port) as s:
        s.sendall(b"after")
        assert s.recv(100) == b"after"
    assert pandad.do("GET", f"/v1/sandboxes/{box}")["status"] == "running"


def test_a_reset_inside_is_a_reset_outside(forward):
    with connect(forward(7005)) as s:
        s.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            s.recv(100)


def test_where_nothing_listens_the_client_is_reset_and_the_user_told(cli, box, procs):
    p = cli.popen("port-forward", box, "0:9")
    procs.append(p)
    with connect(int(re.search(r":(\d+)", p.stdout.readline().decode())[1])) as s:
        with pytest.raises(ConnectionResetError):
            s.sendall(b"x")
            s.recv(1)
    assert b"nothing listens there" in p.stderr.readline()


def test_refusals_of_the_tunnel(pandad, box, cli):
    up = {"Connection": "Upgrade", "Upgrade": "tcp"}
    token = pandad.do("POST", "/v1/me/tokens", {"tenant": "other", "scope": "sandbox"})["token"]
    path = f"/v1/sandboxes/{box}/ports/7001/tunnel"
    assert pandad.ask("GET", path, headers=up, token=token).status == 404
    assert pandad.ask("GET", path, headers=up, token="").status == 401
    a = pandad.ask("GET", path)
    assert a.status == 400 and "Upgrade: tcp" in a.json["error"], a
    assert pandad.ask("GET", f"/v1/sandboxes/{box}/ports/70000/tunnel", headers=up).status == 400
    assert pandad.ask("GET", path, "a body", headers=up).status == 400
    a = pandad.ask("GET", f"/v1/sandboxes/{box}/ports/9/tunnel", headers=up)
    assert a.status == 502 and "nothing listens" in a.json["error"], a
    for bad in "", "x", "0", "1:2:3", "1:", "70000", "1:70000":
        cli.refused("port-forward", box, bad, says="like 8080:80")
    cli.refused("port-forward", box, "1:80", "-a", "nowhere", says="cannot listen")


class TlsPandad(Pandad):
    def connection(self, timeout):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout,
                                           context=ssl.create_default_context(cafile=self.config["tls_cert"]))


def test_halves_end_on_their_own_through_tls(server_home, tmp_path, procs):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=here", "-addext",
                    "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key", "-out", tmp_path / "cert"], check=True, capture_output=True)
    p = TlsPandad(server_home / f"tls-{next(NAMES)}", bakes=server_home / "bakes", tls_cert=tmp_path / "cert", tls_key=tmp_path / "key").start()
    try:
        id, data = serving(p), os.urandom(4 << 20)
        for port in 7002, 7003:
            f = Cli(p, tmp_path, PANDASTACK_API=f"https://127.0.0.1:{p.port}").popen("port-forward", "--ca-file", tmp_path / "cert", id, f"0:{port}")
            procs.append(f)
            with connect(int(re.search(r":(\d+)", f.stdout.readline().decode())[1])) as s:
                if port == 7002:
                    s.sendall(data)
                    s.shutdown(socket.SHUT_WR)
                    assert read_all(s).decode() == f"{len(data)} {hashlib.sha256(data).hexdigest()}"
                else:
                    assert read_all(s) == b"all of it"
                    s.sendall(data)
        wait_for("the other half", lambda: p.ask("GET", f"/v1/sandboxes/{id}/fs?path=/root/half").body == str(len(data)).encode())
    finally:
        p.close()
