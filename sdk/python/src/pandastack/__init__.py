"""pandastack: sandboxes for code that nobody reviewed.

    from pandastack import Sandbox

    with Sandbox.create(template="code-interpreter", ttl_seconds=300) as sb:
        print(sb.run_code("print(sum(range(101)))").stdout)
"""

from ._async.client import AsyncClient, set_default_async_client
from ._async.code import AsyncCodeContext
from ._async.commands import AsyncCommand, AsyncCommandStream
from ._async.filesystem import AsyncFilesystem, AsyncWatch
from ._async.sandbox import AsyncForkTree, AsyncRace, AsyncSandbox
from ._async.terminal import AsyncTerminal
from ._async.volume import AsyncVolume
from ._http import __version__
from ._sync.client import Client, set_default_client
from ._sync.code import CodeContext
from ._sync.commands import Command, CommandStream
from ._sync.filesystem import Filesystem, Watch
from ._sync.sandbox import ForkTree, Race, Sandbox
from ._sync.terminal import Terminal
from ._sync.volume import Volume
from .exceptions import (
    APIConnectionError,
    APITimeoutError,
    AuthError,
    BadRequestError,
    CommandError,
    ConfigError,
    ConflictError,
    HostFull,
    NotFoundError,
    PandaStackError,
    PandastackError,
    QuotaExceeded,
    RateLimited,
    SandboxTimeout,
    ServerError,
    TemplateBuildError,
)
from .types import (
    Chart,
    Checkpoint,
    Diff,
    Event,
    ExecInfo,
    ExecResult,
    Execution,
    ExecutionError,
    FileChange,
    FileEvent,
    FileInfo,
    Lifecycle,
    MergeResult,
    Output,
    Port,
    PromoteResult,
    Result,
    RewindResult,
    SandboxInfo,
    Snapshot,
    Template,
    TemplateBuild,
    Token,
    VolumeMount,
)

__all__ = [
    "APIConnectionError",
    "APITimeoutError",
    "AsyncClient",
    "AsyncCodeContext",
    "AsyncCommand",
    "AsyncCommandStream",
    "AsyncFilesystem",
    "AsyncForkTree",
    "AsyncRace",
    "AsyncSandbox",
    "AsyncTerminal",
    "AsyncVolume",
    "AsyncWatch",
    "AuthError",
    "BadRequestError",
    "Chart",
    "Checkpoint",
    "Client",
    "CodeContext",
    "Command",
    "CommandError",
    "CommandStream",
    "ConfigError",
    "ConflictError",
    "Diff",
    "Event",
    "ExecInfo",
    "ExecResult",
    "Execution",
    "ExecutionError",
    "FileChange",
    "FileEvent",
    "FileInfo",
    "Filesystem",
    "ForkTree",
    "HostFull",
    "Lifecycle",
    "MergeResult",
    "NotFoundError",
    "Output",
    "PandaStackError",
    "PandastackError",
    "Port",
    "PromoteResult",
    "QuotaExceeded",
    "Race",
    "RateLimited",
    "Result",
    "RewindResult",
    "Sandbox",
    "SandboxInfo",
    "SandboxTimeout",
    "ServerError",
    "Snapshot",
    "Template",
    "TemplateBuild",
    "TemplateBuildError",
    "Terminal",
    "Token",
    "Volume",
    "VolumeMount",
    "Watch",
    "__version__",
    "set_default_async_client",
    "set_default_client",
]
