from pathlib import Path

import pytest

from ferrule import (
    Agent,
    FunctionToolSpec,
    Orchestrator,
    SetupError,
    Tool,
    ToolCapability,
    ToolCategory,
    ToolEngine,
    ToolEngineConfig,
    ToolType,
    UnifiedToolLibrary,
    tool,
)
from ferrule.core.spec import ExtendedToolSpec
from tests.support.engines import library_with


@tool(tags=["math"])
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Notes:
    """Keep notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.closed = False
        self.cleanups = 0

    async def keep(self, text: str) -> int:
        """Keep a note."""
        self.notes.append(text)
        return len(self.notes)

    def read(self) -> list[str]:
        """Read all notes."""
        return self.notes

    def cleanup(self) -> None:
        self.closed = True
        self.cleanups += 1


async def test_the_contract_of_the_library_holds(tmp_path: Path):
    async with library_with(add, store=f"sqlite:///{tmp_path / 'calls.db'}") as library:
        result = await library.execute_tool("add", "add", {"a": 1, "b": 2})
        same = await library.execute_tool("add", parameters={"a": 1, "b": 2})
    assert result.output == same.output == {"result": 3}
    assert (result.success, result.error_message) == (True, None)


async def test_the_action_may_be_left_out_before_the_parameters():
    async with library_with(add, Notes()) as library:
        assert (await library.execute_tool("add", {"a": 1, "b": 2})).output == {"result": 3}
        assert (await library.execute_tool_with_context("add", {"a": 1, "b": 2})).output == {"result": 3}
        with pytest.raises(SetupError, match=r"two sets of parameters. Write execute_tool\('add', \{…\}\)"):
            await library.execute_tool("add", {"a": 1}, {"b": 2})


async def test_a_library_that_is_not_open_says_how_to_open_it():
    library = UnifiedToolLibrary()
    library.register(add)
    for call in (library.execute_tool("add", {"a": 1, "b": 2}), library.execute("add", {"a": 1, "b": 2})):
        with pytest.raises(SetupError, match=r"not open. Use it inside `async with UnifiedToolLibrary\(…\) as library"):
            await call
    await library.initialize()
    assert (await library.execute_tool("add", {"a": 1, "b": 2})).success
    await library.aclose()
    with pytest.raises(SetupError, match="This library is closed"):
        await library.execute_tool("add", {"a": 1, "b": 2})


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
    async with library_with(add) as library:
        assert (await library.get_tool_by_id("add")) in await library.get_all_tools()
        assert await library.get_tool_by_id("nothing") is None
        assert {t.tool_id for t in await library.search_tools_by_tags(["MATH"])} == {"add", "calculator"}
        assert "add" in [t.tool_id for t in await library.get_tools_by_type(ToolType.FUNCTION)]


async def test_tools_are_found_by_what_they_are_about_and_described():
    async with library_with(add, Notes()) as library:
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


async def test_a_batch_with_a_call_that_cannot_be_read_makes_none_of_its_calls():
    numbers: list[int] = []

    async def note(number: int) -> None:
        """Take a note."""
        numbers.append(number)

    async with library_with(note) as library:
        good = {"tool_id": "note", "parameters": {"number": 1}}
        with pytest.raises(SetupError, match="takes no other keys"):
            await library.batch_execute_tools([good, {"tool_id": "note", "params": {"number": 2}}])
    assert numbers == []


async def test_a_batch_of_calls_keeps_its_order():
    async with library_with(add) as library:
        results = await library.batch_execute_tools(
            [{"tool_id": "add", "action": "add", "parameters": {"a": n, "b": n}} for n in range(3)]
        )
    assert [r.output["result"] for r in results] == [0, 2, 4]


async def test_schemas_are_ready_for_model_apis_and_always_in_the_same_order():
    async with library_with(Notes(), add) as library:
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


async def test_each_method_may_be_a_tool_of_its_own_and_they_share_the_object():
    notes = Notes()
    async with UnifiedToolLibrary() as library:
        specs = library.register(notes, add, per_method=True)
        await library.execute_tool("keep", parameters={"text": "tea"})
        read = await library.execute_tool("read")
        await library.unregister_tool("keep")
        await library.execute_tool("read")
        assert not notes.closed
    assert [spec.tool_id for spec in specs] == ["keep", "read", "add"]
    assert read.output == {"result": ["tea"]} and notes.cleanups == 1


@tool(category="web_automation", subcategory="browser", priority=5)
async def click(selector: str) -> str:
    """Click on something."""
    return selector


@tool(category="web_automation", subcategory="fetching", dependencies=["proxy"])
async def fetch(url: str) -> str:
    """Fetch a page."""
    return url


def plain(tool_id: str, **fields) -> Tool:
    capability = ToolCapability(name=tool_id, description="")
    return Tool(spec=ExtendedToolSpec(tool_id=tool_id, capabilities=[capability], **fields), handler="echo")


async def test_tools_are_listed_by_category_those_of_the_highest_priority_first():
    async with library_with(
        click,
        plain("open", category="web_automation", subcategory="browser", priority=7),
        config=ToolEngineConfig(builtin_tools=False),
    ) as library:
        library.register(plain("wget", category=ToolCategory.WEB_AUTOMATION, subcategory="fetching", priority=6))
        with pytest.raises(SetupError, match="enable_category_management"):
            await library.get_category_tree()
        await library.enable_category_management()
        assert [t.tool_id for t in await library.get_tools_by_category("web_automation")] == ["open", "wget", "click"]
        inner = await library.get_tools_by_category(ToolCategory.WEB_AUTOMATION, "browser")
        assert [t.tool_id for t in inner] == ["open", "click"]
        tree = await library.get_category_tree()
        assert tree["web_automation"] == {"browser": ["open", "click"], "fetching": ["wget"]}
        await library.unregister_tool("wget")
        assert "fetching" not in (await library.get_category_tree())["web_automation"]
        assert await library.get_tools_by_category("nothing") == []


async def test_a_tool_whose_dependency_is_missing_is_shown_as_unavailable_and_never_offered(caplog):
    async with library_with(fetch) as library:
        await library.enable_category_management()
        health = await library.get_tool_health_status("fetch")
        called = await library.execute_tool("fetch", parameters={"url": "x"})
        offered = str([library.schemas(), await library.get_all_tools(), await library.search_tools("fetch a page")])
        described = await library.get_all_tools_description_for_agent()
        library.register(plain("proxy"))
        mended = await library.execute_tool("fetch", parameters={"url": "x"})
    reason = "it needs 'proxy', which does not exist."
    assert (health["status"], health["reason"]) == ("unavailable", f"unavailable: {reason}")
    assert (called.error_type, called.error) == ("tool_not_found", f"Tool 'fetch' is unavailable: {reason}")
    assert "Fetch a page" not in offered + described and reason in caplog.text
    assert mended.is_success


async def test_the_tools_that_miss_something_are_named_with_the_reason():
    async with library_with(
        plain("a", dependencies=["b"]), plain("b", dependencies=["a"]), config=ToolEngineConfig(builtin_tools=False)
    ) as library:
        assert await library.get_unavailable_tools() == {
            "a": "it needs 'b', which needs 'a', which needs 'b' again: a circular dependency.",
            "b": "it needs 'a', which needs 'b', which needs 'a' again: a circular dependency.",
        }
        callable_now = {spec.id for spec in await library.get_tools_by_type(ToolType.FUNCTION)}
        assert not callable_now & {"a", "b"}


async def test_whoever_changes_a_schema_changes_only_their_own():
    async with library_with(add) as library:
        [mine] = [s for s in library.schemas() if s["function"]["name"] == "add"]
        mine["function"]["parameters"]["properties"].clear()
        for schemas in (library.descriptions.anthropic_schemas(), library.descriptions.mcp_schemas()):
            schemas[0].clear()
        [again] = [s for s in library.schemas() if s["function"]["name"] == "add"]
        assert list(again["function"]["parameters"]["properties"]) == ["a", "b"]
        assert all(library.descriptions.anthropic_schemas()) and all(library.descriptions.mcp_schemas())


async def test_the_health_of_a_tool_that_is_not_there_says_so():
    async with UnifiedToolLibrary() as library:
        health = await library.get_tool_health_status("ghost")
    assert (health["status"], health["reason"]) == ("unknown", "there is no tool 'ghost'")


def test_dependencies_are_a_list():
    with pytest.raises(SetupError, match=r"write \['proxy'\]"):
        ExtendedToolSpec(tool_id="x", dependencies="proxy")  # type: ignore[arg-type]
    with pytest.raises(SetupError, match=r"dependencies=\['proxy'\]"):
        tool(dependencies="proxy")(add)


HOSTILE = 'from pathlib import Path\nPath("executed").touch()\n'


async def test_a_folder_that_nobody_named_is_not_read(tmp_path: Path, monkeypatch, caplog):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "x.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    async with ToolEngine():
        pass
    async with UnifiedToolLibrary() as library, Orchestrator(library, "offline") as orchestrator:
        await orchestrator.process_task("Hello")
    await Agent([add], "offline").run("Hello")
    assert not (tmp_path / "executed").exists()
    assert caplog.text.count("folder=<tools> | not read, because no config names it") == 2
    async with UnifiedToolLibrary(ToolEngineConfig()):
        assert (tmp_path / "executed").exists()  # the program has named it
