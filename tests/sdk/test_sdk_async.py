"""The asyncio client: the same rules over its own transport, real async iterators, safe cancellation."""

import asyncio
import io
import threading

import pytest

from conftest import BOX, EXEC, frame
from pandastack import (
    APIConnectionError,
    APITimeoutError,
    AsyncClient,
    AsyncSandbox,
    AsyncVolume,
    NotFoundError,
    SandboxTimeout,
    ServerError,
    set_default_async_client,
)
from pandastack import _ws
from pandastack._async import commands
from test_sdk_commands import Log
from test_sdk_files import Disk
from test_sdk_terminal import shell

P = "/v1/sandboxes/sb-1"


def run(work):
    async def bounded():
        return await asyncio.wait_for(work, 20)

    return asyncio.run(bounded())


@pytest.fixture
def aclient(server):
    return AsyncClient(api_key="pds_test", api_url=server.url, timeout=10)


@pytest.fixture
def abox(aclient):
    return AsyncSandbox.from_info(aclient, BOX)


def test_the_three_ways_to_make_one(server, aclient):
    async def go():
        async with AsyncSandbox("agent", client=aclient) as sb:
            assert (await sb.exec("echo hi")).stdout == "hi\n"
            assert (await sb.run("echo hi")).ok
        assert sb.status == "deleted"
        sb = await AsyncSandbox.create(persistent=True, client=aclient)
        async with sb:
            pass
        sb = await AsyncSandbox(client=aclient)
        assert await sb.kill() is True
        with pytest.raises(RuntimeError, match="not created yet"):
            AsyncSandbox(client=aclient).id

    run(go())
    assert len(server.asked("POST", "/v1/sandboxes")) == 3 and len(server.asked("DELETE")) == 2
    assert {r.connection for r in server.asked()} == {1}


def test_many_at_once_on_one_loop(server, abox):
    gate = threading.Barrier(20, timeout=10)

    def answer(r, peer):
        gate.wait()  # all twenty must be in the server at the same time
        return {**EXEC, "stdout": r.json["cmd"]}

    server.on("POST", P + "/exec", answer)

    async def go():
        for _ in range(2):
            results = await asyncio.gather(*(abox.exec(f"c{i}") for i in range(20)))
            assert [r.stdout for r in results] == [f"c{i}" for i in range(20)]

    run(go())
    assert len({r.connection for r in server.asked()}) == 20


def test_a_client_outlives_its_loop(server, abox):
    for _ in range(2):
        assert run(abox.exec("x")).stdout == "hi\n"
    assert [r.connection for r in server.asked()] == [1, 2]


def test_a_cancelled_request_does_not_leave_its_answer_to_the_next(server, abox):
    arrived = threading.Event()
    hung_up = threading.Event()

    def slow(r, peer):
        if r.json["cmd"] == "slow":
            arrived.set()
            assert peer.rfile.read(1) == b""  # the end: that is how a server learns to stop the command
            hung_up.set()
            return None
        return {**EXEC, "stdout": r.json["cmd"]}

    server.on("POST", P + "/exec", slow)

    async def go():
        task = asyncio.ensure_future(abox.exec("slow"))
        await asyncio.get_running_loop().run_in_executor(None, arrived.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.get_running_loop().run_in_executor(None, hung_up.wait, 10)
        assert (await abox.exec("next")).stdout == "next"

    run(go())


def test_timeouts(server):
    server.on("GET", "/v1/me", lambda r, peer: peer.rfile.read(1) and None)

    async def go():
        async with AsyncClient("k", server.url, timeout=0.1) as c:
            with pytest.raises(APITimeoutError):
                await c.me()

    run(go())
    assert len(server.asked()) == 1


@pytest.mark.parametrize("method,again", [("GET", True), ("DELETE", True), ("POST", False)])
def test_what_may_be_repeated_is(server, aclient, method, again):
    server.on("GET", "/v1/version", {})

    def dies(r, peer):
        return peer.cut() if r.connection == 1 else {}

    server.on(method, "/v1/x", dies)

    async def go():
        await aclient.version()
        if again:
            await aclient.request(method, "/x")
        else:
            with pytest.raises(APIConnectionError, match="unknown whether"):
                await aclient.request(method, "/x")

    run(go())
    assert len(server.asked(method, "/v1/x")) == (2 if again else 1)


def test_a_connection_closed_meanwhile_is_not_used_for_a_post(server, aclient, abox):
    async def go():
        await aclient.request("GET", "/sandboxes/sb-1")
        server.drop_all()
        sock = aclient.transport._idle[0].conn.writer.get_extra_info("socket")
        for _ in range(200):
            if aclient.transport._idle[0].conn.stale():
                break
            await asyncio.sleep(0.01)
        assert sock is not None
        assert (await abox.exec("x")).stdout == "hi\n"

    run(go())
    assert [r.connection for r in server.asked()] == [1, 2]


def test_errors_and_short_answers(server, aclient):
    server.on("GET", "/v1/me", (404, {"error": "none", "code": "not_found"}))

    def short(r, peer):
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")
        peer.cut()

    async def go():
        with pytest.raises(NotFoundError):
            await aclient.me()
        server.on("GET", "/v1/me", short)
        with pytest.raises(APIConnectionError, match="lost before"):
            await aclient.me()
        for bad in (b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
            server.on("GET", "/v1/me", lambda r, peer, bad=bad: peer.send(bad) or peer.cut())
            with pytest.raises(APIConnectionError):
                await aclient.me()

    run(go())


def test_chunked_and_until_close(server, aclient):
    def chunked(r, peer):
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"a"', b":1}"):
            peer.chunk(piece)
        peer.end()

    async def go():
        server.on("GET", "/v1/me", chunked)
        assert await aclient.me() == {"a": 1} == await aclient.me()
        server.on("GET", "/v1/me", lambda r, peer: peer.send(b'HTTP/1.1 200 OK\r\n\r\n{"b":2}') or peer.cut())
        assert await aclient.me() == {"b": 2}

    run(go())
    assert [r.connection for r in server.asked()] == [1, 1, 1]


def test_output_arrives_while_the_command_runs(server, abox):
    seen = threading.Event()

    def answer(r, peer):
        peer.sse()
        peer.event("stdout", {"chunk": "one"})
        assert seen.wait(10)  # the server goes on only when the client has the first piece
        peer.event("stderr", {"chunk": "two"})
        peer.event("exit", {"exit_code": 4})
        peer.end()

    server.on("POST", P + "/exec/stream", answer)

    async def go():
        got = []
        s = abox.stream("x")
        async for o in s:
            got.append((o.stream, o.text))
            seen.set()
        assert got == [("stdout", "one"), ("stderr", "two")] and s.exit_code == 4
        out = []

        async def on_stdout(text):
            await asyncio.sleep(0)
            out.append(text)

        assert (await abox.exec("x", on_stdout=on_stdout)).exit_code == 4
        assert (await abox.stream("x", on_stdout=out.append)).stderr == "two"
        assert out == ["one", "one"]

    run(go())


def test_cuts_leave_no_gap(server, abox, monkeypatch):
    async def no_wait(seconds):
        pass

    monkeypatch.setattr(commands, "sleep", no_wait)
    server.on("POST", P + "/execs", (201, {"id": "7", "pid": 1}))
    log = Log(bytes(range(200)), b"err", cuts=[3, 0, 5, 1])
    server.on("GET", P + "/execs/7/output", log)

    async def go():
        c = await abox.start("x")
        data = b"".join([p.data async for p in c if p.stream == "stdout"])
        assert data == bytes(range(200)) and len(log.asked) == 5 and c.exit_code == 0
        assert (await c.wait()).stderr == "err"

    run(go())


def test_wait_has_a_limit(server, abox):
    server.on("POST", P + "/execs", (201, {"id": "7", "pid": 1}))
    server.on("GET", P + "/execs/7/output", lambda r, peer: peer.sse() or peer.rfile.read(1) and None)

    async def go():
        c = await abox.start("x")
        with pytest.raises(SandboxTimeout, match="still runs"):
            await c.wait(timeout=0.1)

    run(go())


def test_files(server, abox, tmp_path):
    disk = Disk(server)
    data = bytes(range(256)) * 8000

    async def pieces():
        yield b"a"
        yield b""
        yield b"b"

    async def go():
        fs = abox.filesystem
        await fs.write("/f", data)
        assert await fs.read("/f") == data
        (tmp_path / "in").write_bytes(data)
        await fs.upload(tmp_path / "in", "/up")
        assert disk.files["/up"] == data
        assert await fs.download("/up", tmp_path / "out") == len(data)
        assert (tmp_path / "out").read_bytes() == data
        await fs.write("/i", iter([b"x", b"", b"y"]))
        await fs.write("/a", pieces())
        assert disk.files["/i"] == b"xy" and disk.files["/a"] == b"ab"
        await fs.write("/io", io.BytesIO(b"io"))
        assert await fs.read_text("/io") == "io"
        with pytest.raises(NotFoundError):
            await fs.read("/no")

    run(go())


def test_a_terminal(server, abox):
    seen = []
    server.on("GET", P + "/exec/pty", shell(seen))

    async def go():
        async with await abox.terminal() as t:
            await t.read_until(r"\$ ")
            with pytest.raises(SandboxTimeout):
                await t.receive(0.05)
            await t.send("hello")
            assert await t.receive(5) == b"HELLO"
            await t.send("exit\n")
            assert [x async for x in t] == [b"bye"] and t.exit_code == 7
        server.on("GET", P + "/exec/pty", (404, {"error": "gone", "code": "sandbox_not_found"}))
        with pytest.raises(NotFoundError):
            await abox.terminal()

    run(go())
    server.settle()
    assert seen[0] == (_ws.PONG, b"are you there")


def test_logs_events_watch_contexts_volumes(server, abox, aclient):
    def watch(r, peer):
        peer.sse()
        peer.event("ready", {})
        peer.event("change", {"type": "created", "path": "/f"})
        peer.end()

    def cell(r, peer):
        peer.sse()
        peer.event("stdout", {"chunk": "a"})
        peer.event("exit", {"exit": 0, "duration_ms": 1})
        peer.end()

    server.on("GET", P + "/logs", b"a\nb\n")
    server.on("GET", P + "/fs/watch", watch)
    server.on("GET", P + "/events", {"events": [{"type": "t"}]})
    server.on("POST", P + "/repl/sessions", (201, {"id": "k"}))
    server.on("POST", P + "/repl/sessions/k/run", {"stdout": "", "exit": 0, "results": [{"text/plain": "2"}]})
    server.on("POST", P + "/repl/sessions/k/run/stream", cell)
    server.on("DELETE", P + "/repl/sessions/k", (204,))
    server.on("GET", "/v1/volumes/v", {"name": "v", "size_mb": 1})
    server.on("POST", P + "/fork", (201, {"sandboxes": [{"id": "c"}]}))

    async def go():
        assert [x async for x in abox.logs()] == ["a", "b"]
        assert [e.type async for e in abox.events()] == ["t"]
        async with abox.filesystem.watch("/w") as w:
            assert [e.path async for e in w] == ["/f"]
        async with await abox.create_code_context() as ctx:
            assert (await ctx.run_code("1+1")).text == "2"
            out = []
            assert (await ctx.run_code("x", on_stdout=out.append)).ok and out == ["a"]
        assert (await AsyncVolume.get_or_create("v", client=aclient)).size_mb == 1
        assert [c.id for c in await abox.fork(1)] == ["c"]
        assert (await abox.fork()).id == "c"

    run(go())


def test_the_default_client(server, aclient):
    set_default_async_client(aclient)
    try:
        assert run(AsyncSandbox.get("sb-1")).client is aclient
    finally:
        set_default_async_client(None)


def test_an_error_in_a_stream(server, abox):
    def answer(r, peer):
        peer.sse()
        peer.event("error", {"error": "guest died"})
        peer.end()

    server.on("POST", P + "/exec/stream", answer)
    with pytest.raises(ServerError, match="guest died"):
        run(abox.stream("x").wait())


def test_silence_in_a_body_without_length_is_not_its_end(server):
    server.on("GET", "/v1/me", lambda r, peer: peer.send(b"HTTP/1.1 200 OK\r\n\r\n{}") or peer.rfile.read(1) and None)

    async def go():
        async with AsyncClient("k", server.url, timeout=0.1) as c:
            with pytest.raises(APITimeoutError):
                await c.me()

    run(go())


def test_the_limit_is_for_silence_not_for_size(server):
    """An answer that keeps coming may take longer than the client's timeout."""

    def slow(r, peer):
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        for _ in range(10):
            peer.send(b"x" * 100000)
            threading.Event().wait(0.05)

    server.on("GET", P + "/fs", slow)

    async def go():
        async with AsyncClient("k", server.url, timeout=0.3) as c:
            assert len(await AsyncSandbox.from_info(c, BOX).filesystem.read("/f")) == 1000000

    run(go())
