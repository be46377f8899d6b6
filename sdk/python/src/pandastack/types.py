"""The values that calls return. Unknown fields of newer servers are ignored here and kept in ``raw``."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Union

__all__ = [
    "Chart",
    "Event",
    "ExecInfo",
    "ExecResult",
    "Execution",
    "ExecutionError",
    "FileEvent",
    "FileInfo",
    "Lifecycle",
    "Output",
    "Port",
    "PromoteResult",
    "Result",
    "SandboxInfo",
    "Snapshot",
    "Template",
    "TemplateBuild",
    "Token",
    "VolumeMount",
]

Json = Mapping[str, Any]


def _str(d: Json, key: str) -> str:
    v = d.get(key)
    return v if isinstance(v, str) else "" if v is None else str(v)


def _int(d: Json, key: str, default: int = 0) -> int:
    v = d.get(key)
    return int(v) if isinstance(v, (int, float)) else default


def _opt_int(d: Json, key: str) -> Optional[int]:
    v = d.get(key)
    return int(v) if isinstance(v, (int, float)) else None


def _opt_str(d: Json, key: str) -> Optional[str]:
    v = d.get(key)
    return v if isinstance(v, str) and v else None


@dataclass
class ExecResult:
    """How a command ended. A timeout is a result too: exit_code 124 and timed_out."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    duration_ms: int = 0
    timed_out: bool = False
    signal: Optional[int] = None
    truncated: bool = False  # there was more output than the server keeps; stream to get it all
    oom_killed: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def output(self) -> str:
        """stdout, then stderr: what one shows a model."""
        return self.stdout + self.stderr

    @classmethod
    def from_json(cls, d: Json) -> "ExecResult":
        get = d.get
        return cls(
            get("stdout") or "",
            get("stderr") or "",
            int(get("exit_code") or 0),
            int(get("duration_ms") or 0),
            bool(get("timed_out")),
            get("signal"),
            bool(get("truncated")),
            bool(get("oom_killed")),
        )


@dataclass(frozen=True)
class Output:
    """A piece of what a command wrote. ``offset`` counts the stream's bytes before it."""

    stream: str  # "stdout" or "stderr"
    text: str
    data: bytes
    offset: int = 0


@dataclass
class ExecInfo:
    """A command as the server lists it."""

    id: str
    pid: int
    command: str
    running: bool
    detached: bool
    pty: bool
    exit_code: Optional[int]
    signal: Optional[int]
    timed_out: bool
    stdout_from: int
    stdout_to: int
    stderr_from: int
    stderr_to: int

    @classmethod
    def from_json(cls, d: Json) -> "ExecInfo":
        return cls(
            _str(d, "id"),
            _int(d, "pid"),
            _str(d, "command"),
            bool(d.get("running")),
            bool(d.get("detached")),
            bool(d.get("pty")),
            _opt_int(d, "exit_code"),
            _opt_int(d, "signal"),
            bool(d.get("timed_out")),
            _int(d, "stdout_from"),
            _int(d, "stdout_to"),
            _int(d, "stderr_from"),
            _int(d, "stderr_to"),
        )


CHART = "application/vnd.pandastack.chart.v1+json"


class Chart:
    """What a matplotlib figure shows, as data: ``type`` (line, scatter, bar, pie, box_and_whisker, superchart, unknown),
    ``title``, ``elements``, and x_label, x_unit, x_ticks, x_tick_labels, x_scale, and the same for y.

    Elements of a line or scatter have ``label`` and ``points``; of a bar ``label``, ``group``, ``value``; of a pie
    ``label``, ``angle``, ``radius``; of boxes ``label``, ``min``, ``first_quartile``, ``median``, ``third_quartile``, ``max``,
    ``outliers``. Those of a superchart are charts. What a chart does not have is None; ``raw`` is all of it.
    """

    def __init__(self, raw: Json) -> None:
        self.raw: Dict[str, Any] = dict(raw)
        inner = [e for e in raw.get("elements") or () if isinstance(e, Mapping)]
        self.elements: List[Chart] = [Chart(e) for e in inner]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.raw.get(name)

    def __repr__(self) -> str:
        return f"Chart({self.raw.get('type') or self.raw.get('label')!r}, {len(self.elements)} elements)"


