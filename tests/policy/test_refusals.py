"""What a person refused is not done, and the person is not asked about it again in the same run."""

from dataclasses import replace
from typing import Any

import pytest

from ferrule import Agent, Approval, Policy, Principal, Rule, SetupError, ToolExecutionContext, tool
from ferrule.kinds.function.tools import tool_of
from ferrule.testing import ScriptedModel
from tests.policy.payments import payments


async def test_a_refusal_and_an_approval_that_was_taken_back():
    async with payments() as it:
        refused = await it.approve(await it.pay(), Approval(allowed=False, reason="Too much."))
        result = await it.pay(approval_id=refused)
        assert (result.error_type, result.error) == ("permission_denied", "The user refused this call: Too much.")
        with pytest.raises(SetupError, match="it was refused by Eve: Too much"):
            await it.approvals.record_decision(refused, True)
        approval_id = await it.approve(await it.pay())
        await it.approvals.record_decision(approval_id, False)
        assert (await it.pay(approval_id=approval_id)).error_type == "permission_denied" and it.paid == []


async def test_a_call_that_was_refused_is_not_asked_about_again_in_the_same_run(store_url):
    async with payments(store_url) as it:
        refused = await it.approve(await it.pay(conversation_id="r1"), Approval(allowed=False, reason="Too much."))
        again = await it.pay(conversation_id="r1")
        assert again.error_type == "permission_denied"
        assert "has refused the same call before in this run" in str(again.error) and "Too much." in str(again.error)
        assert [r.approval_id for r in await it.approvals.list_requests()] == [refused]
        for other in ({"amount": 6, "conversation_id": "r1"}, {"conversation_id": "r2"}, {}):
            assert (await it.pay(**other)).error_type == "approval_required"
        assert it.paid == []


@pytest.mark.parametrize("kind", ["client", "token"])
async def test_what_was_refused_to_a_client_may_be_asked_for_again(kind: Any):
    async with payments() as it:
        client: dict[str, Any] = {"conversation_id": "session", "principal": Principal(kind=kind, name="mcp")}
        refused = await it.approve(await it.pay(**client), False)
        assert (await it.pay(approval_id=refused, **client)).error_type == "permission_denied"
        await it.approve(await it.pay(**client))
        assert (await it.pay(**client)).is_success and it.paid == [5]


async def test_the_latest_decision_about_a_call_of_a_run_counts(store_url):
    async with payments(store_url) as it:
        used = await it.approve(await it.pay(conversation_id="r1"))
        assert (await it.pay(conversation_id="r1")).is_success
        await it.approve(await it.pay(conversation_id="r1"), False)
        assert (await it.pay(conversation_id="r1")).error_type == "permission_denied"
        assert (await it.pay(conversation_id="r1", approval_id=used)).error_type == "permission_denied"
        assert it.paid == [5]


async def test_an_agent_that_repeats_a_refused_call_is_told_so_and_its_person_is_asked_once():
    asked: list[str] = []

    class Ann:
        def answer(self, question):
            return None

        def approve(self, request):
            asked.append(request.tool_id)
            return Approval(allowed=False, reason="Not today.")

    pay = {"name": "pay", "arguments": {"amount": 5}}
    async with payments() as it:
        answer = await Agent(it.library, ScriptedModel([pay, pay, pay, "sorry"]), person=Ann()).run("Pay")
        assert asked == ["pay"] and it.paid == [] and answer.is_finished
        assert answer.steps[0].text == "The user refused this call: Not today."
        assert all("before in this run" in step.text and "Not today." in step.text for step in answer.steps[1:])
        denied, known = "permission_denied", "known_failure"
        assert [step.error_type for step in answer.steps] == [denied, denied, known]


async def test_a_decision_that_came_too_late_changes_nothing():
    async with payments() as it:
        approval_id = await it.approve(await it.pay())
        late = Approval(allowed=True, arguments={"amount": 7, "to": "sk-proj-abcdefghijklmnopqrstuvwx1234567890"})
        with pytest.raises(SetupError, match="cannot be decided any more"):
            await it.approvals.record_decision(approval_id, late)
        assert (await it.pay(approval_id=approval_id)).text == "paid 5 to Ann"


async def test_what_a_person_refused_is_not_done_by_another_tool_of_the_name():
    done: list[str] = []

    @tool(name="send", destructive=True)
    async def send(text: str) -> str:
        """Send a message."""
        done.append("send")
        return text

    @tool(name="send")
    async def post(text: str) -> str:
        """Send a message."""
        done.append("post")
        return text

    rules = [Rule(verdict="allow", tool="send", arguments={"text": "hi"})]
    async with payments(policy=Policy(rules=rules)) as it:
        it.library.register(replace(tool_of(send), source="tools"), replace(tool_of(post), source="mcps"))
        context = ToolExecutionContext(principal=Principal(kind="agent"), conversation_id="run")
        asked = await it.library.execute_tool("send", None, {"text": "bye"}, context=context)
        await it.approve(asked, False)
        for approval_id in (asked.metadata["approval_id"], None):
            again = replace(context, approval_id=approval_id)
            refused = await it.library.execute_tool("send", None, {"text": "bye"}, context=again)
            assert refused.error_type == "permission_denied" and "refused" in refused.text
    assert done == []
