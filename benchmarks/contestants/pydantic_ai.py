# mypy: ignore-errors
"""pydantic-ai: its tool manager, alone and as an agent's run uses it."""

import asyncio
from itertools import count

from pydantic_ai import Agent, FunctionToolset, ModelRetry, RunContext, Tool, UsageLimits
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.usage import RequestUsage, RunUsage

from benchmarks.minds import DONE, Script
from benchmarks.samples import ARGUMENTS, add, read_count, step
from benchmarks.ways import Loop, Registry, Way

_ids = count(1)
_USED = RequestUsage(input_tokens=1, output_tokens=1)  # else the model counts the words of the whole history


async def call(stack):
    alone = await ToolManager(FunctionToolset([Tool(add)])).for_run_step(_run_context())
    return {
        "ToolManager.handle_call": _calls(alone),
        "ToolManager.handle_call in a live run": _calls(await _manager_of_a_run(stack)),
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


async def loop(stack, further):
    script = Script()
    agent = Agent(_minded(script), tools=[step, *further])

    async def run(turns):
        script.begin(turns)
        return (await agent.run("go", usage_limits=UsageLimits(request_limit=None))).output

    return {"Agent.run": Loop(run=run)}


def stubborn(mind):
    def insist(function):
        async def run():
            return (await Agent(_minded(mind), tools=[Tool(function, name="read_count")]).run("go")).output

        return run

    async def returning(selector: str) -> str:
        """Read a number from the page."""
        try:
            return await read_count(selector)
        except ValueError as error:
            return str(error)

    async def retrying(selector: str) -> str:
        """Read a number from the page."""
        try:
            return await read_count(selector)
        except ValueError as error:
            raise ModelRetry(str(error)) from None

    return {
        "Agent.run": insist(read_count),
        "Agent.run, the tool returns the error": insist(returning),
        "Agent.run, the tool raises ModelRetry": insist(retrying),
    }


def _minded(mind):
    async def model(messages, info):
        wish = mind.wish()
        part = TextPart(DONE) if wish is None else ToolCallPart(*wish, tool_call_id=mind.new_id())
        return ModelResponse(parts=[part], usage=_USED)

    return FunctionModel(model)


def _calls(manager):
    async def one_call():
        return await manager.handle_call(ToolCallPart("add", dict(ARGUMENTS), tool_call_id=f"c{next(_ids)}"))

    return Way(do=one_call)


def _run_context():
    return RunContext(deps=None, model=TestModel(), usage=RunUsage())


async def _manager_of_a_run(stack):
    """The manager an agent's run made for itself; the run waits in a tool until the measuring is over."""
    manager, over = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def hold(context: RunContext) -> str:
        """Wait."""
        manager.set_result(context.tool_manager)
        await over.wait()
        return "over"

    async def model(messages, info):
        part = ToolCallPart("hold", {}, tool_call_id="hold") if len(messages) == 1 else TextPart("done")
        return ModelResponse(parts=[part])

    run = asyncio.create_task(Agent(FunctionModel(model), tools=[hold, Tool(add)]).run("go"))

    async def finish():
        over.set()
        await run

    stack.push_async_callback(finish)
    return await manager
