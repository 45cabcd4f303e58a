"""Whatever goes wrong around a run, its calls are answered."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent import Agent, AgentState, Approval, RunLimits
from ferrule.agent.formats import HistoryCompaction
from ferrule.core.messages import ToolCall, assistant_message, system_message, tool_message, user_message
from ferrule.core.model import ModelReply
from ferrule.policy.policy import Policy, Rule
from ferrule.testing import ScriptedModel
from tests.agent.calls import call
from tests.support.virtual_time import in_virtual_time, loop_time


@tool(destructive=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


async def test_a_person_who_cannot_be_asked_cuts_off_nothing():
    done = []

    @tool
    async def write() -> str:
        await asyncio.sleep(0.02)  # so that the person is asked meanwhile
        done.append(1)
        return "written"

    class Gone:
        async def answer(self, question: Any) -> str:
            raise EOFError("nobody there")

        async def approve(self, request: Any) -> Approval:
            raise EOFError("nobody there")

    calls = [call("write"), call("delete", path="a"), call("ask_user", question="?")]
    answer = await Agent([write, delete], ScriptedModel([calls]), person=Gone()).run("Go")
    assert done == [1] and answer.state is AgentState.WAITING
    assert len(answer.approvals) == len(answer.questions) == len(answer.steps) == 1


async def test_a_face_that_fails_does_not_take_the_run_with_it():
    def broken(event: Any) -> None:
        raise OSError("the page is closed")

    calls = [call("delete", path="a"), call("delete", path="b")]
    policy = Policy(default="allow")
    answer = await Agent([delete], ScriptedModel([calls, "done"]), policy=policy).run("Go", on_event=broken)
    assert answer.text == "done" and all(step.is_success for step in answer.steps)


async def test_a_person_is_asked_one_thing_at_a_time():
    asked, most = 0, 0

    class Ann:
        async def answer(self, question: Any) -> str:
            await self._think()
            return "yes"

        async def approve(self, request: Any) -> Approval:
            await self._think()
            return Approval(allowed=True)

        async def _think(self) -> None:
            nonlocal asked, most
            asked += 1
            most = max(most, asked)
            await asyncio.sleep(0.01)  # so that others could be asked meanwhile
            asked -= 1

    calls = [call("delete", path="a"), call("ask_user", question="1"), call("ask_user", question="2")]
    answer = await Agent([delete], ScriptedModel([calls, "done"]), person=Ann()).run("Go")
    assert answer.is_finished and most == 1


async def test_a_model_that_decides_is_shown_what_the_user_said():
    ask = json.dumps({"action_type": "execute_tool", "tool_id": "ask_user", "parameters": {"question": "Which city?"}})
    done = json.dumps({"action_type": "complete", "reasoning": "ok"})
    model = ScriptedModel([ask, done])
    agent = Agent([], model, style="decisions")
    first = await agent.run("Weather?")
    await agent.resume(first.run_id, "Springfield")
    assert "Springfield" in str(model.requests[1].messages)


async def test_calls_that_were_never_made_do_not_bring_an_empty_message():
    turns = [call("delete", path=str(n)) for n in range(4)]
    policy = Policy(rules=[Rule(verdict="deny", tool="delete")])
    answer = await Agent([delete], ScriptedModel([*turns, "ok"]), policy=policy).run("Go")
    assert all(message["content"] != "" for message in answer.messages)


async def test_ids_are_unique_beside_those_of_the_history_and_of_the_model():
    taken = tuple(ToolCall(name="delete", arguments={"path": "a"}, id=name) for name in ("call_1_2", ""))
    async with UnifiedToolLibrary() as library:
        library.register(delete)
        agent = Agent(library, ScriptedModel([ModelReply(tool_calls=taken), "a"]), policy=Policy(default="allow"))
        first = await agent.run("Go")
        agent = Agent(library, ScriptedModel([ModelReply(tool_calls=taken), "b"]), policy=Policy(default="allow"))
        second = await agent.run("Again", history=first.messages)
        asked = [c["id"] for m in second.messages for c in m.get("tool_calls") or ()]
        assert len(asked) == len(set(asked)) == 4
        assert [m["tool_call_id"] for m in second.messages if m["role"] == "tool"] == asked


@in_virtual_time
async def test_a_slow_tool_is_stopped_by_the_limit_on_time(monkeypatch):
    monkeypatch.setattr("ferrule.agent.budget.time", SimpleNamespace(monotonic=loop_time))

    @tool(timeout=60)
    async def slow() -> str:
        await asyncio.Event().wait()
        return "done"

    agent = Agent([slow], ScriptedModel([call("slow")], loop=True), limits=RunLimits(seconds=2))
    answer = await agent.run("Go")
    assert answer.state is AgentState.STOPPED and answer.steps[0].error_type == "timeout"


async def test_an_agent_held_to_some_tools_hears_nothing_of_the_others():
    @tool(tags=["pages"])
    async def scrape(url: str) -> str:
        """Read a page."""
        raise RuntimeError("broken")

    @tool(tags=["pages"])
    async def forbidden_scrape(url: str) -> str:
        """Read a page."""
        return "read"

    async with UnifiedToolLibrary() as library:
        library.register(scrape, forbidden_scrape)
        model = ScriptedModel([call("scrape", url=f"https://{n}.test") for n in range(5)] + ["no"])
        answer = await Agent(library, model, tools=["scrape"]).run("Read a page")
        assert "forbidden_scrape" not in str(answer.messages)
        decide = ScriptedModel([json.dumps({"action_type": "complete", "reasoning": "no"})])
        await Agent(library, decide, tools=["scrape"], style="decisions").run("Read a page")
        assert "forbidden_scrape" not in str(decide.requests)


def test_the_task_stays_though_the_agent_itself_speaks_after_it():
    messages = [system_message("be good"), user_message("hello"), assistant_message("hi"), user_message("the task")]
    view = HistoryCompaction(600)
    for number in range(30):
        asked = ToolCall(name="read", arguments={"n": number}, id=f"c{number}")
        messages += [assistant_message("", [asked]), tool_message(asked, "x" * 400)]
        if number % 3 == 2:
            messages.append(user_message("3 steps so far, 0 succeeded, 3 failed."))
        assert user_message("the task") in view.visible_messages(messages, "the task")
    assert len(view.visible_messages(messages, "the task")) < 12
