from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.search import RegistryIndex
from ferrule.catalog.search.index import SearchIndex
from ferrule.core.spec import Tool
from tests.catalog.search.searchable_tools import make_tool


def ids(index: RegistryIndex, text: str) -> list[str]:
    return [hit.tool.id for hit in index.search(text)]


def test_changes_of_the_registry_take_effect_in_the_next_search():
    registry = ToolRegistry([make_tool("a", "Count sheep.")])
    index = RegistryIndex(registry)
    assert ids(index, "sheep") == ["a"]
    registry.add(make_tool("b", "Shear sheep.", tags=["wool"]))
    assert set(ids(index, "sheep")) == {"a", "b"}
    registry.replace(make_tool("a", "Count goats."))
    assert (ids(index, "sheep"), ids(index, "goats")) == (["b"], ["a"])
    registry.disable("b")
    assert ids(index, "sheep") == [] == index.search_by_tags(["wool"])
    registry.enable("b")
    registry.remove("a")
    assert (ids(index, "sheep"), ids(index, "goats")) == (["b"], [])
    assert [tool.id for tool in index.search_by_requirements(["sheep"])] == ["b"]


def test_candidates_of_one_id_are_added_and_removed_one_by_one():
    registry = ToolRegistry([make_tool("a", "Count sheep."), make_tool("a", "Count lambs.", source="mcps")])
    index = RegistryIndex(registry)
    assert [hit.tool.source for hit in index.search("count")] == ["tools", "mcps"]
    registry.remove("a", "tools")
    assert [hit.tool.source for hit in index.search("count")] == ["mcps"]


def test_only_changed_tools_are_indexed_again(monkeypatch):
    registry = ToolRegistry(make_tool(f"sheep_{n}") for n in range(50))
    index = RegistryIndex(registry)
    index.search("sheep")
    read = []

    def note(self: SearchIndex, tool: Tool) -> None:
        read.append(tool.id)
        add(self, tool)

    add = SearchIndex.add
    monkeypatch.setattr(SearchIndex, "add", note)
    registry.add(make_tool("goat"))
    registry.replace(make_tool("sheep_7", "Another."))
    index.search("goat")
    index.search("goat")
    assert sorted(read) == ["goat", "sheep_7"]
