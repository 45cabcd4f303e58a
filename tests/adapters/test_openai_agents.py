"""A library's tools in the OpenAI Agents SDK."""

from typing import Any

import pytest

from ferrule import UnifiedToolLibrary
from tests.adapters import bridged_tools as ours


@pytest.fixture(scope="module")
def sdk() -> Any:
    """It takes a second and much memory to load: in one process, and not before it is used."""
    from tests.adapters import openai_agents_turns

    return openai_agents_turns


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
