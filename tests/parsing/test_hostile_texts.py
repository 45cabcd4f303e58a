"""Texts made to be slow: the effort stays within what a text of that length is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.parsing import KnownTools, read_tool_calls
from ferrule.parsing.reading import scan
from ferrule.parsing.text import Text
from tests.parsing.making import TOOLS

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
]
REPEATED += [
    "<tool_call>",
    "<tool_call>{",
    "<function=get_time>",
    '<invoke name="get_time">',
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
]
REPEATED += [
    "[get_time(",
    "[get_time(), ",
    "Action:\n",
    "Action: get_time\nAction Input: x\n",
    "[TOOL_CALLS]get_time{",
    "a: get_time(",
]
REPEATED += [
    '{"name":"get_time","arguments":{',
    '{"name": "get_time" ',
    "<tool_call>get_time<arg_key>a</arg_key><arg_value>",
]
REPEATED += [
    "<function=get_weather><parameter=city>",
    "x = get_time(a='",
    "“",
    "get_time(“\n",
    '<|tool_call>call:get_time{a:<|"|>',
    "~~~\n",
]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a":' * 200_000, "get_time(" * 100_000])
def test_a_megabyte_of_brackets_is_read_in_good_time(text):
    read_tool_calls(text, KNOWN)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("snippet", REPEATED)
def test_a_long_text_of_one_snippet_is_read_in_good_time(snippet):
    read_tool_calls(snippet * (300_000 // len(snippet)), KNOWN)


@pytest.mark.parametrize("snippet", REPEATED)
def test_twice_the_text_takes_at_most_about_twice_the_effort(snippet):
    def effort(times):
        text = Text(snippet * times)
        scan(text, KNOWN)
        return text.effort

    assert effort(2_000) <= 2.5 * effort(1_000) + 100


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text", ['get_time("' + '\\"' * 500_000, "Action:" + " \t" * 500_000, "get_time(a=" + "9" * 1_000_000]
)
def test_long_single_values_are_read_in_good_time(text):
    assert all(call.error for call in read_tool_calls(text, KNOWN).calls)


def test_a_long_argument_is_read():
    content = "line {[(<`\n" * 50_000
    calls = read_tool_calls(
        f"<tool_call>{{'name': 'write_file', 'arguments': {{'content': {content!r}}}}}</tool_call>", KNOWN
    ).calls
    assert [call.arguments for call in calls] == [{"content": content}]


@given(st.lists(st.sampled_from([*"{}[]()<>/|`~\"'\\:=,;._ \nab", *REPEATED, "name", "Paris", "=", "</"]), max_size=20))
def test_any_text_is_read_and_always_in_the_same_way(parts):
    text = "".join(parts)
    first = read_tool_calls(text, KNOWN)
    assert first == read_tool_calls(text, KNOWN)
    assert all(call.name for call in first.calls)
