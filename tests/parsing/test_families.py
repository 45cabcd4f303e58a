"""Every family of formats, each as its models write it."""

from ferrule.parsing import KnownTools, parse_model_text, parse_tool_calls
from tests.parsing.schemas import TOOLS

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
    "python lines that are continued": ('get_weather(city="Paris"), \\\nget_time()', [PARIS, NOW]),
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
    "python items in backticks": ('[`get_weather(city="Paris")`, `get_time()`]', [PARIS, NOW]),
    "python list without its last bracket": ('[get_weather(city="Paris")', [PARIS]),
    "python list in escaped brackets": ('\\[get\\_weather(city="Paris")\\]', [PARIS]),
    "python with two targets": ('weather, wind = get_weather(city="Paris")', [PARIS]),
    "json with an escaped name": ('{"name": "get\\_weather", "arguments": {"city": "Paris"}}', [PARIS]),
    "glm 4": ('get_weather\n{"city": "Paris"}', [PARIS]),
    "glm 4, twice": ('get_weather\n{"city": "Paris"}\nget_time\n{}', [PARIS, NOW]),
    "name in bold above": ('**get_weather**\n\n{"city": "Paris"}', [PARIS]),
    "name before json": ('get_weather: {"city": "Paris"}', [PARIS]),
    "names before json": (
        'get_weather {"city": "Paris"}\nsearch_web{"query": "x"}',
        [PARIS, ("search_web", {"query": "x"})],
    ),
    "name above a fence": ('`get_weather`\n```json\n{"city": "Paris"}\n```', [PARIS]),
    "heading above a fence": (
        '### get_weather\n\n```\n{"city": "Paris"}\n```\n### get_time\n```\n{}\n```',
        [PARIS, NOW],
    ),
    "labels": ('Tool: get_weather\nArguments: {"city": "Paris"}', [PARIS]),
    "labels in bold": (
        '**Function Name:** get_weather\n**Parameters:**\n{"city": "Paris"}\n\n**Function:** get_time\n**Input:** {}',
        [PARIS, NOW],
    ),
    "python at a prompt": ('>>> get_weather(city="Paris")\n>>> get_time()', [PARIS, NOW]),
    "python behind arrows": ('-> get_weather(city="Paris")\n→ get_time()', [PARIS, NOW]),
    "python in bold": ('**get_weather(city="Paris")**\n\n1. **`get_time()`**', [PARIS, NOW]),
    "python returned": ('```python\nreturn get_weather(city="Paris")\n```', [PARIS]),
    "python printed later": (
        '```python\nweather = get_weather(city="Paris")\nprint(weather)\nnow = get_time()\nprint(now)\n```',
        [PARIS, NOW],
    ),
    "python with an escaped first underscore": (
        "write\\_file(\\_from='a', path='b')",
        [("write_file", {"_from": "a", "path": "b"})],
    ),
    "json with keys of other frameworks": (
        '[{"tool_name": "get_weather", "tool_args": {"city": "Paris"}}, {"api_name": "get_time", "parameters": {}}]',
        [PARIS, NOW],
    ),
    "json with bare keys": ('[{name: "get_weather", arguments: {city: "Paris"}}]', [PARIS]),
    "json in the form of a schema": (
        '{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": "Paris"}}}',
        [PARIS],
    ),
    "lines with the word example in a value": (
        'search_web(query="me@example.com")\nget_weather(city="Paris")',
        [("search_web", {"query": "me@example.com"}), PARIS],
    ),
    "fence for tools": (f"```tools_call\n{JSON}\n```", [PARIS]),
    "fence for function calls": (f"```function-calls\n{TWO}\n```", [PARIS, NOW]),
    "hermes": (f"<tool_call>\n{JSON}\n</tool_call>\n<tool_call>\n{JSON}\n</tool_call>", [PARIS, PARIS]),
    "hermes closed by its opening tag": (f"<tool_call>\n{JSON}\n<tool_call>\n{JSON}\n<tool_call>", [PARIS, PARIS]),
    "hermes with elements": (
        '<tool_call>\n<name>get_weather</name>\n<arguments>{"city": "Paris"}</arguments>\n</tool_call>\n'
        "<tool_use><tool_name>get_time</tool_name><parameters></parameters></tool_use>",
        [PARIS, NOW],
    ),
    "hermes with elements for arguments": (
        "<tool_call><name>write_file</name><arguments><path>a.html</path><content>\n<b>1 < 2</b>\n</content>"
        "<tags><item>x</item><item>y</item></tags><mode>7</mode></arguments></tool_call>",
        [("write_file", {"path": "a.html", "content": "<b>1 < 2</b>", "tags": ["x", "y"], "mode": 7})],
    ),
    "hermes with attributes": ("""<tool_call name="get_weather" arguments='{"city": "Paris"}' />""", [PARIS]),
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
    "deepseek v4, self-closing": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_time"/>\n<｜DSML｜invoke name="get_time" />\n'
        "</｜DSML｜tool_calls>",
        [NOW, NOW],
    ),
    "minimax m3": (
        ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="write_file">]<]minimax[>[<path>a.html]<]minimax[>[</path>'
        "]<]minimax[>[<content><path>1 < 2</path>]<]minimax[>[</content>]<]minimax[>[<tags>]<]minimax[>[<item>x"
        "]<]minimax[>[</item>]<]minimax[>[<item>y]<]minimax[>[</item>]<]minimax[>[</tags>]<]minimax[>[<meta>"
        "]<]minimax[>[<mode>7]<]minimax[>[</mode>]<]minimax[>[</meta>]<]minimax[>[</invoke>"
        ']<]minimax[>[<invoke name="get_time">]<]minimax[>[</invoke>]<]minimax[>[</tool_call>',
        [
            (
                "write_file",
                {"path": "a.html", "content": "<path>1 < 2</path>", "tags": ["x", "y"], "meta": {"mode": 7}},
            ),
            NOW,
        ],
    ),
    "kimi k3": (
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"'
        '<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="search_web" index="2"<|sep|>'
        '<|open|>argument key="query" type="string"<|sep|>x<|close|>argument<|sep|><|open|>argument key="limit" '
        'type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        [PARIS, ("search_web", {"query": "x", "limit": 3})],
    ),
    "muse": (
        "<|start|>assistant to=get_weather.get_weather<|message|><atem:function_calls>\n"
        '<atem:invoke name="get_weather.get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls><|eom|>",
        [PARIS],
    ),
    "inkling": (
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris"}}'
        "<|end_message|>",
        [PARIS],
    ),
    "qwen coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        [PARIS],
    ),
    "invoke with elements": ('<invoke name="get_weather"><city>Paris</city></invoke>', [PARIS]),
    "function tag without its bracket": ('<function=get_weather{"city": "Paris"}</function>', [PARIS]),
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
    "minicpm with a closing tag in its data": (
        '<function name="search_web"><param name="query"><![CDATA[what is </param>?]]></param></function>',
        [("search_web", {"query": "what is </param>?"})],
    ),
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
    "kimi without the tags of its calls": (
        '<|tool_calls_section_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}'
        "<|tool_calls_section_end|>",
        [PARIS],
    ),
    "deepseek without the tags of its calls": (
        '<｜tool▁calls▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n```<｜tool▁calls▁end｜>',
        [PARIS],
    ),
    "tags that differ a little": (f"<TOOL_CALL>{JSON}</TOOL_CALL><tool-call>get_time()</tool-call>", [PARIS, NOW]),
    "lm studio": (f"[TOOL_REQUEST]{JSON}[END_TOOL_REQUEST]", [PARIS]),
    "gemini": ('<tool_code>\nprint(default_api.get_weather(city="Paris"))\n</tool_code>', [PARIS]),
    "internlm without its plugin": (f"<|action_start|>{JSON}<|action_end|>", [PARIS]),
    "minimax m3 with repeated elements": (
        ']<]minimax[>[<invoke name="write_file">]<]minimax[>[<path>a]<]minimax[>[</path>]<]minimax[>[<tags>'
        "]<]minimax[>[<tag>x]<]minimax[>[</tag>]<]minimax[>[<tag>y]<]minimax[>[</tag>]<]minimax[>[</tags>]<]minimax[>[<meta>"
        "]<]minimax[>[<tag>x]<]minimax[>[</tag>]<]minimax[>[<tag>y]<]minimax[>[</tag>]<]minimax[>[</meta>"
        "]<]minimax[>[</invoke>",
        [("write_file", {"path": "a", "tags": ["x", "y"], "meta": {"tag": ["x", "y"]}})],
    ),
    "kimi after thinking that is not closed": (
        "<think>I must look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>',
        [PARIS],
    ),
    "hermes after thinking that is not closed": (f"<think>I must look.\n<tool_call>{JSON}</tool_call>", [PARIS]),
    "glm with written line breaks": (
        "<tool_call>get_weather\\n<arg_key>city</arg_key>\\n<arg_value>Paris</arg_value>\n</tool_call>",
        [PARIS],
    ),
    "gemma": ('<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>', [PARIS]),
    "gpt-oss": (
        "<|channel|>analysis<|message|>get_time()<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city":"Paris"}<|call|>',
        [PARIS],
    ),
    "react": ('Thought: I must look.\nAction: get_weather\nAction Input: {"city": "Paris"}', [PARIS]),
    "react with words below its input": (
        'Action: get_weather\nAction Input: {"city": "Paris"}\n(I wait for the observation.)',
        [PARIS],
    ),
    "react with plain input": ("Action: get_weather\nAction Input: Paris\nObservation: Sunny.", [PARIS]),
    "react in bold": ('**Action:** get_weather\n**Action Input:** "Paris"\n', [PARIS]),
    "react json": ('Action:\n```json\n{"action": "get_weather", "action_input": {"city": "Paris"}}\n```', [PARIS]),
    "react in brackets": ("Action 1: get_weather[Paris]", [PARIS]),
    "react in Chinese": ('行动：get_weather\n行动输入：{"city": "Paris"}\n观察：', [PARIS]),
    "react in other Chinese words": ("动作: get_weather\n动作参数: Paris", [PARIS]),
    "labels in Chinese": ('工具：get_weather\n参数：{"city": "Paris"}', [PARIS]),
    "tool tags": ("<tool>get_weather</tool><tool_input>Paris</tool_input>", [PARIS]),
    "the tool's name as a tag": ("<get_weather>\n<city>Paris</city>\n</get_weather>", [PARIS]),
    "the tool's name as a tag in a fence": ("```xml\n<get_weather>\n<city>Paris</city>\n</get_weather>\n```", [PARIS]),
    "names as tags": ('<get_weather>{"city": "Paris"}</get_weather>\n<get_time>\n</get_time>', [PARIS, NOW]),
    "functionary": ('<|from|>assistant\n<|recipient|>get_weather\n<|content|>{"city": "Paris"}<|stop|>', [PARIS]),
    "functionary 3.2": ('>>>get_weather\n{"city": "Paris"}', [PARIS]),
    "qwen-agent": ('✿FUNCTION✿: get_weather\n✿ARGS✿: {"city": "Paris"}\n✿RESULT✿: sun\n✿RETURN✿: Sun.', [PARIS]),
    "deepseek in ASCII": (
        "<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>get_weather\n```json\n"
        '{"city": "Paris"}\n```<|tool▁call▁end|><|tool▁calls▁end|>',
        [PARIS],
    ),
    "hermes with its closing tag in an argument": (
        '<tool_call>{"name": "search_web", "arguments": {"query": "what is </tool_call>?"}}</tool_call>',
        [("search_web", {"query": "what is </tool_call>?"})],
    ),
    "json of gemini": ('{"functionCall": {"name": "get_weather", "args": {"city": "Paris"}}}', [PARIS]),
}


