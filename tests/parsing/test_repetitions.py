"""A call that a text shows twice is made once; calls that are repeated on purpose are all made."""

import json

from hypothesis import given
from hypothesis import strategies as st

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
    "an object, then the same in another shape": f'{JSON}\n{{"search_web": {{"query": "tea", "limit": 2}}}}',
    "compact, then indented": f"{JSON}\n{json.dumps(json.loads(JSON), indent=2)}",
    "a list, then its object": f"[{JSON}]\n{JSON}",
    "an object, then OpenAI's": f'{JSON}\n\n{{"tool_calls": [{{"type": "function", "function": {JSON}}}]}}',
    "a number, then a text": f'{JSON}\n\nThat is:\nsearch_web("tea", limit="2")',
    "a value that is null": f'{JSON}\n\nThat is:\nsearch_web("tea", 2, region=None)',
    "a sentence, then the call": f"I call: {PYTHON}\n{PYTHON}",
    "json in tags, then elements": f"<tool_call>{JSON}</tool_call><tool_call>search_web<arg_key>query</arg_key>"
    "<arg_value>tea</arg_value><arg_key>limit</arg_key><arg_value>2</arg_value></tool_call>",
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
    "numbered lines": f"1. {PYTHON}\n2. {PYTHON}",
    "objects with ids": f'{{"id": "call_a", {JSON[1:]}\n{{"id": "call_b", {JSON[1:]}',
    "tags with other spaces": f"<tool_call>\n{JSON}\n</tool_call><tool_call>{JSON}</tool_call>",
    "kimi's numbers": "".join(
        f'<|tool_call_begin|>functions.search_web:{number}<|tool_call_argument_begin|>{{"query": "tea", "limit": 2}}'
        "<|tool_call_end|>"
        for number in range(2)
    ),
    "a section of tags": "<|tool_calls_section_begin|>"
    + '<|tool_call_begin|>search_web<|tool_call_argument_begin|>{"query": "tea", "limit": 2}<|tool_call_end|>' * 2
    + "<|tool_calls_section_end|>",
}


def calls_in(text):
    return [(call.name, call.arguments) for call in parse_model_text(text, KNOWN).calls]


def test_a_call_that_is_shown_again_is_one_call():
    for case, text in SHOWN_AGAIN.items():
        assert calls_in(text) == [("search_web", {"query": "tea", "limit": 2})], case
        assert "search_web" not in parse_model_text(text, KNOWN).text, case


def test_equal_calls_in_one_list_or_sequence_are_several():
    for case, text in ON_PURPOSE.items():
        assert calls_in(text) == [("search_web", {"query": "tea", "limit": 2})] * 2, case


def test_only_the_new_calls_of_a_second_list_count():
    text = f"[{JSON}]\n\nWith the time:\n\n[{PYTHON}, get_time()]"
    assert calls_in(text) == [("search_web", {"query": "tea", "limit": 2}), ("get_time", {})]


FORMS = {
    "json": lambda name, arguments: json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False),
    "json in json": lambda name, arguments: json.dumps({"name": name, "arguments": json.dumps(arguments)}),
    "a list": lambda name, arguments: json.dumps([{"name": name, "arguments": arguments}]),
    "by name": lambda name, arguments: json.dumps({name: arguments}),
    "a fence": lambda name, arguments: f"```json\n{json.dumps({'name': name, 'arguments': arguments})}\n```",
    "python": lambda name, arguments: f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})",
    "positions": lambda name, arguments: f"[{name}({', '.join(map(repr, arguments.values()))})]",
    "tags": lambda name, arguments: (
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"
    ),
    "invoke": lambda name, arguments: (
        f'<invoke name="{name}">'
        + "".join(f'<parameter name="{key}">{value}</parameter>' for key, value in arguments.items())
        + "</invoke>"
    ),
    "an action": lambda name, arguments: f"Action: {name}\nAction Input: {json.dumps(arguments)}",
    "glm 4": lambda name, arguments: f"{name}\n{json.dumps(arguments)}",
}
WORDS = st.text("abc红茶 '\"-.?", min_size=1, max_size=12).map(str.strip).filter(bool)


@given(
    forms=st.lists(st.sampled_from(sorted(FORMS)), min_size=2, max_size=3, unique=True),
    query=WORDS,
    limit=st.integers(0, 99),
    between=st.sampled_from(["\n", "\n\n", "\n\nIn other words:\n\n", "\n\n也就是说：\n\n", "\nNow I wait.\n"]),
)
def test_no_two_forms_of_one_call_are_two_calls(forms, query, limit, between):
    call = ("search_web", {"query": query, "limit": limit})
    readable = [form for form in forms if calls_in(FORMS[form](*call)) == [call]]
    text = between.join(FORMS[form](*call) for form in readable)
    assert len([each for each in parse_model_text(text, KNOWN).calls if each.error is None]) == bool(readable), text


def test_true_and_one_are_different_arguments():
    text = 'write_file("a", "b", backup=True)\n\nThen:\n\nwrite_file("a", "b", backup=1)'
    assert len(calls_in(text)) == 2
