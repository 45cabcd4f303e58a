"""A library's tools in the OpenAI Agents SDK."""

from pathlib import Path
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary
from tests.adapters import bridged_tools as ours


@pytest.fixture(scope="module")
def sdk() -> Any:
    """It takes a second and much memory to load: in one process, and not before it is used."""
    from tests.adapters import openai_agents_turns

    return openai_agents_turns


async def test_an_agent_calls_our_tools_and_they_are_recorded(sdk):
    model = sdk.KnownTurns(("add", {"a": 1, "b": 2}), ("variables", {}), "It is 3.")
    config = sdk.RunConfig(tracing_disabled=True, group_id="monday")
    async with UnifiedToolLibrary() as library:
        library.register(ours.add, ours.variables)
        run = await sdk.Runner.run(sdk.agent_with(model, library), "Go.", run_config=config, context="mine")
        records = await library.engine.query_call_records(tool_name="add")
    assert (run.final_output, model.answers()) == ("It is 3.", ["3", '["context"]'])
    assert [(r.params, r.caller_id, r.conversation_id) for r in records] == [
        ({"a": 1, "b": 2}, "openai-agents", "monday")
    ]


def test_a_model_is_told_what_ours_would_be_told(sdk):
    library = UnifiedToolLibrary()
    library.register(ours.add, ours.Diary())
    tools = sdk.as_function_tools(library)
    told = [(tool.name, tool.description, tool.params_json_schema) for tool in tools]
    assert told == [tuple(schema["function"].values()) for schema in library.schemas()]


async def test_a_failure_is_told_to_the_model(sdk):
    turns = ("Diary__fail", {"reason": "rain"}), ("add", {"a": "one"}), ("add", "{"), ("add", "[]"), "I give up."
    model = sdk.KnownTurns(*turns)
    async with UnifiedToolLibrary() as library:
        library.register(ours.Diary(), ours.add)
        await sdk.Runner.run(sdk.agent_with(model, library), "Go.", run_config=sdk.QUIET)
    failed, wrong, broken, no_object = model.answers()
    assert failed == "ValueError: rain"
    assert wrong.startswith("Invalid arguments for 'add': a: ")
    assert broken.startswith("The arguments of 'add' are not JSON")
    assert "object" in no_object


async def test_a_call_that_is_known_to_fail_is_not_made_again_in_the_same_run(sdk):
    diary = ours.Diary()
    async with UnifiedToolLibrary() as library:
        library.register(diary)
        turns = [("Diary__fail", {"reason": "rain"})] * 4
        agent = sdk.agent_with(sdk.KnownTurns(*turns, "I give up.", turns[0], "Another run."), library, memory=True)
        await sdk.Runner.run(agent, "Go.", run_config=sdk.QUIET)
        assert diary.calls == 1
        await sdk.Runner.run(agent, "Go.", run_config=sdk.QUIET)
    assert diary.calls == 2


@pytest.mark.integration
async def test_a_time_out_ends_the_work(sdk, tmp_path: Path):
    model = sdk.KnownTurns(("write_late", {"path": str(tmp_path / "late.txt")}), "Too late.")
    async with UnifiedToolLibrary() as library:
        library.register(ours.write_late)
        await sdk.Runner.run(sdk.agent_with(model, library), "Go.", run_config=sdk.QUIET)
        assert not ours.is_still_working(tmp_path / "late.txt")
    assert "did not finish within 0.5 s" in model.answers()[0]


async def test_a_picture_is_shown_to_the_model(sdk):
    model = sdk.KnownTurns(("drawn", {}), "Nice.")
    async with UnifiedToolLibrary() as library:
        library.register(ours.drawn)
        await sdk.Runner.run(sdk.agent_with(model, library), "Go.", run_config=sdk.QUIET)
    [[text, picture]] = model.answers()
    assert (text["text"], picture["image_url"]) == ("here", "data:image/png;base64,aGk=")


async def test_ours_to_theirs_to_ours_keeps_name_schema_and_result(sdk):
    async with UnifiedToolLibrary() as first, UnifiedToolLibrary() as second:
        first.register(ours.add, ours.Diary())
        second.register(sdk.as_function_tools(first, tools=["add", "Diary"]))
        result = await second.execute_tool("add", None, {"a": 1})
        assert second.schemas() == first.schemas()
    assert result.text == "2"


async def test_a_destructive_call_interrupts_the_run_until_it_is_approved(sdk):
    disk = ours.Disk()
    async with UnifiedToolLibrary() as library:
        library.register(disk)
        agent = sdk.agent_with(sdk.KnownTurns(("Disk", {"path": "/a"}), ("Disk", {"path": "/b"}), "Done."), library)
        run = await sdk.Runner.run(agent, "Go.", run_config=sdk.QUIET)
        state = run.to_state()
        assert disk.wiped == []
        state.approve(run.interruptions[0])
        run = await sdk.Runner.run(agent, state, run_config=sdk.QUIET)
        assert disk.wiped == ["/a"]  # the next call is asked about anew
        state = run.to_state()
        state.reject(run.interruptions[0])
        run = await sdk.Runner.run(agent, state, run_config=sdk.QUIET)
    assert (run.final_output, disk.wiped) == ("Done.", ["/a"])
