"""Texts made to be slow: the effort stays within what a text of that length is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.parsing import KnownTools, parse_model_text
from ferrule.parsing.reader import scan_segments
from ferrule.parsing.text import SourceText
from tests.parsing.schemas import TOOLS

KNOWN = KnownTools(TOOLS)
REPEATED = [
    "[",
    "{",
    '{"a":',
    "{a:",
    "<",
    "`",
    "` x",
    "```\n",
    "(",
    "get_time(",
    "get_time(\n",
    'get_time("\n',
    "get_time('''\n",
    "<tool_call>",
    "<tool_call>{",
    "<function=get_time>",
    '<invoke name="get_time">',
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "[get_time(",
    "[get_time(), ",
    "Action:\n",
    "Action: get_time\nAction Input: x\n",
    "[TOOL_CALLS]get_time{",
    "a: get_time(",
    '{"name":"get_time","arguments":{',
    '{"name": "get_time" ',
    "<tool_call>get_time<arg_key>a</arg_key><arg_value>",
    "<function=get_weather><parameter=city>",
    "x = get_time(a='",
    "“",
    "get_time(“\n",
    '<|tool_call>call:get_time{a:<|"|>',
    "~~~\n",
    "<think>\n<tool_call>",
    "<tool_call><name>get_time</name>",
    '<invoke name="write_file"><tags><item>',
    'get_weather {"city":',
    "get_weather\n```json\n{",
    "Tool: get_weather\nArguments: ",
    "x = get_time()\nprint(x)\n",
    "<|start|>assistant to=user<|message|>x<|eom|>",
    '{"name": "get_time", "arguments": [{"a": ',
]


@pytest.mark.parametrize("size", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_texts_of_brackets_and_long_values_are_parsed(size):
    brackets = ("[" * size, '{"a":' * (size // 5), "get_time(" * (size // 9))
    values = ('get_time("' + '\\"' * (size // 2), "Action:" + " \t" * (size // 2), "get_time(a=" + "9" * size)
    for text in (*brackets, *values):
        assert all(call.error for call in parse_model_text(text, KNOWN).calls), text[:20]  # none is complete


@pytest.mark.parametrize("size", [10_000, pytest.param(300_000, marks=pytest.mark.long)])
def test_a_long_text_of_one_snippet_is_parsed(size):
    for snippet in REPEATED:
        parsed = parse_model_text(snippet * (size // len(snippet)), KNOWN)
        is_complete = snippet.startswith(("Action: get_time", "x = get_time()", "[get_time(), "))
        assert all((call.error is None) is is_complete for call in parsed.calls), snippet


def test_twice_the_text_takes_at_most_about_twice_the_effort():
    def effort(snippet, times):
        text = SourceText(snippet * times)
        scan_segments(text, KNOWN)
        return text.effort

    wrong = [snippet for snippet in REPEATED if effort(snippet, 1_000) > 2.5 * effort(snippet, 500) + 100]
    assert wrong == []


def test_a_long_argument_is_read():
    content = "line {[(<`\n" * 50_000
    calls = parse_model_text(
        f"<tool_call>{{'name': 'write_file', 'arguments': {{'content': {content!r}}}}}</tool_call>", KNOWN
    ).calls
    assert [call.arguments for call in calls] == [{"content": content}]


@given(st.lists(st.sampled_from([*"{}[]()<>/|`~\"'\\:=,;._ \nab", *REPEATED, "name", "Paris", "=", "</"]), max_size=20))
def test_parsing_is_deterministic_for_any_text(parts):
    text = "".join(parts)
    first = parse_model_text(text, KNOWN)
    assert first == parse_model_text(text, KNOWN)
    assert all(call.name for call in first.calls)
