"""Tenants: no call with one tenant's token reveals or touches anything of another's. The whole table is walked."""
import http.client
import itertools
import json

import pytest

STRANGERS = itertools.count(1)

BODIES = {  # what a route wants before it looks further: a refusal must not depend on it
    "/v1/volumes/{name}": {"size_mb": 64},
    "exec": {"cmd": "echo leaked"}, "exec/stream": {"cmd": "echo leaked"}, "execs": {"cmd": "sleep 1000"},
    "fs/mkdir": {"path": "/tmp/by-another"}, "fs/rename": {"from": "/tmp/mine", "to": "/tmp/stolen"},
    "fs/chmod": {"path": "/tmp/mine", "mode": "0777"}, "fs/symlink": {"target": "/tmp/mine", "path": "/tmp/l"},
    "repl": {"language": "python", "code": "print(1)"}, "repl/sessions": {"language": "python"},
    "ports": {"port": 8000}, "preview-token": {"port": 8000}, "preview": {"port": 8000},
    "lifecycle": {"ttl_seconds": 1, "persistent": False}, "promote": {"cleanup_siblings": True},
    "fork": {"count": 1}, "fork-tree": {"count": 2}, "snapshots": {"name": "stolen"},
}
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}


class Belongings:
    """What a tenant can have, one of each."""

    def __init__(self, p, name):
        self.p, self.name = p, name
        self.token = p.do("POST", "/v1/me/tokens", {"tenant": name, "label": f"label-of-{name}"})["token"]
        self.prefix = self.token[:12]

    def fill(self):
        name = self.name
        self.volume = f"volume-of-{name}"
        self.do("POST", "/v1/volumes", {"name": self.volume, "size_mb": 64})
        self.sandbox = self.do("POST", "/v1/sandboxes", {
            "template": "base", "metadata": {"whose": f"metadata-of-{name}"}, "volumes": [{"name": self.volume}]})["id"]
        self.snapshot = self.do("POST", f"/v1/sandboxes/{self.sandbox}/snapshots", {"name": f"snapshot-of-{name}"})["id"]
        self.do("PUT", f"/v1/sandboxes/{self.sandbox}/fs?path=/tmp/mine", b"content-of-" + name.encode())
        self.exec = self.do("POST", f"/v1/sandboxes/{self.sandbox}/execs", {"cmd": "exec sleep 100000"})["id"]
        self.session = self.do("POST", f"/v1/sandboxes/{self.sandbox}/repl/sessions", {"language": "python"})["id"]
        # The token of an old hand may be shown in messages; these words may not.
        self.secrets = [self.sandbox, self.snapshot, self.volume, self.token, f"label-of-{name}",
                        f"metadata-of-{name}", f"snapshot-of-{name}", f"content-of-{name}"]

    def do(self, method, path, body=None, **kw):
        return self.p.do(method, path, body, token=self.token, **kw)

    def state(self):
        base = f"/v1/sandboxes/{self.sandbox}"
        execs = self.do("GET", f"{base}/execs")
        return {
            "sandboxes": self.do("GET", "/v1/sandboxes"),
            "snapshots": self.do("GET", "/v1/snapshots"),
            "volumes": [{k: v for k, v in x.items() if k != "used_bytes"} for x in self.do("GET", "/v1/volumes")],
            "tokens": self.do("GET", "/v1/me/tokens"),
            "ports": self.do("GET", f"{base}/ports"),
            "files": self.do("POST", f"{base}/exec", {"cmd": "ls -l --time-style=full-iso /tmp/mine; ls /tmp"})["stdout"],
            "content": self.do("GET", f"{base}/fs?path=/tmp/mine"),
            "running": [x["id"] for x in execs if x["running"] and x["detached"]],
            "sessions": sorted(x["id"] for x in self.do("GET", f"{base}/repl/sessions")),
            "ttl": self.do("GET", f"{base}/lifecycle")["ttl_seconds"],
        }

    def give_back(self):
        for s in self.do("GET", "/v1/snapshots")["snapshots"]:
            self.do("DELETE", f"/v1/snapshots/{s['id']}")
        for sb in self.do("GET", "/v1/sandboxes"):
            self.do("DELETE", f"/v1/sandboxes/{sb['id']}")
        for v in self.do("GET", "/v1/volumes"):
            self.do("DELETE", f"/v1/volumes/{v['name']}")
        self.p.do("DELETE", f"/v1/me/tokens/{self.prefix}")


@pytest.fixture
def ours(pandad):
    b = Belongings(pandad, "ours")
    try:
        b.fill()
        yield b
    finally:
        b.give_back()


