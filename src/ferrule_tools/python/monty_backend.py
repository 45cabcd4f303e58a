"""Running a script in Monty: a sandboxed Python interpreter in its own process, without files, network or environment.

Each script gets a fresh process, which costs a few milliseconds and shares nothing with the next script. When the call
is cancelled, the process is killed. Monty pauses at each name it does not know; for the name of a tool, that tool is
called. For a plain call it gets the value; where the script awaits, it gets a future, and calls that are awaited
together run concurrently.

A script is written by a model, so it may do no more than the model may. It sees only the tools that its caller may
use. Of these it may call the read-only ones, or those that the configuration names; and never one that needs a
person's approval, because a script cannot pause for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from ferrule.core.aio import finish_despite_cancellation
from ferrule.core.call import DEFAULT_TIMEOUT, ToolExecutionContext
from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.core.permission import Decision
from ferrule.core.spec import Tool, ToolCapability
from ferrule.engine import ToolEngine
from ferrule.errors import (
    APPROVAL_REQUIRED,
    PERMISSION_DENIED,
    TIMEOUT,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    CallError,
    ExecutionFailed,
    InvalidArguments,
    PermissionDenied,
    Retry,
    ToolNotFound,
)
from ferrule_tools.python.script import (
    FailureKind,
    PythonExecutorConfig,
    Script,
    ScriptFailure,
    ScriptResult,
    TracebackLine,
    to_plain_json,
)

if TYPE_CHECKING:
    from pydantic_monty import AsyncMontySession, AsyncSnapshot, ExternalSettledResult, MontyError

NAME: Final = "python_executor"
_EXCLUDED_TOOLS: Final = frozenset({NAME, "call_tool", "ask_user", "finish_task"})
"""Itself, a tool that would call others for it, and tools that control the run it is part of."""
_NOT_IN_IDENTIFIERS: Final = lazy_pattern(r"\W", re.ASCII)
_MAX_ERROR_TEXT: Final = 2_000

_ScriptFunction: TypeAlias = tuple[Tool, ToolCapability, str]
"""A tool, its action, and why a script may not call it."""
PythonException: TypeAlias = Literal["ValueError", "TimeoutError", "PermissionError", "NameError", "RuntimeError"]

_EXCEPTIONS: Final[Mapping[str, PythonException]] = {
    VALIDATION_ERROR: "ValueError",
    TIMEOUT: "TimeoutError",
    PERMISSION_DENIED: "PermissionError",
    APPROVAL_REQUIRED: "PermissionError",
    TOOL_NOT_FOUND: "NameError",
}
"""What a script can catch, by error type; all others are a RuntimeError."""


class ScriptCalls:
    """Makes the tool calls of one script, as calls of the script's caller."""

    def __init__(self, engine: ToolEngine | None, context: ToolExecutionContext, config: PythonExecutorConfig) -> None:
        self._engine, self._config = engine, config
        self._permissions = None if engine is None else engine.permissions(context.principal, context.policy)
        self._calls = 0
        self._context = replace(
            context, caller_id=NAME, caller_type="tool", timeout=DEFAULT_TIMEOUT, tool_call_id=None, approval_id=None
        )
        self.is_untrusted = False
        """Whether a tool returned content from an untrusted source."""
        self.transient_errors: set[str] = set()
        """Messages of failed calls that may succeed later."""

    @cached_property
    def functions(self) -> dict[str, _ScriptFunction]:
        """Return every tool that the caller may use, by its model name or by the closest Python identifier."""
        if self._engine is None or self._permissions is None:
            return {}
        exact: dict[str, _ScriptFunction] = {}
        adapted: dict[str, _ScriptFunction] = {}
        for tool in self._permissions.select_tools(self._engine.registry.snapshot()).values():
            for capability in tool.spec.capabilities if tool.id not in _EXCLUDED_TOOLS else ():
                name, decision = tool.spec.model_name(capability), self._permissions.decide(tool, capability)
                if decision.verdict == "deny":
                    continue
                entry = tool, capability, self._explain_refusal(tool, capability, name, decision)
                if name.isidentifier():
                    exact.setdefault(name, entry)
                else:
                    identifier = _NOT_IN_IDENTIFIERS.sub("_", name)
                    adapted.setdefault(f"_{identifier}" if identifier[:1].isdigit() else identifier, entry)
        return adapted | exact

    def _explain_refusal(self, tool: Tool, capability: ToolCapability, name: str, decision: Decision) -> str:
        """Return why a script may not call a tool that its caller may call; an empty text if it may."""
        if decision.verdict == "ask":
            return f"{name} needs the user's approval: call it directly, not in a script."
        if self._config.tools is None:
            if tool.spec.effects_of(capability).read_only:
                return ""
            return f"{name} may change something, so scripts may not call it: call it directly."
        if any(fnmatchcase(each, pattern) for pattern in self._config.tools for each in (name, tool.id)):
            return ""
        return f"{name} is not among the tools that scripts may call: call it directly."

    async def make(self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ExternalSettledResult:
        """Call a tool for the script; every failure becomes an exception in the script."""
        try:
            if function not in self.functions:
                names = sorted(name for name, (_, _, refusal) in self.functions.items() if not refusal)
                raise ToolNotFound(f"name {function!r} is not defined.{did_you_mean(function, names)}")
            tool, capability, refusal = self.functions[function]
            if refusal:
                raise PermissionDenied(refusal)
            params = _named_arguments(function, capability, args, kwargs)
            self._calls += 1
            if self._calls > self._config.calls:
                raise PermissionDenied(
                    f"A script may make {self._config.calls} tool calls, and this one has made them."
                )
        except CallError as error:
            return _exception_result(error.error_type, str(error))
        assert self._engine is not None, "tools are found in the registry of an engine"
        result = await self._engine.execute_candidate(tool, capability.name, params, self._context)
        self.is_untrusted = self.is_untrusted or bool(result.output.get("untrusted"))
        if not result.is_success:
            message = result.text[:_MAX_ERROR_TEXT]
            if result.metadata.get("transient"):
                self.transient_errors.add(message)
            return _exception_result(result.error_type, message)
        if result.metadata.get("truncated"):  # a script would compute something wrong from a partial result
            size = result.metadata.get("size", 0)
            message = f"{function} returned {size:,} bytes, which is too much: ask for a smaller part."
            return _exception_result(None, message)
        output = result.output
        return {"return_value": output["result"] if set(output) == {"result"} else output}


def _exception_result(error_type: str | None, message: str) -> ExternalSettledResult:
    return {"exc_type": _EXCEPTIONS.get(error_type or "", "RuntimeError"), "message": message}


def _named_arguments(
    function: str, capability: ToolCapability, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments by name; positional ones follow the order of the tool's parameters."""
    names = list(capability.schema.get("properties") or ())
    if len(args) > len(names):
        raise InvalidArguments(f"{function}() takes {len(names)} arguments: {', '.join(names) or 'none'}.")
    positional = dict(zip(names, args, strict=False))
    for name in kwargs:
        if name in positional:
            raise InvalidArguments(f"{function}() got two values for {name!r}.")
    return dict(to_plain_json({**positional, **kwargs}, what=f"The input of {function}()"))


# Running a script

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
            return _build_result(step.output, printed.output, [name for name, _ in driver.pending.values()])
    except monty.MontyError as error:
        return ScriptResult(printed=printed.output, failure=_convert_error(error, config))
    except FileNotFoundError as error:
        raise ExecutionFailed(f"The sandbox cannot be started: {error}") from error
    finally:
        await driver.cancel_calls()


@asynccontextmanager
async def _open_session(config: PythonExecutorConfig) -> AsyncIterator[AsyncMontySession]:
    """Open a sandbox that is always closed again, even if the call is cancelled while it is being opened."""
    import pydantic_monty as monty

    stack = AsyncExitStack()

    async def open_sandbox() -> AsyncMontySession:
        pool = monty.AsyncMonty(max_processes=1, feed_duration_limit_grace=_KILL_GRACE)
        await stack.enter_async_context(pool)
        limits: monty.ResourceLimits = {
            "max_feed_duration_secs": config.seconds,
            "max_memory": config.memory,
            "max_suspensions": 3 * config.calls + _MAX_NAME_LOOKUPS,
            "max_total_sleep_secs": config.seconds,
        }
        return await stack.enter_async_context(pool.checkout(limits=limits))

    try:
        yield await finish_despite_cancellation(open_sandbox())
    finally:
        await finish_despite_cancellation(stack.aclose())


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
    pending: dict[int, tuple[str, Callable[[], Coroutine[Any, Any, ExternalSettledResult]]]] = field(
        default_factory=dict
    )
    """Calls that start when they are awaited."""
    running: dict[int, asyncio.Task[ExternalSettledResult]] = field(default_factory=dict)

    async def resume(self, step: AsyncSnapshot) -> AsyncSnapshot:
        import pydantic_monty as monty

        match step:
            case monty.AsyncNameLookupSnapshot():
                if step.object_id is None and step.variable_name in self.calls.functions:
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
                    return await step.resume(await call())
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
        results = {call_id: task.result() for call_id, task in self.running.items() if task in done}
        for call_id in results:
            del self.running[call_id]
        return results

    async def cancel_calls(self) -> None:
        """Cancel the calls that still run when their script has ended."""
        for task in self.running.values():
            task.cancel()
        if self.running:
            await asyncio.wait(self.running.values())


async def _sleep_in_script(seconds: float) -> ExternalSettledResult:
    await asyncio.sleep(seconds)
    return {"return_value": None}


def _create_placeholder(name: str) -> Callable[..., None]:
    """Create a stand-in for a tool that a script names without calling it: the sandbox uses only its name."""

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
            frame.line,
            "" if frame.function_name in (None, "<module>") else str(frame.function_name),
            (frame.source_line or "").strip(),
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
    """Return what to do about an error of the sandbox; an empty text for an error that any Python would raise."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, message[:500])), "")
