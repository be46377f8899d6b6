"""The client: one server, one key, and everything that is not a sandbox."""

from __future__ import annotations

import os
import threading
import time
import uuid
from json import dumps
from types import TracebackType
from typing import IO, Any, AsyncIterator, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Type, Union

from .._atransport import AsyncTransport, offload, sleep
from .._config import resolve
from .._http import CHUNK, DEFAULT_TIMEOUT, Params, Wire, segment
from ..exceptions import SandboxTimeout, TemplateBuildError
from ..types import Event, Snapshot, Template, TemplateBuild, Token, items_of
from .commands import SSE, events_of, load
from .filesystem import open_local, pieces_of, rest_of, save_pieces
from .sandbox import AsyncSandbox, list_params
from .volume import AsyncVolume

LocalPath = Union[str, "os.PathLike[str]"]
PARCEL_SECONDS = 600.0  # until a server has checked gigabytes

COPY_SECONDS = 1800.0  # of a volume: as long as that takes


class AsyncClient:
    """Talks to one server with one key. Without arguments it finds both as the documentation says.

    timeout: seconds of silence after which a request is given up; None for never.
    """

    def __init__(
        self,
        api_key: Optional[str] = None,
        api_url: Optional[str] = None,
        timeout: Optional[float] = DEFAULT_TIMEOUT,
        *,
        token: Optional[str] = None,
        preview_host: Optional[str] = None,
    ) -> None:
        key, target = resolve(api_key if api_key is not None else token, api_url)
        self.transport = AsyncTransport(Wire(target, key, timeout))
        self.preview_host = preview_host
        self.sandboxes = AsyncSandboxes(self)
        self.templates = AsyncTemplates(self)
        self.snapshots = AsyncSnapshots(self)
        self.volumes = AsyncVolumes(self)
        self.tokens = AsyncTokens(self)

    @property
    def api_url(self) -> str:
        return self.transport.wire.target.url

    @property
    def timeout(self) -> Optional[float]:
        return self.transport.wire.timeout

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.api_url}>"

    async def request(self, method: str, path: str, *, params: Optional[Params] = None, json: Any = None) -> Any:
        """Any call of the API below /v1; returns the decoded answer."""
        return (await self.transport.request(method, path, params=params, json=json)).json()

    async def me(self) -> Dict[str, Any]:
        """Who this key belongs to: tenant, scopes, quota, usage."""
        return dict(await self.request("GET", "/me"))

    async def version(self) -> Dict[str, Any]:
        return dict(await self.request("GET", "/version"))

    async def health(self) -> Dict[str, Any]:
        return dict((await self.transport.request("GET", "//healthz")).json())

    async def events(self, *, tail: Optional[int] = None, follow: bool = False) -> AsyncIterator[Event]:
        """What happened to all sandboxes of this key."""
        async for event in read_events(self.transport, "/events", tail, follow):
            yield event

    async def close(self) -> None:
        await self.transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, t: Optional[Type[BaseException]], e: Optional[BaseException], tb: Optional[TracebackType]
    ) -> None:
        await self.close()


class AsyncSandboxes:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, template: str = "ubuntu-24.04", **options: Any) -> AsyncSandbox:
        """Takes what Sandbox.create() takes."""
        return await AsyncSandbox.create(template, client=self._client, **options)

    async def get(self, id: str) -> AsyncSandbox:
        return await AsyncSandbox.get(id, client=self._client)

    async def list(
        self,
        *,
        status: Optional[str] = None,
        template: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
        parent_id: Optional[str] = None,
    ) -> List[AsyncSandbox]:
        data = await self._client.request("GET", "/sandboxes", params=list_params(status, template, metadata, parent_id))
        return [AsyncSandbox.from_info(self._client, d) for d in items_of(data, "items", "sandboxes")]

    async def delete(self, id: str) -> None:
        """Ends it. NotFoundError when there is none; Sandbox.kill() does not mind."""
        await self._client.request("DELETE", f"/sandboxes/{segment(id)}")


