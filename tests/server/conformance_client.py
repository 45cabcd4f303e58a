"""A client for the official conformance suite of MCP: connects with Ferrule and does what the suite asks.

python conformance_client.py URL
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from ferrule import ToolEngine, ToolEngineConfig, UnifiedToolLibrary
from ferrule.core.elicitation import Elicitation

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "tools_call": [("add_numbers", {"a": 5, "b": 3})],
    "request-metadata": [("add_numbers", {"a": 5, "b": 3})],
    "http-standard-headers": [("add_numbers", {"a": 5, "b": 3})],
    "sse-retry": [("test_reconnection", {})],
    "elicitation-sep1034-client-defaults": [("test_client_elicitation_defaults", {})],
    "sep-2322-client-request-state": [
        ("test_mrtr_echo_state", {}),
        ("test_mrtr_unrelated", {}),
        ("test_mrtr_no_state", {}),
        ("test_mrtr_no_result_type", {}),
    ],
    "http-custom-headers": [(call["name"], call.get("arguments") or {}) for call in CONTEXT.get("toolCalls", [])],
}


async def answer(question: Elicitation) -> dict[str, Any]:
    """Accept, with the defaults of the form."""
    return {"confirmed": True} if SCENARIO == "sep-2322-client-request-state" else {}


def minimal_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    values = {"integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}
    properties = schema.get("properties", {})
    return {name: values.get(properties.get(name, {}).get("type"), "x") for name in schema.get("required", [])}


class Browser:
    """Logs in at once."""

    redirect_uri = "http://localhost:3000/callback"

    async def show(self, url: str, /) -> str:
        async with httpx.AsyncClient() as client:
            return str((await client.get(url)).headers["location"])


def describe_server(url: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"url": url, "type": "http"}
    if SCENARIO.startswith("auth/"):
        names = {"client_id": "clientId", "client_secret": "clientSecret"}
        entry["oauth"] = {names[name]: value for name, value in CONTEXT.items() if name in names}
        entry["oauth"]["clientMetadataUrl"] = "https://conformance-test.local/client-metadata.json"
    return entry


async def main(url: str) -> None:
    folder = Path(tempfile.mkdtemp())
    os.environ["XDG_CACHE_HOME"] = os.environ["FERRULE_CONFIG_HOME"] = str(folder)
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"server": describe_server(url)}}))
    config = ToolEngineConfig(tools_directory="none", builtin_tools=False, mcp_file=str(folder / "mcp.json"))
    engine = ToolEngine(config, on_elicit=answer)
    engine.mcp.login_handler = Browser() if SCENARIO.startswith("auth/") else None
    async with engine, UnifiedToolLibrary(engine=engine) as library:
        await engine.wait_for_discovery()
        actions = {each.name: each for tool in engine.registry for each in tool.spec.capabilities}
        calls = CALLS.get(SCENARIO, [])
        if SCENARIO == "http-invalid-tool-headers" or SCENARIO.startswith("auth/"):
            calls = [(name, minimal_arguments(each.schema)) for name, each in actions.items()]
        if SCENARIO == "json-schema-2020-12-preservation":
            calls = [("json_schema_echo", {"schema": actions["json_schema_2020_12_tool"].schema})]
        for name, arguments in calls:
            result = await library.execute_tool("server", name, arguments)
            print(name, result.is_success, result.text, file=sys.stderr)


asyncio.run(main(sys.argv[-1]))
