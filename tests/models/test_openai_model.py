"""Models behind OpenAI's chat API, against a real server."""

import asyncio
import gc
import json
from contextlib import asynccontextmanager

import pytest

from ferrule.core.messages import ToolCall, Usage, assistant_message, system_message, tool_message, user_message
from ferrule.core.model import EndReply
from ferrule.errors import ModelRefused, ModelUnavailable, RequestTooLong
from ferrule.models import ModelRequest, OpenAIModel
from tests.models.model_server import call, call_delta, chunks, completion, failure, model_server
from tests.support.http_servers import Answer, json_answer, serve_http_in_thread
from tests.support.waiting import until

pytestmark = pytest.mark.integration

ADD = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}
QUESTION = ModelRequest(messages=[user_message("1 + 2?")])
WITH_TOOL = ModelRequest(messages=[user_message("1 + 2?")], tools=[ADD])
OPEN = {"type": "object", "properties": {"n": {"type": "integer"}}}
CLOSED = {**OPEN, "required": ["n"], "additionalProperties": False}


@asynccontextmanager
async def asking(*answers: Answer):
    async with model_server(*answers) as server:
        model = OpenAIModel("m", base_url=f"{server.url}/v1")
        try:
            yield model, server
        finally:
            await model.aclose()


async def test_a_text_comes_back_with_what_it_cost():
    async with asking(completion("It is 3.")) as (model, server):
        reply = await model.generate(QUESTION)
    assert (reply.text, reply.finish_reason, reply.tool_calls) == ("It is 3.", "stop", ())
    assert reply.usage == Usage(requests=1, input_tokens=12, output_tokens=3)
    assert server.bodies == [{"model": "m", "messages": [{"role": "user", "content": "1 + 2?"}]}]
    assert server.requests[0].path == "/v1/chat/completions" and model.name == "openai:m"


async def test_a_call_comes_back_with_its_arguments():
    answer = completion(calls=[call("add", '{"a": 1, "big": 123456789012345678901234567890}')])
    async with asking(answer) as (model, server):
        reply = await model.generate(WITH_TOOL)
    arguments = {"a": 1, "big": 123456789012345678901234567890}
    assert reply.tool_calls == (ToolCall(name="add", arguments=arguments, id="call_1"),)
    assert reply.finish_reason == "tool_calls"  # though the server said `stop`
    assert server.bodies[0]["tools"] == [ADD] and "tool_choice" not in server.bodies[0]


@pytest.mark.parametrize(
    ("arguments_text", "reason"),
    [
        ('{"a": 1,', "property name"),
        ("a=1", "Expecting value"),
        ("[1]", "a JSON object is needed, not list"),
        ('"text"', "Expecting value"),
    ],
)
async def test_arguments_that_cannot_be_read_are_an_error_and_not_empty(arguments_text, reason):
    async with asking(completion(calls=[call("add", arguments_text)])) as (model, _):
        (parsed,) = (await model.generate(WITH_TOOL)).tool_calls
    assert parsed.raw == arguments_text and parsed.arguments == {}
    assert parsed.error is not None and reason in parsed.error and "'add'" in parsed.error


@pytest.mark.parametrize(
    ("arguments_text", "arguments"), [("", {}), ("null", {}), ({"a": 1}, {"a": 1}), ('"{\\"a\\": 1}"', {"a": 1})]
)
async def test_unusual_but_clear_arguments_are_read(arguments_text, arguments):
    async with asking(completion(calls=[call("add", arguments_text)])) as (model, _):
        (parsed,) = (await model.generate(WITH_TOOL)).tool_calls
    assert parsed.error is None and parsed.arguments == arguments


async def test_a_call_that_was_cut_off_is_an_error_even_without_arguments():
    answer = completion(calls=[call("a", "{}"), call("b", "", "call_2")], finish_reason="length")
    async with asking(answer) as (model, _):
        whole, cut = (await model.generate(WITH_TOOL)).tool_calls
    assert whole.error is None
    assert cut.error is not None and "cut off" in cut.error


async def test_a_stream_makes_the_same_reply_and_hands_its_text_on():
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}
    events = chunks({"role": "assistant", "content": ""}, {"content": "It "}, {"content": "is 3."}, usage=usage)
    pieces: list[str] = []
    async with asking(Answer(events=events)) as (model, server):
        reply = await model.generate(QUESTION, pieces.append)
    assert reply.text == "It is 3." and pieces == ["It ", "is 3."] and reply.finish_reason == "stop"
    assert reply.usage == Usage(requests=1, input_tokens=9, output_tokens=4, cached_tokens=5)
    assert server.bodies[0]["stream_options"] == {"include_usage": True}


async def test_a_sink_that_has_enough_ends_the_reply_and_the_request():
    events = chunks({"content": "It "}, {"content": "is 3."}, {"content": " Or 4?"}, finish=None)[:-1]

    def read(piece: str) -> None:
        if piece.endswith("."):
            raise EndReply

    async with asking(Answer(events=events, then="hang")) as (model, server):
        reply = await model.generate(QUESTION, read)
        await until(lambda: server.abandoned)
    assert model.can_end_reply and not OpenAIModel("gpt").can_end_reply
    assert (reply.text, reply.finish_reason) == ("It is 3.", "stop")
    assert reply.usage.input_tokens and reply.usage.output_tokens  # estimated: the server never told


STREAMED_CALLS = {
    "by index": [
        call_delta(0, "add", "", "x"),
        call_delta(0, None, '{"a"'),
        call_delta(1, "mul", "", "y"),
        call_delta(1, None, '{"b": 2}'),
        call_delta(0, None, ": 1}"),
    ],
    "whole, all with index 0": [call_delta(0, "add", '{"a": 1}', "x"), call_delta(0, "mul", '{"b": 2}', "y")],
    "no index": [
        call_delta(None, "add", '{"a"', "x"),
        call_delta(None, None, ": 1}"),
        call_delta(None, "mul", '{"b": 2}', "y"),
    ],
    "all in one piece": [{"tool_calls": [call("add", '{"a": 1}', "x"), call("mul", '{"b": 2}', "y")]}],
    "name and id in each piece": [
        call_delta(0, "add", '{"a"', "x"),
        call_delta(0, "add", ": 1}", "x"),
        call_delta(1, "mul", '{"b": 2}', "y"),
    ],
}


@pytest.mark.parametrize("pieces", STREAMED_CALLS.values(), ids=STREAMED_CALLS.keys())
async def test_streamed_calls_are_put_together_however_they_come(pieces):
    async with asking(Answer(events=chunks(*pieces, finish="tool_calls"))) as (model, _):
        reply = await model.generate(WITH_TOOL, print)
    assert [(c.id, c.name, c.arguments) for c in reply.tool_calls] == [("x", "add", {"a": 1}), ("y", "mul", {"b": 2})]
    assert reply.finish_reason == "tool_calls"


async def test_whole_streamed_calls_without_ids_are_separated():
    pieces = [call_delta(0, "add", '{"a": 1}'), call_delta(0, "add", '{"a": 2}')]
    async with asking(Answer(events=chunks(*pieces, finish="stop"))) as (model, _):
        reply = await model.generate(WITH_TOOL, print)
    assert [(c.id, c.arguments) for c in reply.tool_calls] == [("", {"a": 1}), ("", {"a": 2})]
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thoughts_are_kept_apart_from_the_text(field):
    async with asking(completion("3", message={field: "1 and 2 …"})) as (model, _):
        assert (await model.generate(QUESTION)).reasoning == "1 and 2 …"
    pieces: list[str] = []
    async with asking(Answer(events=chunks({field: "1 and "}, {field: "2"}, {"content": "3"}))) as (model, _):
        reply = await model.generate(QUESTION, pieces.append)
    assert (reply.reasoning, reply.text, pieces) == ("1 and 2", "3", ["3"])


@pytest.mark.parametrize(
    ("finish", "message", "expected"),
    [
        ("length", {}, "length"),
        ("content_filter", {}, "refused"),
        ("stop", {"content": None, "refusal": "I will not."}, "refused"),
        ("eos", {}, "stop"),
    ],
)
async def test_the_finish_reason_is_reported(finish, message, expected):
    async with asking(completion("some", finish_reason=finish, message=message)) as (model, _):
        reply = await model.generate(QUESTION)
    assert reply.finish_reason == expected
    assert reply.text == message.get("refusal", "some")


