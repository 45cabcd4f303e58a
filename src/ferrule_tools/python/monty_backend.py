"""Running a script in Monty: a sandboxed Python interpreter in its own process, without files, network or environment.

Each script gets a fresh process, which costs a few milliseconds and shares nothing with the next script. When the call
is cancelled, the process is killed. Monty pauses at each name it does not know; for the name of a tool, that tool is
called. For a plain call it gets the value; where the script awaits, it gets a future, and calls that are awaited
together run concurrently.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ferrule.core.aio import finish_despite_cancellation
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import ExecutionFailed, Retry
from ferrule_tools.python.config import PythonExecutorConfig
from ferrule_tools.python.nested_calls import NestedCallResult, ScriptCalls
from ferrule_tools.python.script import (
    FailureKind,
    Script,
    ScriptFailure,
    ScriptResult,
    TracebackLine,
    to_plain_json,
)

if TYPE_CHECKING:
    from pydantic_monty import AsyncMontySession, AsyncSnapshot, ExternalSettledResult, MontyError, ResourceLimits

_IMPORTS_ASYNCIO: Final = lazy_pattern(r"^\s*(?:import|from)\s[^#\n]*\basyncio\b", re.M)
_KILL_GRACE: Final = 2.0
"""Seconds after its time limit in which the sandbox may stop by itself before it is killed."""
_TIME_EXCEEDED: Final = lazy_pattern(r"^TimeoutError: (?:feed time|sleep) limit exceeded")
_MEMORY_EXCEEDED: Final = lazy_pattern(r"^MemoryError: (?:memory limit exceeded|the worker exceeded its memory)")
_SLEEP_FUNCTIONS: Final = {"system.sleep": ("time.sleep", False), "system.async_sleep": ("asyncio.sleep", True)}
"""Monty's names for them: the Python name, and whether it is awaited. Monty limits the total time slept."""
_MAX_NAME_LOOKUPS: Final = 1_000
"""Unknown names that a script may look up beside its calls."""


async def run_in_sandbox(script: Script, config: PythonExecutorConfig, calls: ScriptCalls) -> ScriptResult:
    """Run a script; its failures are in the result."""
    import pydantic_monty as monty

    printed = monty.CollectString(config.printed_bytes)
    driver = _MontyDriver(calls, is_async=_IMPORTS_ASYNCIO.search(script.code) is not None)
    try:
        async with _open_session(config) as session:
            step = await session.feed_start(script.code, inputs=script.inputs, print_callback=printed)
            while not isinstance(step, monty.MontyComplete):
                step = await driver.resume(step)
            return _build_result(step.output, printed.output, driver.unawaited())
    except monty.MontyError as error:
        return ScriptResult(printed=printed.output, failure=_convert_error(error, config))
    except FileNotFoundError as error:
        raise ExecutionFailed(f"The sandbox cannot be started: {error}") from error
    finally:
        await driver.cancel_calls()


@asynccontextmanager
async def _open_session(config: PythonExecutorConfig) -> AsyncIterator[AsyncMontySession]:
    """A sandbox that is always closed again, even if the call is cancelled while it is being opened."""
    import pydantic_monty as monty

    stack = AsyncExitStack()

    async def open_sandbox() -> AsyncMontySession:
        pool = monty.AsyncMonty(max_processes=1, feed_duration_limit_grace=_KILL_GRACE)
        await stack.enter_async_context(pool)
        return await stack.enter_async_context(pool.checkout(limits=_resource_limits(config)))

    try:
        yield await finish_despite_cancellation(open_sandbox())
    finally:
        await finish_despite_cancellation(stack.aclose())


def _resource_limits(config: PythonExecutorConfig) -> ResourceLimits:
    return {
        "max_feed_duration_secs": config.seconds,
        "max_memory": config.memory,
        "max_suspensions": 3 * config.calls + _MAX_NAME_LOOKUPS,
        "max_total_sleep_secs": config.seconds,
    }


def _build_result(value: Any, printed: str, unawaited: Sequence[str]) -> ScriptResult:
    if unawaited:
        message = f"{unawaited[0]}() was never awaited, so it was not called. Write: await {unawaited[0]}(…)"
        return ScriptResult(printed=printed, failure=ScriptFailure(kind="raised", message=message))
    try:
        return ScriptResult(value=to_plain_json(value, what="The value of the last expression"), printed=printed)
    except Retry as error:
        return ScriptResult(printed=printed, failure=ScriptFailure(kind="result", message=str(error)))


@dataclass(slots=True)
class _MontyDriver:
    """Continues a script each time it pauses: at the name of a tool, a tool call or a sleep."""

    calls: ScriptCalls
    is_async: bool
    """The script imports asyncio: every call returns something to await."""
    pending: dict[int, tuple[str, Callable[[], Coroutine[Any, Any, NestedCallResult]]]] = field(default_factory=dict)
    """Calls that start when they are awaited."""
    running: dict[int, asyncio.Task[NestedCallResult]] = field(default_factory=dict)

    async def resume(self, step: AsyncSnapshot) -> AsyncSnapshot:
        import pydantic_monty as monty

        match step:
            case monty.AsyncNameLookupSnapshot():
                if step.object_id is None and self.calls.has(step.variable_name):
                    return await step.resume(value=_create_placeholder(step.variable_name))
                return await step.resume()
            case monty.AsyncFutureSnapshot():
                return await step.resume(await self._wait_for_first(step.pending_call_ids))
            case monty.AsyncFunctionSnapshot() if step.is_os_function and step.function_name not in _SLEEP_FUNCTIONS:
                return await step.resume_not_handled()
            case monty.AsyncFunctionSnapshot():
                name, is_awaited = step.function_name, step.allow_eager_await or self.is_async
                call = partial(self.calls.make, name, step.args, step.kwargs)
                if step.is_os_function:
                    name, is_awaited = _SLEEP_FUNCTIONS[name]
                    call = partial(_sleep_in_script, *step.args)
                if not is_awaited:
                    return await step.resume(_to_monty_result(await call()))
                self.pending[step.call_id] = name, call
                return await step.resume({"future": ...})
            case _:
                raise ExecutionFailed(f"The sandbox has stopped for an unknown reason: {step!r}")

    async def _wait_for_first(self, call_ids: Sequence[int]) -> dict[int, ExternalSettledResult]:
        """Start the calls that are awaited, and return the results of those that finish first."""
        for call_id in call_ids:
            if call_id in self.pending:
                self.running[call_id] = asyncio.create_task(self.pending.pop(call_id)[1]())
        done, _ = await asyncio.wait(self.running.values(), return_when=asyncio.FIRST_COMPLETED)
        results = {call_id: _to_monty_result(task.result()) for call_id, task in self.running.items() if task in done}
        for call_id in results:
            del self.running[call_id]
        return results

    def unawaited(self) -> list[str]:
        """The tools whose calls the script never awaited."""
        return [name for name, _ in self.pending.values()]

    async def cancel_calls(self) -> None:
        """No call continues when its script has ended."""
        for task in self.running.values():
            task.cancel()
        if self.running:
            await asyncio.wait(self.running.values())


async def _sleep_in_script(seconds: float) -> NestedCallResult:
    await asyncio.sleep(seconds)
    return NestedCallResult()


def _to_monty_result(result: NestedCallResult) -> ExternalSettledResult:
    if result.exception is not None:
        return {"exc_type": result.exception, "message": result.message}
    return {"return_value": result.value}


def _create_placeholder(name: str) -> Callable[..., None]:
    """Stands for a tool that a script names without calling it: the sandbox uses only its name."""

    def function() -> None: ...

    function.__name__ = name
    return function


def _convert_error(error: MontyError, config: PythonExecutorConfig) -> ScriptFailure:
    import pydantic_monty as monty

    if isinstance(error, monty.MontyCrashedError):
        return ScriptFailure(kind="timeout" if error.timed_out else "broken", message=str(error))
    if not isinstance(error, (monty.MontyRuntimeError, monty.MontySyntaxError)):
        return ScriptFailure(kind="broken", message=str(error))
    message = error.display("type-msg")
    kind: FailureKind = "raised"
    if _TIME_EXCEEDED.match(message):
        kind = "timeout"
    elif _MEMORY_EXCEEDED.match(message):
        kind = "printed" if f"> {config.printed_bytes} bytes" in message else "memory"
    lines = [
        TracebackLine(
            number=frame.line,
            function="" if frame.function_name in (None, "<module>") else str(frame.function_name),
            source=(frame.source_line or "").strip(),
        )
        for frame in error.traceback()
    ]
    return ScriptFailure(kind=kind, message=message, lines=lines)


# What the sandbox lacks, and what a script does instead

MODULES: Final = (
    *("asyncio", "base64", "bisect", "collections", "copy", "csv", "dataclasses", "datetime", "decimal", "functools"),
    *("hashlib", "itertools", "json", "math", "random", "re", "sys", "time", "tomllib", "typing", "unicodedata"),
)
"""What a script can import; `os` and `pathlib` exist too, but without files."""

_NO_FILES: Final = "The sandbox has no files: pass data in `inputs`, or call a tool that reads or writes files."
_NO_MODULE: Final = f"The sandbox has these modules only: {', '.join(MODULES)}. Write the few lines you need yourself"
_NO_AWAIT: Final = (
    "Call tools plainly (x = tool(…)), or write await right before each call; in a script that imports asyncio "
    "every tool call must be awaited."
)
_HINTS: Final = (
    (r"^ModuleNotFoundError|^ImportError", f"{_NO_MODULE}, or call a tool."),
    (r"not yet support class inheritance", "Write functions, plain classes without a base, or dataclasses."),
    (r"not yet support yield", "Build a list, or write a generator expression."),
    (r"not yet support the 'del'", "Use pop() or remove(), or assign None."),
    (r"not yet support", "Write it with plain functions, loops, lists and dictionaries."),
    (r"^PermissionError: Permission denied", _NO_FILES),
    (r"os\.environ|os\.getenv", "The sandbox has no environment variables: pass what is needed in `inputs`."),
    (r"^AttributeError: module '(?:os|sys)'", "The sandbox has no access to the system it runs on."),
    (r"^AttributeError: module '", "The sandbox has only the common part of this module: write the rest yourself."),
    (r"name '(?:input|breakpoint|help)' is not", "A script cannot ask the user: pass what it needs in `inputs`."),
    (r"name '__import__' is not|name 'compile' is not", "Write the code itself, with import statements at its top."),
    (r"'coroutine' object|external_future|be awaited|an awaitable is required", _NO_AWAIT),
    (
        r"cannot suspend in this synchronous",
        "Call tools in a loop or a comprehension, not in map(), filter() or sort().",
    ),
    (r"^RecursionError", "Write a loop instead of the recursion."),
)


def hint_for_sandbox_error(message: str) -> str:
    """What to do about an error specific to the sandbox; empty for one that any Python would raise."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, message[:500])), "")
