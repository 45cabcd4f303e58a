"""What a run is given besides its task: dependencies for its tools, settings for its model, an earlier conversation."""

from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ferrule import Agent, AgentState, Image, ModelSettings, SetupError, UnifiedToolLibrary
from ferrule.models.anthropic import AnthropicModel, to_anthropic_conversation
from ferrule.models.offline import OfflineModel
from ferrule.testing import ScriptedModel
from tests.agent import dependencies as sample
from tests.agent.dependencies import LockedShop, Shop


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def result_of_call(function: Any, deps: Any, **arguments: Any) -> tuple[bool, str]:
    agent = Agent([function, sample.order], ScriptedModel([call(function.__name__, **arguments), "Done."]))
    [step] = (await agent.run("Go", deps=deps)).steps
    return step.is_success, step.text


# Dependencies


async def test_tools_and_the_tools_they_call_get_the_dependencies_of_the_run():
    shop = Shop("corner")
    assert await result_of_call(sample.order, shop, item="tea") == (True, "1")
    assert await result_of_call(sample.order_twice, shop, item="milk") == (True, "3")
    assert shop.orders == ["tea", "milk", "milk"]


def test_the_parameter_for_the_dependencies_is_not_in_the_schema_and_run_sync_takes_them():
    model = ScriptedModel([call("order", item="tea"), "Done."])
    answer = Agent([sample.order], model).run_sync("Go", deps=Shop("corner"))
    assert answer.steps[0].text == "1"
    [schema] = model.requests[0].tools
    assert list(schema["function"]["parameters"]["properties"]) == ["item"]


async def test_each_run_has_its_own_dependencies_and_results_made_of_them_are_not_cached():
    script = [call("cached_name"), "Done."]
    async with Agent([sample.cached_name], ScriptedModel(script * 2)) as agent:
        answers = [await agent.run("Go", deps=Shop(name)) for name in ("one", "two")]
    assert [answer.steps[0].text for answer in answers] == ["one", "two"]


@pytest.mark.integration
async def test_a_worker_process_gets_a_copy_of_the_dependencies():
    assert await result_of_call(sample.name_in_worker, Shop("corner")) == (True, "corner True")


@pytest.mark.integration
async def test_dependencies_that_cannot_be_copied_are_an_error_only_for_tools_in_workers_that_use_them():
    shop = LockedShop("corner")
    is_success, text = await result_of_call(sample.name_in_worker, shop)
    assert not is_success
    assert "LockedShop cannot be sent to a worker process (cannot pickle '_thread.lock' object)" in text
    assert 'Write the tool as `async def`, or give it isolation="thread".' in text
    assert await result_of_call(sample.caller_in_worker, shop) == (True, "conversation_agent")
    assert await result_of_call(sample.name_in_thread, shop) == (True, "corner")


async def test_dependencies_are_not_stored_so_a_resumed_run_gets_them_again(tmp_path: Path):
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with UnifiedToolLibrary(store=store) as library:
        library.register(sample.close)
        agent = Agent(library, ScriptedModel([call("close"), "Closed."]), tools=["close"])
        paused = await agent.run("Close the shop", deps=Shop("very secret name"))
        assert paused.state is AgentState.WAITING
        answer = await agent.resume(paused.run_id, approvals=True, deps=Shop("corner"))
        assert answer.steps[0].text == "closed corner"
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files and not [file for file in files if b"very secret name" in file.read_bytes()]


# Model settings


async def test_settings_of_the_agent_and_of_the_run_are_in_each_request():
    model = ScriptedModel([call("order", item="tea"), "Done.", "Hello."])
    agent = Agent([sample.order], model, model_settings={"temperature": 0.5, "max_tokens": 500})
    await agent.run("Go", deps=Shop("corner"), model_settings=ModelSettings(temperature=0))
    await agent.run("Hi")
    assert [(request.temperature, request.max_tokens) for request in model.requests] == [
        (0, 500),
        (0, 500),
        (0.5, 500),
    ]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"temprature": 0}, "There is no model setting 'temprature'. Did you mean 'temperature'?"),
        ({"temperature": 3}, "The model setting temperature must be a number from 0 to 2, not 3."),
        ({"max_tokens": 0}, "The model setting max_tokens must be a whole number above 0, not 0."),
        ({"max_tokens": True}, "The model setting max_tokens must be a whole number above 0, not True."),
    ],
)
async def test_settings_that_do_not_exist_or_are_impossible_are_refused(settings: Any, says: str):
    with pytest.raises(SetupError) as caught:
        Agent([], ScriptedModel(["Hello."]), model_settings=settings)
    assert says in str(caught.value)
    with pytest.raises(SetupError):
        await Agent([], ScriptedModel(["Hello."])).run("Hi", model_settings=settings)


async def test_a_setting_that_the_model_ignores_is_named_in_a_warning(caplog):
    assert AnthropicModel("claude", api_key="none").ignored_settings == ("temperature",)
    await Agent(["calculator"], OfflineModel(), model_settings={"temperature": 0}).run("What is 2+2?")
    assert "model=<offline>, setting=<temperature> | has no such setting: it has no effect" in caplog.text


# Earlier conversations, and stored runs


async def test_stored_runs_are_listed_with_their_states():
    began = datetime.now(UTC)
    async with Agent([sample.close], ScriptedModel(["Hello.", call("close")])) as agent:
        await agent.run("Hi")
        waiting = await agent.run("Close the shop", deps=Shop("corner"))
        last, first = await agent.runs()
        assert [run.run_id for run in await agent.runs(limit=1)] == [waiting.run_id]
    assert (last.run_id, last.state, last.task) == (waiting.run_id, AgentState.WAITING, "Close the shop")
    assert (first.state, first.task) == (AgentState.FINISHED, "Hi")
    assert 0 <= (last.written_at - began).total_seconds() < 600


# Images


PIXELS = bytes(range(256)) * 40


async def test_images_of_a_task_reach_the_model_and_the_conversation_after_it(tmp_path: Path):
    model = ScriptedModel(["A cat.", "A cat and a dog."])
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path / 'runs.db'}") as library:
        agent = Agent(library, model, tools=[])
        first = await agent.run(["What is this?", Image(data=PIXELS, mime_type="image/jpeg")])
        assert first.question == "What is this?"
        second = await agent.run(["And with this?", Image(data=b"dog")], history=first.messages)
        assert (await agent.history(second.run_id))[:-1] == second.messages[:-1]
    urls = [
        part["image_url"]["url"] for m in model.requests[1].messages for part in m["content"] if "image_url" in part
    ]
    assert urls == ["data:image/jpeg;base64," + b64encode(PIXELS).decode(), "data:image/png;base64,ZG9n"]
    _, [turn] = to_anthropic_conversation(model.requests[0].messages)
    assert [block["type"] for block in turn["content"]] == ["image", "text"]


async def test_an_image_counts_as_a_thousand_tokens_whatever_its_size(tmp_path: Path):
    script = [call("order", item="tea"), "Done."]
    model = ScriptedModel(script)
    agent = Agent([sample.order], model, window_tokens=4_000)
    await agent.run(["Order what you see.", Image(data=bytes(1_000_000))], deps=Shop("corner"))
    assert any(isinstance(message["content"], list) for message in model.requests[1].messages)


@pytest.mark.parametrize("task", [[], [Image(data=b"dog")], ["What?", b"dog"], "", 5])
async def test_a_task_needs_a_text_and_has_only_texts_and_images(task: Any):
    with pytest.raises(SetupError, match="a string that is not empty, or a list of strings and images"):
        await Agent([], ScriptedModel(["No."])).run(task)
