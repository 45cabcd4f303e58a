"""A run goes on after its process was killed: nothing lost, nothing done twice."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from ferrule import Orchestrator, UnifiedToolLibrary
from ferrule.agent import Agent, AgentAnswer, AgentState
from ferrule.agent.run import Run
from ferrule.errors import MissingExtra, RunInProgress
from ferrule.policy.policy import Policy, Rule
from ferrule.store import ToolKnowledgeStore
from ferrule.testing import ScriptedModel
from tests.agent.killed_run import make_tools, script
from tests.support.processes import ROOT, PythonProcess, run_python


def killed_at(url: str, effects: Path, moment: str) -> None:
    """Run the script in a process of its own that is killed at a moment of its choosing."""
    done = run_python("-m", "tests.agent.killed_run", url, str(effects), moment, cwd=ROOT)
    assert done.returncode == -9, done.stderr


def start(url: str, effects: Path, moment: str, state: Path) -> PythonProcess:
    """A process that runs the script on a machine of its own: with another folder for its journal."""
    arguments = ("-m", "tests.agent.killed_run", url, str(effects), moment)
    with open(os.devnull, "r+b") as nothing:
        streams = {"stdin": nothing, "stdout": nothing, "stderr": nothing}
        return PythonProcess(*arguments, cwd=ROOT, env={**os.environ, "XDG_STATE_HOME": str(state)}, **streams)


async def resume_when_free(agent: Agent, run_id: str) -> AgentAnswer:
    """Resume a run as soon as the database has noticed that the owner of its lock is gone."""
    while True:
        try:
            return await agent.resume(run_id)
        except RunInProgress:
            await asyncio.sleep(0.05)  # until the lock is free


SOME_MOMENTS = ["model:1", "model:3", "before:2", "after:1", "after:3"]
OTHER_MOMENTS = {f"{what}:{n}" for what in ("model", "before", "after") for n in range(1, 5)} - {*SOME_MOMENTS}


@pytest.mark.integration
@pytest.mark.parametrize(
    "moment", [*SOME_MOMENTS, *(pytest.param(other, marks=pytest.mark.long) for other in sorted(OTHER_MOMENTS))]
)
async def test_a_run_killed_at_any_moment_goes_on(tmp_path, moment):
    url, effects = f"sqlite:///{tmp_path / 'calls.db'}", tmp_path / "effects"
    await asyncio.to_thread(killed_at, url, effects, moment)
    before = effects.read_text().split() if effects.exists() else []
    async with UnifiedToolLibrary(store=url) as library:
        library.register(*make_tools(effects))
        agent = Agent(library, ScriptedModel(["x"]))
        [stored] = await agent.runs()
        run_id = stored.run_id
        history = await agent.history(run_id)
        turns = sum(message["role"] == "assistant" for message in history)
        answer = await Agent(library, ScriptedModel(script()[turns:])).resume(run_id)
        assert answer.text == "All four are written." and answer.is_finished
        assert answer.messages[: len(history)] == history or moment.startswith(("before", "after"))
        after = effects.read_text().split()
        assert after[: len(before)] == before
        interrupted = [step for step in answer.steps if "interrupted" in step.text]
        assert sorted(after) == sorted(
            {"1", "2", "3", "4"} - {str(s.arguments["n"]) for s in interrupted} | set(before)
        )
        assert len(after) == len(set(after))
        answered = [m["tool_call_id"] for m in answer.messages if m["role"] == "tool"]
        asked = [c["id"] for m in answer.messages for c in m.get("tool_calls") or ()]
        assert answered == asked


@pytest.mark.integration
async def test_a_run_continues_on_another_machine_than_the_one_that_died(postgres_url, tmp_path):
    """Its journal is gone with it, so nobody can say that the call in progress has ended."""
    effects = tmp_path / "effects"
    store = ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "here")
    async with UnifiedToolLibrary(store=store) as library:
        library.register(*make_tools(effects))
        process = start(postgres_url, effects, "wait:3", state=tmp_path / "there")
        while [r.params["n"] for r in await store.query_call_records() if r.status == "running"] != [3]:
            await asyncio.sleep(0.05)  # until the call has its record
        process.kill()
        await asyncio.to_thread(process.wait)
        [stored] = await Agent(library, ScriptedModel(["x"])).runs()
        run_id = stored.run_id
        answer = await resume_when_free(Agent(library, ScriptedModel(script()[2:])), run_id)
        assert answer.text == "All four are written."
        assert effects.read_text().split() == ["1", "2", "3", "4"]
        assert [step.arguments["n"] for step in answer.steps if "interrupted" in step.text] == [3]


async def test_what_a_run_has_learned_is_known_after_a_restart(tmp_path):
    url, effects = f"sqlite:///{tmp_path / 'calls.db'}", tmp_path / "effects"
    fail, write = ({"name": name, "arguments": {"n": 7}} for name in ("broken", "write"))
    policy = Policy(rules=[Rule(verdict="ask", tool="write")])
    async with UnifiedToolLibrary(store=url) as library:
        library.register(*make_tools(effects))
        first = await Agent(library, ScriptedModel([fail, write]), policy=policy).run("Go")
    async with UnifiedToolLibrary(store=url) as library:
        library.register(*make_tools(effects))
        agent = Agent(library, ScriptedModel([fail, "done"]), policy=policy)
        answer = await agent.resume(first.run_id, approvals=False)
        assert [step.error_type for step in answer.steps] == ["execution_error", "permission_denied", "known_failure"]
        assert effects.read_text().split() == ["broken"]


class FailingModel(ScriptedModel):
    """Raises something that no model should raise, or waits until it is cancelled."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__(["x"])
        self._error, self.is_asked = error, asyncio.Event()

    async def generate(self, request: Any, on_text: Any = None) -> Any:
        self.is_asked.set()
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()


