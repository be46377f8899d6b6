"""What the blocking and the asyncio transport share: building requests, judging answers. No I/O here."""

from __future__ import annotations

import json
import ssl
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional, Tuple, Union
from urllib.parse import quote, urlencode

from ._config import Target
from .exceptions import APIConnectionError, APITimeoutError, PandastackError, error_from_response

__version__ = "0.1.0"

CHUNK = 256 << 10  # piece of a streamed body
HEAD_MAX = 64 << 10
IDLE_MAX = 64  # connections kept for later
IDLE_SECONDS = 60.0  # a connection unused for longer is not trusted any more
DEFAULT_TIMEOUT = 60.0  # seconds of silence before we give up

Params = Mapping[str, Union[str, int, bool, None]]


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        """The decoded body; None when there is none."""
        if not self.body:
            return None
        try:
            return json.loads(self.body)
        except ValueError:
            raise APIConnectionError(
                f"the server answered {self.status} with something that is not JSON: {self.body[:80]!r}; "
                "is the API URL right?",
                status_code=self.status,
                response=self.body.decode("utf-8", "replace"),
            ) from None


class Request(NamedTuple):
    """A request ready to be sent. Only bytes can be sent twice, so only they may be retried."""

    method: str
    head: bytes
    body: Union[bytes, Iterable[bytes], None]
    chunked: bool
    retry: bool
    timeout: Optional[float]


class Wire:
    """Turns calls into requests for one server and one key."""

    def __init__(self, target: Target, api_key: Optional[str], timeout: Optional[float]) -> None:
        self.target = target
        self.timeout = timeout
        self.api_key = api_key
        common = f"Host: {target.netloc}\r\nUser-Agent: pandastack-python/{__version__}\r\n"
        if api_key:
            common += f"Authorization: Bearer {api_key}\r\n"
        self._common = common
        self._tls: Optional[ssl.SSLContext] = None

    @property
    def tls(self) -> Optional[ssl.SSLContext]:
        if self.target.scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def build(
        self,
        method: str,
        path: str,
        params: Optional[Params] = None,
        json_body: Any = None,
        body: Union[bytes, Iterable[bytes], None] = None,
        length: Optional[int] = None,
        headers: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = -1,
        retry: Optional[bool] = None,
    ) -> Request:
        """path is below /v1 unless it starts with a double slash ("//version"). timeout -1: the client's."""
        where = path[1:] if path.startswith("//") else "/v1" + path
        if params:
            query = urlencode({k: _param(v) for k, v in params.items() if v is not None})
            if query:
                where += "?" + query
        head = f"{method} {self.target.prefix}{where} HTTP/1.1\r\n{self._common}"
        accept = True
        if headers:
            for k, v in headers.items():
                if "\r" in v or "\n" in v:
                    raise ValueError(f"header {k} has a line end in it")
                head += f"{k}: {v}\r\n"
                accept = accept and k != "Accept"
        if accept:
            head += "Accept: application/json\r\n"
        chunked = False
        if json_body is not None:
            body = json.dumps(json_body, separators=(",", ":")).encode()
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        elif isinstance(body, bytes):
            head += f"Content-Length: {len(body)}\r\n"
        elif body is not None and length is not None:
            head += f"Content-Length: {length}\r\n"
        elif body is not None:
            head += "Transfer-Encoding: chunked\r\n"
            chunked = True
        elif method not in ("GET", "DELETE"):
            head += "Content-Length: 0\r\n"
        if retry is None:
            retry = method in ("GET", "DELETE", "PUT")
        return Request(
            method,
            (head + "\r\n").encode("latin-1"),
            body,
            chunked,
            retry and (body is None or isinstance(body, bytes)),
            self.timeout if timeout == -1 else timeout,
        )

    def websocket_head(self, path: str, params: Optional[Params], key: str) -> bytes:
        return self.build(
            "GET",
            path,
            params,
            headers={
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Key": key,
                "Sec-WebSocket-Version": "13",
            },
        ).head

    def lost(self, e: BaseException, request: Optional[Request] = None) -> PandastackError:
        """The exception for an answer that did not come."""
        where = self.target.url
        if isinstance(e, PandastackError):
            return e
        if isinstance(e, ssl.SSLError):
            return APIConnectionError(f"no secure connection to {where}: {e}; check the URL and its certificate")
        if isinstance(e, TimeoutError) or type(e).__name__ == "timeout":
            return self.too_slow(request)
        if isinstance(e, ConnectionRefusedError):
            return APIConnectionError(
                f"cannot connect to {where}: connection refused; start pandad there or point PANDASTACK_API elsewhere"
            )
        text = str(e) or type(e).__name__
        if request is None:
            return APIConnectionError(f"cannot connect to {where}: {text}; check PANDASTACK_API and the network")
        unknown = "" if request.method == "GET" else "; it is unknown whether the request took effect: look before repeating it"
        return APIConnectionError(f"the connection to {where} was lost before the answer was complete: {text}{unknown}")

    def too_slow(self, request: Optional[Request]) -> APITimeoutError:
        limit = f" within {request.timeout:g} s" if request is not None and request.timeout else ""
        return APITimeoutError(
            f"no answer from {self.target.url}{limit}; give the client a larger timeout= if the work takes longer"
        )


def _param(v: Union[str, int, bool, None]) -> str:
    return "1" if v is True else "0" if v is False else str(v)


def segment(text: str) -> str:
    """A value as one piece of a path: it can never become two, nor a dot that walks away."""
    if not text or text in (".", ".."):
        raise ValueError(f"{text!r} is not an id or name")
    return quote(text, safe="")


def parse_head(raw: bytes) -> Tuple[int, Dict[str, str]]:
    """Status and headers (lower case names; repeated ones joined by a comma) of an answer's head."""
    lines = raw.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or len(parts[1]) != 3 or not parts[1].isdigit():
        raise ValueError(f"not an HTTP/1.1 answer: {lines[0][:60]!r}")
    headers: Dict[str, str] = {}
    for line in lines[1:]:
        if not line:
            continue
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"a header line without a colon: {line[:60]!r}")
        name = name.strip().lower()
        value = value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return int(parts[1]), headers


def framing(status: int, headers: Mapping[str, str]) -> Tuple[bool, Optional[int], bool]:
    """How a body is delimited: whether in chunks; its length, None when unknown; whether the connection ends with it."""
    close = "close" in headers.get("connection", "").lower()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return True, None, close
    if status < 200 or status in (204, 304):
        return False, 0, close
    if "content-length" in headers:
        text = headers["content-length"]
        if not text.isdigit():
            raise ValueError(f"Content-Length is {text[:40]!r}")
        return False, int(text), close
    return False, None, True


def judge(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raises for everything that is not 2xx."""
    if not 200 <= status < 300:
        raise error_from_response(status, headers, body)
