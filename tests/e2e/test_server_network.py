"""The network of sandboxes through a real pandad, which runs in the `host` namespace of a little internet (little_internet.py)."""
import errno

import pytest

from conftest import NAMES, count, wait_for
from server import NetPandad
from little_internet import DATABASE, HOST_PUBLIC, METADATA, OTHER, WEB, WILD, sh


@pytest.fixture
def p(net_pandad):
    return net_pandad


def reaches(p, id, where, port=80):
    """Does a connection from inside get an answer?"""
    code = f"""
import socket, sys
s = socket.create_connection(({where!r}, {port}), 3)
s.sendall(b"GET / HTTP/1.0\\r\\nHost: {where}\\r\\n\\r\\n")
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


HOLD = f"""
import socket, time
s = socket.create_connection(('{WEB}', 80), 5)
s.sendall(b"GET /hold HTTP/1.0\\r\\n\\r\\n")  # from here on all comes back, and the server never hangs up
assert s.recv(4) == b"held"
s.sendall(b"x" * 5000)
for _ in range(5000):
    assert s.recv(1)
open('/root/up', 'w').close()
while True:
    try:
        s.sendall(b'x'); time.sleep(0.05)
    except OSError as e:
        # What a new life begins with: does a name resolve?
        try:
            found = socket.gethostbyname('web.example')
        except OSError as e2:
            found = str(e2)
        open('/root/end.new', 'w').write(f"{{e.errno}} {{found}}")
        import os; os.rename('/root/end.new', '/root/end'); break
"""


def forked(p, id):
    return p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]


def woken(p, id):
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    p.do("POST", f"/v1/sandboxes/{id}/wake")
    return id


def restored(p, id):
    snap = p.do("POST", f"/v1/sandboxes/{id}/snapshots", {})["id"]
    p.do("DELETE", f"/v1/sandboxes/{id}")
    return p.do("POST", "/v1/sandboxes", {"from_snapshot": snap})["id"]


@pytest.mark.parametrize("how", [forked, woken, restored])
def test_a_new_life_ends_old_connections_with_a_reset_and_names_resolve_at_once(p, how):
    id = p.create()
    p.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/hold.py", HOLD.encode())
    p.do("POST", f"/v1/sandboxes/{id}/execs", {"cmd": "python3 /root/hold.py"})
    wait_for("it to be connected", lambda: p.ask("GET", f"/v1/sandboxes/{id}/fs/stat?path=/root/up").status == 200)
    place = p.do("GET", f"/v1/sandboxes/{id}/egress")["address"]
    assert p.ask("GET", f"/v1/sandboxes/{id}/fs?path=/root/end").status == 404, "it lives until then"
    new = how(p, id)
    end = wait_for("the old connection to end", lambda: (a := p.ask("GET", f"/v1/sandboxes/{new}/fs?path=/root/end")).status == 200 and a.body)
    error, found = end.decode().split()
    assert int(error) in (errno.ECONNRESET, errno.EPIPE) and found == WEB
    if how is forked:
        assert p.ask("GET", f"/v1/sandboxes/{id}/fs?path=/root/end").status == 404, "the parent's goes on"
    assert reaches(p, new, WEB)
    assert p.do("GET", f"/v1/sandboxes/{new}/egress")["address"] != place


@pytest.mark.parametrize("how", ["hibernate", "kill"])
def test_connections_that_live_to_the_end_are_on_record_with_their_bytes(p, how):
    id = p.create()
    p.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/hold.py", HOLD.encode())
    p.do("POST", f"/v1/sandboxes/{id}/execs", {"cmd": "python3 /root/hold.py"})
    wait_for("it to be connected", lambda: p.ask("GET", f"/v1/sandboxes/{id}/fs/stat?path=/root/up").status == 200)
    if how == "kill":
        p.do("DELETE", f"/v1/sandboxes/{id}")
    else:
        p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    end = wait_for("its end", lambda: [e for e in p.do("GET", "/v1/events?tail=200")["events"]
                                       if e["sandbox_id"] == id and e["type"] == "net.closed" and e["payload"]["address"] == WEB])[0]
    assert end["payload"]["port"] == 80 and end["payload"]["up_bytes"] > 5000 and end["payload"]["down_bytes"] > 5000


def test_refusals_do_not_hide_what_was_allowed(p):
    """Somebody makes noise and slips out in the middle of it."""
    id = p.create()
    code = f"""
import socket
def go(a, port):
    try:
        socket.create_connection((a, port), 3).close()
    except OSError:
        pass
for i in range(90):
    go({DATABASE!r}, 5432)
    if i == 70:
        go({WEB!r}, 9000)
"""
    assert p.do("POST", f"/v1/sandboxes/{id}/exec", {"argv": ["python3", "-c", code]})["exit_code"] == 0
    wait_for("what was allowed", lambda: [e for e in p.do("GET", f"/v1/sandboxes/{id}/events?tail=500")["events"]
                                          if e["type"] == "net.allowed" and (e["payload"]["address"], e["payload"]["port"]) == (WEB, 9000)])


def test_bad_lists_are_refused_in_words(p):
    for entry in "http://x/", "a b", "300.1.1.1/8", "x:99999", "10.0.0.0/8":
        a = p.ask("POST", "/v1/sandboxes", {"template": "base", "egress_allowlist": [entry]})
        assert a.status == 400 and a.json["error"], (entry, a)
    id = p.create()
    assert p.ask("PATCH", f"/v1/sandboxes/{id}/egress", {}).status == 400


def test_many_with_policies_at_once_and_nothing_is_left_of_them(p, net):
    policies = [{}, {"egress": "off"}, {"egress_allowlist": ["web.example", "*.wild.example", "11.9.0.0/16"]}]
    n = count(21, 501)  # three kinds
    ids = [p.create(**policies[i % 3]) for i in range(n)]
    assert len({p.do("GET", f"/v1/sandboxes/{i}/egress")["address"] for i in ids}) == n
    for k in 0, n // 6 * 3, n - 3:  # the first, one in the middle and the last of each kind
        for i, allowed in enumerate([(True, True), (False, False), (True, False)]):
            assert (reaches(p, ids[k + i], "web.example"), reaches(p, ids[k + i], OTHER)) == allowed
    for i in ids:
        p.do("DELETE", f"/v1/sandboxes/{i}")
    wait_for("only those made ahead", lambda: len(net.links()) <= 8, 60)
    assert sh(f"ip netns exec {net.host} nft list tables")


def test_open_can_be_asked_for_where_the_default_is_nothing(net, server_home):
    p = NetPandad(net, server_home / f"net-{next(NAMES)}", bakes=server_home / "bakes", egress_deny="yes", net_pool="10.201.0.0/24").start()
    try:
        shut, open_ = p.create(), p.create(egress="open")
        assert not reaches(p, shut, WEB) and reaches(p, open_, WEB) and not reaches(p, open_, METADATA)
        assert [p.do("GET", f"/v1/sandboxes/{i}/egress")["mode"] for i in (shut, open_)] == ["off", "open"]
        p.kill9()
        p.start()
        child = p.do("POST", f"/v1/sandboxes/{open_}/fork")["children"][0]
        assert not reaches(p, shut, WEB) and reaches(p, open_, WEB) and reaches(p, child, WEB)
        p.do("PATCH", f"/v1/sandboxes/{shut}/egress", {"egress": "open"})
        p.do("PATCH", f"/v1/sandboxes/{open_}/egress", {"egress_allowlist": None})
        assert reaches(p, shut, WEB) and not reaches(p, open_, WEB)
    finally:
        p.close()


def test_what_the_operator_says_no_request_overrides(net, server_home):
    p = NetPandad(net, server_home / f"net-{next(NAMES)}", bakes=server_home / "bakes", net_pool="10.202.0.0/24").start()
    try:
        open_, listed = p.create(), p.create(egress_allowlist=["web.example", f"{OTHER}:80", f"{WILD}:80"])
        asked = p.create(egress="open")
        assert reaches(p, open_, WEB) and reaches(p, listed, OTHER) and reaches(p, asked, OTHER)
        p.kill9()
        p.config.update(egress_max="list", egress_closed=f"{OTHER} 11.9.0.0/16")
        p.start()
        modes = [p.do("GET", f"/v1/sandboxes/{i}/egress")["mode"] for i in (open_, listed, asked)]
        assert modes == ["off", "list", "off"]
        child = p.do("POST", f"/v1/sandboxes/{asked}/fork")["children"][0]
        p.do("POST", f"/v1/sandboxes/{listed}/hibernate")
        for i in open_, asked, child, p.create():
            assert not reaches(p, i, WEB) and not reaches(p, i, "web.example"), i
        assert reaches(p, listed, "web.example") and reaches(p, listed, WILD) and not reaches(p, listed, OTHER)
        for a in p.ask("POST", "/v1/sandboxes", {"template": "base", "egress": "open"}), p.ask("PATCH", f"/v1/sandboxes/{listed}/egress", {"egress": "open"}):
            assert a.status == 403 and "egress_max = list" in a.json["error"], a
        a = p.ask("POST", "/v1/sandboxes", {"template": "base", "egress_allowlist": ["11.9.1.0/24"]})
        assert a.status == 400 and "egress_closed" in a.json["error"], a
        p.do("PATCH", f"/v1/sandboxes/{asked}/egress", {"egress_limits": {"connections": 9}})  # that is no wish for more
        p.do("PATCH", f"/v1/sandboxes/{asked}/egress", {"egress_allowlist": ["web.example"]})
        assert reaches(p, asked, "web.example") and not reaches(p, asked, WEB)
        p.kill9()
        p.config.update(egress_max="off")
        p.start()
        assert not reaches(p, listed, "web.example") and not reaches(p, listed, WILD)
        a = p.ask("POST", "/v1/sandboxes", {"template": "base", "egress_allowlist": ["web.example"]})
        assert a.status == 403 and "egress_max = off" in a.json["error"], a
        assert not reaches(p, p.create(egress="off"), WEB)
    finally:
        p.close()


MANY = f"""
import socket
kept = []
for _ in range(30):
    try:
        kept.append(socket.create_connection(('{WEB}', 9000), 3))
    except OSError:
        break
