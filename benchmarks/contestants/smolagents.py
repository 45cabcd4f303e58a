# mypy: ignore-errors
"""smolagents: its tools are sync and run in the caller's thread or in a thread pool."""

import json
from itertools import count

from smolagents import ToolCallingAgent, tool
from smolagents.models import (
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
    Model,
    get_tool_json_schema,
)
from smolagents.monitoring import LogLevel, TokenUsage

from benchmarks.interface import AgentLoop, Operation, Registry
from benchmarks.models import FINAL_ANSWER, CallScript
from benchmarks.tools import ARGUMENTS, MAX_CONCURRENT, add_sync, read_count_sync, short_wait_sync, step_sync

_ids = count(1)


async def call(stack):
    agent = _agent([tool(add_sync)])

    async def execute():
        return agent.execute_tool_call("add_sync", dict(ARGUMENTS))

    return {"ToolCallingAgent.execute_tool_call, sync tool": Operation(run=execute)}


async def limit(stack, calls):
    waiting_tool = tool(short_wait_sync)

    async def one_turn():
        return _agent([waiting_tool], _SingleTurnModel(calls), max_tool_threads=MAX_CONCURRENT).run("go")

    return {f"one turn of a run, max_tool_threads={MAX_CONCURRENT}": Operation(run=one_turn)}


def registry():
    async def first_call(tools, name, arguments):
        return _agent(tools).execute_tool_call(name, arguments)

    return Registry(register=lambda fns: [tool(function) for function in fns], first_call=first_call, sync=True)


async def loop(stack, extra_tools):
    script = CallScript("step_sync")
    agent = _agent([tool(function) for function in (step_sync, *extra_tools)], _ScriptedModel(script))

    async def run(turns):
        script.start(turns)
        return agent.run("go", max_steps=turns + 1)

    return {"ToolCallingAgent.run, sync tool": AgentLoop(run=run)}


async def prompt(functions):
    tools = [tool(function) for function in functions]
    return "ToolCallingAgent, all tools", json.dumps([get_tool_json_schema(each) for each in tools])


def failing_call(script):
    async def run():
        return _agent([tool(read_count_sync)], _ScriptedModel(script)).run("go")

    return {"ToolCallingAgent.run": run}


def _agent(tools, model=None, **options):
    return ToolCallingAgent(tools, model or _SingleTurnModel(0), verbosity_level=LogLevel.OFF, **options)


class _SingleTurnModel(Model):
    """A model that asks for many calls in its first turn and ends in the second."""

    def __init__(self, calls):
        super().__init__(model_id="one turn")
        self._calls = calls

    def generate(self, messages, **options):
        calls = [("short_wait_sync", ARGUMENTS)] * self._calls or [("final_answer", {"answer": "done"})]
        self._calls = 0
        return _call_message(calls)


class _ScriptedModel(Model):
    """A model whose tool calls come from a script."""

    def __init__(self, script):
        super().__init__(model_id="scripted")
        self._script = script

    def generate(self, messages, **options):
        return _call_message([self._script.next_call() or ("final_answer", {"answer": FINAL_ANSWER})])


def _call_message(calls):
    return ChatMessage(
        role=MessageRole.ASSISTANT,
        content="",
        token_usage=TokenUsage(1, 1),
        tool_calls=[
            ChatMessageToolCall(ChatMessageToolCallFunction(dict(arguments), name), f"c{next(_ids)}", "function")
            for name, arguments in calls
        ],
    )
