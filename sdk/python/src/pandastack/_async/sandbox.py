"""The sandbox."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Dict,
    Generator,
    List,
    Mapping,
    Optional,
    Sequence,
    Type,
    Union,
    overload,
)

from .._http import segment
from ..exceptions import NotFoundError, PandastackError
from ..types import (
    Checkpoint,
    Diff,
    Event,
    ExecInfo,
    ExecResult,
    Lifecycle,
    MergeResult,
    Port,
    PromoteResult,
    RewindResult,
    SandboxInfo,
    Snapshot,
    Template,
    VolumeMount,
    items_of,
)
from .code import AsyncCodeContext, language_of
from .commands import (
    SSE,
    AsyncCommand,
    AsyncCommandStream,
    Callback,
    Cmd,
    answer_timeout,
    check_result,
    events_of,
    exec_body,
    load,
)
from .filesystem import AsyncFilesystem
from .terminal import AsyncTerminal
from .volume import AsyncVolume

if TYPE_CHECKING:
    from .client import AsyncClient

DEFAULT_TEMPLATE = "ubuntu-24.04"
INLINE_MAX = 40 << 10  # code that fits into a command line: the guest takes 64 KiB with its environment
SNAPSHOT_SECONDS = 180.0

VolumeLike = Union[VolumeMount, AsyncVolume, Mapping[str, Any], str]

# How a fresh interpreter gets its code: on its command line, or, when that is too long, as its input.
_INTERPRETERS = {
    "python": ("exec python3 -c {}", "exec python3 -"),
    "javascript": ("exec node -e {}", "exec node -"),
    "bash": ("exec bash -c {}", "exec bash -s"),
}


def _volume(v: VolumeLike) -> Dict[str, Any]:
    if isinstance(v, VolumeMount):
        return v.to_json()
    if isinstance(v, AsyncVolume):
        return v.mount().to_json()
    if isinstance(v, str):
        return {"name": v}
    return dict(v)


def list_params(
    status: Optional[str], template: Optional[str], metadata: Optional[Mapping[str, str]], parent_id: Optional[str]
) -> Dict[str, Optional[str]]:
    params = {"status": status, "template": template, "parent_id": parent_id}
    for k, v in (metadata or {}).items():
        params[f"metadata.{k}"] = str(v)
    return params


class AsyncSandbox:
    """A machine of its own for code nobody reviewed.

    Use it in a ``with`` block: it is killed at the end, unless it was created persistent. What it was at
    creation is in its attributes; refresh() asks again.
    """

    def __init__(
        self,
        template: str = DEFAULT_TEMPLATE,
        *,
        ttl_seconds: Optional[int] = None,
        persistent: bool = False,
        metadata: Optional[Mapping[str, str]] = None,
        volumes: Optional[Sequence[VolumeLike]] = None,
        egress_allowlist: Optional[Sequence[str]] = None,
        egress: Optional[str] = None,
        egress_limits: Optional[Mapping[str, int]] = None,
        env: Optional[Mapping[str, str]] = None,
        name: Optional[str] = None,
        cpu: Optional[int] = None,
        memory_mb: Optional[int] = None,
        disk_gb: Optional[int] = None,
        from_snapshot: Optional[str] = None,
        auto_hibernate_seconds: Optional[int] = None,
        snapshots_keep: Optional[int] = None,
        snapshots_max_age_seconds: Optional[int] = None,
        idle_seconds: Optional[int] = None,
        checkpoints: Optional[str] = None,
        client: Optional[AsyncClient] = None,
        api_key: Optional[str] = None,
        api_url: Optional[str] = None,
    ) -> None:
        from .client import client_for

        body: Dict[str, Any] = {
            "template": template if from_snapshot is None else None,
            "from_snapshot": from_snapshot,
            "ttl_seconds": ttl_seconds,
            "persistent": True if persistent else None,
            "metadata": {str(k): str(v) for k, v in metadata.items()} if metadata else None,
            "volumes": [_volume(v) for v in volumes] if volumes else None,
            "egress_allowlist": list(egress_allowlist) if egress_allowlist is not None else None,
            "egress": egress,
            "egress_limits": dict(egress_limits) if egress_limits else None,
            "env": {str(k): str(v) for k, v in env.items()} if env else None,
            "name": name,
            "cpu": cpu,
            "memory_mb": memory_mb,
            "disk_gb": disk_gb,
            "auto_hibernate_seconds": auto_hibernate_seconds,
            "snapshots_keep": snapshots_keep,
            "snapshots_max_age_seconds": snapshots_max_age_seconds,
            "idle_seconds": idle_seconds,
            "checkpoints": checkpoints,
        }
        self._bind(client_for(client, api_key, api_url), None)
        self._spec: Optional[Dict[str, Any]] = {k: v for k, v in body.items() if v is not None}
        # sync: self._ensure()

    def _bind(self, client: AsyncClient, info: Optional[SandboxInfo]) -> None:
        self.client = client
        self._transport = client.transport
        self._spec = None
        self._info = info
        self._path = f"/sandboxes/{segment(info.id)}" if info is not None else ""

    async def _ensure(self) -> None:
        spec = self._spec
        if spec is None:
            return
        # The first sandbox of a template waits for its boot.
        r = await self._transport.request("POST", "/sandboxes", json=spec, timeout=self._at_least(SNAPSHOT_SECONDS))
        info = SandboxInfo.from_json(r.json())
        info.persistent = info.persistent or bool(spec.get("persistent"))
        self._bind(self.client, info)

    @classmethod
    def from_info(cls, client: AsyncClient, info: Mapping[str, Any]) -> AsyncSandbox:
        """A handle for a sandbox that the server described already; asks nobody."""
        sb = cls.__new__(cls)
        sb._bind(client, SandboxInfo.from_json(info))
        return sb

    @classmethod
    async def create(
        cls,
        template: str = DEFAULT_TEMPLATE,
        *,
        ttl_seconds: Optional[int] = None,
        persistent: bool = False,
        metadata: Optional[Mapping[str, str]] = None,
        volumes: Optional[Sequence[VolumeLike]] = None,
        egress_allowlist: Optional[Sequence[str]] = None,
        egress: Optional[str] = None,
        egress_limits: Optional[Mapping[str, int]] = None,
        env: Optional[Mapping[str, str]] = None,
        name: Optional[str] = None,
        cpu: Optional[int] = None,
        memory_mb: Optional[int] = None,
        disk_gb: Optional[int] = None,
        from_snapshot: Optional[str] = None,
        auto_hibernate_seconds: Optional[int] = None,
        snapshots_keep: Optional[int] = None,
        snapshots_max_age_seconds: Optional[int] = None,
        idle_seconds: Optional[int] = None,
        checkpoints: Optional[str] = None,
        client: Optional[AsyncClient] = None,
        api_key: Optional[str] = None,
        api_url: Optional[str] = None,
    ) -> AsyncSandbox:
        """Makes a sandbox and returns when it runs.

        ttl_seconds: it ends that long after its creation, whatever happens. persistent: neither an idle time
        nor the end of a ``with`` block ends it. egress_allowlist: names and *.names (HTTPS and HTTP),
        name:port, name:port/udp, addresses and networks it may reach; [] for none. egress_limits: connections, up_kbit, down_kbit.
        env: for every command. auto_hibernate_seconds: it sleeps when idle that long, and wakes by itself. from_snapshot: begin there instead of at a template. checkpoints:
        "auto" for one before every command, to rewind() to. snapshots_keep, snapshots_max_age_seconds: of its
        snapshots without a name, how many stay and how long.
        """
        sb = cls(
            template,
            ttl_seconds=ttl_seconds,
            persistent=persistent,
            metadata=metadata,
            volumes=volumes,
            egress_allowlist=egress_allowlist,
            egress=egress,
            egress_limits=egress_limits,
            env=env,
            name=name,
            cpu=cpu,
            memory_mb=memory_mb,
            disk_gb=disk_gb,
            from_snapshot=from_snapshot,
            auto_hibernate_seconds=auto_hibernate_seconds,
            snapshots_keep=snapshots_keep,
            snapshots_max_age_seconds=snapshots_max_age_seconds,
            idle_seconds=idle_seconds,
            checkpoints=checkpoints,
            client=client,
            api_key=api_key,
            api_url=api_url,
        )
        await sb._ensure()
        return sb

    @classmethod
    async def from_snapshot(cls, snapshot: str, **options: Any) -> AsyncSandbox:
        """A new sandbox that continues at a snapshot; options as for create()."""
        return await cls.create(from_snapshot=str(snapshot), **options)

    @classmethod
    async def get(
        cls,
        id: str,
        *,
        client: Optional[AsyncClient] = None,
        api_key: Optional[str] = None,
        api_url: Optional[str] = None,
    ) -> AsyncSandbox:
        """The sandbox with that id. NotFoundError when there is none."""
        from .client import client_for

        c = client_for(client, api_key, api_url)
        r = await c.transport.request("GET", f"/sandboxes/{segment(id)}")
        return cls.from_info(c, r.json())

    connect = get

    @classmethod
    async def list(
        cls,
        *,
        status: Optional[str] = None,
        template: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
        parent_id: Optional[str] = None,
        client: Optional[AsyncClient] = None,
        api_key: Optional[str] = None,
        api_url: Optional[str] = None,
    ) -> List[AsyncSandbox]:
        """Those of this key, newest first."""
        from .client import client_for

        c = client_for(client, api_key, api_url)
        return await c.sandboxes.list(status=status, template=template, metadata=metadata, parent_id=parent_id)

    # async-only
    async def _made(self) -> AsyncSandbox:
        await self._ensure()
        return self

    def __await__(self) -> Generator[Any, None, AsyncSandbox]:
        """``sb = await AsyncSandbox(...)`` is create() in another spelling."""
        return self._made().__await__()

    # end

    async def __aenter__(self) -> AsyncSandbox:
        await self._ensure()
        return self

    async def __aexit__(
        self, t: Optional[Type[BaseException]], e: Optional[BaseException], tb: Optional[TracebackType]
    ) -> None:
        if self._info is None or self._info.persistent:
            return
        try:
            await self.kill()
        except PandastackError:
            if e is None:
                raise  # otherwise what went wrong in the body matters more

    # What it is

    @property
    def info(self) -> SandboxInfo:
        if self._info is None:
            raise RuntimeError("this sandbox was not created yet: use it in 'async with', or await it")
        return self._info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def template(self) -> str:
        return self.info.template

    @property
    def status(self) -> str:
        return self.info.status

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def cpu(self) -> int:
        return self.info.cpu

    @property
    def memory_mb(self) -> int:
        return self.info.memory_mb

    @property
    def disk_gb(self) -> int:
        return self.info.disk_gb

    @property
    def guest_ip(self) -> str:
        return self.info.guest_ip

    @property
    def host_tap(self) -> str:
        return self.info.host_tap

    @property
    def mac(self) -> str:
        return self.info.mac

    @property
    def vsock_cid(self) -> int:
        return self.info.vsock_cid

    @property
    def metadata(self) -> Dict[str, str]:
        return self.info.metadata

    @property
    def boot_ms(self) -> int:
        return self.info.boot_ms

    @property
    def boot_mode(self) -> str:
        return self.info.boot_mode

    @property
    def created_at(self) -> str:
        return self.info.created_at

    @property
    def isolation(self) -> str:
        return self.info.isolation

    @property
    def preview_name(self) -> str:
        return self.info.preview_name

    @property
    def runner(self) -> str:
        return self.info.runner

    @property
    def persistent(self) -> bool:
        return self.info.persistent

    @property
    def ttl_seconds(self) -> Optional[int]:
        return self.info.ttl_seconds

    @property
    def expires_at(self) -> Optional[str]:
        return self.info.expires_at

    @property
    def parent_id(self) -> Optional[str]:
        return self.info.parent_id

    @property
    def fork_tree_id(self) -> Optional[str]:
        return self.info.fork_tree_id

    @property
    def volumes(self) -> List[Dict[str, Any]]:
        return self.info.volumes

    @property
    def egress_allowlist(self) -> Optional[List[str]]:
        return self.info.egress_allowlist

    @property
    def end_reason(self) -> str:
        return self.info.end_reason

    def __repr__(self) -> str:
        if self._info is None:
            return f"<{type(self).__name__} not created yet>"
        return f"<{type(self).__name__} {self.id} {self.template} {self.status}>"

    async def refresh(self) -> AsyncSandbox:
        """Asks the server again; does not wake it."""
        r = await self._transport.request("GET", self._path)
        self._info = SandboxInfo.from_json(r.json())
        return self

    # Commands

    async def exec(
        self,
        cmd: Cmd,
        timeout_seconds: Optional[float] = None,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Union[str, bytes, None] = None,
        max_output_bytes: Optional[int] = None,
        on_stdout: Optional[Callback] = None,
        on_stderr: Optional[Callback] = None,
        check: bool = False,
    ) -> ExecResult:
        """Runs a command (text: by the shell; a list: as it stands) and waits for its end.

        A non-zero exit code is no exception unless check is set, nor is a timeout: exit_code 124, timed_out and
        the output so far. timeout_seconds: the server's default (60) when not given, 0 for none. The callbacks
        get the output while the command runs. max_output_bytes: what is kept of each stream, 1 MiB when not
        given, at most 16 MiB; the result's truncated says that there was more.
        """
        body = exec_body(cmd, timeout_seconds, cwd, env, user, stdin)
        if max_output_bytes is not None:
            body["max_output_bytes"] = max_output_bytes
        timeout = answer_timeout(self._transport.wire.timeout, timeout_seconds)
        if on_stdout is None and on_stderr is None:
            r = await self._transport.request("POST", self._path + "/exec", json=body, timeout=timeout)
            result = ExecResult.from_json(r.json())
        else:
            result = await AsyncCommandStream(
                self._transport, self._path + "/exec/stream", body, timeout, on_stdout, on_stderr
            ).wait()
        if self.info.status == "hibernated":
            self.info.status = "running"  # that woke it
        if check:
            check_result(cmd, result)
        return result

    async def run(self, cmd: str, timeout: Optional[float] = None, *, check: bool = False) -> ExecResult:
        """A shell command; in templates whose runner is "python", statements for the resident interpreter."""
        if self.runner != "python":
            return await self.exec(cmd, timeout, check=check)
        result = (await self.code_context("default").run_code(cmd, timeout_seconds=timeout)).as_exec_result()
        if check:
            check_result(cmd, result)
        return result

    @property
    def commands(self) -> AsyncCommands:
        return AsyncCommands(self)

    def stream(
        self,
        cmd: Cmd,
        timeout_seconds: Optional[float] = None,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Union[str, bytes, None] = None,
        on_stdout: Optional[Callback] = None,
        on_stderr: Optional[Callback] = None,
    ) -> AsyncCommandStream:
        """A command's output as it comes: iterate over the answer, then look at its ``result``.

        With callbacks it runs to its end and calls them on the way (the asyncio one: when awaited).
        """
        s = AsyncCommandStream(
            self._transport,
            self._path + "/exec/stream",
            exec_body(cmd, timeout_seconds, cwd, env, user, stdin),
            answer_timeout(self._transport.wire.timeout, timeout_seconds),
            on_stdout,
            on_stderr,
        )
        # sync: if on_stdout is not None or on_stderr is not None:
        # sync:     s.wait()
        return s

    async def run_code(
        self,
        code: str,
        language: str = "python",
        *,
        timeout_seconds: Optional[float] = None,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        max_output_bytes: Optional[int] = None,
        on_stdout: Optional[Callback] = None,
        on_stderr: Optional[Callback] = None,
        check: bool = False,
    ) -> ExecResult:
        """Runs code in a fresh interpreter: python, javascript (node) or bash. Nothing stays in memory between
        calls; create_code_context() is for that."""
        forms = _INTERPRETERS.get(language_of(language))
        if forms is None:
            raise ValueError(f"no interpreter for {language!r}; known: {', '.join(sorted(_INTERPRETERS))}")
        quoted = shlex.quote(code)
        stdin = None
        if len(quoted.encode()) <= INLINE_MAX:
            cmd = forms[0].format(quoted)
        else:
            cmd, stdin = forms[1], code
        return await self.exec(
            cmd,
            timeout_seconds,
            cwd=cwd,
            env=env,
            stdin=stdin,
            max_output_bytes=max_output_bytes,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            check=check,
        )

    async def start(
        self,
        cmd: Cmd,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        timeout_seconds: Optional[float] = None,
        stdin: bool = False,
        hold: bool = False,
        pty: bool = False,
        rows: Optional[int] = None,
        cols: Optional[int] = None,
    ) -> AsyncCommand:
        """Starts a detached command and returns its handle. It survives this process, the network, pandad,
        forks and hibernation. hold: it waits for who reads its output; else the last 256 KiB of each stream are kept."""
        body = exec_body(cmd, timeout_seconds, cwd, env, user)
        if stdin:
            body["stdin"] = True
        if hold:
            body["hold"] = True
        if pty:
            body["pty"] = True
        if rows is not None:
            body["rows"] = rows
        if cols is not None:
            body["cols"] = cols
        d = (await self._transport.request("POST", self._path + "/execs", json=body)).json()
        shown = cmd if isinstance(cmd, str) else " ".join(cmd)
        return AsyncCommand(self._transport, self.id, str(d["id"]), int(d.get("pid") or 0), shown)

    async def execs(self) -> List[ExecInfo]:
        """The commands this sandbox knows, running and ended."""
        r = await self._transport.request("GET", self._path + "/execs")
        return [ExecInfo.from_json(d) for d in items_of(r.json(), "execs", "items")]

    async def attach(self, id: Union[str, int]) -> AsyncCommand:
        """The handle of a command started earlier, here or elsewhere. NotFoundError when there is none."""
        command = AsyncCommand(self._transport, self.id, str(id))
        await command.info()
        return command

    # Code contexts

    async def create_code_context(self, language: str = "python") -> AsyncCodeContext:
        """A new interpreter that keeps its variables."""
        language = language_of(language)
        r = await self._transport.request("POST", self._path + "/repl/sessions", json={"language": language})
        d = r.json()
        return AsyncCodeContext(self._transport, self._path, str(d.get("id") or d["session_id"]), language)

    repl = create_code_context

    def code_context(self, id: str, language: str = "python") -> AsyncCodeContext:
        """The handle of an existing one (in a fork: the parent's ids); asks nobody."""
        return AsyncCodeContext(self._transport, self._path, id, language)

    async def code_contexts(self) -> List[AsyncCodeContext]:
        r = await self._transport.request("GET", self._path + "/repl/sessions")
        return [self.code_context(str(d.get("id")), str(d.get("language"))) for d in items_of(r.json(), "sessions", "items")]

    # Files

    @property
    def filesystem(self) -> AsyncFilesystem:
        self.info  # says what is missing when it was not created yet
        return AsyncFilesystem(self._transport, self._path)

    files = filesystem

    async def read(self, path: str) -> bytes:
        return await self.filesystem.read(path)

    async def write(self, path: str, data: Union[str, bytes]) -> None:
        await self.filesystem.write(path, data)

    # Life

    async def _life(self, verb: str, status: str) -> None:
        await self._transport.request("POST", f"{self._path}/{verb}", timeout=self._at_least(SNAPSHOT_SECONDS))
        self.info.status = status

    def _at_least(self, seconds: float) -> Optional[float]:
        t = self._transport.wire.timeout
        return None if t is None else max(t, seconds)

    async def pause(self) -> None:
        """Stops its processors; memory stays."""
        await self._life("pause", "paused")

    async def resume(self) -> None:
        await self._life("resume", "running")

    async def hibernate(self) -> None:
        """Puts it to disk. The next command, file or terminal request wakes it."""
        await self._life("hibernate", "hibernated")

    async def wake(self) -> None:
        """Fine when it is awake."""
        await self._life("wake", "running")

    async def kill(self) -> bool:
        """Ends it. True when this call did it, False when it was gone already."""
        if self._info is None:
            return False
        try:
            await self._transport.request("DELETE", self._path)
            gone = False
        except NotFoundError:
            gone = True
        self._info.status = "deleted"
        return not gone

    async def close(self) -> None:
        """The same as kill()."""
        await self.kill()

    async def snapshot(self, name: Optional[str] = None) -> Snapshot:
        """Freezes memory and disk under an id; the sandbox goes on. Sandbox.from_snapshot() starts from it."""
        r = await self._transport.request(
            "POST",
            self._path + "/snapshots",
            json=None if name is None else {"name": name},
            timeout=self._at_least(SNAPSHOT_SECONDS),
        )
        return Snapshot.from_json(r.json())

    async def save_as_template(self, name: str, *, replace: bool = False) -> Template:
        """A template of that name: its sandboxes start exactly where this one is now, memory and disk.

        ConflictError when there is one, unless replace. This sandbox goes on."""
        r = await self._transport.request(
            "POST",
            self._path + "/save-as-template",
            json={"name": name, "replace": replace},
            timeout=self._at_least(SNAPSHOT_SECONDS),
        )
        return Template.from_json(r.json())

    @overload
    async def fork(self, n: None = None, *, metadata: Optional[Mapping[str, str]] = None) -> AsyncSandbox:
        ...

    @overload
    async def fork(self, n: int, *, metadata: Optional[Mapping[str, str]] = None) -> List[AsyncSandbox]:
        ...

    async def fork(
        self, n: Optional[int] = None, *, metadata: Optional[Mapping[str, str]] = None
    ) -> Union[AsyncSandbox, List[AsyncSandbox]]:
        """A live copy: memory, processes, files. fork() is one sandbox, fork(n) a list of n."""
        body: Dict[str, Any] = {}
        if n is not None:
            if n < 1:
                raise ValueError("fork(n) needs n >= 1")
            body["count"] = n
        if metadata:
            body["metadata"] = {str(k): str(v) for k, v in metadata.items()}
        r = await self._transport.request("POST", self._path + "/fork", json=body or None, timeout=self._at_least(SNAPSHOT_SECONDS))
        children = self._children(r.json())
        if n is not None:
            return children
        if not children:
            raise PandastackError("the server forked nothing and did not say why", response=r.json())
        return children[0]

    async def fork_tree(self, count: int = 2, *, metadata: Optional[Mapping[str, str]] = None) -> AsyncForkTree:
        """count live copies of the same instant, as a list that knows its tree_id and what failed."""
        body: Dict[str, Any] = {"count": count}
        if metadata:
            body["metadata"] = {str(k): str(v) for k, v in metadata.items()}
        r = await self._transport.request("POST", self._path + "/fork-tree", json=body, timeout=self._at_least(SNAPSHOT_SECONDS))
        d = r.json()
        tree = AsyncForkTree(self._children(d))
        if isinstance(d, dict):
            tree.tree_id = str(d.get("tree_id") or "")
            tree.errors = list(d.get("errors") or ())
            for child in tree:
                child.info.fork_tree_id = child.info.fork_tree_id or tree.tree_id or None
        return tree

    def _children(self, d: Any) -> List[AsyncSandbox]:
        """The children in an answer, in whichever of its known shapes. What is missing is the parent's."""
        found: Any = d
        if isinstance(d, dict):
            for key in ("sandboxes", "items", "children", "sandbox"):
                if d.get(key):
                    found = d[key]
                    break
        if not isinstance(found, list):
            found = [found]
        parent = {k: self.info.raw.get(k) for k in ("template", "cpu", "memory_mb", "disk_gb", "runner", "isolation")}
        parent["persistent"] = self.info.persistent
        parent["status"] = "running"
        parent["parent_id"] = self.id
        children = []
        for c in found:
            own = {"id": c} if isinstance(c, str) else dict(c)
            if own.get("id"):
                children.append(type(self).from_info(self.client, {**parent, **own}))
        return children

    async def promote(self, *, cleanup_siblings: bool = False, tree_id: Optional[str] = None) -> PromoteResult:
        """Names this one the winner of its fork tree; cleanup_siblings ends the others."""
        body: Dict[str, Any] = {"cleanup_siblings": cleanup_siblings}
        tree_id = tree_id or self.fork_tree_id
        if tree_id:
            body["tree_id"] = tree_id
        r = await self._transport.request("POST", self._path + "/promote", json=body)
        return PromoteResult.from_json(r.json())

    # Going back, comparing, racing

    async def checkpoint(self, name: Optional[str] = None) -> Checkpoint:
        """Remembers this moment, in memory, for rewind(). About a millisecond; gone after hibernation."""
        r = await self._transport.request("POST", self._path + "/checkpoints", json={"name": name or ""})
        return Checkpoint.from_json(r.json())

    async def checkpoints(self) -> List[Checkpoint]:
        """Those there are, newest first."""
        r = await self._transport.request("GET", self._path + "/checkpoints")
        return [Checkpoint.from_json(c) for c in items_of(r.json(), "checkpoints")]

    async def set_checkpoints(self, policy: str = "auto") -> Lifecycle:
        """"auto": one before every command and cell from now on; "off": not any more."""
        r = await self._transport.request("PATCH", self._path + "/lifecycle", json={"checkpoints": policy})
        return Lifecycle.from_json(r.json())

    async def rewind(self, steps: Optional[int] = None, *, to: Optional[str] = None) -> RewindResult:
        """Puts this very sandbox back: by steps (1 when nothing is given), or to a checkpoint's id or name.

        Memory, processes and disk are as they were then; id, URLs, metadata and lifetime stay. Volumes keep what is on
        them, and are mounted anew when they were written: files that were open on them then give I/O errors."""
        body: Dict[str, Any] = {"to": str(to)} if to is not None else {"steps": 1 if steps is None else steps}
        if to is not None and steps is not None:
            raise ValueError("rewind() takes steps or to, not both")
        r = await self._transport.request("POST", self._path + "/rewind", json=body, timeout=self._at_least(SNAPSHOT_SECONDS))
        self.info.status = "running"
        return RewindResult.from_json(r.json())

    async def attach_volume(
        self,
        volume: VolumeLike,
        path: Optional[str] = None,
        read_only: bool = False,
        *,
        mount: Optional[str] = None,
        readonly: Optional[bool] = None,
    ) -> List[Dict[str, Any]]:
        """Mounts one more volume while it runs; without a path at /mnt/<name>. Returns all it has."""
        body = _volume(volume)
        if path is not None or mount is not None:
            body["path"] = path if path is not None else mount
        if read_only or readonly:
            body["read_only"] = True
        r = await self._transport.request("POST", self._path + "/volumes", json=body, timeout=self._at_least(SNAPSHOT_SECONDS))
        self.info.volumes = r.json()
        return self.info.volumes

    async def detach_volume(self, volume: VolumeLike, *, force: bool = False) -> None:
        """Unmounts it, clean for the next one. ConflictError while processes use it; with force they get I/O errors."""
        body = _volume(volume)
        name = str(body.get("name") or body.get("id"))
        await self._transport.request(
            "DELETE",
            self._path + f"/volumes/{segment(name)}",
            params={"force": "1"} if force else None,
            timeout=self._at_least(SNAPSHOT_SECONDS),
        )
        self.info.volumes = [v for v in self.info.volumes if v.get("name") != name]

    async def diff(self, to: Any = None, *, from_: Any = None, unified: bool = False) -> Diff:
        """Files that are different: from this sandbox to another (a sandbox, snapshot or checkpoint, or its id),
        with from_ from that one to this; with neither, from the template to this one."""
        if to is not None and from_ is not None:
            raise ValueError("diff() takes to or from_, not both")
        other = to if to is not None else from_
        params: Dict[str, Any] = {"unified": "1"} if unified else {}
        if other is not None:
            params["to" if to is not None else "from"] = str(getattr(other, "id", other))
        r = await self._transport.request(
            "GET", self._path + "/diff", params=params, timeout=self._at_least(SNAPSHOT_SECONDS)
        )
        return Diff.from_json(r.json())

    async def merge(self, child: Any, *, conflicts: str = "stop", dry_run: bool = False) -> MergeResult:
        """Brings the file changes a child has made since its fork into this sandbox.

        Files written on both sides are conflicts: "stop" then does nothing, "theirs" takes the child's."""
        r = await self._transport.request(
            "POST",
            self._path + "/merge",
            json={"child": str(getattr(child, "id", child)), "conflicts": conflicts, "dry_run": dry_run},
            timeout=self._at_least(SNAPSHOT_SECONDS),
        )
        return MergeResult.from_json(r.json())

    async def race(
        self,
        commands: Sequence[Union[str, Mapping[str, Any]]],
        *,
        accept: str = "exit_code == 0",
        timeout_seconds: float = 60,
    ) -> AsyncRace:
        """Forks this sandbox for each command, keeps the first child whose command passes, kills the others.

        The answer's winner is that child, or None when none passed."""
        r = await self._transport.request(
            "POST",
            self._path + "/race",
            json={
                "commands": [c if isinstance(c, str) else dict(c) for c in commands],
                "accept": accept,
                "timeout_seconds": timeout_seconds,
            },
            timeout=None if timeout_seconds == 0 else self._at_least(timeout_seconds + 30),
        )
        d = r.json()
        won = d.get("winner")
        return AsyncRace(
            winner=type(self).from_info(self.client, won) if won else None,
            result=ExecResult.from_json(d["result"]) if d.get("result") else None,
            index=d.get("winner_index"),
            outcomes=list(d.get("outcomes") or ()),
            took_ms=float(d.get("took_ms") or 0),
        )

    async def lifecycle(self) -> Lifecycle:
        return Lifecycle.from_json((await self._transport.request("GET", self._path + "/lifecycle")).json())

    async def set_ttl(self, seconds: int) -> Lifecycle:
        """It ends that many seconds after its creation."""
        r = await self._transport.request("PATCH", self._path + "/lifecycle", json={"ttl_seconds": seconds})
        self.info.ttl_seconds = seconds
        return Lifecycle.from_json(r.json())

    async def set_persistent(self, persistent: bool = True) -> Lifecycle:
        r = await self._transport.request("PATCH", self._path + "/lifecycle", json={"persistent": persistent})
        self.info.persistent = persistent
        return Lifecycle.from_json(r.json())

    # Network

    async def set_egress(self, allowlist: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """What it may reach from now on: names, *.names, name:port, addresses, CIDRs; [] is nothing, None the host's default.

        Connections that are no longer allowed are cut. Answers what egress() does.
        """
        body: Dict[str, Any] = {"egress_allowlist": None if allowlist is None else list(allowlist)}
        r = await self._transport.request("PATCH", self._path + "/egress", json=body)
        return dict(r.json())

    async def egress(self) -> Dict[str, Any]:
        """What it may reach, its address on the host, and what it sent, received and was refused."""
        r = await self._transport.request("GET", self._path + "/egress")
        return dict(r.json())

    async def ports(self) -> List[Port]:
        """What listens in it, and what was declared."""
        r = await self._transport.request("GET", self._path + "/ports")
        return [Port.from_json(d) for d in items_of(r.json(), "ports", "items")]

    async def add_port(self, port: int, label: Optional[str] = None) -> Port:
        body: Dict[str, Any] = {"port": port}
        if label is not None:
            body["label"] = label
        return Port.from_json((await self._transport.request("POST", self._path + "/ports", json=body)).json())

    async def remove_port(self, port: int) -> None:
        await self._transport.request("DELETE", f"{self._path}/ports/{int(port)}")

    def url(self, port: int, path: str = "/") -> str:
        """A port through the API itself: works wherever the API does, and needs the same Authorization header."""
        return f"{self.client.api_url}/v1{self._path}/proxy/{int(port)}/{path.lstrip('/')}"

    def preview_url(self, port: int, scheme: Optional[str] = None) -> str:
        """The public address of a port that was declared (add_port). Asks nobody."""
        target = self._transport.wire.target
        host = self.client.preview_host
        if host is None:
            host = target.host[4:] if target.host.startswith("api.") else target.host
            if host in ("127.0.0.1", "::1"):
                host = "localhost"  # browsers resolve every name below it to this machine
            standard = {"http": 80, "https": 443}[target.scheme]
            if target.port != standard:
                host = f"{host}:{target.port}"
        return f"{scheme or target.scheme}://{int(port)}-{self.info.preview_name or self.id}.{host}"

    async def preview_urls(self) -> Dict[int, str]:
        """Of every port that listens or was declared; visitors reach those that were declared."""
        return {p.port: p.preview_url or self.preview_url(p.port) for p in await self.ports()}

    async def rotate_preview(self) -> str:
        """Gives it a new preview name; its public addresses and signed links end. Returns the name."""
        d = (await self._transport.request("POST", self._path + "/preview/rotate")).json()
        await self.refresh()
        return str(d.get("preview_name", ""))

    async def signed_preview_url(
        self, port: int, ttl_seconds: Optional[int] = None, *, paths: Optional[Sequence[str]] = None
    ) -> str:
        """A link to a port that needs no key and stops working after ttl_seconds (the server's default: 1 h)."""
        body: Dict[str, Any] = {"port": port}
        if ttl_seconds is not None:
            body["ttl_seconds"] = ttl_seconds
        if paths is not None:
            body["paths"] = list(paths)
        d = (await self._transport.request("POST", self._path + "/preview-token", json=body)).json()
        url = str(d.get("url") or f"/v1/p/{d.get('token', '')}/")
        return url if "://" in url else self.client.api_url + "/" + url.lstrip("/")

    async def terminal(self, rows: int = 24, cols: int = 80, *, cmd: Optional[str] = None) -> AsyncTerminal:
        """A login shell (or cmd) on a terminal."""
        return AsyncTerminal(
            await self._transport.websocket(self._path + "/exec/pty", {"rows": rows, "cols": cols, "cmd": cmd})
        )

    # What it says about itself

    async def logs(
        self, *, follow: bool = False, tail: Optional[int] = None, stream: Optional[str] = None
    ) -> AsyncIterator[str]:
        """The lines of its console."""
        params = {"tail": tail, "stream": stream, "follow": 1 if follow else None}
        accept = SSE if follow else {"Accept": "text/plain"}
        response = await self._transport.stream("GET", self._path + "/logs", params=params, headers=accept)
        try:
            if follow:
                async for name, data in events_of(response):
                    if name == "open":
                        continue
                    d = load(data)
                    if isinstance(d.get("error"), str):
                        raise PandastackError(d["error"], response=d)
                    line = str(d.get("line", d.get("chunk", data)))
                    yield line[:-1] if line.endswith("\n") else line
                return
            tail_of = b""
            while True:
                chunk = await response.read()
                if not chunk:
                    break
                lines = (tail_of + chunk).split(b"\n")
                tail_of = lines.pop()
                for raw in lines:
                    yield raw.rstrip(b"\r").decode("utf-8", "replace")
            if tail_of:
                yield tail_of.decode("utf-8", "replace")
        finally:
            await response.close()

    async def metrics(self) -> Dict[str, Any]:
        return dict((await self._transport.request("GET", self._path + "/metrics")).json())

    async def events(self, *, tail: Optional[int] = None, follow: bool = False) -> AsyncIterator[Event]:
        """What happened to it."""
        from .client import read_events

        async for event in read_events(self._transport, self._path + "/events", tail, follow):
            yield event


class AsyncCommands:
    """``sb.commands``: another spelling of exec and start."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def run(
        self,
        cmd: Cmd,
        timeout: Optional[float] = None,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Union[str, bytes, None] = None,
        on_stdout: Optional[Callback] = None,
        on_stderr: Optional[Callback] = None,
        check: bool = False,
    ) -> ExecResult:
        return await self._sandbox.exec(
            cmd,
            timeout,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            check=check,
        )

    async def start(self, cmd: Cmd, **options: Any) -> AsyncCommand:
        return await self._sandbox.start(cmd, **options)

    async def list(self) -> List[ExecInfo]:
        return await self._sandbox.execs()


class AsyncForkTree(List[AsyncSandbox]):
    """The children of fork_tree()."""

    tree_id: str = ""
    errors: Sequence[Dict[str, Any]] = ()


@dataclass
class AsyncRace:
    """What came of race(): the child that is kept, how its command ended, and how far the others came."""

    winner: Optional[AsyncSandbox]
    result: Optional[ExecResult]
    index: Optional[int]
    outcomes: List[Dict[str, Any]] = field(default_factory=list)
    took_ms: float = 0
