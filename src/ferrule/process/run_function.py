"""Running a function of any kind to its end: plain functions, coroutines, generators and async generators.

What a generator yields is reported as progress immediately, and all of it is the result: a list, or one text when every
item is text. A yielded `Progress` is only reported. If a generator returns a value, that is its result instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import Any, NoReturn

from ferrule.core.call import Invocation, Progress
from ferrule.core.schema.binding import Bind
from ferrule.errors import ExecutionFailed

Report = Callable[[Progress], None]


def run_blocking(function: Callable[..., Any], bind: Bind, invocation: Invocation) -> Any:
    """Return the result of the function, for a thread without a running event loop."""
    try:
        args, kwargs = bind(invocation.params, invocation.context)
        value = function(*args, **kwargs)
        if inspect.isgenerator(value):
            return _drain_generator(value, invocation.report)
        if not (inspect.isasyncgen(value) or inspect.isawaitable(value)):
            return value
        import asyncio  # takes longer than everything else a worker imports, and most workers never need it

        try:
            return asyncio.run(_finish(value, invocation.report))
        except asyncio.CancelledError as error:
            refuse_process_exit(invocation, error)
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        refuse_process_exit(invocation, error)


async def run_in_task(function: Callable[..., Any], bind: Bind, invocation: Invocation) -> Any:
    """Return the result of the function, run in the task of the caller."""
    try:
        args, kwargs = bind(invocation.params, invocation.context)
        value = function(*args, **kwargs)
        if inspect.isgenerator(value):
            return _drain_generator(value, invocation.report)
        return await _finish(value, invocation.report)
    except (SystemExit, StopIteration) as error:
        refuse_process_exit(invocation, error)


def _drain_generator(generator: Generator[Any, Any, Any], report: Report) -> Any:
    items: list[Any] = []
    try:
        while True:
            _add_item(next(generator), items, report)
    except StopIteration as end:
        return _join_items(items) if end.value is None else end.value
    finally:
        generator.close()


async def _finish(value: Any, report: Report) -> Any:
    if not inspect.isasyncgen(value):
        return await value if inspect.isawaitable(value) else value
    items: list[Any] = []
    try:
        async for item in value:
            _add_item(item, items, report)
    finally:
        await value.aclose()
    return _join_items(items)


def refuse_process_exit(invocation: Invocation, error: BaseException) -> NoReturn:
    """Raise ExecutionFailed. A tool that tries to end the process it runs in ends only its call."""
    raise ExecutionFailed(
        f"Tool {invocation.tool.id!r} raised {error!r}, which would end the whole process. "
        "A tool ends by returning a value or raising an ordinary exception."
    ) from error


def _add_item(item: Any, items: list[Any], report: Report) -> None:
    if isinstance(item, Progress):
        report(item)
    else:
        items.append(item)
        report(Progress(data=item))


def _join_items(items: list[Any]) -> Any:
    return "".join(items) if items and all(isinstance(item, str) for item in items) else items
