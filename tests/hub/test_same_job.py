"""Who may do the job of a tool that failed: tools that do the same, not all that share a word (000 §3.4)."""

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolEngine, ToolEngineConfig, UnifiedToolLibrary, tool
from ferrule.agent.answer import PlanStep
from ferrule.hub import ToolCandidate, ToolHub
from ferrule.testing import ScriptedModel
from ferrule.workflow import ExecutionAgent
from ferrule.workflow.results import StepContext
from tests.hub.recording_tools import engine_with, make_tool
from tests.kinds.mcp.mcp_servers import engine_for, rough


@tool(read_only=True, tags=["search", "web", "news", "搜索"])
async def search_web(query: str, limit: int = 10) -> str:
    """Search the web."""
    raise RuntimeError("the network is down")


@tool(read_only=True, tags=["files", "search", "text", "workspace", "搜索"])
async def search_files(query: str | None = None, path: str = ".") -> str:
    """Search the files of the workspace."""
    return f"3 files contain {query}"


@tool(read_only=True, tags=["files", "list", "workspace"])
async def list_files(path: str = ".") -> list[str]:
    """List the files of the workspace."""
    return ["a.txt"]


@tool(read_only=True)
async def bing(q: str) -> str:
    """Search the web with Bing."""
    return f"Bing: {q}"


@tool(read_only=True, tags=["search", "web"])
async def trends(country: str = "de") -> str:
    """What is searched for on the web."""
    return f"Trends of {country}"


def candidate(engine: ToolEngine, name: str) -> ToolCandidate:
    return ToolCandidate.of(*engine.registry.find(name))


async def execute(*tools: Any, tool_type: str, **parameters: Any) -> Any:
    async with UnifiedToolLibrary() as library:
        library.register(*tools)
        step = PlanStep(id=1, description="Find tea", tool_type=tool_type, parameters=parameters)
        agent = ExecutionAgent(library, ScriptedModel(["I do not know."]))
        return await agent.execute_step(step, StepContext(question="Find tea"))


async def test_a_search_of_the_web_that_failed_is_not_answered_by_a_search_of_files():
    result = await execute(search_web, search_files, tool_type="search_web", query="tea")
    assert [attempt.level for attempt in result.attempts] == ["name", "reasoning"]
    assert "files contain" not in result.result


@tool(read_only=True, tags=["search"])
async def grep(pattern: str, path: str = ".") -> str:
    """Search for a text in the files of the workspace."""
    return f"3 lines match {pattern}"


@tool(read_only=True)
async def find_notes(keyword: str) -> str:
    """在笔记中搜索关键词。"""
    return f"2 notes about {keyword}"


async def test_tools_whose_tags_do_not_say_where_they_search_are_told_apart_by_their_descriptions():
    result = await execute(search_web, grep, find_notes, tool_type="search_web", query="tea")
    assert result.answered_by is None and not result.success
    result = await execute(search_web, grep, find_notes, bing, tool_type="search_web", query="tea")
    assert result.answered_by == "bing (tools)"


async def test_another_search_of_the_web_answers_and_the_result_says_which():
    result = await execute(search_web, search_files, bing, trends, tool_type="search_web", query="tea", limit=3)
    assert (result.success, result.result) == (True, "Bing: tea")
    assert [(a.level, a.tool) for a in result.attempts] == [("name", "search_web"), ("capability", "bing (tools)")]
    assert result.answered_by == "bing (tools)"
    assert "answered by bing (tools), because search_web failed" in result.summary


async def test_listing_files_does_not_answer_a_search_in_them():
    async def broken(query: str) -> str:
        """Search the files."""
        raise RuntimeError("broken")

    tags = ["files", "search", "workspace"]
    result = await execute(make_tool(broken, read_only=True, tags=tags), list_files, tool_type="broken", query="tea")
    assert result.answered_by is None


async def test_candidates_by_tag_need_parameters_for_the_arguments_and_the_result_names_who_answered():
    async with engine_with(make_tool(bing), make_tool(trends)) as engine:
        result = await ToolHub(engine).execute_by_capability("search", {"query": "tea"})
    assert (result.text, result.metadata["answered_by"]) == ("Bing: tea", ["bing (tools)"])
    assert result.metadata["skipped"] == [
        {"candidate": "trends (tools)", "reason": "It has no parameters for the arguments."}
    ]


async def test_a_text_is_not_used_as_an_address_or_a_path():
    async def read_page(url: str) -> str:
        """Read a page of the web."""
        return url

    page = make_tool(read_page, read_only=True, tags=["search", "web"])
    async with engine_with(page) as engine:
        result = await ToolHub(engine).execute_by_capability("search", {"query": "tea"})
    assert not result.is_success and "required" in str(result.error)


ACTIONS = [
    {"name": "find_pages", "description": "Search the web."},
    {"name": "now", "description": "Tell the current time."},
    {"name": "play", "description": "Play a game."},
]


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    path = tmp_path / "actions.json"
    path.write_text(json.dumps([{**action, "inputSchema": schema} for action in ACTIONS]))
    return path


@pytest.mark.integration
async def test_actions_of_an_mcp_server_have_tags_from_their_own_names_and_descriptions(listing: Path):
    async with engine_for(rough("--actions", listing)) as engine:
        await engine.execute("server", {}, action="echo")
        tool_ = engine.registry.find_tool("server")
        tags = {capability.name: capability.tags for capability in tool_.spec.capabilities}
        hub = ToolHub(engine)
        assert [c.capability.name for c in hub.find_by_capability("search")] == ["find_pages"]
        assert [c.capability.name for c in hub.find_by_capability("time")] == ["now"]
        [found] = hub.find_by_capability("search")
    assert (tags["find_pages"], tags["now"], tags["play"]) == (["search", "web", "research"], ["time"], [])
    assert found.meta["capabilities"] == ["search", "web", "research"]


@pytest.mark.integration
async def test_tags_of_servers_and_actions_can_be_set_in_the_file(tmp_path: Path, listing: Path):
    command = rough("--actions", listing)
    entry = {"command": command.command, "args": list(command.args)}
    servers = {"games": {**entry, "tags": ["game"]}, "other": {**entry, "tags": {"play": ["game", "fun"]}}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    config = ToolEngineConfig(mcp_file=str(tmp_path / "mcp.json"), builtin_tools=False, auto_reload=False)
    async with ToolEngine(config) as engine:
        await engine.wait_for_discovery()
        assert engine.registry.find_tool("games").spec.tags == ["game"]
        [found] = ToolHub(engine).find_by_capability("fun")
    assert (found.name, found.capability.name) == ("other", "play")


async def test_operations_of_a_web_api_have_tags_of_their_own(tmp_path: Path):
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "http://127.0.0.1:9"}],
        "paths": {
            "/weather": {"get": {"operationId": "getForecast", "summary": "The weather of a city", "responses": {}}},
            "/orders": {"get": {"operationId": "listOrders", "summary": "All orders", "responses": {}}},
        },
    }
    path = tmp_path / "shop.json"
    path.write_text(json.dumps(document))
    async with UnifiedToolLibrary() as library:
        await library.register_openapi(str(path), name="shop")
        [found] = library.hub.find_by_capability("weather")
    assert found.capability.name == "getForecast"
