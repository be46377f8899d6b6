"""Root in a guest takes all there is of one thing: the other tenant does not notice, and nothing of it is left when it is gone."""
import os
import re
import subprocess
import time

import pytest

from conftest import HOSTILE, wait_for
from server import patience

KINDS = ["fork", "memory", "fds", "inotify", "inodes", "disk", "tmpfs", "threads", "sockets", "connections", "names", "ptys", "mounts",
         "namespaces", "output"]
CORE = {"fork", "memory", "connections"}


class Tenant:
    def __init__(self, p, name):
        self.p, self.token = p, p.do("POST", "/v1/me/tokens", {"tenant": name})["token"]

    def do(self, method, path, body=None, **kw):
        return self.p.do(method, path, body, token=self.token, **kw)

    def create(self, **body):
        return self.do("POST", "/v1/sandboxes", {"template": "base", **body})["id"]

    def sh(self, id, cmd, seconds=60):
        return self.do("POST", f"/v1/sandboxes/{id}/exec", {"cmd": cmd, "timeout_seconds": seconds * patience()},
                       timeout=2 * seconds)["stdout"]

    def end(self, id):
        self.do("DELETE", f"/v1/sandboxes/{id}")


def counters(p, net):
    """What the host has for sandboxes of this pandad, of each kind."""
    inside = lambda *argv: subprocess.run(["ip", "netns", "exec", net.host, *argv], capture_output=True, text=True, check=True).stdout
    return {"processes": len(p.processes(all=True)), "machines": len(p.machines()), "groups": len(p.cgroups()),
            "fds": len(os.listdir(f"/proc/{p.process.pid}/fd")), "links": len(net.links()),
            "conntrack": int(inside("cat", "/proc/sys/net/netfilter/nf_conntrack_count")),
            "elements": len(re.findall(r"expires|elements", inside("nft", "list", "ruleset")))}


def settled(look):
    """What it says three times in a row: things are made ahead, and unmade, while nobody asks."""
    last = []
    return wait_for("rest", lambda: last.append(look()) or (len(last) > 2 and last[-1] == last[-2] == last[-3] and last[-1]) or time.sleep(0.5))


ROOM = {"processes": 2, "machines": 2, "groups": 2, "fds": 16, "links": 4, "conntrack": 16}  # what is made ahead comes and goes


@pytest.fixture(scope="module")
def quiet(shared_net_pandad, net):
    """The other tenant: (it, a sandbox with something in it, what the host has beside that)."""
    b = Tenant(shared_net_pandad, "b")
    id = b.create()
    assert b.sh(id, "echo 42 >/dev/shm/x; echo 43 >/root/x; cat /dev/shm/x /root/x") == "42\n43\n"
    for extra in [b.create() for _ in range(4)]:  # what is kept ready is as many as will be needed
        b.end(extra)
    yield b, id, settled(lambda: counters(shared_net_pandad, net))
    b.end(id)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.core] if k in CORE else []) for k in KINDS])
def test_another_tenant_goes_on_beside(shared_net_pandad, net, quiet, kind):
    from little_internet import WEB
    p, (b, kept, before) = shared_net_pandad, quiet
    a = Tenant(p, "a")
    bomb = a.create(memory_mb=256)
    a.do("PUT", f"/v1/sandboxes/{bomb}/fs?path=/root/bombs.py", (HOSTILE / "bombs.py").read_bytes())
    a.sh(bomb, f"setsid python3 /root/bombs.py {kind} {WEB} </dev/null >/root/said 2>&1 &")

    def look():
        """B makes a sandbox, runs something in it and in the one it has, and ends it."""
        assert b.sh(kept, "cat /dev/shm/x /root/x") == "42\n43\n"
        id = b.create()
        assert b.sh(id, "echo $((6 * 7))") == "42\n"
        b.end(id)

    look()  # while it grows
    said = wait_for("the bomb", lambda: (r := p.ask("GET", f"/v1/sandboxes/{bomb}/fs?path=/root/said", token=a.token)).body and r, 60)
    assert said.body == b"ready\n" or said.status >= 500, said  # its own machine may end, or have no time for us
    for _ in range(3):
        look()
    a.end(bomb)
    look()
    left = lambda: {k: (before[k], v) for k, v in counters(p, net).items() if v > before[k] + ROOM.get(k, 0)}
    try:
        wait_for("the host to be as it was", lambda: not left(), 60)
    finally:
        assert left() == {}
    assert p.process.poll() is None
