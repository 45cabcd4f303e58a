"""Ferrule: the full engine, and the same without its optional parts; agents, plans and questions."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.interface import AgentLoop, AgentRun, Operation, ParallelSteps, Registry
from benchmarks.memory import measure_memory as memory
from benchmarks.models import FINAL_ANSWER, FailingCallScript
from benchmarks.plan_runs import PLAN_STEPS, plan_text
from benchmarks.tools import ARGUMENTS, MAX_CONCURRENT, add, add_sync, long_wait, read_count, short_wait, step
from ferrule import (
    Agent,
    ConcurrencyConfig,
    Policy,
    Rule,
    RunLimits,
    ToolCallRecord,
    ToolEngine,
    ToolEngineConfig,
    ToolEngineEvent,
    ToolKnowledgeStore,
    UnifiedToolLibrary,
    tool,
)
from ferrule.core.messages import ToolCall
from ferrule.core.model import ModelReply, ModelRequest, TextSink
from ferrule.memory.conversation import MAX_TURNS, ConversationMemory
from ferrule.orchestrator import Orchestrator
from ferrule.testing import ScriptedModel
from ferrule.workflow import GraphWorkflow, SimpleWorkflow

__all__ = ["memory"]

LONG_CONVERSATION = "long"
"""The id of a conversation with as many turns as the memory keeps."""
AGENT_PROMPT = "Agent, instructions and offered tools"
QUESTION = "Which city did they leave for in the end?"


async def call(stack: AsyncExitStack) -> dict[str, Operation]:
    engine, without_subscriber = await _engine(stack, add), await _engine(stack, add)
    engine.subscribe(_ignore_event)
    without_database = await stack.enter_async_context(ToolEngine(ToolEngineConfig(auto_reload=False)))
    without_database.register(add)
    library = await _library(stack, add)
    rules = tuple(Rule(tool=f"other_{number}", verdict="deny") for number in range(10))
    with_policy = await _engine(stack, add, policy=Policy(rules=rules))

    async def call_library() -> Any:
        return (await library.execute_tool("add", None, ARGUMENTS)).output

    return {
        "ToolEngine.execute, SQLite store, one subscriber": _engine_call(engine),
        "ToolEngine.execute, SQLite store, no subscriber": _engine_call(without_subscriber),
        "ToolEngine.execute, SQLite store, no subscriber, ten policy rules": _engine_call(with_policy),
        "ToolEngine.execute, store in memory, no subscriber": _engine_call(without_database),
        "UnifiedToolLibrary.execute_tool, SQLite store, no subscriber": Operation(
            run=call_library, flush=library.engine.store.flush
        ),
    }


async def limit(stack: AsyncExitStack, calls: int) -> dict[str, Operation]:
    concurrency = ConcurrencyConfig(max_concurrent=MAX_CONCURRENT, queue_size=calls)
    engine = await _engine(stack, short_wait, concurrency)

    async def batch() -> Any:
        return await engine.execute_batch([("short_wait", ARGUMENTS)] * calls)

    return {f"execute_batch, max_concurrent={MAX_CONCURRENT}": Operation(run=batch, flush=engine.store.flush)}


def registry() -> Registry:
    def register(functions: list[Callable[..., Any]]) -> ToolEngine:
        engine = ToolEngine(ToolEngineConfig(auto_reload=False))
        for function in functions:
            engine.register(function)
        return engine

    async def first_call(engine: ToolEngine, name: str, arguments: dict[str, Any]) -> Any:
        return (await engine.execute(name, arguments)).output

    return Registry(register=register, first_call=first_call)


async def sync(stack: AsyncExitStack) -> dict[str, Operation]:
    engine = await _engine(stack, add_sync)

    async def in_worker() -> Any:
        return (await engine.execute("add_sync", ARGUMENTS)).output

    return {"ToolEngine.execute, warm worker process": Operation(run=in_worker)}


async def record(stack: AsyncExitStack) -> dict[str, Operation]:
    store = await stack.enter_async_context(ToolKnowledgeStore(_database(stack)))

    async def record_call() -> None:
        call_record = ToolCallRecord(record_id=store.new_record_id(), tool_name="add", params=ARGUMENTS, action="add")
        store.record_started(call_record)
        call_record.status, call_record.result, call_record.execution_time = "success", {"result": 777777}, 0.001
        store.record_finished(call_record)

    return {"store, start and end of a call": Operation(run=record_call, flush=store.flush)}


async def loop(stack: AsyncExitStack, extra_tools: list[Callable[..., Any]]) -> dict[str, AgentLoop]:
    return {
        "Agent.run, SQLite store": await _agent_loop(stack, extra_tools),
        "Agent.run, store in memory": await _agent_loop(stack, extra_tools, in_memory=True),
    }


async def _agent_loop(
    stack: AsyncExitStack, extra_tools: list[Callable[..., Any]], *, in_memory: bool = False
) -> AgentLoop:
    library = await _library(stack, step, *extra_tools, in_memory=in_memory)
    agent = Agent(library, ScriptedModel([]), limits=RunLimits(turns=None, calls=None))
    tool_call = ModelReply(tool_calls=(ToolCall(name="step", arguments=ARGUMENTS),), finish_reason="tool_calls")

    async def run(turns: int) -> str:
        agent.model = ScriptedModel([*[tool_call] * turns, FINAL_ANSWER])
        return (await agent.run("go")).text

    return AgentLoop(run=run, flush=library.engine.store.flush)


async def prompt(functions: list[Callable[..., Any]]) -> tuple[str, str]:
    """Its instructions count as well: with many tools they name some that are not offered in full."""
    requests: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        requests.append(request)
        return FINAL_ANSWER

    await Agent(functions, ScriptedModel([answer])).run("Archive the invoices of June")
    messages = json.dumps([*requests[0].messages][:-1])
    return AGENT_PROMPT, messages + json.dumps([*requests[0].tools])


def failing_call(script: FailingCallScript) -> dict[str, AgentRun]:
    def agent_run(*, memory: bool) -> AgentRun:
        async def run() -> str:
            model = ScriptedModel([lambda _: _tool_call(script)], loop=True)
            async with UnifiedToolLibrary(ToolEngineConfig(auto_reload=False)) as library:
                library.register(read_count)
                return (await Agent(library, model, memory=memory).run("go")).text

        return run

    return {"Agent.run": agent_run(memory=True), "Agent.run, memory=False": agent_run(memory=False)}


def _tool_call(script: FailingCallScript) -> dict[str, Any]:
    name, arguments = script.next_call()
    return {"name": name, "arguments": arguments}


class PlanningModel:
    """A model with a prepared plan and answer."""

    name = "planner"

    def __init__(self, tool: str, *, chain: bool) -> None:
        self._tool, self._chain = tool, chain
        self._plans: dict[int, ModelReply] = {}
        self.start(PLAN_STEPS)

    def start(self, steps: int) -> None:
        if steps not in self._plans:
            self._plans[steps] = ModelReply(text=plan_text(steps, self._tool, chain=self._chain))
        self._plan = self._plans[steps]

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        return ModelReply(text=FINAL_ANSWER) if request.answer_schema is None else self._plan


async def plan(stack: AsyncExitStack) -> dict[str, AgentLoop]:
    return {
        "Orchestrator.process_task, SQLite store": await _orchestrator_loop(stack),
        "GraphWorkflow.run, SQLite store": await _workflow_loop(stack, GraphWorkflow),
        "GraphWorkflow.run, store in memory": await _workflow_loop(stack, GraphWorkflow, in_memory=True),
        "GraphWorkflow.run, SQLite store, all steps concurrently": await _workflow_loop(
            stack, GraphWorkflow, chain=False
        ),
        "SimpleWorkflow.run, SQLite store": await _workflow_loop(stack, SimpleWorkflow),
    }


async def parallel(stack: AsyncExitStack) -> dict[str, ParallelSteps]:
    return {
        "GraphWorkflow.run, SQLite store": await _parallel_steps(stack, GraphWorkflow),
        "SimpleWorkflow.run, SQLite store": await _parallel_steps(stack, SimpleWorkflow),
    }


async def fast_path(stack: AsyncExitStack, extra_tools: list[Callable[..., Any]]) -> dict[str, Operation]:
    library = await _library(stack, *extra_tools)
    library.register(tool(read_only=True, cacheable=True)(step))
    orchestrator = Orchestrator(library, PlanningModel("step", chain=True), workflow="simple", strategy="plan")
    await stack.enter_async_context(orchestrator)
    await orchestrator.process_task("Count everything", conversation_id="cached")
    for _ in range(MAX_TURNS):
        _add_turn(orchestrator.memory)

    def ask(question: str, conversation: str, *, source: str, answer: str, add_turn: bool = False) -> Operation:
        async def run() -> None:
            if add_turn:  # without it the conversation would soon consist of this question only
                _add_turn(orchestrator.memory)
            result = await orchestrator.process_task(question, conversation_id=conversation)
            if answer not in result.answer or source != ("cache" if result.cached else result.strategy):
                raise AssertionError(f"{question!r} returned {result!r}")

        return Operation(run=run, flush=library.engine.store.flush)

    return {
        "Hello!": ask("Hello!", "greeting", source="fast_path", answer="I am Ferrule"),
        "What can you do?": ask("What can you do?", "tools", source="fast_path", answer="calculator"),
        "What did I ask? in a long conversation": ask(
            "What did I ask?", LONG_CONVERSATION, source="fast_path", answer=QUESTION, add_turn=True
        ),
        "a question that was answered before": ask("Count  everything", "cached", source="cache", answer=FINAL_ANSWER),
    }


def _add_turn(memory: ConversationMemory) -> None:
    """Add one turn to the long conversation."""
    turn = memory.add_question(LONG_CONVERSATION, QUESTION)
    memory.add_answer(LONG_CONVERSATION, turn, "It was Oslo.", state="finished")


async def _orchestrator_loop(stack: AsyncExitStack) -> AgentLoop:
    library, model = await _library(stack, step), PlanningModel("step", chain=True)
    orchestrator = Orchestrator(library, model, workflow="langgraph", strategy="plan", cache_ttl=None)
    await stack.enter_async_context(orchestrator)

    async def run(steps: int) -> str:
        model.start(steps)
        return (await orchestrator.process_task("Count everything")).answer

    return AgentLoop(run=run, flush=library.engine.store.flush)


async def _workflow_loop(
    stack: AsyncExitStack,
    kind: type[GraphWorkflow] | type[SimpleWorkflow],
    *,
    chain: bool = True,
    in_memory: bool = False,
) -> AgentLoop:
    library, model = await _library(stack, step, in_memory=in_memory), PlanningModel("step", chain=chain)
    workflow = kind(library, model)

    async def run(steps: int) -> str:
        model.start(steps)
        return (await workflow.run("Count everything")).answer

    return AgentLoop(run=run, flush=library.engine.store.flush)


async def _parallel_steps(stack: AsyncExitStack, kind: type[GraphWorkflow] | type[SimpleWorkflow]) -> ParallelSteps:
    library, model = await _library(stack, long_wait), PlanningModel("long_wait", chain=False)
    workflow = kind(library, model)

    async def run_steps(steps: int) -> float:
        model.start(steps)
        return (await workflow.run("Count everything")).timings["planning"]

    return run_steps


async def _library(
    stack: AsyncExitStack, *functions: Callable[..., Any], in_memory: bool = False
) -> UnifiedToolLibrary:
    store = None if in_memory else _database(stack)
    library = await stack.enter_async_context(UnifiedToolLibrary(ToolEngineConfig(auto_reload=False), store=store))
    library.register(*functions)
    return library


async def _engine(
    stack: AsyncExitStack,
    function: Callable[..., Any],
    concurrency: ConcurrencyConfig | None = None,
    policy: Policy | None = None,
) -> ToolEngine:
    config, store = ToolEngineConfig(auto_reload=False), _database(stack)
    engine = await stack.enter_async_context(ToolEngine(config, concurrency=concurrency, store=store, policy=policy))
    engine.register(function)
    return engine


def _database(stack: AsyncExitStack) -> str:
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-"))
    return f"sqlite:///{Path(directory) / 'calls.db'}"


def _engine_call(engine: ToolEngine) -> Operation:
    async def run() -> Any:
        return (await engine.execute("add", ARGUMENTS)).output

    return Operation(run=run, flush=engine.store.flush)


def _ignore_event(event: ToolEngineEvent) -> None:
    pass
