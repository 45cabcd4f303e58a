"""An approval covers one call: not the calls that its tool makes, and no later call through a cache."""

from dataclasses import replace
from typing import Any

import pytest

from ferrule import NeedsApproval, Policy, Principal, Rule, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.kinds.function.tools import tool_of
from ferrule.memory import RunMemory
from tests.policy.payments import Salaries, payments


async def test_an_approval_does_not_cover_the_calls_of_the_tool():
    async with payments(policy=Policy(rules=[Rule(verdict="ask", tool="tidy")])) as it:

        @tool
        async def strict(context: ToolExecutionContext) -> str:
            """Ask for approval itself."""
            if not context.is_approved:
                raise NeedsApproval("May I?")
            return "done"

        @tool
        async def tidy(context: ToolExecutionContext) -> str:
            """Tidy up."""
            return f"{context.is_approved} {(await context.call_tool('strict')).error_type}"

        it.library.register(strict, tidy)
        approval_id = await it.approve(await it.library.execute_tool("tidy"))
        context = ToolExecutionContext(approval_id=approval_id)
        assert (await it.library.execute_tool("tidy", context=context)).text == "True approval_required"


async def test_a_call_that_a_tool_makes_finds_its_own_approval_in_the_run():
    async with payments() as it:

        @tool
        async def shop(context: ToolExecutionContext) -> str:
            """Buy something."""
            result = await context.call_tool("pay", {"amount": 5})
            return result.text if result.is_success else str(result.metadata["approval_id"])

        it.library.register(shop)
        context = ToolExecutionContext(conversation_id="run", principal=Principal(kind="agent", name="a"))
        asked = await it.library.execute_tool("shop", context=context)
        await it.approvals.record_decision(asked.text, True)
        assert (await it.library.execute_tool("shop", context=context)).text == "paid 5 to Ann"
        assert len((await it.library.execute_tool("shop", context=context)).text) == 16 and it.paid == [5]


async def test_an_approval_of_a_call_by_the_model_is_not_one_by_a_tool():
    async with payments() as it:

        @tool
        async def shop(context: ToolExecutionContext) -> str:
            """Buy something."""
            return (await context.call_tool("pay", {"amount": 5})).error_type or "paid"

        it.library.register(shop)
        context: dict[str, Any] = {"conversation_id": "run", "principal": Principal(kind="agent", name="a")}
        await it.approve(await it.pay(**context))
        assert (
            await it.library.execute_tool("shop", context=ToolExecutionContext(**context))
        ).text == "approval_required"
        assert (await it.pay(**context)).is_success and it.paid == [5]


async def test_an_approval_is_for_one_of_several_tools_with_a_name():
    done: list[str] = []

    def make(source: str, *, destructive: bool, fails: bool) -> Any:
        @tool(name="tidy", destructive=destructive)
        async def tidy(path: str) -> str:
            """Tidy up."""
            if fails:
                raise ConnectionError("no connection")
            done.append(source)
            return source

        return replace(tool_of(tidy), source=source)

    async with payments(policy=Policy()) as it:
        it.library.engine.registry.add(
            make("tools", destructive=False, fails=True), make("mcps", destructive=True, fails=False)
        )
        context = ToolExecutionContext(principal=Principal(kind="agent"))
        asked = await it.library.execute_tool("tidy", None, {"path": "x"}, context=context)
        context.approval_id = await it.approve(asked)
        assert (await it.library.execute_tool("tidy", None, {"path": "x"}, context=context)).text == "mcps"
        assert done == ["mcps"]


async def test_a_call_that_needs_no_approval_ignores_one():
    async with payments(policy=Policy()) as it:
        assert (await it.pay(approval_id="of something else")).is_success
        assert await it.approvals.list_requests() == []


async def test_a_result_from_the_cache_uses_up_its_approval():
    @tool(read_only=True, cacheable=True)
    async def look(path: str) -> str:
        """Look."""
        return path

    async with payments(policy=Policy(rules=[Rule(verdict="ask", tool="look")])) as it:
        it.library.register(look)
        outcomes = []
        for _ in range(2):
            asked = await it.library.execute_tool("look", None, {"path": "x"})
            context = ToolExecutionContext(approval_id=await it.approve(asked))
            for _ in range(2):
                outcomes.append(
                    (await it.library.execute_tool("look", None, {"path": "x"}, context=context)).is_success
                )
        assert outcomes == [True, False, True, False]


@pytest.mark.parametrize("has_id", [True, False])
@pytest.mark.parametrize("edits", [{}, {"person": "Bob"}])
async def test_what_a_tool_does_with_the_approval_it_asked_for_is_not_cached(has_id: bool, edits: dict[str, str]):
    async with UnifiedToolLibrary(store=None) as library:
        it = Salaries(library)
        context = {} if has_id else {"conversation_id": "r1"}
        approval_id = await it.approve(await it.call("Ann", **context), **edits)
        made = {"approval_id": approval_id} if has_id else context
        assert (await it.call("Ann", **made)).text == f"salary of {edits.get('person', 'Ann')}"
        for person in ("Ann", "Bob"):
            assert (await it.call(person, **context)).error_type == "approval_required"
        assert len(it.shown) == 1


@pytest.mark.parametrize("policy", [None, Policy(rules=[Rule(verdict="ask", tool="salary")])])
async def test_a_result_made_with_a_nested_approval_is_not_cached(policy: Policy | None):
    async with UnifiedToolLibrary(store=None, policy=policy) as library:
        it, context = Salaries(library), ToolExecutionContext(conversation_id="r1")
        assert (await library.execute_tool("report", None, {}, context=context)).text == "nothing yet"
        [request] = await library.engine.approvals.list_requests()
        await library.engine.approvals.record_decision(request.approval_id, True)
        texts = [(await library.execute_tool("report", None, {}, context=context)).text for _ in range(2)]
        assert texts == ["salary of Ann", "nothing yet"] and it.shown == ["Ann"]


@pytest.mark.parametrize("rules", [[], [Rule(verdict="ask", tool="salary", arguments={"person": "Boss"})]])
async def test_a_result_that_a_tool_gave_with_an_approval_is_given_to_no_other_call(rules: list[Rule]):
    async with UnifiedToolLibrary(policy=Policy(rules=rules)) as library:
        salaries = Salaries(library)
        approval_id = await salaries.approve(await salaries.call("Ann"))
        assert (await salaries.call("Ann", approval_id=approval_id)).is_success
        assert (await salaries.call("Ann")).error_type == "approval_required"


async def test_results_that_were_approved_are_not_reused_by_the_memory_of_a_run():
    async with UnifiedToolLibrary(policy=Policy()) as library:
        salaries, memory = Salaries(library), RunMemory()
        for _ in range(3):
            approval_id = await salaries.approve(await salaries.call("Ann", memory=memory, conversation_id="r"))
            memory.clear_failures()
            result = await salaries.call("Ann", approval_id=approval_id, memory=memory, conversation_id="r")
            assert result.is_success
        assert (await salaries.call("Ann", memory=memory, conversation_id="r")).error_type == "approval_required"
