"""What the server answers is what /openapi.json says: every object has all it must and nothing that is not described."""
import re

TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list,
         "null": type(None)}


class Described:
    """Asks like a Pandad, and compares each answer with the description."""

    def __init__(self, p):
        self.p = p
        self.doc = p.do("GET", "/openapi.json")
        self.seen = set()

    def operation(self, method, path):
        path = path.split("?")[0]
        found = []
        for raw, item in self.doc["paths"].items():
            pattern = re.escape(raw).replace(r"\{rest\}", ".*")
            if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", pattern), path) and method.lower() in item:
                found.append(raw)
        assert found, f"{method} {path} is not described"
        raw = min(found, key=lambda r: r.count("{"))  # literal segments win
        self.seen.add((method, raw))
        return self.doc["paths"][raw][method.lower()]

    def check(self, value, schema, where):
        if "$ref" in schema:
            at = self.doc
            for key in schema["$ref"][2:].split("/"):
                at = at[key]
            return self.check(value, at, f"{where}({schema['$ref'].split('/')[-1]})")
        if "anyOf" in schema:
            if value is None:
                assert {"type": "null"} in schema["anyOf"], f"{where} is null"
                return None
            return self.check(value, schema["anyOf"][0], where)
        kind = schema.get("type")
        if kind is None:
            return None  # anything
        assert isinstance(value, TYPES[kind]) and not (kind in ("integer", "number") and isinstance(value, bool)), \
            f"{where} is {value!r}, not {kind}"
        if kind == "array":
            for i, v in enumerate(value):
                self.check(v, schema["items"], f"{where}[{i}]")
        elif kind == "object" and "properties" in schema:
            missing = set(schema.get("required", ())) - set(value)
            assert not missing, f"{where} lacks {missing}"
            unknown = set(value) - set(schema["properties"])
            assert not unknown, f"{where}: nobody described {unknown}"
            for k, v in value.items():
                self.check(v, schema["properties"][k], f"{where}.{k}")
        elif kind == "object":
            for k, v in value.items():
                self.check(v, schema["additionalProperties"], f"{where}.{k}")
        return None

    def do(self, method, path, body=None):
        op = self.operation(method, path)
        if isinstance(body, dict):
            self.check(body, op["requestBody"]["content"]["application/json"]["schema"], f"{method} {path} request")
        a = self.p.ask(method, path, body)
        where = f"{method} {path}"
        answer = op["responses"].get(str(a.status))
        assert answer and 200 <= a.status < 300, f"{where}: {a}"
        content = answer.get("content", {})
        if not content:
            assert a.body == b"", f"{where}: {a}"
            return None
        (media, what), = content.items()
        assert a.headers["content-type"].split(";")[0] == media, f"{where}: {a.headers}"
        if media != "application/json":
            return a.body
        self.check(a.json, what["schema"], where)
        return a.json

    def refused(self, status, method, path, body=None):
        a = self.p.ask(method, path, body)
        assert a.status == status, a
        self.check(a.json, self.doc["components"]["schemas"]["Error"], f"{method} {path}")


def test_answers_are_as_described(pandad):
    d = Described(pandad)
    d.do("POST", "/v1/volumes", {"name": "v", "size_mb": 16})
    sb = d.do("POST", "/v1/sandboxes", {"template": "base", "ttl_seconds": 600, "metadata": {"a": "b"},
                                        "egress_allowlist": ["a.example"], "volumes": [{"name": "v", "path": "/v"}]})
    s = f"/v1/sandboxes/{sb['id']}"
    for path in ("/v1/sandboxes", s, f"{s}/lifecycle", f"{s}/metrics", "/v1/volumes", "/v1/volumes/v"):
        d.do("GET", path)
    d.do("PATCH", f"{s}/lifecycle", {"ttl_seconds": 900})

    d.do("POST", f"{s}/exec", {"cmd": "echo hi; kill -9 $$"})
    e = d.do("POST", f"{s}/execs", {"cmd": "cat", "stdin": True})
    d.do("GET", f"{s}/execs")
    d.do("GET", f"{s}/execs/{e['id']}")
    d.do("POST", f"{s}/execs/{e['id']}/stdin?eof=1", b"text")
    d.do("GET", f"{s}/execs/{e['id']}/output?follow=1")
    assert d.do("GET", f"{s}/execs/{e['id']}")["exit_code"] == 0

    d.do("PUT", f"{s}/fs?path=/tmp/d/f", b"text")
    assert d.do("GET", f"{s}/fs?path=/tmp/d/f") == b"text"
    d.do("POST", f"{s}/fs/mkdir", {"path": "/tmp/d/e"})
    d.do("POST", f"{s}/fs/rename", {"from": "/tmp/d/f", "to": "/tmp/d/g"})
    d.do("POST", f"{s}/fs/chmod", {"path": "/tmp/d/g", "mode": "0600"})
    d.do("POST", f"{s}/fs/symlink", {"target": "g", "path": "/tmp/d/l"})
    assert len(d.do("GET", f"{s}/fs/dir?path=/tmp/d")["entries"]) == 3
    d.do("GET", f"{s}/fs/stat?path=/tmp/d/l&follow=0")
    d.do("DELETE", f"{s}/fs?path=/tmp/d")

    d.do("GET", "/v1/repl/languages")
    d.do("POST", f"{s}/repl", {"language": "python", "code": "print(1)"})
    r = d.do("POST", f"{s}/repl/sessions", {"language": "python"})
    d.do("GET", f"{s}/repl/sessions")
    d.do("POST", f"{s}/repl/sessions/{r['id']}/run", {"code": "1 + 1"})
    d.do("POST", f"{s}/repl/sessions/{r['id']}/run", {"code": "1 / 0"})
    d.do("DELETE", f"{s}/repl/sessions/{r['id']}")

    d.do("POST", f"{s}/ports", {"port": 8000, "label": "web"})
    d.do("GET", f"{s}/ports")
    d.do("POST", f"{s}/preview-token", {"port": 8000, "paths": ["/a"]})
    d.do("DELETE", f"{s}/ports/8000")

    d.do("POST", f"{s}/pause")
    d.do("POST", f"{s}/resume")
    d.do("POST", f"{s}/hibernate")
    d.do("POST", f"{s}/wake")
    snap = d.do("POST", f"{s}/snapshots", {"name": "n"})
    d.do("GET", "/v1/snapshots")
    d.do("GET", f"/v1/snapshots/{snap['id']}")
    d.do("POST", f"{s}/fork", {"metadata": {"c": "d"}})
    tree = d.do("POST", f"{s}/fork-tree", {"count": 2})
    d.do("POST", f"/v1/sandboxes/{tree['children'][0]['id']}/promote", {"cleanup_siblings": True})

    d.do("POST", f"/v1/sandboxes/{pandad.create()}/save-as-template", {"name": "described"})
    d.do("GET", "/v1/templates/described")
    d.do("DELETE", "/v1/templates/described")

    for path in (f"{s}/logs", f"{s}/events", "/v1/events", "/v1/audit", "/v1/stats/boot", "/v1/templates",
                 "/v1/templates/base", "/v1/templates/builds", "/v1/me", "/v1/me/tokens", "/healthz", "/version",
                 "/v1/version", "/metrics", "/docs", "/openapi.json"):
        d.do("GET", path)
    t = d.do("POST", "/v1/me/tokens", {"label": "x", "scopes": ["sandbox"], "quota": {"sandboxes": 1}})
    d.do("DELETE", f"/v1/me/tokens/{t['prefix']}")
    d.do("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"})
    u = "/v1/sandboxes/" + d.do("POST", "/v1/sandboxes", {"template": "base", "checkpoints": "auto"})["id"]
    point = d.do("POST", f"{u}/checkpoints", {"name": "x"})
    d.do("GET", f"{u}/checkpoints")
    d.do("POST", f"{u}/rewind", {"to": "x"})
    d.do("GET", f"{u}/diff?from={point['id']}&unified=1")
    raced = d.do("POST", f"{u}/race", {"commands": ["true", "false"]})
    d.do("POST", f"{u}/merge", {"child": raced["winner"]["id"], "dry_run": True})
    d.do("DELETE", f"/v1/sandboxes/{raced['winner']['id']}")
    d.do("DELETE", f"{u}/checkpoints/x")
    d.do("DELETE", u)
    d.do("DELETE", f"/v1/snapshots/{snap['id']}")
    d.do("DELETE", s)

    d.refused(404, "GET", s)
    d.refused(404, "GET", "/v1/templates/builds/0123456789abcdef")
    d.refused(400, "POST", "/v1/templates/build")
    d.refused(400, "POST", "/v1/sandboxes", {"template": "nope"})
    d.refused(405, "PUT", "/v1/sandboxes")
    assert len(d.seen) > 60