class AsyncSnapshots:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self, *, sandbox_id: Optional[str] = None) -> List[Snapshot]:
        data = await self._client.request("GET", "/snapshots", params={"sandbox_id": sandbox_id})
        return [Snapshot.from_json(d) for d in items_of(data, "snapshots", "items")]

    async def get(self, id: str) -> Snapshot:
        return Snapshot.from_json(await self._client.request("GET", f"/snapshots/{segment(id)}"))

    async def delete(self, id: str) -> None:
        await self._client.request("DELETE", f"/snapshots/{segment(id)}")

    async def export(self, id: str, local: Union[LocalPath, IO[bytes]]) -> int:
        """All of a snapshot as one file (tar), to a path or open binary file; returns its size.

        A path changes only once everything has arrived."""
        return await save_pieces(self._exported(id), local)

    async def _exported(self, id: str) -> AsyncIterator[bytes]:
        response = await self._client.transport.stream(
            "GET", f"/snapshots/{segment(id)}/export", timeout=PARCEL_SECONDS, idle_timeout=PARCEL_SECONDS
        )
        try:
            while True:
                data = await response.read()
                if not data:
                    return
                yield data
        finally:
            await response.close()

    async def import_(self, local: Union[LocalPath, IO[bytes]]) -> Snapshot:
        """Takes in what export() wrote, here or on another host (a path or open binary file). Every byte is checked
        before the server knows it; it gets an id of its own. It must be signed by a host that the server knows,
        unless the key has scope admin; `imported` of the snapshot says which it was."""
        f: IO[bytes] = await offload(open_local, local, "rb") if isinstance(local, (str, os.PathLike)) else local
        try:
            r = await self._client.transport.request(
                "POST",
                "/snapshots/import",
                body=pieces_of(f),
                length=rest_of(f),
                headers={"Content-Type": "application/x-tar"},
                timeout=PARCEL_SECONDS,
                retry=False,
            )
        finally:
            if f is not local:
                await offload(f.close)
        return Snapshot.from_json(r.json())


def _size(size_gb: Optional[float], size_mb: Optional[int]) -> Dict[str, Any]:
    if size_mb is None and size_gb is not None:
        size_mb = int(size_gb * 1024)
    return {} if size_mb is None else {"size_mb": size_mb}


class AsyncVolumes:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(
        self,
        name: str,
        size_gb: Optional[float] = None,
        *,
        size_mb: Optional[int] = None,
        source: Optional[str] = None,
    ) -> AsyncVolume:
        """Empty, or with what source, a volume or a snapshot of one, holds now."""
        body: Dict[str, Any] = {"name": name, **_size(size_gb, size_mb)}
        if source is not None:
            body["from"] = source
        return await self._make("/volumes", body)

    async def _make(self, path: str, body: Dict[str, Any]) -> AsyncVolume:
        t = self._client.transport.wire.timeout
        r = await self._client.transport.request(
            "POST", path, json=body, timeout=None if t is None else max(t, COPY_SECONDS)
        )
        return AsyncVolume(self._client, r.json())

    async def get(self, name: str) -> AsyncVolume:
        return AsyncVolume(self._client, await self._client.request("GET", f"/volumes/{segment(name)}"))

    async def list(self, *, snapshots: bool = False) -> List[AsyncVolume]:
        """The volumes; with snapshots, their snapshots too."""
        data = await self._client.request("GET", "/volumes", params={"snapshots": "1"} if snapshots else None)
        return [AsyncVolume(self._client, d) for d in items_of(data, "items", "volumes")]

    async def resize(self, name: str, size_gb: Optional[float] = None, *, size_mb: Optional[int] = None) -> AsyncVolume:
        data = await self._client.request("PATCH", f"/volumes/{segment(name)}", json=_size(size_gb, size_mb))
        return AsyncVolume(self._client, data)

    async def snapshot(self, name: str, snapshot: Optional[str] = None) -> AsyncVolume:
        body = {} if snapshot is None else {"name": snapshot}
        return await self._make(f"/volumes/{segment(name)}/snapshots", body)

    async def snapshots(self, name: str) -> List[AsyncVolume]:
        data = await self._client.request("GET", f"/volumes/{segment(name)}/snapshots")
        return [AsyncVolume(self._client, d) for d in items_of(data, "items", "snapshots")]

    async def delete(self, name: str) -> None:
        await self._client.request("DELETE", f"/volumes/{segment(name)}")