@pytest.mark.parametrize("strategy", ["loop", "plan", "direct"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MissingExtra("openai", "openai"), 'openai is not installed. Install it with: pip install "ferrule[openai]"'),
        (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug"),
        (None, "it was cancelled"),
    ],
)
async def test_a_run_that_ends_by_an_error_is_interrupted_and_can_be_resumed(tmp_path, strategy, error, reason):
    async with UnifiedToolLibrary(store=str(tmp_path / "calls.db")) as library:
        model = FailingModel(error)
        question = asyncio.create_task(answer_or_fail(Orchestrator(library, model), strategy))
        await model.is_asked.wait()
        if error is None:
            question.cancel()
        assert isinstance(await question, type(error) if error is not None else asyncio.CancelledError)
        store = library.engine.store
        (stream,) = await store.list_streams("run:")
        run_id = stream.removeprefix("run:")
        run = await Run.load(run_id, store)
        assert (run.state, run.reason) == (AgentState.INTERRUPTED, reason)
        result = await Orchestrator(library, ScriptedModel(["done"], loop=True)).resume(run_id)
        assert result.is_finished and (await Run.load(run_id, store)).state is AgentState.FINISHED


async def answer_or_fail(orchestrator: Orchestrator, strategy: str) -> BaseException | None:
    try:
        await orchestrator.process_task("Do it", strategy=strategy)
    except BaseException as error:
        return error
    return None


@pytest.mark.integration
async def test_a_run_whose_process_is_gone_is_seen_as_interrupted(tmp_path):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    await asyncio.to_thread(killed_at, url, tmp_path / "effects", "model:2")
    async with ToolKnowledgeStore(url) as store, UnifiedToolLibrary(store=url) as library:
        (stream,) = await store.list_streams("run:")
        run_id = stream.removeprefix("run:")
        seen = await Run.load_and_detect_interruption(run_id, store)
        assert (seen.state, seen.reason) == (AgentState.INTERRUPTED, "its process ended before the run did")
        model = FailingModel(None)
        library.register(*make_tools(tmp_path / "effects"))
        resumed = asyncio.create_task(Agent(library, model).resume(run_id))
        await model.is_asked.wait()
        assert (
            await Run.load_and_detect_interruption(run_id, store)
        ).state is AgentState.RUNNING  # now a living process works on it
        resumed.cancel()
        await asyncio.wait({resumed})
        seen = await Run.load_and_detect_interruption(run_id, store)
        assert (seen.state, seen.reason) == (AgentState.INTERRUPTED, "it was cancelled")
