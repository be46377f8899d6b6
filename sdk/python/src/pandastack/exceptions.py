"""What can go wrong, and what to do next.

Every exception derives from PandastackError and carries

    status_code   HTTP status, None when no answer arrived
    code          the server's stable word ("sandbox_paused"), "" when it gave none
    request_id    what to quote when asking the operator about it
    response      the decoded error body (or its text), None when no answer arrived

Match on the class or on ``code``; the text is for people and may change.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Type

if TYPE_CHECKING:
    from .types import ExecResult

__all__ = [
    "APIConnectionError",
    "APITimeoutError",
    "AuthError",
    "BadRequestError",
    "CommandError",
    "ConfigError",
    "ConflictError",
    "HostFull",
    "NotFoundError",
    "PandaStackError",
    "PandastackError",
    "QuotaExceeded",
    "RateLimited",
    "SandboxTimeout",
    "ServerError",
    "TemplateBuildError",
]


class PandastackError(Exception):
    """Base of everything this package raises."""

    def __init__(
        self,
        message: str,
        *,
        status_code: Optional[int] = None,
        code: str = "",
        request_id: str = "",
        response: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.code = code
        self.request_id = request_id
        self.response = response

    def __str__(self) -> str:
        notes = []
        if self.status_code is not None:
            notes.append(f"HTTP {self.status_code}")
        if self.code:
            notes.append(self.code)
        if self.request_id:
            notes.append(f"request {self.request_id}")
        return f"{self.message} [{', '.join(notes)}]" if notes else self.message


PandaStackError = PandastackError


class ConfigError(PandastackError):
    """The configuration file, the URL or the key cannot be used."""


class AuthError(PandastackError):
    """401 or 403: no key, a wrong key, or a key that may not do this."""


class NotFoundError(PandastackError):
    """404: there is no such thing, or it belongs to someone else."""


class BadRequestError(PandastackError):
    """Any other 4xx: the request itself has to change."""


class ConflictError(BadRequestError):
    """409: the thing is in a state (paused, failed, attached, existing) that does not allow this now."""


class RateLimited(BadRequestError):
    """429: too many requests; ``retry_after`` is the number of seconds to wait."""

    retry_after: float = 1.0


class QuotaExceeded(RateLimited):
    """429 with code quota_exceeded: this token has all it may have; waiting alone does not help."""


class ServerError(PandastackError):
    """Any 5xx."""


class HostFull(ServerError):
    """503 host_full or 507 disk_full: the machine has no room left for this."""


class APIConnectionError(PandastackError):
    """No answer arrived. For a request that changes something it is unknown whether it happened."""


class APITimeoutError(APIConnectionError, TimeoutError):
    """The server did not answer in time."""


class SandboxTimeout(PandastackError, TimeoutError):
    """What was waited for took too long. ``result`` holds the output so far, where there is any."""

    result: Optional["ExecResult"] = None


class CommandError(PandastackError):
    """A command asked for with check=True ended with a non-zero exit code; ``result`` has it all."""

    result: "ExecResult"

    @classmethod
    def of(cls, cmd: str, result: "ExecResult") -> "CommandError":
        tail = (result.stderr or result.stdout).strip()[-500:]
        shown = cmd if len(cmd) <= 120 else cmd[:117] + "..."
        e = cls(f"exit code {result.exit_code} from: {shown}" + (f"\n{tail}" if tail else ""))
        e.result = result
        return e

    @property
    def exit_code(self) -> int:
        return self.result.exit_code

    @property
    def stdout(self) -> str:
        return self.result.stdout

    @property
    def stderr(self) -> str:
        return self.result.stderr


class TemplateBuildError(PandastackError):
    """A template build ended as failed."""


# What to do next, by stable word. Only where the server's own sentence cannot know it: it has no
# idea which client asked.
_NEXT: Dict[str, str] = {
    "unauthorized": "set PANDASTACK_API_KEY or pass api_key=",
    "forbidden": "use a token whose scope allows it",
    "sandbox_paused": "call resume() first",
    "sandbox_failed": "it cannot come back: kill() it and create a new one",
    "sandbox_not_found": "it ended (killed, TTL or idle) or belongs to another token: create a new one",
    "quota_exceeded": "kill() what is no longer needed or ask for a larger quota",
    "volume_busy": "detach it from its holder, or mount a snapshot of it",
    "host_full": "kill() what is no longer needed, or try again later",
    "bad_path": "give an absolute path",
}


def _text_of(body: Any, raw: bytes, status: int) -> str:
    if isinstance(body, Mapping):
        for key in ("error", "message", "detail"):
            value = body.get(key)
            if isinstance(value, str) and value:
                return value
            if isinstance(value, Mapping) and isinstance(value.get("message"), str):
                return str(value["message"])
    text = raw.decode("utf-8", "replace").strip()
    return text[:2000] if text else f"the server answered with status {status} and no explanation"


def _class_of(status: int, code: str) -> Type[PandastackError]:
    if status in (401, 403):
        return AuthError
    if status == 404:
        return NotFoundError
    if status == 409:
        return ConflictError
    if status == 429:
        return QuotaExceeded if code == "quota_exceeded" else RateLimited
    if status < 500:
        return BadRequestError
    if status == 507 or code in ("host_full", "disk_full"):
        return HostFull
    return ServerError


def error_from_response(status: int, headers: Mapping[str, str], raw: bytes) -> PandastackError:
    """The exception for an answer with a status that is not 2xx. Header names are lower case."""
    body: Any = None
    try:
        body = json.loads(raw) if raw else None
    except ValueError:
        pass
    code = ""
    request_id = headers.get("x-request-id", "")
    if isinstance(body, Mapping):
        inner = body.get("error")
        source = inner if isinstance(inner, Mapping) else body
        code = str(source.get("code") or "")
        request_id = str(source.get("request_id") or request_id)
    message = _text_of(body, raw, status)
    detail = body.get("detail") if isinstance(body, Mapping) else None
    if isinstance(detail, str) and detail and detail not in message:
        message = f"{message}: {detail}"
    hint = _NEXT.get(code or ("unauthorized" if status == 401 else ""))
    if hint:
        message = f"{message.rstrip('.')}; {hint}"
    error = _class_of(status, code)(
        message,
        status_code=status,
        code=code,
        request_id=request_id,
        response=body if body is not None else raw.decode("utf-8", "replace"),
    )
    if isinstance(error, RateLimited):
        try:
            error.retry_after = max(0.0, float(headers.get("retry-after", "1")))
        except ValueError:
            pass
    return error
