import dataclasses
import json
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ferrule.content import (
    DEEPEST,
    Audio,
    Image,
    Output,
    Resource,
    Text,
    as_text,
    copy_json,
    encode_json,
    is_deep,
    plain_json,
)
from ferrule.errors import text_of


class Colour(Enum):
    RED = "red"


class Point(BaseModel):
    x: int


@dataclasses.dataclass
class Pair:
    a: int


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": 1}, {"a": 1}),
        (3, {"result": 3}),
        (None, {"result": None}),
        ("文本", {"result": "文本"}),
        ([1, "x"], {"result": [1, "x"]}),
        (Point(x=1), {"x": 1}),
        (Pair(1), {"a": 1}),
        (Colour.RED, {"result": "red"}),
        ({1, 2}, {"result": [1, 2]}),
        (Path("a/b"), {"result": "a/b"}),
        (Decimal("1.10"), {"result": "1.10"}),
        (datetime(2026, 1, 2, tzinfo=UTC), {"result": "2026-01-02T00:00:00+00:00"}),
        (2**100, {"result": 2**100}),
        ({"big": 2**100}, {"big": 2**100}),
        (b"\x00\xff", {"result": "AP8="}),
    ],
)
def test_a_return_value_becomes_json(value, said):
    assert Output.of(value).data == said


def test_images_and_text_together_become_parts_that_json_only_describes():
    output = Output.of([Text(text="see"), Image(data=b"123"), "plain"])
    assert [part.kind for part in output.parts] == ["text", "image", "text"]
    assert output.data["content"][1] == {"type": "image", "mime_type": "image/png", "size": 3}


def test_audio_and_resources_are_parts_too():
    output = Output.of([Audio(data=b"1"), Resource(uri="file:///a", text="hi")])
    assert output.data["content"][1] == {"type": "resource", "uri": "file:///a", "text": "hi"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_json_values_come_through_unchanged(value):
    assert plain_json(value) == value


@pytest.mark.parametrize("value", [object(), {"f": print}, {(1, 2): 3}, float("nan"), "\ud800", {"x": {"y": object()}}])
def test_nothing_is_refused(value):
    json.loads(encode_json(value))


def test_a_value_that_contains_itself_is_said_in_words():
    value: list[object] = []
    value.append(value)
    assert "…" in as_text(value)


def test_no_half_of_a_character_gets_through_to_those_who_cannot_send_it():
    assert Output.of("half \ud83d").data == {"result": "half ?"}
    assert as_text("half \ud83d") == "half ?" and as_text("whole 😀") == "whole 😀"
    assert text_of(ValueError("half \ud83d")) == "half ?"


@pytest.mark.parametrize("inmost", [1, 2**70, "\ud800"])
def test_what_comes_through_is_never_nested_to_the_end_of_the_stack(inmost):
    value = inmost
    for _ in range(700):
        value = [value]
    assert copy_json(Output.of(value).data) == Output.of(value).data
    assert is_deep(value, 699) and not is_deep(value, 700) and not is_deep(Output.of(value).data, DEEPEST)
