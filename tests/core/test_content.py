import dataclasses
import json
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ferrule.core.content import (
    MAX_DEPTH,
    Audio,
    Image,
    Output,
    Resource,
    Text,
    as_text,
    copy_json,
    encode_json,
    is_nested_deeper,
    plain_json,
)
from ferrule.errors import error_text


class Colour(Enum):
    RED = "red"


class Point(BaseModel):
    x: int


@dataclasses.dataclass
class Pair:
    a: int


@pytest.mark.parametrize(
    ("value", "expected"),
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
        (Decimal("1.10"), {"result": 1.1}),
        ({"price": Decimal("-0.07"), "count": Decimal("12")}, {"price": -0.07, "count": 12}),
        ([Fraction(1, 4), Fraction(6, 3), Fraction(1, 3)], {"result": [0.25, 2, 1 / 3]}),
        (Decimal("12345678901234567.89"), {"result": "12345678901234567.89"}),
        (Decimal("1E+5000000"), {"result": "1E+5000000"}),
        (Decimal("NaN"), {"result": "NaN"}),
        (Fraction(10**400, 3), {"result": f"{10**400}/3"}),
        ({"big": 2**100, "price": Decimal("0.1")}, {"big": 2**100, "price": 0.1}),
        (datetime(2026, 1, 2, tzinfo=UTC), {"result": "2026-01-02T00:00:00+00:00"}),
        (2**100, {"result": 2**100}),
        ({"big": 2**100}, {"big": 2**100}),
        (b"\x00\xff", {"result": "AP8="}),
    ],
)
def test_a_return_value_becomes_json(value, expected):
    assert Output.of(value).data == expected


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
def test_json_values_stay_unchanged(value):
    assert plain_json(value) == value


@pytest.mark.parametrize("value", [object(), {"f": print}, {(1, 2): 3}, float("nan"), "\ud800", {"x": {"y": object()}}])
def test_nothing_is_refused(value):
    json.loads(encode_json(value))


def test_a_value_that_contains_itself_becomes_text():
    value: list[object] = []
    value.append(value)
    assert "…" in as_text(value)


def test_lone_surrogates_are_replaced():
    assert Output.of("half \ud83d").data == {"result": "half ?"}
    assert as_text("half \ud83d") == "half ?" and as_text("whole 😀") == "whole 😀"
    assert error_text(ValueError("half \ud83d")) == "half ?"


@pytest.mark.parametrize("inmost", [1, 2**70, "\ud800"])
def test_deep_nesting_is_cut(inmost):
    value = inmost
    for _ in range(700):
        value = [value]
    assert copy_json(Output.of(value).data) == Output.of(value).data
    assert (
        is_nested_deeper(value, 699)
        and not is_nested_deeper(value, 700)
        and not is_nested_deeper(Output.of(value).data, MAX_DEPTH)
    )
