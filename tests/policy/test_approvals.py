"""An approval is for one call of one caller, of one version of a tool, with one set of arguments; and is used once."""

import asyncio
from typing import Any

import pytest

from ferrule import Agent, Policy, Principal, Rule, SetupError, ToolEngineConfig, ToolExecutionContext, tool
from ferrule.agent import AgentState
from ferrule.engine.resilience import BreakerConfig
from ferrule.errors import StoreError
from ferrule.policy.approvals import Approval, Approvals, CallBinding
from ferrule.store import ToolCallRecord, ToolKnowledgeStore
from ferrule.testing import ScriptedModel
from tests.policy.payments import payments
from tests.support.approving import execute_approved
from tests.support.engines import library_with
from tests.support.waiting import until


async def test_an_approval_is_used_once(store_url):
    async with payments(store_url) as it:
        asked = await it.pay()
        assert "Money." in str(asked.error) and it.paid == []
        approval_id = await it.approve(asked)
        paid = await it.pay(approval_id=approval_id)
        assert paid.is_success and paid.metadata["approval_id"] == approval_id and it.paid == [5]
        again = await it.pay(approval_id=approval_id)
        assert again.error_type == "approval_required" and "used already" in str(again.error) and it.paid == [5]
        request = await it.approvals.get(approval_id)
        assert (request.state, request.used_by, request.decided_by) == ("used", paid.call_id, "Eve")


async def test_of_many_calls_with_one_approval_one_is_made(store_url):
    async with payments(store_url) as it:
        approval_id = await it.approve(await it.pay())
        results = await asyncio.gather(*(it.pay(approval_id=approval_id) for _ in range(20)))
        assert it.paid == [5] and sum(result.is_success for result in results) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"amount": 6},
        {"principal": Principal(kind="agent", name="other")},
        {"principal": Principal(tenant="other")},
        {"conversation_id": "other"},
    ],
)
async def test_an_approval_is_for_nothing_else(other: dict[str, Any]):
    async with payments() as it:
        approval_id = await it.approve(await it.pay())
        result = await it.pay(approval_id=approval_id, **other)
        assert result.error_type == "approval_required" and it.paid == []
        assert result.metadata["approval_id"] != approval_id
        assert (await it.pay(approval_id=approval_id)).is_success


async def test_an_agent_asks_again_about_a_tool_that_was_replaced():
    async with payments() as it:
        agent = Agent(it.library, ScriptedModel([{"name": "pay", "arguments": {"amount": 5}}, "done"]))
        first = await agent.run("Pay")
        it.library.engine.unregister("pay")
        it.register(factor=100)
        second = await agent.resume(first.run_id, approvals=True)
        assert second.state is AgentState.WAITING and it.paid == []
        assert (await agent.resume(first.run_id, approvals=True)).is_finished and it.paid == [500]


async def test_requests_of_a_run_are_listed_whatever_its_id_is(store_url):
    async with payments(store_url) as it:
        runs = ("r1", "r\0", "r\ud800", "r\ufdd0")
        ids = [(await it.pay(conversation_id=run)).metadata["approval_id"] for run in runs]
        listed = [await it.approvals.list_requests(run_id=run) for run in runs]
        assert [[request.approval_id for request in requests] for requests in listed] == [[each] for each in ids]


async def test_one_call_that_many_ask_for_at_once_has_one_request(store_url):
    async with payments(store_url) as first, payments(store_url) as other:
        both = (first, first if store_url is None else other)
        results = await asyncio.gather(*(each.pay(conversation_id="r1") for _ in range(10) for each in both))
        assert {result.error_type for result in results} == {"approval_required"}
        assert len({result.metadata["approval_id"] for result in results}) == 1


async def test_requests_and_approvals_expire():
    now = 1_000.0
    async with ToolKnowledgeStore() as store, payments() as it:
        binding = (await it.approvals.get((await it.pay()).metadata["approval_id"])).to_dict()
        names = ("principal", "tenant", "run_id", "tool_id", "action", "fingerprint", "digest")
        approvals = Approvals(store, expiry=60, clock=lambda: now)
        bound = CallBinding(**{name: binding[name] for name in names})
        request = await approvals.request(bound, call_id="", arguments={}, reason="")
        await approvals.record_decision(request.approval_id, True)
        now += 61
        assert (await approvals.get(request.approval_id)).state == "expired"
        assert await approvals.find_decision(bound, request.approval_id) is None
        assert not await approvals.use(request, bound, ToolCallRecord(store.new_record_id(), "pay"))
        with pytest.raises(SetupError, match="it has expired"):
            await approvals.record_decision(request.approval_id, True)
        assert [r.approval_id for r in await approvals.list_requests(state="expired")] == [request.approval_id]


