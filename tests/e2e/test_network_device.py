"""The network device of a machine: a tap that the host hands in, per life. All of it in namespaces made here."""
import ctypes
import fcntl
import hashlib
import os
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from conftest import FEW, Machine, wait_for
from server import patience

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 2, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 1, 2
GUEST, GATEWAY = "172.31.255.2", "172.31.255.1"


class Wire:
    """A namespace with a tap in it, the other end of which is for a machine. Both live as long as we hold them."""

    def __init__(self, flags=IFF_TAP | IFF_NO_PI | IFF_VNET_HDR):
        self.ns = None
        self.run(lambda: self._make(flags), fresh=True)
        self.sockets = []

    def _make(self, flags):
        self.ns = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self.tap, TUNSETIFF, struct.pack("16sH22x", b"tap0", flags))
        if flags & IFF_VNET_HDR:
            fcntl.ioctl(self.tap, TUNSETVNETHDRSZ, struct.pack("i", 10))
            fcntl.ioctl(self.tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
        with open("/proc/sys/net/ipv6/conf/tap0/disable_ipv6", "w") as f:
            f.write("1")
        for words in ("addr add 172.31.255.1/30 dev tap0", "link set lo up",
                      "link set tap0 address 06:00:ac:1f:ff:01 up",
                      "neigh add 172.31.255.2 lladdr 06:00:ac:1f:ff:02 dev tap0 nud permanent"):  # as src/net does it
            subprocess.run(["ip", *words.split()], check=True)

    def run(self, fn, fresh=False):
        """Calls fn in the namespace; sockets it makes stay there."""
        result = []

        def inside():
            try:
                r = LIBC.unshare(CLONE_NEWNET) if fresh else LIBC.setns(self.ns, CLONE_NEWNET)
                assert r == 0, os.strerror(ctypes.get_errno())
                result.append((fn(), None))
            except BaseException as e:
                result.append((None, e))

        t = threading.Thread(target=inside)
        t.start()
        t.join()
        value, error = result[0]
        if error:
            raise error
        return value

    def server(self, port=0):
        s = self.run(lambda: socket.create_server((GATEWAY, port)))
        s.settimeout(180)
        self.sockets.append(s)
        return s

    def connect(self, port):
        s = self.run(lambda: socket.create_connection((GUEST, port), timeout=180))
        self.sockets.append(s)
        return s

    def ping(self, n=1):
        """Seconds of n echoes, one after the other."""
        def go():
            times = []
            with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as s:
                s.settimeout(60)
                s.connect((GUEST, 0))
                for seq in range(n):
                    body = struct.pack("!BBHHH", 8, 0, 0, 77, seq) + b"panda" * 8
                    total = sum(struct.unpack(f"!{len(body) // 2}H", body))
                    total = (total & 0xFFFF) + (total >> 16)
                    total = (total & 0xFFFF) + (total >> 16)
                    body = body[:2] + struct.pack("!H", ~total & 0xFFFF) + body[4:]
                    start = time.monotonic()
                    s.send(body)
                    while True:
                        got = s.recv(2000)[20:]
                        if got[0] == 0 and got[4:8] == body[4:8]:
                            break
                    times.append(time.monotonic() - start)
            return times
        return self.run(go)

    def close(self):
        for fd in [*(s.detach() for s in self.sockets), self.tap, self.ns]:
            if fd >= 0:
                os.close(fd)


@pytest.fixture
def wires():
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("this host has no /dev/net/tun")
    made = []

    def new(**kw):
        made.append(Wire(**kw))
        return made[-1]

    yield new
    for w in made:
        w.close()


def started(panda, wire, *args):
    """The machine that `panda machine ARGS` starts with this tap."""
    p = panda.start(args[0], "--tap-fd", wire.tap, *args[1:], pass_fds=[wire.tap])
    out, err = p.communicate(timeout=180)
    assert p.returncode == 0, err
    panda.seen.update(out.decode().split())
    return Machine(panda, out.decode().strip())


def boot(panda, wire):
    """With a network from its first moment; where that takes seconds, from the moment it was restored."""
    return started(panda, wire, "restore", panda.baked()) if FEW else started(panda, wire, "boot", "--id", panda.new_id())


def carrier(machine):
    return machine.sh("cat /sys/class/net/eth0/carrier").strip() == "1"


CONNECT = """
import socket
def dial(port):
    global s
    s = socket.create_connection(("172.31.255.1", port), timeout=20)
    return s.getsockname()[0]
"""

FEED = """
import hashlib, os, socket, sys
s = socket.create_connection(("172.31.255.1", int(sys.argv[1])), timeout=60)
piece, h = os.urandom(1 << 20), hashlib.sha256()
for i in range(int(sys.argv[2])):
    block = piece[i:] + piece[:i]
    h.update(block); s.sendall(block)
s.shutdown(1); s.recv(1); print(h.hexdigest())
"""

SINK = """
import hashlib, socket, sys
s = socket.create_connection(("172.31.255.1", int(sys.argv[1])), timeout=60)
h, buf = hashlib.sha256(), bytearray(1 << 20)
while n := s.recv_into(buf):
    h.update(memoryview(buf)[:n])
print(h.hexdigest())
"""


def test_ping_and_tcp_both_ways(panda, wires):
    w = wires()
    m = started(panda, w, "boot", "--id", panda.new_id())
    assert carrier(m) and m.book()["net"]
    w.ping(200 if FEW else 5000)  # a signal that comes too early costs one in some thousands
    # out
    server = w.server()
    p = panda.start("exec", m.id, "--", "python3", "-c", CONNECT + f"dial({server.getsockname()[1]}); s.sendall(b'hello'); "
                    "print(s.recv(10).decode())")
    c, peer = server.accept()
    with c:
        assert peer[0] == GUEST and c.recv(10) == b"hello"
        c.sendall(b"and you")
    out, err = p.communicate(timeout=180)
    assert out == b"and you\n", err
    # in
    p = panda.start("exec", m.id, "--", "python3", "-uc", "import socket; l = socket.create_server(('', 8080)); print('now'); "
                    "c, a = l.accept(); c.sendall(a[0].encode())")
    assert p.stdout.readline() == b"now\n"
    with w.connect(8080) as c:
        assert c.recv(100) == GATEWAY.encode()
    p.communicate(timeout=180)


def test_a_hundred_megabytes_arrive_as_they_were_sent(panda, wires):
    w = wires()
    m = boot(panda, w)
    m.put("/root/feed.py", FEED.encode())
    m.put("/root/sink.py", SINK.encode())
    server = w.server()
    port, many = str(server.getsockname()[1]), 8 if FEW else 100

    p = panda.start("exec", m.id, "--", "python3", "/root/feed.py", port, str(many))
    c, _ = server.accept()
    with c:
        c.settimeout(180)
        got, n, buf = hashlib.sha256(), 0, bytearray(1 << 20)
        while k := c.recv_into(buf):
            got.update(memoryview(buf)[:k])
            n += k
    out, err = p.communicate(timeout=180)
    assert n == many << 20 and out.decode().strip() == got.hexdigest(), err

    p = panda.start("exec", m.id, "--", "python3", "/root/sink.py", port)
    c, _ = server.accept()
    sent, piece = hashlib.sha256(), os.urandom(1 << 20)
    with c:
        c.settimeout(180)
        for i in range(many):
            block = piece[i:] + piece[:i]
            sent.update(block)
            c.sendall(block)
    out, err = p.communicate(timeout=180)
    assert out.decode().strip() == sent.hexdigest(), err


def test_a_stream_goes_on_through_forks_and_pauses_of_its_machine(panda, wires):
    w, other = wires(), wires()
    m = boot(panda, w)
    m.put("/root/feed.py", FEED.encode())
    server = w.server()
    p = panda.start("exec", m.id, "--", "python3", "/root/feed.py", str(server.getsockname()[1]), "150" if FEW else "500")
    c, _ = server.accept()
    got, result = hashlib.sha256(), []

    def drain():
        with c:
            c.settimeout(180)
            buf = bytearray(1 << 20)
            while k := c.recv_into(buf):
                got.update(memoryview(buf)[:k])
                time.sleep(0.001)  # so that it lasts
            result.append(got.hexdigest())

    t = threading.Thread(target=drain)
    t.start()
    children = []
    while t.is_alive() and len(children) < (3 if FEW else 8):
        children.append(started(panda, other, "fork", m.id))
        assert children[-1].answers()
        other.ping(20)
        # Its copy of the feed has been cut off and ended; the tap goes on to the next child.
        wait_for("the copy to end", lambda: children[-1].try_("pgrep", "-f", "feed.py").code == 1)
        children[-1].stop()
        m.pause()
        m.resume()
    assert len(children) > 1, "it was over too soon"
    t.join()
    out, err = p.communicate(timeout=180)
    assert out.decode().split() == result, err


def test_a_connection_of_the_snapshot_is_reset_and_new_ones_work_at_once(panda, wires):
    w, other = wires(), wires()
    m = boot(panda, w)
    m.keep()
    server = w.server(7000)
    m.put("/root/dial.py", CONNECT.encode())
    m.ask("exec(open('/root/dial.py').read(), globals())")
    assert m.ask("dial(7000)") == GUEST
    c, _ = server.accept()
    # One through lo, in the same process, has no reason to end.
    m.ask("l = socket.create_server(('127.0.0.1', 9000)); a = socket.create_connection(('127.0.0.1', 9000)); b = l.accept()[0]")
    m.snapshot("talking")
    # The parent goes on as if nothing had happened.
    m.ask("s.sendall(b'still here')")
    assert c.recv(20) == b"still here"
    m.stop()

    r = started(panda, other, "restore", "talking")
    assert carrier(r)
    ahead = other.server(7000)
    start = time.monotonic()
    with pytest.raises(AssertionError, match="ECONNRESET|reset by peer"):
        r.ask("s.recv(1)")
    assert time.monotonic() - start < 5 * patience()
    assert r.ask("b.sendall(b'x') or a.recv(1).decode()") == "x"
    assert r.ask("dial(7000)") == GUEST
    ahead.accept()[0].close()
    assert r.ask("len(s.recv(1))") == 0
    other.ping()


def test_a_snapshot_without_network_gets_one_and_loses_it_again(panda, wires):
    m = panda.fresh()
    m.keep()
    m.put("/root/dial.py", CONNECT.encode())
    m.ask("exec(open('/root/dial.py').read(), globals())")
    m.snapshot("dry")
    m.stop()
    w = wires()
    server = w.server(7000)
    r = started(panda, w, "restore", "dry")
    start = time.monotonic()
    assert r.ask("dial(7000)") == GUEST
    assert time.monotonic() - start < 0.9 * patience(), "the first SYN was lost"
    c, _ = server.accept()
    c.close()
    r.snapshot("wet")
    r.stop()
    r, = panda.restore("wet")
    wait_for("no carrier", lambda: not carrier(r))
    with pytest.raises(AssertionError, match="unreachable"):
        r.ask("dial(7000)")


def test_two_forks_have_the_same_address_in_two_namespaces(panda, wires):
    one, two = wires(), wires()
    parent = panda.fresh()
    parent.sh("mkdir /srv/www; hostname >/srv/www/name; cd /srv/www; "
              "setsid python3 -c 'import http.server, socketserver; "
              "http.server.ThreadingHTTPServer((\"\", 80), http.server.SimpleHTTPRequestHandler).serve_forever()' "
              "</dev/null >/dev/null 2>&1 &")
    wait_for("the server", lambda: parent.try_("python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 80))").code == 0)
    a, b = (started(panda, w, "fork", parent.id) for w in (one, two))
    for m, w in ((a, one), (b, two), (a, one)):
        m.sh("echo $1 >/srv/www/name", m.id)
        w.ping()
        with w.connect(80) as c:
            c.sendall(b"GET /name HTTP/1.0\r\n\r\n")
            text = b""
            while piece := c.recv(4096):
                text += piece
        assert text.split(b"\r\n\r\n")[1].strip() == m.id.encode()
    assert not carrier(parent)


def test_without_a_tap_there_is_no_carrier_but_lo(panda):
    m = panda.fresh()
    assert not carrier(m) and not m.book()["net"]
    assert m.python("import socket; l = socket.create_server(('127.0.0.1', 80)); "
                    "a = socket.create_connection(('127.0.0.1', 80)); a.send(b'x'); print(l.accept()[0].recv(1))") == "b'x'\n"
    r = m.try_("python3", "-c", "import socket; socket.create_connection(('172.31.255.1', 80), timeout=20)")
    assert r.code != 0 and b"Network is unreachable" in r.err, r
    assert "fe80" not in m.sh("cat /proc/net/if_inet6")


def ctxt(machine):
    """How often its process went to sleep; all of its threads, behind KVM its vcpus."""
    tasks = Path("/proc", str(machine.book()["pid"]), "task").glob("*/status")
    return sum(int(t.read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0]) for t in tasks)


