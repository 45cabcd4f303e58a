"""Running a script in Monty: a Python of its own in a process of its own, without files, network or environment.

Each script gets a fresh process, which costs some milliseconds and leaves nothing from one script to the next. When
the call is cancelled, the process is killed. Monty stops at each name it does not know; the names of tools are
answered with calls of them. It is told a value for a plain call; where a script awaits, it is told that the value
comes later, and calls that are awaited together are made together.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ferrule.errors import ExecutionFailed, Retry
from ferrule.executors.process_group import to_the_end
from ferrule.tools.python_executor.calls import Answer, ScriptCalls
from ferrule.tools.python_executor.config import PythonExecutorConfig
from ferrule.tools.python_executor.plain_value import plain_value
from ferrule.tools.python_executor.script import Failure, HowItFailed, Line, Ran, Script

if TYPE_CHECKING:
    from pydantic_monty import AsyncMontySession, AsyncSnapshot, ExternalSettledResult, MontyError, ResourceLimits

_IMPORTS_ASYNCIO: Final = re.compile(r"^\s*(?:import|from)\s[^#\n]*\basyncio\b", re.M)
_GRACE: Final = 2.0
"""Seconds after which a sandbox that does not stop by itself is killed."""
_OUT_OF_TIME: Final = re.compile(r"^TimeoutError: (?:feed time|sleep) limit exceeded")
_OUT_OF_MEMORY: Final = re.compile(r"^MemoryError: (?:memory limit exceeded|the worker exceeded its memory)")
_SLEEPS: Final = {"system.sleep": ("time.sleep", False), "system.async_sleep": ("asyncio.sleep", True)}
"""What a script does to sleep, and whether it awaits it. How long in all is limited by the sandbox."""
_LOOKUPS: Final = 1_000
"""Names that a script may ask for beside its calls."""


async def run_in_sandbox(script: Script, config: PythonExecutorConfig, calls: ScriptCalls) -> Ran:
    """Run a script to its end. Its failures are in what it returns; `Retry` where its value is too large."""
    import pydantic_monty as monty

    printed = monty.CollectString(config.printed_bytes)
    conversation = _Conversation(calls, is_async=_IMPORTS_ASYNCIO.search(script.code) is not None)
    try:
        async with _session(config) as session:
            step = await session.feed_start(script.code, inputs=script.inputs, print_callback=printed)
            while not isinstance(step, monty.MontyComplete):
                step = await conversation.go_on(step)
            return _ended(step.output, printed.output, conversation.forgotten())
    except monty.MontyError as error:
        return Ran(printed=printed.output, failure=_failure(error, config))
    except FileNotFoundError as error:
        raise ExecutionFailed(f"The sandbox cannot be started: {error}") from error
    finally:
        await conversation.end()


@asynccontextmanager
async def _session(config: PythonExecutorConfig) -> AsyncIterator[AsyncMontySession]:
    """A sandbox that is closed again, also when it is just being opened while the call is cancelled."""
    import pydantic_monty as monty

    stack = AsyncExitStack()

    async def opened() -> AsyncMontySession:
        pool = monty.AsyncMonty(max_processes=1, feed_duration_limit_grace=_GRACE)
        await stack.enter_async_context(pool)
        return await stack.enter_async_context(pool.checkout(limits=_limits(config)))

    try:
        yield await to_the_end(opened())
    finally:
        await to_the_end(stack.aclose())


def _limits(config: PythonExecutorConfig) -> ResourceLimits:
    return {
        "max_feed_duration_secs": config.seconds,
        "max_memory": config.memory,
        "max_suspensions": 3 * config.calls + _LOOKUPS,
        "max_total_sleep_secs": config.seconds,
    }


def _ended(value: Any, printed: str, forgotten: Sequence[str]) -> Ran:
    if forgotten:
        message = f"{forgotten[0]}() was never awaited, so it was not called. Write: await {forgotten[0]}(…)"
        return Ran(printed=printed, failure=Failure(how="raised", message=message))
    try:
        return Ran(value=plain_value(value, what="The value of the last expression"), printed=printed)
    except Retry as error:
        return Ran(printed=printed, failure=Failure(how="result", message=str(error)))


@dataclass(slots=True)
class _Conversation:
    """Answers what a running script asks for."""

    calls: ScriptCalls
    is_async: bool
    """The script gathers its calls: each gives something to await."""
    wanted: dict[int, tuple[str, Callable[[], Coroutine[Any, Any, Answer]]]] = field(default_factory=dict)
    """Calls that are made when something is awaited."""
    running: dict[int, asyncio.Task[Answer]] = field(default_factory=dict)

    async def go_on(self, step: AsyncSnapshot) -> AsyncSnapshot:
        import pydantic_monty as monty

        match step:
            case monty.AsyncNameLookupSnapshot():
                return await (
                    step.resume(value=_function(step.variable_name))
                    if step.object_id is None and self.calls.has(step.variable_name)
                    else step.resume()
                )
            case monty.AsyncFutureSnapshot():
                return await step.resume(await self._settle(step.pending_call_ids))
            case monty.AsyncFunctionSnapshot() if step.is_os_function and step.function_name not in _SLEEPS:
                return await step.resume_not_handled()
            case monty.AsyncFunctionSnapshot():
                name, comes_later = step.function_name, step.allow_eager_await or self.is_async
                call = partial(self.calls.make, name, step.args, step.kwargs)
                if step.is_os_function:
                    name, comes_later = _SLEEPS[name]
                    call = partial(_sleep, *step.args)
                if not comes_later:
                    return await step.resume(_told(await call()))
                self.wanted[step.call_id] = name, call
                return await step.resume({"future": ...})
            case _:
                raise ExecutionFailed(f"The sandbox has stopped for an unknown reason: {step!r}")

    async def _settle(self, waited_for: Sequence[int]) -> dict[int, ExternalSettledResult]:
        """The answers that are there first, of calls that are awaited."""
        for call_id in waited_for:
            if call_id in self.wanted:
                self.running[call_id] = asyncio.create_task(self.wanted.pop(call_id)[1]())
        done, _ = await asyncio.wait(self.running.values(), return_when=asyncio.FIRST_COMPLETED)
        settled = {call_id: _told(task.result()) for call_id, task in self.running.items() if task in done}
        for call_id in settled:
            del self.running[call_id]
        return settled

    def forgotten(self) -> list[str]:
        """The tools whose calls nobody awaited."""
        return [name for name, _ in self.wanted.values()]

    async def end(self) -> None:
        """No call goes on when its script has ended."""
        for task in self.running.values():
            task.cancel()
        if self.running:
            await asyncio.wait(self.running.values())


async def _sleep(seconds: float) -> Answer:
    await asyncio.sleep(seconds)
    return Answer()


def _told(answer: Answer) -> ExternalSettledResult:
    if answer.raises is not None:
        return {"exc_type": answer.raises, "message": answer.message}
    return {"return_value": answer.value}


def _function(name: str) -> Callable[..., None]:
    """What stands for a tool that a script names without calling it: the sandbox takes only its name."""

    def function() -> None: ...

    function.__name__ = name
    return function


def _failure(error: MontyError, config: PythonExecutorConfig) -> Failure:
    import pydantic_monty as monty

    if isinstance(error, monty.MontyCrashedError):
        how: HowItFailed = "timeout" if error.timed_out else "broken"
        return Failure(how=how, message=str(error))
    if not isinstance(error, (monty.MontyRuntimeError, monty.MontySyntaxError)):
        return Failure(how="broken", message=str(error))
    message = error.display("type-msg")
    how = "raised"
    if _OUT_OF_TIME.match(message):
        how = "timeout"
    elif _OUT_OF_MEMORY.match(message):
        how = "printed" if f"> {config.printed_bytes} bytes" in message else "memory"
    lines = [
        Line(
            number=frame.line,
            function="" if frame.function_name in (None, "<module>") else str(frame.function_name),
            source=(frame.source_line or "").strip(),
        )
        for frame in error.traceback()
    ]
    return Failure(how=how, message=message, lines=lines)
