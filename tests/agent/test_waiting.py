"""Runs that wait for a person: questions and approvals, also over a restart."""

import asyncio
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent import Agent, AgentState, Approval
from ferrule.agent.answer import CallStarted
from ferrule.kinds.skill.folder import SkillFolder
from ferrule.policy.policy import Policy, Rule
from ferrule.testing import ScriptedModel
from tests.agent.calls import call


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'calls.db'}"


def make_delete(deleted: list[str]):
    @tool(destructive=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        deleted.append(path)
        return f"deleted {path}"

    return delete


async def test_listeners_and_the_model_are_told_of_the_arguments_that_a_person_wants_instead(url):
    deleted: list[str] = []
    async with UnifiedToolLibrary(store=url) as library:
        library.register(make_delete(deleted))
        agent = Agent(library, ScriptedModel([call("delete", path="a.txt"), "ok"]))
        first = await agent.run("Delete a.txt")
        events: list[Any] = []
        edited = {first.approvals[0].call_id: Approval(allowed=True, arguments={"path": "b.txt"})}
        answer = await agent.resume(first.run_id, approvals=edited, on_event=events.append)
    note = "[A person has changed the arguments of this call: the result is for the changed ones.]"
    assert answer.messages[3]["content"] == f"deleted b.txt\n{note}"
    assert [each.call.arguments for each in events if isinstance(each, CallStarted)] == [{"path": "b.txt"}]


async def test_a_denial_by_the_policy_is_not_reported_as_a_refusal_by_the_user():
    deleted: list[str] = []
    async with UnifiedToolLibrary() as library:
        library.register(make_delete(deleted))
        model = ScriptedModel([call("delete", path="a.txt"), "ok"])
        answer = await Agent(library, model, policy=Policy(rules=[Rule(verdict="deny", tool="delete")])).run(
            "Delete a.txt"
        )
        assert answer.messages[3]["content"] == "The policy does not allow 'delete'." and deleted == []


async def test_many_runs_wait_and_go_on_beside_each_other():

    async def one(number: int) -> str:
        model = ScriptedModel([call("ask_user", question=f"q{number}"), f"answer {number}"])
        agent = Agent([], model)
        first = await agent.run(f"task {number}")
        return (await agent.resume(first.run_id, "go")).text

    assert await asyncio.gather(*map(one, range(8))) == [f"answer {n}" for n in range(8)]


async def test_what_failed_may_be_tried_again_when_the_user_has_spoken():
    made = []

    @tool
    async def read(path: str) -> str:
        made.append(path)
        raise FileNotFoundError(f"{path} not found")

    script = [call("read", path="a.txt"), call("read", path="a.txt"), call("ask_user", question="Where is it?")]
    agent = Agent([read], ScriptedModel([*script, call("read", path="a.txt"), "no"]))
    first = await agent.run("Read a.txt")
    assert made == ["a.txt"]
    await agent.resume(first.run_id, "I have put it there now.")
    assert made == ["a.txt", "a.txt"]


async def test_only_a_trusted_skill_spares_its_tools_the_approval(tmp_path):
    from ferrule import ToolEngineConfig

    folder = tmp_path / "skills" / "tidy"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        "---\nname: tidy\ndescription: Tidies up.\nallowed-tools: delete\n---\nDelete what is old.\n"
    )
    deleted: list[str] = []
    config = ToolEngineConfig(skills_directories=(str(tmp_path / "skills"),))
    async with UnifiedToolLibrary(config) as library:
        library.register(make_delete(deleted))
        actions = [c.name for c in (await library.get_tool_by_id("tidy")).capabilities]  # type: ignore[union-attr]
        activate = "tidy" if len(actions) == 1 else "tidy__activate"
        agent = Agent(library, ScriptedModel([call("delete", path="a"), "x"]))
        assert (await agent.run("Tidy up")).state is AgentState.WAITING
        script = [call(activate), call("delete", path="b"), "done"]
        assert (await Agent(library, ScriptedModel(script)).run("Tidy up")).state is AgentState.WAITING
        digest = (await library.get_tool_by_id("tidy")).metadata["source_hash"]  # type: ignore[union-attr]
        trusting = Policy(trusted_skills={"tidy": digest})
        before = Agent(library, ScriptedModel([call("delete", path="a"), "x"]), policy=trusting)
        assert (await before.run("Tidy up")).state is AgentState.WAITING
        assert (await Agent(library, ScriptedModel(script), policy=trusting).run("Tidy up")).is_finished
        assert deleted == ["b"]
        other = Policy(trusted_skills={"tidy": "0" * len(digest)})
        assert (await Agent(library, ScriptedModel(script), policy=other).run("Tidy up")).state is AgentState.WAITING
        strict = Policy(rules=[Rule(verdict="ask", tool="delete")], trusted_skills={"tidy": digest})
        model = ScriptedModel([call(activate), call("delete", path="c")])
        assert (await Agent(library, model, policy=strict).run("Tidy up")).state is AgentState.WAITING
        (folder / "notes.md").write_text("Delete what is new.")  # which is another version of the skill
        assert (await Agent(library, ScriptedModel(script), policy=trusting).run("Tidy up")).state is AgentState.WAITING
        trusted = Policy(trusted_skills={"tidy": SkillFolder(folder, "SKILL.md").digest})
        assert (await Agent(library, ScriptedModel(script), policy=trusted).run("Tidy up")).is_finished
        (folder / "notes.md").write_text("Delete everything.")
        assert (await Agent(library, ScriptedModel(script), policy=trusted).run("Tidy up")).state is AgentState.WAITING
