"""What going back, sleeping, comparing and racing cost: the state.* rows of make bench.

measure(quick) starts a pandad of its own, yields (key, value) pairs and leaves nothing behind.
"""
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from api import Connection, ms


def ask(c, method, path, **body):
    got = c.ask(method, path, json.dumps(body).encode() if body else b"")
    return json.loads(got) if got else None


def dirty(c, id, mib):
    ask(c, "POST", f"/v1/sandboxes/{id}/exec", cmd=f"head -c {mib << 20} /dev/urandom >/dev/shm/x")


def timed(fn, n):
    times = []
    for i in range(n):
        begun = time.perf_counter()
        fn(i)
        times.append(ms(begun))
    return statistics.median(times)


def going_back(c, n):
    id = c.create()
    at = f"/v1/sandboxes/{id}"
    took, back = [], []
    for i in range(n):
        ask(c, "POST", at + "/exec", cmd=f"echo {i} >/root/n; head -c 1000000 /dev/urandom >/dev/shm/x")
        begun = time.perf_counter()
        ask(c, "POST", at + "/checkpoints")
        took.append(ms(begun))
    yield "checkpoint_ms_p50", statistics.median(took)
    stops = [k["stop_ms"] for k in ask(c, "GET", at + "/checkpoints")["checkpoints"]]
    yield "checkpoint_stop_ms_p50", statistics.median(stops)
    for _ in range(n):
        ask(c, "POST", at + "/checkpoints")
        ask(c, "POST", at + "/exec", cmd="head -c 1000000 /dev/urandom >/dev/shm/x")
        begun = time.perf_counter()
        ask(c, "POST", at + "/rewind")
        back.append(ms(begun))
        c.true(id)
    yield "rewind_ms_p50", statistics.median(back)
    plain = timed(lambda i: c.true(id), n)
    ask(c, "PATCH", at + "/lifecycle", checkpoints="auto")
    yield "auto_checkpoint_exec_extra_ms", timed(lambda i: c.true(id), n) - plain
    c.kill(id)


def sleeping(c, n):
    id = c.create()
    wakes, sleeps = [], []
    for _ in range(n):
        dirty(c, id, 64)
        begun = time.perf_counter()
        ask(c, "POST", f"/v1/sandboxes/{id}/hibernate")
        sleeps.append(ms(begun))
        begun = time.perf_counter()
        c.true(id)
        wakes.append(ms(begun))
    yield "hibernate_ms", statistics.median(sleeps)  # 64 MiB dirty
    yield "wake_ms_p50", statistics.median(wakes)  # request to exec answered
    c.kill(id)


def comparing(c, n):
    id = c.create()
    ask(c, "POST", f"/v1/sandboxes/{id}/exec", cmd="mkdir /root/d; cd /root/d; for i in $(seq 500); do echo $i >f$i; done")
    (child,) = c.forks(id, 1)
    ask(c, "POST", f"/v1/sandboxes/{child}/exec", cmd="cd /root/d; rm f1; echo x >f2; echo y >new")
    yield "diff_ms", timed(lambda i: ask(c, "GET", f"/v1/sandboxes/{id}/diff?to={child}"), n)  # 500 files written
    c.kill(child)
    c.kill(id)


def racing(c, n):
    id = c.create()
    extra = []
    for _ in range(n):
        begun = time.perf_counter()
        r = ask(c, "POST", f"/v1/sandboxes/{id}/race", commands=["sleep 0.1; exit 1"] * 4 + ["sleep 0.2"])
        extra.append(ms(begun) - 200)
        c.kill(r["winner"]["id"])
        time.sleep(0.1)  # jails are made ahead in the time between
    yield "race5_extra_ms", statistics.median(extra)
    c.kill(id)


def measure(quick=False):
    from server import Pandad
    server = Pandad(Path(tempfile.mkdtemp(prefix="panda-bench.")), log_level=1)
    try:
        server.start()
        c = Connection(server)
        c.kill(c.create())  # bakes
        time.sleep(0.2)
        yield from going_back(c, 10 if quick else 30)
        yield from sleeping(c, 3 if quick else 10)
        yield from comparing(c, 5 if quick else 20)
        yield from racing(c, 3 if quick else 10)
        server.close()
    finally:
        server.scrub()


if __name__ == "__main__":
    for key, value in measure("--quick" in sys.argv):
        print(f"state.{key} {value:.2f}", flush=True)
