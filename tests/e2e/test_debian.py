"""FROM debian:X, for releases that are not the base's.

Roots of releases are archives in pandad's data directory. Tests put small ones there. That pandad makes them itself, from Debian's packages, is
shown when it is asked for: PANDA_DEBIAN="trixie bullseye" (make check-debian). It takes a minute or two for each, and is the only test that sends
something out of this machine: to the mirror that apt uses.
"""
import ctypes
import os
import socket
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn

import pytest

from server import NetPandad
from test_builds import build, order, own  # noqa: F401
from test_oci import busybox, small  # noqa: F401


def put(p, suite, data):
    """As tools/debian does."""
    (p.data / "debian").mkdir(exist_ok=True)
    (p.data / "debian/new").write_bytes(data)
    os.rename(p.data / "debian/new", p.data / f"debian/{suite}.tar")


def test_a_release_that_is_there(own, small):
    put(own, "trixie", small + bytes(-len(small) % 4096))
    text = ("FROM docker.io/library/debian:13-slim AS a\nENV A=1\nRUN echo made $A >/root/made\nFROM base\nCOPY --from=a /root/made /from\n"
            "COPY --from=debian:trixie /etc/passwd /all/\nCOPY . /all/\n")
    build(own, "x", text, {"f": "f"})
    r = own.sh(own.create(template="x"), "cat /from; ls -A /all; grep app /all/passwd")
    assert r["stdout"] == "made 1\nf\npasswd\napp:x:1234:1234::/home/app:/bin/sh\n", r
    _, again = build(own, "y", text, {"f": "f"})
    assert again.count("(as before)") == 4 and "unpacked" not in again, again
    build(own, "z", "FROM debian:trixie-20300101-slim")
    r = own.sh(own.create(template="z"), "ls -d /bin/busybox /usr")
    assert r["stdout"] == "/bin/busybox\n" and "/usr" in r["stderr"], r
    # another one in its place: what was built on the old one is not taken for it
    put(own, "trixie", small + bytes(8192))
    _, later = build(own, "y", text, {"f": "f"}, replace="true")
    assert "(as before)" not in later, later
    # one that is no archive is said at its line, and nothing of a build stays there
    put(own, "sid", b"nonsense" * 1000)
    b, _ = build(own, "n", "FROM base\nFROM debian:unstable\nRUN true", status="failed")
    assert b["error"].startswith("Dockerfile:2: ") and "no tar archive" in b["error"], b
    assert sorted(os.listdir(own.data / "debian")) == ["sid.tar", "trixie.tar"]


def test_a_release_that_cannot_be_had(own, small):
    """pandad has no network here."""
    b, _ = build(own, "x", "FROM debian:13\nRUN true", status="failed")
    assert b["error"] == ("Dockerfile:1: there is no Debian trixie here yet, and it cannot be made (the server's owner can: tools/debian trixie): "
                          "builds have no network here"), b
    assert os.listdir(own.data / "debian") == []
    # an old one is better than none
    put(own, "trixie", small)
    os.utime(own.data / "debian/trixie.tar", (0, 0))
    _, text = build(own, "x", "FROM debian:13\nRUN true")
    assert "Debian trixie is older than 30 days, and cannot be made anew: builds have no network here\n" in text


@pytest.mark.parametrize("text,line", [("FROM debian:potato", 1), ("FROM base\nFROM debian:10-slim", 2), ("FROM base\nCOPY --from=debian:123 /a /b", 2)])
def test_releases_nobody_knows(pandad, text, line):
    a = order(pandad, "x", text)
    assert a.status == 400 and a.json["error"].startswith(f"Dockerfile:{line}: 'debian:") and "trixie" in a.json["error"] and "import" in a.json["error"], a


# ---- the real thing ----


class Mirror(ThreadingMixIn, HTTPServer):
    """The system's mirror, as seen in a little internet: it listens there, and asks from here. Names all mean this server."""
    daemon_threads = True

    def __init__(self, space, address):
        here, there = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{space}", os.O_RDONLY)
        self.setns(there)  # this thread only
        try:
            super().__init__((address, 80), Forward)
            self.names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.names.settimeout(0.2)
            self.names.bind((address, 53))
        finally:
            self.setns(here)
        self.address = address
        for work in self.serve_forever, self.answer_names:
            threading.Thread(target=work, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()
        self.names.close()

    @staticmethod
    def setns(fd):
        assert ctypes.CDLL(None).setns(fd, 0x40000000) == 0
        os.close(fd)

    def answer_names(self):
        while True:
            try:
                q, who = self.names.recvfrom(1500)
            except TimeoutError:
                continue
            except OSError:
                return  # closed
            end = q.index(b"\0", 12) + 5
            v4 = q[end - 4:end - 2] == b"\0\1"
            answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(self.address) if v4 else b""
            self.names.sendto(q[:2] + b"\x81\x80\0\1" + (b"\0\1" if v4 else b"\0\0") + bytes(4) + q[12:end] + answer, who)


class Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        try:
            with urllib.request.urlopen(f"http://{self.headers['Host']}{self.path}", timeout=60) as r:
                status, data = r.status, r.read()
        except urllib.error.HTTPError as e:
            status, data = e.code, b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("suite", os.environ.get("PANDA_DEBIAN", "").split() or [pytest.param("", marks=pytest.mark.skip("PANDA_DEBIAN names no release"))])
def test_a_release_is_made(net, server_home, suite):
    if net.world in net.children:  # its servers have the ports
        net.children.remove(net.world)
        net.world.end()
    mirror = Mirror(net.internet, "11.1.1.5")
    p = NetPandad(net, server_home / f"debian-{suite}", bakes=server_home / "bakes")
    p.config["resolver"] = mirror.address
    p.start()
    try:
        look = "RUN . /etc/os-release && echo it is $VERSION_CODENAME, $(dpkg -l | grep -c ^ii) packages && useradd -m me && su me -c 'echo $HOME'"
        _, text = build(p, "x", f"FROM debian:{suite}-slim\n{look}")
        assert f"making a root of Debian {suite}" in text and "\n/home/me\n" in text, text
        _, text = build(p, "y", f"FROM debian:{suite}\nRUN apt-get update && apt-get install -y --no-install-recommends jq && jq -n 1+1 && rm -rf /var/lib/apt/lists/*")
        assert "making a root" not in text and "\n2\n" in text, text
        for name in "x", "y":
            p.do("DELETE", f"/v1/templates/{name}")
    finally:
        p.close()
        mirror.close()
