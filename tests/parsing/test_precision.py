"""What is not a call: prose, examples, documentation, programs and data."""

import json

import pytest

from ferrule.parsing import KnownTools, read_tool_calls
from tests.parsing.making import TOOLS, WEATHER

KNOWN = KnownTools(TOOLS)
NO_CALLS = {
    "a mention": "The `get_weather` tool takes a city (and a unit).",
    "in a sentence": 'You can use get_weather(city="Paris") to find out.',
    "in the past": 'I called get_weather(city="Paris") and it is sunny there.',
    "quoted in a sentence": 'Use `get_weather(city="Paris")` for that.',
    "quoted tags": 'It is written `<tool_call>{"name": "get_time", "arguments": {}}</tool_call>`.',
    "an example": 'For example:\n```python\nget_weather(city="Paris")\n```',
    "an example on a line": 'e.g. get_weather(city="Paris")',
    "an example in Chinese": '例如：\nget_weather(city="Paris")\nget_time()',
    "an example in JSON": 'For example:\n[\n  {"name": "get_weather", "arguments": {"city": "Paris"}}\n]',
    "a program": '```python\nimport tools\n\nweather = get_weather(city="Paris")\n```',
    "a function": '```python\ndef look():\n    return get_weather(city="Paris")\n```',
    "a loop": 'for city in cities:\n    get_weather(city="Paris")',
    "another language": '```javascript\nget_weather(city="Paris")\n```',
    "a chain": 'get_weather(city="Paris").temperature',
    "a signature": '### get_weather(city: str, unit: str = "C") -> dict\n\nTells the weather.',
    "a signature on a line": "The signature is: get_weather(city, unit)",
    "parameters on a line": "get_weather(city, unit)\n\nTells the weather of a city.",
    "a person": '{"name": "Alice", "age": 3}',
    "a person with arguments": '{"name": "Alice", "arguments": {"for": 1, "against": 2}}',
    "a list of names": '[{"name": "get_time"}, {"name": "get_weather"}]',
    "a name": '{"tool": "get_weather"}',
    "a result": '{"get_weather": "sunny", "get_time": "12:00"}',
    "a result in JSON": '{"get_weather": {"temperature": 21}}',
    "a plan": '{"plan": [{"tool": "search_web", "args": {"query": "x"}}], "why": "to know"}',
    "a call in data": '{"log": {"name": "get_weather", "arguments": {"city": "Paris"}}, "level": "info"}',
    "a schema": json.dumps(WEATHER),
    "a schema without its envelope": json.dumps(WEATHER["function"]),
    "a schema in a fence": f"```json\n{json.dumps([WEATHER], indent=2)}\n```",
    "a schema for anthropic": '{"name": "get_weather", "input_schema": {"type": "object", "properties": {}}}',
    "a link": "See [get_weather](https://example.org/get_weather) and [1].",
    "mathematics": "If a < b and f(x) = {y}, then [a, b] is not empty.",
    "an unknown function": 'print("hello")',
    "a final answer": 'Final Answer: say {"name": "get_time", "arguments": {}}',
}


@pytest.mark.parametrize("text", NO_CALLS.values(), ids=NO_CALLS)
def test_what_is_no_call_stays_as_it_is(text):
    reading = read_tool_calls(text, KNOWN)
    assert reading.calls == ()
    assert reading.text == text.strip()


@pytest.mark.parametrize("text", ["", " \n", "{", "[", "(", "<", "`", "```", "Action:", "get_weather(", "<tool_call>"])
def test_fragments_give_no_call_that_could_be_made(text):
    assert all(call.error for call in read_tool_calls(text, KNOWN).calls)
