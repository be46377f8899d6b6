"""Files of a sandbox. Paths are absolute."""

from __future__ import annotations

import os
import posixpath
from collections import deque
from types import TracebackType
from typing import IO, Any, AsyncIterator, Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Type, Union

from .._atransport import AsyncStreamResponse, AsyncTransport, offload
from .._http import CHUNK, Params
from .._sse import SSEParser
from ..exceptions import NotFoundError
from ..types import FileEvent, FileInfo, items_of
from .commands import SSE, load

PIECE = 4 * CHUNK
LocalPath = Union[str, "os.PathLike[str]"]
Mode = Union[int, str]


def _octal(mode: Mode) -> str:
    return mode if isinstance(mode, str) else f"{mode:04o}"


def open_local(path: LocalPath, mode: str) -> IO[Any]:
    return open(path, mode)


def pieces_of(f: IO[bytes]) -> Iterator[bytes]:
    while True:
        data = f.read(PIECE)
        if not data:
            return
        yield data


def rest_of(f: IO[bytes]) -> Optional[int]:
    """How many bytes a file still has; None when that cannot be told (a pipe)."""
    try:
        at = f.tell()
        end = f.seek(0, os.SEEK_END)
        f.seek(at)
        return max(0, end - at)
    except (OSError, AttributeError, ValueError):
        return None


async def _copy(pieces: AsyncIterator[bytes], f: IO[bytes]) -> int:
    n = 0
    async for data in pieces:
        await offload(f.write, data)
        n += len(data)
    return n


async def save_pieces(pieces: AsyncIterator[bytes], local: Union[LocalPath, IO[bytes]]) -> int:
    """To a path, which changes only once everything has arrived, or to an open binary file; returns the size."""
    if not isinstance(local, (str, os.PathLike)):
        return await _copy(pieces, local)
    final = os.fspath(local)
    part = f"{final}.part-{os.getpid()}-{os.urandom(4).hex()}"
    f = await offload(open_local, part, "xb")
    try:
        n = await _copy(pieces, f)
        await offload(f.close)
        os.replace(part, final)
    except BaseException:
        f.close()
        os.unlink(part)
        raise
    return n


