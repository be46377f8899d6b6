"""The asyncio transport: the same pool and the same rules as _transport.py, on asyncio streams."""

from __future__ import annotations

import asyncio
import inspect
import select
import socket
import time
from types import TracebackType
from typing import Any, AsyncIterable, Awaitable, Callable, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Type, TypeVar, Union

from . import _ws
from ._http import (
    CHUNK,
    HEAD_MAX,
    IDLE_MAX,
    IDLE_SECONDS,
    Params,
    Request,
    Response,
    Wire,
    framing,
    judge,
    parse_head,
)
from .exceptions import APIConnectionError, error_from_response

Body = Union[bytes, Iterable[bytes], None]
T = TypeVar("T")

_LOST = (OSError, EOFError, ValueError, asyncio.LimitOverrunError)
_STALE = (ConnectionError, asyncio.IncompleteReadError)


class _Conn:
    """One connection. Every wait has a limit: when it passes, the connection is cut."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.timeout: Optional[float] = None
        self.late = False

    def stale(self) -> bool:
        sock = self.writer.get_extra_info("socket")
        if self.writer.is_closing() or self.reader.at_eof() or sock is None or sock.fileno() < 0:
            return True
        p = select.poll()
        p.register(sock.fileno(), select.POLLIN)
        return bool(p.poll(0))

    def _too_late(self) -> None:
        self.late = True
        self.abort()

    async def within(self, work: Awaitable[T]) -> T:
        # A timer that cuts the connection costs far less than a task per wait.
        if self.timeout is None:
            return await work
        timer = asyncio.get_running_loop().call_later(self.timeout, self._too_late)
        try:
            result = await work
        except _LOST as e:
            if self.late:
                raise socket.timeout("timed out") from e
            raise
        finally:
            timer.cancel()
        if self.late:
            raise socket.timeout("timed out")
        return result

    def abort(self) -> None:
        transport = self.writer.transport
        if transport is not None:
            transport.abort()


class _Idle(NamedTuple):
    conn: _Conn
    since: float


class _Answer:
    """Reads one answer: head, then body by length, in chunks, or until the server closes."""

    def __init__(self, conn: _Conn, method: str) -> None:
        self._conn = conn
        self._method = method
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.will_close = True
        self._chunked = False
        self._left: Optional[int] = None  # of the body, or of the chunk

    async def begin(self) -> None:
        while True:
            raw = await self._conn.within(self._conn.reader.readuntil(b"\r\n\r\n"))
            self.status, self.headers = parse_head(raw[:-4])
            if self.status >= 200 or self.status == 101:
                break
        self._chunked, self._left, self.will_close = framing(self.status, self.headers)
        if self._chunked:
            self._left = 0

    async def read(self) -> bytes:
        reader = self._conn.reader
        if self._chunked:
            if self._left == 0:
                line = await self._conn.within(reader.readuntil(b"\r\n"))
                self._left = int(line.split(b";")[0].strip() or b"x", 16)
                if self._left == 0:
                    while await self._conn.within(reader.readuntil(b"\r\n")) != b"\r\n":
                        pass
                    self._chunked = False
                    return b""
            data = await self._some(self._left or 0)
            self._left = (self._left or 0) - len(data)
            if self._left == 0:
                await self._conn.within(reader.readexactly(2))
            return data
        if self._left is None:
            return await self._conn.within(reader.read(CHUNK))
        if self._left == 0:
            return b""
        data = await self._some(self._left)
        self._left -= len(data)
        return data

    async def _some(self, most: int) -> bytes:
        data = await self._conn.within(self._conn.reader.read(min(CHUNK, most)))
        if not data:
            raise ConnectionError(f"{most} bytes are missing")
        return data

    async def read_all(self) -> bytes:
        if self._left is not None and self._left <= CHUNK and not self._chunked:
            n, self._left = self._left, 0
            return await self._conn.within(self._conn.reader.readexactly(n)) if n else b""
        parts: List[bytes] = []
        while True:
            data = await self.read()
            if not data:
                return b"".join(parts)
            parts.append(data)


class AsyncStreamResponse:
    """An answer whose body is read piece by piece. Read to the end, or close it."""

    def __init__(self, pool: "AsyncTransport", conn: _Conn, answer: _Answer, request: Request) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self._pool = pool
        self._conn: Optional[_Conn] = conn
        self._answer = answer
        self._request = request

    async def read(self) -> bytes:
        """The next piece, as soon as there is one; b"" at the end."""
        if self._conn is None:
            return b""
        try:
            data = await self._answer.read()
        except _LOST as e:
            if self._conn is None:
                return b""  # close() was called meanwhile
            await self.close()
            raise self._pool.wire.lost(e, self._request) from e
        except BaseException:
            await self.close()
            raise
        conn = self._conn
        if not data and conn is not None:
            self._conn = None
            self._pool.put(conn, self._answer)
        return data

    async def read_all(self) -> bytes:
        parts: List[bytes] = []
        while True:
            data = await self.read()
            if not data:
                return b"".join(parts)
            parts.append(data)

    def set_timeout(self, seconds: Optional[float]) -> None:
        """For the reads to come."""
        if self._conn is not None:
            self._conn.timeout = seconds

    async def close(self) -> None:
        """Hangs up unless the body was read to its end."""
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.abort()

    async def __aenter__(self) -> "AsyncStreamResponse":
        return self

    async def __aexit__(
        self, t: Optional[Type[BaseException]], e: Optional[BaseException], tb: Optional[TracebackType]
    ) -> None:
        await self.close()


class AsyncWebSocket:
    """A connection of messages. One task may receive while others send."""

    def __init__(self, wire: Wire, conn: _Conn) -> None:
        self._wire = wire
        self._conn = conn
        self._decoder = _ws.Decoder()
        self._ready: List[_ws.Message] = []
        self.closed = False

    def _decode(self, data: bytes) -> List[_ws.Message]:
        try:
            return self._decoder.feed(data)
        except _ws.WebSocketError as e:
            self._hang_up(e.close_code)
            raise APIConnectionError(f"the server broke the WebSocket protocol: {e}") from None

    async def send(self, opcode: int, data: bytes) -> None:
        if self.closed:
            raise APIConnectionError("the connection is closed")
        try:
            self._conn.writer.write(_ws.encode(opcode, data))
            await self._conn.writer.drain()
        except OSError as e:
            self._hang_up(None)
            raise self._wire.lost(e) from e

    async def receive(self, timeout: Optional[float] = None) -> Optional[_ws.Message]:
        """The next text or binary message; None when the connection ended. Pings are answered here."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.closed:
            if not self._ready:
                data = await self._some(deadline)
                if not data:
                    self._hang_up(None)
                    return None
                self._ready = self._decode(data)
                self._ready.reverse()
                continue
            m = self._ready.pop()
            if m.opcode == _ws.PING:
                await self.send(_ws.PONG, m.data)
            elif m.opcode == _ws.CLOSE:
                self._hang_up(1000)
                return None
            elif m.opcode != _ws.PONG:
                return m
        return None

    async def _some(self, deadline: Optional[float]) -> bytes:
        try:
            if deadline is None:
                return await self._conn.reader.read(CHUNK)
            return await asyncio.wait_for(self._conn.reader.read(CHUNK), max(0.0, deadline - time.monotonic()))
        except asyncio.TimeoutError:
            raise TimeoutError("nothing arrived in time") from None
        except OSError:
            return b""

    def _hang_up(self, code: Optional[int]) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            if code is not None:
                self._conn.writer.write(_ws.encode(_ws.CLOSE, _ws.close_payload(code)))
            self._conn.writer.close()
        except OSError:
            pass

    async def close(self) -> None:
        self._hang_up(1000)


