"""The network of sandboxes: the net.* rows of make bench.

measure(quick) builds a little internet of namespaces (tests/e2e/little_internet.py), starts a pandad in its host, yields (key, value)
pairs and leaves nothing behind. Both ends of a stream are tests/bench/guest/net.c, in a guest and in a namespace beside it; native is
the same program in two namespaces with a veth between them.
"""
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import api

TOP = api.TOP
PEER_PORT = "7100"


class Connection(api.Connection):
    """Over the unix socket: a pandad in another namespace cannot be reached otherwise."""

    def __init__(self, server):
        self.head = f"Host: x\r\nAuthorization: Bearer {server.key}\r\n"
        self.s = socket.socket(socket.AF_UNIX)
        self.s.connect(server.config["listen"].removeprefix("unix:"))

    def run(self, id, *argv):
        answer = json.loads(self.ask("POST", f"/v1/sandboxes/{id}/exec", json.dumps({"argv": argv}).encode()))
        if answer["exit_code"] != 0:
            raise RuntimeError(f"{argv}: {answer}")
        return answer["stdout"]


@contextlib.contextmanager
def program(*argv):
    """Runs until it is no longer needed; has said that it is ready."""
    p = subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, text=True)
    try:
        if p.stdout.readline() != "ready\n":
            raise RuntimeError(f"{argv} did not start")
        yield p
    finally:
        p.kill()
        p.communicate()


def creates(with_net, without, rounds):
    """What a network adds to a create: in turns, so that both see the same host."""
    times = {with_net: [], without: []}
    ids = {with_net: [], without: []}
    for _ in range(rounds):
        for c in times:
            time.sleep(0.06)  # what the other one made ahead in its own time is not our time
            begun = time.perf_counter()
            ids[c].append(c.create())
            times[c].append(api.ms(begun))
        if len(ids[with_net]) == 4:  # as many as are made ahead, and time to make more
            for c in ids:
                for id in ids[c]:
                    c.kill(id)
                ids[c].clear()
            time.sleep(0.15)
    for c in ids:
        for id in ids[c]:
            c.kill(id)
    yield "create_ms_p50", statistics.median(times[with_net])
    yield "create_extra_ms", statistics.median(times[with_net]) - statistics.median(times[without])


def streams(c, id, tool, peer, quick):
    seconds, rounds = ("1", "500") if quick else ("4", "5000")
    for key, what in ("throughput_gbit", "down"), ("throughput_up_gbit", "up"):
        yield key, float(c.run(id, "/root/net", what, peer, PEER_PORT, seconds))
    yield "rtt_us", float(c.run(id, "/root/net", "rtt", peer, PEER_PORT, rounds))
    yield "dns_us", float(c.run(id, "/root/net", "dns", "300"))


def run(text):
    done = subprocess.run(text, shell=True, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{text}: {done.stderr}")
    return done.stdout


def native(tool, quick):
    seconds, rounds = ("1", "500") if quick else ("3", "5000")
    a, b = f"pb{os.getpid()}a", f"pb{os.getpid()}b"
    try:
        run(f"ip netns add {a}; ip netns add {b}; ip -n {a} link add v0 type veth peer name v0 netns {b}")
        for ns, addr in (a, "11.99.0.1"), (b, "11.99.0.2"):
            run(f"ip -n {ns} addr add {addr}/24 dev v0; ip -n {ns} link set v0 up; ip -n {ns} link set lo up")
        with program("ip", "netns", "exec", b, tool, "serve", PEER_PORT):
            ask = lambda what, n: float(run(f"ip netns exec {a} {tool} {what} 11.99.0.2 {PEER_PORT} {n}"))
            yield "native_throughput_gbit", ask("down", seconds)
            yield "native_rtt_us", ask("rtt", rounds)
    finally:
        subprocess.run(["ip", "netns", "del", a], capture_output=True)
        subprocess.run(["ip", "netns", "del", b], capture_output=True)


def policy(c, id, rounds):
    times = []
    lists = [["web.example"], ["web.example", "*.wild.example", "11.9.0.0/16"]]
    for i in range(rounds):
        body = json.dumps({"egress_allowlist": lists[i % 2]}).encode()
        begun = time.perf_counter()
        c.ask("PATCH", f"/v1/sandboxes/{id}/egress", body)
        times.append(api.ms(begun))
    yield "policy_change_ms", statistics.median(times)


def proxy(c, id, seconds):
    c.ask("POST", f"/v1/sandboxes/{id}/execs", json.dumps({"argv": ["/root/net", "http", "7200"]}).encode())
    end = time.monotonic() + 10
    while True:
        try:
            c.ask("GET", f"/v1/sandboxes/{id}/proxy/7200/")
            break
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    n, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        c.ask("GET", f"/v1/sandboxes/{id}/proxy/7200/")
        n += 1
    yield "proxy_rps_one", n / (time.perf_counter() - begun)


def proxy_many(server, id, n):
    seconds, _ = api.each(n, 8, lambda c: c.ask("GET", f"/v1/sandboxes/{id}/proxy/7200/"), lambda: Connection(server))
    yield "proxy_rps", n / seconds


def measure(quick):
    from little_internet import WEB, LittleInternet
    from server import BUILD, NetPandad
    tool = BUILD / "tests/bench/net"
    home = Path(tempfile.mkdtemp(prefix="panda-bench-net-"))
    yield from native(tool, quick)
    servers = []
    with LittleInternet() as net:
        try:
            p = NetPandad(net, home / "with", log="warn")
            servers.append(p.start())
            id = p.create()  # and with that the template is baked
            run(f"cp -al {p.data}/store {home}/bakes")
            q = NetPandad(net, home / "without", bakes=home / "bakes", log="warn")
            q.config["network"] = "no"
            servers.append(q.start())
            c = Connection(p)
            yield from creates(c, Connection(q), 24 if quick else 100)
            c.ask("PUT", f"/v1/sandboxes/{id}/fs?path=/root/net&mode=0755", tool.read_bytes())
            with program("ip", "netns", "exec", net.internet, tool, "serve", PEER_PORT):
                yield from streams(c, id, tool, WEB, quick)
            yield from policy(c, id, 50 if quick else 300)
            yield from proxy(c, id, 1 if quick else 4)
            yield from proxy_many(p, id, 500 if quick else 3000)
        finally:
            for server in servers:
                server.close()
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    for key, value in measure("--quick" in sys.argv):
        print(f"net.{key} {value:.3f}", flush=True)
