"""Values as models write them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.parsing.literals import MAX_DEPTH, LiteralError, parse_literal

plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_json_is_parsed_like_json_loads(value):
    assert parse_literal(json.dumps(value)) == value
    assert parse_literal(json.dumps(value, ensure_ascii=False, indent=1)) == value


@given(plain)
def test_python_is_parsed_like_literal_eval(value):
    assert parse_literal(repr(value)) == value


@given(st.text(alphabet="{}[]()\"'\\,:;=<>|/#_ \nau0-9.eN“”"))
def test_any_text_is_a_value_or_a_literal_error(text):
    try:
        json.dumps(parse_literal(text), allow_nan=False).encode()
    except LiteralError as failure:
        assert 0 <= failure.at <= len(text)


def test_lenient_notations_are_parsed():
    for text, value in (
        ("{'a': True, \"b\": None, c: false,}", {"a": True, "b": None, "c": False}),
        ("{“a”: “b”}", {"a": "b"}),
        ("[1, 07, 1_000, -.5, 0x1F, 2e3]", [1, 7, 1000, -0.5, 31, 2000.0]),
        ("(1, 2)", [1, 2]),
        ("('x')", "x"),
        ("{'x', 'y'}", ["x", "y"]),
        ("{}", {}),
        ('"two\nlines"', "two\nlines"),
        ("'''it's \"so\"'''", 'it\'s "so"'),
        (r'"new\_york \d \u00e9 \ud83d\ude00 \x41"', "new_york \\d é 😀 A"),
        (r"r'\d+'", r"\d+"),
        ('"one " "text"', "one text"),
        ('{"a": 1} // or so', {"a": 1}),
    ):
        assert parse_literal(text) == value


def test_ambiguous_or_invalid_texts_are_literal_errors():
    for text in (
        "Paris",
        "1 2",
        "{1: }",
        "[1 2]",
        '{"a" "b"}',
        '["a" "b"]',
        "2024-01-01",
        "f(1)",
        "NaN",
        "1e999",
        "9" * 5000,
        '"a',
        "[1",
    ):
        with pytest.raises(LiteralError):
            parse_literal(text)


def test_depth_is_limited():
    assert parse_literal("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(LiteralError, match="nested deeper"):
        parse_literal("[" * 100_000 + "]" * 100_000)
