"""The network of sandboxes through a real pandad, which runs in the `host` namespace of a little internet (little_internet.py)."""
import socket
import time

import pytest

from conftest import NAMES, wait_for
from server import NetPandad
from little_internet import DATABASE, HOST_PUBLIC, METADATA, OTHER, WEB, LittleInternet, sh


@pytest.fixture(scope="module")
def net():
    with LittleInternet() as n:
        yield n


@pytest.fixture(scope="module")
def shared(net, server_home):
    p = NetPandad(net, server_home / f"net-{next(NAMES)}", bakes=server_home / "bakes").start()
    yield p
    p.close()
    assert not net.links() and not net.tables(), "nothing of ours stays in the host's network"


@pytest.fixture
def p(shared):
    yield shared
    shared.clear()


def reaches(p, id, where, port=80):
    """Does a connection from inside get an answer?"""
    code = f"""
import socket, sys
s = socket.create_connection(({where!r}, {port}), 3)
s.sendall(b"hello\\n")
sys.exit(0 if s.recv(100) else 1)
"""
    return p.do("POST", f"/v1/sandboxes/{id}/exec", {"argv": ["python3", "-c", code]})["exit_code"] == 0


def test_open_is_the_internet_and_nothing_nearer(p):
    id = p.create()
    assert reaches(p, id, WEB) and reaches(p, id, OTHER)
    for closed in HOST_PUBLIC, DATABASE, METADATA, "172.31.255.1", "10.200.0.1":
        assert not reaches(p, id, closed), closed


def test_names_resolve_through_us(p):
    id = p.create()
    assert reaches(p, id, "web.example")
    assert not reaches(p, id, "rebind.example"), "a name that points inside leads nowhere"


def test_a_list_is_a_leash(p):
    id = p.create(egress_allowlist=["web.example"])
    assert reaches(p, id, "web.example")
    assert not reaches(p, id, "other.example") and not reaches(p, id, OTHER)
    events = p.do("GET", f"/v1/sandboxes/{id}/events?tail=200")["events"]
    assert any(e["type"] == "net.refused" for e in events), events


def test_off_is_nothing(p):
    for policy in {"egress_allowlist": []}, {"egress": "off"}:
        id = p.create(**policy)
        assert not reaches(p, id, WEB) and not reaches(p, id, "web.example")


def test_a_policy_changes_while_it_runs(p):
    id = p.create()
    assert reaches(p, id, WEB)
    p.do("PATCH", f"/v1/sandboxes/{id}/egress", {"egress_allowlist": ["other.example"]})
    assert not reaches(p, id, WEB) and reaches(p, id, "other.example")
    p.do("PATCH", f"/v1/sandboxes/{id}/egress", {"egress_allowlist": None, "egress": "open"})
    assert reaches(p, id, WEB)
    told = p.do("GET", f"/v1/sandboxes/{id}/egress")
    assert told["egress_allowlist"] is None and told["up_bytes"] > 0 and told["address"].startswith("10.200.")


def test_children_inherit_the_leash_and_have_places_of_their_own(p):
    id = p.create(egress_allowlist=["web.example"])
    kids = [c["id"] for c in p.do("POST", f"/v1/sandboxes/{id}/fork-tree", {"count": 3})["children"]]
    for k in kids:
        assert reaches(p, k, "web.example") and not reaches(p, k, OTHER)
    places = {p.do("GET", f"/v1/sandboxes/{i}/egress")["address"] for i in [id, *kids]}
    assert len(places) == 4
    for k in kids:
        assert not any(reaches(p, k, a, 22) for a in places), "sandboxes do not see each other"


def test_after_hibernate_pause_and_another_pandad(p):
    id = p.create(egress_allowlist=["web.example"])
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    assert reaches(p, id, "web.example") and not reaches(p, id, OTHER)
    p.do("POST", f"/v1/sandboxes/{id}/pause")
    p.do("POST", f"/v1/sandboxes/{id}/resume")
    assert reaches(p, id, "web.example")
    p.kill9()
    p.start()
    assert reaches(p, id, "web.example") and not reaches(p, id, OTHER)


def test_connections_of_a_fork_end_at_once(p):
    id = p.create()
    code = ("import socket, time\n"
            f"s = socket.create_connection(('{WEB}', 80), 5)\n"
            "open('/root/up', 'w').close()\n"
            "while True:\n"
            "    try:\n"
            "        s.sendall(b'x'); time.sleep(0.05)\n"
            "    except OSError as e:\n"
            "        open('/root/end', 'w').write(str(e.errno)); break\n")
    p.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/hold.py", code.encode())
    p.do("POST", f"/v1/sandboxes/{id}/execs", {"cmd": "python3 /root/hold.py"})
    wait_for("it to be connected", lambda: p.ask("GET", f"/v1/sandboxes/{id}/fs/stat?path=/root/up").status == 200)
    child = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    begun = time.monotonic()
    wait_for("the child's copy to end", lambda: p.ask("GET", f"/v1/sandboxes/{child}/fs/stat?path=/root/end").status == 200)
    assert time.monotonic() - begun < 5
    assert reaches(p, child, WEB)


def test_bad_lists_are_refused_in_words(p):
    for entry in "http://x/", "a b", "300.1.1.1/8", "x:99999", "10.0.0.0/8":
        a = p.ask("POST", "/v1/sandboxes", {"template": "base", "egress_allowlist": [entry]})
        assert a.status == 400 and a.json["error"], (entry, a)
    id = p.create()
    assert p.ask("PATCH", f"/v1/sandboxes/{id}/egress", {}).status == 400


def test_nothing_is_left_of_many(p, net):
    ids = [p.create() for _ in range(20)]
    for i in ids:
        p.do("DELETE", f"/v1/sandboxes/{i}")
    wait_for("only those made ahead", lambda: len(net.links()) <= 8)
    assert sh(f"ip netns exec {net.host} nft list tables")
