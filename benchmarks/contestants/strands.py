# mypy: ignore-errors
"""Strands: a decorated function alone, and its tool executor with hooks."""

import json
from itertools import count

from strands import Agent, tool
from strands.models.model import Model
from strands.tools.executors._executor import ToolExecutor
from strands.tools.registry import ToolRegistry

from benchmarks.minds import DONE, Script
from benchmarks.samples import ARGUMENTS, add, read_count, step
from benchmarks.ways import Loop, Registry, Way

_ids = count(1)


async def call(stack):
    agent = Agent(model=_NoModel(), tools=[tool(add)], callback_handler=None)
    alone = agent.tool_registry.registry["add"]

    async def executor():
        results = []
        async for _ in ToolExecutor._stream(agent, _use("add", ARGUMENTS), results, {}):
            pass
        return results

    async def stream():
        return await _last(alone, "add", ARGUMENTS)

    return {"ToolExecutor, with hooks": Way(do=executor), "DecoratedFunctionTool.stream": Way(do=stream)}


def registry():
    def register(functions):
        made = ToolRegistry()
        made.process_tools([tool(function) for function in functions])
        return made

    async def first_call(made, name, arguments):
        return await _last(made.registry[name], name, arguments)

    return Registry(register=register, first_call=first_call)


async def loop(stack, further):
    script = Script()
    tools = [tool(function) for function in (step, *further)]
    agent = Agent(model=_Minded(script), tools=tools, callback_handler=None)

    async def run(turns):
        script.begin(turns)
        agent.messages.clear()  # it keeps the history of earlier runs
        return str(await agent.invoke_async("go"))

    return {"Agent.invoke_async": Loop(run=run)}


def stubborn(mind):
    async def run():
        return str(await Agent(model=_Minded(mind), tools=[tool(read_count)], callback_handler=None).invoke_async("go"))

    return {"Agent.invoke_async": run}


def _use(name, arguments):
    return {"toolUseId": f"c{next(_ids)}", "name": name, "input": dict(arguments)}


async def _last(decorated, name, arguments):
    return [event async for event in decorated.stream(_use(name, arguments), {})][-1]


class _NoModel(Model):
    """An agent needs a model; this one is never asked."""

    def update_config(self, **config):
        pass

    def get_config(self):
        return {"model_id": "none", "context_window_limit": 100_000}

    def structured_output(self, *args, **kwargs):
        raise NotImplementedError

    def stream(self, *args, **kwargs):
        raise NotImplementedError


class _Minded(_NoModel):
    """A model that does what a mind wishes."""

    def __init__(self, mind):
        self.mind = mind

    async def stream(self, messages, tool_specs=None, system_prompt=None, **options):
        wish = self.mind.wish()
        start, delta, reason = {}, {"text": DONE}, "end_turn"
        if wish is not None:
            name, arguments = wish
            start = {"toolUse": {"name": name, "toolUseId": self.mind.new_id()}}
            delta, reason = {"toolUse": {"input": json.dumps(arguments)}}, "tool_use"
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": start}}
        yield {"contentBlockDelta": {"delta": delta}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": reason}}
