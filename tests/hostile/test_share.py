"""A tenant that takes all it can get of cpu, threads and builds: the others keep their share (issue: cpu and threads)."""
import os
import signal
import threading
from pathlib import Path

import pytest

from conftest import wait_for
from server import CGROUPS
from test_builds import log, order

SPIN = "while :; do :; done"


@pytest.fixture
def one_cpu(new_pandad):
    """A pandad on one cpu, so that all spinners meet on it, however many the host has."""
    p = new_pandad(start=False)
    cpu = min(os.sched_getaffinity(0))
    p.start(preexec=lambda: os.sched_setaffinity(0, {cpu}))
    return p


@pytest.fixture
def tenant(new_pandad):
    """tenant(p, name): a function like p.do, as that tenant. Its sandboxes are gone when the test ends."""
    made = []

    def new(p, name):
        token = p.do("POST", "/v1/me/tokens", {"tenant": name, "label": name})["token"]
        made.append(lambda method, path, body=None, **kw: p.do(method, path, body, token=token, **kw))
        return made[-1]

    yield new
    for do in made:
        for sb in do("GET", "/v1/sandboxes"):
            do("DELETE", f"/v1/sandboxes/{sb['id']}")


def spinner(do):
    id = do("POST", "/v1/sandboxes", {"template": "base"})["id"]
    do("POST", f"/v1/sandboxes/{id}/execs", {"cmd": SPIN})
    return id


def cpu_ms(p, id):
    """What all processes of a machine have used."""
    for stat in [*CGROUPS.glob(f"cpu*/{p.group}/{id}/cpuacct.usage"), *CGROUPS.glob(f"cpu*/{p.group}/tenant.*/{id}/cpuacct.usage")]:
        return int(stat.read_text()) / 1e6
    stat = (p.group_of(id) / "cpu.stat").read_text()
    return int(dict(x.split() for x in stat.splitlines())["usage_usec"]) / 1e3


def settled(p, *ids):
    """Each machine is in its tenant's group, all of it, and nowhere else."""
    def there():
        for id in ids:
            group = p.group_of(id)
            if not group or not group.parent.name.startswith("tenant.") or group.parent.name == "tenant.none":
                return False
            if set(map(int, (group / "cgroup.procs").read_text().split())) != p.processes()[id]:
                return False
        return True
    if not any((g / "cpu.shares").exists() or (g / "cpu.weight").exists() for tree in (CGROUPS, *CGROUPS.iterdir())
               for g in [tree / p.group]):
        pytest.skip("no cgroup of this host shares out the cpu")
    wait_for("machines to be their tenants'", there)


@pytest.mark.core
def test_eight_spinners_of_one_tenant_leave_another_half_of_the_cpu(one_cpu, tenant):
    p = one_cpu
    many, one = tenant(p, "many"), tenant(p, "one")
    theirs, mine = [spinner(many) for _ in range(8)], spinner(one)
    settled(p, *theirs, mine)
    before = {id: cpu_ms(p, id) for id in (*theirs, mine)}
    used = lambda id: cpu_ms(p, id) - before[id]
    wait_for("some cpu time to be shared out", lambda: sum(map(used, before)) >= 2000, seconds=120)
    share = used(mine) / sum(map(used, before))
    assert share > 0.3, f"one of nine machines and one of two tenants, it got {share:.0%} of the cpu"  # 11 % without groups of tenants
    assert one("POST", f"/v1/sandboxes/{mine}/exec", {"cmd": "echo here"})["stdout"] == "here\n"


def test_whose_a_machine_is_survives_pandad_and_comes_from_older_ones(new_pandad, tenant):
    p = new_pandad()
    a, b = tenant(p, "a"), tenant(p, "b")
    ids = [spinner(a), spinner(a), spinner(b)]
    settled(p, *ids)
    groups = [p.group_of(id).parent for id in ids]
    assert groups[0] == groups[1] != groups[2]
    p.kill9()
    old = groups[0].parent / ids[0]  # where a pandad of 0.1.0 had it
    old.mkdir()
    for pid in p.processes()[ids[0]]:
        (old / "cgroup.procs").write_text(str(pid))
    (groups[0] / ids[0]).rmdir()
    p.start()
    settled(p, *ids)
    assert [p.group_of(id).parent for id in ids] == groups
    b("DELETE", f"/v1/sandboxes/{ids[2]}")
    assert not groups[2].exists(), "a tenant's group goes with its last machine"


def test_a_quota_of_cpu_holds_for_a_tenant_and_for_a_sandbox(new_pandad, tenant):
    p = new_pandad(tenant_cpu_percent=150, sandbox_cpu_percent=50)
    a = tenant(p, "a")
    ids = [spinner(a), spinner(a)]
    settled(p, *ids)
    for id in ids:
        for group, want in (p.group_of(id), 50000), (p.group_of(id).parent, 150000):
            if (group / "cpu.max").exists():
                assert (group / "cpu.max").read_text().split() == [str(want), "100000"]
            else:
                assert [int((group / f"cpu.cfs_{n}_us").read_text()) for n in ("quota", "period")] == [want, 100000]
    p.kill9()
    p.config["tenant_cpu_percent"] = 0
    p.start()
    group = p.group_of(ids[0]).parent
    wait_for("the new setting", lambda: "max" in (group / "cpu.max").read_text() if (group / "cpu.max").exists()
             else int((group / "cpu.cfs_quota_us").read_text()) == -1)