async def test_a_decision_made_elsewhere_continues_the_run(tmp_path):
    url = f"sqlite:///{tmp_path}/calls.db"
    async with payments(url) as it:
        first = await Agent(it.library, ScriptedModel([{"name": "pay", "arguments": {"amount": 5}}])).run("Pay")
    async with ToolKnowledgeStore(url) as store:
        (request,) = await Approvals(store).list_requests(state="pending")
        assert (request.tool_id, request.run_id, request.reason) == ("pay", first.run_id, "Money.")
        await Approvals(store).record_decision(request.approval_id, True)
    async with payments(url) as it:
        assert (await Agent(it.library, ScriptedModel(["done"])).resume(first.run_id)).is_finished and it.paid == [5]


async def test_a_person_may_answer_with_a_bool_and_without_await():
    class Ann:
        def answer(self, question):
            return "yes"

        def approve(self, request):
            return request.arguments["amount"] < 10

    async with payments() as it:
        calls = [{"name": "pay", "arguments": {"amount": amount}} for amount in (5, 50)]
        answer = await Agent(it.library, ScriptedModel([calls, "done"]), person=Ann()).run("Pay")
        assert answer.is_finished and it.paid == [5]


@pytest.mark.parametrize("wrong", [{"allowed": "no"}, {"allowed": 1}, {"allowed": True, "arguments": "amount=5"}])
def test_a_decision_must_make_sense(wrong: dict[str, Any]):
    with pytest.raises(SetupError):
        Approval(**wrong)


async def test_without_the_store_nothing_that_needs_approval_is_done(tmp_path, monkeypatch):
    async with payments(f"sqlite:///{tmp_path}/calls.db") as it:
        approval_id = await it.approve(await it.pay())

        def fail(*_: object, **__: object) -> None:
            raise StoreError("the disk is gone")

        monkeypatch.setattr(it.library.engine.store._database, "read", fail)
        result = await it.pay(approval_id=approval_id)
        assert result.error_type == "permission_denied" and "the disk is gone" in str(result.error) and it.paid == []


async def test_an_approved_call_may_have_any_texts(store_url):
    odd = "a\0b\ud800c\ufdd0"
    async with payments(store_url) as it:
        context = ToolExecutionContext(conversation_id=odd, caller_id=odd)
        arguments = {"amount": 5, "to": odd}
        await it.approve(await it.library.execute_tool("pay", None, arguments, context=context))
        paid = await it.library.execute_tool("pay", None, arguments, context=context)
        record = await it.library.engine.store.get_call_record(paid.call_id)
    assert paid.is_success and it.paid == [5] and record is not None
    assert (record.params, record.conversation_id, record.status) == (arguments, odd, "success")


async def test_an_approval_stays_when_the_start_of_its_call_cannot_be_recorded(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    async with payments(f"sqlite:///{tmp_path}/calls.db") as it:
        approval_id = await it.approve(await it.pay())
        with monkeypatch.context() as patch:
            patch.setattr(it.library.engine.store._database, "insert_start", fail)
            refused = await it.pay(approval_id=approval_id)
        assert refused.error_type == "permission_denied" and "the disk is full" in str(refused.error)
        assert it.paid == [] and (await it.approvals.get(approval_id)).state == "approved"
        assert (await it.pay(approval_id=approval_id)).is_success


async def test_a_call_that_cannot_use_its_approval_does_not_keep_a_tool_that_recovers_out_of_use(monkeypatch):
    def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    answers: list[ConnectionError | str] = [ConnectionError("gone"), "sent"]

    @tool
    async def send(text: str) -> str:
        """Send a message."""
        answer = answers.pop(0)
        if isinstance(answer, ConnectionError):
            raise answer
        return answer

    config = ToolEngineConfig(breaker=BreakerConfig(threshold=1, recovery=0.001))
    policy = Policy(rules=[Rule(verdict="ask", tool="send")])
    async with library_with(send, config=config, policy=policy) as library:
        store = library.engine.store
        assert "gone" in str((await execute_approved(library, "send", {"text": "hi"})).error)
        await until(lambda: library.engine.circuit_state(library.engine.registry.find_tool("send")) == "half_open")
        with monkeypatch.context() as patch:
            patch.setattr(store._database, "insert_start", fail)
            assert (await execute_approved(library, "send", {"text": "hi"})).error_type == "permission_denied"
        assert (await execute_approved(library, "send", {"text": "hello"})).text == "sent"
