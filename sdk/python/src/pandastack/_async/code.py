"""Code contexts: interpreters that stay, with their variables, between calls and across forks."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, Dict, Optional, Type

from .._atransport import AsyncTransport, call
from .._http import segment
from ..exceptions import APIConnectionError, PandastackError, ServerError
from ..types import Execution, ExecutionError, Result
from .commands import SSE, Callback, answer_timeout, events_of, load

CELL_SECONDS = 60

ALIASES = {
    "py": "python",
    "python3": "python",
    "js": "javascript",
    "node": "javascript",
    "nodejs": "javascript",
    "sh": "bash",
    "shell": "bash",
}


def language_of(name: str) -> str:
    low = name.lower()
    return ALIASES.get(low, low)


def timed_out(e: ServerError) -> bool:
    """How a server says that a cell took too long."""
    low = e.message.lower()
    return "timeout" in low or "deadline exceeded" in low


class AsyncCodeContext:
    def __init__(self, transport: AsyncTransport, sandbox_path: str, id: str, language: str = "python") -> None:
        self._transport = transport
        self._path = f"{sandbox_path}/repl/sessions/{segment(id)}"
        self.id = id
        self.language = language

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.language}>"

    async def run_code(
        self,
        code: str,
        *,
        timeout_seconds: Optional[float] = None,
        on_stdout: Optional[Callback] = None,
        on_stderr: Optional[Callback] = None,
        on_result: Optional[Callable[[Result], Any]] = None,
    ) -> Execution:
        """Runs a cell. An exception in it is no exception here (look at ``error``), nor is a timeout: timed_out,
        exit_code 124, and the variables are still there. Without callbacks the output of such a cell is lost.
        """
        body: Dict[str, Any] = {"code": code}
        if timeout_seconds is not None:
            body["timeout_ms"] = int(timeout_seconds * 1000)
        timeout = answer_timeout(self._transport.wire.timeout, timeout_seconds, CELL_SECONDS)
        try:
            if on_stdout is None and on_stderr is None and on_result is None:
                r = await self._transport.request("POST", self._path + "/run", json=body, timeout=timeout)
                return Execution.from_json(r.json() or {})
            return await self._run_stream(body, timeout, {"stdout": on_stdout, "stderr": on_stderr}, on_result)
        except ServerError as e:
            if not timed_out(e):
                raise
            return Execution(stderr=e.message + "\n", exit_code=124, timed_out=True)

    execute = run_code

    async def _run_stream(
        self,
        body: Dict[str, Any],
        timeout: Optional[float],
        on: Dict[str, Optional[Callback]],
        on_result: Optional[Callable[[Result], Any]],
    ) -> Execution:
        run = Execution()
        ended = False
        response = await self._transport.stream(
            "POST", self._path + "/run/stream", json=body, headers=SSE, timeout=timeout, idle_timeout=timeout
        )
        try:
            async for name, data in events_of(response):
                d = load(data)
                if name in on:
                    text = str(d.get("chunk", ""))
                    if name == "stdout":
                        run.stdout += text
                    else:
                        run.stderr += text
                    fn = on[name]
                    if fn is not None:
                        await call(fn, text)
                elif name == "result":
                    result = Result.from_json(d)
                    run.results.append(result)
                    if on_result is not None:
                        await call(on_result, result)
                elif name == "error":
                    if "name" not in d:
                        raise ServerError(str(d.get("error") or d.get("chunk") or data), response=d)
                    run.error = ExecutionError.from_json(d)
                    run.stderr += str(run.error) + "\n"  # where it is without callbacks, too
                elif name == "exit":
                    last = Execution.from_json(d)
                    run.exit_code, run.duration_ms, run.timed_out = last.exit_code, last.duration_ms, last.timed_out
                    ended = True
        finally:
            await response.close()
        if not ended:
            raise APIConnectionError("the stream ended before the cell did; its variables may have changed")
        return run

    async def interrupt(self) -> None:
        """Stops the running cell, keeps the variables."""
        await self._transport.request("POST", self._path + "/interrupt")

    async def close(self) -> None:
        """Ends the interpreter. One that is gone already is fine."""
        try:
            await self._transport.request("DELETE", self._path)
        except PandastackError as e:
            if e.status_code not in (404, 409):
                raise

    async def __aenter__(self) -> AsyncCodeContext:
        return self

    async def __aexit__(
        self, t: Optional[Type[BaseException]], e: Optional[BaseException], tb: Optional[TracebackType]
    ) -> None:
        try:
            await self.close()
        except PandastackError:
            if e is None:
                raise
