# mypy: ignore-errors
"""OpenAI Agents: a function tool invoked, and one turn of a run with many calls."""

import json
from itertools import count

from agents import Agent, Model, ModelResponse, RunConfig, Runner, ToolExecutionConfig, Usage, function_tool
from agents.testing import assistant_message, function_call
from agents.tool_context import ToolContext

from benchmarks.minds import DONE, Script
from benchmarks.samples import ARGUMENTS, MOST_AT_ONCE, add, nap, read_count, step
from benchmarks.ways import Loop, Registry, Way

_ids = count(1)


async def call(stack):
    tool = function_tool(add)

    async def invoke():
        return await _invoke(tool, "add", ARGUMENTS)

    return {"FunctionTool.on_invoke_tool": Way(do=invoke)}


async def limit(stack, calls):
    tool = function_tool(nap)
    config = RunConfig(
        tracing_disabled=True,
        tool_execution=ToolExecutionConfig(max_function_tool_concurrency=MOST_AT_ONCE),
    )

    async def one_turn():
        agent = Agent("bench", tools=[tool], model=_OneTurn(calls))
        return await Runner.run(agent, "go", run_config=config)

    return {f"one turn of a run, max_function_tool_concurrency={MOST_AT_ONCE}": Way(do=one_turn)}


def registry():
    async def first_call(tools, name, arguments):
        return await _invoke(tools[name], name, arguments)

    return Registry(register=lambda fns: {tool.name: tool for tool in map(function_tool, fns)}, first_call=first_call)


async def loop(stack, further):
    script = Script()
    agent = Agent("bench", tools=[function_tool(function) for function in (step, *further)], model=_Minded(script))

    async def run(turns):
        script.begin(turns)
        return (await Runner.run(agent, "go", max_turns=turns + 1)).final_output

    return {"Runner.run": Loop(run=run)}


def stubborn(mind):
    async def run():
        agent = Agent("bench", tools=[function_tool(read_count)], model=_Minded(mind))
        return (await Runner.run(agent, "go")).final_output

    return {"Runner.run": run}


async def _invoke(tool, name, arguments):
    text = json.dumps(arguments)
    context = ToolContext(None, tool_name=name, tool_call_id=f"c{next(_ids)}", tool_arguments=text)
    return await tool.on_invoke_tool(context, text)


class _OneTurn(Model):
    """A model that asks for many calls at once and then is content."""

    def __init__(self, calls):
        self.calls = calls

    async def get_response(self, system_instructions, input, *args, **kwargs):
        if self.calls:
            parts = [function_call("nap", ARGUMENTS, call_id=f"c{next(_ids)}") for _ in range(self.calls)]
            self.calls = 0
        else:
            parts = [assistant_message("done")]
        return ModelResponse(parts, Usage(), None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


class _Minded(Model):
    """A model that does what a mind wishes."""

    def __init__(self, mind):
        self.mind = mind

    async def get_response(self, system_instructions, input, *args, **kwargs):
        wish = self.mind.wish()
        said = assistant_message(DONE) if wish is None else function_call(*wish, call_id=self.mind.new_id())
        return ModelResponse([said], Usage(), None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError
