"""Commands: streamed ones that end with their connection, detached ones that outlive it."""

from __future__ import annotations

import base64
import codecs
import json
import time
from typing import Any, AsyncIterator, Callable, Dict, Generator, List, Mapping, Optional, Sequence, Tuple, Union

from .._atransport import AsyncStreamResponse, AsyncTransport, call, sleep
from .._http import segment
from .._sse import SSEParser
from ..exceptions import (
    APIConnectionError,
    APITimeoutError,
    CommandError,
    SandboxTimeout,
    ServerError,
)
from ..types import ExecInfo, ExecResult, Output

Callback = Callable[[str], Any]
Cmd = Union[str, Sequence[str]]

EXEC_SECONDS = 60  # what the server allows a command when nobody says
GRACE_SECONDS = 30.0  # how much longer than the command we wait for its answer
KEEP_MAX = 16 << 20  # of each stream, when a result is put together here
RECONNECT_SECONDS = 60.0
SSE = {"Accept": "text/event-stream"}


def exec_body(
    cmd: Cmd,
    timeout_seconds: Optional[float],
    cwd: Optional[str],
    env: Optional[Mapping[str, str]],
    user: Optional[str],
    stdin: Union[str, bytes, None] = None,
) -> Dict[str, Any]:
    body: Dict[str, Any] = {"cmd": cmd} if isinstance(cmd, str) else {"argv": [str(a) for a in cmd]}
    if timeout_seconds is not None:
        if timeout_seconds < 0:
            raise ValueError("timeout_seconds is negative; 0 means no limit")
        whole = int(timeout_seconds)
        body["timeout_seconds"] = whole if whole == timeout_seconds else timeout_seconds
    if cwd is not None:
        body["cwd"] = cwd
    if env:
        body["env"] = {str(k): str(v) for k, v in env.items()}
    if user is not None:
        body["user"] = user
    if stdin is not None:
        try:
            body["stdin"] = stdin if isinstance(stdin, str) else stdin.decode()
        except UnicodeDecodeError:
            raise ValueError("stdin of exec is text; for bytes use start(cmd, stdin=True) and send_stdin()") from None
    return body


def answer_timeout(client: Optional[float], command: Optional[float], default: float = EXEC_SECONDS) -> Optional[float]:
    """How long to wait for the answer of a command that may itself take that long."""
    if client is None or command == 0:
        return None
    return max(client, (default if command is None else command) + GRACE_SECONDS)


def check_result(cmd: Cmd, result: ExecResult) -> None:
    """Raises for a result that is not a success."""
    if result.exit_code == 0 and not result.timed_out:
        return
    shown = cmd if isinstance(cmd, str) else " ".join(cmd)
    if result.timed_out:
        late = SandboxTimeout(f"timed out: {shown[:120]}; give it a larger timeout_seconds")
        late.result = result
        raise late
    raise CommandError.of(shown, result)


def load(data: str) -> Dict[str, Any]:
    """An event's data; text that is no JSON object counts as a chunk."""
    try:
        d = json.loads(data)
    except ValueError:
        return {"chunk": data}
    return d if isinstance(d, dict) else {"chunk": data}


async def events_of(response: AsyncStreamResponse) -> AsyncIterator[Tuple[str, str]]:
    """The events of an answer until it ends."""
    parser = SSEParser()
    while True:
        chunk = await response.read()
        if not chunk:
            return
        try:
            events = parser.feed(chunk)
        except ValueError as e:
            raise APIConnectionError(f"the server sent a stream that cannot be read: {e}") from None
        for event in events:
            yield event


