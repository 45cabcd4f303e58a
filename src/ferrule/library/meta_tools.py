"""Two tools by which a model reaches all the others: one finds them, one calls them.

A model that is shown hundreds of schemas chooses badly and pays for all of them each turn. With these two it is shown
a handful, finds the rest when it needs them, and its calls take the same path as any other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from ferrule.catalog.model_schemas import shorten_schema
from ferrule.catalog.registry import find_action
from ferrule.catalog.search import ActionHit, RegistryIndex
from ferrule.core.call import ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import Output
from ferrule.core.spec import Tool
from ferrule.engine import ToolEngine
from ferrule.errors import (
    CallCancelled,
    CallError,
    ExecutionFailed,
    InvalidArguments,
    NeedsApproval,
    PermissionDenied,
    Rejected,
    TimedOut,
    ToolNotFound,
)
from ferrule.kinds.function.tools import tool_of

META_TOOLS: Final = ("search_tools", "call_tool")
MAX_HITS = 50
CALL_TIMEOUT = 24 * 3600.0
"""Seconds; the tool that is called has its own limit."""
_ERRORS_BY_TYPE: dict[str, type[CallError]] = {
    kind.error_type: kind
    for kind in (ToolNotFound, Rejected, TimedOut, CallCancelled, PermissionDenied, NeedsApproval, ExecutionFailed)
}


def make_meta_tools(index: RegistryIndex, engine: ToolEngine) -> list[Tool]:
    """`search_tools` and `call_tool`, to be registered beside the tools they find and call."""

    async def search_tools(query: str, context: ToolExecutionContext, limit: int = 10) -> list[dict[str, Any]]:
        """Find tools by what they do. Call what you find with call_tool.

        Args:
            query: what the tool should do, in a few words
            limit: how many to find at most
        """
        count = max(1, min(limit, MAX_HITS))
        permissions = engine.permissions(context.principal, context.policy)
        registry = engine.registry.snapshot()

        def is_visible(tool: Tool, action: str | None) -> bool:
            """Return whether a tool may be called and, of several tools with its id, would be called."""
            candidates = registry.by_id.get(tool.id, ())
            called = next((t for t in candidates if registry.is_callable(t) and permissions.may_use(t)), None)
            capability = tool.spec.capability(action)
            if tool is not called or tool.id in META_TOOLS or capability is None:
                return False
            return permissions.may_call(tool, capability)

        await index.prepare(query)
        return [_describe(hit) for hit in index.search_actions(query, count, is_visible=is_visible)]

    async def call_tool(name: str, context: ToolExecutionContext, arguments: dict[str, Any] | None = None) -> Output:
        """Call a tool that search_tools found.

        Args:
            name: the name of the tool, as search_tools gave it
            arguments: what its parameters ask for
        """
        return _convert_result(await context.call_tool(name, arguments))

    searching = tool_of(search_tools, read_only=True, idempotent=True)
    calling = tool_of(call_tool, timeout=CALL_TIMEOUT)
    return [replace(tool, source="builtin") for tool in (searching, calling)]


def _describe(hit: ActionHit) -> dict[str, Any]:
    spec = hit.tool.spec
    capability = find_action(hit.tool, hit.action)
    return {
        "name": spec.model_name(capability),
        "description": capability.description or spec.description,
        "parameters": shorten_schema(capability.schema_or_empty),
    }


def _convert_result(result: ToolExecutionResult) -> Output:
    """Return the inner result for the outer call, which succeeds or fails in the same way."""
    if result.is_success:
        return Output(data=result.output, parts=result.content)
    message = result.text
    if result.validation_errors:
        raise InvalidArguments(message, result.validation_errors)
    details = {name: result.metadata[name] for name in ("advice", "approval_id") if name in result.metadata}
    raise _ERRORS_BY_TYPE.get(result.error_type or "", ExecutionFailed)(message, **details)