async def test_an_answer_schema_holds_the_text_strictly_where_it_can():
    async with asking(completion('{"n": 3}')) as (model, server):
        await model.generate(ModelRequest(messages=QUESTION.messages, answer_schema=CLOSED))
        await model.generate(ModelRequest(messages=QUESTION.messages, answer_schema=OPEN))
    formats = [body["response_format"]["json_schema"] for body in server.bodies]
    assert [(f["schema"], f["strict"]) for f in formats] == [(CLOSED, True), (OPEN, False)]


async def test_a_server_without_json_schema_is_asked_for_less_and_that_is_remembered():
    refusals = [failure(400, "'response_format.type' must be 'text'")] * 2
    request = ModelRequest(messages=[system_message("Be brief."), *QUESTION.messages], answer_schema=CLOSED)
    async with asking(*refusals, completion('{"n": 3}')) as (model, server):
        assert (await model.generate(request)).text == '{"n": 3}'
        await model.generate(request)
    first, second, third, again = server.bodies
    assert second["response_format"] == {"type": "json_object"} and "response_format" not in third
    assert third == again and len(third["messages"]) == 2
    assert third["messages"][0]["content"].startswith("Be brief.\n\nAnswer with one JSON object")


async def test_one_schema_that_is_refused_is_not_held_against_the_next():
    refusal = failure(400, "Invalid schema for response_format 'answer'")
    request = ModelRequest(messages=QUESTION.messages, answer_schema=CLOSED)
    async with asking(refusal, completion("{}")) as (model, server):
        await model.generate(request)
        await model.generate(request)
    assert [body["response_format"]["type"] for body in server.bodies] == ["json_schema", "json_object", "json_schema"]


@pytest.mark.parametrize(
    ("message", "removed", "instead"),
    [
        ("Unsupported value: 'temperature' does not support 0.5", "temperature", None),
        ("Unsupported parameter: 'max_tokens', use 'max_completion_tokens'", "max_tokens", "max_completion_tokens"),
        ("tool_choice 'required' is not supported", "tool_choice", "tools"),
        ("Unknown field: stream_options", "stream_options", "stream"),
    ],
)
async def test_a_parameter_the_server_refuses_is_left_out_from_then_on(message, removed, instead):
    request = ModelRequest(
        messages=QUESTION.messages, tools=[ADD], tool_choice="required", temperature=0.5, max_tokens=7
    )
    async with asking(failure(400, message), Answer(events=chunks({"content": "3"}))) as (model, server):
        assert (await model.generate(request, print)).text == "3"
        await model.generate(request, print)
    assert removed in server.bodies[0]
    assert [removed in body for body in server.bodies[1:]] == [False, False]
    assert instead is None or instead in server.bodies[1]


async def test_a_request_that_is_too_long_is_refused_and_nothing_is_conceded():
    message = "This model's maximum context length is 4096 tokens, you asked for 5000 (max_tokens 4000)"
    async with asking(failure(400, message)) as (model, server):
        with pytest.raises(ModelRefused, match="maximum context length"):
            await model.generate(ModelRequest(messages=QUESTION.messages, max_tokens=4000))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (failure(401, "Incorrect API key"), ModelRefused, "Incorrect API key. Check the API key."),
        (failure(404, "no such model"), ModelRefused, "Check the name of the model"),
        (failure(429, "You exceeded your current quota: insufficient_quota"), ModelRefused, "quota"),
        (failure(413, "body too big"), RequestTooLong, "Send less."),
        (failure(429, "slow down"), ModelUnavailable, "slow down"),
        (failure(503, "loading model"), ModelUnavailable, "loading model"),
        (failure(408, "late"), ModelUnavailable, "late"),
        (Answer(status=502, body=b"<html>Bad gateway"), ModelUnavailable, "Bad gateway"),
        (json_answer({"detail": "not so"}, 400), ModelRefused, "not so"),
        (json_answer({"error": "model 'm' not found"}, 404), ModelRefused, "model 'm' not found"),
        (Answer(body=b"<html>Welcome", headers={"Content-Type": "text/html"}), ModelRefused, "most end in /v1"),
        (json_answer({"error": {"message": "no credits"}}), ModelRefused, "no credits"),
        (Answer(body=b"{broken", headers={"Content-Type": "application/json"}), ModelUnavailable, "openai:m"),
    ],
)
async def test_failures_are_temporary_or_permanent(answer, kind, message):
    async with asking(answer) as (model, server):
        with pytest.raises(kind) as caught:
            await model.generate(QUESTION)
    assert type(caught.value) is kind and message in str(caught.value)
    assert len(server.requests) == 1  # it is `RetryingModel` that asks again


