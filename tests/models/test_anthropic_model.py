"""Claude's API, against a real server."""

from contextlib import asynccontextmanager
from typing import Any

import pytest

from ferrule.core.messages import ToolCall, Usage, assistant_message, system_message, tool_message, user_message
from ferrule.errors import ModelRefused, ModelUnavailable, RequestTooLong
from ferrule.models import AnthropicModel, ModelRequest
from tests.models.model_server import (
    claude,
    claude_event,
    failure,
    model_server,
    text_block,
    thinking_block,
    tool_use_block,
)
from tests.support.http_servers import Answer

pytestmark = pytest.mark.integration

ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {"a": {}}}},
}
QUESTION = ModelRequest(messages=[user_message("1 + 2?")])
WITH_TOOL = ModelRequest(messages=[user_message("1 + 2?")], tools=[ADD])
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}


@asynccontextmanager
async def asking(*answers: Answer):
    async with model_server(*answers) as server:
        model = AnthropicModel("claude", base_url=server.url)
        try:
            yield model, server
        finally:
            await model.aclose()


async def sent_for(*history: dict[str, Any]) -> dict[str, Any]:
    """The request a history becomes."""
    async with asking(claude(text_block("3"))) as (model, server):
        await model.generate(ModelRequest(messages=history))
        body: dict[str, Any] = server.bodies[0]
    return body


