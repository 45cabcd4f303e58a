"""Running a function of any kind to its end: plain ones, coroutines, generators and async generators.

What a generator yields is reported as it comes, and is the result at the end: a list, or one text when every piece
is text. A yielded `Progress` is only reported. A value a generator returns is its result instead.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, NoReturn

from ferrule.call import Invocation, Progress
from ferrule.errors import ExecutionFailed
from ferrule.schema.binding import Bind

Report = Callable[[Progress], None]


def run_to_end(function: Callable[..., Any], bind: Bind, invocation: Invocation) -> Any:
    """The result of the function, for threads in which no event loop runs."""
    try:
        value = start(function, bind, invocation)
        if inspect.isgenerator(value):
            return drain(value, invocation.report)
        if inspect.isasyncgen(value):
            return _run_async(drain_async(value, invocation.report), invocation)
        return _run_async(_wait_for(value), invocation) if inspect.isawaitable(value) else value
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        refuse_to_end(invocation, error)


async def run_here(function: Callable[..., Any], bind: Bind, invocation: Invocation) -> Any:
    """The result of the function, run in the task of its caller."""
    try:
        value = start(function, bind, invocation)
        if inspect.isgenerator(value):
            return drain(value, invocation.report)
        if inspect.isasyncgen(value):
            return await drain_async(value, invocation.report)
        return await value if inspect.isawaitable(value) else value
    except (SystemExit, StopIteration) as error:
        refuse_to_end(invocation, error)


def start(function: Callable[..., Any], bind: Bind, invocation: Invocation) -> Any:
    args, kwargs = bind(invocation.params, invocation.context)
    return function(*args, **kwargs)


def drain(generator: Generator[Any, Any, Any], report: Report) -> Any:
    items: list[Any] = []
    try:
        while True:
            _take(next(generator), items, report)
    except StopIteration as end:
        return _joined(items) if end.value is None else end.value
    finally:
        generator.close()


async def drain_async(generator: AsyncGenerator[Any, Any], report: Report) -> Any:
    items: list[Any] = []
    try:
        async for item in generator:
            _take(item, items, report)
    finally:
        await generator.aclose()
    return _joined(items)


def refuse_to_end(invocation: Invocation, error: BaseException) -> NoReturn:
    """A tool that wants to end the process it runs in ends only its call."""
    raise ExecutionFailed(
        f"Tool {invocation.tool.id!r} raised {error!r}, which ends more than the tool. "
        "A tool ends by returning a value or raising an ordinary exception."
    ) from error


def _take(item: Any, items: list[Any], report: Report) -> None:
    if isinstance(item, Progress):
        report(item)
    else:
        items.append(item)
        report(Progress(data=item))


def _joined(items: list[Any]) -> Any:
    return "".join(items) if items and all(isinstance(item, str) for item in items) else items


def _run_async(coroutine: Coroutine[Any, Any, Any], invocation: Invocation) -> Any:
    import asyncio  # takes longer than all the rest of a worker's start, and most workers do without

    try:
        return asyncio.run(coroutine)
    except asyncio.CancelledError as error:
        refuse_to_end(invocation, error)


async def _wait_for(value: Any) -> Any:
    return await value
