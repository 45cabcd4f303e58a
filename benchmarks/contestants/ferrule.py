"""Ferrule: the full engine, with each of its parts that costs something left out once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.answering import door, plan, together
from benchmarks.minds import DONE, Stubborn
from benchmarks.replay import replay
from benchmarks.samples import ARGUMENTS, MOST_AT_ONCE, add, add_sync, nap, read_count, step
from benchmarks.ways import Insist, Loop, Registry, Way
from ferrule import (
    Agent,
    ConcurrencyConfig,
    RunLimits,
    ToolCallRecord,
    ToolEngine,
    ToolEngineConfig,
    ToolEngineEvent,
    ToolKnowledgeStore,
    UnifiedToolLibrary,
)
from ferrule.messages import ToolCall
from ferrule.models.model import ModelReply
from ferrule.testing import ScriptedModel

__all__ = [
    "call",
    "door",
    "limit",
    "loop",
    "plan",
    "record",
    "registry",
    "replay",
    "stubborn",
    "sync",
    "together",
]

FULL = "ToolEngine.execute, SQLite store, one subscriber"


async def call(stack: AsyncExitStack) -> dict[str, Way]:
    watched, unwatched = await _engine(stack, add), await _engine(stack, add)
    watched.subscribe(_watch)
    in_memory = await stack.enter_async_context(ToolEngine(ToolEngineConfig(auto_reload=False)))
    in_memory.register(add)
    return {
        FULL: _calls(watched),
        "ToolEngine.execute, SQLite store, no subscriber": _calls(unwatched),
        "ToolEngine.execute, store in memory, no subscriber": _calls(in_memory),
    }


async def limit(stack: AsyncExitStack, calls: int) -> dict[str, Way]:
    places = ConcurrencyConfig(max_concurrent=MOST_AT_ONCE, queue_size=calls)
    engine = await _engine(stack, nap, places)

    async def batch() -> Any:
        return await engine.execute_batch([("nap", ARGUMENTS)] * calls)

    return {f"execute_batch, max_concurrent={MOST_AT_ONCE}": Way(do=batch, settle=engine.store.flush)}


def registry() -> Registry:
    def register(functions: list[Callable[..., Any]]) -> ToolEngine:
        engine = ToolEngine(ToolEngineConfig(auto_reload=False))
        for function in functions:
            engine.register(function)
        return engine

    async def first_call(engine: ToolEngine, name: str, arguments: dict[str, Any]) -> Any:
        return (await engine.execute(name, arguments)).output

    return Registry(register=register, first_call=first_call)


async def sync(stack: AsyncExitStack) -> dict[str, Way]:
    engine = await _engine(stack, add_sync)

    async def in_worker() -> Any:
        return (await engine.execute("add_sync", ARGUMENTS)).output

    return {"ToolEngine.execute, warm worker process": Way(do=in_worker)}


async def record(stack: AsyncExitStack) -> dict[str, Way]:
    store = await stack.enter_async_context(ToolKnowledgeStore(_database(stack)))

    async def record_call() -> None:
        made = ToolCallRecord(record_id=store.new_record_id(), tool_name="add", params=ARGUMENTS, action="add")
        store.record_started(made)
        made.status, made.result, made.execution_time = "success", {"result": 777777}, 0.001
        store.record_finished(made)

    return {"store, start and end of a call": Way(do=record_call, settle=store.flush)}


async def loop(stack: AsyncExitStack, further: list[Callable[..., Any]]) -> dict[str, Loop]:
    return {
        "Agent.run, SQLite store": await _loop(stack, further, store=_database(stack)),
        "Agent.run, store in memory": await _loop(stack, further, store=None),
    }


async def _loop(stack: AsyncExitStack, further: list[Callable[..., Any]], store: str | None) -> Loop:
    library = UnifiedToolLibrary(ToolEngineConfig(auto_reload=False), store=store)
    await stack.enter_async_context(library)
    library.register(step, *further)
    agent = Agent(library, ScriptedModel([]), limits=RunLimits(turns=None, calls=None))
    asks = ModelReply(tool_calls=(ToolCall(name="step", arguments=ARGUMENTS),), finish_reason="tool_calls")

    async def run(turns: int) -> str:
        agent.model = ScriptedModel([*[asks] * turns, DONE])
        return (await agent.run("go")).text

    return Loop(run=run, settle=library.engine.store.flush)


def stubborn(mind: Stubborn) -> dict[str, Insist]:
    def insist(*, memory: bool) -> Insist:
        async def run() -> str:
            model = ScriptedModel([lambda _: _asking(mind)], loop=True)
            async with UnifiedToolLibrary(ToolEngineConfig(auto_reload=False)) as library:
                library.register(read_count)
                return (await Agent(library, model, memory=memory).run("go")).text

        return run

    return {"Agent.run": insist(memory=True), "Agent.run, memory=False": insist(memory=False)}


def _asking(mind: Stubborn) -> dict[str, Any]:
    name, arguments = mind.wish()
    return {"name": name, "arguments": arguments}


async def _engine(
    stack: AsyncExitStack, function: Callable[..., Any], concurrency: ConcurrencyConfig | None = None
) -> ToolEngine:
    config = ToolEngineConfig(auto_reload=False)
    engine = await stack.enter_async_context(ToolEngine(config, concurrency=concurrency, store=_database(stack)))
    engine.register(function)
    return engine


def _database(stack: AsyncExitStack) -> str:
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-"))
    return f"sqlite:///{Path(directory) / 'calls.db'}"


def _calls(engine: ToolEngine) -> Way:
    async def one_call() -> Any:
        return (await engine.execute("add", ARGUMENTS)).output

    return Way(do=one_call, settle=engine.store.flush)


def _watch(event: ToolEngineEvent) -> None:
    pass
