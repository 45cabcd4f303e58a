# mypy: ignore-errors
"""Strands: a function tool alone, and the tool executor with hooks."""

import json
from itertools import count

from strands import Agent, tool
from strands.models.model import Model
from strands.tools.executors._executor import ToolExecutor
from strands.tools.registry import ToolRegistry

from benchmarks.interface import AgentLoop, Operation, Registry
from benchmarks.models import FINAL_ANSWER, CallScript, as_openai_tool
from benchmarks.tools import ARGUMENTS, add, read_count, step

_ids = count(1)


async def call(stack):
    agent = Agent(model=_UncalledModel(), tools=[tool(add)], callback_handler=None)
    function_tool = agent.tool_registry.registry["add"]

    async def executor():
        results = []
        async for _ in ToolExecutor._stream(agent, _use("add", ARGUMENTS), results, {}):
            pass
        return results

    async def stream():
        return await _last_event(function_tool, "add", ARGUMENTS)

    return {"ToolExecutor, with hooks": Operation(run=executor), "DecoratedFunctionTool.stream": Operation(run=stream)}


def registry():
    def register(functions):
        tool_registry = ToolRegistry()
        tool_registry.process_tools([tool(function) for function in functions])
        return tool_registry

    async def first_call(tool_registry, name, arguments):
        return await _last_event(tool_registry.registry[name], name, arguments)

    return Registry(register=register, first_call=first_call)


async def loop(stack, extra_tools):
    script = CallScript()
    tools = [tool(function) for function in (step, *extra_tools)]
    agent = Agent(model=_ScriptedModel(script), tools=tools, callback_handler=None)

    async def run(turns):
        script.start(turns)
        agent.messages.clear()  # else it keeps the history of earlier runs
        return str(await agent.invoke_async("go"))

    return {"Agent.invoke_async": AgentLoop(run=run)}


async def prompt(functions):
    specs = [tool(function).tool_spec for function in functions]
    tools = [as_openai_tool(each["name"], each["description"], each["inputSchema"]["json"]) for each in specs]
    return "Agent, all tools", json.dumps(tools)


def failing_call(script):
    async def run():
        return str(
            await Agent(model=_ScriptedModel(script), tools=[tool(read_count)], callback_handler=None).invoke_async(
                "go"
            )
        )

    return {"Agent.invoke_async": run}


def _use(name, arguments):
    return {"toolUseId": f"c{next(_ids)}", "name": name, "input": dict(arguments)}


async def _last_event(function_tool, name, arguments):
    return [event async for event in function_tool.stream(_use(name, arguments), {})][-1]


class _UncalledModel(Model):
    """A model that is never called; an agent cannot be created without one."""

    def update_config(self, **config):
        pass

    def get_config(self):
        return {"model_id": "none", "context_window_limit": 100_000}

    def structured_output(self, *args, **kwargs):
        raise NotImplementedError

    def stream(self, *args, **kwargs):
        raise NotImplementedError


class _ScriptedModel(_UncalledModel):
    """A model whose tool calls come from a script."""

    def __init__(self, script):
        self.script = script

    async def stream(self, messages, tool_specs=None, system_prompt=None, **options):
        call = self.script.next_call()
        start, delta, reason = {}, {"text": FINAL_ANSWER}, "end_turn"
        if call is not None:
            name, arguments = call
            start = {"toolUse": {"name": name, "toolUseId": self.script.new_id()}}
            delta, reason = {"toolUse": {"input": json.dumps(arguments)}}, "tool_use"
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": start}}
        yield {"contentBlockDelta": {"delta": delta}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": reason}}
