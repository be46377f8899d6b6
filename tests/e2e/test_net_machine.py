"""The table of test_net_policy in real machines: after a change of policy, a fork, a sleep and another pandad; every cell asserted."""
import concurrent.futures
import io
import json
import tarfile
from pathlib import Path

import pytest

import little_internet
from conftest import wait_for
from little_internet import FRAMES, ODD_FRAMES, patient
from test_net_policy import ORDER, POLICIES, TABLE, expected, wait_of

dns = pytest.importorskip("dns")
PLACE = "/root/tests/e2e"  # as deep as it is here


def egress(policy):
    """As the API says it."""
    mode, _, entries = POLICIES[policy].partition(" ")
    return {"egress_allowlist": entries.split(",")} if mode == "list" else {"egress": mode}


def lines():
    return "".join(json.dumps({"do": a[0], "args": a[1:], "kw": wait_of(row)}) + "\n" for row, (a, _) in enumerate(TABLE))


def check(p, sandboxes, when):
    """sandboxes: {policy: id}. All at the same time: most of it is waiting for what does not come."""

    def one(policy):
        r = p.do("POST", f"/v1/sandboxes/{sandboxes[policy]}/exec",
                 {"argv": ["python3", f"{PLACE}/attempts.py", "guest"], "stdin": lines(), "timeout_seconds": patient(120)}, timeout=150)
        assert r["exit_code"] == 0, r
        return [json.loads(line) for line in r["stdout"].splitlines()[1:]]  # the first says that it is up

    with concurrent.futures.ThreadPoolExecutor(len(sandboxes)) as pool:
        got = dict(zip(sandboxes, pool.map(one, sandboxes)))
    wrong = [f"{policy}: {' '.join(map(str, a))}: {g!r}, not {w!r}" for policy in sandboxes
             for row, ((a, _), g) in enumerate(zip(TABLE, got[policy])) if g != (w := expected(row)[ORDER.index(policy)])]
    assert all(len(g) == len(TABLE) for g in got.values())
    assert not wrong, f"{when}:\n" + "\n".join(wrong)


@pytest.fixture
def p(net_pandad):
    return net_pandad


def fork(p, id):
    return p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]


def test_every_cell_in_every_life(p):
    tools = io.BytesIO()
    with tarfile.open(fileobj=tools, mode="w") as tar:
        tar.add(Path(dns.__file__).parent, "dns", filter=lambda f: None if "__pycache__" in f.name else f)
    first = p.create()
    p.do("PUT", f"/v1/sandboxes/{first}/fs?path={PLACE}/attempts.py", Path(little_internet.__file__).read_bytes())
    p.do("PUT", f"/v1/sandboxes/{first}/fs?path=/root/dns.tar", tools.getvalue())
    assert p.sh(first, f"cd {PLACE} && tar -xf /root/dns.tar && python3 -m compileall -q .")["exit_code"] == 0

    boxes = {policy: fork(p, first) for policy in ORDER}
    for policy, id in boxes.items():
        p.do("PATCH", f"/v1/sandboxes/{id}/egress", egress(policy))
    check(p, boxes, "after a change of policy in a fork")
    for id in boxes.values():
        p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    p.kill9()
    p.start()
    check(p, boxes, "woken by another pandad")
    p.kill9()
    p.start()
    boxes = {policy: fork(p, id) for policy, id in boxes.items()}
    check(p, boxes, "in forks of adopted machines")
    boxes = {policy: boxes[ORDER[i - 1]] for i, policy in enumerate(ORDER)}
    for policy, id in boxes.items():
        p.do("PATCH", f"/v1/sandboxes/{id}/egress", egress(policy))
    check(p, boxes, "with the policy that another had before")


def test_frames_of_a_guests_root_arrive_nowhere(p, net):
    """Raw packets out of a real machine: IPv6, fragments, tags, other protocols, other names for itself."""
    id = p.create()
    p.do("PUT", f"/v1/sandboxes/{id}/fs?path={PLACE}/attempts.py", Path(little_internet.__file__).read_bytes())

    def send(frames):
        text = "".join(json.dumps({"do": "frame", "args": [mark], "kw": how}) + "\n" for mark, how in frames.items())
        r = p.do("POST", f"/v1/sandboxes/{id}/exec", {"argv": ["python3", f"{PLACE}/attempts.py", "guest"], "stdin": text})
        assert [json.loads(line) for line in r["stdout"].splitlines()[1:]] == ["sent"] * len(frames), r

    net.clear()
    send({"plain": {}, **FRAMES, "syn": {"proto": 6, "dport": 80}})
    wait_for("the plain frame", lambda: "plain" in net.marks())
    send({"last": {}})
    wait_for("the last frame", lambda: "last" in net.marks())
    assert set(net.marks()) <= {"plain", "last", "syn"}
    n = p.do("GET", f"/v1/sandboxes/{id}/egress")
    assert n["odd"] >= ODD_FRAMES and n["refused"] >= 5, n
    # The guest's kernel may have an IPv6 of its own; nothing answers there.
    r = p.sh(id, "ip -6 route get 2600::1; ping -6 -c1 -W1 fe80::400:acff:fe1f:ff01%eth0 && echo reached")
    assert "reached" not in r["stdout"], r
