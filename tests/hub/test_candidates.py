"""Which tools can do a job, and in which order they are called."""

import json
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ferrule import ToolEngine, ToolEngineConfig
from ferrule.catalog.validation import ParameterCheck
from ferrule.errors import SetupError
from ferrule.hub import HubConfig, ToolCandidate, ToolHub
from ferrule.hub.candidates import CandidateIndex
from tests.hub.recording_tools import BEST, CallRecorder, engine_with, make_tool
from tests.kinds.mcp.mcp_servers import SDK_SERVER


class Web:
    """The web."""

    async def search(self, query: str) -> str:
        """Search the web."""
        return f"web: {query}"

    async def open_page(self, url: str) -> str:
        """Open a page."""
        return url


def keys(candidates: list[ToolCandidate]) -> list[tuple[str, str, str]]:
    return [candidate.key for candidate in candidates]


async def test_tool_ids_and_action_names_and_names_for_models_are_alike():
    tools = [make_tool(Web(), source="mcps"), CallRecorder().search("search")]
    async with engine_with(*tools) as engine:
        hub = ToolHub(engine)
        assert sorted(keys(hub.find_by_name("search"))) == [("mcps", "Web", "search"), ("tools", "search", "search")]
        assert keys(hub.find_by_name("Web__search")) == [("mcps", "Web", "search")]
        assert keys(hub.find_by_name("Web", "open_page")) == [("mcps", "Web", "open_page")]
        assert hub.find_by_name("Web") == []
        assert (await hub.execute("Web", {"query": "x"}, action="search")).text == "web: x"


async def test_a_candidate_tells_its_name_source_priority_and_capabilities():
    async with engine_with(CallRecorder().search("find", source="skills", tags=["search", "web"])) as engine:
        [candidate] = ToolHub(engine).find_by_capability("SEARCH")
        assert candidate.tool is engine.registry.get("find")
    assert (candidate.name, candidate.source, candidate.priority) == ("find", "skills", 1)
    assert candidate.meta == {"capabilities": ["search", "web"]}


async def test_a_tool_with_several_actions_needs_one_named_unless_it_is_alone_with_the_name():
    async with engine_with(make_tool(Web()), CallRecorder().search("Web", "found", source="mcps")) as engine:
        result = await ToolHub(engine).execute("Web", {"query": "x"})
        alone = await ToolHub(engine).execute("Web", {"query": "x"}, action="close")
    assert result.text == "found"
    assert "has several actions" in result.metadata["skipped"][0]["reason"]
    assert alone.error_type == "tool_not_found"


async def test_of_a_tagged_tool_with_several_actions_the_one_about_the_tag_is_called():
    async with engine_with(make_tool(Web(), tags=["search", "page", "weather"])) as engine:
        hub = ToolHub(engine)
        assert keys(hub.find_by_capability("search")) == [("tools", "Web", "search")]
        assert keys(hub.find_by_capability("page")) == [("tools", "Web", "open_page")]
        result = await hub.execute_by_capability("weather", {"query": "x"})
    assert result.error_type == "tool_not_found"
    assert "None of its actions is about 'weather'" in result.metadata["skipped"][0]["reason"]


async def test_disabled_tools_are_no_candidates_and_changes_are_seen_at_once():
    async with engine_with(CallRecorder().search("find", tags=["search"])) as engine:
        hub = ToolHub(engine)
        assert len(hub.find_by_name("find")) == 1
        engine.registry.disable("find")
        assert hub.find_by_name("find") == hub.find_by_capability("search") == []
        assert "disabled" in (await hub.execute("find", {})).text


async def winners(engine: ToolEngine, times: int, random: Random) -> Counter[str]:
    """Who answers when every hub is new and remembers nothing."""
    names = [(await ToolHub(engine, random=random).execute_by_capability("search", {})).tool_name for _ in range(times)]
    return Counter(names)


async def test_sources_go_in_order_of_their_priority():
    recorder = CallRecorder()
    tools = [recorder.search(s, source=s, **BEST) for s in ("mcps", "elsewhere", "skills")]
    async with engine_with(*tools) as engine:
        assert await winners(engine, 20, Random(1)) == {"skills": 20}