def calls_in(text, tools=KNOWN):
    return [(call.name, call.arguments) for call in parse_tool_calls(text, tools)]


def test_the_format_of_every_model_family_is_parsed():
    assert {family: calls_in(text) for family, (text, _) in FAMILIES.items()} == {
        family: calls for family, (_, calls) in FAMILIES.items()
    }


def test_prose_around_calls_stays_and_tokens_are_removed():
    for family, (text, _) in FAMILIES.items():
        reading = parse_model_text(f"Let me look.\n\n{text}", KNOWN)
        lines = reading.text.replace("Thought: I must look.", "").split("\n")
        assert [line for line in lines if line] == ["Let me look."], family
        assert reading.calls and all(call.error is None for call in reading.calls), family


def test_without_known_tools_no_call_is_valid():
    assert [family for family, (text, _) in FAMILIES.items() if calls_in(text, [])] == []


def test_tagged_calls_hide_text_that_only_looks_like_a_call():
    text = (
        f'You asked about get_time().\nget_time()\n<tool_call>{JSON}</tool_call>\n{{"name": "get_time", "args": {{}}}}'
    )
    assert calls_in(text) == [PARIS]


def test_values_between_tags_get_the_type_of_the_schema():
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


def test_a_string_with_unescaped_quotes_is_parsed_if_unambiguous():
    text = "<|tool_call_start|>[search_web(query='sed -n '3,4p' file.py')]<|tool_call_end|>"
    [call] = parse_tool_calls(text, KNOWN)
    assert call.arguments == {"query": "sed -n '3,4p' file.py"}
    two_ways = "<|tool_call_start|>[search_web(query='say 'a', limit='b' and so on')]<|tool_call_end|>"
    assert parse_tool_calls(two_ways, KNOWN) == []


