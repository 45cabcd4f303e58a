import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import UnifiedToolLibrary
from ferrule.catalog.registry import ToolRegistry
from ferrule.core.spec import Tool, ToolCapability, ToolCategory, ToolSpec, ToolType
from ferrule.errors import DuplicateTool, ToolNotFound


def make(tool_id: str, *, source: str = "tools", origin: str = "", actions: tuple[str, ...] = (), **fields) -> Tool:
    capabilities = [ToolCapability(name=a, description="") for a in actions or (tool_id,)]
    return Tool(
        spec=ToolSpec(tool_id=tool_id, capabilities=capabilities, **fields),
        handler="echo",
        source=source,
        origin=origin,
    )


def test_tools_are_found_by_id_name_tag_type_category_and_source():
    tool = make("a", name="Alpha", tags=["Math"], category=ToolCategory.AI, tool_type=ToolType.HTTP)
    registry = ToolRegistry([tool, make("b", source="mcps")])
    assert registry.get("a") is tool
    assert registry.by_name("Alpha") == registry.by_tag("math") == registry.by_type(ToolType.HTTP) == [tool]
    assert registry.by_category("ai") == [tool]


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


def test_a_name_means_one_action_whatever_underscores_the_servers_have():
    registry = ToolRegistry(
        [make("a", source="mcps", actions=("b__c", "b")), make("a__b", source="mcps", actions=("c", "d"))]
    )
    pairs = [(tool, each) for tool in registry for each in tool.spec.capabilities]
    names = [tool.spec.model_name(each) for tool, each in pairs]
    assert len(set(names)) == 4 and [registry.find(name) for name in names] == pairs
    tool, action = registry.find("a__b__c")
    assert (tool.id, action.name) == ("a", "b__c")


async def test_a_name_that_is_the_id_of_a_tool_is_never_listed_for_an_action():
    library = UnifiedToolLibrary()
    library.engine.registry.add(make("one", source="mcps", actions=("x", "y")), make("one__x", description="mine"))
    [listed] = [s["function"] for s in library.schemas() if s["function"]["name"] == "one__x"]
    assert listed["description"] == "mine" and library.engine.registry.find("one__x")[0].id == "one__x"
    assert library.engine.registry.find("one", "x")[0].id == "one"


def test_a_disabled_tool_is_kept_but_neither_it_nor_its_actions_are_found():
    registry = ToolRegistry([make("a", actions=("b", "c"))])
    registry.disable("a")
    for name in ("a", "a__b"):
        with pytest.raises(ToolNotFound, match="Tool 'a' is disabled"):
            registry.find(name)
    registry.enable("a")
    assert registry.find("a__b")[0].id == "a"


def test_the_error_for_an_unknown_tool_suggests_similar_names():
    with pytest.raises(ToolNotFound, match="Did you mean 'http_request'"):
        ToolRegistry([make("http_request")]).find("http_requst")


def test_a_tool_is_found_by_its_name_for_models():
    registry = ToolRegistry([make("math.add"), make("browser", actions=("click", "go"))])
    assert registry.find("math-2e-add")[0].id == "math.add"
    assert registry.find("browser__click")[1].name == "click"
    assert registry.find("browser", "go")[1].name == "go"


def test_a_tool_with_several_actions_needs_an_action():
    registry = ToolRegistry([make("browser", actions=("click", "go"))])
    with pytest.raises(ToolNotFound, match="several actions.*click, go"):
        registry.find("browser")
    with pytest.raises(ToolNotFound, match="no action 'clik'.*Did you mean 'click'"):
        registry.find("browser", "clik")


def test_readers_never_see_a_partial_change():
    registry = ToolRegistry([make("a0"), make("b0")])
    versions: set[frozenset[str]] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            versions.add(frozenset(registry.snapshot().by_id))

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(300):
        old = list(registry)
        registry.remove_and_add(remove=old, add=[make(f"a{n + 1}"), make(f"b{n + 1}")])
    stop.set()
    reader.join()
    assert all({i[0] for i in ids} == {"a", "b"} and len({i[1:] for i in ids}) == 1 for ids in versions)


