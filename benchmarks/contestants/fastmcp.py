# mypy: ignore-errors
"""FastMCP: a call of a server in the same process, without and with a client."""

from fastmcp import Client, FastMCP

from benchmarks.interface import Operation, Registry
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


def _register(functions):
    server = FastMCP("bench")
    for function in functions:
        server.tool(function)
    return server
