"""Two tools by which a model reaches all the others: one finds them, one calls them.

A model that is shown hundreds of schemas chooses badly and pays for all of them each turn. With these two it is shown
a handful, finds the rest when it needs them, and calls them through the same door as any other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from ferrule.call import ToolExecutionContext, ToolExecutionResult
from ferrule.content import Output
from ferrule.describe.model_schema import for_models
from ferrule.describe.readable import schema_of
from ferrule.errors import (
    CallError,
    ExecutionFailed,
    InvalidArguments,
    NeedsApproval,
    PermissionDenied,
    Rejected,
    Stopped,
    TimedOut,
    ToolNotFound,
)
from ferrule.registry import ToolRegistry
from ferrule.search import RegistryIndex
from ferrule.search.index import Hit
from ferrule.sources import tool_of
from ferrule.spec import Tool

_THESE: Final = ("search_tools", "call_tool")
_MOST_FOUND = 50
_SEARCHED = 500
"""How many are looked at for a caller who may use only some."""
_LONGEST_CALL = 24 * 3600.0
"""Seconds; the tool that is called has a limit of its own."""
_FAILURES: dict[str, type[CallError]] = {
    kind.error_type: kind for kind in (ToolNotFound, Rejected, TimedOut, Stopped, PermissionDenied, ExecutionFailed)
}


def meta_tools(index: RegistryIndex) -> list[Tool]:
    """`search_tools` and `call_tool`, to be registered beside the tools they find and call."""

    async def search_tools(query: str, context: ToolExecutionContext, limit: int = 10) -> list[dict[str, Any]]:
        """Find tools by what they do. Call what you find with call_tool.

        Args:
            query: what the tool should do, in a few words
            limit: how many to find at most
        """
        most = max(1, min(limit, _MOST_FOUND))
        # Some of what is found may not be for this caller.
        hits = index.search(query, most + len(_THESE) if context.allowed_tools is None else _SEARCHED)
        return _described(hits, context.allowed_tools)[:most]

    async def call_tool(name: str, context: ToolExecutionContext, arguments: dict[str, Any] | None = None) -> Output:
        """Call a tool that search_tools found.

        Args:
            name: the name of the tool, as search_tools gave it
            arguments: what its parameters ask for
        """
        allowed = context.allowed_tools
        if allowed is not None and not index.registry.is_one_of(name, allowed):
            shown = ", ".join(sorted(allowed - {*_THESE})) or "none"
            raise PermissionDenied(f"Tool {name!r} is not among the tools that may be used here: {shown}.")
        _ask_leave(index.registry, name, context)
        return _handed_on(await context.call_tool(name, arguments))

    searching = tool_of(search_tools, read_only=True, idempotent=True)
    calling = tool_of(call_tool, timeout=_LONGEST_CALL)
    return [replace(tool, source="builtin") for tool in (searching, calling)]


def _ask_leave(registry: ToolRegistry, name: str, context: ToolExecutionContext) -> None:
    """What the caller lets be called is no more in this way than in any other."""
    if context.policy is None or not registry.snapshot().knows(name):
        return
    verdict = context.policy.verdict(*registry.find(name))
    if verdict == "deny":
        raise PermissionDenied(f"Tool {name!r} may not be called here.")
    if verdict == "ask" and not context.approved:
        raise NeedsApproval(f"{name} may only be called when you agree.")


def _described(hits: list[Hit], allowed: Collection[str] | None) -> list[dict[str, Any]]:
    """What was found, action by action; of several tools under one name the one that would be called."""
    described: dict[str, dict[str, Any]] = {}
    for hit in hits:
        spec = hit.tool.spec
        for capability in filter(None, map(spec.capability, hit.actions if spec.tool_id not in _THESE else ())):
            name = spec.model_name(capability)
            if allowed is not None and spec.tool_id not in allowed and name not in allowed:
                continue
            said = {
                "name": name,
                "description": capability.description or spec.description,
                "parameters": for_models(schema_of(capability)),
            }
            described.setdefault(name, said)
    return list(described.values())


def _handed_on(result: ToolExecutionResult) -> Output:
    """The inner result as that of the outer call: it succeeds or fails alike, for the same reason."""
    if result.is_success:
        return Output(data=result.output, parts=result.content)
    message = result.text
    if result.validation_errors:
        raise InvalidArguments(message, result.validation_errors)
    advice = {"advice": result.metadata["advice"]} if "advice" in result.metadata else {}
    raise _FAILURES.get(result.error_type or "", ExecutionFailed)(message, **advice)
