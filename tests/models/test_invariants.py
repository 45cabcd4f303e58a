"""Properties that hold for every history and for every way a stream is split."""

import json
from types import SimpleNamespace as Piece
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ferrule.core.messages import ToolCall, assistant_message, system_message, tool_message, user_message
from ferrule.models.anthropic import to_anthropic_conversation
from ferrule.models.openai import OpenAIReplyBuilder

TEXTS = st.sampled_from(["", " ", "Hm.", "你好"])
CALLS = st.builds(
    ToolCall,
    name=st.sampled_from(["add", "now"]),
    arguments=st.sampled_from([{}, {"a": 1}]),
    id=st.sampled_from(["", "c1", "c2", "call:3"]),
    error=st.sampled_from([None, "broken"]),
    raw=st.sampled_from(["", "{a", "[1]"]),
)
MESSAGES = st.one_of(
    st.builds(system_message, TEXTS),
    st.builds(user_message, TEXTS),
    st.builds(assistant_message, TEXTS, st.lists(CALLS, max_size=3)),
    st.builds(tool_message, CALLS, TEXTS),
)


def ids(turn: dict[str, Any], kind: str, name: str) -> list[str]:
    return [block[name] for block in turn["content"] if block["type"] == kind]


@given(st.lists(MESSAGES, max_size=12))
def test_any_history_becomes_turns_that_anthropic_takes(history):
    _, turns = to_anthropic_conversation(history)
    assert [turn["role"] for turn in turns] == (["user", "assistant"] * len(turns))[: len(turns)]
    assert turns[-1]["role"] == "user" and all(turn["content"] for turn in turns)
    assert all(block["text"].strip() for turn in turns for block in turn["content"] if block["type"] == "text")
    used = [id for turn in turns for id in ids(turn, "tool_use", "id")]
    assert len(used) == len(set(used))
    for before, after in zip([{"content": []}, *turns], turns, strict=False):
        assert sorted(ids(before, "tool_use", "id")) == sorted(ids(after, "tool_result", "tool_use_id"))
        kinds = [block["type"] for block in after["content"]]
        assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result")


@given(st.lists(MESSAGES, max_size=12))
def test_converting_changes_nothing_in_the_history(history):
    before = json.dumps(history)
    to_anthropic_conversation(history)
    assert json.dumps(history) == before


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3), max_size=4),
    st.text(max_size=10),
    st.integers(1, 5),
)
def test_a_stream_makes_the_same_reply_however_it_is_cut(arguments, text, size):
    builder = OpenAIReplyBuilder()
    for i in range(0, len(text), size):
        builder.add(chunk(content=text[i : i + size]))
    for index, values in enumerate(arguments):
        text_of_values = json.dumps(values)
        builder.add(chunk(tool_calls=[part(index, id=f"c{index}", name="add", arguments="")]))
        for i in range(0, len(text_of_values), size):
            builder.add(chunk(tool_calls=[part(index, arguments=text_of_values[i : i + size])]))
    builder.add(Piece(choices=[Piece(delta=None, finish_reason="stop")]))
    reply = builder.reply(model="m")
    assert reply.text == text
    assert [(call.id, call.arguments) for call in reply.tool_calls] == [(f"c{i}", a) for i, a in enumerate(arguments)]


def chunk(**delta: Any) -> Piece:
    return Piece(choices=[Piece(delta=Piece(**delta), finish_reason=None)])


def part(index: int, *, id: str | None = None, **function: str) -> Piece:
    return Piece(index=index, id=id, function=Piece(**function))
