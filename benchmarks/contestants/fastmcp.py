# mypy: ignore-errors
"""FastMCP: a call of a server in the same process, without and with a client."""

import json

from fastmcp import Client, FastMCP

from benchmarks.interface import Operation, Registry
from benchmarks.models import as_openai_tool
from benchmarks.tools import ARGUMENTS, add


async def call(stack):
    server = _register([add])
    client = await stack.enter_async_context(Client(server))

    async def direct():
        return await server.call_tool("add", dict(ARGUMENTS))

    async def through_client():
        return await client.call_tool("add", dict(ARGUMENTS))

    return {"FastMCP.call_tool": Operation(run=direct), "Client.call_tool, in memory": Operation(run=through_client)}


def registry():
    async def first_call(server, name, arguments):
        return await server.call_tool(name, arguments)

    return Registry(register=_register, first_call=first_call)


async def prompt(functions):
    async with Client(_register(functions)) as client:
        tools = await client.list_tools()
    return "all tools of a server", json.dumps(
        [as_openai_tool(each.name, each.description, each.input_schema) for each in tools]
    )


def _register(functions):
    server = FastMCP("bench")
    for function in functions:
        server.tool(function)
    return server
