"""Requests that are wrong, odd or too many; what every answer carries; lists, lifecycle, quotas, streams."""
import http.client
import json
import os
import re
import shutil
import socket
import struct
import threading
import time

import pytest

from conftest import wait_for
from server import Answer, patience


def error(a, status, code, says=""):
    """An error has one shape, with a status, a stable word and a sentence."""
    assert a.status == status, a
    assert a.headers["content-type"].startswith("application/json")
    j = a.json
    assert j["code"] == code and isinstance(j["error"], str) and says in j["error"], a
    assert j["request_id"] == a.headers["x-request-id"]
    return j


# ---- what every answer carries ----

def test_request_ids_are_echoed_or_made(pandad):
    assert pandad.ask("GET", "/healthz", headers={"X-Request-Id": "abc-123"}).headers["x-request-id"] == "abc-123"
    made = {pandad.ask("GET", "/healthz").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3 and all(len(i) == 16 and int(i, 16) >= 0 for i in made)
    for bad in "x" * 65, 'a"b', "a b":
        assert pandad.ask("GET", "/healthz", headers={"X-Request-Id": bad}).headers["x-request-id"] != bad
    error(pandad.ask("GET", "/nope", headers={"X-Request-Id": "mine"}), 404, "not_found")


def test_browsers_may_ask(pandad):
    a = pandad.ask("OPTIONS", "/v1/sandboxes", token="", headers={
        "Origin": "http://example.test", "Access-Control-Request-Method": "POST"})
    assert a.status == 204 and a.body == b""
    assert a.headers["access-control-allow-origin"] == "*" and a.headers["access-control-max-age"] == "600"
    assert {"GET", "POST", "PUT", "PATCH", "DELETE"} <= set(a.headers["access-control-allow-methods"].split(", "))
    assert "Authorization" in a.headers["access-control-allow-headers"]
    for path, token in ("/v1/sandboxes", None), ("/v1/sandboxes", ""), ("/nope", None):
        assert pandad.ask("GET", path, token=token).headers["access-control-allow-origin"] == "*"
    for path in "/healthz", "/version", "/metrics":  # any site a user visits would see them
        assert "access-control-allow-origin" not in pandad.ask("GET", path, token="").headers


def test_without_tokens_only_this_host_is_let_in(new_pandad):
    p = new_pandad(stub_auth="yes")
    for host, origin, status in ((f"localhost:{p.port}", None, 200), (f"127.0.0.1:{p.port}", f"http://127.0.0.1:{p.port}", 200),
                                 (f"rebound.example:{p.port}", None, 403), (f"localhost:{p.port}", "https://evil.example", 403),
                                 (f"localhost:{p.port}", "null", 403)):
        headers = {"Host": host} | ({"Origin": origin} if origin else {})
        assert p.ask("GET", "/v1/me", token="", headers=headers).status == status, (host, origin)
    p.stop()
    p.config["listen"] = f"0.0.0.0:{p.port}"
    p.start(wait=False)
    assert p.ended() == 1 and "with stub_auth everyone who reaches" in p.tail()
    p.config["listen"] = f"127.0.0.1:{p.port}"
    p.start()


def test_a_token_comes_as_header_or_in_the_query(pandad):
    for word in "Bearer", "bearer", "BEARER":
        assert pandad.ask("GET", "/v1/me", token="", headers={"Authorization": f"{word} {pandad.key}"}).status == 200
    assert pandad.ask("GET", f"/v1/events?access_token={pandad.key}", token="").status == 200
    a = pandad.ask("GET", f"/v1/me?access_token={pandad.key}", token="")
    assert a.status == 401 and "event streams only" in a.json["detail"]
    a = pandad.ask("GET", "/v1/me", token="")
    assert a.json["detail"] == "missing bearer token" and a.headers["www-authenticate"] == "Bearer"
    assert pandad.ask("GET", "/v1/me", token="nonsense").json["detail"] == "invalid api token"
    assert pandad.ask("GET", "/v1/me", token="", headers={"Authorization": f"Basic {pandad.key}"}).status == 401


def test_wrong_paths_and_methods(pandad):
    error(pandad.ask("GET", "/v1/nope"), 404, "not_found")
    error(pandad.ask("GET", "/v1/sandboxes/x/nope"), 404, "not_found")
    assert pandad.ask("GET", "/v1/volumes/%zz").status == 400
    assert pandad.ask("GET", "/v1/volumes/a%00b").status == 400
    a = pandad.ask("PUT", "/v1/sandboxes")
    error(a, 405, "method_not_allowed")
    assert set(a.headers["allow"].split(", ")) == {"GET", "POST"}
    assert pandad.ask("GET", "/mcp").headers["allow"] == "POST"
    assert pandad.ask("GET", "/v1/sandboxes/").json == pandad.ask("GET", "/v1/sandboxes").json
    assert pandad.ask("HEAD", "/healthz", token="").status == 200


# ---- bodies ----

@pytest.mark.parametrize("body", [b"{", b"nope", b'{"a":}', b"\xff\xfe", b'{"a":1}x', b"[1,2]", b'"text"', b"5", b"null",
                                  b'{"a":"\xff"}', b"{" * 3000, b"[" * 100000])
def test_what_is_no_json_object_is_400(pandad, body):
    error(pandad.ask("POST", "/v1/sandboxes", body), 400, "bad_json")
    assert pandad.do("GET", "/v1/sandboxes") == []


def test_fields_of_a_wrong_type_are_named(pandad):
    for body, field in [({"template": 5}, "template"), ({"ttl_seconds": "60"}, "ttl_seconds"),
                        ({"ttl_seconds": -1}, "ttl_seconds"), ({"metadata": {"a": 1}}, "'a'"),
                        ({"persistent": 1}, "persistent"), ({"volumes": "v"}, "volumes"),
                        ({"egress_allowlist": [5]}, "egress_allowlist"), ({"env": {"A B": "x"}}, "'A B'")]:
        error(pandad.ask("POST", "/v1/sandboxes", body), 400, "bad_request", field)
    error(pandad.ask("POST", "/v1/volumes", {}), 400, "bad_request", "name")
    error(pandad.ask("POST", "/v1/volumes", {"name": "a/b"}), 400, "bad_request", "name")
    error(pandad.ask("POST", "/v1/volumes", {"name": "v", "size_mb": 65537}), 400, "bad_request", "size_mb")
    error(pandad.ask("POST", "/v1/me/tokens", {"scopes": ["root"]}), 400, "bad_request", "scopes")
    error(pandad.ask("POST", "/v1/me/tokens", {"scopes": "admin"}), 400, "bad_request", "scopes")
    error(pandad.ask("POST", "/v1/me/tokens", {"quota": {"sandboxes": -1}}), 400, "bad_request", "quota.sandboxes")
    error(pandad.ask("GET", "/v1/events?tail=x"), 400, "bad_request", "tail")
    error(pandad.ask("GET", "/v1/audit?since=yesterday"), 400, "bad_request", "since")
    error(pandad.ask("GET", "/v1/audit?limit=1001"), 400, "bad_request", "limit")
    assert pandad.do("GET", "/v1/sandboxes") == [] and pandad.do("GET", "/v1/volumes") == []


def test_an_unknown_template_names_the_known_ones(pandad):
    error(pandad.ask("POST", "/v1/sandboxes", {"template": "nope"}), 400, "template_not_found", "base")
    error(pandad.ask("GET", "/v1/templates/nope"), 404, "template_not_found")
    error(pandad.ask("POST", "/v1/sandboxes", {"from_snapshot": "nope", "template": "base"}), 404, "snapshot_not_found")


@pytest.mark.parametrize("status, code, sent", [
    (400, "bad_request", b"NONSENSE\r\n\r\n"),
    (400, "bad_request", b"GET / HTTP/1.1\n\n"),
    (505, "bad_request", b"GET / HTTP/9.9\r\nHost: x\r\n\r\n"),
    (431, "head_too_large", b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 40000),
    (400, "bad_request", b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
])
def test_what_is_no_request_is_answered_like_one(pandad, status, code, sent):
    with socket.create_connection(("127.0.0.1", pandad.port), timeout=180) as s:
        s.sendall(sent.replace(b"KEY", pandad.key.encode()))
        r = http.client.HTTPResponse(s)
        r.begin()
        a = Answer(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
    error(a, status, code)
    assert a.headers["access-control-allow-origin"] == "*"
    assert "X-Request-Id" in a.headers["access-control-expose-headers"]


def test_bodies_have_a_limit(pandad):
    big = json.dumps({"template": "base", "x": "y" * (4 << 20)})
    error(pandad.ask("POST", "/v1/sandboxes", big), 413, "too_large")

    def chunks():
        for _ in range(80):
            yield b'{"x":"' + b"y" * 65536
    a = None
    try:
        a = pandad.ask("POST", "/v1/sandboxes", chunks())
    except OSError:
        pass  # cut while it was still sending: as good
    assert a is None or a.status == 413 and a.json["code"] == "too_large"
    assert pandad.ask("GET", "/healthz").status == 200


def test_the_sdks_empty_text_bodies_are_no_options(pandad):
    text = {"Content-Type": "text/plain;charset=UTF-8", "Content-Length": "0"}
    id = pandad.create()
    base = f"/v1/sandboxes/{id}"
    assert pandad.ask("POST", f"{base}/pause", b"", headers=text).status == 204
    assert pandad.ask("POST", f"{base}/resume", b"", headers=text).status == 204
    assert pandad.ask("POST", f"{base}/snapshots", b"", headers=text).status == 201
    assert len(pandad.ask("POST", f"{base}/fork", b"", headers=text).json["children"]) == 1
    assert pandad.ask("POST", f"{base}/hibernate", b"", headers=text).json == {"status": "hibernated"}
    assert pandad.ask("POST", f"{base}/wake", b"", headers=text).json == {"status": "running"}
    assert pandad.ask("POST", f"{base}/wake", b"", headers=text).json == {"status": "running"}, "fine when it runs"


def test_unknown_fields_are_ignored_and_null_is_absent(pandad):
    sb = pandad.do("POST", "/v1/sandboxes", {"template": "ubuntu-24.04", "egress_mbps": 5, "x": {"y": [1]}, "cpu": 64,
                                             "memory_mb": 99999, "ttl_seconds": None, "metadata": None})
    assert sb["template"] == "base" and sb["cpu"] < 64 and sb["memory_mb"] < 99999 and sb["ttl_seconds"] is None


# ---- sandboxes ----

def test_a_sandbox_shows_what_the_contract_says(pandad):
    sb = pandad.do("POST", "/v1/sandboxes", {"template": "base", "ttl_seconds": 600, "name": "n",
                                             "metadata": {"a": "b", "secret.key": "hidden"}, "egress": "off"})
    doc = pandad.do("GET", "/openapi.json")["components"]["schemas"]["Sandbox"]
    assert set(doc["required"]) <= set(sb) <= set(doc["properties"])
    assert sb["metadata"] == {"a": "b", "name": "n"} and sb["egress_allowlist"] == [] and sb["isolation"]
    for path in f"/v1/sandboxes/{sb['id']}", "/v1/sandboxes":
        assert b"hidden" not in pandad.ask("GET", path).body
    assert pandad.do("GET", "/v1/sandboxes?metadata.secret.key=hidden") == []
    got = pandad.do("GET", f"/v1/sandboxes/{sb['id']}")
    assert {k: v for k, v in got.items() if k != "status"} == {k: v for k, v in sb.items() if k != "status"}


def test_list_filters(pandad):
    a = pandad.create(metadata={"k": "v 1+2", "x": "1"})
    b = pandad.create(metadata={"k": "other", "x": "1"})
    child = pandad.do("POST", f"/v1/sandboxes/{a}/fork", {})["children"][0]
    pandad.do("POST", f"/v1/sandboxes/{b}/pause", expect=204)

    def ids(query):
        return [s["id"] for s in pandad.do("GET", f"/v1/sandboxes?{query}")]
    assert ids("") == [child, b, a], "newest first"
    assert ids("status=paused") == [b]
    assert ids("status=nope") == []
    assert ids("template=base&status=running") == [child, a]
    assert ids("template=nope") == []
    assert ids(f"parent_id={a}") == [child]
    assert ids("metadata.k=v+1%2B2") == [child, a], "a fork has its parent's metadata"
    assert ids("metadata.k=other&metadata.x=1") == [b]
    assert ids("metadata.k=other&metadata.x=2") == []
    assert ids("metadata.absent=") == []


def test_lifecycle_changes_what_is_named_and_nothing_else(pandad):
    id = pandad.create(ttl_seconds=500)
    path = f"/v1/sandboxes/{id}/lifecycle"
    assert pandad.do("PATCH", path, {"persistent": True})["ttl_seconds"] == 500
    l = pandad.do("PATCH", path, {"ttl_seconds": 900})
    assert l["ttl_seconds"] == 900 and l["persistent"] is True and l["expires_at"]
    sb = pandad.do("GET", f"/v1/sandboxes/{id}")
    assert (sb["ttl_seconds"], sb["persistent"], sb["expires_at"]) == (900, True, l["expires_at"])
    assert pandad.do("PATCH", path, {})["ttl_seconds"] == 900
    l = pandad.do("PATCH", path, {"ttl_seconds": 0})
    assert l["ttl_seconds"] == 0 and l["expires_at"] is None and l["persistent"] is True
    error(pandad.ask("PATCH", path, {"ttl_seconds": -5}), 400, "bad_request", "ttl_seconds")
    error(pandad.ask("PATCH", path, {"persistent": "no"}), 400, "bad_request", "persistent")


def test_a_ttl_ends_persistent_sandboxes_too_and_can_be_moved(pandad):
    short = pandad.create(ttl_seconds=1, persistent=True)

    def move():  # a busy host may be too late for one
        id = pandad.create(ttl_seconds=1)
        return pandad.ask("PATCH", f"/v1/sandboxes/{id}/lifecycle", {"ttl_seconds": 600}).status == 200 and id
    moved = wait_for("one that is moved in time", move)
    wait_for("the end of its ttl", lambda: pandad.ask("GET", f"/v1/sandboxes/{short}").status == 404, 10)
    assert pandad.do("GET", f"/v1/sandboxes/{moved}")["status"] == "running"
    error(pandad.ask("POST", f"/v1/sandboxes/{short}/exec", {"cmd": "true"}), 404, "sandbox_not_found")
    error(pandad.ask("DELETE", f"/v1/sandboxes/{short}"), 404, "sandbox_not_found")


def test_fork_trees_are_promoted(pandad):
    parent = pandad.create(metadata={"a": "b"})
    tree = pandad.do("POST", f"/v1/sandboxes/{parent}/fork-tree", {"count": 3, "metadata": {"c": "d"}}, expect=201)
    ids = [c["id"] for c in tree["children"]]
    assert len(set(ids)) == 3 and tree["parent_id"] == parent
    for child in tree["children"]:
        assert child["metadata"]["fork_tree_id"] == child["fork_tree_id"] == tree["tree_id"]
        assert child["metadata"]["a"] == "b" and child["metadata"]["c"] == "d" and child["parent_id"] == parent
    error(pandad.ask("POST", f"/v1/sandboxes/{parent}/promote", {"cleanup_siblings": True}), 400, "bad_request")
    error(pandad.ask("POST", f"/v1/sandboxes/{ids[0]}/promote", {"cleanup_siblings": True, "tree_id": "x"}), 400,
          "bad_request", "tree_id")
    r = pandad.do("POST", f"/v1/sandboxes/{ids[1]}/promote", {"cleanup_siblings": True})
    assert r["winner"] == ids[1] and r["tree_id"] == tree["tree_id"] and set(r["deleted"]) == {ids[0], ids[2]}
    assert {s["id"] for s in pandad.do("GET", "/v1/sandboxes")} == {parent, ids[1]}
    for bad in 0, 17, "2", 1.5:
        error(pandad.ask("POST", f"/v1/sandboxes/{parent}/fork-tree", {"count": bad}), 400, "bad_request", "count")


def test_a_create_that_nobody_waits_for_is_undone(new_pandad):
    p = new_pandad(start=False)
    shutil.rmtree(p.data / "store")  # the first create bakes: there is time to leave
    p.start()
    body = b'{"template":"base","persistent":true}'
    s = socket.create_connection(("127.0.0.1", p.port))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + p.key.encode() +
              b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_for("its record", lambda: p.do("GET", "/v1/sandboxes"))
    assert p.do("GET", "/v1/sandboxes")[0]["status"] == "creating"
    s.close()
    ends = wait_for("its end", lambda: [e for e in p.do("GET", "/v1/events")["events"] if e["type"] == "sandbox.deleted"])
    assert ends[0]["payload"]["reason"] == "its client went away"
    assert p.do("GET", "/v1/sandboxes") == []


# ---- limits ----

def test_quotas_hold_for_the_tenant(pandad):
    token = pandad.do("POST", "/v1/me/tokens", {"tenant": "small", "quota": {
        "sandboxes": 2, "snapshots": 1, "volumes_mb": 100}})["token"]

    def ask(*args):
        return pandad.ask(*args, token=token)
    try:
        me = ask("GET", "/v1/me").json
        assert me["quota"]["sandboxes"] == 2 and me["usage"]["sandboxes"] == 0 and me["scopes"] == ["sandbox"]
        id = ask("POST", "/v1/sandboxes", {"template": "base"}).json["id"]
        error(ask("POST", f"/v1/sandboxes/{id}/fork", {"count": 2}), 429, "quota_exceeded")
        assert ask("POST", f"/v1/sandboxes/{id}/fork", {}).status == 201
        error(ask("POST", "/v1/sandboxes", {"template": "base"}), 429, "quota_exceeded")
        assert ask("POST", f"/v1/sandboxes/{id}/snapshots").status == 201
        error(ask("POST", f"/v1/sandboxes/{id}/snapshots"), 429, "quota_exceeded")
        assert ask("POST", "/v1/volumes", {"name": "a", "size_mb": 60}).status == 201
        error(ask("POST", "/v1/volumes", {"name": "b", "size_mb": 60}), 429, "quota_exceeded")
        usage = ask("GET", "/v1/me").json["usage"]
        assert {k: usage[k] for k in me["quota"] if k not in ("requests_per_s", "disk_mb")} == {"sandboxes": 2, "memory_mb": me["usage"]["memory_mb"] + 2 * ask(
            "GET", f"/v1/sandboxes/{id}").json["memory_mb"], "snapshots": 1, "volumes": 1, "volumes_mb": 60}
        # A token made with it has the same limits, not none.
        other = ask("POST", "/v1/me/tokens", {}).json["token"]
        error(pandad.ask("POST", "/v1/sandboxes", {"template": "base"}, token=other), 429, "quota_exceeded")
    finally:
        for sb in ask("GET", "/v1/sandboxes").json:
            ask("DELETE", f"/v1/sandboxes/{sb['id']}")
        for s in ask("GET", "/v1/snapshots").json["snapshots"]:
            ask("DELETE", f"/v1/snapshots/{s['id']}")
        for v in ask("GET", "/v1/volumes").json:
            ask("DELETE", f"/v1/volumes/{v['name']}")


def test_a_quota_of_the_disk_counts_what_is_really_there(pandad):
    token = pandad.do("POST", "/v1/me/tokens", {"tenant": "diskful", "quota": {"disk_mb": 64}})["token"]
    ask = lambda *args, **kw: pandad.ask(*args, token=token, **kw)
    try:
        me = ask("GET", "/v1/me").json
        assert me["quota"]["disk_mb"] == me["limits"]["disk_mb"] == 64 < pandad.do("GET", "/v1/me")["limits"]["disk_mb"]
        id = ask("POST", "/v1/sandboxes", {"template": "base"}).json["id"]
        assert ask("POST", "/v1/volumes", {"name": "thin", "size_mb": 1024}).status == 201, "it takes next to nothing"
        r = ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "head -c 80000000 /dev/urandom >/root/f && sync"})
        assert r.status == 200 and r.json["exit_code"] == 0, r
        wait_for("it to be counted", lambda: ask("GET", "/v1/me").json["usage"]["disk_mb"] >= 64)
        for method, path, body in (("POST", "/v1/sandboxes", {"template": "base"}), ("POST", f"/v1/sandboxes/{id}/fork", {}),
                                   ("POST", f"/v1/sandboxes/{id}/snapshots", {}), ("POST", "/v1/volumes", {"name": "b", "size_mb": 60}),
                                   ("POST", f"/v1/sandboxes/{id}/save-as-template", {"name": "mine"})):
            error(ask(method, path, body), 429, "quota_exceeded")
        assert ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "rm /root/f && sync"}).status == 200, "what is there goes on"
        wait_for("room again", lambda: ask("POST", "/v1/volumes", {"name": "b", "size_mb": 60}).status == 201)
        assert "pandastack_disk_tenants_bytes" in pandad.do("GET", "/metrics").decode()
    finally:
        for sb in ask("GET", "/v1/sandboxes").json:
            ask("DELETE", f"/v1/sandboxes/{sb['id']}")
        for v in ask("GET", "/v1/volumes").json:
            ask("DELETE", f"/v1/volumes/{v['name']}")