@pytest.mark.parametrize("tap", [False, True])
def test_at_rest_it_sleeps_with_and_without_a_tap(panda, wires, tap):
    if tap:
        w = wires()
        m = boot(panda, w)
        w.ping()
    else:
        m = panda.fresh()
        assert not carrier(m)
    m.run("sync")  # else it is up for a minute to write what is new
    m.snapshot("resting")
    m.stop()
    r = started(panda, w, "restore", "resting") if tap else panda.restore("resting")[0]
    # That nothing happens in that time is the point, not a way to wait.
    wait_for("five seconds without a wake-up", lambda: (lambda before: (time.sleep(5), ctxt(r) == before)[1])(ctxt(r)), seconds=120)


def test_what_is_no_such_tap_is_refused(panda, wires):
    bare = wires(flags=IFF_TAP | IFF_NO_PI)
    p = panda.start("boot", "--tap-fd", bare.tap, pass_fds=[bare.tap])
    _, err = p.communicate(timeout=180)
    assert p.returncode != 0 and b"IFF_VNET_HDR" in err
    w = wires()
    p = panda.start("boot", "-n", "2", "--tap-fd", w.tap, pass_fds=[w.tap])
    _, err = p.communicate(timeout=180)
    assert p.returncode != 0 and b"one machine" in err


