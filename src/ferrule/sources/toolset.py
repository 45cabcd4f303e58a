"""Toolsets of pydantic-ai that must be entered and asked for their tools, which takes an await.

A toolset is entered and left by one task of its own, as what it opens (a connection, a server) may demand. It is left
when the engine that has its tools is closed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ferrule.call import ToolExecutionContext
from ferrule.executors.foreign.pydantic_ai import run_context
from ferrule.sources.function import tool_of_foreign
from ferrule.sources.pydantic_ai_tool import read_listed_tool
from ferrule.sources.tool_options import NO_OPTIONS
from ferrule.spec import Tool


async def tools_of_toolset(toolset: Any, *, deps: Any = None) -> list[Tool]:
    """The tools a pydantic-ai toolset of any kind lists for an agent with these `deps`: `library.register(*tools)`."""
    entered = EnteredToolset(toolset)
    await entered.ready()
    try:
        listed = await toolset.get_tools(run_context(None, deps, ToolExecutionContext()))
        read = [read_listed_tool(toolset, tool, deps) for tool in listed.values()]
    except BaseException:
        await entered.aclose()
        raise
    return [tool_of_foreign(each, NO_OPTIONS, holds=entered) for each in read]


class EnteredToolset:
    """A toolset that was entered, and is left by the same task, however many tools it has given."""

    def __init__(self, toolset: Any) -> None:
        self._toolset = toolset
        self._leave = asyncio.Event()
        self._entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._stay())

    async def ready(self) -> None:
        await self._entered

    async def aclose(self) -> None:
        self._leave.set()
        await self._task

    async def _stay(self) -> None:
        try:
            async with self._toolset:
                self._entered.set_result(None)
                await self._leave.wait()
        except Exception as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)
