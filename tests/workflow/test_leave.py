"""What a person agreed to is what is done: no other tool, no other arguments; the same on both workflows."""

import json
from dataclasses import replace
from typing import Annotated, Any

from ferrule import ApprovalPolicy, NeedsApproval, Secret, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.agent import AgentState
from ferrule.describe import meta_tools
from ferrule.sources import tool_of
from ferrule.testing import ScriptedModel
from ferrule.workflow import SimpleWorkflow


def plan(*steps: dict[str, Any]) -> str:
    return json.dumps({"steps": list(steps)})


def step(tool_type: str, description: str = "clean the disk", **parameters: Any) -> dict[str, Any]:
    return {"id": 1, "description": description, "tool_type": tool_type, "parameters": parameters}


async def test_of_several_tools_under_one_name_the_strictest_word_counts(workflow):
    wiped: list[str] = []

    @tool(read_only=True)
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

    async with UnifiedToolLibrary() as library:
        library.register(sweep, scrub)
        policy = ApprovalPolicy(tools={"sweep": "ask", "scrub": "ask"})
        async with workflow(library, ScriptedModel([plan(step("sweep", path="a")), "ok"]), policy=policy) as flow:
            paused = await flow.run("Clean")
            again = await flow.resume(paused.run_id, approvals=True)
            assert called == ["sweep"] and [r.tool_id for r in again.approvals] == ["scrub"]


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

    async with UnifiedToolLibrary() as library:
        library.register(find_message, send_message)
        script = [plan(step("find_message", "find the mail message", text="salaries")), '{"steps": []}', "Nothing."]
        async with workflow(library, ScriptedModel(script)) as flow:
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
        return {"name": "delete", "arguments": {"path": filled[-1]}} if request.tool_choice == "required" else "ok"

    filled: list[str] = []
    async with UnifiedToolLibrary() as library:
        library.register(delete)
        async with workflow(library, ScriptedModel([plan(step("delete", "delete it")), *[fickle] * 5])) as flow:
            paused = await flow.run("Delete it")
            await flow.resume(paused.run_id, approvals=True)
        assert [r.arguments for r in paused.approvals] == [{"path": "a.txt"}] and deleted == ["a.txt"]


async def test_a_tool_that_asks_for_leave_by_itself_is_not_taken_for_broken(workflow):
    @tool
    async def pay(amount: int, context: ToolExecutionContext) -> str:
        """Pay."""
        if not context.approved:
            raise NeedsApproval("May I pay?")
        return f"paid {amount}"

    async with UnifiedToolLibrary() as library:
        library.register(pay)
        async with workflow(library, ScriptedModel([plan(step("pay", amount=5)), "I have paid."])) as flow:
            paused = await flow.run("Pay")
            assert [r.reason for r in paused.approvals] == ["May I pay?"]
            done = await flow.resume(paused.run_id, approvals=True)
        assert [r.result for r in done.results] == ["paid 5"]


async def test_leave_for_one_call_is_none_for_what_is_tried_after_it(workflow):
    @tool(idempotent=True, tags=["clean", "disk"])
    async def sweep(path: str) -> str:
        """Clean the disk."""
        raise RuntimeError("it is broken")

    @tool(idempotent=True, tags=["clean", "disk"])
    async def scrub(path: str, context: ToolExecutionContext) -> str:
        """Clean the disk."""
        asked.append(context.approved)
        return "clean"

    asked: list[bool] = []
    async with UnifiedToolLibrary() as library:
        library.register(sweep, scrub)
        policy = ApprovalPolicy(tools={"sweep": "ask"})
        async with workflow(library, ScriptedModel([plan(step("sweep", path="a")), "ok"]), policy=policy) as flow:
            paused = await flow.run("Clean")
            await flow.resume(paused.run_id, approvals=True)
        assert asked == [False]


async def test_a_tool_that_calls_others_by_name_is_no_way_round_a_policy(workflow):
    @tool(destructive=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        return f"deleted {path}"

    async with UnifiedToolLibrary() as library:
        library.register(delete, *meta_tools(library.index))
        wish = step("call_tool", name="delete", arguments={"path": "a"})
        async with workflow(library, ScriptedModel([plan(wish), "ok"])) as flow:
            paused = await flow.run("Delete a")
            assert paused.state is AgentState.WAITING and paused.approvals[0].arguments["name"] == "delete"
            done = await flow.resume(paused.run_id, approvals=True)
        assert done.results[0].output == "deleted a"


@tool(destructive=True)
async def unlock(door: str, combination: Annotated[str, Secret]) -> str:
    """Unlock a door."""
    return f"{door} {combination == 'open sesame'}"


async def test_secrets_of_a_plan_are_not_written_down_and_are_there_when_leave_is_given(workflow):
    async with UnifiedToolLibrary() as library:
        library.register(unlock)
        model = ScriptedModel([plan(step("unlock", "say open sesame", door="d", combination="open sesame")), "ok"])
        async with workflow(library, model) as flow:
            paused = await flow.run("Unlock it")
            assert "open sesame" not in str(await library.engine.store.notes(f"run:{paused.run_id}"))
            done = await flow.resume(paused.run_id, approvals=True)
        assert [r.result for r in done.results] == ["d True"]


async def test_a_call_whose_secret_is_lost_is_not_made_with_its_blank(tmp_path):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    async with UnifiedToolLibrary(store=url) as library:
        library.register(unlock)
        model = ScriptedModel([plan(step("unlock", door="d", combination="open sesame"))])
        paused = await SimpleWorkflow(library, model).run("Unlock it")
    async with UnifiedToolLibrary(store=url) as library:
        library.register(unlock)
        done = await SimpleWorkflow(library, ScriptedModel(["{}"])).resume(paused.run_id, approvals=True)
        assert not done.results[0].success and "secrets are not kept" in (done.results[0].error or "")
        assert await library.engine.query_call_records(tool_name="unlock") == []


async def test_a_tool_that_failed_is_not_said_to_have_worked(workflow):
    @tool
    async def send(text: str) -> str:
        """Send a message."""
        raise RuntimeError("the line is dead")

    async with UnifiedToolLibrary() as library:
        library.register(send)
        model = ScriptedModel([plan(step("send", "send it", text="hi")), "It was not sent.", "Not sent."])
        async with workflow(library, model) as flow:
            await flow.run("Send it")
        assert "never that it was done" in str(model.requests[1].messages[0]["content"])
