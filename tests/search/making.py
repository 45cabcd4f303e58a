"""Tools made of nothing but what is said about them, and those of the world outside."""

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule.spec import MCPServerSpec, Tool, ToolCapability, ToolSpec

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="needs shared/data beside the project")


def made(tool_id: str, description: str = "", *, source: str = "tools", **said: Any) -> Tool:
    parameters = said.pop("parameters", {})
    action = ToolCapability(name=tool_id, description=description, parameters=parameters)
    spec = ToolSpec(tool_id=tool_id, description=description, capabilities=[action], **said)
    return Tool(spec=spec, handler="echo", source=source)


def function_docs() -> list[Tool]:
    """Functions as people describe them, one for each name."""
    rows = map(json.loads, (DATA / "function_docs.jsonl").read_text(encoding="utf-8").splitlines())
    return list(
        {
            row["name"]: made(row["name"], row["description"], parameters=row["parameters_normalised"]) for row in rows
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
