import threading
from dataclasses import replace

import pytest

from ferrule.errors import DuplicateTool, ToolNotFound
from ferrule.registry import ToolRegistry
from ferrule.spec import Tool, ToolCapability, ToolCategory, ToolSpec, ToolType


def make(tool_id: str, *, source: str = "tools", origin: str = "", actions: tuple[str, ...] = (), **said) -> Tool:
    capabilities = [ToolCapability(name=a, description="") for a in actions or (tool_id,)]
    return Tool(
        spec=ToolSpec(tool_id=tool_id, capabilities=capabilities, **said), handler="echo", source=source, origin=origin
    )


def test_tools_are_found_by_id_name_tag_type_category_and_source():
    tool = make("a", name="Alpha", tags=["Math"], category=ToolCategory.AI, tool_type=ToolType.HTTP)
    registry = ToolRegistry([tool, make("b", source="mcps")])
    assert registry.get("a") is tool
    assert registry.by_name("Alpha") == registry.by_tag("math") == registry.by_type(ToolType.HTTP) == [tool]
    assert registry.by_category("ai") == registry.by_source("tools") == [tool]


def test_the_same_id_twice_in_one_source_names_both_origins_and_changes_nothing():
    registry = ToolRegistry([make("a", origin="one.yaml:1")])
    with pytest.raises(DuplicateTool, match=r"one\.yaml:1.*two\.yaml:7"):
        registry.add(make("fresh"), make("a", origin="two.yaml:7"))
    assert "fresh" not in registry
    assert len(registry) == 1


def test_the_same_id_from_several_sources_makes_candidates_in_order_of_priority():
    mcp, skill, native = make("a", source="mcps"), make("a", source="skills"), make("a", source="tools")
    registry = ToolRegistry([mcp, skill, native])
    assert registry.candidates("a") == (native, skill, mcp)
    registry.remove("a", source="tools")
    assert registry.get("a") is skill


def test_a_snapshot_never_changes():
    registry = ToolRegistry([make("a")])
    before = registry.snapshot()
    registry.add(make("b"))
    registry.remove("a")
    assert list(before.by_id) == ["a"]
    assert list(registry.snapshot().by_id) == ["b"]


def test_replacing_swaps_a_tool_of_the_same_source_only():
    old, other = make("a"), make("a", source="mcps")
    registry = ToolRegistry([old, other])
    new = make("a", description="new")
    registry.replace(new)
    assert registry.candidates("a") == (new, other)


def test_a_disabled_tool_is_kept_but_not_found():
    registry = ToolRegistry([make("a")])
    registry.disable("a")
    with pytest.raises(ToolNotFound, match="disabled"):
        registry.find("a")
    registry.enable("a")
    assert registry.find("a")[0].id == "a"


def test_an_unknown_tool_is_answered_with_near_names():
    with pytest.raises(ToolNotFound, match="Did you mean 'http_request'"):
        ToolRegistry([make("http_request")]).find("http_requst")


def test_a_tool_is_found_by_what_models_call_it():
    registry = ToolRegistry([make("math.add"), make("browser", actions=("click", "go"))])
    assert registry.find("math-2e-add")[0].id == "math.add"
    assert registry.find("browser__click")[1].name == "click"
    assert registry.find("browser", "go")[1].name == "go"


def test_a_tool_with_several_actions_must_be_told_which():
    registry = ToolRegistry([make("browser", actions=("click", "go"))])
    with pytest.raises(ToolNotFound, match="several actions.*click, go"):
        registry.find("browser")
    with pytest.raises(ToolNotFound, match="no action 'clik'.*Did you mean 'click'"):
        registry.find("browser", "clik")


def test_readers_never_see_half_a_change():
    registry = ToolRegistry([make("a0"), make("b0")])
    seen: set[frozenset[str]] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(frozenset(registry.snapshot().by_id))

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(300):
        old = list(registry)
        registry.change(remove=old, add=[make(f"a{n + 1}"), make(f"b{n + 1}")])
    stop.set()
    reader.join()
    assert all({i[0] for i in ids} == {"a", "b"} and len({i[1:] for i in ids}) == 1 for ids in seen)


def test_a_change_of_what_callers_notice_changes_the_fingerprint():
    spec = make("a").spec
    assert replace(spec, description="other").fingerprint != spec.fingerprint
    assert replace(spec, enabled=False).fingerprint == spec.fingerprint
    assert make("a").spec.fingerprint == spec.fingerprint