def test_thinking_is_not_parsed():
    thought = '<think>I could get_weather(city="Rome").\nget_weather(city="Rome")</think>\nget_time()'
    assert [call.name for call in parse_tool_calls(thought, KNOWN)] == ["get_time"]
    opened_in_the_prompt = 'get_weather(city="Rome")\n</think>\nget_time()'
    assert [call.name for call in parse_tool_calls(opened_in_the_prompt, KNOWN)] == ["get_time"]
    assert parse_tool_calls('<think>get_weather(city="Rome")', KNOWN) == []
    assert parse_model_text("<mm:think>get_time()</mm:think>Hello.", KNOWN).text == "Hello."


def test_calls_in_thinking_that_goes_on_after_them_are_not_read():
    draft = f"<think>I could write\n<tool_call>{JSON}</tool_call>\nbut perhaps"
    assert parse_tool_calls(draft, KNOWN) == []
    assert parse_tool_calls(f"<think>Not <tool_call>{JSON}</tool_call>", KNOWN) == []


def test_channels_for_thoughts_and_answers_contain_no_calls():
    invoke = '<atem:invoke name="get_time"></atem:invoke>'
    thought = f"to=self<|message|>Perhaps {invoke}.<|eom|>"
    answer = f"<|start|>assistant to=user<|message|>You would write {invoke}"
    assert parse_model_text(thought + answer, KNOWN).calls == ()
    assert parse_model_text(thought + answer, KNOWN).text == f"You would write {invoke}"
    called = f"<|start|>assistant to=user<|message|>One moment.<|eom|><|start|>assistant to=get_time<|message|>{invoke}"
    assert [call.name for call in parse_model_text(called, KNOWN).calls] == ["get_time"]
    assert parse_model_text(called, KNOWN).text == "One moment."
    kimi = f"<|open|>think<|sep|>{invoke}<|close|>think<|sep|><|open|>response<|sep|>Hello.<|close|>response<|sep|>"
    assert (parse_model_text(kimi, KNOWN).calls, parse_model_text(kimi, KNOWN).text) == ((), "Hello.")


