"""A secret is in nothing that is written, logged, emitted or kept for others, however it got into a run."""

import json
import logging
from typing import Annotated, Any

import pytest

from ferrule import Policy, Secret, ToolEngine, ToolEngineEvent, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.agent import Agent
from ferrule.agent.run import Run
from ferrule.core.content import Image, Resource, Text
from ferrule.core.messages import ToolCall
from ferrule.core.model import ModelReply
from ferrule.models.anthropic import AnthropicModel
from ferrule.models.openai import OpenAIModel
from ferrule.orchestrator import Orchestrator
from ferrule.policy.provenance import ProvenanceRules
from ferrule.testing import ScriptedModel
from ferrule.workflow import GraphWorkflow
from tests.models.model_server import chunks, claude, completion, failure, model_server, text_block
from tests.support.http_servers import Answer

CODE = "Xy7-Quartz"
PASSES_ON = Policy(provenance=ProvenanceRules(untrusted_targets="allow"))
"""Allows a tool what another one has returned."""
KEY = "model-server-key-4711"


@tool(read_only=True)
async def find_code(door: str) -> dict[str, str]:
    """Look up the code of a door."""
    return {"value": CODE}


@tool
async def enter(code: Annotated[str, Secret()]) -> str:
    """Open the door."""
    return f"opened with {code}"


def plan(*steps: dict[str, Any]) -> str:
    return json.dumps({"steps": [{"description": "d", **step} for step in steps]})


FIND = {"id": 1, "tool_type": "find_code", "parameters": {"door": "A"}}
BY_REFERENCE = plan(FIND, {"id": 2, "tool_type": "enter", "parameters": {"code": "${1.value}"}})
FILLED_IN = plan({"id": 1, "tool_type": "enter", "parameters": {}}, {"id": 2, "tool_type": "none", "dependencies": [1]})
FILL = ModelReply(tool_calls=(ToolCall(name="enter", arguments={"code": CODE}),))


async def read_streams(library: UnifiedToolLibrary) -> str:
    store = library.engine.store
    return str([(name, await store.read_entries(name)) for name in await store.list_streams()])


@pytest.mark.parametrize(
    "script",
    [[BY_REFERENCE, f"It opened with {CODE}."], [FILLED_IN, FILL, f"It was {CODE}.", f"It opened with {CODE}."]],
    ids=["by reference", "filled in"],
)
async def test_a_secret_that_a_plan_comes_to_know_is_in_no_entry(workflow, script, tmp_path):
    shown: list[Any] = []
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path}/calls.db", policy=PASSES_ON) as library:
        library.register(find_code, enter)
        model = ScriptedModel(script)
        async with Orchestrator(library, model, strategy="plan", workflow=workflow) as orchestrator:
            done = await orchestrator.process_task("Open door A", conversation_id="c", on_event=shown.append)
        assert done.answer == f"It opened with {CODE}."  # the user gets what they asked for
        assert CODE not in await read_streams(library) and CODE not in str(done.plan)


async def test_checkpoints_have_no_secret_that_a_step_passes_on():
    memory = pytest.importorskip(
        "langgraph.checkpoint.memory", reason='needs LangGraph: pip install "ferrule[langgraph]"'
    )
    saver = memory.InMemorySaver()
    async with UnifiedToolLibrary(policy=PASSES_ON) as library:
        library.register(find_code, enter)
        flow = GraphWorkflow(library, ScriptedModel([BY_REFERENCE, f"It was {CODE}."]), checkpointer=saver)
        done = await flow.run("Open door A")
        assert done.answer == f"It was {CODE}."
    checkpoints = list(saver.list({"configurable": {"thread_id": done.run_id}}))
    assert len(checkpoints) > 3 and CODE not in str(checkpoints)


async def test_entries_before_a_secret_was_known_are_written_again():
    calls = [{"name": "find_code", "arguments": {"door": "A"}}, {"name": "enter", "arguments": {"code": CODE}}]
    async with UnifiedToolLibrary(policy=PASSES_ON) as library:
        library.register(find_code, enter)
        async with Orchestrator(library, ScriptedModel([*calls, f"It was {CODE}."])) as orchestrator:
            done = await orchestrator.process_task("Open door A", conversation_id="c")
            assert done.answer == f"It was {CODE}." and CODE not in await read_streams(library)
            agent = Agent(library, ScriptedModel([]))
            history = await agent.history(done.run_id)
            assert [m["role"] for m in history[-5:]] == ["assistant", "tool", "assistant", "tool", "assistant"]


async def test_a_secret_in_the_question_is_removed_once_it_is_known():
    call = {"name": "enter", "arguments": {"code": CODE}}
    async with UnifiedToolLibrary(policy=PASSES_ON) as library:
        library.register(enter)
        async with Orchestrator(library, ScriptedModel([call, "It is open."])) as orchestrator:
            await orchestrator.process_task(f"Open the door with {CODE}", conversation_id="c")
            turns = await orchestrator.memory.create_snapshot("c").turns()
        assert [turn.question for turn in turns] == ["Open the door with [redacted]"]
        assert CODE not in await read_streams(library)


