"""Texts made to be slow: the effort stays within what a text of that length is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.parsing import KnownTools, parse_model_text
from ferrule.parsing.reader import scan_segments
from ferrule.parsing.text import SourceText
from tests.parsing.schemas import TOOLS

pytestmark = pytest.mark.integration

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
REPEATED += [
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


@pytest.mark.timeout(120)  # hangs would be found, slowness is not the point
@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a":' * 200_000, "get_time(" * 100_000])
def test_a_megabyte_of_brackets_is_parsed_in_time(text):
    parsed = parse_model_text(text, KNOWN)
    assert all(call.error for call in parsed.calls)  # none is complete
    assert parsed.text == text or parsed.calls


@pytest.mark.timeout(120)  # hangs would be found, slowness is not the point
@pytest.mark.parametrize("snippet", REPEATED)
def test_a_long_text_of_one_snippet_is_parsed_in_time(snippet):
    parsed = parse_model_text(snippet * (300_000 // len(snippet)), KNOWN)
    is_complete = snippet.startswith(("Action: get_time", "x = get_time()"))
    assert all((call.error is None) is is_complete for call in parsed.calls)


@pytest.mark.parametrize("snippet", REPEATED)
def test_twice_the_text_takes_at_most_about_twice_the_effort(snippet):
    def effort(times):
        text = SourceText(snippet * times)
        scan_segments(text, KNOWN)
        return text.effort

    assert effort(2_000) <= 2.5 * effort(1_000) + 100


@pytest.mark.timeout(120)  # hangs would be found, slowness is not the point
@pytest.mark.parametrize(
    "text", ['get_time("' + '\\"' * 500_000, "Action:" + " \t" * 500_000, "get_time(a=" + "9" * 1_000_000]
)
def test_long_single_values_are_parsed_in_time(text):
    assert all(call.error for call in parse_model_text(text, KNOWN).calls)


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
