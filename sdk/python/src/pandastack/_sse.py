"""Server-sent events: bytes in, (event name, data) out. Cuts may fall anywhere, no I/O here."""

from __future__ import annotations

from typing import List, Tuple

EVENT_MAX = 64 << 20


class SSEParser:
    def __init__(self) -> None:
        self._tail = b""  # a line whose end has not come yet
        self._event = ""
        self._data: List[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> List[Tuple[str, str]]:
        """The events that chunk completes. An event without its closing empty line is never reported."""
        out: List[Tuple[str, str]] = []
        if b"\n" not in chunk:
            self._tail += chunk
            self._bound()
            return out
        lines = (self._tail + chunk).split(b"\n")
        self._tail = lines.pop()
        for raw in lines:
            if raw.endswith(b"\r"):
                raw = raw[:-1]
            if not raw:
                if self._data:
                    out.append((self._event or "message", "\n".join(self._data)))
                self._event = ""
                self._data = []
                self._size = 0
                continue
            if raw[:1] == b":":
                continue
            name, _, value = raw.partition(b":")
            if value[:1] == b" ":
                value = value[1:]
            if name == b"data":
                self._data.append(value.decode("utf-8", "replace"))
                self._size += len(value)
            elif name == b"event":
                self._event = value.decode("utf-8", "replace").strip()
        self._bound()
        return out

    def _bound(self) -> None:
        if len(self._tail) + self._size > EVENT_MAX:
            raise ValueError(f"an event larger than {EVENT_MAX} bytes")
