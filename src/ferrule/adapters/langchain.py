"""The tools of a library for LangChain and LangGraph: `tools = as_langchain_tools(library)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import PrivateAttr

from ferrule.adapters.bridge import LibraryBridge, convert_part_to_text, encode_base64, select_visible_parts
from ferrule.core.call import ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import Image
from ferrule.core.permission import Principal
from ferrule.errors import APPROVAL_REQUIRED, MissingExtra
from ferrule.library.library import UnifiedToolLibrary

try:
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import BaseTool, ToolException
except ModuleNotFoundError as error:
    raise MissingExtra("langchain-core", "langchain") from error


def as_langchain_tools(
    library: UnifiedToolLibrary,
    tools: Sequence[str] | None = None,
    *,
    memory: bool = False,
    principal: Principal | None = None,
) -> list[BaseTool]:
    """Every action of the library's tools, or of those named, as a LangChain tool.

    With `memory`, a call that is known to fail is not made again in the same run: all calls belong to one run, unless
    the caller's `config` has a `thread_id`. `principal` makes the calls: by default an agent. A call about which the
    policy asks interrupts the graph of LangGraph that makes it, with an `approval_id`;
    `Command(resume={"approval_id": …, "approved": True})` approves it. Elsewhere it fails, and the error says that it
    needs approval.
    """
    bridge = LibraryBridge(library, tools, framework="langchain", memory=memory, principal=principal)
    return [FerruleTool.of(bridge, schema) for schema in bridge.schemas()]


class FerruleTool(BaseTool):
    """A tool of a library. Its artifact is the whole `ToolExecutionResult`."""

    handle_tool_error: Any = True
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    _bridge: LibraryBridge = PrivateAttr()

    @classmethod
    def of(cls, bridge: LibraryBridge, schema: dict[str, Any]) -> FerruleTool:
        tool = cls(name=schema["name"], description=schema["description"], args_schema=schema["parameters"])
        tool._bridge = bridge
        return tool

    def _run(self, /, *, _config: RunnableConfig, **arguments: Any) -> tuple[Any, ToolExecutionResult]:
        context = self._context(_config)
        result = self._bridge.call_and_wait(self.name, arguments, context)
        if result.error_type == APPROVAL_REQUIRED and _ask_by_interrupt(self.name, arguments, result):
            approval_id = result.metadata["approval_id"]
            result = self._bridge.call_and_wait(self.name, arguments, context, approval_id=approval_id)
        return _content_and_artifact(result)

    async def _arun(self, /, *, _config: RunnableConfig, **arguments: Any) -> tuple[Any, ToolExecutionResult]:
        context = self._context(_config)
        result = await self._bridge.call(self.name, arguments, context)
        if result.error_type == APPROVAL_REQUIRED and _ask_by_interrupt(self.name, arguments, result):
            approval_id = result.metadata["approval_id"]
            result = await self._bridge.call(self.name, arguments, context, approval_id=approval_id)
        return _content_and_artifact(result)

    def _context(self, config: RunnableConfig) -> ToolExecutionContext:
        thread = config.get("configurable", {}).get("thread_id")
        run = self._bridge if thread is None else str(thread)
        return self._bridge.context(run=run, conversation_id=None if thread is None else str(thread), config=config)


def _ask_by_interrupt(name: str, arguments: dict[str, Any], result: ToolExecutionResult) -> bool:
    """Interrupt the graph that makes the call, and return whether its user has approved it; False outside of a graph.

    The reply names the approval: several calls of one node are interrupted in any order, and the graph does not say
    to which of them a reply belongs.
    """
    approval_id = result.metadata["approval_id"]
    try:
        from langgraph.types import interrupt

        reply = interrupt({"name": name, "args": arguments, "description": result.text, "approval_id": approval_id})
    except (ImportError, KeyError, RuntimeError):  # not installed, or no graph makes the call
        return False
    return isinstance(reply, dict) and reply.get("approval_id") == approval_id and reply.get("approved") is True


def _content_and_artifact(result: ToolExecutionResult) -> tuple[Any, ToolExecutionResult]:
    if not result.is_success:
        raise ToolException(result.text)
    content = [
        {"type": "image", "base64": encode_base64(part), "mime_type": part.mime_type}
        if isinstance(part, Image)
        else {"type": "text", "text": convert_part_to_text(part)}
        for part in select_visible_parts(result)
    ]
    return content or result.text, result