async def test_records_and_events_of_later_and_inner_calls_have_no_secret_that_is_known(tmp_path):
    @tool
    async def repeat(text: str) -> str:
        """Repeat a text."""
        return text

    @tool
    async def enter_by_another(code: Annotated[str, Secret()], context: ToolExecutionContext) -> str:
        """Open the door with another tool."""
        return (await context.call_tool("repeat", {"text": f"open {code}"})).text

    events: list[ToolEngineEvent] = []
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path}/calls.db", policy=PASSES_ON) as library:
        library.register(enter, repeat, enter_by_another)
        library.engine.subscribe(events.append)
        later = {"name": "repeat", "arguments": {"text": f"it was {CODE}", CODE: 1}}
        model = ScriptedModel([{"name": "enter", "arguments": {"code": CODE}}, later, "done"])
        await Agent(library, model).run("Open the door")
        await library.execute_tool("enter_by_another", None, {"code": CODE})  # in no run
        store = library.engine.store
        await store.flush()
        records = await store.query_call_records()
        assert len(records) == 4 and CODE not in str([record.to_dict() for record in records])
    of_calls = [event for event in events if event.call_id is not None]
    assert len(of_calls) > 10 and CODE not in str([event.data for event in of_calls])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and CODE.encode() in path.read_bytes()]


async def test_an_approved_call_keeps_its_secret_where_the_question_had_a_context():
    entered: list[str] = []

    @tool(destructive=True)
    async def enter_once(code: Annotated[str, Secret()]) -> str:
        """Open the door once."""
        entered.append(code)
        return "opened"

    async with UnifiedToolLibrary() as library:
        library.register(enter_once)
        script = [ModelReply(tool_calls=(ToolCall(name="enter_once", arguments={"code": CODE}),)), "It is open."]
        async with Orchestrator(library, ScriptedModel(script)) as orchestrator:
            waiting = await orchestrator.process_task("Open door A", {"floor": "The first"})
            done = await orchestrator.resume(waiting.run_id, approvals=True)
            assert "floor: The first" in str((await Run.load(done.run_id, library.engine.store)).messages[0])
    assert entered == [CODE] and done.answer == "It is open."


async def test_events_have_no_secret_parameters():
    events: list[ToolEngineEvent] = []

    @tool
    async def refuse(code: Annotated[str, Secret()], times: int) -> str:
        """Never opens."""
        raise ValueError(f"{code} is wrong")

    @tool
    async def describe(code: Annotated[str, Secret()]) -> list[Any]:
        """Returns several parts."""
        return [Text(text=f"key {code}"), Resource(uri=f"door://{code}", text=code), Image(data=b"png")]

    async with ToolEngine() as engine:
        engine.register(enter, refuse, describe)
        engine.subscribe(events.append)
        result = await engine.execute("enter", {"code": CODE})
        await engine.execute("refuse", {"code": CODE, "times": 1})
        await engine.execute("refuse", {"code": CODE, "times": [CODE]})
        await engine.execute("unknown", {"code": CODE})
        described = await engine.execute("describe", {"code": CODE})
        await engine.events.drain()
    assert result.output == {"result": f"opened with {CODE}"} and len(events) == 4 + 4 + 3 + 3 + 4
    assert described.content[0] == Text(text=f"key {CODE}")
    assert events[-1].data["result"].content[::2] == (Text(text="key [redacted]"), Image(data=b"png"))
    assert CODE not in str([(event.data, event.error) for event in events])
    assert events[0].data["params"] == events[1].data["params"] == {"code": "[redacted]"}


async def test_events_of_results_that_look_secret_show_what_the_records_show():
    events: list[ToolEngineEvent] = []
    header = "Authorization: Bearer abcdef0123456789"

    @tool
    async def show(fails: bool) -> list[Any]:
        """Shows a header."""
        if fails:
            raise ValueError(header)
        return [Text(text=header)]

    async with ToolEngine() as engine:
        engine.register(show)
        engine.subscribe(events.append)
        results = [await engine.execute("show", {"fails": fails}) for fails in (False, True)]
        records = {record.record_id: record for record in await engine.query_call_records()}
        await engine.events.drain()
    assert results[0].content == (Text(text=header),) and header in str(results[1].error)  # of the caller
    ended = [event.data["result"] for event in events if "result" in event.data]
    assert len(ended) == 4 and "abcdef0123456789" not in str(events) + str(records)
    shown = {(result.call_id, str(result.output), result.error) for result in ended}
    assert shown == {(call_id, str(record.result), record.error) for call_id, record in records.items()}


@pytest.mark.integration
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_server_that_repeats_the_api_key_gets_it_nowhere(is_streamed, caplog):
    caplog.set_level(logging.DEBUG, "ferrule")
    text = f"Your key is {KEY}."
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    openai = [completion(text)]
    if is_streamed:
        openai = [Answer(events=chunks(*({"content": piece} for piece in pieces)))]
    refused = failure(400, f"the key {KEY} may not do this")
    for answers, make in (
        (openai, lambda url: OpenAIModel("m", base_url=f"{url}/v1", api_key=KEY)),
        ([claude(text_block(*pieces))], lambda url: AnthropicModel("m", base_url=url, api_key=KEY)),
        ([refused], lambda url: OpenAIModel("m", base_url=f"{url}/v1", api_key=KEY)),
        ([refused], lambda url: AnthropicModel("m", base_url=url, api_key=KEY)),
    ):
        shown: list[Any] = []
        async with UnifiedToolLibrary() as library, model_server(*answers) as server:
            model = make(server.url)
            answer = await Agent(library, model).run("Go", on_event=shown.append if is_streamed else None)
            await model.aclose()
            written = await read_streams(library)
        assert server.requests and "[redacted]" in answer.text + answer.reason
        assert KEY not in str(answer) + str(answer.messages) + answer.reason + written
        if is_streamed and answer.is_finished:
            assert "".join(event.text for event in shown if hasattr(event, "text")) == "Your key is [redacted]."
    assert KEY not in caplog.text
