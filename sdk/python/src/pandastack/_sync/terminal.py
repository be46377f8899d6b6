# Written by tools/unasync from _async/terminal.py: change that one.
"""A terminal in a sandbox."""

from __future__ import annotations

import json
import re
import time
from types import TracebackType
from typing import Optional, Type, Union

from .. import _ws
from .._transport import WebSocket
from ..exceptions import APIConnectionError, SandboxTimeout, ServerError


class Terminal:
    """Iterate over it for what the terminal shows (bytes); send() is the keyboard."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self.exit_code: Optional[int] = None  # known once the program in it has ended

    def send(self, data: Union[str, bytes]) -> None:
        self._socket.send(_ws.BINARY, data.encode() if isinstance(data, str) else bytes(data))

    def resize(self, rows: int, cols: int) -> None:
        self._socket.send(_ws.TEXT, json.dumps({"resize": {"rows": rows, "cols": cols}}).encode())

    def receive(self, timeout: Optional[float] = None) -> bytes:
        """The next piece; b"" when it has ended. SandboxTimeout when nothing comes in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                m = self._socket.receive(left)
            except TimeoutError:
                raise SandboxTimeout(f"the terminal showed nothing for {timeout:g} s") from None
            if m is None:
                return b""
            if m.opcode == _ws.BINARY:
                if m.data:
                    return m.data
                continue
            try:
                control = json.loads(m.data)
            except ValueError:
                return m.data  # plain text output
            if not isinstance(control, dict):
                return m.data
            if "error" in control:
                self.close()
                raise ServerError(str(control["error"]), response=control)
            code = control.get("exit", control.get("code") if control.get("type") == "exit" else None)
            if isinstance(code, int):
                self.exit_code = code

    def read_until(self, pattern: Union[str, bytes], timeout: float = 30.0) -> bytes:
        """Everything up to and including the piece in which the regular expression matches."""
        rx = re.compile(pattern.encode() if isinstance(pattern, str) else pattern)
        deadline = time.monotonic() + timeout
        seen = b""
        while not rx.search(seen):
            try:
                data = self.receive(max(0.0, deadline - time.monotonic()))
            except SandboxTimeout:
                raise SandboxTimeout(f"{pattern!r} did not appear within {timeout:g} s; seen: {seen[-300:]!r}") from None
            if not data:
                raise APIConnectionError(f"the terminal ended before {pattern!r} appeared; seen: {seen[-300:]!r}")
            seen += data
        return seen

    def wait(self, timeout: Optional[float] = None) -> Optional[int]:
        """Reads (and drops) the rest; the exit code."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.receive(None if deadline is None else max(0.0, deadline - time.monotonic())):
            pass
        return self.exit_code

    def close(self) -> None:
        self._socket.close()

    def __iter__(self) -> Terminal:
        return self

    def __next__(self) -> bytes:
        data = self.receive()
        if not data:
            raise StopIteration
        return data

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, t: Optional[Type[BaseException]], e: Optional[BaseException], tb: Optional[TracebackType]
    ) -> None:
        self.close()