def test_the_tokens_of_an_answer_are_not_part_of_it():
    for text in (
        '<|channel|>final <|constrain|>json<|message|>{"answer": 1}',
        'to=user<|message|>{"answer": 1}<|eot|>',
        '{"answer": 1}<|im_end|>',
    ):
        assert parse_model_text(text, KNOWN).text == '{"answer": 1}'


def test_a_header_may_begin_in_the_prompt():
    for channel in ("analysis", "commentary json", "analysis <|constrain|>json"):
        text = f' to=functions.get_weather<|channel|>{channel}<|message|>{{"city":"Paris"}}'
        assert calls_in(text) == [PARIS]


def test_a_turn_that_the_model_invents_is_left_out():
    text = 'Look:\n\nget_weather("Paris")\n\n### Instruction:\nAnd Rome?\n### Response:\nget_weather("Rome", "C")'
    reading = parse_model_text(text, KNOWN)
    assert [(call.name, call.arguments) for call in reading.calls] == [PARIS]
    assert reading.text == "Look:"
    assert parse_model_text("No tool fits.\n\n### Instruction:\nTry.\n\nget_time()", KNOWN).calls == ()
    assert len(parse_model_text("### Instruction:\n\nget_time()", KNOWN).calls) == 1


def test_an_object_whose_quotes_are_escaped_is_read_as_one():
    text = (
        r"<tool_call>write_file<arg_key>tags</arg_key><arg_value>[{\"id\": \"1\"}]</arg_value>"
        r"<arg_key>content</arg_key><arg_value>{\"a\": 1}</arg_value></tool_call>"
    )
    [call] = parse_tool_calls(text, KNOWN)
    assert call.arguments == {"tags": [{"id": "1"}], "content": r"{\"a\": 1}"}


