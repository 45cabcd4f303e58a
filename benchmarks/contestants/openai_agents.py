# mypy: ignore-errors
"""OpenAI Agents: a call of a function tool, and one turn of a run with many calls."""

import json
from itertools import count

from agents import Agent, Model, ModelResponse, RunConfig, Runner, ToolExecutionConfig, Usage, function_tool
from agents.testing import assistant_message, function_call
from agents.tool_context import ToolContext

from benchmarks.interface import AgentLoop, Operation, Registry
from benchmarks.models import FINAL_ANSWER, CallScript, as_openai_tool
from benchmarks.tools import ARGUMENTS, MAX_CONCURRENT, add, read_count, short_wait, step

_ids = count(1)


async def call(stack):
    tool = function_tool(add)

    async def invoke():
        return await _invoke(tool, "add", ARGUMENTS)

    return {"FunctionTool.on_invoke_tool": Operation(run=invoke)}


async def limit(stack, calls):
    tool = function_tool(short_wait)
    config = RunConfig(
        tracing_disabled=True,
        tool_execution=ToolExecutionConfig(max_function_tool_concurrency=MAX_CONCURRENT),
    )

    async def one_turn():
        agent = Agent("bench", tools=[tool], model=_SingleTurnModel(calls))
        return await Runner.run(agent, "go", run_config=config)

    return {f"one turn of a run, max_function_tool_concurrency={MAX_CONCURRENT}": Operation(run=one_turn)}


def registry():
    async def first_call(tools, name, arguments):
        return await _invoke(tools[name], name, arguments)

    return Registry(register=lambda fns: {tool.name: tool for tool in map(function_tool, fns)}, first_call=first_call)


async def loop(stack, extra_tools):
    script = CallScript()
    agent = Agent(
        "bench", tools=[function_tool(function) for function in (step, *extra_tools)], model=_ScriptedModel(script)
    )

    async def run(turns):
        script.start(turns)
        return (await Runner.run(agent, "go", max_turns=turns + 1)).final_output

    return {"Runner.run": AgentLoop(run=run)}


async def prompt(functions):
    tools = [function_tool(function) for function in functions]
    schemas = [as_openai_tool(each.name, each.description, each.params_json_schema) for each in tools]
    return "Agent, all tools", json.dumps(schemas)


def failing_call(script):
    async def run():
        agent = Agent("bench", tools=[function_tool(read_count)], model=_ScriptedModel(script))
        return (await Runner.run(agent, "go")).final_output

    return {"Runner.run": run}


async def _invoke(tool, name, arguments):
    text = json.dumps(arguments)
    context = ToolContext(None, tool_name=name, tool_call_id=f"c{next(_ids)}", tool_arguments=text)
    return await tool.on_invoke_tool(context, text)


class _SingleTurnModel(Model):
    """A model that asks for many calls in its first turn and ends in the second."""

    def __init__(self, calls):
        self.calls = calls

    async def get_response(self, system_instructions, input, *args, **kwargs):
        if self.calls:
            parts = [function_call("short_wait", ARGUMENTS, call_id=f"c{next(_ids)}") for _ in range(self.calls)]
            self.calls = 0
        else:
            parts = [assistant_message("done")]
        return ModelResponse(parts, Usage(), None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


class _ScriptedModel(Model):
    """A model whose tool calls come from a script."""

    def __init__(self, script):
        self.script = script

    async def get_response(self, system_instructions, input, *args, **kwargs):
        call = self.script.next_call()
        message = (
            assistant_message(FINAL_ANSWER) if call is None else function_call(*call, call_id=self.script.new_id())
        )
        return ModelResponse([message], Usage(), None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError
