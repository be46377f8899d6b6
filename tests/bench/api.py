"""What pandad adds to the engine, seen by a client on loopback: the api.* rows of make bench.

measure(quick) starts a pandad of its own, yields (key, value) pairs and leaves nothing behind. The client is a
raw socket with the least of HTTP, so that what is measured is the server.
"""
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/e2e"))


class Connection:
    """Keep-alive, one request at a time."""

    def __init__(self, server):
        self.head = f"Host: x\r\nAuthorization: Bearer {server.key}\r\n"
        self.s = socket.create_connection(("127.0.0.1", server.port))
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, method, path, body=b""):
        self.s.sendall(f"{method} {path} HTTP/1.1\r\n{self.head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return self.answer()

    def answer(self):
        got = b""
        while b"\r\n\r\n" not in got:
            more = self.s.recv(65536)
            if not more:
                raise ConnectionError(f"cut after {got!r}")
            got += more
        head, _, body = got.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = next((int(h.split(b":")[1]) for h in head.split(b"\r\n")[1:] if h.lower().startswith(b"content-length:")), 0)
        while len(body) < length:
            body += self.s.recv(min(1 << 20, length - len(body)))
        if status >= 300:
            raise RuntimeError(f"{status}: {body[:300]!r}")
        return body

    def create(self):
        body = self.ask("POST", "/v1/sandboxes", b'{"template":"base","ttl_seconds":3600}')
        return body.split(b'"id":"', 1)[1][:36].decode()

    def true(self, id):
        self.ask("POST", f"/v1/sandboxes/{id}/exec", b'{"cmd":"true"}')

    def kill(self, id):
        self.ask("DELETE", f"/v1/sandboxes/{id}")

    def forks(self, id, n):
        body = self.ask("POST", f"/v1/sandboxes/{id}/fork-tree", b'{"count":%d}' % n)
        return [part[:36].decode() for part in body.split(b'"children":', 1)[1].split(b'"id":"')[1:]]


def ms(since):
    return (time.perf_counter() - since) * 1000


def percentile(values, p):
    return sorted(values)[min(len(values) - 1, int(len(values) * p / 100))]


def each(n, threads, fn, make):
    """Calls fn(connection) n times from so many threads; the seconds it took, and what came back."""
    out, left, lock = [], [n], threading.Lock()

    def work():
        c = make()
        while True:
            with lock:
                if left[0] == 0:
                    return
                left[0] -= 1
            r = fn(c)
            with lock:
                out.append(r)

    ts = [threading.Thread(target=work) for _ in range(threads)]
    begun = time.perf_counter()
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    seconds = time.perf_counter() - begun
    if len(out) != n:
        raise RuntimeError(f"only {len(out)} of {n} worked")
    return seconds, out


def rss_kib(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])


def kill_all(server, ids):
    each(len(ids), 8, lambda c: c.kill(ids.pop()), lambda: Connection(server))


def latencies(server, c, rounds):
    times, ids = [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        id = c.create()
        c.true(id)
        times.append(ms(begun))
        ids.append(id)
        if len(ids) == 8:
            kill_all(server, ids)
            time.sleep(0.02)  # jails are made ahead in the time between; a burst is measured apart
    yield "create_ms_p50", statistics.median(times)
    yield "create_ms_p99", percentile(times, 99)
    kill_all(server, ids)

    id = c.create()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        c.true(id)
        times.append(ms(begun))
    yield "exec_ms_p50", statistics.median(times)

    times = []
    for _ in range(rounds // 2):
        begun = time.perf_counter()
        (child,) = c.forks(id, 1)
        c.true(child)
        times.append(ms(begun))
        ids.append(child)
        if len(ids) == 8:
            kill_all(server, ids)
            time.sleep(0.02)
    yield "fork_ms_p50", statistics.median(times)
    yield "fork_ms_p99", percentile(times, 99)
    kill_all(server, ids)

    counts = [16] * 6 + [4]
    seconds, found = each(len(counts), 4, lambda k: k.forks(id, counts.pop()), lambda: Connection(server))
    yield "fork100_s", seconds
    kill_all(server, [i for some in found for i in some] + [id])


def crowds(server, quick):
    seconds, ids = each(100, 100, Connection.create, lambda: Connection(server))
    yield "create_burst100_s", seconds
    kill_all(server, ids)

    def life(c):
        id = c.create()
        c.true(id)
        c.kill(id)

    n = 100 if quick else 400
    seconds, _ = each(n, 8, life, lambda: Connection(server))
    yield "churn_per_s", n / seconds


def bulk(c, quick):
    id, size = c.create(), (64 if quick else 256) << 20
    data = os.urandom(1 << 20) * (size >> 20)
    path = f"/v1/sandboxes/{id}/fs?path=/dev/shm/big" if size <= 64 << 20 else f"/v1/sandboxes/{id}/fs?path=/root/big"
    up, down = [], []
    for _ in range(3):
        begun = time.perf_counter()
        c.ask("PUT", path, data)
        up.append(size / 1e6 / (time.perf_counter() - begun))
        begun = time.perf_counter()
        view, n = bytearray(1 << 20), 0
        c.s.sendall(f"GET {path} HTTP/1.1\r\n{c.head}\r\n".encode())
        got = b""
        while b"\r\n\r\n" not in got:
            got += c.s.recv(65536)
        n = len(got.partition(b"\r\n\r\n")[2])
        while n < size:
            n += c.s.recv_into(view)
        down.append(size / 1e6 / (time.perf_counter() - begun))
    yield "write_mb_s", statistics.median(up)
    yield "read_mb_s", statistics.median(down)
    c.kill(id)


def idle(server, quick):
    n = 100 if quick else 1000
    yield "idle_rss_mib", rss_kib(server.process.pid) / 1024
    empty = rss_kib(server.process.pid)
    _, ids = each(n, 8, Connection.create, lambda: Connection(server))
    time.sleep(6)  # connections to agents are given back after 5 s
    full = rss_kib(server.process.pid)
    yield "live_idle", float(n)
    yield "live_rss_mib", full / 1024
    yield "live_kib_per_sandbox", (full - empty) / n
    kill_all(server, ids)


def rps(server):
    if shutil.which("wrk"):
        out = subprocess.run(["wrk", "-t1", "-c32", "-d3s", f"{server.url}/healthz"], capture_output=True, text=True).stdout
        for line in out.splitlines():
            if line.startswith("Requests/sec"):
                yield "http_rps", float(line.split()[1])


def measure(quick=False):
    from server import Pandad
    home = Path(tempfile.mkdtemp(prefix="panda-bench."))
    server = Pandad(home, log="warn")
    try:
        server.start()
        c = Connection(server)
        c.kill(c.create())  # bakes
        time.sleep(0.2)
        yield from idle_first(server)
        yield from latencies(server, c, 40 if quick else 200)
        yield from crowds(server, quick)
        yield from bulk(Connection(server), quick)
        yield from rps(server)
        yield from idle(server, quick)
        server.close()
    finally:
        server.scrub()


def idle_first(server):
    yield "rss_mib_alone", rss_kib(server.process.pid) / 1024


if __name__ == "__main__":
    for key, value in measure("--quick" in sys.argv):
        print(f"api.{key} {value:.2f}", flush=True)
