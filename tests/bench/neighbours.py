"""A tenant beside another one that does all it can to be a nuisance: the hostile.* rows of make bench.

measure(quick) starts a pandad in the host of a little internet (tests/e2e/little_internet.py), yields (key, value) pairs and leaves
nothing behind. Tenant b creates sandboxes and runs commands, first alone, then while four sandboxes of tenant a spin, fork, and fill
memory, disk, fds and the network (tests/hostile/guest/everything.py). The ratios are of the 99th percentiles.
"""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import api
import net

TOP = api.TOP
ATTACK = TOP / "tests/hostile/guest/everything.py"
ATTACKERS = 4
BACK_S = 60


class Tenant(net.Connection):
    def __init__(self, server, name):
        super().__init__(server)
        token = json.loads(self.ask("POST", "/v1/me/tokens", json.dumps({"tenant": name}).encode()))["token"]
        self.head = f"Host: x\r\nAuthorization: Bearer {token}\r\n"

    def sh(self, id, text):
        return self.run(id, "sh", "-c", text)


def samples(c, rounds):
    """p99 of a create, and of a command in a sandbox that is there."""
    creates, execs = [], []
    id = c.create()
    for _ in range(rounds):
        begun = time.perf_counter()
        new = c.create()
        creates.append(api.ms(begun))
        c.kill(new)
        time.sleep(0.02)  # what is made ahead is made in this time
        begun = time.perf_counter()
        c.true(id)
        execs.append(api.ms(begun))
    c.kill(id)
    return api.percentile(creates, 99), api.percentile(execs, 99)


def number(path, field=0):
    with contextlib.suppress(OSError):
        return int(Path(path).read_text().split()[field])
    return 0


def namespaces():
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return len(found | set(os.listdir("/run/netns") if os.path.isdir("/run/netns") else []))


def counters(p, space):
    """What the host has of each kind. Those that also others use have some room, see back()."""
    inside = lambda *argv: subprocess.run(["ip", "netns", "exec", space, *argv], capture_output=True, text=True).stdout
    slab = re.search(r"^SUnreclaim:\s+(\d+)", Path("/proc/meminfo").read_text(), re.M)
    return {
        "processes": len(p.processes(all=True)),
        "machines": len(p.machines()),
        "groups": len(p.cgroups()),
        "files": number("/proc/sys/fs/file-nr"),
        "slab_mib": int(slab[1]) // 1024,
        "conntrack": int(inside("cat", "/proc/sys/net/netfilter/nf_conntrack_count") or 0),
        "links": len(inside("ip", "-o", "link").splitlines()),
        "elements": len(re.findall(r"expires|elements", inside("nft", "list", "ruleset"))),
        "namespaces": namespaces(),
    }


ROOM = {"files": 256, "slab_mib": 48, "conntrack": 16}


def back(p, space, before):
    """Seconds until all counters are where they were; None when they are not within BACK_S."""
    begun = time.monotonic()
    while True:
        now = counters(p, space)
        more = {k: (before[k], v) for k, v in now.items() if v > before[k] + ROOM.get(k, 0)}
        if not more:
            return time.monotonic() - begun
        if time.monotonic() > begun + BACK_S:
            print(f"not back after {BACK_S} s: {more}", file=sys.stderr)
            return None
        time.sleep(0.2)


def attack(c, address):
    """A sandbox in which all of it has begun: its program says so, or its kernel has no time for the agent any more."""
    id = c.create()
    c.ask("PUT", f"/v1/sandboxes/{id}/fs?path=/root/everything.py", ATTACK.read_bytes())
    try:
        c.sh(id, f"setsid python3 /root/everything.py {address} </dev/null >/root/said 2>&1 & "
                 "until grep -q ready /root/said; do sleep 0.1; done")
    except RuntimeError as e:
        if "guest_silent" not in str(e):
            raise
    return id


def measure(quick):
    from little_internet import WEB, LittleInternet
    from server import NetPandad
    home = Path(tempfile.mkdtemp(prefix="panda-bench-neighbours-"))
    rounds = 30 if quick else 300
    with LittleInternet() as world:
        p = NetPandad(world, home / "p", log="warn")
        try:
            p.start()
            a, b = Tenant(p, "a"), Tenant(p, "b")
            kept = b.create()  # and with that the template is baked
            b.sh(kept, "echo 42 >/dev/shm/x; echo 43 >/root/x")
            samples(b, 10)
            quiet = samples(b, rounds)
            before, rss = counters(p, world.host), api.rss_kib(p.process.pid)
            ids = []
            for _ in range(ATTACKERS):
                ids.append(attack(a, WEB))
                b.sh(kept, "true")  # a connection that is not used is closed
            busy = samples(b, rounds)
            grown = api.rss_kib(p.process.pid) - rss
            if b.sh(kept, "cat /dev/shm/x /root/x") != "42\n43\n":
                raise RuntimeError("tenant b lost what it had")
            for id in ids:
                a.kill(id)
            seconds = back(p, world.host, before)
            for i, what in enumerate(("create", "exec")):
                yield f"{what}_quiet_ms_p99", quiet[i]
                yield f"{what}_ms_p99", busy[i]
                yield f"{what}_p99_vs_quiet", busy[i] / quiet[i]
            yield "pandad_grown_mib", grown / 1024
            if seconds is None:
                raise RuntimeError("the host is not as it was before")
            yield "back_s", seconds
            b.kill(kept)
            p.close()
        finally:
            p.scrub()
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    for key, value in measure("--quick" in sys.argv):
        print(f"hostile.{key} {value:.2f}", flush=True)