def test_a_machine_is_no_ones_until_a_request_asks_for_one(new_pandad):
    p = new_pandad()
    p.create()
    wait_for("processes made ahead", lambda: p.waiting())
    for id in p.waiting():
        group = p.group_of(id)
        if group:
            assert group.parent.name == "tenant.none"
    names = {part for pid in Path("/proc").glob("[0-9]*") for part in _groups(pid) if part.startswith("tenant.")}
    assert all("default" not in n for n in names), "no user of the host learns the names of tenants"


def _groups(pid):
    try:
        return (pid / "cgroup").read_text().replace("\n", "/").split("/")
    except OSError:
        return []


# ---- builds whose PID 1 stands still ----

# The agent is PID 1. Root in the guest may trace it, and from then on it does nothing.
FREEZE = ("#!/usr/bin/python3\n"
          "import ctypes, os, time\n"
          "libc = ctypes.CDLL(None)\n"
          "os.write(1, b'about to freeze\\n')\n"
          "time.sleep(0.3)  # the agent passes that on\n"
          "assert libc.ptrace(16, 1, 0, 0) == 0  # PTRACE_ATTACH\n"
          "while True:\n"
          "    time.sleep(1000)\n")
IN_A_STEP = "FROM base\nCOPY freeze /freeze\nRUN python3 /freeze\n"
# Its memory is of another size, so it is booted once more, and its shell is run before it is baked.
IN_A_WARM_UP = "FROM base\nCOPY freeze /freeze\nRUN chmod 755 /freeze && cp /freeze /bin/sh.new && mv /bin/sh.new /bin/sh\n"


def frozen(p, name, dockerfile, said, **more):
    id = order(p, name, dockerfile, {"freeze": FREEZE}, **more).json["id"]
    wait_for("it to freeze", lambda: said in log(p, id))
    return id


def over(p, id):
    return wait_for("its end", lambda: (b := p.do("GET", f"/v1/templates/builds/{id}"))["status"] in ("done", "failed") and b)


@pytest.mark.core
def test_a_build_that_stops_its_pid_1_can_be_cancelled(new_pandad):
    """Once in a step, once when its image is warmed up: a frozen agent answers no cancel, so the wait itself has to end."""
    p = new_pandad()
    for n, (dockerfile, said, more) in enumerate([(IN_A_STEP, "about to freeze\n", {}), (IN_A_WARM_UP, "baking\n", {"memory_mb": 384})]):
        id = frozen(p, f"frozen-{n}", dockerfile, said, **more)
        p.do("DELETE", f"/v1/templates/builds/{id}", expect=204)
        b = over(p, id)
        assert b["status"] == "failed" and "stopped by request" in b["error"], b
    assert p.sh(p.create(), "echo here")["stdout"] == "here\n"
    wait_for("their machines to go", lambda: not [m for m in p.machines() if m.startswith("b_")])


def test_pandad_ends_beside_frozen_builds(new_pandad, tenant):
    p = new_pandad()
    ids = [frozen(p, f"frozen-{n}", IN_A_STEP, "about to freeze\n") for n in range(2)]
    p.stop()
    p.start()
    for id in ids:
        b = over(p, id)
        assert b["status"] == "failed" and "the server ended" in b["error"], b
    assert not [m for m in p.machines() if m.startswith("b_")]


# ---- machines that say nothing ----

def test_machines_that_say_nothing_hold_up_their_own_tenant_only(new_pandad, tenant):
    """Their kernels stand still, so each pause waits for one of them. More of them than pandad has threads at first."""
    p = new_pandad(threads=4)
    theirs, mine = tenant(p, "mute"), tenant(p, "other")
    ids = [theirs("POST", "/v1/sandboxes", {"template": "base"})["id"] for _ in range(6)]
    for id in ids:
        p.signal(id, signal.SIGSTOP)
    token = p.do("POST", "/v1/me/tokens", {"tenant": "mute"})["token"]
    asked = [threading.Thread(target=p.ask, args=("POST", f"/v1/sandboxes/{id}/pause", None, token), daemon=True) for id in ids]
    try:
        for t in asked:
            t.start()
        for _ in range(3):
            id = mine("POST", "/v1/sandboxes", {"template": "base"})["id"]
            mine("POST", f"/v1/sandboxes/{id}/pause")
            mine("DELETE", f"/v1/sandboxes/{id}")
        assert all(t.is_alive() for t in asked), "they were answered, so this test has shown nothing"
    finally:
        for id in ids:
            p.signal(id, signal.SIGCONT)
        for t in asked:
            t.join()
