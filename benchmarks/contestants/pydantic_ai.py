# mypy: ignore-errors
"""pydantic-ai: its tool manager, alone and in an agent's run."""

import asyncio
import json
from itertools import count

from pydantic_ai import Agent, FunctionToolset, ModelRetry, RunContext, Tool, UsageLimits
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.usage import RequestUsage, RunUsage

from benchmarks.interface import AgentLoop, Operation, Registry
from benchmarks.models import FINAL_ANSWER, CallScript, as_openai_tool
from benchmarks.tools import ARGUMENTS, add, read_count, step

_ids = count(1)
_USAGE = RequestUsage(input_tokens=1, output_tokens=1)  # without it the model counts the words of the whole history


async def call(stack):
    manager = await ToolManager(FunctionToolset([Tool(add)])).for_run_step(_run_context())
    return {
        "ToolManager.handle_call": _calls(manager),
        "ToolManager.handle_call in a live run": _calls(await _manager_of_live_run(stack)),
    }


def registry():
    def register(functions):
        toolset = FunctionToolset()
        for function in functions:
            toolset.add_function(function)
        return toolset

    async def first_call(toolset, name, arguments):
        manager = await ToolManager(toolset).for_run_step(_run_context())
        return await manager.handle_call(ToolCallPart(name, arguments, tool_call_id="1"))

    return Registry(register=register, first_call=first_call)


async def loop(stack, extra_tools):
    script = CallScript()
    agent = Agent(_scripted_model(script), tools=[step, *extra_tools])

    async def run(turns):
        script.start(turns)
        return (await agent.run("go", usage_limits=UsageLimits(request_limit=None))).output

    return {"Agent.run": AgentLoop(run=run)}


async def prompt(functions):
    texts = []

    async def model(messages, info):
        tools = [(each.name, each.description, each.parameters_json_schema) for each in info.function_tools]
        texts.append(json.dumps([as_openai_tool(*each) for each in tools]))
        return ModelResponse(parts=[TextPart(FINAL_ANSWER)], usage=_USAGE)

    await Agent(FunctionModel(model), tools=functions).run("go")
    return "Agent, all tools", texts[0]


def failing_call(script):
    def agent_run(function):
        async def run():
            return (await Agent(_scripted_model(script), tools=[Tool(function, name="read_count")]).run("go")).output

        return run

    async def return_error(selector: str) -> str:
        """Read a number from the page."""
        try:
            return await read_count(selector)
        except ValueError as error:
            return str(error)

    async def raise_retry(selector: str) -> str:
        """Read a number from the page."""
        try:
            return await read_count(selector)
        except ValueError as error:
            raise ModelRetry(str(error)) from None

    return {
        "Agent.run": agent_run(read_count),
        "Agent.run, the tool returns the error": agent_run(return_error),
        "Agent.run, the tool raises ModelRetry": agent_run(raise_retry),
    }


def _scripted_model(script):
    async def model(messages, info):
        call = script.next_call()
        part = TextPart(FINAL_ANSWER) if call is None else ToolCallPart(*call, tool_call_id=script.new_id())
        return ModelResponse(parts=[part], usage=_USAGE)

    return FunctionModel(model)


def _calls(manager):
    async def run():
        return await manager.handle_call(ToolCallPart("add", dict(ARGUMENTS), tool_call_id=f"c{next(_ids)}"))

    return Operation(run=run)


def _run_context():
    return RunContext(deps=None, model=TestModel(), usage=RunUsage())


async def _manager_of_live_run(stack):
    """The tool manager of an agent's run. The run waits in a tool until the measurement ends."""
    manager, end = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def wait(context: RunContext) -> str:
        """Wait."""
        manager.set_result(context.tool_manager)
        await end.wait()
        return "done"

    async def model(messages, info):
        part = ToolCallPart("wait", {}, tool_call_id="wait") if len(messages) == 1 else TextPart("done")
        return ModelResponse(parts=[part])

    run = asyncio.create_task(Agent(FunctionModel(model), tools=[wait, Tool(add)]).run("go"))

    async def finish():
        end.set()
        await run

    stack.push_async_callback(finish)
    return await manager
