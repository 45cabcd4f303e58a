"""What a server says about itself and its actions."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ferrule.spec import Effects, ToolCapability

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from mcp.types import Tool as ListedTool

logger = logging.getLogger("ferrule.mcp")

MOST_ACTIONS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A server's answer to: who are you, and what can you do?"""

    capabilities: tuple[ToolCapability, ...] = ()
    server_name: str = ""
    server_version: str = ""
    protocol_version: str = ""
    instructions: str = ""
    """How the server wants to be used, in its own words."""
    ttl: float | None = None
    """Seconds it may be kept, if the server says so."""


async def list_actions(session: ClientSession) -> Listing:
    """Ask a server for all its actions, page by page."""
    from mcp.types import PaginatedRequestParams

    found: dict[str, ToolCapability] = {}
    cursor: str | None = None
    asked: set[str | None] = set()
    ttl = 0
    while cursor not in asked and len(found) < MOST_ACTIONS:
        asked.add(cursor)
        page = await _page(session, None if cursor is None else PaginatedRequestParams(cursor=cursor))
        if page is None:
            break
        for tool in page.tools[: MOST_ACTIONS - len(found)]:
            if tool.name in found:
                logger.warning("action=<%s> | listed twice, the first one is kept", tool.name)
            found.setdefault(tool.name, capability_of(tool))
        ttl = page.ttl_ms
        if not page.next_cursor:
            break
        cursor = page.next_cursor
    if len(found) == MOST_ACTIONS:
        logger.warning("actions=<%d> | the server lists more, which are left out", MOST_ACTIONS)
    info = session.server_info
    return Listing(
        capabilities=tuple(found.values()),
        server_name=(info.title or info.name) if info is not None else "",
        server_version=info.version if info is not None else "",
        protocol_version=session.protocol_version or "",
        instructions=session.instructions or "",
        ttl=ttl / 1000 if ttl else None,
    )


def capability_of(tool: ListedTool) -> ToolCapability:
    """A tool of the protocol is an action of ours."""
    title = tool.title or (tool.annotations.title if tool.annotations is not None else None)
    return ToolCapability(
        name=tool.name,
        description=tool.description or title or "",
        parameters=_parameters(tool.input_schema),
        output=tool.output_schema,
        effects=_effects(tool),
    )


async def _page(session: ClientSession, params: Any) -> Any:
    from mcp.shared.exceptions import MCPError
    from mcp.types import METHOD_NOT_FOUND

    try:
        return await session.list_tools(params=params)
    except MCPError as error:
        if error.code == METHOD_NOT_FOUND:  # a server of resources or prompts only
            return None
        raise


def _parameters(schema: dict[str, Any]) -> dict[str, Any]:
    if not schema.keys() & {"properties", "$ref", "allOf", "anyOf", "oneOf", "additionalProperties"}:
        schema = {**schema, "additionalProperties": True}  # says nothing of its arguments: so it may have any
    # Without its type our own shorter way to write parameters would be meant.
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


def _effects(tool: ListedTool) -> Effects:
    hints = tool.annotations
    if hints is None:
        return Effects()
    return Effects(
        read_only=hints.read_only_hint is True,
        idempotent=hints.idempotent_hint is True,
        destructive=hints.destructive_hint is True and hints.read_only_hint is not True,
    )
