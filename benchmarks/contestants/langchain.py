# mypy: ignore-errors
"""LangChain and LangGraph: the tool node of a graph, and batches of a tool."""

from itertools import count

from langchain.agents import create_agent
from langchain.agents.middleware import ToolErrorMiddleware, ToolRetryMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.prebuilt import ToolNode, create_react_agent
from langgraph.runtime import Runtime

from benchmarks.minds import DONE, Script
from benchmarks.samples import ARGUMENTS, MOST_AT_ONCE, add, nap, read_count, step
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


def _loop(make, tools):
    script = Script()
    agent = make(_Minded(mind=script), tools)

    async def run(turns):
        script.begin(turns)
        return await _run(agent, {"recursion_limit": 4 * turns + 10})

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


def _tool(function):
    return StructuredTool.from_function(coroutine=function)


async def _ask(node, name, arguments):
    return await node.ainvoke({"messages": [_asking(f"c{next(_ids)}", name, arguments)]}, _IN_A_GRAPH)


def _asking(id, name, arguments):
    return AIMessage("", tool_calls=[{"name": name, "args": dict(arguments), "id": id, "type": "tool_call"}])
