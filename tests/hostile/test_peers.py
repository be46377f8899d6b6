"""The other end of a sandbox's connections means harm: name servers that answer with noise, servers that send what nobody reads, and
guests that greet endlessly. All of it inside the namespaces of a little internet."""
import json
import re
from pathlib import Path

import pytest

from conftest import count, wait_for

ROOM_MIB = 48  # what pandad may grow meanwhile


def rss_mib(p):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{p.process.pid}/status").read_text())[1]) // 1024


@pytest.fixture
def as_before(net_pandad):
    """Another sandbox reaches what it may, before and afterwards, by the same pandad, which is as small as it was."""
    from little_internet import WEB
    p, pid = net_pandad, net_pandad.process.pid
    other = p.create(egress_allowlist=["web.example"])
    look = lambda: p.sh(other, "curl -sS http://web.example/")["stdout"] == f"internet {WEB}:80"
    wait_for("the network", look)
    small = rss_mib(p)
    yield look
    wait_for("the other sandbox to be served", look)
    assert p.process.poll() is None and p.process.pid == pid and rss_mib(p) < small + ROOM_MIB


def python(p, id, code, seconds=120):
    p.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/peer.py", code.encode())
    r = p.sh(id, "python3 /root/peer.py", timeout_seconds=seconds)
    assert r["exit_code"] == 0, r
    return json.loads(r["stdout"])


def test_a_name_server_that_answers_with_noise(net_pandad, as_before):
    """Each answer is wrong in another way. What can be read is told, and the address in it that is closed to sandboxes is not."""
    from little_internet import DATABASE, WEB
    p = net_pandad
    id = p.create()
    told = python(p, id, f"""
import json, socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("172.31.255.1", 53))
waiting, told = set(range({count(200, 5000)})), []
for i in sorted(waiting):
    name = f"n{{i}}".encode()
    s.send(i.to_bytes(2, "big") + b"\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + bytes([len(name)]) + name + b"\\5noise\\7example\\0\\0\\1\\0\\1")
    time.sleep(0.005)
end = time.monotonic() + 20
while waiting and time.monotonic() < end:
    s.settimeout(max(end - time.monotonic(), 0.01))
    try:
        answer = s.recv(4096)
    except TimeoutError:
        break
    waiting.discard(int.from_bytes(answer[:2], "big"))
    told.append(answer.hex())
print(json.dumps(told))
""")
    addresses = lambda addr: sum(bytes(map(int, addr.split("."))).hex() in answer for answer in told)
    assert addresses(WEB) > 0 and addresses(DATABASE) == 0, told
    assert as_before()


def test_what_nobody_reads_is_not_kept(net_pandad, as_before):
    """By the relay that looks at names: 100 connections, each asks for 20 MB and reads none of it."""
    p = net_pandad
    id = p.create(egress_allowlist=["example.com"])
    assert python(p, id, """
import json, select, socket, ssl
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
kept = []
for _ in range(100):
    s = context.wrap_socket(socket.create_connection(("example.com", 443), 60), server_hostname="example.com")
    s.sendall(b"GET /big HTTP/1.0\\r\\n\\r\\n")
    kept.append(s)
waiting = {s.fileno() for s in kept}
while waiting:
    waiting -= set(select.select(waiting, [], [])[0])
print(json.dumps(len(kept)))
""") == 100
    assert as_before()


def test_a_guest_that_greets_endlessly(net_pandad, as_before):
    """TLS hellos: of a size that is none, in pieces of one byte, and never ending, 100 at a time."""
    p = net_pandad
    id = p.create(egress_allowlist=["example.com"])
    said = python(p, id, """
import json, socket
def begin():
    s = socket.create_connection(("example.com", 443), 60)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s
def ended(s):
    try:
        while s.recv(65536):
            pass
    except ConnectionError:
        pass
    return 1
record = lambda body: b"\\x16\\x03\\x01" + len(body).to_bytes(2, "big") + body
hello = b"\\x01\\xff\\xff\\xff\\x03\\x03" + bytes(32) + b"\\0\\0\\2\\x13\\1\\1\\0\\xff\\xff"
cut = 0
for first in record(hello), record(hello[:4]), b"\\x16\\x03\\x01\\xff\\xff" + hello, b"\\x16" * 9, bytes(70000):
    s = begin()
    try:
        for _ in range(64):
            s.sendall(first + record(bytes(16000)))
    except ConnectionError:
        pass
    cut += ended(s)
slow = [begin() for _ in range(100)]
for byte in record(hello)[:40]:
    for s in slow:
        try:
            s.sendall(bytes([byte]))
        except ConnectionError:
            pass
print(json.dumps(cut))
""", 300)
    assert said == 5
    assert as_before()