def test_parameter_names_are_unescaped_between_tags():
    tools = [{"name": "find", "parameters": {"properties": {"user_id": {"type": "integer"}}}}]
    for text in (
        "<function=find><parameter=user\\_id>7</parameter></function>",
        "<tool_call>find<arg_key>user\\_id</arg_key><arg_value>7</arg_value></tool_call>",
        '<invoke name="find"><parameter name="user\\_id">7</parameter></invoke>',
        "find(user\\_id=7)",
        '{"name": "find", "arguments": {user\\_id: 7}}',
    ):
        assert [call.arguments for call in parse_tool_calls(text, tools)] == [{"user_id": 7}], text


def test_a_search_for_examples_is_no_example():
    for words in ("I'll search the web for usage examples:", "我来搜索一些代码示例："):
        text = f'{words}\n{{"name": "search_web", "arguments": {{"query": "asyncio"}}}}'
        assert calls_in(text) == [("search_web", {"query": "asyncio"})]


def test_what_follows_an_invented_observation_is_left_out():
    action = "Action: get_weather\nAction Input: Paris\n"
    for invented in (action, "Final Answer: It rains."):
        parsed = parse_model_text(f"Thought: Look.\n{action}Observation: Rain.\n{invented}", KNOWN)
        assert [(call.name, call.arguments) for call in parsed.calls] == [PARIS]
        assert parsed.text == "Thought: Look."


def test_a_fence_that_is_never_closed_ends_with_its_calls():
    for end in ("\n\nPlease wait.", "\n<|im_end|>Please wait.", "\n```\nPlease wait."):
        parsed = parse_model_text(f"```json\n{JSON}{end}", KNOWN)
        assert [(call.name, call.arguments) for call in parsed.calls] == [PARIS] and parsed.text == "Please wait."
    program = parse_model_text('```python\nget_weather(city="Paris")\nprint("and more")', KNOWN)
    assert program.calls == ()


def test_tokens_that_end_a_reply_belong_to_no_call():
    for text in ('get_weather(city="Paris")', "Action: get_weather\nAction Input: Paris", JSON):
        for token in ("<|im_end|>", "</s>", "<|eot_id|>\n", "<｜end▁of▁sentence｜>"):
            assert calls_in(text + token) == [PARIS]