async def test_a_text_comes_back_with_what_it_cost_and_is_handed_on_in_pieces():
    usage = {"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 5, "output_tokens": 4}
    pieces: list[str] = []
    async with asking(claude(text_block("It ", "is 3."), usage=usage)) as (model, server):
        reply = await model.generate(QUESTION, pieces.append)
    assert (reply.text, reply.finish_reason, pieces) == ("It is 3.", "stop", ["It ", "is 3."])
    assert reply.usage == Usage(requests=1, input_tokens=115, output_tokens=4, cached_tokens=100)
    assert server.bodies[0]["max_tokens"] == 16_384 and "temperature" not in server.bodies[0]
    assert server.requests[0].path == "/v1/messages" and model.name == "anthropic:claude"


async def test_calls_come_back_beside_the_text():
    answer = claude(
        text_block("Let me see."),
        tool_use_block("add", '{"a"', ": 1}"),
        tool_use_block("now", id="toolu_2"),
        stop_reason="tool_use",
    )
    async with asking(answer) as (model, server):
        reply = await model.generate(WITH_TOOL)
    assert reply.tool_calls == (
        ToolCall(name="add", arguments={"a": 1}, id="toolu_1"),
        ToolCall(name="now", id="toolu_2"),
    )
    assert (reply.text, reply.finish_reason) == ("Let me see.", "tool_calls")
    (tool,) = server.bodies[0]["tools"]
    assert tool["name"] == "add" and tool["input_schema"] == ADD["function"]["parameters"]


@pytest.mark.parametrize("pieces", [['{"a": '], []])
async def test_a_call_that_was_cut_off_is_an_error_and_has_no_arguments(pieces):
    async with asking(claude(tool_use_block("add", *pieces), stop_reason="max_tokens")) as (model, _):
        reply = await model.generate(WITH_TOOL)
    (call,) = reply.tool_calls
    assert call.error is not None and "cut off" in call.error and call.raw == "".join(pieces)
    assert reply.finish_reason == "length"


@pytest.mark.parametrize(
    ("stop_reason", "finish"),
    [("stop_sequence", "stop"), ("model_context_window_exceeded", "length"), ("refusal", "refused")],
)
async def test_the_finish_reason_is_reported(stop_reason, finish):
    async with asking(claude(text_block("some"), stop_reason=stop_reason)) as (model, _):
        assert (await model.generate(QUESTION)).finish_reason == finish


async def test_a_history_with_calls_becomes_turns_that_alternate():
    first, second = (
        ToolCall(name="add", arguments={"a": 1}, id="c1"),
        ToolCall(name="add", id="c2", error="…", raw="{a"),
    )
    body = await sent_for(
        system_message("Be brief."),
        system_message("Be kind."),
        user_message("1 + 2?"),
        assistant_message("Wait.", [first, second]),
        tool_message(first, "3"),
        tool_message(second, ""),
        user_message("Well?"),
    )
    assert body["system"][0]["text"] == "Be brief.\n\nBe kind."
    user, assistant, results = body["messages"]
    assert user == {"role": "user", "content": [{"type": "text", "text": "1 + 2?"}]}
    assert assistant["content"] == [
        {"type": "text", "text": "Wait."},
        {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "id": "c2", "name": "add", "input": {"unreadable_arguments": "{a"}},
    ]
    assert results["content"] == [
        {"type": "tool_result", "tool_use_id": "c1", "content": "3"},
        {"type": "tool_result", "tool_use_id": "c2", "content": ""},
        {"type": "text", "text": "Well?"},
    ]


async def test_a_call_without_result_gets_one_and_a_result_without_call_becomes_text():
    lost, call = ToolCall(name="gone", id="c0"), ToolCall(name="add", id="c1")
    body = await sent_for(tool_message(lost, "7"), assistant_message("", [call]), user_message("Well?"))
    first, _, last = body["messages"]
    assert first["content"] == [{"type": "text", "text": "Result of an earlier call of gone: 7"}]
    assert last["content"][0]["tool_use_id"] == "c1" and last["content"][0]["is_error"]
    assert last["content"][1] == {"type": "text", "text": "Well?"}


async def test_pictures_go_along():
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]
    body = await sent_for({"role": "user", "content": parts})
    _, inline, linked = body["messages"][0]["content"]
    assert inline["source"] == {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    assert linked["source"] == {"type": "url", "url": "https://example.com/a.png"}


async def test_what_stays_the_same_is_marked_for_the_cache():
    messages = [system_message("Be brief."), user_message("?")]
    async with asking(claude(text_block("3"))) as (model, server):
        await model.generate(ModelRequest(messages=messages, tools=[ADD]))
        await model.generate(WITH_TOOL)
    mark = {"type": "ephemeral"}
    with_system, without = server.bodies
    assert with_system["cache_control"] == mark and with_system["system"][0]["cache_control"] == mark
    assert without["tools"][0]["cache_control"] == mark and "cache_control" not in with_system["tools"][0]
    assert "cache_control" not in ADD


async def test_an_answer_schema_holds_the_text():
    async with asking(claude(text_block('{"n": 3}'))) as (model, server):
        await model.generate(ModelRequest(messages=QUESTION.messages, answer_schema=SCHEMA))
    format = server.bodies[0]["output_config"]["format"]
    assert format["type"] == "json_schema" and format["schema"]["additionalProperties"] is False


async def test_a_schema_that_is_refused_is_asked_for_in_words_and_that_is_remembered():
    refusal = failure(400, "output_config: this model does not support structured outputs")
    request = ModelRequest(messages=[system_message("Be brief."), user_message("?")], answer_schema=SCHEMA)
    async with asking(refusal, claude(text_block("{}"))) as (model, server):
        await model.generate(request)
        await model.generate(request)
    assert ["output_config" in body for body in server.bodies] == [True, False, False]
    assert server.bodies[1]["system"][0]["text"].startswith("Be brief.\n\nAnswer with one JSON object")


async def test_a_model_that_cannot_be_forced_to_call_is_left_to_choose():
    refusal = failure(400, "tool_choice: forced tool use is not supported on this model")
    request = ModelRequest(messages=QUESTION.messages, tools=[ADD], tool_choice="required")
    async with asking(refusal, claude(text_block("3"))) as (model, server):
        await model.generate(request)
    assert server.bodies[0]["tool_choice"] == {"type": "any"}
    assert "tool_choice" not in server.bodies[1] and "tools" in server.bodies[1]


async def test_tools_that_must_not_be_called_are_offered_so():
    async with asking(claude(text_block("3"))) as (model, server):
        await model.generate(ModelRequest(messages=QUESTION.messages, tools=[ADD], tool_choice="none"))
    assert server.bodies[0]["tool_choice"] == {"type": "none"}


def thinking_answers() -> tuple[Answer, Answer]:
    return claude(thinking_block("Hm.", "s1"), tool_use_block("add", '{"a": 1}'), stop_reason="tool_use"), claude(
        text_block("3")
    )


async def test_thinking_is_reported_and_sent_back_with_the_result_of_the_call():
    async with asking(*thinking_answers()) as (model, server):
        reply = await model.generate(WITH_TOOL)
        (call,) = reply.tool_calls
        history = [*WITH_TOOL.messages, assistant_message(reply.text, reply.tool_calls), tool_message(call, "1")]
        await model.generate(ModelRequest(messages=history, tools=[ADD]))
    assert reply.reasoning == "Hm." and reply.text == ""
    assert server.bodies[1]["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "s1"},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
    ]


@pytest.mark.parametrize("changed", ["system", "tools", "question", "call"])
async def test_thoughts_stay_behind_when_anything_before_them_has_changed(changed):
    async with asking(*thinking_answers()) as (model, server):
        (call,) = (await model.generate(WITH_TOOL)).tool_calls
        if changed == "call":
            call = ToolCall(name="add", arguments={"a": 2}, id=call.id)
        question = user_message("2 + 2?" if changed == "question" else "1 + 2?")
        history = [question, assistant_message("", [call]), tool_message(call, "1")]
        if changed == "system":
            history.insert(0, system_message("Be brief."))
        await model.generate(ModelRequest(messages=history, tools=[] if changed == "tools" else [ADD]))
    assert [block["type"] for block in server.bodies[1]["messages"][1]["content"]] == ["tool_use"]


async def test_thoughts_the_server_does_not_want_back_are_left_out():
    first, last = thinking_answers()
    refusal = failure(400, "messages.1.content.0: Invalid `signature` in `thinking` block")
    async with asking(first, refusal, last) as (model, server):
        (call,) = (await model.generate(WITH_TOOL)).tool_calls
        history = [*WITH_TOOL.messages, assistant_message("", [call]), tool_message(call, "1")]
        assert (await model.generate(ModelRequest(messages=history, tools=[ADD]))).text == "3"
    kinds = [[block["type"] for block in body["messages"][1]["content"]] for body in server.bodies[1:]]
    assert kinds == [["thinking", "tool_use"], ["tool_use"]]


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (failure(401, "invalid x-api-key"), ModelRefused, "invalid x-api-key. Check the API key."),
        (failure(404, "model: claude"), ModelRefused, "Check the name of the model"),
        (failure(400, "prompt is too long: 210000 tokens > 200000 maximum"), RequestTooLong, "prompt is too long"),
        (failure(400, "Your credit balance is too low"), ModelRefused, "credit balance"),
        (failure(429, "slow down", retry_after="3"), ModelUnavailable, "slow down"),
        (failure(500, "oh"), ModelUnavailable, "oh"),
        (failure(529, "Overloaded"), ModelUnavailable, "Overloaded"),
    ],
)
async def test_failures_are_temporary_or_permanent(answer, kind, message):
    async with asking(answer) as (model, server):
        with pytest.raises(kind) as caught:
            await model.generate(QUESTION)
    assert type(caught.value) is kind and message in str(caught.value)
    assert len(server.requests) == 1
    assert getattr(caught.value, "retry_after", None) == (3.0 if "slow" in message else None)


