"""A run that goes on: from every note it was cut off at, once only, and with what it was waiting for."""

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Annotated, Any

import pytest

from ferrule import NeedsApproval, SetupError, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.agent import Agent, AgentState, Approval, RunLimits
from ferrule.agent.run import lock_run
from ferrule.core.messages import ToolCall
from ferrule.core.model import ModelReply
from ferrule.core.schema import Secret
from ferrule.policy.policy import Policy, Rule
from ferrule.store import ToolKnowledgeStore
from ferrule.testing import ScriptedModel
from tests.agent.calls import call
from tests.support.waiting import until


def script() -> list[Any]:
    broken = ToolCall(name="write", id="broken", error="The arguments cannot be read.", raw="")
    return [
        ModelReply(tool_calls=(ToolCall(name="write", arguments={"n": 1}, id="one"), broken)),
        [call("look", n=2), call("delete", n=3)],
        [call("ask_user", question="Go on?"), call("pay", n=4)],
        [call("write", n=5), call("write", n=6), call("write", n=99)],  # one more than a turn may make
        call("finish_task", message="All is done."),
    ]


class Ann:
    async def answer(self, question: Any) -> str:
        return f"yes to {question.text}"

    async def approve(self, request: Any) -> Approval:
        return Approval(allowed=True)


def make_agent(library: UnifiedToolLibrary, effects: Path, script: list[Any]) -> Agent:
    def note(n: int) -> str:
        with effects.open("a") as file:
            file.write(f"{n}\n")
        return f"did {n}"

    @tool
    async def write(n: int = 99) -> str:
        return note(n)

    @tool(read_only=True)
    async def look(n: int) -> str:
        return f"saw {n}"

    @tool(destructive=True)
    async def delete(n: int) -> str:
        return note(n)

    @tool
    async def pay(n: int, context: ToolExecutionContext) -> str:
        if not context.is_approved:
            raise NeedsApproval("that is a lot")
        return note(n)

    library.register(write, look, delete, pay)
    return Agent(library, ScriptedModel(script), person=Ann(), limits=RunLimits(calls_per_turn=2))


def run_and_die(url: str, effects: Path, lines: int) -> None:
    """Run the script in this process, and kill it when so many lines were written down."""

    async def story() -> None:
        async with UnifiedToolLibrary(store=url) as library:
            store, written = library.engine.store, 0
            append = store._append

            def append_and_die(line: bytes) -> None:
                nonlocal written
                append(line)
                written += 1
                if written == lines:
                    os.kill(os.getpid(), signal.SIGKILL)

            store._append = append_and_die
            await make_agent(library, effects, script()).run("Do it all", run_id="r")

    asyncio.run(story())


async def go_on(url: str, effects: Path) -> None:
    """Whatever was written down before the end, the run comes to the same end and nothing is done twice."""
    async with UnifiedToolLibrary(store=url) as library:
        history = await Agent(library, ScriptedModel(["x"])).history("r")
        said = sum(message["role"] == "assistant" for message in history)
        answer = await make_agent(library, effects, script()[said:]).resume("r")
    done = effects.read_text().split()
    interrupted = [str(step.arguments["n"]) for step in answer.steps if step.error_type == "interrupted"]
    assert (answer.text, answer.state) == ("All is done.", AgentState.FINISHED)
    assert len(done) == len(set(done)) and {*done, *interrupted} == {"1", "3", "4", "5", "6"}
    asked = [c["id"] for m in answer.messages for c in m.get("tool_calls") or ()]
    assert [m["tool_call_id"] for m in answer.messages if m["role"] == "tool"] == asked and len(asked) == 10
    texts = {m["tool_call_id"]: m["content"] for m in answer.messages if m["role"] == "tool"}
    assert texts["broken"] == "The arguments cannot be read." and "yes to Go on?" in texts.values()


@pytest.mark.integration
@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.long)])
def test_a_run_goes_on_from_every_line_it_was_cut_off_at(tmp_path: Path, step: int):
    fork = multiprocessing.get_context("fork")
    for lines in range(1, 200, step):
        folder = tmp_path / str(lines)
        folder.mkdir()
        url, effects = f"sqlite:///{folder / 'calls.db'}", folder / "effects"
        process = fork.Process(target=run_and_die, args=(url, effects, lines))
        process.start()
        process.join()
        asyncio.run(go_on(url, effects))
        if process.exitcode == 0:
            break
    assert lines > 25


