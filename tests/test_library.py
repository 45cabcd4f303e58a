from pathlib import Path

import pytest

from ferrule import FunctionToolSpec, SetupError, ToolCapability, ToolType, UnifiedToolLibrary, tool


@tool(tags=["math"])
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Notes:
    """Keep notes."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.closed = False

    async def keep(self, text: str) -> int:
        """Keep a note."""
        self.kept.append(text)
        return len(self.kept)

    def read(self) -> list[str]:
        """Read all notes."""
        return self.kept

    def cleanup(self) -> None:
        self.closed = True


async def test_the_contract_of_the_library_holds(tmp_path: Path):
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path / 'calls.db'}") as library:
        library.register(add)
        result = await library.execute_tool("add", "add", {"a": 1, "b": 2})
        same = await library.execute_tool("add", parameters={"a": 1, "b": 2})
    assert result.output == same.output == {"result": 3}
    assert (result.success, result.error_message) == (True, None)


async def test_an_object_keeps_its_state_and_is_cleaned_up_at_the_end():
    notes = Notes()
    async with UnifiedToolLibrary() as library:
        [spec] = library.register(notes)
        await library.execute_tool(spec.tool_id, "keep", {"text": "tea"})
        read = await library.execute_tool(spec.tool_id, "read")
        assert not notes.closed
    assert read.output == {"result": ["tea"]}
    assert notes.closed


async def test_what_an_unregistered_object_holds_is_closed_with_the_library():
    notes = Notes()
    async with UnifiedToolLibrary() as library:
        [spec] = library.register(notes)
        await library.execute_tool(spec.tool_id, "read")
        await library.unregister_tool(spec.tool_id)
    assert notes.closed


async def test_tools_are_found_by_id_type_and_tag():
    async with UnifiedToolLibrary() as library:
        library.register(add)
        assert (await library.get_tool_by_id("add")) in await library.get_all_tools()
        assert await library.get_tool_by_id("nothing") is None
        assert {t.tool_id for t in await library.search_tools_by_tags(["MATH"])} == {"add", "calculator"}
        assert "add" in [t.tool_id for t in await library.get_tools_by_type(ToolType.FUNCTION)]


async def test_tools_are_found_by_what_they_are_about_and_described():
    async with UnifiedToolLibrary() as library:
        library.register(add, Notes())
        assert (await library.search_tools("add numbers"))[0].tool_id == "add"
        assert (await library.search_tools_by_requirements(["计算"]))[0].tool_id == "calculator"
        assert "Add two numbers." in await library.get_tool_description_for_agent("add")
        assert "Keep notes." in await library.get_all_tools_description_for_agent()
        [example] = await library.get_tool_usage_examples("add")
        assert (await library.execute_tool(**example)).is_success


async def test_a_class_that_cannot_be_imported_is_told_when_it_is_called():
    capability = ToolCapability(name="go", description="Go.")
    spec = FunctionToolSpec(tool_id="lost", module_path="no.such.module", class_name="Lost", capabilities=[capability])
    async with UnifiedToolLibrary() as library:
        assert (await library.register_function_tool(spec)).success
        again = await library.register_function_tool(spec)
        result = await library.execute_tool("lost", "go", {})
        assert await library.unregister_tool("lost")
        assert not await library.unregister_tool("lost")
    assert not again.success
    assert "Two tools are called 'lost'" in str(again.error)
    assert "no.such.module" in str(result.error)


async def test_a_batch_of_calls_keeps_its_order():
    async with UnifiedToolLibrary() as library:
        library.register(add)
        results = await library.batch_execute_tools(
            [{"tool_id": "add", "action": "add", "parameters": {"a": n, "b": n}} for n in range(3)]
        )
    assert [r.output["result"] for r in results] == [0, 2, 4]


async def test_schemas_are_ready_for_model_apis_and_always_in_the_same_order():
    async with UnifiedToolLibrary() as library:
        library.register(Notes(), add)
        schemas = [s["function"] for s in library.schemas()]
    names = [s["name"] for s in schemas]
    assert names == sorted(names)
    assert next(s for s in schemas if s["name"] == "add")["parameters"]["required"] == ["a", "b"]
    assert any(name.endswith("__keep") for name in names)


async def test_a_library_opens_from_a_configuration(tmp_path: Path):
    (tmp_path / "ferrule.toml").write_text('[engine]\ntools_directory = "mine"\n[store]\nurl = "sqlite:///calls.db"\n')
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/hi.yaml").write_text(
        "name: hi\ndescription: Say hi\ncategory: custom\nentry:\n  type: builtin\n  handler: echo\n"
    )
    async with UnifiedToolLibrary.open(tmp_path / "ferrule.toml") as library:
        assert (await library.execute_tool("hi")).is_success
    assert (tmp_path / "calls.db").exists()


def test_a_configuration_that_is_not_there_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(SetupError, match="ferrule init"):
        UnifiedToolLibrary.open(tmp_path / "ferrule.toml")
