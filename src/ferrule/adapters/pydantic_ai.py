"""The tools of a library for pydantic-ai: `Agent(model, toolsets=[FerruleToolset(library)])`; and toolsets as tools."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ferrule.adapters.bridge import LibraryBridge, convert_part_to_text, select_visible_parts
from ferrule.core.call import ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import Audio, Image
from ferrule.core.permission import Principal
from ferrule.core.spec import Tool
from ferrule.errors import APPROVAL_REQUIRED, VALIDATION_ERROR, MissingExtra
from ferrule.kinds.frameworks import make_run_context, read_toolset_tool
from ferrule.kinds.function.decorator import NO_OPTIONS
from ferrule.kinds.function.tools import convert_foreign_tool
from ferrule.library.library import UnifiedToolLibrary

try:
    from pydantic_ai import AbstractToolset, BinaryContent, ModelRetry, RunContext, ToolDefinition, ToolReturn
    from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
    from pydantic_ai.toolsets import ToolsetTool
    from pydantic_core import SchemaValidator, core_schema
except ModuleNotFoundError as error:
    raise MissingExtra("pydantic-ai-slim", "pydantic-ai") from error

# The engine validates arguments, with better messages.
_ANY_VALUE = SchemaValidator(core_schema.any_schema())


class FerruleToolset(AbstractToolset[Any]):
    """Every action of a library's tools, or of those named, as they are at each step of a run.

    An agent's `deps` are `variables["deps"]` of the calls' contexts. With `memory`, a call that is known to fail is not
    made again in the same run. `principal` makes the calls: by default an agent, whose destructive calls need approval.
    Such a call is a deferred tool call: the agent needs `DeferredToolRequests` among its output types.
    """

    def __init__(
        self,
        library: UnifiedToolLibrary,
        tools: Sequence[str] | None = None,
        *,
        id: str | None = None,
        memory: bool = False,
        principal: Principal | None = None,
    ) -> None:
        self._bridge = LibraryBridge(library, tools, framework="pydantic-ai", memory=memory, principal=principal)
        self._id = id

    @property
    def id(self) -> str | None:
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {
            schema["name"]: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=schema["name"],
                    description=schema["description"],
                    parameters_json_schema=schema["parameters"],
                    strict=False,
                ),
                max_retries=ctx.max_retries,
                args_validator=_ANY_VALUE,
            )
            for schema in self._bridge.schemas()
        }

    async def call_tool(self, name: str, tool_args: Any, ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        context = self._bridge.context(run=ctx.run_id or ctx.usage, conversation_id=ctx.conversation_id, deps=ctx.deps)
        result = await self._bridge.call(name, tool_args, context, is_approved=ctx.tool_call_approved)
        if result.error_type == APPROVAL_REQUIRED and not ctx.tool_call_approved:
            raise ApprovalRequired({"approval_id": result.metadata["approval_id"], "reason": result.text})
        return _convert_result(result)


def _convert_result(result: ToolExecutionResult) -> Any:
    if not result.is_success:
        can_retry = result.error_type == VALIDATION_ERROR or result.metadata.get("advice") == "change_arguments"
        raise ModelRetry(result.text) if can_retry else ToolFailed(result.text)
    if parts := select_visible_parts(result):
        value: Any = [
            BinaryContent(part.data, media_type=part.mime_type)
            if isinstance(part, (Image, Audio))
            else convert_part_to_text(part)
            for part in parts
        ]
    else:
        value = result.output["result"] if set(result.output) == {"result"} else result.output
    return ToolReturn(value, metadata={"call_id": result.call_id, **result.metadata})


# Toolsets that must be entered and asked for their tools with await


async def tools_of_toolset(toolset: Any, *, deps: Any = None) -> list[Tool]:
    """Return the tools that a pydantic-ai toolset lists for an agent with these `deps`: `library.register(*tools)`."""
    entered = OpenToolset(toolset)
    await entered.ready
    try:
        listed = await toolset.get_tools(make_run_context(None, deps, ToolExecutionContext()))
        tools = [read_toolset_tool(toolset, tool, deps) for tool in listed.values()]
    except BaseException:
        await entered.aclose()
        raise
    return [convert_foreign_tool(tool, NO_OPTIONS, resource=entered) for tool in tools]


class OpenToolset:
    """A toolset entered and exited by one task, as what it opens (a connection, a server) may require.

    It is exited when the engine that has its tools is closed.
    """

    def __init__(self, toolset: Any) -> None:
        self._toolset = toolset
        self._stop = asyncio.Event()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        self._stop.set()
        await self._task

    async def _run(self) -> None:
        try:
            async with self._toolset:
                self.ready.set_result(None)
                await self._stop.wait()
        except Exception as error:
            if self.ready.done():
                raise
            self.ready.set_exception(error)
