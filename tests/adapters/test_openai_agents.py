"""A library's tools in the OpenAI Agents SDK."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import Agent, FunctionTool, Model, ModelResponse, RunConfig, Runner, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from ferrule import UnifiedToolLibrary
from ferrule.adapters.bridge import LibraryThread
from ferrule.adapters.openai_agents import as_function_tools
from tests.adapters import bridged_tools as ours
from tests.adapters.default_loop import default_loop

QUIET = RunConfig(tracing_disabled=True)


class KnownTurns(Model):
    """A model whose turns are known: a call as `(name, arguments)`, or a text."""

    def __init__(self, *turns: tuple[str, Any] | str) -> None:
        self.turns = list(turns)
        self.seen: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        self.seen.append(input)
        turn = self.turns.pop(0)
        return ModelResponse(output=[_output(turn, len(self.seen))], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError

    def answers(self) -> list[Any]:
        return [item["output"] for item in self.seen[-1] if item.get("type") == "function_call_output"]


def _output(turn: tuple[str, Any] | str, number: int) -> Any:
    if isinstance(turn, str):
        text = ResponseOutputText(text=turn, type="output_text", annotations=[])
        return ResponseOutputMessage(id="1", content=[text], role="assistant", status="completed", type="message")
    name, arguments = turn
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ResponseFunctionToolCall(call_id=f"c{number}", name=name, arguments=written, type="function_call")


def agent_with(
    model: Model, library: UnifiedToolLibrary, tools: list[str] | None = None, *, memory: bool = False
) -> Agent[Any]:
    return Agent(name="tester", model=model, tools=as_function_tools(library, tools, memory=memory))


async def test_an_agent_calls_our_tools_and_they_are_recorded():
    model = KnownTurns(("add", {"a": 1, "b": 2}), ("variables", {}), "It is 3.")
    config = RunConfig(tracing_disabled=True, group_id="monday")
    async with UnifiedToolLibrary() as library:
        library.register(ours.add, ours.variables)
        run = await Runner.run(agent_with(model, library), "Go.", run_config=config, context="mine")
        records = await library.engine.query_call_records(tool_name="add")
    assert (run.final_output, model.answers()) == ("It is 3.", ["3", '["context"]'])
    assert [(r.params, r.caller_id, r.conversation_id) for r in records] == [
        ({"a": 1, "b": 2}, "openai-agents", "monday")
    ]


def test_a_model_is_told_what_ours_would_be_told():
    library = UnifiedToolLibrary()
    library.register(ours.add, ours.Diary())
    tools = [tool for tool in as_function_tools(library) if isinstance(tool, FunctionTool)]
    told = [(tool.name, tool.description, tool.params_json_schema) for tool in tools]
    assert told == [tuple(schema["function"].values()) for schema in library.schemas()]


async def test_a_failure_is_told_to_the_model():
    turns = ("Diary__fail", {"reason": "rain"}), ("add", {"a": "one"}), ("add", "{"), ("add", "[]"), "I give up."
    model = KnownTurns(*turns)
    async with UnifiedToolLibrary() as library:
        library.register(ours.Diary(), ours.add)
        await Runner.run(agent_with(model, library), "Go.", run_config=QUIET)
    failed, wrong, broken, no_object = model.answers()
    assert failed == "ValueError: rain"
    assert wrong.startswith("Invalid arguments for 'add': a: ")
    assert broken.startswith("The arguments of 'add' are not JSON")
    assert "object" in no_object


async def test_a_call_that_is_known_to_fail_is_not_made_again_in_the_same_run():
    diary = ours.Diary()
    async with UnifiedToolLibrary() as library:
        library.register(diary)
        turns = [("Diary__fail", {"reason": "rain"})] * 4
        agent = agent_with(KnownTurns(*turns, "I give up.", turns[0], "Another run."), library, memory=True)
        await Runner.run(agent, "Go.", run_config=QUIET)
        assert diary.calls == 1
        await Runner.run(agent, "Go.", run_config=QUIET)
    assert diary.calls == 2


async def test_a_time_out_ends_the_work(tmp_path: Path):
    model = KnownTurns(("write_late", {"path": str(tmp_path / "late.txt")}), "Too late.")
    async with UnifiedToolLibrary() as library:
        library.register(ours.write_late)
        await Runner.run(agent_with(model, library), "Go.", run_config=QUIET)
        (tmp_path / "late.txt.allowed").touch()
        await asyncio.sleep(0.3)  # a process that still ran would write within 10 ms
    assert "did not finish within 0.5 s" in model.answers()[0]
    assert not (tmp_path / "late.txt").exists()


async def test_a_picture_is_shown_to_the_model():
    model = KnownTurns(("drawn", {}), "Nice.")
    async with UnifiedToolLibrary() as library:
        library.register(ours.drawn)
        await Runner.run(agent_with(model, library), "Go.", run_config=QUIET)
    [[text, picture]] = model.answers()
    assert (text["text"], picture["image_url"]) == ("here", "data:image/png;base64,aGk=")


async def test_ours_to_theirs_to_ours_keeps_name_schema_and_result():
    async with UnifiedToolLibrary() as first, UnifiedToolLibrary() as second:
        first.register(ours.add, ours.Diary())
        second.register(as_function_tools(first, tools=["add", "Diary"]))
        result = await second.execute_tool("add", None, {"a": 1})
        assert second.schemas() == first.schemas()
    assert result.text == "2"


def test_an_agent_that_runs_without_await_calls_tools_on_the_librarys_loop():
    library, model = UnifiedToolLibrary(), KnownTurns(("add", {"a": 1}), "It is 2.")
    library.register(ours.add)
    with default_loop(), LibraryThread(library):
        Runner.run_sync(agent_with(model, library), "Go.", run_config=QUIET)
    assert model.answers() == ["2"]
