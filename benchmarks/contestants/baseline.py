"""The lower bound of each benchmark, such as a bare function call, and what people write without a tool engine."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.interface import AgentLoop, Operation, ParallelSteps, Registry
from benchmarks.models import FINAL_ANSWER, CallScript
from benchmarks.tools import ARGUMENTS, MAX_CONCURRENT, add, add_sync, long_wait, short_wait, step

_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


async def call(stack: AsyncExitStack) -> dict[str, Operation]:
    import jsonschema_rs

    validator = jsonschema_rs.validator_for(_SCHEMA)

    async def bare_await() -> int:
        return await add(**ARGUMENTS)

    async def validate_and_await() -> int:
        validator.validate(ARGUMENTS)
        return await add(**ARGUMENTS)

    return {"bare await": Operation(run=bare_await), "jsonschema-rs + await": Operation(run=validate_and_await)}


async def limit(stack: AsyncExitStack, calls: int) -> dict[str, Operation]:
    async def gather() -> list[int]:
        semaphore = asyncio.Semaphore(MAX_CONCURRENT)

        async def limited_call() -> int:
            async with semaphore:
                return await short_wait(**ARGUMENTS)

        return await asyncio.gather(*(limited_call() for _ in range(calls)))

    return {f"asyncio.gather, Semaphore({MAX_CONCURRENT})": Operation(run=gather)}


async def parallel(stack: AsyncExitStack) -> dict[str, ParallelSteps]:
    async def gather(calls: int) -> float:
        await asyncio.gather(*(long_wait(**ARGUMENTS) for _ in range(calls)))
        return 0.0

    return {"asyncio.gather": gather}


def registry() -> Registry:
    """Read signatures and docstrings into plain dictionaries."""

    async def first_call(tools: dict[str, Any], name: str, arguments: dict[str, Any]) -> Any:
        return await tools[name][1](**arguments)

    return Registry(register=lambda fns: {f.__name__: (_schema_of(f), f) for f in fns}, first_call=first_call)


async def loop(stack: AsyncExitStack, extra_tools: list[Callable[..., Any]]) -> dict[str, AgentLoop]:
    """The minimum of an agent: calls arrive as JSON, and a history grows."""
    script = CallScript()
    tools = {function.__name__: function for function in (step, *extra_tools)}

    async def run(turns: int) -> str:
        script.start(turns)
        history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        while (call := script.next_call()) is not None:
            name, text = call[0], json.dumps(call[1])
            tool_call = {"id": script.new_id(), "type": "function", "function": {"name": name, "arguments": text}}
            history.append({"role": "assistant", "content": None, "tool_calls": [tool_call]})
            answer = str(await tools[name](**json.loads(text)))
            history.append({"role": "tool", "tool_call_id": tool_call["id"], "name": name, "content": answer})
        return FINAL_ANSWER

    return {"a while loop": AgentLoop(run=run)}


async def sync(stack: AsyncExitStack) -> dict[str, Operation]:
    from anyio import to_process

    async def in_thread() -> int:
        return await asyncio.to_thread(add_sync, **ARGUMENTS)

    async def in_process() -> int:
        return await to_process.run_sync(add_sync, ARGUMENTS["a"], ARGUMENTS["b"])

    return {"asyncio.to_thread": Operation(run=in_thread), "anyio.to_process": Operation(run=in_process)}


async def record(stack: AsyncExitStack) -> dict[str, Operation]:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
    lines = stack.enter_context((directory / "calls.jsonl").open("wb", buffering=0))
    numbers = count(1)

    async def append_line() -> None:
        lines.write(json.dumps([next(numbers), *_ROW]).encode() + b"\n")

    one_row, two_steps, in_thread, with_fsync = (
        _database(stack, directory / f"{name}.db") for name in ("one_row", "two_steps", "in_thread", "with_fsync")
    )
    with_fsync.execute("PRAGMA synchronous=FULL")

    async def insert() -> None:
        one_row.execute(_INSERT, (next(numbers), *_ROW))

    async def insert_and_update() -> None:
        number = next(numbers)
        two_steps.execute(_INSERT, (number, *_ROW[:2], "running", None, None, _ROW[5], None))
        two_steps.execute(_UPDATE, (*_ROW[2:5], _ROW[6], number))

    async def insert_in_thread() -> None:
        await asyncio.to_thread(in_thread.execute, _INSERT, (next(numbers), *_ROW))

    async def insert_with_fsync() -> None:
        with_fsync.execute(_INSERT, (next(numbers), *_ROW))

    return {
        "a line appended to a file": Operation(run=append_line),
        "one SQLite transaction per row": Operation(run=insert),
        "two SQLite transactions, start and end": Operation(run=insert_and_update),
        "a thread hop and a transaction per row": Operation(run=insert_in_thread),
        "one SQLite transaction per row, fsync": Operation(run=insert_with_fsync),
    }


_ROW = ("add", 1.0, "success", 0.001, None, json.dumps(ARGUMENTS), json.dumps({"result": 777777}))
_INSERT = "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE = "UPDATE calls SET status = ?, took = ?, error = ?, result = ? WHERE id = ?"


def _database(stack: AsyncExitStack, path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    stack.callback(database.close)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute(
        "CREATE TABLE calls (id INTEGER PRIMARY KEY, tool TEXT, started REAL, status TEXT, took REAL, error TEXT,"
        " params TEXT, result TEXT)"
    )
    database.execute("CREATE INDEX calls_by_tool ON calls (tool, started)")
    return database


_JSON_TYPES = {str: "string", int: "integer", bool: "boolean", float: "number"}


def _schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    text, _, arguments = (function.__doc__ or "").partition("Args:")
    descriptions = dict(re.findall(r"^\s+(\w+): (.+)$", arguments, re.MULTILINE))
    properties = {
        parameter.name: {"type": _JSON_TYPES[parameter.annotation], "description": descriptions.get(parameter.name, "")}
        for parameter in inspect.signature(function).parameters.values()
    }
    return {"name": function.__name__, "description": text.strip(), "properties": properties}
