"""What a person agreed to is what is done: no other tool, no other arguments; the same on both workflows."""

from dataclasses import replace
from typing import Any

import pytest

from ferrule import Approval, Policy, Rule, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.agent import AgentState
from ferrule.kinds.function.tools import tool_of
from ferrule.library.meta_tools import make_meta_tools
from ferrule.testing import ScriptedModel
from tests.workflow.plans import plan


def step(tool_type: str, description: str = "clean the disk", **parameters: Any) -> dict[str, Any]:
    return {"id": 1, "description": description, "tool_type": tool_type, "parameters": parameters}


async def test_of_several_tools_with_one_name_the_destructive_one_still_needs_approval(workflow):
    wiped: list[str] = []

    @tool
    async def tidy(path: str) -> str:
        """Tidy up."""
        raise RuntimeError("it is broken")

    @tool(name="tidy", destructive=True)
    async def wipe(path: str) -> str:
        """Tidy up by deleting."""
        wiped.append(path)
        return "wiped"

    async with UnifiedToolLibrary() as library:
        library.register(tidy, replace(tool_of(wipe), source="mcps"))
        async with workflow(library, ScriptedModel([plan(step("tidy", path="a")), "thought"])) as flow:
            paused = await flow.run("Tidy a")
        assert paused.state is AgentState.WAITING and [r.tool_id for r in paused.approvals] == ["tidy"] and not wiped


async def test_leave_for_one_tool_is_none_for_the_tool_that_stands_in_for_it(workflow):
    called: list[str] = []

    @tool(idempotent=True, tags=["clean", "disk"])
    async def sweep(path: str) -> str:
        """Clean the disk."""
        called.append("sweep")
        return ""

    @tool(idempotent=True, tags=["clean", "disk"])
    async def scrub(path: str) -> str:
        """Clean the disk."""
        called.append("scrub")
        return "clean"

    policy = Policy(rules=[Rule(verdict="ask", tool="sweep"), Rule(verdict="ask", tool="scrub")])
    async with workflow([sweep, scrub], ScriptedModel([plan(step("sweep", path="a")), "ok"]), policy=policy) as flow:
        paused = await flow.run("Clean")
        again = await flow.resume(paused.run_id, approvals=True)
        assert called == ["sweep"] and [r.tool_id for r in again.approvals] == ["scrub"]


async def test_leave_for_one_call_is_none_for_what_is_tried_after_it(workflow):
    @tool(idempotent=True, tags=["clean", "disk"])
    async def sweep(path: str) -> str:
        """Clean the disk."""
        raise RuntimeError("it is broken")

    @tool(idempotent=True, tags=["clean", "disk"])
    async def scrub(path: str, context: ToolExecutionContext) -> str:
        """Clean the disk."""
        asked.append(context.is_approved)
        return "clean"

    asked: list[bool] = []
    policy = Policy(rules=[Rule(verdict="ask", tool="sweep")])
    async with workflow([sweep, scrub], ScriptedModel([plan(step("sweep", path="a")), "ok"]), policy=policy) as flow:
        paused = await flow.run("Clean")
        await flow.resume(paused.run_id, approvals=True)
    assert asked == [False]


async def test_what_only_looks_is_not_replaced_by_what_changes_something(workflow):
    sent: list[str] = []

    @tool(read_only=True, tags=["mail", "message"])
    async def find_message(text: str) -> str:
        """Find a mail message."""
        return ""

    @tool(tags=["mail", "message"])
    async def send_message(text: str) -> str:
        """Send a mail message."""
        sent.append(text)
        return "sent"

    script = [plan(step("find_message", "find the mail message", text="salaries")), '{"steps": []}', "Nothing."]
    async with workflow([find_message, send_message], ScriptedModel(script)) as flow:
        await flow.run("Find the message")
    assert sent == []


async def test_the_arguments_that_were_shown_are_those_that_are_used(workflow):
    deleted: list[str] = []

    @tool(destructive=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        deleted.append(path)
        return "deleted"

    def fickle(request: Any) -> Any:
        filled.append("everything" if filled else "a.txt")
        return {"name": "delete", "arguments": {"path": filled[-1]}} if request.answer_schema else "ok"

    filled: list[str] = []
    async with workflow([delete], ScriptedModel([plan(step("delete", "delete it")), *[fickle] * 5])) as flow:
        paused = await flow.run("Delete it")
        await flow.resume(paused.run_id, approvals=True)
    assert [r.arguments for r in paused.approvals] == [{"path": "a.txt"}] and deleted == ["a.txt"]


async def test_a_tool_that_calls_others_by_name_is_no_way_round_a_policy(workflow):
    @tool(destructive=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        return f"deleted {path}"

    async with UnifiedToolLibrary() as library:
        library.register(delete, *make_meta_tools(library.index, library.engine))
        wish = step("call_tool", name="delete", arguments={"path": "a"})
        async with workflow(library, ScriptedModel([plan(wish), "ok"])) as flow:
            paused = await flow.run("Delete a")
            assert paused.state is AgentState.WAITING and paused.approvals[0].tool_id == "delete"
            done = await flow.resume(paused.run_id, approvals=True)
        assert done.results[0].output == "deleted a"


@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_a_failed_step_with_an_effect_is_not_answered_by_reasoning(workflow, is_idempotent):
    @tool(idempotent=is_idempotent)
    async def send(text: str) -> str:
        """Send a message."""
        raise RuntimeError("the line is dead")

    model = ScriptedModel([plan(step("send", "send it", text="hi")), '{"steps": []}', "Not sent."])
    async with workflow([send], model) as flow:
        done = await flow.run("Send it")
    assert [(r.success, [a.level for a in r.attempts]) for r in done.results] == [(False, ["name"])]


async def test_a_model_that_reasons_instead_of_a_read_only_tool_may_not_say_that_it_was_done(workflow):
    @tool(read_only=True)
    async def look_up(text: str) -> str:
        """Look something up."""
        raise RuntimeError("the line is dead")

    model = ScriptedModel([plan(step("look_up", "look it up", text="hi")), "I think so.", "Maybe."])
    async with workflow([look_up], model) as flow:
        await flow.run("Look it up")
    assert "never that it was done" in str(model.requests[1].messages[0]["content"])


@pytest.mark.parametrize("is_read_only", [False, True])
async def test_a_denied_step_fails_without_another_attempt(workflow, is_read_only):
    @tool(read_only=is_read_only, tags=["money"])
    async def pay(amount: float) -> str:
        """Pay."""
        return "paid"

    @tool(read_only=is_read_only, tags=["money"])
    async def transfer(amount: float) -> str:
        """Transfer money."""
        return "transferred"

    policy = Policy(rules=[Rule(verdict="deny", tool="pay", arguments={"amount": {"more_than": 1000}})])
    async with UnifiedToolLibrary(policy=policy) as library:
        library.register(pay, transfer)
        model = ScriptedModel([plan(step("pay", "pay it", amount=5000)), "I paid it.", "Not paid."])
        async with workflow(library, model) as flow:
            done = await flow.run("Pay it")
        result = done.results[0]
        assert (result.success, result.error_type, len(result.attempts)) == (False, "permission_denied", 1)


async def test_one_approval_for_two_steps_allows_one_and_the_other_is_asked_about_again(workflow):
    paid: list[float] = []

    @tool(destructive=True)
    async def pay(amount: float) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    steps = [step("pay", "pay", amount=5), {**step("pay", "pay again", amount=5), "id": 2}]
    async with workflow([pay], ScriptedModel([plan(*steps), "Paid twice."])) as flow:
        first = await flow.run("Pay twice")
        edited = Approval(allowed=True, arguments={"amount": 2})
        second = await flow.resume(first.run_id, approvals={r.call_id: edited for r in first.approvals})
        assert paid == [2] and second.state is AgentState.WAITING
        assert [r.arguments for r in second.approvals] == [{"amount": 5}]
        done = await flow.resume(first.run_id, approvals=True)
    assert paid == [2, 5] and [r.result for r in done.results] == ["paid", "paid"]


async def test_a_step_with_edited_arguments_that_fails_is_not_given_to_another_tool(workflow):
    paid: list[str] = []

    @tool(read_only=True, tags=["money"])
    async def pay(amount: float) -> str:
        """Pay."""
        paid.append(f"pay {amount:g}")
        raise RuntimeError("the bank is closed")

    @tool(read_only=True, tags=["money"])
    async def transfer(amount: float) -> str:
        """Transfer money."""
        paid.append(f"transfer {amount:g}")
        return "transferred"

    async with UnifiedToolLibrary(policy=Policy(rules=[Rule(verdict="ask", tool="pay")])) as library:
        library.register(pay, transfer)
        model = ScriptedModel([plan(step("pay", "pay it", amount=100)), '{"steps": []}', "Not paid."], loop=True)
        async with workflow(library, model) as flow:
            first = await flow.run("Pay it")
            edited = Approval(allowed=True, arguments={"amount": 7})
            await flow.resume(first.run_id, approvals={r.call_id: edited for r in first.approvals})
    assert paid == ["pay 7"]
