# mypy: ignore-errors
"""LangChain and LangGraph: the tool node of a graph, batches of a tool, and agents."""

import tempfile
from itertools import count
from pathlib import Path

from langchain.agents import create_agent
from langchain.agents.middleware import ToolErrorMiddleware, ToolRetryMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.prebuilt import ToolNode, create_react_agent
from langgraph.runtime import Runtime

from benchmarks.minds import DONE, Script
from benchmarks.samples import ARGUMENTS, MOST_AT_ONCE, add, nap, read_count, rest, step
from benchmarks.ways import Loop, Registry, Way

_ids = count(1)
_IN_A_GRAPH = {"configurable": {"__pregel_runtime": Runtime()}}  # what a graph hands to its nodes


async def call(stack):
    tool = _tool(add)
    node = ToolNode([tool])

    async def through_node():
        return await _ask(node, "add", ARGUMENTS)

    async def alone():
        return await tool.ainvoke(dict(ARGUMENTS))

    return {"ToolNode.ainvoke": Way(do=through_node), "StructuredTool.ainvoke": Way(do=alone)}


async def limit(stack, calls):
    tool = _tool(nap)

    async def batch():
        return await tool.abatch([dict(ARGUMENTS)] * calls, {"max_concurrency": MOST_AT_ONCE})

    return {f"StructuredTool.abatch, max_concurrency={MOST_AT_ONCE}": Way(do=batch)}


def registry():
    async def first_call(tools, name, arguments):
        return await _ask(ToolNode(tools), name, arguments)

    return Registry(register=lambda fns: [_tool(function) for function in fns], first_call=first_call)


async def loop(stack, further):
    tools = [_tool(function) for function in (step, *further)]
    return {
        "create_agent": _loop(create_agent, tools),
        "langgraph's create_react_agent": _loop(create_react_agent, tools),
    }


async def plan(stack):
    tools = [_tool(step)]
    return {
        "create_agent, SQLite checkpointer": _loop(create_agent, tools, checkpointer=await _saver(stack)),
        "create_agent, checkpoints in memory": _loop(create_agent, tools, checkpointer=InMemorySaver()),
        "create_agent, no checkpointer": _loop(create_agent, tools),
    }


async def together(stack):
    script = Script("rest")
    agent = create_agent(_InOneTurn(mind=script), [_tool(rest)], checkpointer=await _saver(stack))

    async def one_turn(calls):
        script.begin(calls)
        await _run(agent, _thread({}))
        return 0.0

    return {"create_agent, all calls in one turn, SQLite checkpointer": one_turn}


async def _saver(stack):
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
    return await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")))


def _thread(config):
    """A run has its own."""
    return {**config, "configurable": {"thread_id": f"t{next(_ids)}"}}


def _loop(make, tools, **options):
    script = Script()
    agent = make(_Minded(mind=script), tools, **options)

    async def run(turns):
        script.begin(turns)
        return await _run(agent, _thread({"recursion_limit": 4 * turns + 10}))

    return Loop(run=run)


def stubborn(mind):
    def insist(make, tools, **options):
        async def run():
            return await _run(make(_Minded(mind=mind), tools, **options))

        return run

    tools = [_tool(read_count)]
    told, again = ToolErrorMiddleware(lambda error, request: str(error)), ToolRetryMiddleware(initial_delay=0)
    return {
        "create_agent": insist(create_agent, tools),
        "create_agent, ToolErrorMiddleware": insist(create_agent, tools, middleware=[told]),
        "create_agent, ToolRetryMiddleware": insist(create_agent, tools, middleware=[again]),
        "langgraph's create_react_agent": insist(create_react_agent, tools),
    }


async def _run(agent, config=None):
    return (await agent.ainvoke({"messages": [HumanMessage("go")]}, config))["messages"][-1].content


class _Minded(BaseChatModel):
    """A model that does what a mind wishes."""

    mind: object

    @property
    def _llm_type(self):
        return "minded"

    def bind_tools(self, tools, **options):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **options):
        wish = self.mind.wish()
        said = AIMessage(DONE) if wish is None else _asking(self.mind.new_id(), *wish)
        return ChatResult(generations=[ChatGeneration(message=said)])

    async def _agenerate(self, messages, stop=None, run_manager=None, **options):
        return self._generate(messages)


class _InOneTurn(_Minded):
    """A model that asks at once for all that its mind wishes."""

    def _generate(self, messages, stop=None, run_manager=None, **options):
        calls = [_call(self.mind.new_id(), *wish) for wish in iter(self.mind.wish, None)]
        return ChatResult(generations=[ChatGeneration(message=AIMessage("" if calls else DONE, tool_calls=calls))])


def _tool(function):
    return StructuredTool.from_function(coroutine=function)


async def _ask(node, name, arguments):
    return await node.ainvoke({"messages": [_asking(f"c{next(_ids)}", name, arguments)]}, _IN_A_GRAPH)


def _asking(id, name, arguments):
    return AIMessage("", tool_calls=[_call(id, name, arguments)])


def _call(id, name, arguments):
    return {"name": name, "args": dict(arguments), "id": id, "type": "tool_call"}