class AsyncTransport:
    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._idle: List[_Idle] = []
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._closed = False

    # The pool

    def _take(self) -> Optional[_Conn]:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Connections belong to the loop they were made in; that one may be gone.
            self._idle = []
            self._loop = loop
        now = time.monotonic()
        while self._idle:
            conn, since = self._idle.pop()
            if now - since < IDLE_SECONDS and not conn.stale():
                return conn
            conn.abort()
        return None

    def put(self, conn: _Conn, answer: _Answer) -> None:
        if answer.will_close or self._closed or len(self._idle) >= IDLE_MAX:
            conn.abort()
        else:
            self._idle.append(_Idle(conn, time.monotonic()))

    async def _connect(self, timeout: Optional[float]) -> _Conn:
        target = self.wire.target
        try:
            if target.path:
                opened = asyncio.open_unix_connection(target.path, limit=2 * CHUNK)
            else:
                opened = asyncio.open_connection(target.host, target.port, limit=2 * CHUNK, ssl=self.wire.tls)
            reader, writer = await (opened if timeout is None else asyncio.wait_for(opened, timeout))
        except asyncio.TimeoutError as e:
            raise self.wire.lost(socket.timeout("timed out")) from e
        except OSError as e:
            raise self.wire.lost(e) from e
        sock = writer.get_extra_info("socket")
        if sock is not None and not target.path:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return _Conn(reader, writer)

    async def close(self) -> None:
        """Closes the kept connections; what is running finishes first."""
        idle, self._idle = self._idle, []
        self._closed = True
        for conn, _ in idle:
            conn.abort()

    # Requests

    @staticmethod
    async def _send(conn: _Conn, request: Request) -> None:
        body = request.body
        writer = conn.writer
        if body is None:
            writer.write(request.head)
        elif isinstance(body, bytes):
            writer.write(request.head + body if len(body) <= CHUNK else request.head)
            if len(body) > CHUNK:
                view = memoryview(body)
                for at in range(0, len(view), CHUNK):
                    writer.write(view[at : at + CHUNK])
                    await conn.within(writer.drain())
        else:
            writer.write(request.head)
            async for piece in _pieces(body):
                if not piece:
                    continue
                if request.chunked:
                    writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
                else:
                    writer.write(piece)
                await conn.within(writer.drain())
            if request.chunked:
                writer.write(b"0\r\n\r\n")
        await conn.within(writer.drain())

    async def _attempt(self, conn: _Conn, request: Request) -> _Answer:
        conn.timeout = request.timeout
        answer = _Answer(conn, request.method)
        try:
            try:
                await self._send(conn, request)
            except (BrokenPipeError, ConnectionResetError):
                if request.body is None:
                    raise
            await answer.begin()
        except BaseException:
            conn.abort()
            raise
        return answer

    async def _exchange(self, request: Request) -> Tuple[_Conn, _Answer, bool]:
        """Sends and reads the head. The bool: it took a second attempt."""
        conn = self._take()
        if conn is not None:
            try:
                return conn, await self._attempt(conn, request), False
            except _STALE as e:
                if not request.retry:
                    raise self.wire.lost(e, request) from e
            except _LOST as e:
                raise self.wire.lost(e, request) from e
        fresh = await self._connect(request.timeout)
        try:
            return fresh, await self._attempt(fresh, request), conn is not None
        except _LOST as e:
            raise self.wire.lost(e, request) from e

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Optional[Params] = None,
        json: Any = None,
        body: Body = None,
        length: Optional[int] = None,
        headers: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = -1,
        retry: Optional[bool] = None,
    ) -> Response:
        """One whole exchange. Raises what judge() raises, and APIConnectionError."""
        request = self.wire.build(method, path, params, json, body, length, headers, timeout, retry)
        conn, answer, again = await self._exchange(request)
        try:
            data = await answer.read_all()
        except BaseException as e:
            conn.abort()
            if isinstance(e, _LOST):
                raise self.wire.lost(e, request) from e
            raise
        self.put(conn, answer)
        status = answer.status
        if again and method == "DELETE" and status == 404:
            status, data = 204, b""  # the first attempt did it, its answer was lost
        judge(status, answer.headers, data)
        return Response(status, answer.headers, data)

    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Optional[Params] = None,
        json: Any = None,
        headers: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = -1,
        idle_timeout: Optional[float] = None,
    ) -> AsyncStreamResponse:
        """timeout is for the head; between pieces of the body idle_timeout holds (None: forever)."""
        request = self.wire.build(method, path, params, json, None, None, headers, timeout)
        conn, answer, _ = await self._exchange(request)
        stream = AsyncStreamResponse(self, conn, answer, request)
        if not 200 <= answer.status < 300:
            raise error_from_response(answer.status, stream.headers, await stream.read_all())
        conn.timeout = idle_timeout
        return stream

    async def websocket(self, path: str, params: Optional[Params] = None) -> AsyncWebSocket:
        key = _ws.new_key()
        head = self.wire.websocket_head(path, params, key)
        conn = await self._connect(self.wire.timeout)
        conn.timeout = self.wire.timeout
        try:
            conn.writer.write(head)
            raw = await conn.within(conn.reader.readuntil(b"\r\n\r\n"))
            status, headers = parse_head(raw[:-4])
            if status != 101:
                n = min(int(headers.get("content-length", "0") or 0), HEAD_MAX)
                raise error_from_response(status, headers, await conn.within(conn.reader.readexactly(n)))
            if headers.get("sec-websocket-accept") != _ws.accept_of(key):
                raise ConnectionError("the server does not speak WebSocket: wrong Sec-WebSocket-Accept")
            conn.timeout = None
            return AsyncWebSocket(self.wire, conn)
        except _LOST as e:
            conn.abort()
            raise self.wire.lost(e) from e
        except BaseException:
            conn.abort()
            raise


async def _pieces(body: Union[Iterable[bytes], AsyncIterable[bytes]]) -> Any:
    """Pieces of a body. A plain iterator may read a file, so it runs in a thread, not in the loop."""
    if isinstance(body, AsyncIterable):
        async for piece in body:
            yield piece
        return
    loop = asyncio.get_running_loop()
    it = iter(body)
    while True:
        following = await loop.run_in_executor(None, next, it, None)
        if following is None:
            return
        yield following


async def call(fn: Any, arg: Any) -> None:
    """A callback: a plain function or a coroutine function."""
    r = fn(arg)
    if inspect.isawaitable(r):
        await r


async def offload(fn: Callable[..., T], *args: Any) -> T:
    """Work on local files, out of the loop's way."""
    return await asyncio.get_running_loop().run_in_executor(None, fn, *args)


sleep = asyncio.sleep