print(len(kept))
"""
FETCH = f"""
import socket, time
s = socket.create_connection(('{WEB}', 80), 3)
s.sendall(b"GET /big HTTP/1.0\\r\\n\\r\\n")
begun, n = time.monotonic(), 0
while time.monotonic() - begun < 1.5 and (got := s.recv(1 << 20)):
    n += len(got)
print(int(n / (time.monotonic() - begun)))
"""


def number(p, id, code):
    r = p.do("POST", f"/v1/sandboxes/{id}/exec", {"argv": ["python3", "-c", code]})
    assert r["exit_code"] == 0, r
    return int(r["stdout"])


def test_limits_of_a_sandbox_follow_it(p):
    limits = {"connections": 7, "down_kbit": 8000}
    id = p.create(egress_limits=limits)
    assert p.do("GET", f"/v1/sandboxes/{id}/egress")["egress_limits"] == limits
    child = p.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    for i in id, child:
        assert number(p, i, MANY) == 7
        assert number(p, i, FETCH) < 2_000_000  # 1 MB/s and a burst
    p.kill9()
    p.start()
    assert number(p, id, MANY) == 7
    p.do("PATCH", f"/v1/sandboxes/{id}/egress", {"egress_limits": {"connections": 12}})
    assert number(p, id, MANY) == 12 and number(p, child, MANY) == 7
    wait_for("bandwidth without a limit", lambda: number(p, id, FETCH) > 3_000_000)
    p.do("PATCH", f"/v1/sandboxes/{id}/egress", {"egress_limits": None})
    assert number(p, id, MANY) == 30
    assert "egress_limits" not in p.do("GET", f"/v1/sandboxes/{id}/egress")
    for wrong in 5, {"connections": 0}, {"up_kbit": "fast"}, {"down_kbit": 10**12}:
        a = p.ask("PATCH", f"/v1/sandboxes/{id}/egress", {"egress_limits": wrong})
        assert a.status == 400 and "egress_limits" in a.json["error"], a


def test_what_was_reached_is_on_record_with_its_bytes(p):
    id = p.create(egress_allowlist=["web.example"])
    code = "import socket; s = socket.create_connection(('web.example', 80), 3); s.sendall(b'GET /big HTTP/1.0\\r\\nHost: web.example\\r\\n\\r\\n'); " \
           "n = 0\nwhile n < 1000000: n += len(s.recv(65536))\ns.close()"
    assert p.do("POST", f"/v1/sandboxes/{id}/exec", {"argv": ["python3", "-c", code]})["exit_code"] == 0
    assert not reaches(p, id, HOST_PUBLIC, 8080)

    def told(kind, **what):
        events = p.do("GET", f"/v1/sandboxes/{id}/events?tail=200")["events"]
        return [e for e in events if e["type"] == kind and all(e["payload"].get(k) == v for k, v in what.items())]

    wait_for("what was allowed", lambda: told("net.allowed", name="web.example", address=WEB, port=80, proto=6))
    wait_for("what was refused", lambda: told("net.refused", address=HOST_PUBLIC, port=8080, why="closed_range"))
    end = wait_for("the end of the connection", lambda: told("net.closed", name="web.example", address=WEB, port=80), 40)[0]
    assert end["payload"]["down_bytes"] > 1_000_000 and end["payload"]["up_bytes"] > 20
    n = p.do("GET", f"/v1/sandboxes/{id}/egress")
    assert n["down_bytes"] > 1_000_000 and n["down_packets"] > 20 and n["up_packets"] > 10 and n["refused"] >= 1 and n["names"] >= 1
