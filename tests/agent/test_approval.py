"""No way around a person's word: other names, the tool that calls tools, other candidates."""

from dataclasses import replace
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent import Agent, AgentState, Approval, ApprovalRequest
from ferrule.errors import SetupError
from ferrule.kinds.function.tools import tool_of
from ferrule.library.meta_tools import make_meta_tools
from ferrule.testing import ScriptedModel
from tests.agent.calls import call


def make_files(deleted: list[str]) -> Any:
    @tool(name="files")
    class Files:
        """Files."""

        @tool(destructive=True)
        async def delete(self, path: str) -> str:
            """Delete a file."""
            deleted.append(path)
            return f"deleted {path}"

        @tool(read_only=True)
        async def read(self, path: str) -> str:
            """Read a file."""
            return f"read {path}"

    return Files()


WAYS = [
    call("files__delete", path="a"),
    call("delete", path="a"),
    call("call_tool", name="files__delete", arguments={"path": "a"}),
    call("call_tool", name="delete", arguments={"path": "a"}),
    call("call_tool", name="files__delete", arguments='{"path": "a"}'),
    call("call_tool", name="call_tool", arguments=call("files__delete", path="a")),
]


@pytest.mark.parametrize("schema_tokens", [20_000, 1])
@pytest.mark.parametrize("way", WAYS)
async def test_a_destructive_call_waits_whatever_it_is_called(way, schema_tokens):
    deleted: list[str] = []
    async with UnifiedToolLibrary() as library:
        library.register(make_files(deleted))
        agent = Agent(library, ScriptedModel([way, "done"]), schema_tokens=schema_tokens)
        first = await agent.run("Delete a")
        assert deleted == [] and first.state is AgentState.WAITING
        (request,) = first.approvals
        assert (request.tool_id, request.action, request.arguments) == ("files", "delete", {"path": "a"})
        answer = await agent.resume(first.run_id, approvals=True)
        assert deleted == ["a"] and answer.messages[3]["content"] == "deleted a" and answer.is_finished


@pytest.mark.parametrize("way", WAYS[1:])
async def test_arguments_that_were_edited_are_those_of_the_tool(way):
    deleted: list[str] = []

    class Ann:
        async def answer(self, question):
            return None

        async def approve(self, request):
            return Approval(allowed=True, arguments={"path": "b"})

    async with UnifiedToolLibrary() as library:
        library.register(make_files(deleted))
        await Agent(library, ScriptedModel([way, "done"]), person=Ann()).run("Delete a")
        assert deleted == ["b"]


async def test_leave_is_asked_for_where_any_of_several_tools_of_a_name_needs_it():
    def make(deleted: list[str], *, destructive: bool, fails: bool):
        @tool(name="tidy", destructive=destructive)
        async def tidy(path: str) -> str:
            """Tidy up."""
            if fails:
                raise ConnectionError("no connection")
            deleted.append(path)
            return "tidy"

        return tidy

    deleted: list[str] = []
    async with UnifiedToolLibrary() as library:
        mild = replace(tool_of(make(deleted, destructive=False, fails=True)), source="tools")
        harsh = replace(tool_of(make(deleted, destructive=True, fails=False)), source="mcps")
        library.engine.registry.add(mild, harsh)
        answer = await Agent(library, ScriptedModel([call("tidy", path="a"), "x"])).run("Tidy up")
        assert deleted == [] and answer.state is AgentState.WAITING


@pytest.mark.parametrize(
    "arguments", [{}, {"name": 5}, {"name": "files__read", "arguments": "{path:"}, {"name": "nothing"}]
)
async def test_a_call_of_a_tool_that_makes_no_sense_is_answered(arguments: dict[str, object]):
    async with UnifiedToolLibrary() as library:
        library.register(make_files([]))
        model = ScriptedModel([{"name": "call_tool", "arguments": arguments}, "sorry"])
        answer = await Agent(library, model, schema_tokens=1).run("Go")
        assert answer.is_finished and not answer.steps[0].is_success