class Result:
    """One thing a cell showed: a value, a table, a chart, in every form it has (``raw``: MIME type to text)."""

    def __init__(self, raw: Mapping[str, str]) -> None:
        self.raw: Dict[str, str] = dict(raw)

    @classmethod
    def from_json(cls, d: Json) -> "Result":
        if isinstance(d.get("type"), str) and "data" in d and "/" in d["type"]:
            d = {d["type"]: d["data"]}
        return cls({k: v if isinstance(v, str) else json.dumps(v) for k, v in d.items() if "/" in k})

    def _bytes(self, mime: str) -> Optional[bytes]:
        v = self.raw.get(mime)
        return None if v is None else base64.b64decode(v)

    @property
    def text(self) -> Optional[str]:
        return self.raw.get("text/plain")

    @property
    def html(self) -> Optional[str]:
        return self.raw.get("text/html")

    @property
    def markdown(self) -> Optional[str]:
        return self.raw.get("text/markdown")

    @property
    def svg(self) -> Optional[str]:
        return self.raw.get("image/svg+xml")

    @property
    def png(self) -> Optional[bytes]:
        """The picture's bytes, ready to be written to a file."""
        return self._bytes("image/png")

    @property
    def jpeg(self) -> Optional[bytes]:
        return self._bytes("image/jpeg")

    @property
    def json(self) -> Any:
        """The decoded value, None when there is none."""
        return self._json("application/json")

    @property
    def plotly(self) -> Any:
        """A plotly figure, as plotly.io.from_json() and Plotly.newPlot() take it."""
        return self._json("application/vnd.plotly.v1+json")

    @property
    def bokeh(self) -> Any:
        """A bokeh figure, as Bokeh.embed.embed_item() takes it."""
        return self._json("application/vnd.bokeh.v1+json")

    @property
    def latex(self) -> Optional[str]:
        return self.raw.get("text/latex")

    @property
    def chart(self) -> Optional[Chart]:
        """What a matplotlib figure shows; its picture is ``png``."""
        v = self._json(CHART)
        return Chart(v) if isinstance(v, Mapping) else None

    def _json(self, mime: str) -> Any:
        v = self.raw.get(mime)
        return None if v is None else json.loads(v)

    def formats(self) -> List[str]:
        return list(self.raw)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, Any]:
        # What notebooks ask for: a Result shown there looks as it did in the sandbox.
        return {k: json.loads(v) if k.split("+")[-1].endswith("json") else v for k, v in self.raw.items()}

    def __str__(self) -> str:
        return self.text or ""

    def __repr__(self) -> str:
        return f"Result({', '.join(self.raw)})"


@dataclass
class ExecutionError:
    """The exception that ended a cell."""

    name: str
    value: str
    traceback: List[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, d: Union[Json, str], traceback: Any = None) -> "ExecutionError":
        if isinstance(d, str):
            lines = d.strip().splitlines()
            said = lines[-1] if lines and lines[0].startswith("Traceback") else d.strip()
            name, _, value = said.partition(":")
            d = {"name": name.strip() or "Error", "value": value.strip(), "traceback": traceback or lines}
        tb = d.get("traceback")
        return cls(
            _str(d, "name"),
            _str(d, "value"),
            [str(x).rstrip("\n") for x in tb] if isinstance(tb, list) else str(tb or "").splitlines(),
        )

    def __str__(self) -> str:
        return "\n".join(self.traceback) or f"{self.name}: {self.value}"


