"""What going back, sleeping, comparing, racing, disks and long chains cost: the state.* rows of make bench.

measure(quick) starts a pandad of its own, yields (key, value) pairs and leaves nothing behind.
"""
import json
import os
import statistics
import subprocess
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


def dd(path, mib=64):
    """The same bytes written and synced by dd, there: what the disk takes."""
    begun = time.perf_counter()
    subprocess.run(["dd", "if=/dev/shm/panda-bench.bytes", f"of={path}/dd", "bs=1M", f"count={mib}", "conv=fsync"],
                   stderr=subprocess.DEVNULL, check=True)
    took = ms(begun)
    os.unlink(f"{path}/dd")
    return took


def hibernate(c, id):
    begun = time.perf_counter()
    ask(c, "POST", f"/v1/sandboxes/{id}/hibernate")
    return ms(begun)


def wake(c, id):
    begun = time.perf_counter()
    c.true(id)
    return ms(begun)


def sleeping(c, n, server):
    id = c.create()
    sleeps, plain = [], []
    with open("/dev/shm/panda-bench.bytes", "wb") as f:
        f.write(os.urandom(64 << 20))
    try:
        for _ in range(n):
            dirty(c, id, 64)
            plain.append(dd(server.data))
            sleeps.append(hibernate(c, id))
            c.true(id)
    finally:
        os.unlink("/dev/shm/panda-bench.bytes")
    yield "hibernate_ms", statistics.median(sleeps)  # 64 MiB dirty
    yield "hibernate_dd_ms", statistics.median(plain)  # the same to the same disk, by dd
    c.kill(id)
    id = c.create()
    wakes = []
    ask(c, "POST", f"/v1/sandboxes/{id}/exec", cmd="mount -o remount,size=90% /dev/shm")
    dirty(c, id, 256)
    for _ in range(n):
        hibernate(c, id)
        wakes.append(wake(c, id))
    yield "wake_ms_p50", statistics.median(wakes)  # 256 MiB of memory, request to exec answered
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


def compressed(c, n, server):
    """The same 64 MiB, of text, with compress_hibernated."""
    id = c.create()
    sleeps, wakes, sizes = [], [], []
    for i in range(n):
        ask(c, "POST", f"/v1/sandboxes/{id}/exec", cmd=f"rm -f /dev/shm/x; seq {i} 100000000 | head -c {64 << 20} >/dev/shm/x")
        sleeps.append(hibernate(c, id))
        sizes.append(max(f.stat().st_size for f in (server.data / "store/snapshots" / f"hib-{id}").glob("*.zst")))
        wakes.append(wake(c, id))
    yield "hibernate_zstd_ms", statistics.median(sleeps)
    yield "hibernate_zstd_mib", statistics.median(sizes) / (1 << 20)
    yield "wake_zstd_ms_p50", statistics.median(wakes)
    c.kill(id)


FSYNCS = """
import os, time
fd = os.open({path!r}, os.O_WRONLY | os.O_CREAT)
n, end = 0, time.monotonic() + {seconds}
while time.monotonic() < end:
    os.pwrite(fd, b"x" * 4096, n * 4096)
    os.fsync(fd)
    n += 1
print(n / {seconds})
"""


