"""Every family of formats, each as its models write it."""

import pytest

from ferrule.parsing import KnownTools, parse_tool_calls, read_tool_calls
from tests.parsing.making import TOOLS

KNOWN = KnownTools(TOOLS)
PARIS = ("get_weather", {"city": "Paris"})
ROME = ("get_weather", {"city": "Rome", "unit": "C"})
NOW: tuple[str, dict[str, str]] = ("get_time", {})
JSON = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
TWO = '[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {}}]'

FAMILIES = {
    "python": ('get_weather(city="Paris")', [PARIS]),
    "python by position": ('get_weather("Rome", "C")', [ROME]),
    "python by position and name": ('get_weather("Rome", unit="C")', [ROME]),
    "python with escaped underscores": ('get\\_weather(city="Paris")', [PARIS]),
    "python with colons": ('get_weather(city: "Rome", unit: "C")', [ROME]),
    "python with an object": ('get_weather({"city": "Paris"})', [PARIS]),
    "python with typographic quotes": ("get_weather(city=“Paris”)", [PARIS]),
    "python list": ('[get_weather(city="Paris"), get_time()]', [PARIS, NOW]),
    "python lists": ('[get_weather(city="Paris")], [get_time()]', [PARIS, NOW]),
    "python lines": ('get_weather(city="Paris")\n\nget_time()', [PARIS, NOW]),
    "python on one line": ('get_weather(city="Paris"); get_time()', [PARIS, NOW]),
    "python numbered": ('1. get_weather(city="Paris")\n2. get_time()', [PARIS, NOW]),
    "python twice": ("get_time()\nget_time()", [NOW, NOW]),
    "python fenced": ('```python\nget_weather(city="Paris")\n# and then\nget_time()\n```', [PARIS, NOW]),
    "python assigned": ('weather = await get_weather(city="Paris")', [PARIS]),
    "python printed": ('```tool_code\nprint(default_api.get_weather(city="Paris"))\n```', [PARIS]),
    "python in backticks": ('`get_weather(city="Paris")`', [PARIS]),
    "json": (JSON, [PARIS]),
    "json list": (TWO, [PARIS, NOW]),
    "json fenced": (f"```json\n{TWO}\n```", [PARIS, NOW]),
    "json one after the other": (f'{JSON}; {{"name": "get_time", "parameters": {{}}}}', [PARIS, NOW]),
    "json with python's words": ("{'tool': 'get_weather', 'args': {'city': 'Paris',}}", [PARIS]),
    "json in json": ('{"function": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}', [PARIS]),
    "json of openai": (f'{{"tool_calls": [{{"type": "function", "function": {JSON}}}]}}', [PARIS]),
    "json of anthropic": (
        '{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}}',
        [PARIS],
    ),
    "json by name": ('[{"get_weather": {"city": "Paris"}}]', [PARIS]),
    "json without its last bracket": (JSON[:-1], [PARIS]),
    "hermes": (f"<tool_call>\n{JSON}\n</tool_call>\n<tool_call>\n{JSON}\n</tool_call>", [PARIS, PARIS]),
    "hermes not closed": (f"<tool_call>\n{JSON}", [PARIS]),
    "hermes in a fence": (f"```xml\n<tool_call>{JSON}</tool_call>\n```", [PARIS]),
    "hermes without arguments": ('<tool_call>{"name": "get_time"}</tool_call>', [NOW]),
    "hunyuan, jamba": (f"<tool_calls>{TWO}</tool_calls>", [PARIS, NOW]),
    "nemotron": (f"<TOOLCALL>{TWO}</TOOLCALL>", [PARIS, NOW]),
    "granite": (f"<|tool_call|>{TWO}", [PARIS, NOW]),
    "granite 20b": (f"<function_call> {JSON}\n<function_call> {JSON}", [PARIS, PARIS]),
    "phi": (f"functools{TWO}", [PARIS, NOW]),
    "command r": (
        '<|START_THINKING|>get_time()<|END_THINKING|><|START_ACTION|>\n[{"tool_call_id": "0", '
        '"tool_name": "get_weather", "parameters": {"city": "Paris"}}]<|END_ACTION|>',
        [PARIS],
    ),
    "internlm": (f"<|action_start|><|plugin|>{JSON}<|action_end|>", [PARIS]),
    "gigachat": (f"<|message_sep|>\n\nfunction call<|role_sep|>\n{JSON}</s>", [PARIS]),
    "apertus": ('<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>', [PARIS]),
    "llama json": (f"<|python_tag|>{JSON}<|eom_id|>", [PARIS]),
    "llama python": ('<|python_start|>[get_weather(city="Paris")]<|python_end|>', [PARIS]),
    "lfm": ("<|tool_call_start|>[get_weather(city='Paris'), get_time()]<|tool_call_end|>", [PARIS, NOW]),
    "olmo": ("<function_calls>get_weather(city='Paris')\nget_time()</function_calls>", [PARIS, NOW]),
    "mistral, old": (f"[TOOL_CALLS]{TWO}", [PARIS, NOW]),
    "mistral, new": ('[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time{}', [PARIS, NOW]),
    "deepseek v3, r1": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [PARIS],
    ),
    "deepseek v3.1": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [PARIS, NOW],
    ),
    "deepseek v3.2": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">'
        "Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [PARIS],
    ),
    "qwen coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        [PARIS],
    ),
    "function tag with json": ('<function=get_weather>{"city": "Paris"}</function>', [PARIS]),
    "invoke": (
        '<function_calls>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
        '<invoke name="get_time">\n</invoke>\n</function_calls>',
        [PARIS, NOW],
    ),
    "minimax": (
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        [PARIS],
    ),
    "minicpm": ('<function name="get_weather"><param name="city"><![CDATA[Paris]]></param></function>', [PARIS]),
    "step": (
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">'
        '<steptml:parameter name="city">Paris</steptml:parameter></steptml:invoke><｜tool_call_end｜>',
        [PARIS],
    ),
    "glm": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
        "<tool_call>get_time</tool_call>",
        [PARIS, NOW],
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>',
        [PARIS],
    ),
    "gemma": ('<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>', [PARIS]),
    "gpt-oss": (
        "<|channel|>analysis<|message|>get_time()<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city":"Paris"}<|call|>',
        [PARIS],
    ),
    "react": ('Thought: I must look.\nAction: get_weather\nAction Input: {"city": "Paris"}', [PARIS]),
    "react with plain input": ("Action: get_weather\nAction Input: Paris\nObservation: Sunny.", [PARIS]),
    "react in bold": ('**Action:** get_weather\n**Action Input:** "Paris"\n', [PARIS]),
    "react json": ('Action:\n```json\n{"action": "get_weather", "action_input": {"city": "Paris"}}\n```', [PARIS]),
    "tool tags": ("<tool>get_weather</tool><tool_input>Paris</tool_input>", [PARIS]),
}


