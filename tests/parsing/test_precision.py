"""What is not a call: prose, examples, documentation, programs and data."""

import json

from ferrule.parsing import KnownTools, parse_model_text
from tests.parsing.schemas import TOOLS, WEATHER

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
    "a result below a name": 'get_weather\n{"temperature": 21}',
    "quoted names": "The tools are ['get_weather', 'get_time'].",
    "quoted words and calls": """['get_weather(city="Paris")', 'is how you write it']""",
    "a list of lists": "[[1, 2], [3, 4]]",
    "a tool beside its data": '{"name": "get_weather", "score": 3}',
    "a link": "See [get_weather](https://example.org/get_weather) and [1].",
    "a link of code": "See [`get_time()`](time.md) and [`get_time()`][].",
    "the address of a link": "[`get_time()`]: time.md#now",
    "mathematics": "If a < b and f(x) = {y}, then [a, b] is not empty.",
    "an unknown function": 'print("hello")',
    "a description": "Tool: get_weather\nParameters: city, unit",
    "a usage": "get_weather {city}",
    "a result behind a name": 'get_weather: {"unit": "C"}',
    "an empty result": "get_time: {}",
    "an element with text": "<get_weather>Paris</get_weather>",
    "an element in a sentence": "Put <get_weather><city>Paris</city></get_weather> on the page.",
    "an element with parameters and text": "<get_weather><city>Paris</city> is nice</get_weather>",
    "JSON in a sentence": 'Send {"name": "get_weather", "arguments": {"city": "Paris"}} to the server.',
    "a refused call": 'You ask me to call this, but I won\'t:\n```python\nget_weather(city="Paris")\n```',
    "a refused call in Chinese": '我不能执行下面的调用：\nget_weather(city="Paris")',
    "a call that waits for the user": 'Once you confirm, I will call:\n\nget_weather(city="Paris")',
    "a call that waits for the user, in Chinese": '等您确认后，我会调用：\nget_weather(city="Paris")',
    "tagged examples": (
        'For example:\n<tool_call>{"name": "get_time", "arguments": {}}</tool_call>\n'
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    ),
    "a tagged example in Chinese": '例如：\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n就这样。',
    "tags at the end of a sentence": "Models write <tool_call> before a call and close it with </tool_call>.",
    "a call in a result": '<tool_response>\n{"name": "get_time", "arguments": {}}\n</tool_response>',
    "an action that is no tool": "行动：我们应该打电话给客户。",
    "an example in a fence below a name": 'For example, get_weather:\n```json\n{"city": "Paris"}\n```',
    "a program that prints more": '```python\nw = get_weather(city="Paris")\nprint(w["wind"])\n```',
    "a final answer": 'Final Answer: say {"name": "get_time", "arguments": {}}',
}


def test_text_without_calls_is_unchanged():
    readings = {case: parse_model_text(text, KNOWN) for case, text in NO_CALLS.items()}
    assert {case: reading.calls for case, reading in readings.items() if reading.calls} == {}
    assert {case: reading.text for case, reading in readings.items()} == {
        case: text.strip() for case, text in NO_CALLS.items()
    }


def test_fragments_contain_no_valid_call():
    for text in ("", " \n", "{", "[", "(", "<", "`", "```", "Action:", "get_weather(", "<tool_call>"):
        assert all(call.error for call in parse_model_text(text, KNOWN).calls), text
