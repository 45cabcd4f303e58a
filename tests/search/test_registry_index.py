from ferrule.registry import ToolRegistry
from ferrule.search import RegistryIndex
from ferrule.search.index import SearchIndex
from ferrule.spec import Tool
from tests.search.making import made


def ids(index: RegistryIndex, text: str) -> list[str]:
    return [hit.tool.id for hit in index.search(text)]


def test_what_is_registered_replaced_disabled_or_removed_shows_in_the_next_search():
    registry = ToolRegistry([made("a", "Count sheep.")])
    index = RegistryIndex(registry)
    assert ids(index, "sheep") == ["a"]
    registry.add(made("b", "Shear sheep.", tags=["wool"]))
    assert set(ids(index, "sheep")) == {"a", "b"}
    registry.replace(made("a", "Count goats."))
    assert (ids(index, "sheep"), ids(index, "goats")) == (["b"], ["a"])
    registry.disable("b")
    assert ids(index, "sheep") == [] == index.search_by_tags(["wool"])
    registry.enable("b")
    registry.remove("a")
    assert (ids(index, "sheep"), ids(index, "goats")) == (["b"], [])
    assert [tool.id for tool in index.search_by_requirements(["sheep"])] == ["b"]


def test_candidates_of_one_id_come_and_go_one_by_one():
    registry = ToolRegistry([made("a", "Count sheep."), made("a", "Count lambs.", source="mcps")])
    index = RegistryIndex(registry)
    assert [hit.tool.source for hit in index.search("count")] == ["tools", "mcps"]
    registry.remove("a", "tools")
    assert [hit.tool.source for hit in index.search("count")] == ["mcps"]


def test_only_what_changed_is_read_again(monkeypatch):
    registry = ToolRegistry(made(f"sheep_{n}") for n in range(50))
    index = RegistryIndex(registry)
    index.search("sheep")
    read = []

    def note(self: SearchIndex, tool: Tool) -> None:
        read.append(tool.id)
        add(self, tool)

    add = SearchIndex.add
    monkeypatch.setattr(SearchIndex, "add", note)
    registry.add(made("goat"))
    registry.replace(made("sheep_7", "Another."))
    index.search("goat")
    index.search("goat")
    assert sorted(read) == ["goat", "sheep_7"]
