"""Tools with only a description, and real ones from the shared test data."""

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule.catalog.search.vectors import has_encoder
from ferrule.core.spec import MCPServerSpec, Tool, ToolCapability, ToolSpec

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="needs shared/data beside the project")


def make_tool(tool_id: str, description: str = "", *, source: str = "tools", **fields: Any) -> Tool:
    parameters = fields.pop("parameters", {})
    action = ToolCapability(name=tool_id, description=description, parameters=parameters)
    spec = ToolSpec(tool_id=tool_id, description=description, capabilities=[action], **fields)
    return Tool(spec=spec, handler="echo", source=source)


def function_docs() -> list[Tool]:
    """Functions as people describe them, one for each name."""
    rows = map(json.loads, (DATA / "function_docs.jsonl").read_text(encoding="utf-8").splitlines())
    return list(
        {
            row["name"]: make_tool(row["name"], row["description"], parameters=row["parameters_normalised"])
            for row in rows
        }.values()
    )


def mcp_servers() -> list[Tool]:
    """Real MCP servers with the tools they list."""
    actions: dict[str, list[ToolCapability]] = {}
    for row in map(json.loads, (DATA / "mcp_tools.jsonl").read_text(encoding="utf-8").splitlines()):
        action = ToolCapability(name=row["name"], description=row["description"], parameters=row["inputSchema"])
        actions.setdefault(row["server"], []).append(action)
    return [
        Tool(spec=MCPServerSpec(tool_id=server, capabilities=listed), handler="mcp", source="mcps")
        for server, listed in actions.items()
    ]


def shared_servers() -> list[Tool]:
    """The 70 MCP servers of the shared questions."""
    servers: dict[str, MCPServerSpec] = {}
    for row in map(json.loads, (DATA / "search/tools.jsonl").read_text(encoding="utf-8").splitlines()):
        spec = MCPServerSpec(tool_id=row["server"], description=row["server_description"])
        action = ToolCapability(name=row["name"], description=row["description"], parameters=row["inputSchema"])
        servers.setdefault(row["server"], spec).capabilities.append(action)
    return [Tool(spec=spec, handler="mcp", source="mcps") for spec in servers.values()]


needs_encoder = pytest.mark.skipif(
    not has_encoder(), reason='finding tools by meaning needs an extra: pip install "ferrule[semantic]"'
)


def office_tools() -> list[Tool]:
    """A few tools with English descriptions that share no word."""
    return [
        make_tool("tell_weather", "Tell the forecast for a town."),
        make_tool("shrink_image", "Compress a picture."),
        make_tool("send_mail", "Send an email to somebody."),
        make_tool("book_flight", "Reserve a seat on a plane."),
        make_tool("plan_meeting", "Put an appointment into the calendar."),
    ]