async def test_equals_are_shuffled_so_that_load_spreads():
    recorder = CallRecorder()
    async with engine_with(*(recorder.search(name, **BEST) for name in "abc")) as engine:
        counted = await winners(engine, 60, Random(1))
        assert sorted(counted) == ["a", "b", "c"] and min(counted.values()) >= 10
        assert await winners(engine, 60, Random(1)) == counted


async def test_the_last_to_succeed_goes_first():
    recorder = CallRecorder()
    answers: list[Any] = [ValueError("not yet"), "now"]

    async def find(query: str = "") -> str:
        """Fail once."""
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    async with engine_with(make_tool(find, **BEST), recorder.search("find", "other", source="mcps", **BEST)) as engine:
        hub = ToolHub(engine)
        texts = [(await hub.execute("find", {})).text for _ in range(3)]
    assert texts == ["other", "other", "other"]
    assert answers == ["now"]


async def test_a_name_and_a_tag_are_remembered_apart():
    recorder = CallRecorder()
    first = recorder.search("search", "mine", tags=["other"], metadata={"strategy": "best"})
    tagged = recorder.search("find", "theirs", source="mcps", **BEST)
    async with engine_with(first, tagged) as engine:
        hub = ToolHub(engine)
        assert (await hub.execute_by_capability("search", {})).text == "theirs"
        assert (await hub.execute("search", {})).text == "mine"


async def test_the_last_to_succeed_is_remembered_for_its_action_and_whatever_case_a_tag_is_written_in():
    recorder = CallRecorder()
    fails = recorder.search("find", ValueError("broken"), **BEST)
    async with engine_with(fails, recorder.search("find", "it", source="mcps", **BEST)) as engine:
        hub = ToolHub(engine)
        for tag in ("search", "SEARCH", "Search"):
            await hub.execute_by_capability(tag, {})
        await hub.execute("find", {}, action="find")
        await hub.execute("find", {})
    assert recorder.started == ["find"] * (2 + 1 + 1 + 2 + 2)


async def test_names_in_any_script_are_found():
    async with engine_with(CallRecorder().search("搜索", "找到了")) as engine:
        hub = ToolHub(engine)
        [name] = [tool.spec.model_name(tool.spec.capabilities[0]) for tool in engine.registry]
        assert (await hub.execute("搜索", {})).text == (await hub.execute(name, {})).text == "找到了"


async def test_what_only_the_registry_understands_is_found_too():
    async with engine_with(make_tool(Web(), name="网络")) as engine:
        assert keys(ToolHub(engine).find_by_name("网络__search")) == [("tools", "网络", "search")]


def test_the_index_of_a_snapshot_is_kept():
    engine = engine_with(CallRecorder().search("find"))
    hub = ToolHub(engine)
    assert isinstance(hub._current_index(), CandidateIndex)
    assert hub._current_index() is hub._current_index()
    engine.register(CallRecorder().search("other"))
    assert len(hub.find_by_name("other")) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"max_parallel": 0}, {"stagger": -1}, {"hedge_share": -0.1}, {"gather_timeout": -1}, {"synthesis_timeout": 0}],
)
def test_a_setting_that_cannot_work_is_refused(wrong: dict[str, Any]):
    with pytest.raises(SetupError, match=next(iter(wrong))):
        HubConfig(**wrong)


@pytest.mark.integration
async def test_servers_that_are_being_listed_are_awaited_before_candidates_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server = {"command": sys.executable, "args": [str(SDK_SERVER)]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"maths": server}}))
    config = ToolEngineConfig(auto_reload=False, builtin_tools=False, mcp_file=str(tmp_path / "mcp.json"))
    async with ToolEngine(config) as engine:
        result = await ToolHub(engine).execute("maths", {"a": 1, "b": 2}, action="add")
    assert result.output == {"result": 3}
    assert "skipped" not in result.metadata and result.metadata["_meta"]["source"] == "mcps"


async def test_the_arguments_of_a_single_candidate_are_validated_once(monkeypatch: pytest.MonkeyPatch):
    async with engine_with(CallRecorder().search("find", "it")) as engine:
        hub = ToolHub(engine)
        validations: list[Any] = []
        original = ParameterCheck.check

        def counted(check: ParameterCheck, params: Any) -> Any:
            validations.append(params)
            return original(check, params)

        monkeypatch.setattr(ParameterCheck, "check", counted)
        assert (await hub.execute("find", {"query": "tea"})).text == "it"
    assert validations == [{"query": "tea"}]
