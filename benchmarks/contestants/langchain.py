# mypy: ignore-errors
"""LangChain and LangGraph: the tool node of a graph, and batches of a tool."""

from itertools import count

from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime

from benchmarks.samples import ARGUMENTS, MOST_AT_ONCE, add, nap
from benchmarks.ways import Registry, Way

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


def _tool(function):
    return StructuredTool.from_function(coroutine=function)


async def _ask(node, name, arguments):
    wanted = {"name": name, "args": dict(arguments), "id": f"c{next(_ids)}", "type": "tool_call"}
    return await node.ainvoke({"messages": [AIMessage("", tool_calls=[wanted])]}, _IN_A_GRAPH)