@pytest.mark.parametrize(("text", "calls"), FAMILIES.values(), ids=FAMILIES)
def test_a_family_is_read(text, calls):
    assert [(call.name, call.arguments) for call in parse_tool_calls(text, KNOWN)] == calls


@pytest.mark.parametrize("text", [text for text, _ in FAMILIES.values()], ids=FAMILIES)
def test_prose_around_a_family_is_kept_and_its_tokens_are_not(text):
    reading = read_tool_calls(f"Let me look.\n\n{text}", KNOWN)
    kept = reading.text.replace("Thought: I must look.", "").split("\n")
    assert [line for line in kept if line] == ["Let me look."]
    assert reading.calls and all(call.error is None for call in reading.calls)


@pytest.mark.parametrize("text", [text for text, _ in FAMILIES.values()], ids=FAMILIES)
def test_without_its_tools_no_family_gives_a_call(text):
    assert parse_tool_calls(text, []) == []


def test_a_format_made_for_calls_hides_what_only_looks_like_one():
    text = (
        f'You asked about get_time().\nget_time()\n<tool_call>{JSON}</tool_call>\n{{"name": "get_time", "args": {{}}}}'
    )
    assert [(call.name, call.arguments) for call in parse_tool_calls(text, KNOWN)] == [PARIS]


def test_values_between_tags_are_what_the_schema_says():
    text = (
        "<function=write_file>\n<parameter=path>\n007\n</parameter>\n<parameter=content>\n    x = [1]\n\n</parameter>\n"
        '<parameter=mode>\n420\n</parameter>\n<parameter=backup>true</parameter>\n<parameter=tags>["a"]</parameter>\n'
        "<parameter=meta>{'k': None}</parameter>\n</function>"
    )
    [call] = parse_tool_calls(text, KNOWN)
    assert call.arguments == {
        "path": "007",
        "content": "    x = [1]\n",
        "mode": 420,
        "backup": True,
        "tags": ["a"],
        "meta": {"k": None},
    }


def test_the_mark_of_a_format_may_stand_in_an_argument():
    text = '<tool_call>{"name": "search_web", "arguments": {"query": "what is </tool_call>?"}}</tool_call>'
    [call] = parse_tool_calls(text, KNOWN)
    assert call.arguments == {"query": "what is </tool_call>?"}


def test_a_text_with_its_own_quotes_is_read_if_there_is_one_way_to():
    text = "<|tool_call_start|>[search_web(query='sed -n '3,4p' file.py')]<|tool_call_end|>"
    [call] = parse_tool_calls(text, KNOWN)
    assert call.arguments == {"query": "sed -n '3,4p' file.py"}
    two_ways = "<|tool_call_start|>[search_web(query='say 'a', limit='b' and so on')]<|tool_call_end|>"
    assert parse_tool_calls(two_ways, KNOWN) == []


def test_thoughts_are_not_read():
    thought = '<think>I could get_weather(city="Rome").\nget_weather(city="Rome")</think>\nget_time()'
    assert [call.name for call in parse_tool_calls(thought, KNOWN)] == ["get_time"]
    opened_in_the_prompt = 'get_weather(city="Rome")\n</think>\nget_time()'
    assert [call.name for call in parse_tool_calls(opened_in_the_prompt, KNOWN)] == ["get_time"]
    assert parse_tool_calls('<think>get_weather(city="Rome")', KNOWN) == []


def test_what_a_model_makes_up_after_its_action_is_left_out():
    action = "Action: get_weather\nAction Input: Paris\n"
    text = f"Thought: Look.\n{action}Observation: Rain.\n{action}"
    reading = read_tool_calls(text, KNOWN)
    assert [(call.name, call.arguments) for call in reading.calls] == [PARIS]
    assert reading.text == "Thought: Look."