async def test_a_tool_that_was_found_keeps_to_the_tools_of_the_agent():
    deleted: list[str] = []

    @tool
    async def other(path: str) -> str:
        """Something else."""
        deleted.append(path)
        return "done"

    async with UnifiedToolLibrary() as library:
        library.register(make_files(deleted), other)
        model = ScriptedModel([call("call_tool", name="other", arguments={"path": "a"}), "x"])
        answer = await Agent(library, model, tools=["files"]).run("Go")
        assert deleted == [] and answer.steps[0].error_type == "permission_denied"


async def test_nobody_is_asked_about_a_call_that_is_known_to_fail():
    asked: list[str] = []

    @tool(destructive=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        raise ValueError(f"{path} is in use")

    class Ann:
        async def answer(self, question):
            return None

        async def approve(self, request):
            asked.append(request.call_id)
            return Approval(allowed=True)

    model = ScriptedModel([call("delete", path="a")] * 3 + ["no"])
    answer = await Agent([delete], model, person=Ann()).run("Delete a")
    assert len(asked) == 1
    assert [step.error_type for step in answer.steps] == ["execution_error", "known_failure", "known_failure"]


@pytest.mark.parametrize("name", ["call_tool__call_tool", "call_tool"])
async def test_a_tool_that_calls_tools_for_everybody_asks_for_leave_too(name):
    deleted: list[str] = []
    async with UnifiedToolLibrary() as library:
        library.register(make_files(deleted), *make_meta_tools(library.index, library.engine))
        wish = call(name, name="files__delete", arguments={"path": "a"})
        paused = await Agent(library, ScriptedModel([wish, "done"])).run("Delete a")
        assert paused.state is AgentState.WAITING and deleted == []


class Deciding:
    def __init__(self, *decisions: bool) -> None:
        self.decisions, self.count = [*decisions], 0

    def approve(self, request: ApprovalRequest) -> bool:
        self.count += 1
        return self.decisions.pop(0)


@pytest.mark.parametrize(("decisions", "made"), [((True, False), 1), ((True, True), 2), ((False,), 0)])
async def test_a_person_is_asked_at_most_once_about_each_of_two_equal_calls(decisions: tuple[bool, ...], made: int):
    deleted: list[str] = []
    person, way = Deciding(*decisions), call("files__delete", path="a")
    async with UnifiedToolLibrary() as library:
        library.register(make_files(deleted))
        answer = await Agent(library, ScriptedModel([[way, way], "done"]), person=person).run("Delete a, twice")
    assert answer.is_finished and len(deleted) == made and person.count == len(decisions)


async def test_two_equal_calls_are_decided_as_the_caller_says_for_each():
    deleted: list[str] = []
    way = call("files__delete", path="a")
    async with UnifiedToolLibrary() as library:
        library.register(make_files(deleted))
        agent = Agent(library, ScriptedModel([[way, way], "done"]))
        first = await agent.run("Delete a, twice")
        one, two = (request.call_id for request in first.approvals)
        answer = await agent.resume(first.run_id, approvals={one: True, two: False})
    assert answer.is_finished and deleted == ["a"] and [step.is_success for step in answer.steps] == [True, False]


async def test_an_answer_is_no_decision_about_a_call():
    async with UnifiedToolLibrary() as library:
        library.register(make_files([]))

        class Person:
            def answer(self, question: Any) -> None: ...

        agent = Agent(library, ScriptedModel([call("files__delete", path="a"), "done"]), person=Person())
        first = await agent.run("Delete a")
        key = first.approvals[0].call_id
        with pytest.raises(SetupError, match=rf"waits for a decision about '{key}', not for 'yes': resume it with"):
            await agent.resume(first.run_id, approvals={key: "yes"})  # type: ignore[dict-item]


async def test_the_reason_of_an_approval_is_in_the_language_of_the_task():
    async with UnifiedToolLibrary() as library:
        library.register(make_files([]))
        answer = await Agent(library, ScriptedModel([call("files__delete", path="a"), "done"])).run("删除文件 a")
    assert answer.approvals[0].reason == "files__delete 可能造成无法恢复的破坏。"