@dataclass
class Execution:
    """What a cell of a code context did."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    duration_ms: int = 0
    results: List[Result] = field(default_factory=list)
    error: Optional[ExecutionError] = None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and self.error is None

    @property
    def text(self) -> Optional[str]:
        """The value of the cell's last expression, as text."""
        return self._last("text/plain")

    @property
    def html(self) -> Optional[str]:
        return self._last("text/html")

    @property
    def svg(self) -> Optional[str]:
        return self._last("image/svg+xml")

    @property
    def png(self) -> Optional[bytes]:
        v = self._last("image/png")
        return None if v is None else base64.b64decode(v)

    @property
    def chart(self) -> Optional[Chart]:
        v = self._last(CHART)
        return None if v is None else Result({CHART: v}).chart

    @property
    def json(self) -> Any:
        v = self._last("application/json")
        return None if v is None else json.loads(v)

    def _last(self, mime: str) -> Optional[str]:
        for r in reversed(self.results):
            if mime in r.raw:
                return r.raw[mime]
        return None

    @classmethod
    def from_json(cls, d: Json) -> "Execution":
        code = d.get("exit")
        if code is None:
            code = d.get("exit_code")
        error = d.get("error")
        return cls(
            _str(d, "stdout"),
            _str(d, "stderr"),
            int(code or 0),
            _int(d, "duration_ms"),
            [Result.from_json(r) for r in d.get("results") or () if isinstance(r, Mapping)],
            ExecutionError.from_json(error, d.get("traceback")) if error else None,
            bool(d.get("timed_out", code == 124)),
        )

    def as_exec_result(self) -> ExecResult:
        """The same as a command's result: what was shown at the end of stdout, the traceback in stderr."""
        out, err, code = self.stdout, self.stderr, self.exit_code
        shown = "".join(r.text + "\n" for r in self.results if r.text is not None)
        if shown and not out.endswith(shown):  # some servers put it there themselves
            out += ("" if not out or out.endswith("\n") else "\n") + shown
        if self.error is not None:
            code = code or 1
            if self.error.name not in err:
                err += str(self.error).rstrip("\n") + "\n"
        return ExecResult(out, err, code, self.duration_ms, self.timed_out)


@dataclass
class FileInfo:
    name: str
    path: str
    is_dir: bool
    size: int
    mode: str  # one letter: f d l c b p s
    perm: str  # "0644"
    uid: int
    gid: int
    mtime: int
    target: Optional[str] = None

    @property
    def is_file(self) -> bool:
        return self.mode == "f"

    @property
    def is_symlink(self) -> bool:
        return self.mode == "l"

    @classmethod
    def from_json(cls, d: Json, path: str) -> "FileInfo":
        is_dir = bool(d.get("is_dir"))
        return cls(
            _str(d, "name"),
            _str(d, "path") or path,
            is_dir,
            _int(d, "size"),
            _str(d, "mode") or ("d" if is_dir else "f"),
            _str(d, "perm"),
            _int(d, "uid"),
            _int(d, "gid"),
            _int(d, "mtime"),
            _opt_str(d, "target"),
        )


@dataclass(frozen=True)
class FileEvent:
    type: str  # created modified written deleted moved_from moved_to attrib overflow gone
    path: str
    is_dir: bool = False
    cookie: int = 0  # the same in a moved_from and its moved_to

    @classmethod
    def from_json(cls, d: Json) -> "FileEvent":
        return cls(_str(d, "type"), _str(d, "path"), bool(d.get("is_dir")), _int(d, "cookie"))


@dataclass
class SandboxInfo:
    """A sandbox as the server described it at one moment."""

    id: str
    template: str = ""
    status: str = "unknown"
    name: str = ""
    cpu: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    guest_ip: str = ""
    host_tap: str = ""
    mac: str = ""
    vsock_cid: int = 0
    metadata: Dict[str, str] = field(default_factory=dict)
    from_snapshot: Optional[str] = None
    boot_ms: int = 0
    boot_mode: str = ""
    created_at: str = ""
    isolation: str = ""
    runner: str = "shell"
    preview_name: str = ""
    persistent: bool = False
    ttl_seconds: Optional[int] = None
    expires_at: Optional[str] = None
    parent_id: Optional[str] = None
    fork_tree_id: Optional[str] = None
    volumes: List[Dict[str, Any]] = field(default_factory=list)
    egress_allowlist: Optional[List[str]] = None
    end_reason: str = ""
    raw: Dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, d: Json) -> "SandboxInfo":
        metadata = d.get("metadata")
        meta: Dict[str, str] = dict(metadata) if isinstance(metadata, Mapping) else {}
        allow = d.get("egress_allowlist")
        return cls(
            id=_str(d, "id"),
            template=_str(d, "template"),
            status=_str(d, "status") or "unknown",
            name=_str(d, "name") or meta.get("name", ""),
            cpu=_int(d, "cpu"),
            memory_mb=_int(d, "memory_mb"),
            disk_gb=_int(d, "disk_gb"),
            guest_ip=_str(d, "guest_ip"),
            host_tap=_str(d, "host_tap"),
            mac=_str(d, "mac"),
            vsock_cid=_int(d, "vsock_cid"),
            metadata=meta,
            from_snapshot=_opt_str(d, "from_snapshot"),
            boot_ms=_int(d, "boot_ms"),
            boot_mode=_str(d, "boot_mode"),
            created_at=_str(d, "created_at"),
            isolation=_str(d, "isolation"),
            runner=_str(d, "runner") or "shell",
            preview_name=_str(d, "preview_name"),
            persistent=bool(d.get("persistent")),
            ttl_seconds=_opt_int(d, "ttl_seconds"),
            expires_at=_opt_str(d, "expires_at"),
            parent_id=_opt_str(d, "parent_id") or meta.get("parent_id"),
            fork_tree_id=_opt_str(d, "fork_tree_id") or meta.get("fork_tree_id"),
            volumes=[dict(v) for v in d.get("volumes") or () if isinstance(v, Mapping)],
            egress_allowlist=list(allow) if isinstance(allow, list) else None,
            end_reason=_str(d, "end_reason"),
            raw=dict(d),
        )