def test_a_change_of_what_callers_notice_changes_the_fingerprint():
    spec = make("a").spec
    assert replace(spec, description="other").fingerprint != spec.fingerprint
    unnoticed = replace(spec, enabled=False, subcategory="x", priority=9, dependencies=["b"])
    assert unnoticed.fingerprint == spec.fingerprint
    assert make("a").spec.fingerprint == spec.fingerprint


def test_a_tool_is_unavailable_until_all_it_depends_on_can_be_called():
    registry = ToolRegistry([make("report", dependencies=["search", "mail"]), make("search")])
    with pytest.raises(ToolNotFound, match="'report' is unavailable: it needs 'mail', which does not exist"):
        registry.find("report")
    registry.add(make("mail", enabled=False))
    with pytest.raises(ToolNotFound, match="it needs 'mail', which is disabled"):
        registry.find("report")
    registry.enable("mail")
    assert registry.find("report")[0].id == "report"
    registry.remove("search")
    assert registry.get("report") is None


def test_a_missing_dependency_is_reported_with_its_chain_and_similar_names():
    tools = [make("c", dependencies=["b"]), make("b", dependencies=["serach"]), make("search")]
    now = ToolRegistry(tools).snapshot()
    assert now.why_unavailable(tools[0]) == "it needs 'b', which needs 'serach', which does not exist."
    assert now.why_unavailable(tools[1]) == "it needs 'serach', which does not exist. Did you mean 'search'?"
    assert now.why_unavailable(tools[2]) is None


def test_a_circular_dependency_is_reported_and_affects_only_its_tools():
    tools = [make("a", dependencies=["b"]), make("b", dependencies=["a"]), make("own", dependencies=["own"]), make("c")]
    now = ToolRegistry(tools).snapshot()
    assert (
        now.why_unavailable(tools[0]) == "it needs 'b', which needs 'a', which needs 'b' again: a circular dependency."
    )
    assert now.why_unavailable(tools[2]) == "it needs 'own', which needs 'own' again: a circular dependency."
    assert [tool.id for tool in now if now.is_callable(tool)] == ["c"]


def test_a_tool_that_is_not_set_up_reports_what_it_needs():
    tool = replace(make("search", dependencies=["echo"]), needs="a key: set SEARCH_KEY")
    registry = ToolRegistry([tool, make("echo"), make("report", dependencies=["search"])])
    with pytest.raises(ToolNotFound, match="'search' is unavailable: it needs a key: set SEARCH_KEY"):
        registry.find("search")
    with pytest.raises(ToolNotFound, match="it needs 'search', which needs a key: set SEARCH_KEY"):
        registry.find("report")
    assert registry.get("echo") is not None


def test_an_unavailable_candidate_is_replaced_by_another():
    native, server = make("search", dependencies=["browser"]), make("search", source="mcps")
    registry = ToolRegistry([native, server, make("report", dependencies=["search"])])
    assert registry.get("search") is server
    assert registry.get("report") is not None
    registry.add(make("browser"))
    assert registry.get("search") is native


def test_the_reason_is_reported_for_every_name_of_an_unavailable_tool():
    tool = make("web.search", name="Search", actions=("go", "stop"), dependencies=["browser"])
    for name in ("web.search", "Search", tool.spec.model_name(tool.spec.capabilities[0])):
        with pytest.raises(ToolNotFound, match="it needs 'browser'"):
            ToolRegistry([tool]).find(name)


NAMES = st.sampled_from("abcdef")


@given(st.dictionaries(NAMES, st.tuples(st.booleans(), st.lists(NAMES, max_size=3))))
def test_a_tool_can_be_called_if_and_only_if_it_and_all_it_needs_can(graph):
    now = ToolRegistry([make(i, enabled=on, dependencies=needs) for i, (on, needs) in graph.items()]).snapshot()
    callable_now: set[str] = set()
    for _ in graph:
        callable_now |= {i for i, (on, needs) in graph.items() if on and set(needs) <= callable_now}
    assert {tool.id for tool in now if now.is_callable(tool)} == callable_now
    assert all(now.why_unavailable(tool) for tool in now.unavailable)
    assert {t.id for t in now.unavailable} == {i for i, (on, _) in graph.items() if on} - callable_now
