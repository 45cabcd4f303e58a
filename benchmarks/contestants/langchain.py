# mypy: ignore-errors
"""LangChain and LangGraph: the tool node of a graph, batches of a tool, and agents."""

import json
import tempfile
from itertools import count
from pathlib import Path

from langchain.agents import create_agent
from langchain.agents.middleware import ToolErrorMiddleware, ToolRetryMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.prebuilt import ToolNode, create_react_agent
from langgraph.runtime import Runtime

from benchmarks.interface import AgentLoop, Operation, Registry
from benchmarks.models import FINAL_ANSWER, CallScript
from benchmarks.tools import ARGUMENTS, MAX_CONCURRENT, add, long_wait, read_count, short_wait, step

_ids = count(1)
_IN_A_GRAPH = {"configurable": {"__pregel_runtime": Runtime()}}  # what a graph passes to its nodes


async def call(stack):
    tool = _tool(add)
    node = ToolNode([tool])

    async def with_node():
        return await _call_node(node, "add", ARGUMENTS)

    async def without_node():
        return await tool.ainvoke(dict(ARGUMENTS))

    return {"ToolNode.ainvoke": Operation(run=with_node), "StructuredTool.ainvoke": Operation(run=without_node)}


async def limit(stack, calls):
    tool = _tool(short_wait)

    async def batch():
        return await tool.abatch([dict(ARGUMENTS)] * calls, {"max_concurrency": MAX_CONCURRENT})

    return {f"StructuredTool.abatch, max_concurrency={MAX_CONCURRENT}": Operation(run=batch)}


def registry():
    async def first_call(tools, name, arguments):
        return await _call_node(ToolNode(tools), name, arguments)

    return Registry(register=lambda fns: [_tool(function) for function in fns], first_call=first_call)


async def loop(stack, extra_tools):
    tools = [_tool(function) for function in (step, *extra_tools)]
    return {
        "create_agent": _loop(create_agent, tools),
        "langgraph's create_react_agent": _loop(create_react_agent, tools),
    }


async def prompt(functions):
    return "create_agent, all tools", json.dumps([convert_to_openai_tool(_tool(function)) for function in functions])


async def plan(stack):
    tools = [_tool(step)]
    return {
        "create_agent, SQLite checkpointer": _loop(create_agent, tools, checkpointer=await _saver(stack)),
        "create_agent, checkpoints in memory": _loop(create_agent, tools, checkpointer=InMemorySaver()),
        "create_agent, no checkpointer": _loop(create_agent, tools),
    }


async def parallel(stack):
    script = CallScript("long_wait")
    agent = create_agent(_AllCallsModel(script=script), [_tool(long_wait)], checkpointer=await _saver(stack))

    async def one_turn(calls):
        script.start(calls)
        await _run(agent, _thread({}))
        return 0.0

    return {"create_agent, all calls in one turn, SQLite checkpointer": one_turn}


async def _saver(stack):
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
    return await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")))


def _thread(config):
    """Each run has a thread of its own, so that it does not continue an earlier one."""
    return {**config, "configurable": {"thread_id": f"t{next(_ids)}"}}


def _loop(make, tools, **options):
    script = CallScript()
    agent = make(_ScriptedModel(script=script), tools, **options)

    async def run(turns):
        script.start(turns)
        return await _run(agent, _thread({"recursion_limit": 4 * turns + 10}))

    return AgentLoop(run=run)


def failing_call(script):
    def agent_run(make, tools, **options):
        async def run():
            return await _run(make(_ScriptedModel(script=script), tools, **options))

        return run

    tools = [_tool(read_count)]
    return_errors = ToolErrorMiddleware(lambda error, request: str(error))
    retry = ToolRetryMiddleware(initial_delay=0)
    return {
        "create_agent": agent_run(create_agent, tools),
        "create_agent, ToolErrorMiddleware": agent_run(create_agent, tools, middleware=[return_errors]),
        "create_agent, ToolRetryMiddleware": agent_run(create_agent, tools, middleware=[retry]),
        "langgraph's create_react_agent": agent_run(create_react_agent, tools),
    }


async def _run(agent, config=None):
    return (await agent.ainvoke({"messages": [HumanMessage("go")]}, config))["messages"][-1].content


class _ScriptedModel(BaseChatModel):
    """A model whose tool calls come from a script."""

    script: object

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **options):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **options):
        call = self.script.next_call()
        message = AIMessage(FINAL_ANSWER) if call is None else _call_message(self.script.new_id(), *call)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages, stop=None, run_manager=None, **options):
        return self._generate(messages)


class _AllCallsModel(_ScriptedModel):
    """A model that asks for all calls of its script in one turn."""

    def _generate(self, messages, stop=None, run_manager=None, **options):
        calls = [_call(self.script.new_id(), *call) for call in iter(self.script.next_call, None)]
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage("" if calls else FINAL_ANSWER, tool_calls=calls))]
        )


def _tool(function):
    return StructuredTool.from_function(coroutine=function)


async def _call_node(node, name, arguments):
    return await node.ainvoke({"messages": [_call_message(f"c{next(_ids)}", name, arguments)]}, _IN_A_GRAPH)


def _call_message(id, name, arguments):
    return AIMessage("", tool_calls=[_call(id, name, arguments)])


def _call(id, name, arguments):
    return {"name": name, "args": dict(arguments), "id": id, "type": "tool_call"}
