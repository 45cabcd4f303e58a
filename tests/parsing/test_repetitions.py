"""A call that a text shows twice is made once; calls that are repeated on purpose are all made."""

import pytest

from ferrule.parsing import KnownTools, parse_model_text
from tests.parsing.schemas import TOOLS

KNOWN = KnownTools(TOOLS)
JSON = '{"name": "search_web", "arguments": {"query": "tea", "limit": 2}}'
PYTHON = 'search_web(query="tea", limit=2)'
SHOWN_AGAIN = {
    "json, then python": f"{JSON}\n\nIn Python this is:\n\n{PYTHON}",
    "json, then a python list": f"[{JSON}]\n\nAs Python:\n\n[{PYTHON}]",
    "json directly before python": f"{JSON}\n{PYTHON}",
    "a fence, then its explanation": f"```json\n{JSON}\n```\n\nThis calls:\n\n```python\n{PYTHON}\n```\nThat is all.",
    "three notations": f'[{JSON}]\n\nIn short:\n\n[{PYTHON}]\n\n```python\n[search_web("tea", 2)]\n```',
    "numbers written differently": f"{JSON}\n\nThat is:\nsearch_web('tea', limit=2.0)",
    "the same notation after prose": f"{PYTHON}\n\nTo repeat, I call:\n\n{PYTHON}",
    "two fences": f"```python\n{PYTHON}\n```\n```python\n{PYTHON}\n```",
    "tags, then python": f"<tool_call>{JSON}</tool_call>\n\nThis runs:\n{PYTHON}",
    "python, then tags": f"I will run:\n{PYTHON}\n\n<tool_call>{JSON}</tool_call>",
    "an action, again": 'Action: search_web\nAction Input: {"query": "tea", "limit": 2}\n' * 2,
    "labels, then a fence below the name": (
        'Tool: search_web\nArguments: {"query": "tea", "limit": 2}\n\n'
        'search_web\n```json\n{"query": "tea", "limit": 2}\n```'
    ),
    "tags again after prose": f"<tool_call>{JSON}</tool_call>\nI wait for the result.\n<tool_call>{JSON}</tool_call>",
}
ON_PURPOSE = {
    "a json list": f"[{JSON}, {JSON}]",
    "a python list": f"[{PYTHON}, {PYTHON}]",
    "lines": f"{PYTHON}\n{PYTHON}",
    "json objects": f"{JSON}\n{JSON}",
    "statements in a fence": f"```python\n{PYTHON}\n{PYTHON}\n```",
    "tags": f"<tool_call>{JSON}</tool_call>\n<tool_call>{JSON}</tool_call>",
    "mistral's calls": '[TOOL_CALLS]search_web[ARGS]{"query": "tea", "limit": 2}' * 2,
    "a section of tags": "<|tool_calls_section_begin|>"
    + '<|tool_call_begin|>search_web<|tool_call_argument_begin|>{"query": "tea", "limit": 2}<|tool_call_end|>' * 2
    + "<|tool_calls_section_end|>",
}


def calls_in(text):
    return [(call.name, call.arguments) for call in parse_model_text(text, KNOWN).calls]


@pytest.mark.parametrize("text", SHOWN_AGAIN.values(), ids=SHOWN_AGAIN)
def test_a_call_that_is_shown_again_is_one_call(text):
    assert calls_in(text) == [("search_web", {"query": "tea", "limit": 2})]
    assert "search_web" not in parse_model_text(text, KNOWN).text


@pytest.mark.parametrize("text", ON_PURPOSE.values(), ids=ON_PURPOSE)
def test_equal_calls_in_one_list_or_sequence_are_several(text):
    assert calls_in(text) == [("search_web", {"query": "tea", "limit": 2})] * 2


def test_only_the_new_calls_of_a_second_list_count():
    text = f"[{JSON}]\n\nWith the time:\n\n[{PYTHON}, get_time()]"
    assert calls_in(text) == [("search_web", {"query": "tea", "limit": 2}), ("get_time", {})]


def test_true_and_one_are_different_arguments():
    text = 'write_file("a", "b", backup=True)\n\nThen:\n\nwrite_file("a", "b", backup=1)'
    assert len(calls_in(text)) == 2