class AsyncFilesystem:
    def __init__(self, transport: AsyncTransport, path: str) -> None:
        self._transport = transport
        self._path = path + "/fs"

    # Whole files

    async def read(self, path: str, *, offset: int = 0, length: Optional[int] = None) -> bytes:
        """The bytes of a file, or length of them from offset on. NotFoundError when there is none."""
        if length == 0:
            return b""
        r = await self._transport.request("GET", self._path, params={"path": path}, headers=_range(offset, length))
        return r.body

    async def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        return (await self.read(path)).decode(encoding, errors)

    async def write(
        self, path: str, data: Union[str, bytes, bytearray, memoryview, IO[bytes], Iterable[bytes]], *, mode: Optional[Mode] = None
    ) -> Dict[str, Any]:
        """Replaces a file, at once and whole, making its directories. data may be text, bytes, an open
        binary file or an iterable of bytes (streamed, of any size). Returns path and bytes."""
        return await self._put(path, data, {"mode": None if mode is None else _octal(mode)}, None)

    async def append(
        self, path: str, data: Union[str, bytes, bytearray, memoryview, IO[bytes], Iterable[bytes]]
    ) -> Dict[str, Any]:
        # Never sent twice: that would append twice.
        return await self._put(path, data, {"append": 1}, False)

    async def _put(self, path: str, data: Any, params: Params, retry: Optional[bool]) -> Dict[str, Any]:
        body: Union[bytes, Iterable[bytes]]
        length: Optional[int] = None
        if isinstance(data, str):
            body = data.encode()
        elif isinstance(data, (bytes, bytearray, memoryview)):
            body = bytes(data)
        elif hasattr(data, "read"):
            length = rest_of(data)
            body = pieces_of(data)
        else:
            body = data
        r = await self._transport.request(
            "PUT",
            self._path,
            params={"path": path, **params},
            body=body,
            length=length,
            headers={"Content-Type": "application/octet-stream"},
            retry=retry,
        )
        answer = r.json()
        return answer if isinstance(answer, dict) else {"path": path}

    # Streams

    async def read_stream(self, path: str, *, offset: int = 0, length: Optional[int] = None) -> AsyncIterator[bytes]:
        """The bytes of a file in pieces as they come."""
        if length == 0:
            return
        response = await self._transport.stream(
            "GET",
            self._path,
            params={"path": path},
            headers=_range(offset, length),
            idle_timeout=self._transport.wire.timeout,
        )
        try:
            while True:
                data = await response.read()
                if not data:
                    return
                yield data
        finally:
            await response.close()

    async def upload(self, local: Union[LocalPath, IO[bytes]], remote: str, *, mode: Optional[Mode] = None) -> Dict[str, Any]:
        """Sends a local file (a path or an open binary file), keeping its permissions unless mode says else."""
        if not isinstance(local, (str, os.PathLike)):
            return await self.write(remote, local, mode=mode)
        f = await offload(open_local, local, "rb")
        try:
            if mode is None:
                mode = os.fstat(f.fileno()).st_mode & 0o777
            return await self.write(remote, f, mode=mode)
        finally:
            await offload(f.close)

    async def download(self, remote: str, local: Union[LocalPath, IO[bytes]]) -> int:
        """Fetches a file to a local path or open binary file; returns its size.

        A local path changes only once everything has arrived.
        """
        return await save_pieces(self.read_stream(remote), local)

    # Names

    async def list(self, path: str = "/") -> List[FileInfo]:
        """What is in a directory."""
        r = await self._transport.request("GET", self._path + "/dir", params={"path": path})
        return [FileInfo.from_json(e, posixpath.join(path, e.get("name", ""))) for e in items_of(r.json(), "entries")]

    async def walk(self, path: str = "/") -> AsyncIterator[FileInfo]:
        """Everything below a directory, parents first; symbolic links are reported, not followed."""
        todo = [path]
        while todo:
            at = todo.pop()
            try:
                entries = await self.list(at)
            except NotFoundError:
                if at == path:
                    raise
                continue  # gone since we saw it
            for e in entries:
                yield e
            todo.extend(e.path for e in reversed(entries) if e.is_dir and not e.is_symlink)

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        r = await self._transport.request("GET", self._path + "/stat", params={"path": path, "follow": None if follow else 0})
        info = FileInfo.from_json(r.json(), path)
        info.path = path
        return info

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except NotFoundError as e:
            if e.code and e.code not in ("file_not_found", "not_found"):
                raise  # it is the sandbox that is missing
            return False
        return True

    async def mkdir(self, path: str, *, mode: Optional[Mode] = None, parents: bool = True) -> None:
        """With parents=True (the default) an existing directory is fine."""
        body: Dict[str, Any] = {"path": path, "parents": parents}
        if mode is not None:
            body["mode"] = _octal(mode)
        await self._transport.request("POST", self._path + "/mkdir", json=body)

    async def remove(self, path: str) -> None:
        """Removes a file, or a directory with everything in it."""
        await self._transport.request("DELETE", self._path, params={"path": path})

    async def rename(self, old: str, new: str, *, replace: bool = True) -> None:
        await self._transport.request("POST", self._path + "/rename", json={"from": old, "to": new, "replace": replace})

    async def chmod(self, path: str, mode: Mode) -> None:
        """mode as a number (0o755) or as octal text ("0755")."""
        await self._transport.request("POST", self._path + "/chmod", json={"path": path, "mode": _octal(mode)})

    async def symlink(self, target: str, path: str) -> None:
        await self._transport.request("POST", self._path + "/symlink", json={"target": target, "path": path})

    def watch(self, path: str, *, recursive: bool = False) -> AsyncWatch:
        """What changes there, from now on. Inside ``with`` the watch stands before the body runs."""
        return AsyncWatch(self._transport, self._path + "/watch", {"path": path, "recursive": 1 if recursive else None})


class AsyncWatch:
    """Changes of files as they happen; made by Filesystem.watch()."""

    def __init__(self, transport: AsyncTransport, path: str, params: Params) -> None:
        self._transport = transport
        self._path = path
        self._params = params
        self._response: Optional[AsyncStreamResponse] = None
        self._parser = SSEParser()
        self._queue: Deque[FileEvent] = deque()
        self._ready = False

    async def start(self) -> AsyncWatch:
        """Returns once the server watches."""
        if self._response is None:
            self._response = await self._transport.stream("GET", self._path, params=self._params, headers=SSE)
            while not self._ready and await self._fill(self._response):
                pass
        return self

    async def _fill(self, response: AsyncStreamResponse) -> bool:
        chunk = await response.read()
        for name, data in self._parser.feed(chunk):
            self._ready = True
            if name == "change":
                self._queue.append(FileEvent.from_json(load(data)))
        return bool(chunk)

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> FileEvent:
        await self.start()
        while not self._queue:
            if self._response is None or not await self._fill(self._response):
                raise StopAsyncIteration
        return self._queue.popleft()

    async def close(self) -> None:
        if self._response is not None:
            await self._response.close()

    async def __aenter__(self) -> AsyncWatch:
        return await self.start()

    async def __aexit__(
        self, t: Optional[Type[BaseException]], e: Optional[BaseException], tb: Optional[TracebackType]
    ) -> None:
        await self.close()


def _range(offset: int, length: Optional[int]) -> Optional[Mapping[str, str]]:
    if offset < 0 or (length is not None and length < 0):
        raise ValueError("offset and length cannot be negative")
    if not offset and length is None:
        return None
    return {"Range": f"bytes={offset}-{'' if length is None else offset + length - 1}"}
