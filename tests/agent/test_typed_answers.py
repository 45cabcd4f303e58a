"""Agents in plain Python: typed answers, lists of functions, `run_sync`, progress and events of tools."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, assert_type, cast

import pytest
from pydantic import BaseModel, field_validator

from ferrule import (
    Agent,
    AgentState,
    ModelReply,
    ModelRequest,
    SetupError,
    UnifiedToolLibrary,
    emit_event,
    report_progress,
    tool,
)
from ferrule.agent.answer import CallEnded, CallProgress, CallStarted, CustomEvent, RunEnded
from ferrule.agent.control_tools import CONTROL_TOOLS
from ferrule.models import OpenAIModel, RetryingModel, close_model
from ferrule.testing import ScriptedModel
from tests.models.model_server import call, completion, failure, model_server


class City(BaseModel):
    name: str
    population: int

    @field_validator("population")
    @classmethod
    def is_positive(cls, value: int) -> int:
        if value <= 0:
            raise ValueError("a city has inhabitants")
        return value


@dataclass
class Point:
    x: int
    y: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


PARIS = '{"name": "Paris", "population": 2100000}'


@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        (City, PARIS, City(name="Paris", population=2_100_000)),
        (City, f"Here it is:\n```json\n{PARIS}\n```", City(name="Paris", population=2_100_000)),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (int, "42", 42),
        (int, '{"answer": 42}', 42),
        (list[str], '["a", "b"]', ["a", "b"]),
        (list[City], f'{{"answer": [{PARIS}]}}', [City(name="Paris", population=2_100_000)]),
        (bool, "true", True),
        (str, "Just text.", "Just text."),
    ],
)
async def test_an_answer_has_the_type_that_was_asked_for(output, text, value):
    answer = await Agent(ScriptedModel([text]), tools=[]).run("Tell me.", output=output)
    assert answer.output == value and type(answer.output) is type(value)
    assert answer.is_finished


async def test_a_model_is_told_what_is_wrong_with_its_answer():
    script = ["Paris is large.", '{"name": "Paris", "population": -1}', PARIS]
    answer = await Agent(ScriptedModel(script), tools=[add]).run("Which city?", output=City)
    assert answer.output == City(name="Paris", population=2_100_000)
    remarks = [str(message["content"]) for message in answer.messages if message["role"] == "user"][1:]
    assert "it contains no JSON" in remarks[0]
    assert "population: Value error, a city has inhabitants" in remarks[1]


async def test_a_model_that_never_gives_the_type_is_stopped_and_the_answer_says_why():
    answer = await Agent(ScriptedModel(["No."] * 9), tools=[add]).run("Which city?", output=City)
    assert answer.state is AgentState.STOPPED and answer.usage.requests == 3
    assert answer.reason == "the model's answer was not of type City (it contains no JSON)"
    with pytest.raises(SetupError) as caught:
        _ = answer.output
    assert str(caught.value) == (
        "The run stopped without an output: the model's answer was not of type City (it contains no JSON)."
    )


@pytest.mark.integration
async def test_tools_are_called_before_a_typed_answer_and_finish_task_may_give_it():
    script = [{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "finish_task", "arguments": {"message": "3"}}]
    answer = await Agent(ScriptedModel(script), tools=[add]).run("1 + 2?", output=int)
    assert (answer.output, [step.tool_id for step in answer.steps]) == (3, ["add", "finish_task"])


@pytest.mark.integration
async def test_the_api_of_a_model_enforces_the_schema_where_only_the_answer_is_missing():
    async with model_server(completion(PARIS)) as server:
        agent = Agent(RetryingModel(OpenAIModel("m", base_url=f"{server.url}/v1")), tools=[])
        assert (await agent.run("Which city?", output=City)).output.name == "Paris"
        await close_model(agent.model)
    sent = server.bodies[0]
    assert sent["response_format"]["json_schema"]["strict"] is True and "tools" not in sent
    assert sent["response_format"]["json_schema"]["schema"]["required"] == ["name", "population"]


@pytest.mark.integration
async def test_with_tools_the_schema_is_enforced_after_the_first_wrong_answer():
    answers = [
        completion(None, [call("add", '{"a": 1, "b": 2}')]),
        completion("It is three."),
        completion('{"answer": 3}'),
    ]
    async with model_server(*answers) as server:
        agent = Agent(RetryingModel(OpenAIModel("m", base_url=f"{server.url}/v1")), tools=[add])
        assert (await agent.run("1 + 2?", output=int)).output == 3
        await close_model(agent.model)
    assert ["response_format" in body for body in server.bodies] == [False, False, True]
    assert ["tools" in body for body in server.bodies] == [True, True, False]


@pytest.mark.integration
async def test_a_server_without_schemas_gets_the_schema_in_the_prompt():
    refused = failure(400, "response_format is not supported")
    async with model_server(refused, refused, completion(PARIS)) as server:
        agent = Agent(RetryingModel(OpenAIModel("m", base_url=f"{server.url}/v1")), tools=[])
        assert (await agent.run("Which city?", output=City)).output.name == "Paris"
        await close_model(agent.model)
    assert "population" in json.dumps(server.bodies[-1]["messages"])


async def test_a_type_that_has_no_schema_is_an_error_before_the_model_is_asked():
    model = ScriptedModel(["Hi."])
    with pytest.raises(SetupError, match="The answer cannot be of the type 'Lock'"):
        await Agent(model, tools=[]).run("Hi", output=asyncio.Lock)
    assert (await Agent(model, tools=[]).run("Hi")).output == "Hi."


async def test_type_checkers_know_the_type_of_the_output():
    agent = Agent(ScriptedModel([PARIS, "[1]", "Hi."]), tools=[])
    assert_type((await agent.run("A city", output=City)).output, City)
    assert_type((await agent.run("Numbers", output=list[int])).output, list[int])
    assert_type((await agent.run("Hi")).output, str)


# Lists of functions


@pytest.mark.integration
async def test_an_agent_takes_functions_instead_of_a_library():
    script = [{"name": "add", "arguments": {"a": 1, "b": 2}}, "It is 3."]
    agent = Agent(ScriptedModel(script), tools=[add, multiply])
    answer = await agent.run("1 + 2?")
    assert (answer.text, answer.steps[0].text) == ("It is 3.", "3")
    assert {spec.tool_id for spec in await agent.library.get_all_tools()} == {"add", "multiply"}
    assert not agent.library.engine.is_open  # it is open only while it is used


async def test_names_and_functions_may_be_mixed_and_only_these_are_offered():
    requests: list[ModelRequest] = []

    class Listening:
        name = "listening"

        async def generate(self, request: ModelRequest, on_text: Any = None) -> ModelReply:
            requests.append(request)
            return ModelReply(text="Done.")

    await Agent(Listening(), tools=[add, "calculator"], control_tools=CONTROL_TOOLS).run("Hi")
    async with UnifiedToolLibrary() as library:
        library.register(multiply)
        await Agent(library, Listening(), tools=[add, "multiply"], control_tools=CONTROL_TOOLS).run("Hi")
        await Agent(library, Listening(), tools=[add], control_tools=CONTROL_TOOLS).run(
            "Hi"
        )  # the same function again is no collision
    offered = [{schema["function"]["name"] for schema in request.tools} for request in requests]
    control = {"finish_task", "ask_user"}
    assert offered == [{"add", "calculator"} | control, {"add", "multiply"} | control, {"add"} | control]


async def test_concurrent_runs_share_the_agents_own_library():
    script = [{"name": "multiply", "arguments": {"a": 2, "b": 3}}, "Six."]

    class Repeating:
        name = "repeating"

        async def generate(self, request: ModelRequest, on_text: Any = None) -> ModelReply:
            return await ScriptedModel(script[len(request.messages) > 2 :]).generate(request, on_text)

    agent = Agent(Repeating(), tools=[multiply])
    answers = await asyncio.gather(*(agent.run(f"task {number}") for number in range(5)))
    assert {answer.text for answer in answers} == {"Six."} and not agent.library.engine.is_open
    async with agent:
        assert (await agent.run("again")).text == "Six." and agent.library.engine.is_open


async def test_a_run_of_functions_that_waits_for_approval_is_resumed():
    script = [{"name": "delete", "arguments": {"path": "a.txt"}}, '{"answer": 1}']
    agent = Agent(ScriptedModel(script), tools=[delete])
    paused = await agent.run("Delete a.txt", output=int)
    with pytest.raises(
        SetupError, match=r"has no output yet, because it waits for a person\. Continue it with agent\.resume\('"
    ):
        _ = paused.output
    answer = await agent.resume(paused.run_id, approvals=True, output=int)
    assert (answer.output, answer.steps[0].text) == (1, "deleted a.txt")


@pytest.mark.parametrize(
    ("kind", "reply", "value"),
    [(City, '{"name": "Oslo", "population": 7}', City(name="Oslo", population=7)), (int, '{"answer": 1}', 1)],
)
async def test_a_finished_run_that_is_resumed_has_its_typed_output(kind, reply, value):
    async with Agent(ScriptedModel([reply]), tools=[multiply]) as agent:
        done = await agent.run("Go", output=kind)
        assert (await agent.resume(done.run_id, output=kind)).output == done.output == value
        assert (await agent.resume(done.run_id)).output == done.text
        with pytest.raises(SetupError, match=r"is not of the type list: .* Resume it with the `output` that"):
            await agent.resume(done.run_id, output=list[str])


def test_what_is_no_library_and_no_list_is_an_error():
    with pytest.raises(SetupError, match=r"tools must be a list: write tools=\['add'\]"):
        Agent("offline", tools="add")
    with pytest.raises(SetupError, match=r"'openai' is not a library or a list of tools: write Agent\(library, "):
        Agent("openai", "offline")
    with pytest.raises(SetupError, match="5 is not a model"):
        Agent([add], cast(Any, 5))
    with pytest.raises(
        SetupError, match="task must be a string that is not empty, or a list of strings and images, not 5"
    ):
        Agent([add], "offline").run_sync(cast(Any, 5))


async def test_an_agent_of_a_library_that_is_not_open_says_so():
    with pytest.raises(SetupError, match="This library is not open"):
        await Agent(UnifiedToolLibrary(), ScriptedModel(["Hi."])).run("Hi")


# run_sync


@pytest.mark.integration
def test_run_sync_runs_without_an_event_loop_and_again():
    script = [{"name": "add", "arguments": {"a": 1, "b": 2}}, '{"answer": 3}', "Bye."]
    agent = Agent([add], ScriptedModel(script))
    assert agent.run_sync("1 + 2?", output=int).output == 3
    assert agent.run_sync("Bye").output == "Bye."
    library = UnifiedToolLibrary()
    library.register(add)
    assert Agent(library, ScriptedModel(["Hi."])).run_sync("Hi").text == "Hi."


async def test_run_sync_inside_a_running_loop_is_a_clear_error():
    with pytest.raises(SetupError, match=r"inside a running event loop, .* Use `await agent.run\(…\)` there"):
        Agent(ScriptedModel(["Hi."]), tools=[]).run_sync("Hi")


# A person


@tool(destructive=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


# Progress and events of tools


@tool(name="draw")
def draw_in_worker(size: int) -> str:
    """Draw something."""
    report_progress(0.5, "half")
    emit_event("chart", {"points": [1, size]})
    return "drawn"


@tool(name="draw")
async def draw_here(size: int) -> str:
    """Draw something."""
    return draw_in_worker(size)


async def test_a_person_with_one_of_the_methods_will_do_and_mistakes_are_named(caplog):
    class Decider:
        def __init__(self, reply: Any) -> None:
            self.reply = reply

        def approve(self, request: Any) -> Any:
            return self.reply

    script = [
        {"name": "delete", "arguments": {"path": "a.txt"}},
        {"name": "ask_user", "arguments": {"question": "Why?"}},
    ]
    waiting = await Agent([delete], ScriptedModel(script), person=Decider(True)).run("Delete a.txt")
    assert waiting.state == "waiting" and waiting.steps[0].is_success and "could not be asked" not in caplog.text
    with pytest.raises(SetupError, match="person.approve returned 'yes'. Return True, False, an Approval"):
        await Agent([delete], ScriptedModel(script), person=Decider("yes")).run("Delete a.txt")
    with pytest.raises(SetupError, match=r"person must have a method approve\(request\)"):
        Agent([delete], ScriptedModel(script), person=lambda request: True)  # type: ignore[arg-type]


@pytest.mark.integration
@pytest.mark.parametrize("draw", [draw_in_worker, draw_here])
async def test_progress_and_events_of_tools_are_in_the_stream(draw):
    script = [{"name": "draw", "arguments": {"size": 2}}, "Here."]
    events = [event async for event in Agent(ScriptedModel(script), tools=[draw]).stream("Draw")]
    of_call = [event for event in events if isinstance(event, (CallStarted, CallProgress, CustomEvent, CallEnded))]
    assert [type(event).__name__ for event in of_call] == ["CallStarted", "CallProgress", "CustomEvent", "CallEnded"]
    progress, custom = of_call[1], of_call[2]
    assert isinstance(progress, CallProgress) and (progress.progress.fraction, progress.progress.message) == (
        0.5,
        "half",
    )
    assert isinstance(custom, CustomEvent) and (custom.name, custom.data) == ("chart", {"points": [1, 2]})
    assert custom.call.name == "draw" and isinstance(events[-1], RunEnded)


async def test_tools_with_events_stay_plain_functions():
    emit_event("nobody listens")
    async with UnifiedToolLibrary() as library:

        @tool
        async def work() -> str:
            """Work."""
            emit_event("step", 1)
            return "done"

        library.register(work)
        events: list[Any] = []
        library.engine.subscribe(events.append)
        assert (await library.execute_tool("work")).success
        await library.engine.events.drain()
    assert [event.data["progress"].event for event in events if "progress" in event.data] == ["step"]