@pytest.mark.parametrize("then", ["cut", "finish"])
async def test_a_stream_that_breaks_off_is_no_answer(then):
    events = chunks({"content": "It is"}, finish=None)[:1]
    pieces: list[str] = []
    async with asking(Answer(events=events, then=then)) as (model, _):
        with pytest.raises(ModelUnavailable):
            await model.generate(QUESTION, pieces.append)
    assert pieces == ["It is"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "The server is overloaded", "type": "server_error"}, ModelUnavailable),
        ({"message": "Too many tokens", "code": "context_length_exceeded"}, ModelRefused),
    ],
)
async def test_an_error_inside_a_stream_is_raised(error, kind):
    events = [*chunks({"content": "It"}, finish=None)[:1], f"data: {json.dumps({'error': error})}\n\n".encode()]
    async with asking(Answer(events=events)) as (model, _):
        with pytest.raises(kind, match=error["message"]):
            await model.generate(QUESTION, print)


async def test_a_server_that_does_not_stream_is_understood():
    pieces: list[str] = []
    async with asking(completion("It is 3.")) as (model, server):
        reply = await model.generate(QUESTION, pieces.append)
    assert server.bodies[0]["stream"] is True and reply.text == "It is 3." == "".join(pieces)


async def test_a_history_with_calls_goes_out_as_it_is_but_for_broken_arguments():
    good = ToolCall(name="add", arguments={"a": 1}, id="c1")
    broken = ToolCall(name="add", id="c2", error="…", raw='{"a": ')
    history = [
        user_message("1 + 2?"),
        assistant_message("", [good, broken]),
        tool_message(good, "1"),
        tool_message(broken, "no"),
    ]
    async with asking(completion("3")) as (model, server):
        await model.generate(ModelRequest(messages=history))
    (sent,) = [body["messages"] for body in server.bodies]
    assert [sent[0], *sent[2:]] == [history[0], *history[2:]]
    arguments = [json.loads(call["function"]["arguments"]) for call in sent[1]["tool_calls"]]
    assert arguments == [{"a": 1}, {"unreadable_arguments": '{"a": '}]


async def test_the_key_of_the_environment_goes_only_where_the_environment_says(monkeypatch):
    async with model_server(completion("3")) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        for model in (OpenAIModel("m"), OpenAIModel("m", base_url=f"{server.url}/v1")):
            await model.generate(QUESTION)
            await model.aclose()
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer sk-mine", "Bearer none"]


async def test_without_key_and_base_url_it_says_what_to_set(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ModelRefused, match="Set OPENAI_API_KEY"):
        await OpenAIModel("m").generate(QUESTION)


async def test_a_model_can_be_used_again_after_it_was_closed():
    async with asking(completion("3")) as (model, _):
        await model.generate(QUESTION)
        await model.aclose()
        assert (await model.generate(QUESTION)).text == "3"


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # nobody can close the connections of a loop that has ended
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_model_can_be_used_in_one_event_loop_after_another():
    async def ask(model: OpenAIModel, *, last: bool = False) -> str:
        reply = await model.generate(QUESTION)
        if last:
            await model.aclose()
        return reply.text

    with serve_http_in_thread(lambda _: completion("3")) as server:
        model = OpenAIModel("m", base_url=f"{server.url}/v1")
        assert asyncio.run(ask(model)) == asyncio.run(ask(model, last=True)) == "3"
        del model
        gc.collect()
