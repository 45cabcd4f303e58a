"""Ferrule's side of plans, and of questions that need none."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from benchmarks.minds import DONE
from benchmarks.plan import STEPS, plan_text
from benchmarks.samples import rest, step
from benchmarks.ways import Loop, Together, Way
from ferrule import ToolEngineConfig, UnifiedToolLibrary, tool
from ferrule.memory.conversation import KEPT, ConversationMemory
from ferrule.models.model import ModelReply, ModelRequest, TextSink
from ferrule.orchestrator import Orchestrator
from ferrule.workflow import GraphWorkflow, SimpleWorkflow

LONG = "long"
"""A conversation of which as much is kept as ever is."""
ASKED = "Which city did they leave for in the end?"


class Planner:
    """A model that has its plan and its answer ready."""

    name = "planner"

    def __init__(self, tool: str, *, chain: bool) -> None:
        self._tool, self._chain = tool, chain
        self._plans: dict[int, ModelReply] = {}
        self.begin(STEPS)

    def begin(self, steps: int) -> None:
        if steps not in self._plans:
            self._plans[steps] = ModelReply(text=plan_text(steps, self._tool, chain=self._chain))
        self._plan = self._plans[steps]

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        return ModelReply(text=DONE) if request.answer_schema is None else self._plan


async def plan(stack: AsyncExitStack) -> dict[str, Loop]:
    return {
        "Orchestrator.process_task, SQLite checkpoints": await _asked(stack),
        "GraphWorkflow.run, SQLite checkpoints": await _run(stack, GraphWorkflow),
        "GraphWorkflow.run, checkpoints in memory": await _run(stack, GraphWorkflow, store="memory"),
        "GraphWorkflow.run, SQLite checkpoints, all steps at once": await _run(stack, GraphWorkflow, chain=False),
        "SimpleWorkflow.run, SQLite store": await _run(stack, SimpleWorkflow),
    }


async def together(stack: AsyncExitStack) -> dict[str, Together]:
    return {
        "GraphWorkflow.run, SQLite checkpoints": await _together(stack, GraphWorkflow),
        "SimpleWorkflow.run, SQLite store": await _together(stack, SimpleWorkflow),
    }


async def door(stack: AsyncExitStack, further: list[Callable[..., Any]]) -> dict[str, Way]:
    library = await _library(stack, *further)
    library.register(tool(read_only=True, cacheable=True)(step))
    orchestrator = Orchestrator(library, Planner("step", chain=True), workflow="simple", strategy="plan")
    await stack.enter_async_context(orchestrator)
    await orchestrator.process_task("Count everything", conversation_id="cached")
    for _ in range(KEPT):
        _talk(orchestrator.memory)

    def asking(question: str, conversation: str, *, way: str, answer: str, talk: bool = False) -> Way:
        async def ask() -> None:
            if talk:  # else there would soon be nothing but questions after questions
                _talk(orchestrator.memory)
            result = await orchestrator.process_task(question, conversation_id=conversation)
            if answer not in result.answer or way != ("cache" if result.cached else result.strategy):
                raise AssertionError(f"{question!r} gave {result!r}")

        return Way(do=ask, settle=library.engine.store.flush)

    return {
        "Hello!": asking("Hello!", "greeting", way="fast_path", answer="I am Ferrule"),
        "What can you do?": asking("What can you do?", "tools", way="fast_path", answer="calculator"),
        "What did I ask? in a long conversation": asking(
            "What did I ask?", LONG, way="fast_path", answer=ASKED, talk=True
        ),
        "a question that was answered before": asking("Count everything!", "cached", way="cache", answer=DONE),
    }


def _talk(memory: ConversationMemory) -> None:
    """One turn more of the long conversation."""
    turn = memory.ask(LONG, ASKED)
    memory.answer(LONG, turn, "It was Oslo.", state="finished")


async def _asked(stack: AsyncExitStack) -> Loop:
    library, model = await _library(stack, step), Planner("step", chain=True)
    orchestrator = Orchestrator(library, model, workflow="langgraph", strategy="plan", cache_ttl=None)
    await stack.enter_async_context(orchestrator)

    async def run(steps: int) -> str:
        model.begin(steps)
        return (await orchestrator.process_task("Count everything")).answer

    return Loop(run=run, settle=library.engine.store.flush)


async def _run(
    stack: AsyncExitStack,
    kind: type[GraphWorkflow] | type[SimpleWorkflow],
    *,
    chain: bool = True,
    store: Literal["sqlite", "memory"] = "sqlite",
) -> Loop:
    library, model = await _library(stack, step, store=store), Planner("step", chain=chain)
    flow = await stack.enter_async_context(_opened(kind(library, model)))

    async def run(steps: int) -> str:
        model.begin(steps)
        return (await flow.run("Count everything")).answer

    return Loop(run=run, settle=library.engine.store.flush)


async def _together(stack: AsyncExitStack, kind: type[GraphWorkflow] | type[SimpleWorkflow]) -> Together:
    library, model = await _library(stack, rest), Planner("rest", chain=False)
    flow = await stack.enter_async_context(_opened(kind(library, model)))

    async def together(steps: int) -> float:
        model.begin(steps)
        return (await flow.run("Count everything")).timings["planning"]

    return together


@asynccontextmanager
async def _opened(flow: GraphWorkflow | SimpleWorkflow) -> AsyncIterator[GraphWorkflow | SimpleWorkflow]:
    yield flow
    if isinstance(flow, GraphWorkflow):
        await flow.aclose()


async def _library(
    stack: AsyncExitStack, *functions: Callable[..., Any], store: Literal["sqlite", "memory"] = "sqlite"
) -> UnifiedToolLibrary:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
    url = f"sqlite:///{folder / 'calls.db'}" if store == "sqlite" else None
    library = UnifiedToolLibrary(ToolEngineConfig(auto_reload=False), store=url)
    await stack.enter_async_context(library)
    library.register(*functions)
    return library