@pytest.mark.parametrize(
    ("type", "kind"), [("overloaded_error", ModelUnavailable), ("invalid_request_error", ModelRefused)]
)
async def test_an_error_inside_a_stream_is_raised(type, kind):
    event = claude_event({"type": "error", "error": {"type": type, "message": "Not now"}})
    begun = claude(text_block("It"), stop_reason=None)
    async with asking(Answer(events=[*(begun.events or ()), event])) as (model, _):
        with pytest.raises(kind, match="Not now"):
            await model.generate(QUESTION)


@pytest.mark.parametrize("then", ["cut", "finish"])
async def test_a_stream_that_breaks_off_is_no_answer(then):
    pieces: list[str] = []
    async with asking(Answer(events=claude(text_block("It is"), stop_reason=None).events, then=then)) as (model, _):
        with pytest.raises(ModelUnavailable):
            await model.generate(QUESTION, pieces.append)
    assert pieces == ["It is"]


@pytest.mark.parametrize(
    ("variable", "message"), [("HOME", "Set ANTHROPIC_API_KEY"), ("ANTHROPIC_CONFIG_DIR", "Config file not found")]
)
async def test_without_a_key_it_says_what_to_set(monkeypatch, tmp_path, variable, message):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(ModelRefused, match=message):
        await AnthropicModel("claude").generate(QUESTION)
