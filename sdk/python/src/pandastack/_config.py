"""Which server, and with which key: what was said, then the environment, then the file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from .exceptions import ConfigError

LOCAL_URL = "http://127.0.0.1:8080"  # when no server is named: a key goes to no other host unasked
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
CONFIG_MAX = 1 << 20


@dataclass(frozen=True)
class Target:
    """A server's address, taken apart once."""

    scheme: str
    host: str
    port: int
    prefix: str  # path in front of /v1, without a slash at its end
    path: str = ""  # of a unix socket

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        standard = {"http": 80, "https": 443}[self.scheme]
        return host if self.port == standard else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.scheme}://{self.netloc}{self.prefix}"


def parse_url(url: str) -> Target:
    """Accepts http://h:8080, http://h:8080/, http://h/prefix/v1 (the /v1 is ours to add) and unix:/path/of/socket."""
    if url.strip().startswith("unix:/"):
        return Target("http", "localhost", 80, "", url.strip()[5:])
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as e:
        raise ConfigError(f"the API URL {url!r} cannot be read ({e}); it looks like {LOCAL_URL}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the API URL {url!r} is not http:// or https:// with a host; it looks like {LOCAL_URL}")
    if any(c <= " " or c == "\x7f" for c in url.strip()):
        raise ConfigError(f"the API URL {url!r} has a space or control character in it")
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        path = path[:-3].rstrip("/")
    return Target(
        parts.scheme, parts.hostname, port or {"http": 80, "https": 443}[parts.scheme], path
    )


def config_path(env: Mapping[str, str]) -> str:
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return os.path.join(base, "pandastack", "config.json")


def _read_file(env: Mapping[str, str]) -> Mapping[str, Any]:
    path = config_path(env)
    try:
        with open(path, "rb") as f:
            raw = f.read(CONFIG_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror}; repair it or set PANDASTACK_API_KEY and PANDASTACK_API") from e
    try:
        data = json.loads(raw)
    except ValueError as e:
        # An unreadable file is an error: whoever wrote it wants to know.
        raise ConfigError(f"{path} is not JSON ({e}); repair or remove it") from None
    return data if isinstance(data, dict) else {}


def _first(source: Mapping[str, Any], *names: str) -> Optional[str]:
    for name in names:
        value = source.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _same_host(a: Target, b: Target) -> bool:
    def local(t: Target) -> bool:
        return bool(t.path) or t.host in LOCAL_HOSTS

    return a.host.lower() == b.host.lower() or (local(a) and local(b))


def resolve(
    api_key: Optional[str] = None,
    api_url: Optional[str] = None,
    env: Optional[Mapping[str, str]] = None,
) -> Tuple[Optional[str], Target]:
    """The key (None: none anywhere) and the server."""
    if env is None:
        env = os.environ
    key = api_key.strip() if api_key is not None else _first(env, "PANDASTACK_API_KEY", "PANDASTACK_TOKEN")
    url = api_url or _first(env, "PANDASTACK_API")
    if key is None or url is None:
        file = _read_file(env)
        named = _first(file, "apiUrl", "api_url")
        if url is None:
            url = named
        # A key in a file belongs to the server named beside it, and is not shown to another one.
        if key is None and (named is None or url is None or _same_host(parse_url(url), parse_url(named))):
            key = _first(file, "token", "apiKey", "api_key")
    if url is None:
        url = LOCAL_URL
    if key and any(not "!" <= c <= "~" for c in key):
        raise ConfigError(
            "the API key has a space or control character in it: look for a line end in PANDASTACK_API_KEY or the file"
        )
    return key or None, parse_url(url)
