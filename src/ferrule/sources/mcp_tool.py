"""The tool that an MCP server is, before and after it has listed its actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ferrule.executors.mcp.config import McpServerConfig, config_of_spec
from ferrule.executors.mcp.listing import Listing
from ferrule.spec import Limits, MCPServerSpec, Tool, ToolCapability

HANDLER = "mcp"
SOURCE = "mcps"


def tool_of_server(name: str, config: McpServerConfig, *, origin: str, listing: Listing | None) -> Tool:
    """A server of a file, with the actions it listed last time, if it ever did."""
    spec = MCPServerSpec(
        tool_id=name,
        description=f"The MCP server {name!r}. It has not listed its actions yet: it does when it is first connected.",
        enabled=not config.disabled,
        limits=Limits(timeout=config.timeout),
        endpoint="" if config.url is None else config.where,
        server_config=config.described(),
        metadata={"listed": False, "config_digest": config.digest},
    )
    tool = Tool(spec=spec, handler=HANDLER, target=config, source=SOURCE, origin=origin)
    return tool if listing is None else with_listing(tool, listing)


def tool_of_server_spec(spec: MCPServerSpec) -> Tool:
    """A server a program describes; SpecError when it does not say how to reach it."""
    config = config_of_spec(spec)
    return Tool(spec=spec, handler=HANDLER, target=config, source=SOURCE, origin=config.where)


def with_listing(tool: Tool, listing: Listing) -> Tool:
    """The tool with the actions its server lists. What a program said about the same actions and the tool stays."""
    declared = {capability.name: capability for capability in tool.spec.capabilities}
    changes: dict[str, Any] = {
        "capabilities": [_completed(listed, declared.get(listed.name)) for listed in listing.capabilities],
        "metadata": {**tool.spec.metadata, "listed": True, "protocol_version": listing.protocol_version},
    }
    if "config_digest" in tool.spec.metadata:  # from a file, which says nothing about what the server is for
        changes["description"] = listing.instructions or f"The MCP server {listing.server_name or tool.id!r}."
        changes["version"] = listing.server_version or tool.spec.version
    return replace(tool, spec=replace(tool.spec, **changes))


def _completed(listed: ToolCapability, declared: ToolCapability | None) -> ToolCapability:
    if declared is None:
        return listed
    return replace(
        listed,
        description=listed.description or declared.description,
        examples=declared.examples,
        category=declared.category,
        limits=declared.limits,
    )
