"""What no tool engine can be faster than, and the plain ways people build without one."""

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

from benchmarks.minds import DONE, Script
from benchmarks.samples import ARGUMENTS, MOST_AT_ONCE, add, add_sync, nap, rest, step
from benchmarks.ways import Loop, Registry, Together, Way

_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


async def call(stack: AsyncExitStack) -> dict[str, Way]:
    import jsonschema_rs

    validator = jsonschema_rs.validator_for(_SCHEMA)

    async def bare() -> int:
        return await add(**ARGUMENTS)

    async def validated() -> int:
        validator.validate(ARGUMENTS)
        return await add(**ARGUMENTS)

    return {"bare await": Way(do=bare), "jsonschema-rs + await": Way(do=validated)}


async def limit(stack: AsyncExitStack, calls: int) -> dict[str, Way]:
    async def gather() -> list[int]:
        semaphore = asyncio.Semaphore(MOST_AT_ONCE)

        async def one() -> int:
            async with semaphore:
                return await nap(**ARGUMENTS)

        return await asyncio.gather(*(one() for _ in range(calls)))

    return {f"asyncio.gather, Semaphore({MOST_AT_ONCE})": Way(do=gather)}


async def together(stack: AsyncExitStack) -> dict[str, Together]:
    async def gather(calls: int) -> float:
        await asyncio.gather(*(rest(**ARGUMENTS) for _ in range(calls)))
        return 0.0

    return {"asyncio.gather": gather}


def registry() -> Registry:
    """Signatures and docstrings read by hand into plain dictionaries."""

    async def first_call(tools: dict[str, Any], name: str, arguments: dict[str, Any]) -> Any:
        return await tools[name][1](**arguments)

    return Registry(register=lambda fns: {f.__name__: (_schema_of(f), f) for f in fns}, first_call=first_call)


async def loop(stack: AsyncExitStack, further: list[Callable[..., Any]]) -> dict[str, Loop]:
    """What every agent does at heart: calls come as JSON, a history grows."""
    script = Script()
    tools = {function.__name__: function for function in (step, *further)}

    async def run(turns: int) -> str:
        script.begin(turns)
        history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        while (wish := script.wish()) is not None:
            name, text = wish[0], json.dumps(wish[1])
            asked = {"id": script.new_id(), "type": "function", "function": {"name": name, "arguments": text}}
            history.append({"role": "assistant", "content": None, "tool_calls": [asked]})
            answer = str(await tools[name](**json.loads(text)))
            history.append({"role": "tool", "tool_call_id": asked["id"], "name": name, "content": answer})
        return DONE

    return {"a while loop": Loop(run=run)}


async def sync(stack: AsyncExitStack) -> dict[str, Way]:
    from anyio import to_process

    async def in_thread() -> int:
        return await asyncio.to_thread(add_sync, **ARGUMENTS)

    async def in_process() -> int:
        return await to_process.run_sync(add_sync, ARGUMENTS["a"], ARGUMENTS["b"])

    return {"asyncio.to_thread": Way(do=in_thread), "anyio.to_process": Way(do=in_process)}


async def record(stack: AsyncExitStack) -> dict[str, Way]:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
    lines = stack.enter_context((directory / "calls.jsonl").open("wb", buffering=0))
    numbers = count(1)

    async def line() -> None:
        lines.write(json.dumps([next(numbers), *_ROW]).encode() + b"\n")

    normal, started, threaded, synced = (
        _database(stack, directory / f"{name}.db") for name in ("normal", "started", "threaded", "synced")
    )
    synced.execute("PRAGMA synchronous=FULL")

    async def transaction() -> None:
        normal.execute(_INSERT, (next(numbers), *_ROW))

    async def two_transactions() -> None:
        number = next(numbers)
        started.execute(_INSERT, (number, *_ROW[:2], "running", None, None, _ROW[5], None))
        started.execute(_UPDATE, (*_ROW[2:5], _ROW[6], number))

    async def hop() -> None:
        await asyncio.to_thread(threaded.execute, _INSERT, (next(numbers), *_ROW))

    async def with_fsync() -> None:
        synced.execute(_INSERT, (next(numbers), *_ROW))

    return {
        "a line appended to a file": Way(do=line),
        "one SQLite transaction per row": Way(do=transaction),
        "two SQLite transactions, start and end": Way(do=two_transactions),
        "a thread hop and a transaction per row": Way(do=hop),
        "one SQLite transaction per row, fsync": Way(do=with_fsync),
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
    said = dict(re.findall(r"^\s+(\w+): (.+)$", arguments, re.MULTILINE))
    properties = {
        parameter.name: {"type": _JSON_TYPES[parameter.annotation], "description": said.get(parameter.name, "")}
        for parameter in inspect.signature(function).parameters.values()
    }
    return {"name": function.__name__, "description": text.strip(), "properties": properties}
