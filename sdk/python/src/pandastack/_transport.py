"""The blocking transport: a pool of kept-alive connections on http.client, usable from any thread."""

from __future__ import annotations

import http.client
import os
import select
import socket
import ssl
import threading
import time
from types import TracebackType
from typing import Any, Callable, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Type, TypeVar, Union

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

_LOST = (OSError, http.client.HTTPException, ValueError)
# What a kept-alive connection that the server closed meanwhile looks like.
_STALE = (ConnectionError, http.client.RemoteDisconnected)


def _readable(sock: socket.socket, timeout_ms: Optional[int]) -> bool:
    p = select.poll()
    p.register(sock, select.POLLIN)
    return bool(p.poll(timeout_ms))


def _cut(sock: socket.socket) -> None:
    """Ends a connection; whoever waits in a read sees its end.

    Not SSLSocket's own shutdown(): that drops the TLS session first, and a read in another thread would then
    get the bytes of the wire as if they were data.
    """
    socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _Answer(http.client.HTTPResponse):
    """The parent hands the headers to a mail parser, which costs more than all the rest of a request; it does only
    the bodies here. Heads are read as in the asyncio transport."""

    names: Mapping[str, str]

    def begin(self) -> None:
        while True:
            status, self.names = parse_head(self._head())
            if status >= 200:
                break
        self.code = self.status = status
        self.chunked, self.length, self.will_close = framing(status, self.names)
        self.chunk_left = None

    def _head(self) -> bytes:
        lines = b""
        while True:
            line = self.fp.readline(HEAD_MAX + 1)
            if not line.endswith(b"\n"):
                if lines or line:
                    raise ConnectionError("the connection ended in the middle of a head")
                raise http.client.RemoteDisconnected("the server closed the connection without an answer")
            if line in (b"\r\n", b"\n"):
                return lines
            lines += line
            if len(lines) > HEAD_MAX:
                raise ValueError(f"a head larger than {HEAD_MAX} bytes")


class _Idle(NamedTuple):
    sock: socket.socket
    since: float


class StreamResponse:
    """An answer whose body is read piece by piece. Read to the end, or close it."""

    def __init__(self, pool: "Transport", sock: socket.socket, answer: _Answer, request: Request) -> None:
        self.status = answer.status
        self.headers = answer.names
        self._pool = pool
        self._sock: Optional[socket.socket] = sock
        self._answer = answer
        self._request = request
        self._left = answer.length  # None: chunked, or until the server closes

    def read(self) -> bytes:
        """The next piece, as soon as there is one; b"" at the end."""
        if self._sock is None:
            return b""
        try:
            if self._left is None:
                data = self._answer.read1(CHUNK)
            else:
                data = self._answer.read(min(CHUNK, self._left)) if self._left else b""
                self._left -= len(data)
                if not data and self._left:
                    raise ConnectionError(f"{self._left} bytes are missing")
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as e:
            if self._sock is None:
                return b""  # close() was called meanwhile
            self.close()
            raise self._pool.wire.lost(e, self._request) from e
        if not data:
            self._end()
        return data

    def read_all(self) -> bytes:
        parts: List[bytes] = []
        while True:
            data = self.read()
            if not data:
                return b"".join(parts)
            parts.append(data)

    def _end(self) -> None:
        sock, self._sock = self._sock, None
        if sock is None:
            return
        keep = not self._answer.will_close
        self._answer.close()
        if keep:
            self._pool.put(sock)
        else:
            sock.close()

    def set_timeout(self, seconds: Optional[float]) -> None:
        """For the reads to come."""
        if self._sock is not None:
            self._sock.settimeout(seconds)

    def close(self) -> None:
        """Hangs up unless the body was read to its end. Safe from another thread: a waiting read() ends."""
        sock, self._sock = self._sock, None
        if sock is not None:
            try:
                _cut(sock)
            except OSError:
                pass
            sock.close()
            self._answer.close()  # has a hold on the descriptor, too

    def __enter__(self) -> "StreamResponse":
        return self

    def __exit__(self, t: Optional[Type[BaseException]], e: Optional[BaseException], tb: Optional[TracebackType]) -> None:
        self.close()