class _Id(str):
    """What is named by its id is that id, as a string, with the rest as attributes."""

    raw: Dict[str, Any]

    @property
    def id(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return str.__str__(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str.__repr__(self)})"


class Snapshot(_Id):
    """A snapshot: its id as a string, with the rest as attributes."""

    sandbox_id: str
    name: str
    template: str
    size_bytes: int
    memory_mb: int
    disk_gb: int
    imported: Optional[str]
    created_at: str
    expires_at: Optional[str]

    @classmethod
    def from_json(cls, d: Json) -> "Snapshot":
        s = cls(_str(d, "id"))
        s.sandbox_id = _str(d, "sandbox_id")
        s.name = _str(d, "name")
        s.template = _str(d, "template")
        s.size_bytes = _int(d, "size_bytes")
        s.memory_mb = _int(d, "memory_mb")
        s.disk_gb = _int(d, "disk_gb")
        s.imported = _opt_str(d, "imported")
        s.created_at = _str(d, "created_at")
        s.expires_at = _opt_str(d, "expires_at")
        s.raw = dict(d)
        return s


class Checkpoint(_Id):
    """A checkpoint: its id as a string, with the rest as attributes."""

    name: str
    automatic: bool
    created_at: str
    size_bytes: int
    stop_ms: float

    @classmethod
    def from_json(cls, d: Json) -> "Checkpoint":
        c = cls(_str(d, "id"))
        c.name = _str(d, "name")
        c.automatic = bool(d.get("automatic"))
        c.created_at = _str(d, "created_at")
        c.size_bytes = _int(d, "size_bytes")
        c.stop_ms = float(d.get("stop_ms") or 0)
        c.raw = dict(d)
        return c


@dataclass
class RewindResult:
    checkpoint_id: str
    generation: int
    took_ms: float

    @classmethod
    def from_json(cls, d: Json) -> "RewindResult":
        return cls(_str(d, "checkpoint_id"), _int(d, "generation"), float(d.get("took_ms") or 0))


@dataclass
class FileChange:
    path: str
    type: str = "file"
    size: int = 0
    mode: str = ""
    unified: str = ""
    raw: Dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, d: Json) -> "FileChange":
        return cls(
            _str(d, "path"), _str(d, "type"), _int(d, "size"), _str(d, "mode"), _str(d, "unified"), dict(d)
        )


@dataclass
class Diff:
    """added: only the second has it; removed: only the first; changed: both, differently."""

    added: List[FileChange]
    changed: List[FileChange]
    removed: List[FileChange]
    truncated: bool = False
    raw: Dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, d: Json) -> "Diff":
        a, c, r = ([FileChange.from_json(x) for x in d.get(k) or ()] for k in ("added", "changed", "removed"))
        return cls(a, c, r, bool(d.get("truncated")), dict(d))

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