class AsyncCommandStream:
    """The output of a command while it runs: iterate over it, or wait() for the result.

    The command belongs to this stream: closing it before the end, or losing the connection, ends the
    command. Use Sandbox.start() for one that goes on by itself.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        path: str,
        body: Dict[str, Any],
        timeout: Optional[float],
        on_stdout: Optional[Callback] = None,
        on_stderr: Optional[Callback] = None,
    ) -> None:
        self._transport = transport
        self._path = path
        self._body = body
        self._timeout = timeout
        self._on = {"stdout": on_stdout, "stderr": on_stderr}
        self._kept: Dict[str, List[str]] = {"stdout": [], "stderr": []}
        self._size = {"stdout": 0, "stderr": 0}
        self._truncated = False
        self._response: Optional[AsyncStreamResponse] = None
        self._started = False
        self.result: Optional[ExecResult] = None  # set when the command has ended

    @property
    def exit_code(self) -> Optional[int]:
        return None if self.result is None else self.result.exit_code

    @property
    def stdout(self) -> str:
        """What came so far."""
        return "".join(self._kept["stdout"])

    @property
    def stderr(self) -> str:
        return "".join(self._kept["stderr"])

    def _keep(self, stream: str, text: str) -> int:
        at = self._size[stream]
        if at < KEEP_MAX:
            self._kept[stream].append(text)
        else:
            self._truncated = True
        return at

    async def __aiter__(self) -> AsyncIterator[Output]:
        if self._started:
            raise RuntimeError("this command's stream was read already; start() gives one that can be read again")
        self._started = True
        response = await self._transport.stream(
            "POST", self._path, json=self._body, headers=SSE, timeout=self._timeout, idle_timeout=self._timeout
        )
        self._response = response
        try:
            async for name, data in events_of(response):
                d = load(data)
                if name in ("stdout", "stderr"):
                    text = str(d.get("chunk", ""))
                    raw = text.encode()
                    at = self._keep(name, text)
                    self._size[name] += len(raw)
                    on = self._on[name]
                    if on is not None:
                        await call(on, text)
                    yield Output(name, text, raw, at)
                elif name == "exit":
                    self.result = ExecResult.from_json(d)
                    self.result.stdout = self.stdout
                    self.result.stderr = self.stderr
                    self.result.truncated = self.result.truncated or self._truncated
                elif name == "error":
                    text = str(d.get("error") or d.get("chunk") or "the command failed")
                    kind = SandboxTimeout if "timeout" in text.lower() else ServerError
                    raise kind(text, code=str(d.get("code") or ""), response=d)
        finally:
            await response.close()
        if self.result is None:
            raise APIConnectionError("the stream ended before the command did; use start() for commands that must survive")

    async def wait(self) -> ExecResult:
        """Reads to the end. The callbacks are called on the way."""
        if not self._started:
            async for _ in self:
                pass
        if self.result is None:
            raise RuntimeError("the command's stream was left before its end")
        return self.result

    async def close(self) -> None:
        """Ends the command if it still runs."""
        if self._response is not None:
            await self._response.close()

    # async-only
    def __await__(self) -> Generator[Any, None, ExecResult]:
        return self.wait().__await__()

    # end


class AsyncCommand:
    """A detached command: it goes on whatever happens to this process, the network or pandad."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str, id: str, pid: int = 0, command: str = "") -> None:
        self._transport = transport
        self._path = f"/sandboxes/{segment(sandbox_id)}/execs/{segment(id)}"
        self.sandbox_id = sandbox_id
        self.id = id
        self.pid = pid
        self.command = command
        self.exit_code: Optional[int] = None  # as last seen; poll() asks
        self.signal_number: Optional[int] = None
        self.timed_out = False

    def __repr__(self) -> str:
        state = "running" if self.exit_code is None else f"exit_code={self.exit_code}"
        return f"<{type(self).__name__} {self.id} {state}>"

    def _saw(self, exit_code: Optional[int], signal: Optional[int], timed_out: bool) -> None:
        self.exit_code = exit_code
        self.signal_number = signal
        self.timed_out = timed_out

    async def info(self) -> ExecInfo:
        r = await self._transport.request("GET", self._path)
        info = ExecInfo.from_json(r.json())
        self.pid = info.pid or self.pid
        self.command = info.command or self.command
        if not info.running:
            self._saw(info.exit_code, info.signal, info.timed_out)
        return info

    async def poll(self) -> Optional[int]:
        """The exit code, None while it runs."""
        if self.exit_code is None:
            await self.info()
        return self.exit_code

    async def output(
        self,
        *,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        follow: bool = True,
        reconnect_seconds: float = RECONNECT_SECONDS,
    ) -> AsyncIterator[Output]:
        """What it wrote from these offsets on, then what it writes, until it ends.

        A lost connection is made again and goes on at the very byte where it broke; the iterator gives
        up after reconnect_seconds without success. follow=False stops after what there is now. Where the
        server no longer keeps the beginning, the first offset seen is larger than the one asked for.
        """
        async for piece in self._output({"stdout": stdout_offset, "stderr": stderr_offset}, follow, reconnect_seconds, None):
            yield piece

    async def _output(
        self, at: Dict[str, int], follow: bool, reconnect_seconds: float, deadline: Optional[float]
    ) -> AsyncIterator[Output]:
        # Offsets count bytes, so bytes are asked for; a character cut in two waits for its rest.
        decode = {s: codecs.getincrementaldecoder("utf-8")("replace") for s in ("stdout", "stderr")}
        give_up: Optional[float] = None
        pause = 0.05
        while True:
            cause: Optional[Exception] = None
            try:
                left = None if deadline is None else max(0.001, deadline - time.monotonic())
                response = await self._transport.stream(
                    "GET",
                    self._path + "/output",
                    params={
                        "stdout_offset": at["stdout"],
                        "stderr_offset": at["stderr"],
                        "follow": 1 if follow else None,
                        "encoding": "base64",
                    },
                    headers=SSE,
                    idle_timeout=left,
                )
                try:
                    async for name, data in events_of(response):
                        give_up, pause = None, 0.05
                        if deadline is not None:
                            response.set_timeout(max(0.001, deadline - time.monotonic()))
                        d = load(data)
                        if name in at:
                            piece = self._piece(name, d, at, decode[name])
                            if piece is not None:
                                yield piece
                        elif name == "exit":
                            self._saw(int(d.get("exit_code") or 0), d.get("signal"), bool(d.get("timed_out")))
                            return
                        elif name == "error":
                            raise ServerError(str(d.get("error") or data), response=d)
                finally:
                    await response.close()
                if not follow:
                    return
            except APITimeoutError as e:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
                cause = e
            except APIConnectionError as e:
                cause = e
            except ServerError as e:
                # pandad is going down or coming up; the command is not touched by that.
                if e.status_code not in (502, 503, 504) or e.code == "guest_gone":
                    raise
                cause = e
            now = time.monotonic()
            if give_up is None:
                give_up = now + reconnect_seconds
            if now + pause > give_up:
                raise APIConnectionError(
                    f"command {self.id}: the server stayed away for {reconnect_seconds:g} s; the command itself goes on: "
                    f"attach({self.id!r}) again later"
                ) from cause
            await sleep(pause)
            pause = min(pause * 2, 2.0)

    @staticmethod
    def _piece(name: str, d: Dict[str, Any], at: Dict[str, int], decoder: codecs.IncrementalDecoder) -> Optional[Output]:
        raw = base64.b64decode(d["chunk_b64"]) if "chunk_b64" in d else str(d.get("chunk", "")).encode()
        offset = int(d.get("offset", at[name]))
        if offset < at[name]:  # a server that begins earlier repeats what we have
            raw = raw[at[name] - offset :]
            offset = at[name]
            if not raw:
                return None
        elif offset > at[name]:
            decoder.reset()  # the other half of a cut character is gone
        at[name] = offset + len(raw)
        return Output(name, decoder.decode(raw), raw, offset)

    async def wait(
        self,
        timeout: Optional[float] = None,
        *,
        on_stdout: Optional[Callback] = None,
        on_stderr: Optional[Callback] = None,
        check: bool = False,
    ) -> ExecResult:
        """Waits for its end. The result has all its output (of each stream the first 16 MiB).

        After timeout seconds SandboxTimeout is raised and the command goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        kept: Dict[str, List[bytes]] = {"stdout": [], "stderr": []}
        size = {"stdout": 0, "stderr": 0}
        expected = {"stdout": 0, "stderr": 0}
        truncated = False
        on = {"stdout": on_stdout, "stderr": on_stderr}
        try:
            async for piece in self._output({"stdout": 0, "stderr": 0}, True, RECONNECT_SECONDS, deadline):
                s = piece.stream
                truncated = truncated or piece.offset != expected[s]
                expected[s] = piece.offset + len(piece.data)
                if size[s] < KEEP_MAX:
                    kept[s].append(piece.data)
                    size[s] += len(piece.data)
                else:
                    truncated = True
                fn = on[s]
                if fn is not None and piece.text:
                    await call(fn, piece.text)
        except APITimeoutError:
            late = SandboxTimeout(f"command {self.id} still runs after {timeout:g} s; wait() again, signal() or kill() it")
            late.result = self._result(kept, truncated)
            raise late from None
        result = self._result(kept, truncated)
        if check:
            check_result(self.command or f"command {self.id}", result)
        return result

    def _result(self, kept: Dict[str, List[bytes]], truncated: bool) -> ExecResult:
        return ExecResult(
            b"".join(kept["stdout"]).decode("utf-8", "replace"),
            b"".join(kept["stderr"]).decode("utf-8", "replace"),
            self.exit_code or 0,
            0,
            self.timed_out,
            self.signal_number,
            truncated,
        )

    def __aiter__(self) -> AsyncIterator[Output]:
        return self.output()

    async def send_stdin(self, data: Union[str, bytes], *, eof: bool = False) -> None:
        """Feeds it; it must have been started with stdin=True (or pty=True)."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        await self._transport.request("POST", self._path + "/stdin", params={"eof": 1 if eof else None}, body=raw)

    async def close_stdin(self) -> None:
        await self.send_stdin(b"", eof=True)

    async def signal(self, signal: Union[str, int] = "TERM", *, tree: bool = False) -> None:
        """Sends a signal to it, or (tree=True) to everything it started too."""
        if isinstance(signal, str) and signal.upper().startswith("SIG"):
            signal = signal[3:]
        await self._transport.request("POST", self._path + "/signal", json={"signal": signal, "tree": tree})

    async def kill(self) -> None:
        """Ends it and everything it started, at once."""
        await self.signal("KILL", tree=True)