def cold(path):
    """What is cached of these files is not: both sides read from the disk."""
    for f in [path] if path.is_file() else path.rglob("*"):
        if f.is_file():
            fd = os.open(f, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def disk(c, n, server, seconds):
    """A guest's disk against the host's, in turn, on the same disk."""
    id = c.create()
    exec = f"/v1/sandboxes/{id}/exec"
    mib = 256
    got = {k: [] for k in ("write", "read", "fsync", "host_write", "host_read", "host_fsync")}
    here = server.data / "host-file"
    write = "dd if=/dev/zero of={} bs=1M count=%d conv=fsync 2>/dev/null" % mib
    read = "dd if={} of=/dev/null bs=1M 2>/dev/null"
    for _ in range(n):
        begun = time.perf_counter()
        ask(c, "POST", exec, cmd=write.format("/root/f"))
        got["write"].append(mib * 1.048576 / (ms(begun) / 1000))
        begun = time.perf_counter()
        subprocess.run(write.format(here), shell=True, check=True)
        got["host_write"].append(mib * 1.048576 / (ms(begun) / 1000))
        ask(c, "POST", exec, cmd="sync; echo 3 >/proc/sys/vm/drop_caches")
        cold(server.data / "disks")
        begun = time.perf_counter()
        ask(c, "POST", exec, cmd=read.format("/root/f"))
        got["read"].append(mib * 1.048576 / (ms(begun) / 1000))
        cold(here)
        begun = time.perf_counter()
        subprocess.run(read.format(here), shell=True, check=True)
        got["host_read"].append(mib * 1.048576 / (ms(begun) / 1000))
        ask(c, "POST", exec, cmd="rm /root/f")
        here.unlink()
        script = FSYNCS.format(path="/root/s", seconds=seconds)
        got["fsync"].append(float(ask(c, "POST", exec, argv=["python3", "-c", script])["stdout"]))
        script = FSYNCS.format(path=str(here), seconds=seconds)
        got["host_fsync"].append(float(subprocess.run(["python3", "-c", script], capture_output=True, check=True).stdout))
        here.unlink()
    for key, unit in ("write", "mb_s"), ("read", "mb_s"), ("fsync", "per_s"):
        mine, host = statistics.median(got[key]), statistics.median(got["host_" + key])
        name = key if key == "fsync" else "disk_" + key
        yield f"{name}_{unit}", mine
        yield f"host_{name}_{unit}", host
        yield f"{name}_ratio", mine / host
    c.kill(id)


def cpu_ms(server, id):
    """What all processes of a machine have used; None where the host has other control groups."""
    try:
        return int(Path(f"/sys/fs/cgroup/cpuacct/{server.group}/{id}/cpuacct.usage").read_text()) / 1e6
    except FileNotFoundError:
        return None


def chains(c, rounds, server):
    """What a command costs in sandboxes that have had 1, 10, 100 checkpoints, each with something written before it.

    They are asked in turn: what else the host does meets all three. layer_chain_cpu_cost is the same in cpu time."""
    ids, times, cpu = {}, {}, {}
    for length in 1, 10, 100:
        id = c.create()
        for i in range(length):
            ask(c, "POST", f"/v1/sandboxes/{id}/exec", cmd=f"echo {i} >>/root/n; head -c 100000 /dev/urandom >/dev/shm/x{i % 7}")
            ask(c, "POST", f"/v1/sandboxes/{id}/checkpoints")
        ids[length], times[length] = id, []
    for i in range(rounds + 3):
        for length, id in ids.items():
            if i == 3:
                cpu[length] = cpu_ms(server, id)
            begun = time.perf_counter()
            ask(c, "POST", f"/v1/sandboxes/{id}/exec", cmd="python3 -c 'import json'")
            if i >= 3:
                times[length].append(ms(begun))
    for length, id in ids.items():
        yield f"layer_chain_{length}_ms", statistics.median(times[length])
        cpu[length] = None if cpu[length] is None else cpu_ms(server, id) - cpu[length]
        c.kill(id)
    yield "layer_chain_cost", statistics.median(times[100]) / statistics.median(times[1])
    if cpu[1]:
        yield "layer_chain_cpu_cost", cpu[100] / cpu[1]


def volumes(c, n):
    """A create with a volume against one without, in turns; attach and detach; a snapshot of one that is written, with 64 MiB in it."""
    def create(**more):
        begun = time.perf_counter()
        id = ask(c, "POST", "/v1/sandboxes", template="base", **more)["id"]
        took = ms(begun)
        c.kill(id)
        time.sleep(0.05)  # what is made ahead is made again
        return took

    ask(c, "POST", "/v1/volumes", name="v", size_mb=1024)
    pairs = [(create(), create(volumes=[{"name": "v", "path": "/v"}])) for _ in range(n)]
    yield "volume_create_extra_ms", statistics.median(w for _, w in pairs) - statistics.median(p for p, _ in pairs)
    id = c.create()
    at = f"/v1/sandboxes/{id}/volumes"
    took = {"attach": [], "detach": []}
    for _ in range(n):
        begun = time.perf_counter()
        ask(c, "POST", at, name="v", mount="/v")
        took["attach"].append(ms(begun))
        begun = time.perf_counter()
        ask(c, "DELETE", at + "/v")
        took["detach"].append(ms(begun))
    for key, times in took.items():
        yield f"volume_{key}_ms", statistics.median(times)
    ask(c, "POST", at, name="v", mount="/v")
    ask(c, "POST", f"/v1/sandboxes/{id}/exec", cmd="head -c 67108864 /dev/urandom >/v/x; sync")

    def snapshot(i):
        ask(c, "POST", "/v1/volumes/v/snapshots", name=f"s{i}")
    yield "volume_snapshot_64m_ms", timed(snapshot, min(n, 5))
    c.kill(id)
    for v in ask(c, "GET", "/v1/volumes?snapshots=1"):
        ask(c, "DELETE", f"/v1/volumes/{v['name']}")


def with_server(fn, **config):
    from server import Pandad
    server = Pandad(Path(tempfile.mkdtemp(prefix="panda-bench.")), log="warn", **config)
    try:
        server.start()
        c = Connection(server)
        c.kill(c.create())  # bakes
        time.sleep(0.2)
        yield from fn(c, server)
        server.close()
    finally:
        server.scrub()


def measure(quick=False):
    def plain(c, server):
        yield from going_back(c, 10 if quick else 30)
        yield from sleeping(c, 3 if quick else 10, server)
        yield from comparing(c, 5 if quick else 20)
        yield from racing(c, 3 if quick else 10)
        yield from volumes(c, 10 if quick else 30)
        yield from disk(c, 1 if quick else 5, server, 0.5 if quick else 1)
        yield from chains(c, 10 if quick else 30, server)

    yield from with_server(plain)
    yield from with_server(lambda c, server: compressed(c, 2 if quick else 5, server), compress_hibernated="yes")


if __name__ == "__main__":
    for key, value in measure("--quick" in sys.argv):
        print(f"state.{key} {value:.2f}", flush=True)
