"""Values as models write them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.parsing.literals import MAX_DEPTH, Unreadable, read_whole

plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_json_is_read_as_json_reads_it(value):
    assert read_whole(json.dumps(value)) == value
    assert read_whole(json.dumps(value, ensure_ascii=False, indent=1)) == value


@given(plain)
def test_python_is_read_as_python_reads_it(value):
    assert read_whole(repr(value)) == value


@given(st.text(alphabet="{}[]()\"'\\,:;=<>|/#_ \nau0-9.eN“”"))
def test_any_text_is_a_value_or_unreadable(said):
    try:
        json.dumps(read_whole(said), allow_nan=False).encode()
    except Unreadable as failure:
        assert 0 <= failure.at <= len(said)


@pytest.mark.parametrize(
    ("said", "value"),
    [
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
    ],
)
def test_what_is_meant_is_plain(said, value):
    assert read_whole(said) == value


@pytest.mark.parametrize(
    "said",
    [
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
    ],
)
def test_what_could_be_read_in_two_ways_or_none_is_unreadable(said):
    with pytest.raises(Unreadable):
        read_whole(said)


def test_depth_is_limited():
    assert read_whole("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(Unreadable, match="nested deeper"):
        read_whole("[" * 100_000 + "]" * 100_000)