def test_how_fast_it_is(panda, wires, record_property):
    """Figures for whoever looks (pytest -s); only a gross loss fails."""
    w = wires()
    m = boot(panda, w)
    rtt = sorted(w.ping(50 if FEW else 200))
    code = ("import socket, sys, time\n"
            "s = socket.create_connection(('172.31.255.1', int(sys.argv[1])))\n"
            "b = bytearray(1 << 20); end = time.monotonic() + 1.5\n"
            "if sys.argv[2] == 'up':\n"
            "    while time.monotonic() < end: s.sendall(b)\n"
            "else:\n"
            "    while s.recv_into(b): pass\n")
    m.put("/root/flow.py", code.encode())
    server = w.server()
    port, rate = str(server.getsockname()[1]), {}
    for way in "up", "down":
        p = panda.start("exec", m.id, "--", "python3", "/root/flow.py", port, way)
        c, _ = server.accept()
        buf, n, start = bytearray(1 << 20), 0, time.monotonic()
        with c:
            c.settimeout(180)
            if way == "up":
                while k := c.recv_into(buf):
                    n += k
            else:
                while time.monotonic() < start + 1.5:
                    n += c.send(buf)
        p.communicate(timeout=180)
        rate[way] = n * 8 / (time.monotonic() - start) / 1e9
    print(f"\nrtt {rtt[len(rtt) // 2] * 1e6:.0f} us, up {rate['up']:.2f} Gbit/s, down {rate['down']:.2f} Gbit/s")
    assert min(rate.values()) > 0.2 / patience() and rtt[len(rtt) // 2] < 0.02 * patience()