async def test_a_run_goes_on_in_one_process_at_a_time(tmp_path):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    async with ToolKnowledgeStore(url) as store, ToolKnowledgeStore(url) as that_of_another_process:
        async with lock_run(store, "r"):
            async with lock_run(that_of_another_process, "s"):
                pass
            with pytest.raises(SetupError, match="'r' is in progress, here or in another process"):
                await lock_run(that_of_another_process, "r").__aenter__()
        async with lock_run(that_of_another_process, "r"):
            pass
    assert list((tmp_path / "calls.db.locks").iterdir()) == []


async def test_approvals_given_twice_at_once_make_one_call():
    made = []

    @tool(destructive=True)
    async def delete() -> str:
        made.append(1)
        await until(lambda: any(task.done() for task in both))
        return "gone"

    agent = Agent([delete], ScriptedModel([call("delete"), "ok", "ok"]))
    first = await agent.run("Go")
    both = [asyncio.create_task(agent.resume(first.run_id, approvals=True)) for _ in range(2)]
    results = await asyncio.gather(*both, return_exceptions=True)
    assert made == [1] and sum(isinstance(one, SetupError) for one in results) == 1


async def test_secrets_that_only_the_tool_declares_are_not_written_down_either():
    seen = []

    @tool
    async def unlock(code: Annotated[str, Secret]) -> str:
        seen.append(code)
        raise ValueError(f"{code} is wrong")

    async with UnifiedToolLibrary() as library:
        library.register(unlock)
        model = ScriptedModel([call("unlock", code="blue-horse"), "I tried blue-horse."])
        events: list[Any] = []
        answer = await Agent(library, model).run("Unlock", on_event=events.append)
        assert seen == ["blue-horse"] and "blue-horse" in answer.text
        assert "blue-horse" not in str(await library.engine.store.read_entries(f"run:{answer.run_id}"))
        assert "blue-horse" not in str(await library.engine.store.read_entries("failures"))
        assert "blue-horse" not in str(events[1])


async def test_a_run_that_was_cut_off_while_it_asked_waits_again():
    async with UnifiedToolLibrary() as library:
        ask = [call("ask_user", question="Which?")]
        first = await Agent(library, ScriptedModel([ask])).run("Go", run_id="r")
        assert first.state is AgentState.WAITING
        notes = await library.engine.store.read_entries("run:r")
        last = max(notes)
        assert notes[last]["kind"] == "wait" and await library.engine.store.delete_entries("run:r", [last]) == 1
        agent = Agent(library, ScriptedModel(["fine"]))
        again = await agent.resume("r")
        assert again.state is AgentState.WAITING and again.questions[0].text == "Which?"
        assert (await agent.resume("r", "that")).text == "fine"


async def test_what_was_refused_is_not_held_against_a_call_after_a_restart():
    made: list[int] = []

    @tool
    async def write(n: int) -> str:
        made.append(n)
        return "written"

    ask = call("ask_user", question="?")
    limits = RunLimits(calls_per_turn=1)
    policy = Policy(rules=[Rule(verdict="ask", tool="write")])
    async with UnifiedToolLibrary() as library:
        library.register(write)
        agent = Agent(library, ScriptedModel([[ask, call("write", n=1)]]), limits=limits)
        first = await agent.run("Go")
        agent = Agent(library, ScriptedModel([call("write", n=1), "x"]), policy=policy)
        second = await agent.resume(first.run_id, "yes")
        third = await agent.resume(second.run_id, approvals=False)
        assert third.is_finished and made == []
        agent = Agent(library, ScriptedModel([call("write", n=1), call("write", n=1), "ok"]), policy=policy)
        fourth = await agent.run("Go", history=third.messages)
        fifth = await agent.resume(fourth.run_id, approvals=False)
        assert fifth.is_finished and made == []  # in this run nobody is asked about the same call again
        agent = Agent(library, ScriptedModel([call("write", n=1), "ok"]), policy=policy)
        sixth = await agent.run("Go", history=fifth.messages)
        seventh = await agent.resume(sixth.run_id, approvals=True)
        assert made == [1] and seventh.is_finished


async def test_what_was_learned_elsewhere_is_not_counted_twice_by_going_on():
    @tool(read_only=True)
    async def read(path: str) -> str:
        raise FileNotFoundError(f"{path} not found")

    async with UnifiedToolLibrary() as library:
        library.register(read)
        model = ScriptedModel([call("read", path="a.txt"), call("ask_user", question="?"), "ok"])
        agent = Agent(library, model)
        first = await agent.run("Go")
        for _ in range(3):
            await agent.resume(first.run_id)
        (pattern,) = library.failures.patterns()
        assert pattern.count == 1