@pytest.fixture
def stranger(pandad):
    token = pandad.do("POST", "/v1/me/tokens", {"tenant": f"stranger-{next(STRANGERS)}"})["token"]
    yield token
    pandad.do("DELETE", f"/v1/me/tokens/{token[:12]}")


def walk(p, b):
    """(method, path with our ids, raw path, needs a token) of every operation there is."""
    ids = {"id": b.sandbox, "snapshot": b.snapshot, "exec": b.exec, "session": b.session, "port": "8000",
           "rest": "x", "prefix": b.prefix, "build": "0" * 16, "token": "eA.eA", "checkpoint": "0" * 36}
    doc = p.do("GET", "/openapi.json")
    for raw, item in doc["paths"].items():
        path = raw
        for name, value in ids.items():
            path = path.replace("{%s}" % name, value)
        path = path.replace("{name}", b.volume if "volumes" in raw else "base")
        assert "{" not in path, f"a new parameter: {raw}"
        for method, op in item.items():
            yield method.upper(), path, raw, op.get("security") != []


def ask(p, method, path, raw, token):
    tail = raw.split("{id}/", 1)[-1]
    body = BODIES.get(tail, {}) if method in ("POST", "PUT", "PATCH") else None
    if raw.endswith("/mcp"):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = UPGRADE if tail in ("exec/pty", "exec/ws", "ssh") else None
    query = "?path=/tmp/mine&port=8000" if "/fs" in raw else ""
    return p.ask(method, path + query, body, token=token, headers=headers, timeout=20)


def says_nothing(answer, b):
    text = answer.body.decode(errors="replace") + json.dumps(answer.headers)
    for secret in b.secrets:
        # A refusal may repeat the id that it was asked for.
        if answer.status == 404 and secret in (b.sandbox, b.snapshot, b.volume):
            continue
        assert secret not in text, f"{answer} tells {secret}"


def test_a_stranger_meets_nothing_on_any_route(pandad, ours, stranger):
    before = ours.state()
    seen = 0
    # Lists first: later, a stranger's own audit log has the paths it asked for.
    for method, path, raw, guarded in sorted(walk(pandad, ours), key=lambda x: "{" in x[2]):
        if not guarded or raw in ("/v1/sandboxes", "/v1/volumes", "/v1/me/tokens") and method == "POST":
            continue
        a = ask(pandad, method, path, raw, stranger)
        says_nothing(a, ours)
        if "{" in raw and "/templates/" not in raw:
            assert a.status == 404, f"{method} {raw}: {a}"
        elif "/templates/" in raw:
            assert method == "GET" and a.status in (200, 404) or a.status in (400, 403, 404), f"{method} {raw}: {a}"
        else:
            assert a.status < 500 or a.status == 501, f"{method} {raw}: {a}"
        seen += 1
    assert seen >= 80
    assert ours.state() == before


def test_without_a_token_or_with_a_wrong_one_everything_is_401(pandad, ours):
    wrong = "pds_" + "0" * 32
    for method, path, raw, guarded in walk(pandad, ours):
        if not guarded:
            continue
        for token in "", wrong, "pds_local_dev_token", ours.token[:-1] + ("0" if ours.token[-1] != "0" else "1"):
            a = ask(pandad, method, path, raw, token)
            assert a.status == 401, f"{method} {raw}: {a}"
            if method == "HEAD":
                continue  # has no body
            assert a.json["error"] == "unauthorized" and a.json["code"] == "unauthorized" and a.json["detail"]
            says_nothing(a, ours)


def test_what_belongs_to_another_cannot_be_named_in_a_body(pandad, ours, stranger):
    def refused(method, path, body, *statuses):
        a = pandad.ask(method, path, body, token=stranger)
        assert a.status in statuses, a
        return a

    refused("POST", "/v1/sandboxes", {"from_snapshot": ours.snapshot}, 404)
    refused("POST", "/v1/sandboxes", {"template": "base", "volumes": [{"name": ours.volume}]}, 404)
    refused("POST", "/v1/sandboxes", {"template": "base", "volumes": [{"name": ours.volume, "read_only": True}]}, 404)
    refused("POST", "/v1/me/tokens", {"tenant": "ours"}, 403)
    refused("POST", "/v1/me/tokens", {"tenant": "local"}, 403)
    refused("POST", "/v1/me/tokens", {"scopes": ["admin"]}, 403)
    refused("POST", "/v1/me/tokens", {"quota": {"sandboxes": 1000}}, 403)
    for tool, args in (("run_command", {"command": "cat /tmp/mine"}), ("read_file", {"path": "/tmp/mine"}),
                       ("write_file", {"path": "/tmp/mine", "content": "x"}), ("list_dir", {"path": "/tmp"}),
                       ("delete_sandbox", {})):
        a = refused("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                                     "params": {"name": tool, "arguments": dict(args, sandbox_id=ours.sandbox)}}, 200)
        assert a.json["result"]["isError"] is True and "sandbox_not_found" in a.json["result"]["content"][0]["text"]
    assert pandad.do("GET", "/v1/sandboxes", token=stranger) == []
    # The same name is free for everybody.
    assert pandad.do("POST", "/v1/volumes", {"name": ours.volume, "size_mb": 16}, token=stranger)["mounted_by"] == []
    pandad.do("DELETE", f"/v1/volumes/{ours.volume}", token=stranger)
    assert ours.do("GET", f"/v1/sandboxes/{ours.sandbox}")["status"] == "running"


def test_events_and_audit_are_ones_own(pandad, ours, stranger):
    mine = pandad.do("POST", "/v1/sandboxes", {"template": "base"}, token=stranger)["id"]
    pandad.do("DELETE", f"/v1/sandboxes/{mine}", token=stranger)
    events = pandad.do("GET", "/v1/events?tail=1000", token=stranger)["events"]
    assert events and {e["sandbox_id"] for e in events} == {mine}
    tenant = pandad.do("GET", "/v1/me", token=stranger)["tenant"]
    entries = pandad.do("GET", "/v1/audit", token=stranger)["entries"]
    assert entries and {e["workspace"] for e in entries} == {tenant}
    assert [e["method"] for e in entries] == ["DELETE", "POST"]
    # An admin sees all of it, and no token in any path.
    everything = pandad.do("GET", "/v1/audit?limit=1000")["entries"]
    assert {tenant, "ours"} <= {e["workspace"] for e in everything}
    assert "access_token" not in json.dumps(everything) and stranger not in json.dumps(everything)


def test_live_events_are_ones_own(pandad, ours, stranger):
    c = http.client.HTTPConnection("127.0.0.1", pandad.port, timeout=20)
    c.request("GET", f"/v1/events?follow=1&access_token={stranger}")
    r = c.getresponse()
    assert r.status == 200
    ours.do("POST", f"/v1/sandboxes/{ours.sandbox}/pause")
    ours.do("POST", f"/v1/sandboxes/{ours.sandbox}/resume")
    mine = pandad.do("POST", "/v1/sandboxes", {"template": "base"}, token=stranger)["id"]
    assert r.readline() == b"event: event\n"
    assert json.loads(r.readline()[6:])["sandbox_id"] == mine, "the first that comes"
    c.close()
    pandad.do("DELETE", f"/v1/sandboxes/{mine}", token=stranger)


def test_a_token_can_be_revoked_by_its_tenant_and_is_dead_at_once(pandad, ours, stranger):
    child = pandad.do("POST", "/v1/me/tokens", {"label": "child"}, token=stranger)
    assert child["tenant"] == pandad.do("GET", "/v1/me", token=stranger)["tenant"] and child["scopes"] == ["sandbox"] and "token" in child
    listed = pandad.do("GET", "/v1/me/tokens", token=stranger)["items"]
    assert {t["prefix"] for t in listed} == {stranger[:12], child["prefix"]}
    assert "token" not in listed[0]
    assert pandad.ask("GET", "/v1/me", token=child["token"]).status == 200
    assert pandad.ask("DELETE", f"/v1/me/tokens/{ours.prefix}", token=stranger).status == 404
    pandad.do("DELETE", f"/v1/me/tokens/{child['prefix']}", token=stranger, expect=204)
    assert pandad.ask("GET", "/v1/me", token=child["token"]).status == 401
    assert pandad.ask("DELETE", f"/v1/me/tokens/{child['prefix']}", token=stranger).status == 404
    # The way back in must stay.
    a = pandad.ask("DELETE", f"/v1/me/tokens/{pandad.key[:12]}")
    assert a.status == 409 and a.json["code"] == "conflict"


def test_tokens_are_on_record_only_as_hashes(new_pandad):
    p = new_pandad()
    token = p.do("POST", "/v1/me/tokens", {"label": "x"})["token"]
    p.kill9()
    key = p.data / "admin.key"
    assert key.stat().st_mode & 0o777 == 0o600 and key.read_text() == p.key + "\n"
    for file in p.data.glob("*"):
        if file.is_file() and file != key:
            content = file.read_bytes()
            assert token.encode() not in content and p.key.encode() not in content, file
    p.start()
    assert p.ask("GET", "/v1/me", token=token).status == 200
