"""A library's tools in pydantic-ai."""

from typing import Any

import pytest

from ferrule import NeedsApproval, Principal, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.adapters.bridge import LibraryBridge
from tests.adapters import bridged_tools as ours


@pytest.fixture(scope="module")
def ai() -> Any:
    """pydantic-ai takes a second and much memory to load: in one process, and not before it is used."""
    from tests.adapters import pydantic_ai_turns

    return pydantic_ai_turns


async def test_wrong_arguments_are_to_be_mended_and_other_failures_are_final(ai):
    async with UnifiedToolLibrary() as library:
        library.register(ours.add, ours.Diary())
        model = ai.model_with(
            ai.ToolCallPart("add", {"a": "one"}),
            ai.ToolCallPart("add", {"a": 1}),
            ai.ToolCallPart("Diary__ask_again", {"text": "y"}),
            ai.ToolCallPart("Diary__fail", {"reason": "rain"}),
            "I give up.",
        )
        run = await ai.Agent(model, toolsets=[ai.FerruleToolset(library)]).run("Go.")
        record_ids = {record.record_id for record in await library.engine.query_call_records()}
    wrong, right, again, failed = ai.returns_of(run)
    assert right.metadata["call_id"] in record_ids
    assert [part.outcome for part in (wrong, right, again, failed)] == ["retried", "success", "retried", "failed"]
    assert "a: " in str(wrong.content)
    assert (right.content, failed.content) == (2, "ValueError: rain")
    assert "put an x in it" in str(again.content)


async def test_a_call_that_is_known_to_fail_is_not_made_again_in_the_same_run(ai):
    diary = ours.Diary()
    async with UnifiedToolLibrary() as library:
        library.register(diary)
        turns = [ai.ToolCallPart("Diary__fail", {"reason": "rain"})] * 4
        toolset = ai.FerruleToolset(library, memory=True)
        await ai.Agent(ai.model_with(*turns, "I give up."), toolsets=[toolset]).run("Go.")
        assert diary.calls == 1
        await ai.Agent(ai.model_with(turns[0], "Another run."), toolsets=[toolset]).run("Go.")
        assert diary.calls == 2
        await ai.Agent(ai.model_with(*turns, "I give up."), toolsets=[ai.FerruleToolset(library)]).run("Go.")
    assert diary.calls == 6, "without a memory every call is made"


async def test_a_tool_that_is_registered_during_a_run_is_there_at_the_next_step(ai):
    async with UnifiedToolLibrary() as library:

        async def learn() -> str:
            """Learn to add."""
            library.register(ours.add)
            return "I can add now."

        library.register(learn)
        model = ai.model_with(ai.ToolCallPart("learn", {}), ai.ToolCallPart("add", {"a": 1, "b": 2}), "It is 3.")
        run = await ai.Agent(model, toolsets=[ai.FerruleToolset(library)]).run("Go.")
    assert [part.content for part in ai.returns_of(run)] == ["I can add now.", 3]


async def test_a_destructive_call_waits_for_the_approval_of_the_users_of_the_agent(ai):
    disk = ours.Disk()
    async with UnifiedToolLibrary() as library:
        library.register(disk)
        model = ai.model_with(ai.ToolCallPart("Disk", {"path": "/a"}, "c1"), "Done.")
        agent = ai.Agent(model, toolsets=[ai.FerruleToolset(library)], output_type=[str, ai.DeferredToolRequests])
        first = await agent.run("Go.")
        [call] = first.output.approvals
        assert (call.tool_name, disk.wiped) == ("Disk", [])
        assert "approval" in first.output.metadata[call.tool_call_id]["reason"]
        results = ai.DeferredToolResults(approvals={call.tool_call_id: True})
        second = await agent.run(message_history=first.all_messages(), deferred_tool_results=results)
        records = await library.engine.query_call_records()
    assert (second.output, disk.wiped) == ("Done.", ["/a"])
    assert [record.principal for record in records if record.status == "success"] == ["agent:pydantic-ai"]


async def test_a_principal_of_the_programs_own_makes_the_calls(ai):
    disk = ours.Disk()
    async with UnifiedToolLibrary() as library:
        library.register(disk)
        model = ai.model_with(ai.ToolCallPart("Disk", {"path": "/a"}), "Done.")
        toolset = ai.FerruleToolset(library, principal=Principal(kind="client", name="mine"))
        await ai.Agent(model, toolsets=[toolset]).run("Go.")
    assert disk.wiped == ["/a"]


async def test_the_approval_of_a_call_is_none_of_the_calls_that_its_tool_makes():
    names, deleted = ["f1", "f2"], []

    @tool(destructive=True)
    async def delete(name: str) -> str:
        """Delete a file."""
        deleted.append(name)
        return name

    @tool(read_only=True)
    async def clean(context: ToolExecutionContext) -> str:
        """Delete the next file."""
        result = await context.call_tool("delete", {"name": names.pop(0)})
        if not result.is_success:
            raise NeedsApproval(result.text, approval_id=result.metadata["approval_id"])
        return result.text

    async with UnifiedToolLibrary() as library:
        library.register(delete, clean)
        bridge = LibraryBridge(library, None, framework="pydantic-ai")
        context = bridge.context(run="a", conversation_id="c")
        shown = (await bridge.call("clean", {}, context)).metadata["approval_id"]
        for approval in ({"is_approved": True}, {"approval_id": shown}):  # it is about f1, and f2 is next
            names[:] = ["f2", "f2"]
            result = await bridge.call("clean", {}, context, **approval)
            assert result.error_type == "approval_required" and deleted == []
        names[:] = ["f1", "f1"]
        assert (await bridge.call("clean", {}, context, approval_id=shown)).is_success and deleted == ["f1"]
        assert (await bridge.call("delete", {"name": "f3"}, context, is_approved=True)).is_success