@dataclass
class MergeResult:
    applied: bool
    added: List[str]
    changed: List[str]
    removed: List[str]
    conflicts: List[str]

    @classmethod
    def from_json(cls, d: Json) -> "MergeResult":
        lists = [[str(p) for p in d.get(k) or ()] for k in ("added", "changed", "removed", "conflicts")]
        return cls(bool(d.get("applied")), *lists)


@dataclass
class Lifecycle:
    ttl_seconds: Optional[int]
    persistent: bool
    idle_seconds: int
    raw: Dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, d: Json) -> "Lifecycle":
        return cls(_opt_int(d, "ttl_seconds"), bool(d.get("persistent")), _int(d, "idle_seconds"), dict(d))

    def __getitem__(self, key: str) -> Any:
        # Older documents show lifecycle() as a dict.
        return self.raw[key]


@dataclass
class PromoteResult:
    winner: str
    tree_id: str
    deleted: List[str]
    failures: Dict[str, str]

    @classmethod
    def from_json(cls, d: Json) -> "PromoteResult":
        return cls(
            _str(d, "winner"),
            _str(d, "tree_id"),
            [str(x) for x in d.get("deleted") or ()],
            {str(k): str(v) for k, v in (d.get("failures") or {}).items()},
        )


@dataclass
class Port:
    port: int
    label: str
    listening: bool
    source: str  # "user" or "detected"
    proxy_url: str
    preview_url: str = ""  # for everyone; empty when visitors do not reach it

    @classmethod
    def from_json(cls, d: Union[Json, int]) -> "Port":
        if isinstance(d, int):
            return cls(d, "", True, "detected", "")
        return cls(
            _int(d, "port"),
            _str(d, "label"),
            bool(d.get("listening", True)),
            _str(d, "source"),
            _str(d, "proxy_url"),
            _str(d, "preview_url"),
        )


@dataclass
class Event:
    type: str
    time: str
    sandbox_id: str
    payload: Dict[str, Any]

    @classmethod
    def from_json(cls, d: Json) -> "Event":
        payload = d.get("payload") or d.get("metadata")
        return cls(
            _str(d, "type"),
            _str(d, "time") or _str(d, "ts"),
            _str(d, "sandbox_id"),
            dict(payload) if isinstance(payload, Mapping) else {},
        )


@dataclass
class Template:
    name: str
    cpu: int
    memory_mb: int
    size_bytes: int
    runner: str
    aliases: List[str]
    description: str
    raw: Dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, d: Json) -> "Template":
        return cls(
            _str(d, "name"),
            _int(d, "cpu"),
            _int(d, "memory_mb"),
            _int(d, "size_bytes"),
            _str(d, "runner") or "shell",
            [str(a) for a in d.get("aliases") or ()],
            _str(d, "description"),
            dict(d),
        )


@dataclass
class TemplateBuild:
    id: str
    name: str
    status: str
    error: str
    raw: Dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def finished(self) -> bool:
        return self.status in ("done", "failed")

    @classmethod
    def from_json(cls, d: Json) -> "TemplateBuild":
        return cls(_str(d, "id"), _str(d, "name"), _str(d, "status"), _str(d, "error"), dict(d))


@dataclass
class Token:
    prefix: str
    label: str
    created_at: str
    token: Optional[str] = None  # the secret: only in the answer to create
    raw: Dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, d: Json) -> "Token":
        return cls(_str(d, "prefix"), _str(d, "label"), _str(d, "created_at"), _opt_str(d, "token"), dict(d))

    def __repr__(self) -> str:
        return f"Token(prefix={self.prefix!r}, label={self.label!r})"


@dataclass(frozen=True)
class VolumeMount:
    """Where a volume appears in a sandbox; made by Volume.mount()."""

    name: str
    path: Optional[str] = None  # None: /mnt/<name>
    read_only: bool = False

    def to_json(self) -> Dict[str, Any]:
        d: Dict[str, Any] = {"name": self.name}
        if self.path is not None:
            d["path"] = self.path
        if self.read_only:
            d["read_only"] = True
        return d


def items_of(data: Any, *keys: str) -> List[Any]:
    """A list that some servers send bare and some under a key; null is an empty one."""
    if isinstance(data, Mapping):
        for key in keys:
            if key in data:
                data = data[key]
                break
        else:
            data = []
    return list(data) if isinstance(data, list) else []
