"""A library's tools in pydantic-ai."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from ferrule import UnifiedToolLibrary
from ferrule.adapters.bridge import LibraryThread
from ferrule.adapters.pydantic_ai import FerruleToolset, tools_of_toolset
from ferrule.errors import SetupError
from tests.adapters import bridged_tools as ours
from tests.adapters.default_loop import default_loop


def model_with(*turns: ToolCallPart | str) -> FunctionModel:
    """A model whose turns are known."""
    left = iter(turns)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = next(left)
        return ModelResponse(parts=[TextPart(turn) if isinstance(turn, str) else turn])

    return FunctionModel(answer)


def returns_of(run: Any) -> list[ToolReturnPart]:
    return [part for message in run.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)]


async def test_an_agent_calls_our_tools_and_they_are_recorded():
    async with UnifiedToolLibrary() as library:
        library.register(ours.add, ours.variables)
        agent = Agent(TestModel(), toolsets=[FerruleToolset(library, tools=["add", "variables"])])
        run = await agent.run("Go.", conversation_id="monday")
        records = await library.engine.query_call_records()
    assert run.output == '{"add":1,"variables":["deps"]}'
    assert {(record.tool_name, record.caller_id, record.conversation_id) for record in records} == {
        ("add", "pydantic-ai", "monday"),
        ("variables", "pydantic-ai", "monday"),
    }
    assert {part.metadata["call_id"] for part in returns_of(run)} == {record.record_id for record in records}


async def test_a_model_is_told_what_ours_would_be_told():
    async with UnifiedToolLibrary() as library:
        library.register(ours.add, ours.Diary())
        await Agent(model := TestModel(call_tools=[]), toolsets=[FerruleToolset(library)]).run("Go.")
        assert model.last_model_request_parameters is not None
        tools = model.last_model_request_parameters.function_tools
        told = [(tool.name, tool.description, tool.parameters_json_schema) for tool in tools]
        assert told == [tuple(schema["function"].values()) for schema in library.schemas()]


async def test_wrong_arguments_are_to_be_mended_and_other_failures_are_final():
    async with UnifiedToolLibrary() as library:
        library.register(ours.add, ours.Diary())
        model = model_with(
            ToolCallPart("add", {"a": "one"}),
            ToolCallPart("add", {"a": 1}),
            ToolCallPart("Diary__ask_again", {"text": "y"}),
            ToolCallPart("Diary__fail", {"reason": "rain"}),
            "I give up.",
        )
        run = await Agent(model, toolsets=[FerruleToolset(library)]).run("Go.")
    wrong, right, again, failed = returns_of(run)
    assert [part.outcome for part in (wrong, right, again, failed)] == ["retried", "success", "retried", "failed"]
    assert "a: " in str(wrong.content)
    assert (right.content, failed.content) == (2, "ValueError: rain")
    assert "put an x in it" in str(again.content)


async def test_a_call_that_is_known_to_fail_is_not_made_again_in_the_same_run():
    diary = ours.Diary()
    async with UnifiedToolLibrary() as library:
        library.register(diary)
        turns = [ToolCallPart("Diary__fail", {"reason": "rain"})] * 4
        toolset = FerruleToolset(library, memory=True)
        await Agent(model_with(*turns, "I give up."), toolsets=[toolset]).run("Go.")
        assert diary.calls == 1
        await Agent(model_with(turns[0], "Another run."), toolsets=[toolset]).run("Go.")
        assert diary.calls == 2
        await Agent(model_with(*turns, "I give up."), toolsets=[FerruleToolset(library)]).run("Go.")
    assert diary.calls == 6, "without a memory every call is made"


async def test_a_tool_that_is_registered_during_a_run_is_there_at_the_next_step():
    async with UnifiedToolLibrary() as library:

        async def learn() -> str:
            """Learn to add."""
            library.register(ours.add)
            return "I can add now."

        library.register(learn)
        model = model_with(ToolCallPart("learn", {}), ToolCallPart("add", {"a": 1, "b": 2}), "It is 3.")
        run = await Agent(model, toolsets=[FerruleToolset(library)]).run("Go.")
    assert [part.content for part in returns_of(run)] == ["I can add now.", 3]


async def test_a_time_out_ends_the_work(tmp_path: Path):
    async with UnifiedToolLibrary() as library:
        library.register(ours.write_late)
        model = model_with(ToolCallPart("write_late", {"path": str(tmp_path / "late.txt")}), "Too late.")
        run = await Agent(model, toolsets=[FerruleToolset(library)]).run("Go.")
        (tmp_path / "late.txt.allowed").touch()
        await asyncio.sleep(0.3)  # a process that still ran would write within 10 ms
    [part] = returns_of(run)
    assert "did not finish within 0.5 s" in str(part.content)
    assert not (tmp_path / "late.txt").exists()


async def test_a_picture_is_shown_to_the_model():
    async with UnifiedToolLibrary() as library:
        library.register(ours.drawn)
        run = await Agent(model_with(ToolCallPart("drawn", {}), "Nice."), toolsets=[FerruleToolset(library)]).run("Go.")
    [part] = returns_of(run)
    assert part.content == ["here", BinaryContent(b"hi", media_type="image/png")]


async def test_a_tool_that_is_not_there_is_named():
    async with UnifiedToolLibrary() as library:
        library.register(ours.add)
        with pytest.raises(SetupError, match="no tool 'ad'. Did you mean 'add'"):
            await Agent(TestModel(), toolsets=[FerruleToolset(library, tools=["ad"])]).run("Go.")


async def test_ours_to_theirs_to_ours_keeps_name_schema_and_result():
    async with UnifiedToolLibrary() as first, UnifiedToolLibrary() as second:
        first.register(ours.add, ours.Diary())
        second.register(*await tools_of_toolset(FerruleToolset(first, tools=["add", "Diary"])))
        result = await second.execute_tool("add", None, {"a": 1})
        again = await second.execute_tool("Diary__ask_again", None, {"text": "y"})
        assert second.schemas() == first.schemas()
    assert (result.output, again.metadata["advice"]) == ({"result": 2}, "change_arguments")


def test_an_agent_that_runs_without_await_calls_tools_on_the_librarys_loop():
    library = UnifiedToolLibrary()
    library.register(ours.add)
    with default_loop(), LibraryThread(library):
        run = Agent(TestModel(), toolsets=[FerruleToolset(library, tools=["add"])]).run_sync("Go.")
    assert run.output == '{"add":1}'