def at_once(p, n, method, path, token="", body=""):
    """The answers to n requests that are sent in one piece: however busy the host is, they come in the same moment."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    head += f"Authorization: Bearer {token}\r\n" if token else ""
    found = []
    with socket.create_connection(("127.0.0.1", p.port), timeout=180) as s, s.makefile("rb") as f:
        s.sendall(f"{head}\r\n{body}".encode() * n)
        for _ in range(n):
            status = int(f.readline().split()[1])
            headers = http.client.parse_headers(f)
            found.append(Answer(status, headers, f.read(int(headers["content-length"]))))
    return found


def test_requests_have_a_rate(pandad):
    token = pandad.do("POST", "/v1/me/tokens", {"tenant": "fast", "quota": {"requests_per_s": 5}})["token"]
    refused = [a for a in at_once(pandad, 40, "GET", "/v1/me", token) if a.status == 429]
    assert 10 <= 40 - len(refused) < 40
    error(refused[0], 429, "rate_limited")
    assert refused[-1].headers.get_all("retry-after") == ["1"]
    assert pandad.ask("GET", "/v1/me").status == 200, "others are not held up"
    assert pandad.ask("GET", "/healthz", token="").status == 200
    wait_for("the next second", lambda: pandad.ask("GET", "/v1/me", token=token).status == 200, 5)


def test_the_rate_of_the_host_and_stub_mode(new_pandad):
    p = new_pandad(rate_per_second=10, rate_burst=20, stub_auth="yes")
    statuses = [a.status for a in at_once(p, 60, "GET", "/v1/me")]
    assert statuses[:20] == [200] * 20 and 429 in statuses
    assert p.ask("GET", "/metrics", token="").status == 200
    time.sleep(0.2)
    me = wait_for("room", lambda: (lambda a: a.status == 200 and a.json)(p.ask("GET", "/v1/me", token="")))
    assert me["auth_method"] == "stub" and me["tenant"] == "local" and "admin" in me["scopes"]
    wait_for("a refusal", lambda: p.ask("GET", "/v1/me", token="pds_" + "0" * 32).status == 401)
    p.config.update(rate_per_second=0)
    p.stop()
    p.start()


# ---- streams ----

class Sse:
    def __init__(self, p, path):
        self.c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=180)
        self.c.request("GET", path, headers={"Authorization": f"Bearer {p.key}", "Accept": "text/event-stream"})
        self.r = self.c.getresponse()
        assert self.r.status == 200 and self.r.getheader("content-type") == "text/event-stream"
        assert self.r.getheader("cache-control") == "no-cache"

    def next(self):
        """(name, data) of the next event; None at the end."""
        name, data = None, None
        while True:
            line = self.r.readline()
            if not line:
                return None
            assert not line.endswith(b"\r\n")
            if line == b"\n" and data is not None:
                return name, json.loads(data)
            if line.startswith(b"event: "):
                name = line[7:-1].decode()
            elif line.startswith(b"data: "):
                data = line[6:]

    def close(self):
        self.c.close()


def test_events_are_replayed_and_followed_to_the_end(pandad):
    id = pandad.create()
    s = Sse(pandad, f"/v1/sandboxes/{id}/events?follow=1")
    every = Sse(pandad, "/v1/events?follow=1&tail=0")
    name, ev = s.next()
    assert name == "event" and ev["type"] == "sandbox.running" and ev["sandbox_id"] == id and ev["time"].endswith("Z")
    assert ev["payload"]["boot_ms"] >= 0
    pandad.do("POST", f"/v1/sandboxes/{id}/pause", expect=204)
    assert s.next()[1]["type"] == "sandbox.paused"
    pandad.do("DELETE", f"/v1/sandboxes/{id}", expect=204)
    assert s.next()[1]["type"] == "sandbox.deleted"
    assert s.next() is None, "nothing comes after that"
    assert [every.next()[1]["type"] for _ in range(2)] == ["sandbox.paused", "sandbox.deleted"]
    every.close()
    s.close()


def test_consoles_are_read_and_followed(pandad):
    id = pandad.create()
    a = pandad.ask("GET", f"/v1/sandboxes/{id}/logs")
    assert a.status == 200 and a.headers["content-type"].startswith("text/plain")
    s = Sse(pandad, f"/v1/sandboxes/{id}/logs?follow=1")
    log = pandad.run / "machines" / id / "console.log"
    with open(log, "ab") as f:  # as the machine would
        f.write(b"one\ntw")
        f.flush()
        assert s.next() == ("line", {"line": "one\n"})
        f.write(b"o\n\xff\n")
        f.flush()
        assert s.next() == ("line", {"line": "two\n"})
        assert s.next() == ("line", {"line": "\ufffd\n"})
    assert pandad.ask("GET", f"/v1/sandboxes/{id}/logs?tail=2").body == b"two\n\xff\n"
    assert pandad.ask("GET", f"/v1/sandboxes/{id}/logs?tail=0").body == b""
    late = Sse(pandad, f"/v1/sandboxes/{id}/logs?follow=true&tail=1")
    assert late.next() == ("line", {"line": "\ufffd\n"})
    pandad.do("DELETE", f"/v1/sandboxes/{id}", expect=204)
    assert s.next() is None and late.next() is None


def test_followers_who_leave_leave_nothing(pandad):
    def fds():
        return len(os.listdir(f"/proc/{pandad.process.pid}/fd"))
    id = pandad.create()
    pandad.sh(id, "true")
    before = fds()
    streams = [Sse(pandad, f"/v1/sandboxes/{id}/{what}?follow=1") for what in ("events", "logs") for _ in range(20)]
    assert fds() >= before + 30  # other connections may have been closed meanwhile
    for s in streams:
        s.close()
    for _ in range(5):
        pandad.do("POST", f"/v1/sandboxes/{id}/pause", expect=204)
        pandad.do("POST", f"/v1/sandboxes/{id}/resume", expect=204)
    wait_for("their connections to be closed", lambda: fds() <= before + 5)


EVENTS = 24000


def test_followers_do_not_hold_up_the_end(new_pandad):
    p = new_pandad()
    id = p.create()
    streams = [Sse(p, f"/v1/sandboxes/{id}/events?follow=1&tail=0"), Sse(p, f"/v1/sandboxes/{id}/logs?follow=1"),
               Sse(p, f"/v1/sandboxes/{id}/fs/watch?path=/tmp")]
    assert streams[2].next()[0] == "ready"
    began = time.monotonic()
    p.stop()
    assert time.monotonic() - began < 5 * patience()
    assert [s.next() for s in streams] == [None] * 3, "ended, not cut"
    p.start()


def test_a_follower_who_does_not_read_loses_events_and_is_told(pandad):
    def rss_kib():
        with open(f"/proc/{pandad.process.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
    id = pandad.create()
    auth = {"Authorization": f"Bearer {pandad.key}"}
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", pandad.port))
    s.settimeout(180)
    s.sendall(f"GET /v1/events?follow=1&tail=0 HTTP/1.1\r\nHost: x\r\nAuthorization: {auth['Authorization']}\r\n\r\n".encode())
    assert b"200 OK" in s.recv(300)
    # A promotion of nobody over nobody costs little and is an event. So many that no buffer takes them.
    one = (f"POST /v1/sandboxes/{id}/promote HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
           f"Authorization: {auth['Authorization']}\r\n\r\n" "{}").encode()
    c = socket.create_connection(("127.0.0.1", pandad.port), timeout=180)
    before = rss_kib()
    for _ in range(EVENTS // 200):
        c.sendall(one * 200)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 200 or not answers.endswith(b"}"):
            answers += c.recv(1 << 20)
    grown = rss_kib() - before
    text, end = b"", time.monotonic() + 20 * patience()
    while not (told := re.search(rb"event: dropped\ndata: (.*)\n", text)):
        assert time.monotonic() < end, f"nobody said that events were lost; last seen: {text[-300:]}"
        text = text[-1000:] + s.recv(1 << 20)
    assert 0 < json.loads(told[1])["count"] < EVENTS
    with open(f"/proc/{pandad.process.pid}/maps") as f:
        # The address sanitizer keeps what was freed.
        assert "libasan" in f.read() or grown < 4096, "the events of one who does not read pile up"
    c.close()
    s.close()


# ---- about the server ----

def test_metrics_are_in_the_format_of_prometheus(pandad):
    id = pandad.create()
    pandad.ask("GET", "/v1/sandboxes/nope")
    pandad.do("DELETE", f"/v1/sandboxes/{id}", expect=204)
    a = pandad.ask("GET", "/metrics", token="")
    assert a.headers["content-type"].startswith("text/plain; version=0.0.4")
    values, types = {}, {}
    for line in a.body.decode().splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            assert name not in types
            types[name] = kind
        elif not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert name not in values, "a series is there once"
            values[name] = float(value)
            family = name.split("{")[0]
            assert any(family == t or family in (t + "_bucket", t + "_sum", t + "_count") for t in types), line
    assert values['pandastack_http_requests_total{method="POST",route="/v1/sandboxes",status="201"}'] >= 1
    assert values['pandastack_http_requests_total{method="GET",route="/v1/sandboxes/{id}",status="404"}'] >= 1
    assert values["pandastack_sandbox_creates_total"] >= 1
    assert values["pandastack_sandbox_boot_duration_seconds_count"] >= 1
    assert 'pandastack_sandboxes{state="running"}' in values and "pandastack_hibernation_total" in values
    key = 'pandastack_http_request_duration_seconds_%s{method="POST",route="/v1/sandboxes"%s}'
    assert values[key % ("bucket", ',le="+Inf"')] == values[key % ("count", "")]
    assert id not in a.body.decode() and pandad.key not in a.body.decode()


def test_version_health_and_the_description(pandad):
    assert pandad.ask("GET", "/healthz", token="").json["status"] == "ok"
    v = pandad.ask("GET", "/v1/version", token="").json
    assert v["service"] == "pandad" and v["semver"] and v["commit"] and v["isolation"]
    assert pandad.ask("GET", "/version", token="").json == v
    page = pandad.ask("GET", "/docs", token="")
    assert page.headers["content-type"].startswith("text/html") and b"/v1/sandboxes/{id}/fork-tree" in page.body
    assert pandad.ask("GET", "/openapi.json", token="").json["openapi"] == "3.1.0"


def test_use_is_shown_without_waking_anybody(pandad):
    id = pandad.create()
    m = pandad.do("GET", f"/v1/sandboxes/{id}/metrics")
    assert m["pid"] > 0 and m["host_rss_bytes"] > 0 and m["threads"] > 0 and m["guest"]["mem_total"] > 0
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    m = pandad.do("GET", f"/v1/sandboxes/{id}/metrics")
    assert m["pid"] == 0 and m["guest"] is None and m["host_rss_bytes"] == 0
    assert pandad.do("GET", f"/v1/sandboxes/{id}")["status"] == "hibernated"


def test_looking_keeps_nobody_alive_but_asking_does(pandad):
    idle = round(2 * patience())
    looked, asked = pandad.create(idle_seconds=idle), pandad.create(idle_seconds=idle)
    base = f"/v1/sandboxes/{looked}"

    def look():
        pandad.ask("POST", f"/v1/sandboxes/{asked}/exec", {"cmd": "true"})
        return {pandad.ask("GET", base + p).status for p in ("", "/lifecycle", "/metrics", "/logs", "/events")} == {404}
    wait_for("the end of one that is only looked at", look, 60)
    assert pandad.do("GET", f"/v1/sandboxes/{asked}")["status"] == "running"


def test_boot_statistics_count_creates(pandad):
    for _ in range(3):
        pandad.create()
    s = pandad.do("GET", "/v1/stats/boot?limit=2")
    assert s["total_samples"] >= 3 and len(s["recent"]) == 2
    assert s["overall"]["min_ms"] <= s["overall"]["p50_ms"] <= s["overall"]["p99_ms"] <= s["overall"]["max_ms"]
    assert s["by_template"]["base"]["count"] >= 3


# ---- agents ----

def rpc(p, path, method, params=None, **more):
    return p.ask("POST", path, dict({"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}}, **more))


def test_mcp_speaks_json_rpc(pandad):
    r = rpc(pandad, "/mcp", "initialize", {"protocolVersion": "2099-01-01"}).json
    assert r["id"] == 7 and r["result"]["protocolVersion"] == "2099-01-01"
    assert r["result"]["serverInfo"]["name"] == "pandastack"
    assert rpc(pandad, "/v1/mcp", "initialize").json["result"]["protocolVersion"] == "2025-03-26"
    assert rpc(pandad, "/mcp", "ping").json["result"] == {}
    assert pandad.ask("POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}).status == 202
    assert pandad.ask("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "result": {}}).status == 202  # an answer is taken and not answered
    for id in None, {}, [1]:
        a = pandad.ask("POST", "/mcp", {"jsonrpc": "2.0", "id": id, "method": "ping"})
        assert a.status == 400 and a.json["error"]["code"] == -32600
    for method in "GET", "DELETE":  # no stream of our own, no sessions
        a = pandad.ask(method, "/mcp")
        assert a.status == 405 and a.headers["allow"] == "POST"
    a = rpc(pandad, "/mcp", "nope")
    assert a.status == 200 and a.json["error"]["code"] == -32601
    a = pandad.ask("POST", "/mcp", b"{")
    assert a.status == 400 and a.json["error"]["code"] == -32700
    a = pandad.ask("POST", "/mcp", [{"jsonrpc": "2.0", "id": 1, "method": "ping"}])
    assert a.status == 400 and a.json["error"]["code"] == -32600
    assert rpc(pandad, "/mcp", "tools/call", {"name": "nope"}).json["error"]["code"] == -32602
    assert pandad.ask("POST", "/mcp", b" " * ((1 << 20) + 1)).status == 413
    names = {t["name"] for t in rpc(pandad, "/mcp", "tools/list").json["result"]["tools"]}
    assert {"create_sandbox", "list_sandboxes", "delete_sandbox", "run_command", "read_file", "write_file", "list_dir",
            "list_templates"} == names


def test_mcp_tools_work(pandad):
    def call(at, name, **args):
        r = rpc(pandad, at, "tools/call", {"name": name, "arguments": args}).json["result"]
        assert r["content"][0]["type"] == "text"
        return r["content"][0]["text"], r["isError"]
    sb = json.loads(call("/mcp", "create_sandbox", template="base", ttl_seconds=300, metadata={"by": "mcp"})[0])
    id, one = sb["id"], f"/v1/sandboxes/{sb['id']}/mcp"
    assert json.loads(call("/mcp", "list_sandboxes")[0])[0]["metadata"] == {"by": "mcp"}
    text, failed = call("/mcp", "run_command", sandbox_id=id, command="echo out; exit 3")
    assert json.loads(text)["exit_code"] == 3 and json.loads(text)["stdout"] == "out\n" and not failed
    assert call(one, "shell", command="echo out") == ("out\n", False)
    text, failed = call(one, "shell", command="echo out; echo err >&2; exit 3")
    assert failed and text.startswith("out\n") and "[stderr]\nerr\n" in text and "exit code: 3" in text
    text, failed = call(one, "shell", command="sleep 100", timeout_ms=300)
    assert failed and "timed out" in text
    for where, extra in (one, {}), ("/mcp", {"sandbox_id": id}):
        assert json.loads(call(where, "write_file", path="/workspace/d/f", content="text\n", **extra)[0])["bytes"] == 5
        assert call(where, "read_file", path="/workspace/d/f", **extra) == ("text\n", False)
        assert call(where, "write_file", path="/workspace/d/empty", content="", **extra)[1] is False
        assert call(where, "read_file", path="/workspace/d/empty", **extra) == ("", False)
        names = [e["name"] for e in json.loads(call(where, "list_dir", path="/workspace/d", **extra)[0])["entries"]]
        assert sorted(names) == ["empty", "f"]
        text, failed = call(where, "read_file", path="/nope", **extra)
        assert failed and json.loads(text)["code"] == "file_not_found"
        assert call(where, "read_file", path="relative", **extra)[1]
    pandad.sh(id, "printf '\\377\\0' >/tmp/bin; head -c 5000000 /dev/zero >/tmp/big")
    assert call(one, "read_file", path="/tmp/bin")[0].splitlines()[1] == "/wA="
    text, failed = call(one, "read_file", path="/tmp/big")
    assert failed and "too_large" in text
    assert "base" in call("/mcp", "list_templates")[0]
    assert call("/mcp", "delete_sandbox", sandbox_id=id) == ("deleted", False)
    assert pandad.ask("GET", f"/v1/sandboxes/{id}").status == 404


def test_mcp_tools_have_a_rate(pandad):
    token = pandad.do("POST", "/v1/me/tokens", {"tenant": "busy"})["token"]
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_sandboxes"}})
    codes = [a.json.get("error", {}).get("code") for a in at_once(pandad, 70, "POST", "/mcp", token, call)]
    assert codes[:60] == [None] * 60 and -32000 in codes


# ---- the audit log ----

def test_every_change_is_on_record_once_and_survives(new_pandad):
    p = new_pandad()
    id = p.create()
    p.do("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "true"})
    p.ask("GET", f"/v1/sandboxes/{id}")
    p.ask("DELETE", f"/v1/sandboxes/{id}?access_token=x", headers={"X-Request-Id": "the-delete"})
    p.stop()
    p.start()
    entries = p.do("GET", "/v1/audit")["entries"]
    mine = [(e["method"], e["path"], e["status"]) for e in reversed(entries)]
    assert mine == [("POST", "/v1/sandboxes", 201), ("POST", f"/v1/sandboxes/{id}/exec", 200),
                    ("DELETE", f"/v1/sandboxes/{id}", 204)]
    assert entries[0]["request_id"] == "the-delete" and entries[0]["actor"] == p.key[:12]
    assert p.do("GET", "/v1/audit?since=2100-01-01T00:00:00Z")["entries"] == []
    assert len(p.do("GET", "/v1/audit?limit=1")["entries"]) == 1


def test_many_at_once_get_their_own_answers(pandad):
    id = pandad.create()
    wrong = []

    def one(n):
        for k in range(10):
            a = pandad.ask("GET", f"/v1/sandboxes/{id}", headers={"X-Request-Id": f"{n}-{k}"})
            if a.status != 200 or a.headers["x-request-id"] != f"{n}-{k}" or a.json["id"] != id:
                wrong.append(a)
    threads = [threading.Thread(target=one, args=(n,)) for n in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong
