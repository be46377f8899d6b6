"""The sandbox object: what it sends, what it makes of the answers."""

import inspect
import json

import pytest

import pandastack
from conftest import BOX, EXEC
from pandastack import APIConnectionError, AsyncSandbox, NotFoundError, Sandbox, ServerError, Snapshot, Volume
from pandastack.exceptions import CommandError, PandastackError

P = "/v1/sandboxes/sb-1"


def test_create_sends_what_was_said_and_nothing_else(server, client):
    Sandbox.create(client=client)
    Sandbox(
        template="code-interpreter",
        ttl_seconds=600,
        persistent=True,
        metadata={"n": 1},
        volumes=["v", {"id": "w", "mount": "/w"}, pandastack.VolumeMount("x", "/x", True)],
        egress_allowlist=[],
        egress="off",
        env={"A": "b"},
        name="n",
        cpu=1,
        memory_mb=256,
        disk_gb=2,
        auto_hibernate_seconds=9,
        idle_seconds=8,
        client=client,
    )
    first, second = [r.json for r in server.asked("POST", "/v1/sandboxes")]
    assert first == {"template": "ubuntu-24.04"}
    assert second == {
        "template": "code-interpreter",
        "ttl_seconds": 600,
        "persistent": True,
        "metadata": {"n": "1"},
        "volumes": [{"name": "v"}, {"id": "w", "mount": "/w"}, {"name": "x", "path": "/x", "read_only": True}],
        "egress_allowlist": [],
        "egress": "off",
        "env": {"A": "b"},
        "name": "n",
        "cpu": 1,
        "memory_mb": 256,
        "disk_gb": 2,
        "auto_hibernate_seconds": 9,
        "idle_seconds": 8,
    }


def test_ttl_zero_is_said_too(server, client):
    Sandbox.create(ttl_seconds=0, client=client)
    assert server.asked()[0].json["ttl_seconds"] == 0


def test_a_snapshot_decides_the_template(server, client):
    snap = Snapshot.from_json({"id": "s-1"})
    Sandbox.from_snapshot(snap, client=client, ttl_seconds=5)
    Sandbox.create(from_snapshot=snap, client=client)
    assert [r.json for r in server.asked()] == [{"from_snapshot": "s-1", "ttl_seconds": 5}, {"from_snapshot": "s-1"}]


def test_attributes(client):
    sb = Sandbox.from_info(client, {**BOX, "something_new": 1, "expires_at": "t", "parent_id": "p"})
    assert (sb.id, sb.template, sb.status, sb.cpu, sb.memory_mb, sb.boot_ms) == ("sb-1", "base", "running", 2, 512, 4)
    assert (sb.isolation, sb.runner, sb.metadata, sb.expires_at, sb.parent_id) == ("user-mode-kernel", "shell", {"a": "b"}, "t", "p")
    assert sb.info.raw["something_new"] == 1 and "sb-1" in repr(sb)


def test_an_old_server_that_sends_the_bare_minimum(client):
    sb = Sandbox.from_info(client, {"id": "x", "metadata": None})
    assert (sb.status, sb.runner, sb.metadata, sb.persistent) == ("unknown", "shell", {}, False)


def test_with_kills_at_the_end(server, client):
    with Sandbox(client=client) as sb:
        assert sb.status == "running"
    assert sb.status == "deleted" and len(server.asked("DELETE")) == 1


def test_with_kills_after_an_exception_and_lets_it_through(server, client):
    with pytest.raises(KeyError):
        with Sandbox.create(client=client):
            raise KeyError("x")
    assert len(server.asked("DELETE")) == 1


@pytest.mark.parametrize("says", [True, False])
def test_with_leaves_a_persistent_one_alone(server, client, says):
    # Even when an older server does not say so in its answer.
    server.on("POST", "/v1/sandboxes", (201, {**BOX, "persistent": says}))
    with Sandbox.create(persistent=True, client=client):
        pass
    assert server.asked("DELETE") == []


def test_one_that_is_gone_can_be_killed(server, client):
    server.on("DELETE", P, (404, {"error": "not found", "code": "sandbox_not_found"}))
    with Sandbox.create(client=client) as sb:
        pass
    assert sb.kill() is False
    sb.close()
    with pytest.raises(NotFoundError):
        client.sandboxes.delete("sb-1")


def test_what_went_wrong_inside_matters_more_than_the_kill(server, client):
    server.on("DELETE", P, (500, {"error": "x"}))
    with pytest.raises(KeyError):
        with Sandbox.create(client=client):
            raise KeyError
    with pytest.raises(ServerError):
        with Sandbox.create(client=client):
            pass


def test_exec_sends_and_reads_everything(server, box):
    server.on("POST", P + "/exec", {**EXEC, "signal": 9, "exit_code": 137, "truncated": True, "oom_killed": True})
    r = box.exec("x", 2.5, cwd="/w", env={"A": 1}, user="u", stdin=b"in")
    want = {"cmd": "x", "timeout_seconds": 2.5, "cwd": "/w", "env": {"A": "1"}, "user": "u", "stdin": "in"}
    assert server.asked()[0].json == want
    assert (r.exit_code, r.signal, r.truncated, r.oom_killed, r.duration_ms, r.output) == (137, 9, True, True, 3, "hi\n")
    box.exec(["ls", "-l"])
    assert server.asked()[1].json == {"argv": ["ls", "-l"]}


def test_stdin_that_is_no_text_and_negative_timeouts_are_refused_here(server, box):
    with pytest.raises(ValueError, match="send_stdin"):
        box.exec("x", stdin=b"\xff")
    with pytest.raises(ValueError, match="0 means no limit"):
        box.exec("x", timeout_seconds=-1)
    assert server.asked() == []


@pytest.mark.parametrize("client_timeout,command,want", [(60, None, 90), (60, 600, 630), (100, 1, 100), (60, 0, None), (None, 5, None)])
def test_the_answer_may_take_as_long_as_the_command(client_timeout, command, want):
    from pandastack._sync.commands import answer_timeout

    assert answer_timeout(client_timeout, command) == want


def test_run_is_a_shell_command(server, box):
    assert box.run("echo hi").stdout == "hi\n"
    assert box.commands.run("echo hi", timeout=5).stdout == "hi\n"
    assert [r.json for r in server.asked()] == [{"cmd": "echo hi"}, {"cmd": "echo hi", "timeout_seconds": 5}]


def test_run_speaks_to_the_interpreter_where_the_template_says_so(server, client):
    box = Sandbox.from_info(client, {**BOX, "runner": "python"})
    path = P + "/repl/sessions/default/run"
    server.on("POST", path, {"stdout": "1\n", "stderr": "", "exit": 0, "duration_ms": 2})
    r = box.run("x = 1; print(x)")
    assert (r.stdout, r.exit_code, r.duration_ms) == ("1\n", 0, 2) and type(r) is pandastack.ExecResult
    assert server.asked()[0].json == {"code": "x = 1; print(x)"}
    server.on("POST", path, {"stdout": "", "stderr": "", "exit": 0, "results": [{"text/plain": "42"}]})
    assert box.run("40 + 2").stdout == "42\n"
    tb = ["Traceback", "ZeroDivisionError: division by zero"]
    server.on("POST", path, {"stdout": "", "stderr": "", "exit": 1, "error": {"name": "ZeroDivisionError", "value": "d", "traceback": tb}})
    r = box.run("1/0")
    assert r.exit_code == 1 and "ZeroDivisionError" in r.stderr
    with pytest.raises(CommandError):
        box.run("1/0", check=True)
    server.on("POST", path, {"stdout": "part", "exit": 124, "error": {"name": "KeyboardInterrupt", "value": "", "traceback": []}})
    r = box.run("while 1: pass", timeout=1)
    assert (r.exit_code, r.timed_out, r.stdout) == (124, True, "part")
    server.on("POST", path, (500, {"error": "cell timeout after 1 s"}))
    r = box.run("while 1: pass", timeout=1)
    assert (r.exit_code, r.timed_out) == (124, True)
    assert server.asked()[-1].json["timeout_ms"] == 1000


@pytest.mark.parametrize(
    "language,begin",
    [("python", "exec python3 -c "), ("py", "exec python3 -c "), ("javascript", "exec node -e "), ("node", "exec node -e "), ("bash", "exec bash -c ")],
)
def test_run_code_is_a_fresh_interpreter(server, box, language, begin):
    code = "a = 'it''s'\nprint(\"$HOME `x`\")"
    box.run_code(code, language=language)
    import shlex

    cmd = server.asked()[0].json["cmd"]
    assert cmd.startswith(begin) and shlex.split(cmd)[-1] == code


def test_long_code_goes_in_as_input(server, box):
    code = "x = '''" + "y" * 100_000 + "'''"
    box.run_code(code)
    assert server.asked()[0].json == {"cmd": "exec python3 -", "stdin": code}


def test_run_code_in_an_unknown_language(box):
    with pytest.raises(ValueError, match="bash, javascript, python"):
        box.run_code("x", language="cobol")


def stream_of(*events, cut=False):
    def answer(r, peer):
        peer.sse()
        raw = b"".join(f"event: {n}\ndata: {d}\n\n".encode() for n, d in events)
        for i in range(0, len(raw), 7):  # borders of chunks fall anywhere
            peer.chunk(raw[i : i + 7])
        if cut:
            peer.cut()
        else:
            peer.end()

    return answer


RUN = (("stdout", '{"chunk":"ä"}'), ("stderr", '{"chunk":"e"}'), ("stdout", '{"chunk":"b"}'))


def test_callbacks_get_the_output_and_the_result_has_it_too(server, box):
    server.on("POST", P + "/exec/stream", stream_of(*RUN, ("exit", '{"exit_code":2,"timed_out":false,"duration_ms":7}')))
    out, err = [], []
    r = box.exec("x", on_stdout=out.append, on_stderr=err.append, timeout_seconds=4)
    assert (out, err) == (["ä", "b"], ["e"])
    assert (r.stdout, r.stderr, r.exit_code, r.duration_ms) == ("äb", "e", 2, 7)
    assert server.asked()[0].json == {"cmd": "x", "timeout_seconds": 4}
    assert box.exec("x", on_stdout=out.append).exit_code == 2
    assert {r.connection for r in server.asked()} == {1}  # a stream read to its end gives its connection back
    assert box.stream("x", on_stdout=out.append).exit_code == 2


def test_a_stream_is_an_iterator(server, box):
    server.on("POST", P + "/exec/stream", stream_of(*RUN, ("exit", '{"exit_code":0}')))
    s = box.stream("x")
    assert [(o.stream, o.text, o.offset) for o in s] == [("stdout", "ä", 0), ("stderr", "e", 0), ("stdout", "b", 2)]
    assert s.exit_code == 0 and s.wait().stdout == "äb"
    with pytest.raises(RuntimeError, match="read already"):
        next(iter(s))


def test_a_stream_without_exit_is_an_error_not_a_success(server, box):
    server.on("POST", P + "/exec/stream", stream_of(*RUN))
    with pytest.raises(APIConnectionError, match="before the command did"):
        box.exec("x", on_stdout=print)
    server.on("POST", P + "/exec/stream", stream_of(*RUN, cut=True))
    with pytest.raises(APIConnectionError):
        box.exec("x", on_stdout=print)


def test_leaving_a_stream_hangs_up(server, box):
    gone = []

    def endless(r, peer):
        peer.sse()
        peer.event("stdout", {"chunk": "x"})
        gone.append(peer.rfile.read(1))  # b"" once the client hung up

    server.on("POST", P + "/exec/stream", endless)
    for _ in box.stream("yes"):
        break
    server.settle()
    assert gone == [b""]


def test_an_error_event(server, box):
    server.on("POST", P + "/exec/stream", stream_of(("error", '{"error":"exec timeout"}')))
    with pytest.raises(pandastack.SandboxTimeout):
        box.exec("x", on_stdout=print)
    server.on("POST", P + "/exec/stream", stream_of(("error", '{"error":"guest died"}')))
    with pytest.raises(ServerError, match="guest died"):
        box.exec("x", on_stdout=print)


@pytest.mark.parametrize(
    "answer",
    [
        {"parent_id": "sb-1", "children": ["c1"], "sandbox": {**BOX, "id": "c1"}, "sandboxes": [{**BOX, "id": "c1"}]},
        {"children": ["c1"]},
        {"children": [{"id": "c1"}]},
        {"sandbox": {"id": "c1"}},
        {"id": "c1"},
        {"items": [{"id": "c1"}]},
    ],
)
def test_a_fork_in_every_known_shape(server, client, answer):
    box = Sandbox.from_info(client, {**BOX, "runner": "python"})
    server.on("POST", P + "/fork", (201, answer))
    child = box.fork()
    assert (child.id, child.template, child.status, child.cpu) == ("c1", "base", "running", 2)
    assert child.client is client and isinstance(child, Sandbox)
    assert server.asked()[0].body == b""


def test_many_forks_at_once(server, box):
    server.on("POST", P + "/fork", (201, {"sandboxes": [{**BOX, "id": f"c{i}"} for i in range(3)]}))
    assert [c.id for c in box.fork(3, metadata={"k": "v"})] == ["c0", "c1", "c2"]
    assert server.asked()[0].json == {"count": 3, "metadata": {"k": "v"}}
    with pytest.raises(ValueError):
        box.fork(0)


def test_a_fork_of_nothing_is_an_error(server, box):
    server.on("POST", P + "/fork", (201, {"children": []}))
    with pytest.raises(PandastackError, match="forked nothing"):
        box.fork()


def test_fork_tree_and_promote(server, box):
    server.on("POST", P + "/fork-tree", (201, {"tree_id": "t1", "children": [{"id": "sb-1"}, {"id": "c2"}], "errors": [{"index": 2, "err": "no"}]}))
    tree = box.fork_tree(3)
    assert [c.id for c in tree] == ["sb-1", "c2"] and tree.tree_id == "t1" and tree.errors[0]["index"] == 2
    server.on("POST", P + "/promote", {"winner": "sb-1", "tree_id": "t1", "deleted": ["c2"]})
    r = tree[0].promote(cleanup_siblings=True)
    assert r.deleted == ["c2"] and r.failures == {}
    assert server.asked()[-1].json == {"cleanup_siblings": True, "tree_id": "t1"}


def test_life(server, box):
    for verb, status in (("pause", "paused"), ("resume", "running"), ("hibernate", "hibernated"), ("wake", "running")):
        server.on("POST", f"{P}/{verb}", (204,) if verb in ("pause", "resume") else {"status": status})
        getattr(box, verb)()
        assert box.status == status
    server.on("GET", P, {**BOX, "status": "failed", "end_reason": "oom"})
    assert box.refresh().end_reason == "oom"
    server.on("GET", P + "/lifecycle", {"ttl_seconds": 5, "persistent": False, "idle_seconds": 1})
    server.on("PATCH", P + "/lifecycle", lambda r, p: {"ttl_seconds": 5, "persistent": True, "idle_seconds": 0, **r.json})
    assert box.lifecycle().ttl_seconds == 5 == box.lifecycle()["ttl_seconds"]
    assert box.set_ttl(9).ttl_seconds == 9 and box.set_persistent(True).persistent
    assert [r.json for r in server.asked("PATCH")] == [{"ttl_seconds": 9}, {"persistent": True}]
    with box:
        pass
    assert server.asked("DELETE") == []


def test_a_snapshot_is_its_id_and_more(server, box, client):
    d = {"id": "s-1", "sandbox_id": "sb-1", "name": "n", "template": "base", "size_bytes": 5, "created_at": "t"}
    server.on("POST", P + "/snapshots", (201, d))
    server.on("GET", "/v1/snapshots", {"snapshots": [d]})
    server.on("GET", "/v1/snapshots/s-1", d)
    server.on("DELETE", "/v1/snapshots/s-1", (204,))
    s = box.snapshot("n")
    assert s == "s-1" == s.id and s.size_bytes == 5 and isinstance(s, str) and type(s.id) is str
    assert client.snapshots.list(sandbox_id="sb-1") == ["s-1"] and client.snapshots.get(s).name == "n"
    assert server.asked("GET")[0].query == {"sandbox_id": "sb-1"}
    client.snapshots.delete(s)


def test_list_get_connect(server, client):
    server.on("GET", "/v1/sandboxes", [BOX])
    assert [s.id for s in Sandbox.list(status="running", metadata={"a": "b c"}, client=client)] == ["sb-1"]
    assert server.asked()[0].query == {"status": "running", "metadata.a": "b c"}
    server.on("GET", "/v1/sandboxes", {"items": []})
    assert client.sandboxes.list() == []
    assert Sandbox.get("sb-1", client=client).id == "sb-1" == Sandbox.connect("sb-1", client=client).id
    with pytest.raises(NotFoundError):
        Sandbox.get("a/b", client=client)
    assert server.asked()[-1].path == "/v1/sandboxes/a%2Fb"


def test_ports_and_urls(server, box, client):
    server.on("GET", P + "/ports", [{"port": 8000, "listening": True, "source": "detected"}, 9000])
    base = server.url.replace("127.0.0.1", "localhost").replace("http://", "")
    assert [p.port for p in box.ports()] == [8000, 9000]
    assert box.preview_url(8000) == f"http://8000-sb-1.{base}"
    assert box.preview_urls() == {8000: f"http://8000-sb-1.{base}", 9000: f"http://9000-sb-1.{base}"}
    assert box.url(8000, "/a?b") == f"{server.url}/v1/sandboxes/sb-1/proxy/8000/a?b"
    server.on("POST", P + "/preview-token", {"url": "/v1/p/tok/", "token": "tok"})
    assert box.signed_preview_url(8000, ttl_seconds=60) == f"{server.url}/v1/p/tok/"
    assert server.asked()[-1].json == {"port": 8000, "ttl_seconds": 60}
    hosted = Sandbox.from_info(pandastack.Client("k", "https://api.example.test"), BOX)
    assert hosted.preview_url(3000) == "https://3000-sb-1.example.test"
    client.preview_host = "pre.test"
    assert box.preview_url(1, "https") == "https://1-sb-1.pre.test"


def test_preview_names(server, client):
    box = Sandbox.from_info(client, {**BOX, "preview_name": "old"})
    base = server.url.replace("127.0.0.1", "localhost").replace("http://", "")
    assert box.preview_name == "old" and box.preview_url(8000) == f"http://8000-old.{base}"
    server.on("GET", P + "/ports", [{"port": 8000, "preview_url": "https://8000-old.pre.test/"}, {"port": 9000, "preview_url": None}])
    assert box.preview_urls() == {8000: "https://8000-old.pre.test/", 9000: f"http://9000-old.{base}"}
    server.on("POST", P + "/preview/rotate", {"preview_name": "new"})
    server.on("GET", P, {**BOX, "preview_name": "new"})
    assert box.rotate_preview() == "new" == box.preview_name


def test_logs_both_ways(server, box):
    server.on("GET", P + "/logs", b"one\r\n  two\n\nlast")
    assert list(box.logs(tail=4)) == ["one", "  two", "", "last"]
    assert server.asked()[0].query == {"tail": "4"}
    server.on("GET", P + "/logs", stream_of(("open", '{"path":"x"}'), ("line", '{"line":"  a\\n"}'), ("line", '{"line":"b"}')))
    assert list(box.logs(follow=True)) == ["  a", "b"]


def test_events_both_ways(server, box, client):
    e = {"time": "t", "sandbox_id": "sb-1", "type": "sandbox.running", "payload": {"pid": 1}}
    server.on("GET", P + "/events", {"events": [e]})
    assert [(x.type, x.payload) for x in box.events(tail=2)] == [("sandbox.running", {"pid": 1})]
    server.on("GET", P + "/events", {"events": None})
    assert list(box.events()) == []
    server.on("GET", "/v1/events", stream_of(("event", '{"type":"vm.died"}')))
    assert [x.type for x in client.events(follow=True)] == ["vm.died"]
    server.on("GET", P + "/metrics", {"pid": 1, "guest": {"load1": 0.5}})
    assert box.metrics()["guest"]["load1"] == 0.5


def test_volumes(server, client):
    v = {"name": "u/1", "size_mb": 20480, "mounted_by": ["x"], "used_bytes": 3}
    asked = []

    def get(r, p):
        asked.append(r)
        return v if len(asked) > 1 else (404, {"error": "none", "code": "volume_not_found"})

    server.on("GET", "/v1/volumes/u%2F1", get)
    server.on("POST", "/v1/volumes", (201, v))
    vol = Volume.get_or_create(name="u/1", size_gb=20, client=client)
    assert server.asked("POST")[0].json == {"name": "u/1", "size_mb": 20480}
    assert vol.mount("/workspace").to_json() == {"name": "u/1", "path": "/workspace"}
    assert vol.mount(read_only=True).to_json() == {"name": "u/1", "read_only": True}
    assert Volume.get_or_create("u/1", client=client).mounted_by == ["x"] and len(server.asked("POST")) == 1
    asked.clear()
    server.on("POST", "/v1/volumes", (409, {"error": "exists", "code": "exists"}))
    assert Volume.get_or_create("u/1", client=client).used_bytes == 3  # another one was faster
    server.on("GET", "/v1/volumes", [v])
    assert [x.name for x in Volume.list(client=client)] == ["u/1"]
    server.on("DELETE", "/v1/volumes/u%2F1", (204,))
    vol.delete()


def test_volumes_grow_and_are_copied(server, box, client):
    v = {"name": "v", "size_mb": 1024, "kind": "volume", "source": None, "used_bytes": 7}
    snap = {"name": "s", "size_mb": 1024, "kind": "snapshot", "source": "v"}
    server.on("GET", "/v1/volumes/v", v)
    server.on("PATCH", "/v1/volumes/v", {**v, "size_mb": 2048})
    server.on("POST", "/v1/volumes/v/snapshots", (201, snap))
    server.on("GET", "/v1/volumes/v/snapshots", [snap])
    server.on("POST", "/v1/volumes", (201, {**v, "name": "w", "source": "s"}))
    vol = Volume.get("v", client=client)
    assert vol.resize(size_gb=2) is vol and vol.size_mb == 2048
    assert server.asked("PATCH")[0].json == {"size_mb": 2048}
    assert vol.refresh().size_mb == 1024 and vol.used_bytes == 7
    s = vol.snapshot("s")
    assert (s.kind, s.source, s.mount("/s").read_only) == ("snapshot", "v", True) and server.asked("POST")[0].json == {"name": "s"}
    assert [x.name for x in vol.snapshots()] == ["s"]
    vol.snapshot()
    assert server.asked("POST")[1].json == {}
    w = s.clone("w", size_gb=3)
    assert w.source == "s" and server.asked("POST")[2].json == {"name": "w", "size_mb": 3072, "from": "s"}
    server.on("GET", "/v1/volumes", [v, snap])
    assert len(client.volumes.list(snapshots=True)) == 2 and server.asked("GET")[-1].query == {"snapshots": "1"}

    mounts = [{"name": "w", "path": "/w", "read_only": False, "copy": False}]
    server.on("POST", P + "/volumes", (201, mounts))
    server.on("DELETE", P + "/volumes/w", (204,))
    assert box.attach_volume(w, "/w") == mounts and box.volumes == mounts
    assert server.asked("POST")[3].json == {"name": "w", "path": "/w"}
    box.attach_volume("w", mount="/x", readonly=True)
    assert server.asked("POST")[4].json == {"name": "w", "path": "/x", "read_only": True}
    box.detach_volume(w, force=True)
    assert box.volumes == [] and server.asked("DELETE")[0].query == {"force": "1"}


def test_tokens_templates_me(server, client):
    server.on("GET", "/v1/me/tokens", {"items": [{"prefix": "pds_1", "label": "l", "created_at": "t"}]})
    server.on("POST", "/v1/me/tokens", {"prefix": "pds_2", "token": "pds_2secret"})
    server.on("DELETE", "/v1/me/tokens/pds_2", (204,))
    assert client.tokens.list()[0].prefix == "pds_1"
    t = client.tokens.create("l", scopes=["sandbox"])
    assert t.token == "pds_2secret" and "secret" not in repr(t)
    client.tokens.revoke(t.prefix)
    client.tokens.revoke(t.prefix, cascade=False)
    assert server.asked()[-1].query == {"cascade": "0"}
    client.tokens.create(scopes=["exec", "sandbox:sb-1"], ttl_seconds=60)
    assert server.asked()[-1].json == {"scopes": ["exec", "sandbox:sb-1"], "ttl_seconds": 60}
    server.on("POST", "/v1/me/tokens/pds_2/rotate", {"prefix": "pds_3", "token": "pds_3secret"})
    assert client.tokens.rotate("pds_2").token == "pds_3secret"
    server.on("GET", "/v1/templates", [{"name": "base", "aliases": ["ubuntu-24.04"], "runner": "shell"}])
    assert client.templates.list()[0].aliases == ["ubuntu-24.04"]
    server.on("GET", "/v1/me", {"tenant": "t"})
    assert client.me()["tenant"] == "t"
    server.on("GET", "/healthz", {"status": "ok"})
    assert client.health() == {"status": "ok"}


def test_a_template_build(server, client, tmp_path):
    (tmp_path / "app.py").write_bytes(b"print(1)\r\n")
    server.on("POST", "/v1/templates/build", (202, {"id": "b1", "name": "t", "status": "queued"}))
    build = client.templates.build("t", dockerfile="FROM x\n", context={"src/app.py": tmp_path / "app.py"}, cpu=2)
    r = server.asked()[0]
    boundary = r.headers["content-type"].split("boundary=")[1].encode()
    parts = r.body.split(b"--" + boundary)
    assert parts[-1] == b"--\r\n" and len(parts) == 7
    assert b'name="src/app.py"; filename="app.py"' in r.body and b"\r\n\r\nprint(1)\r\n\r\n" in r.body
    status = iter(["running", "done"])
    server.on("GET", "/v1/templates/builds/b1", lambda r, p: {"id": "b1", "name": "t", "status": next(status)})
    assert client.templates.wait_for_build(build.id, interval=0.001).status == "done"
    server.on("GET", "/v1/templates/builds/b1", {"id": "b1", "name": "t", "status": "failed", "error": "no init"})
    with pytest.raises(pandastack.TemplateBuildError, match="no init"):
        client.templates.wait_for_build("b1")
    server.on("GET", "/v1/templates/builds/b1/logs", stream_of(("message", '{"line":"  a"}'), ("message", "raw"), ("done", "end")))
    assert list(client.templates.build_logs("b1")) == ["  a", "raw"]
    with pytest.raises(ValueError, match="exactly one"):
        client.templates.build("t")


def test_a_chart_is_data(server, box):
    line = {"type": "line", "title": "t", "x_label": "time (s)", "x_unit": "s", "elements": [{"label": "a", "points": [[1, 2]]}]}
    both = {"type": "superchart", "title": None, "elements": [line, {"type": "pie", "elements": [{"label": "b", "angle": 90}]}]}
    mime = "application/vnd.pandastack.chart.v1+json"
    server.on("POST", P + "/repl/sessions/k1/run", {"exit": 0, "results": [
        {mime: json.dumps(line)}, {mime: json.dumps(both), "application/vnd.plotly.v1+json": '{"data": []}', "text/latex": "$x$"}]})
    r = box.code_context("k1").run_code("plot()")
    chart = r.results[0].chart
    assert (chart.type, chart.title, chart.x_unit, chart.y_label) == ("line", "t", "s", None)
    assert chart.elements[0].label == "a" and chart.elements[0].points == [[1, 2]]
    assert [c.type for c in r.chart.elements] == ["line", "pie"] and r.chart.elements[1].elements[0].angle == 90
    assert r.results[1].plotly == {"data": []} and r.results[1].latex == "$x$" and r.results[1].bokeh is None
    assert r.results[1]._repr_mimebundle_()[mime] == both and not hasattr(chart, "_private")


def test_code_contexts(server, box):
    server.on("POST", P + "/repl/sessions", (201, {"id": "k1", "language": "python"}))
    rich = {
        "stdout": "o",
        "stderr": "",
        "exit": 0,
        "duration_ms": 4,
        "results": [
            {"type": "text/html", "data": "<b>"},
            {"text/plain": "<Figure>", "image/png": "iVBORw0KGgo=", "application/json": '{"a": [1]}', "image/svg+xml": "<svg/>"},
        ],
    }
    server.on("POST", P + "/repl/sessions/k1/run", rich)
    server.on("DELETE", P + "/repl/sessions/k1", (404, {"error": "gone"}))
    with box.create_code_context("py") as ctx:
        r = ctx.run_code("plot()", timeout_seconds=2)
        assert (r.text, r.html, r.svg, r.json, r.png) == ("<Figure>", "<b>", "<svg/>", {"a": [1]}, b"\x89PNG\r\n\x1a\n")
        assert r.results[1].png == r.png and r.results[1].json == {"a": [1]} and r.results[0].text is None and r.ok
        assert r.results[1]._repr_mimebundle_()["application/json"] == {"a": [1]}
        assert r.chart is None and r.results[1].plotly is None
    assert server.asked()[0].json == {"language": "python"} and server.asked()[1].json == {"code": "plot()", "timeout_ms": 2000}
    server.on("POST", P + "/repl/sessions/k1/run", {"exit": 1, "stderr": "tb", "error": "ValueError: bad: x\ny", "traceback": ["a", "b"]})
    r = box.repl().execute("raise")
    assert (r.error.name, r.error.value, r.error.traceback, r.ok) == ("ValueError", "bad: x\ny", ["a", "b"], False)
    server.on("POST", P + "/repl/sessions/k1/run", {"exit": 1, "error": "Traceback (most\n  File\nKeyError: 'k'"})
    r = box.repl().execute("raise")
    assert (r.error.name, r.error.value, len(r.error.traceback)) == ("KeyError", "'k'", 3)
    server.on("POST", P + "/repl/sessions/k1/run", (500, {"error": "cell timeout after 30s"}))
    r = ctx.run_code("while 1: pass")
    assert (r.timed_out, r.exit_code, r.ok, r.stderr) == (True, 124, False, "cell timeout after 30s\n")
    server.on("POST", P + "/repl/sessions/k1/run", (500, {"error": "guest died"}))
    with pytest.raises(ServerError):
        ctx.run_code("x")
    server.on("POST", P + "/repl/sessions/k1/interrupt", (204,))
    ctx.interrupt()
    server.on("GET", P + "/repl/sessions", [{"id": "default", "language": "python"}])
    assert [c.id for c in box.code_contexts()] == ["default"]


def test_a_cell_as_it_runs(server, box):
    server.on(
        "POST",
        P + "/repl/sessions/k/run/stream",
        stream_of(
            ("stdout", '{"chunk":"a"}'),
            ("result", '{"text/plain":"1"}'),
            ("error", '{"name":"E","value":"v","traceback":["t1\\n","t2\\n"]}'),
            ("exit", '{"exit":1,"duration_ms":5}'),
        ),
    )
    out, results = [], []
    r = box.code_context("k").run_code("x", on_stdout=out.append, on_result=results.append)
    assert (out, results[0].text, r.stdout, r.text, r.exit_code) == (["a"], "1", "a", "1", 1)
    assert str(r.error) == "t1\nt2" and r.stderr == "t1\nt2\n"


def test_both_clients_have_the_same_surface():
    for name in pandastack.__all__:
        if not name.startswith("Async"):
            continue
        a, s = getattr(pandastack, name), getattr(pandastack, name[5:])
        public = [n for n in vars(a) if not n.startswith("_")]
        assert public == [n for n in vars(s) if not n.startswith("_")]
        for n in public:
            f = inspect.unwrap(getattr(a, n))
            if inspect.isfunction(f) or inspect.ismethod(f):
                pa, ps = (list(inspect.signature(x).parameters) for x in (f, getattr(s, n)))
                assert pa == ps, (name, n)
    assert list(inspect.signature(AsyncSandbox).parameters) == list(inspect.signature(Sandbox).parameters)
    assert list(inspect.signature(Sandbox.create).parameters) == list(inspect.signature(Sandbox).parameters)
