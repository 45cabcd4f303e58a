"""Recordings of models, made and replayed."""

import json
from typing import Any

import pytest

from ferrule.core.messages import ToolCall, Usage, user_message
from ferrule.errors import ModelUnavailable, SetupError
from ferrule.models import ModelReply, ModelRequest, OpenAIModel
from ferrule.testing import RecordedModel, RecordingModel, ScriptedModel
from tests.models.model_server import call, completion, model_server

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def asking(text: str, **settings) -> ModelRequest:
    return ModelRequest(messages=[user_message(text)], **settings)


async def record(path, *exchanges: tuple[ModelRequest, Any]) -> None:
    model = RecordingModel(ScriptedModel([turn for _, turn in exchanges]), path)
    for request, _ in exchanges:
        await model.generate(request)


@pytest.mark.integration
async def test_what_a_real_server_said_is_replayed_without_it(tmp_path):
    request = asking("1 + 2?", tools=[ADD])
    answer = completion("Wait.", calls=[call("add", '{"a": 1}'), call("add", "{a", "call_2")])
    async with model_server(answer) as server:
        model = OpenAIModel("m", base_url=f"{server.url}/v1", api_key="sk-very-secret")
        reply = await RecordingModel(model, tmp_path / "add.jsonl").generate(request)
        await model.aclose()
    pieces: list[str] = []
    replayed = RecordedModel(tmp_path / "add.jsonl")
    assert await replayed.generate(request, pieces.append) == reply
    assert reply.usage.input_tokens == 12 and reply.tool_calls[1].error and pieces == ["Wait."]
    assert replayed.name == "recorded:add"


async def test_a_request_made_twice_gets_its_replies_in_order(tmp_path):
    again = asking("And?")
    await record(tmp_path / "r", (again, "one"), (asking("else"), "other"), (again, "two"))
    model = RecordedModel(tmp_path / "r")
    assert [(await model.generate(again)).text for _ in range(2)] == ["one", "two"]
    with pytest.raises(SetupError, match="has this request 2 times, and it was made once more"):
        await model.generate(again)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (asking("1 + 3?"), r"message 1 is '.*1 \+ 3\?.*' and was '.*1 \+ 2\?.*'"),
        (asking("1 + 2?", tools=[ADD]), "tools: add new"),
        (asking("1 + 2?", temperature=0.5), "temperature is 0.5 and was None"),
        (ModelRequest(messages=[user_message("1 + 2?"), user_message("And?")]), "1 messages more, from .*And"),
        (ModelRequest(messages=[]), "1 messages less, from .*1 .+ 2"),
    ],
)
async def test_a_request_that_was_not_recorded_is_an_error_that_says_what_differs(tmp_path, request_, message):
    await record(tmp_path / "r", (asking("1 + 2?"), "3"))
    with pytest.raises(SetupError, match=message) as caught:
        await RecordedModel(tmp_path / "r").generate(request_)
    assert "Record it again with RecordingModel(model, " in str(caught.value)


async def test_it_is_compared_with_the_nearest_request(tmp_path):
    changed = {**ADD, "function": {"name": "add", "parameters": {"type": "object", "required": []}}}
    await record(tmp_path / "r", (asking("Hello"), "Hi."), (asking("1 + 2?", tools=[ADD]), "3"))
    with pytest.raises(SetupError, match="Compared with request 2 of 2: tools: add changed"):
        await RecordedModel(tmp_path / "r").generate(asking("1 + 2?", tools=[changed]))


async def test_secrets_are_not_recorded_and_may_change(tmp_path):
    reply = ModelReply(text="Sent.", tool_calls=(ToolCall(name="login", arguments={"password": "hunter2-hunter2"}),))
    await record(tmp_path / "r", (asking("Authorization: Bearer abcdef123456"), reply))
    content = (tmp_path / "r").read_text()
    assert "abcdef123456" not in content and "hunter2" not in content
    replayed = await RecordedModel(tmp_path / "r").generate(asking("Authorization: Bearer 654321fedcba"))
    assert replayed.text == "Sent." and replayed.usage == Usage()


async def test_a_new_recording_replaces_the_old_one_but_only_once_there_is_an_answer(tmp_path):
    await record(tmp_path / "r", (asking("a"), "old"))
    model = RecordingModel(ScriptedModel([ModelUnavailable("busy"), "new", "more"]), tmp_path / "r")
    with pytest.raises(ModelUnavailable):
        await model.generate(asking("a"))
    assert (await RecordedModel(tmp_path / "r").generate(asking("a"))).text == "old"
    await model.generate(asking("b"))
    await model.generate(asking("c"))
    replies = [json.loads(line)["reply"]["text"] for line in (tmp_path / "r").read_text().splitlines()]
    assert replies == ["new", "more"]


async def test_auto_asks_only_for_what_is_missing(tmp_path):
    await record(tmp_path / "r", (asking("a"), "known"))
    scripted = ScriptedModel(["asked for"])
    model = RecordingModel(scripted, tmp_path / "r", mode="auto")
    assert [(await model.generate(asking(text))).text for text in ("a", "b")] == ["known", "asked for"]
    assert len(scripted.requests) == 1
    replayed = RecordedModel(tmp_path / "r")
    assert [(await replayed.generate(asking(text))).text for text in ("b", "a")] == ["asked for", "known"]


async def test_auto_begins_a_recording_that_is_not_there(tmp_path):
    path = tmp_path / "new" / "r.jsonl"
    await RecordingModel(ScriptedModel(["3"]), path, mode="auto").generate(asking("a"))
    assert (await RecordedModel(path).generate(asking("a"))).text == "3"


async def test_texts_with_odd_separators_stay_on_their_line(tmp_path):
    text = "a\u2028b\x85c\nd"
    await record(tmp_path / "r", (asking(text), text))
    assert (await RecordedModel(tmp_path / "r").generate(asking(text))).text == text


def test_a_recording_that_is_not_there_or_broken_is_told(tmp_path):
    with pytest.raises(SetupError, match=r"There is no recording at .*Make it with RecordingModel"):
        RecordedModel(tmp_path / "none.jsonl")
    (tmp_path / "broken.jsonl").write_text('{"key": 1}\n')
    with pytest.raises(SetupError, match=r"broken\.jsonl:1: this is not a line of a recording"):
        RecordedModel(tmp_path / "broken.jsonl")
