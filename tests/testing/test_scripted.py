"""A model that follows a script."""

import pytest

from ferrule.core.messages import ToolCall, Usage, user_message
from ferrule.errors import ModelUnavailable, SetupError
from ferrule.models import ModelReply, ModelRequest
from ferrule.testing import ScriptedModel

QUESTION = ModelRequest(messages=[user_message("1 + 2?")])
CALL = {"name": "add", "arguments": {"a": 1}}


async def test_each_request_gets_the_next_turn():
    model = ScriptedModel([CALL, [CALL, {"name": "now"}], "It is 3."])
    first, second, third = [await model.generate(QUESTION) for _ in range(3)]
    assert first.tool_calls == (ToolCall(name="add", arguments={"a": 1}, id="call_1"),)
    assert [(c.id, c.name, c.arguments) for c in second.tool_calls] == [
        ("call_2", "add", {"a": 1}),
        ("call_3", "now", {}),
    ]
    assert (third.text, third.tool_calls, third.usage) == ("It is 3.", (), Usage(requests=1))
    assert [r.finish_reason for r in (first, second, third)] == ["tool_calls", "tool_calls", "stop"]


async def test_a_script_that_ends_says_so_and_what_was_asked():
    model = ScriptedModel(["It is 3."], name="brief")
    await model.generate(QUESTION)
    with pytest.raises(SetupError, match=r"'brief' has 1 turns, and turn 2 was requested.*'user: 1 \+ 2\?'"):
        await model.generate(QUESTION)


async def test_the_last_turn_of_a_loop_comes_again_and_again_with_new_ids():
    model = ScriptedModel(["Well.", CALL], loop=True)
    replies = [await model.generate(QUESTION) for _ in range(4)]
    assert [r.text for r in replies] == ["Well.", "", "", ""]
    assert [c.id for r in replies for c in r.tool_calls] == ["call_1", "call_2", "call_3"]


async def test_a_turn_may_be_a_whole_reply_with_ids_of_its_own():
    reply = ModelReply(text="Hm.", tool_calls=(ToolCall(name="add", id="x"),), usage=Usage(requests=1, input_tokens=9))
    assert await ScriptedModel([reply]).generate(QUESTION) == reply
    (call,) = (await ScriptedModel([{**CALL, "id": "y"}]).generate(QUESTION)).tool_calls
    assert call.id == "y"


@pytest.mark.parametrize("failure", [ModelUnavailable("busy"), KeyError])
async def test_a_turn_may_be_an_exception(failure):
    model = ScriptedModel([failure, "3"])
    with pytest.raises((ModelUnavailable, KeyError)):
        await model.generate(QUESTION)
    assert (await model.generate(QUESTION)).text == "3"


async def test_a_turn_may_be_a_function_of_the_request():
    model = ScriptedModel([lambda request: f"You asked: {request.messages[-1]['content']}", lambda request: CALL])
    assert (await model.generate(QUESTION)).text == "You asked: 1 + 2?"
    assert (await model.generate(QUESTION)).tool_calls[0].name == "add"


async def test_broken_arguments_are_read_as_from_a_real_model():
    (call,) = (await ScriptedModel([{"name": "add", "arguments": '{"a": '}]).generate(QUESTION)).tool_calls
    assert call.error is not None and call.raw == '{"a": '


async def test_requests_are_kept_as_they_were():
    messages = [user_message("1 + 2?")]
    model = ScriptedModel(["3", "4"])
    for _ in range(2):
        await model.generate(ModelRequest(messages=messages))
        messages.append(user_message("And?"))
    assert [len(request.messages) for request in model.requests] == [1, 2]


async def test_text_is_handed_on_in_pieces():
    pieces: list[str] = []
    text = "It  is\n third. "
    await ScriptedModel([text]).generate(QUESTION, pieces.append)
    assert len(pieces) == 3 and "".join(pieces) == text


@pytest.mark.parametrize("turn", [{"tool": "add"}, {**CALL, "args": {}}, [CALL, "text"], 3, None])
def test_what_is_no_turn_is_told_before_the_test_runs(turn):
    with pytest.raises(SetupError, match="of a script"):
        ScriptedModel([turn])


def test_an_empty_script_cannot_loop():
    with pytest.raises(SetupError, match="at least one turn"):
        ScriptedModel([], loop=True)