class WebSocket:
    """A connection of messages. One thread may receive while others send."""

    def __init__(self, wire: Wire, sock: socket.socket, rest: bytes) -> None:
        self._wire = wire
        self._sock = sock
        self._send_lock = threading.Lock()
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._decoder = _ws.Decoder()
        self.closed = False
        self._ready: List[_ws.Message] = self._decode(rest)
        self._ready.reverse()

    def _decode(self, data: bytes) -> List[_ws.Message]:
        try:
            return self._decoder.feed(data)
        except _ws.WebSocketError as e:
            self._hang_up(e.close_code)
            raise APIConnectionError(f"the server broke the WebSocket protocol: {e}") from None

    def send(self, opcode: int, data: bytes) -> None:
        if self.closed:
            raise APIConnectionError("the connection is closed")
        try:
            with self._send_lock:
                self._sock.sendall(_ws.encode(opcode, data))
        except OSError as e:
            self._hang_up(None)
            raise self._wire.lost(e) from e

    def receive(self, timeout: Optional[float] = None) -> Optional[_ws.Message]:
        """The next text or binary message; None when the connection ended. Pings are answered here."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.closed:
            if not self._ready:
                data = self._some(deadline)
                if not data:
                    self._hang_up(None)
                    return None
                self._ready = self._decode(data)
                self._ready.reverse()
                continue
            m = self._ready.pop()
            if m.opcode == _ws.PING:
                self.send(_ws.PONG, m.data)
            elif m.opcode == _ws.CLOSE:
                self._hang_up(1000)
                return None
            elif m.opcode != _ws.PONG:
                return m
        return None

    def _some(self, deadline: Optional[float]) -> bytes:
        pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0
        left = None if deadline is None else max(0, int((deadline - time.monotonic()) * 1000) + 1)
        try:
            if not pending and not _readable(self._sock, left):
                raise socket.timeout("nothing arrived in time")
            if not self._tls:
                return self._sock.recv(CHUNK)
            with self._send_lock:  # one hand at a time on a TLS session
                return self._sock.recv(CHUNK)
        except socket.timeout as e:
            raise TimeoutError(str(e)) from None
        except (OSError, ValueError):
            return b""  # closed under our hands

    def _hang_up(self, code: Optional[int]) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            if code is not None:
                with self._send_lock:
                    self._sock.settimeout(1)
                    self._sock.sendall(_ws.encode(_ws.CLOSE, _ws.close_payload(code)))
            _cut(self._sock)
        except OSError:
            pass
        self._sock.close()

    def close(self) -> None:
        self._hang_up(1000)


def _connect_unix(path: str, timeout: Optional[float]) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
        return sock
    except BaseException:
        sock.close()
        raise


class Transport:
    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._lock = threading.Lock()
        self._idle: List[_Idle] = []
        self._pid = os.getpid()
        self._closed = False

    # The pool

    def _take(self) -> Optional[socket.socket]:
        """A kept connection that is still good, the most recently used first."""
        now = time.monotonic()
        while True:
            with self._lock:
                if self._pid != os.getpid():
                    # After a fork the parent goes on using these: two hands on one would mix answers.
                    self._idle = []
                    self._pid = os.getpid()
                if not self._idle:
                    return None
                sock, since = self._idle.pop()
            # Bytes nobody asked for, or the end: either way the server is done with it.
            if now - since < IDLE_SECONDS and not _readable(sock, 0):
                return sock
            sock.close()

    def put(self, sock: socket.socket) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX and self._pid == os.getpid():
                self._idle.append(_Idle(sock, time.monotonic()))
                return
        sock.close()

    def _connect(self, timeout: Optional[float]) -> socket.socket:
        target = self.wire.target
        try:
            if target.path:
                return _connect_unix(target.path, timeout)
            sock = socket.create_connection((target.host, target.port), timeout)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                tls = self.wire.tls
                return tls.wrap_socket(sock, server_hostname=target.host) if tls is not None else sock
            except BaseException:
                sock.close()
                raise
        except OSError as e:
            raise self.wire.lost(e) from e

    def close(self) -> None:
        """Closes the kept connections; what is running finishes first."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._closed = True
        for sock, _ in idle:
            sock.close()

    # Requests

    @staticmethod
    def _send(sock: socket.socket, request: Request) -> bool:
        """Whether all of it was sent: a server that answers early does not want the rest."""
        body = request.body
        if body is None:
            sock.sendall(request.head)
        elif isinstance(body, bytes):
            if len(body) <= CHUNK:
                sock.sendall(request.head + body)  # one segment, one wakeup of the server
            else:
                sock.sendall(request.head)
                sock.sendall(body)
        else:
            sock.sendall(request.head)
            for piece in body:
                if not piece:
                    continue
                if _readable(sock, 0):
                    return False
                if request.chunked:
                    sock.sendall(b"%x\r\n" % len(piece) + piece + b"\r\n")
                else:
                    sock.sendall(piece)
            if request.chunked:
                sock.sendall(b"0\r\n\r\n")
        return True

    def _attempt(self, sock: socket.socket, request: Request) -> _Answer:
        sock.settimeout(request.timeout)
        answer = _Answer(sock, method=request.method)
        try:
            try:
                whole = self._send(sock, request)
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a body says why and closes; what it said may still be there.
                if request.body is None or not _readable(sock, 0):
                    raise
                whole = False
            answer.begin()
            if not whole:
                answer.will_close = True
        except BaseException:
            answer.close()
            sock.close()
            raise
        return answer

    def _exchange(self, request: Request) -> Tuple[socket.socket, _Answer, bool]:
        """Sends and reads the head. The bool: it took a second attempt."""
        sock = self._take()
        if sock is not None:
            try:
                return sock, self._attempt(sock, request), False
            except _STALE as e:
                if not request.retry:
                    raise self.wire.lost(e, request) from e
            except _LOST as e:
                raise self.wire.lost(e, request) from e
        fresh = self._connect(request.timeout)
        try:
            return fresh, self._attempt(fresh, request), sock is not None
        except _LOST as e:
            raise self.wire.lost(e, request) from e

    def request(
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
        sock, answer, again = self._exchange(request)
        try:
            data = answer.read()
        except BaseException as e:
            answer.close()
            sock.close()
            if isinstance(e, _LOST):
                raise self.wire.lost(e, request) from e
            raise
        keep = not answer.will_close
        answer.close()
        if keep:
            self.put(sock)
        else:
            sock.close()
        status = answer.status
        if again and method == "DELETE" and status == 404:
            status, data = 204, b""  # the first attempt did it, its answer was lost
        judge(status, answer.names, data)
        return Response(status, answer.names, data)

    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Optional[Params] = None,
        json: Any = None,
        headers: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = -1,
        idle_timeout: Optional[float] = None,
    ) -> StreamResponse:
        """timeout is for the head; between pieces of the body idle_timeout holds (None: forever)."""
        request = self.wire.build(method, path, params, json, None, None, headers, timeout)
        sock, answer, _ = self._exchange(request)
        stream = StreamResponse(self, sock, answer, request)
        if not 200 <= answer.status < 300:
            raise error_from_response(answer.status, stream.headers, stream.read_all())
        sock.settimeout(idle_timeout)
        return stream

    def websocket(self, path: str, params: Optional[Params] = None) -> WebSocket:
        key = _ws.new_key()
        head = self.wire.websocket_head(path, params, key)
        sock = self._connect(self.wire.timeout)
        try:
            sock.sendall(head)
            raw = b""
            while b"\r\n\r\n" not in raw:
                data = sock.recv(4096)
                if not data or len(raw) > HEAD_MAX:
                    raise ConnectionError("no complete answer to the upgrade")
                raw += data
            top, rest = raw.split(b"\r\n\r\n", 1)
            status, headers = parse_head(top)
            if status != 101:
                n = min(int(headers.get("content-length", "0") or 0), HEAD_MAX)
                while len(rest) < n:
                    data = sock.recv(4096)
                    if not data:
                        break
                    rest += data
                raise error_from_response(status, headers, rest)
            if headers.get("sec-websocket-accept") != _ws.accept_of(key):
                raise ConnectionError("the server does not speak WebSocket: wrong Sec-WebSocket-Accept")
            sock.settimeout(None)
            return WebSocket(self.wire, sock, rest)
        except (OSError, ValueError) as e:
            sock.close()
            raise self.wire.lost(e) from e
        except BaseException:
            sock.close()
            raise


def call(fn: Any, arg: Any) -> None:
    """A callback, here as in the asyncio twin of this module."""
    fn(arg)


def offload(fn: Callable[..., T], *args: Any) -> T:
    return fn(*args)


sleep = time.sleep
