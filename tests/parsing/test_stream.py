"""Text that comes in pieces: the result is the same wherever it was cut, and prose is shown early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.parsing import KnownTools, ToolCallReader, parse_model_text
from tests.parsing.schemas import TOOLS
from tests.parsing.test_families import FAMILIES
from tests.parsing.test_hostile_texts import REPEATED
from tests.parsing.test_precision import NO_CALLS

KNOWN = KnownTools(TOOLS)
SNIPPETS = [
    *(text for text, _ in FAMILIES.values()),
    *NO_CALLS.values(),
    *REPEATED,
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
    "```",
    "```json\n",
    "a < b ",
    "<|im_end|>",
    "<s>",
    "</tool_call>",
    ")",
    "Action:",
    "For example",
    "Final Answer:",
    "get_time",
    "get_time()",
    "unknown(1)",
    '{"a": 1}',
    "[link](x)",
    "functools",
    "<|channel|>",
    "~~~",
    "\n### Instruction: ",
    " to=user<|message|>",
    "<|open|>response<|sep|>",
    "<|close|>think<|sep|>",
    " to=functions.get_time<|channel|>",
    ">>> ",
    "get_tme(1)",
    "]<]minimax[>[",
    "\\",
]
texts = st.lists(st.sampled_from(SNIPPETS), min_size=1, max_size=6).map("".join)


def read_in_pieces(text, cuts):
    reader = ToolCallReader(KNOWN)
    edges = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    visible = [reader.feed(text[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    return reader.close(), "".join(visible)


@given(texts, st.lists(st.integers(min_value=0), max_size=12))
def test_the_split_of_a_stream_does_not_change_the_result(text, cuts):
    parsed, visible = read_in_pieces(text, cuts)
    whole = parse_model_text(text, KNOWN)
    assert parsed == whole
    assert whole.text.startswith(visible)


@given(texts)
def test_a_stream_of_single_characters_does_not_change_the_result(text):
    parsed, visible = read_in_pieces(text, range(len(text)))
    assert parsed == parse_model_text(text, KNOWN)
    assert parsed.text.startswith(visible)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_format_is_held_back_until_it_is_complete(size):
    for family, (text, _) in FAMILIES.items():
        for whole in (text, f"Let me look. {text} Done: yes.", f" \n{text}", f"{{{text}"):
            parsed, visible = read_in_pieces(whole, range(0, len(whole), size))
            assert parsed == parse_model_text(whole, KNOWN) and parsed.text.startswith(visible), family


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
    parsed = reader.close()
    assert [call.name for call in parsed.calls] == ["get_time"]
    assert parsed.text == "Let me look that up for you."


def test_text_that_is_held_back_and_no_call_is_shown_later():
    reader = ToolCallReader(TOOLS)
    visible = "".join(reader.feed(char) for char in 'The answer is {"name": "Alice", "age": 3}, see [1] (a < b). Ok?\n')
    assert visible.startswith('The answer is {"name": "Alice", "age": 3}, see [1] (a < b).')
    assert reader.close().calls == ()


def test_thinking_is_not_shown():
    reader = ToolCallReader(TOOLS)
    visible = "".join(
        reader.feed(piece)
        for piece in ["<thi", "nk>get_time", "() and so on</th", "ink>\n", "It is noon, ", "I think."]
    )
    assert "It is noon, I think.".startswith(visible)
    assert visible.startswith("It is noon")


def test_a_long_text_in_small_pieces_is_parsed_in_time():
    reader = ToolCallReader(TOOLS)
    text = '{"rows": [' + '{"name": "x", "size": 1}, ' * 2_000 + "]}\n" + "That was all. " * 1_000
    visible = "".join(reader.feed(text[at : at + 4]) for at in range(0, len(text), 4))
    assert len(visible) > len(text) * 0.9
    assert reader.close().text == text.strip()
