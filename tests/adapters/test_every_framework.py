"""What holds for a library's tools in each framework; what only one of them has is in the file of its name."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary
from tests.adapters import bridged_tools as ours


@pytest.fixture(scope="module", params=["langchain", "openai_agents", "pydantic_ai"])
def framework(request: pytest.FixtureRequest) -> Any:
    """Each takes a second and much memory to load: in one process, and not before it is used."""
    return importlib.import_module(f"tests.adapters.{request.param}_turns")


async def test_an_agent_calls_our_tools_and_they_are_recorded(framework: Any):
    async with UnifiedToolLibrary() as library:
        library.register(ours.add, ours.variables)
        turns = [("add", {"a": 1, "b": 2}), ("variables", dict[str, Any]()), "It is 3."]
        added, variables = await framework.run(library, *turns, conversation_id="monday")
        [record] = await library.engine.query_call_records(tool_name="add")
    assert (str(added), variables) == ("3", framework.VARIABLES)
    assert (record.params, record.caller_id, record.conversation_id) == ({"a": 1, "b": 2}, framework.CALLER, "monday")


async def test_a_model_is_told_what_ours_would_be_told(framework: Any):
    async with UnifiedToolLibrary() as library:
        library.register(ours.add, ours.Diary(), ours.odd)
        assert await framework.schemas_of(library) == library.schemas()


@pytest.mark.integration
async def test_a_time_out_ends_the_work(framework: Any, tmp_path: Path):
    async with UnifiedToolLibrary() as library:
        library.register(ours.write_late)
        [told] = await framework.run(library, ("write_late", {"path": str(tmp_path / "late.txt")}), "Too late.")
        assert not ours.is_still_working(tmp_path / "late.txt")
    assert "did not finish within 0.5 s" in str(told)


async def test_a_picture_is_shown_to_the_model(framework: Any):
    async with UnifiedToolLibrary() as library:
        library.register(ours.drawn)
        assert await framework.run(library, ("drawn", {}), "Nice.") == [framework.PICTURE]


async def test_ours_to_theirs_to_ours_keeps_name_schema_and_result(framework: Any):
    async with UnifiedToolLibrary() as first, UnifiedToolLibrary() as second:
        first.register(ours.add, ours.Diary())
        second.register(*await framework.tools_of(first, ["add", "Diary"]))
        result = await second.execute_tool("add", None, {"a": 1})
        refused = await second.execute_tool("Diary__ask_again", None, {"text": "y"})
        assert second.schemas() == first.schemas()
    assert result.text == "2" and "put an x in it" in refused.text