class AsyncTokens:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self) -> List[Token]:
        return [Token.from_json(d) for d in items_of(await self._client.request("GET", "/me/tokens"), "items", "tokens")]

    async def create(
        self,
        label: Optional[str] = None,
        *,
        scopes: Optional[List[str]] = None,
        tenant: Optional[str] = None,
        quota: Optional[Mapping[str, int]] = None,
        ttl_seconds: Optional[int] = None,
    ) -> Token:
        """The secret is in ``token`` of the answer, and never shown again.

        scopes are "read", "exec", "sandbox" or "admin"; "sandbox:<id>", alone or beside one of the first
        three, is for one sandbox.
        """
        body = {
            "label": label,
            "scopes": scopes,
            "tenant": tenant,
            "quota": dict(quota) if quota else None,
            "ttl_seconds": ttl_seconds,
        }
        body = {k: v for k, v in body.items() if v is not None}
        return Token.from_json(await self._client.request("POST", "/me/tokens", json=body))

    async def revoke(self, prefix: str, *, cascade: bool = True) -> None:
        """With those that were made with it, unless cascade is False."""
        query = "" if cascade else "?cascade=0"
        await self._client.request("DELETE", f"/me/tokens/{segment(prefix)}{query}")

    async def rotate(self, prefix: str) -> Token:
        """Another secret for the same token, in ``token`` of the answer; the old one ends."""
        return Token.from_json(await self._client.request("POST", f"/me/tokens/{segment(prefix)}/rotate"))


class AsyncTemplates:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self) -> List[Template]:
        return [Template.from_json(d) for d in items_of(await self._client.request("GET", "/templates"), "items", "templates")]

    async def get(self, name: str) -> Template:
        return Template.from_json(await self._client.request("GET", f"/templates/{segment(name)}"))

    async def delete(self, name: str) -> None:
        await self._client.request("DELETE", f"/templates/{segment(name)}")

    async def build(
        self,
        name: str,
        *,
        rootfs: Optional[LocalPath] = None,
        image_ref: Optional[str] = None,
        dockerfile: Optional[str] = None,
        context: Optional[Mapping[str, LocalPath]] = None,
        build_args: Optional[Mapping[str, str]] = None,
        size_mb: int = 1024,
        cpu: Optional[int] = None,
        memory_mb: Optional[int] = None,
        replace: bool = False,
    ) -> TemplateBuild:
        """Starts a build from exactly one of: an archive (of an image, or of a root file system), the name of an image
        that was imported before, the text of a Dockerfile (with context: path in the image's context to local file;
        build_args: values for its ARGs). With rootfs, image_ref says which of several images in the archive."""
        if (rootfs is None and image_ref is None) == (dockerfile is None):
            raise ValueError("give exactly one of rootfs=, image_ref= and dockerfile=")
        fields: Dict[str, str] = {"name": name, "size_mb": str(size_mb)}
        if cpu is not None:
            fields["cpu"] = str(cpu)
        if memory_mb is not None:
            fields["memory_mb"] = str(memory_mb)
        if replace:
            fields["replace"] = "true"
        if image_ref is not None:
            fields["image_ref"] = image_ref
        if dockerfile is not None:
            fields["dockerfile"] = dockerfile
        if build_args:
            fields["build_args"] = dumps(dict(build_args))
        files: Dict[str, LocalPath] = dict(context or {})
        if rootfs is not None:
            files = {"rootfs": rootfs}
        boundary = "pandastack-" + uuid.uuid4().hex
        length, body = multipart(boundary, fields, files)
        r = await self._client.transport.request(
            "POST",
            "/templates/build",
            body=body,
            length=length,
            headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
            timeout=None if self._client.timeout is None else max(self._client.timeout, 600.0),
        )
        return TemplateBuild.from_json(r.json())

    async def import_image(self, name: str, archive: LocalPath, *, image: Optional[str] = None, **options: Any) -> TemplateBuild:
        """Starts to make a template from an archive: of `docker save`, an OCI layout, or a root file system; image: which
        of several in it. options: as of build()."""
        return await self.build(name, rootfs=archive, image_ref=image, **options)

    async def builds(self) -> List[TemplateBuild]:
        data = await self._client.request("GET", "/templates/builds")
        return [TemplateBuild.from_json(d) for d in items_of(data, "items", "builds")]

    async def get_build(self, id: str) -> TemplateBuild:
        return TemplateBuild.from_json(await self._client.request("GET", f"/templates/builds/{segment(id)}"))

    async def build_logs(self, id: str, *, follow: bool = False) -> AsyncIterator[str]:
        """The lines of a build's log."""
        response = await self._client.transport.stream(
            "GET", f"/templates/builds/{segment(id)}/logs", params={"follow": 1 if follow else None}, headers=SSE
        )
        try:
            async for name, data in events_of(response):
                if name == "done":
                    return
                d = load(data)
                yield str(d.get("line", d.get("chunk", data))).rstrip("\n")
        finally:
            await response.close()

    async def wait_for_build(self, id: str, *, timeout: float = 1200.0, interval: float = 1.0) -> TemplateBuild:
        """TemplateBuildError when it failed, SandboxTimeout when it is not done in time."""
        deadline = time.monotonic() + timeout
        while True:
            build = await self.get_build(id)
            if build.status == "failed":
                raise TemplateBuildError(f"template {build.name}: {build.error or 'the build failed'}; see build_logs({id!r})")
            if build.finished:
                return build
            if time.monotonic() + interval > deadline:
                raise SandboxTimeout(f"build {id} is still {build.status!r} after {timeout:g} s")
            await sleep(interval)


