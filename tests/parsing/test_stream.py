"""Text that comes in pieces: the result is the same wherever it was cut, and prose is shown early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.parsing import KnownTools, ToolCallReader, read_tool_calls
from tests.parsing.making import TOOLS
from tests.parsing.test_families import FAMILIES
from tests.parsing.test_precision import NO_CALLS

KNOWN = KnownTools(TOOLS)
SNIPPETS = [
    *(text for text, _ in FAMILIES.values()),
    *NO_CALLS.values(),
    *[
        "Hello there. ",
        "\n",
        "\n\n",
        " ",
        "- ",
        "1. ",
        "x = ",
        "await ",
        "print(",
        "It is: ",
        "`",
        "```",
        "```json\n",
        "a < b ",
    ],
    *[
        "<think>",
        "</think>",
        "<|im_end|>",
        "<s>",
        "</tool_call>",
        "<tool_call>",
        "[",
        "{",
        "(",
        ")",
        "Action:",
        "For example",
    ],
    *[
        "Final Answer:",
        "get_time",
        "get_time()",
        "unknown(1)",
        '{"a": 1}',
        "[link](x)",
        "functools",
        "<|channel|>",
        "~~~",
    ],
]
texts = st.lists(st.sampled_from(SNIPPETS), min_size=1, max_size=6).map("".join)


def read_in_pieces(text, cuts):
    reader = ToolCallReader(KNOWN)
    edges = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    shown = [reader.feed(text[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    return reader.close(), "".join(shown)


@given(texts, st.lists(st.integers(min_value=0), max_size=12))
def test_cuts_do_not_change_what_is_read(text, cuts):
    reading, shown = read_in_pieces(text, cuts)
    whole = read_tool_calls(text, KNOWN)
    assert reading == whole
    assert whole.text.startswith(shown)


@given(texts)
def test_single_characters_do_not_change_what_is_read(text):
    reading, shown = read_in_pieces(text, range(len(text)))
    assert reading == read_tool_calls(text, KNOWN)
    assert reading.text.startswith(shown)


def test_prose_is_shown_as_it_comes_and_calls_are_not():
    reader = ToolCallReader(TOOLS)
    pieces = [
        "Let me ",
        "look that up for ",
        "you.\n\n<tool",
        '_call>{"name": "get_time", ',
        '"arguments": {}}</tool_call>',
    ]
    assert [reader.feed(piece) for piece in pieces] == ["", "Let me look that up", " for you.", "", ""]
    reading = reader.close()
    assert [call.name for call in reading.calls] == ["get_time"]
    assert reading.text == "Let me look that up for you."


def test_what_turns_out_to_be_no_call_is_shown_after_all():
    reader = ToolCallReader(TOOLS)
    shown = "".join(reader.feed(char) for char in 'The answer is {"name": "Alice", "age": 3}, see [1] (a < b). Ok?\n')
    assert shown.startswith('The answer is {"name": "Alice", "age": 3}, see [1] (a < b).')
    assert reader.close().calls == ()


def test_thoughts_are_not_shown():
    reader = ToolCallReader(TOOLS)
    shown = "".join(
        reader.feed(piece)
        for piece in ["<thi", "nk>get_time", "() and so on</th", "ink>\n", "It is noon, ", "I think."]
    )
    assert "It is noon, I think.".startswith(shown)
    assert shown.startswith("It is noon")


@pytest.mark.timeout(20)
def test_a_long_text_in_small_pieces_is_read_in_good_time():
    reader = ToolCallReader(TOOLS)
    text = '{"rows": [' + '{"name": "x", "size": 1}, ' * 2_000 + "]}\n" + "That was all. " * 1_000
    shown = "".join(reader.feed(text[at : at + 4]) for at in range(0, len(text), 4))
    assert len(shown) > len(text) * 0.9
    assert reader.close().text == text.strip()