def multipart(boundary: str, fields: Mapping[str, str], files: Mapping[str, LocalPath]) -> Tuple[int, Iterable[bytes]]:
    """The length and the pieces of a form; files are opened one after the other while it is sent."""
    heads: List[Tuple[bytes, Optional[LocalPath]]] = []
    length = 0

    def quoted(s: str) -> str:
        return s.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "%0D").replace("\n", "%0A")

    for name, value in fields.items():
        part = f'--{boundary}\r\nContent-Disposition: form-data; name="{quoted(name)}"\r\n\r\n{value}\r\n'.encode()
        heads.append((part, None))
        length += len(part)
    for name, path in files.items():
        base = os.path.basename(os.fspath(path))
        part = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="{quoted(name)}"; filename="{quoted(base)}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        heads.append((part, path))
        length += len(part) + os.stat(path).st_size + 2
    tail = f"--{boundary}--\r\n".encode()

    def pieces() -> Iterator[bytes]:
        for part, path in heads:
            yield part
            if path is None:
                continue
            with open(path, "rb") as f:
                while True:
                    data = f.read(CHUNK)
                    if not data:
                        break
                    yield data
            yield b"\r\n"
        yield tail

    return length + len(tail), pieces()


async def read_events(transport: AsyncTransport, path: str, tail: Optional[int], follow: bool) -> AsyncIterator[Event]:
    if not follow:
        r = await transport.request("GET", path, params={"tail": tail})
        for d in items_of(r.json(), "events", "items"):
            yield Event.from_json(d)
        return
    response = await transport.stream("GET", path, params={"tail": tail, "follow": 1}, headers=SSE)
    try:
        async for _, data in events_of(response):
            yield Event.from_json(load(data))
    finally:
        await response.close()


# The client of those who name none

_lock = threading.Lock()
_chosen: Optional[AsyncClient] = None
_made: Dict[Tuple[Optional[str], ...], AsyncClient] = {}
_MADE_MAX = 32


def set_default_async_client(client: Optional[AsyncClient]) -> None:
    """Used by everything that is not given a client; None goes back to the environment's."""
    global _chosen
    _chosen = client


def client_for(
    client: Optional[AsyncClient] = None, api_key: Optional[str] = None, api_url: Optional[str] = None
) -> AsyncClient:
    """The client given; else one for that key and URL; else the default one."""
    if client is not None:
        return client
    if api_key is None and api_url is None and _chosen is not None:
        return _chosen
    env = os.environ.get
    # The environment is part of the key: who sets a variable after the first call means it.
    key = (api_key, api_url, env("PANDASTACK_API_KEY"), env("PANDASTACK_TOKEN"), env("PANDASTACK_API"))
    found = _made.get(key)
    if found is None:
        with _lock:
            found = _made.get(key)
            if found is None:
                found = AsyncClient(api_key, api_url)
                if len(_made) >= _MADE_MAX:
                    _made.clear()
                _made[key] = found
    return found
