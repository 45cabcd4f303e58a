"""Calls that cannot be made as they were written: the model is told, and nothing is guessed."""

from ferrule.parsing import KnownTools, parse_model_text, parse_tool_calls
from tests.parsing.schemas import TOOLS

KNOWN = KnownTools(TOOLS)


def refusal(text):
    [call] = parse_model_text(text, KNOWN).calls
    assert parse_tool_calls(text, KNOWN) == []
    return call


def test_a_name_that_is_nearly_right_is_reported_and_not_guessed():
    for text in (
        'get_wether(city="Paris")',
        '[get_wether(city="Paris")]',
        '```python\nget_wether(city="Paris")\n```',
        '{"name": "get_wether", "arguments": {"city": "Paris"}}',
        '<tool_call>{"name": "get_wether", "arguments": {"city": "Paris"}}</tool_call>',
        "<function=get_wether><parameter=city>Paris</parameter></function>",
        '[TOOL_CALLS]get_wether[ARGS]{"city": "Paris"}',
        "Action: get_wether\nAction Input: Paris",
    ):
        call = refusal(text)
        assert call.name == "get_wether", text
        assert (call.error or "").startswith("There is no tool 'get_wether'. Did you mean 'get_weather'")


def test_an_unknown_name_in_a_format_made_for_calls_is_reported():
    call = refusal('<tool_call>{"name": "order_pizza", "arguments": {"size": 3}}</tool_call>')
    assert call.error == "There is no tool 'order_pizza'."


def test_a_call_inside_a_call_is_refused():
    call = refusal('get_weather(city=search_web(query="capital of France"))')
    assert call.error == (
        "The arguments of 'get_weather' cannot be read: search_web(…) is a call inside a call. "
        "Make that call first and pass its result as a plain value."
    )
    assert call.raw == 'get_weather(city=search_web(query="capital of France"))'


def test_arguments_that_cannot_be_read_are_an_error_and_never_empty():
    for text, reason in (
        ("get_weather(city=Paris)", "'Paris' is not a value; text needs quotes"),
        ("get_weather(city=1 + 1)", "'+ 1)' is not an argument"),
        ('get_weather(city="Paris"', "they are not closed"),
        ('get_weather(city="Par', "a text is not closed"),
        ('get_weather("Paris", "C", "now")', "3 have no name, but the tool has 2"),
        ('get_weather("Paris", city="Rome")', "'city' is given twice"),
        ('{"name": "get_weather", "arguments": {"city": "Par', "a text is not closed"),
        (
            '{"name": "get_weather", "arguments": {"city": "Paris"',
            "they are not complete, a closing bracket is missing",
        ),
        (
            '[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time"',
            "they are not complete, a closing bracket is missing",
        ),
        ('{"name": "get_weather", "arguments": ["Paris", {}]}', "they must be an object with a name for each argument"),
        ('<tool_call>{"name": "get_weather", "arguments": "Paris"}</tool_call>', "they must be an object"),
        ('<tool_call>{"name": "get_weather", "arguments": {city}}</tool_call>', "they are not complete, or not JSON"),
        ('[TOOL_CALLS]get_weather{"city": "Par', "a text is not closed"),
        ("<function=get_weather><parameter=city>Paris", "'city' is not closed"),
        ("<function=get_weather><parameter=city>Paris</parameter>", "the call is not closed"),
        ("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Par", "'city' is not closed"),
        ("<tool_call>get_weather<arg_key>city</arg_key></tool_call>", "'city' has no value"),
        (
            "<tool_call>get_weather<arg_key>city</arg_key><arg_key>unit</arg_key><arg_value>C</arg_value></tool_call>",
            "'city' has no value",
        ),
        (
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>",
            "the call is not closed",
        ),
        ("get_weather(city=)", "')' is not a value"),
        ('{"name": "get_weather", "arguments": {"city": }}', "'}}' is not a value"),
        ('get_weather\n{"city": }', "'}' is not a value"),
        ("<tool_call><name>get_weather</name><arguments><city>Paris", "'city' is not closed"),
        (
            '<invoke name="get_weather"><city>Paris</city><wind>1</wind></invoke>',
            "the call is not closed, or a parameter",
        ),
        ('{"name": "get_weather", "arguments": [{"city": "Paris"}, {"city": "Rome"}]}', "they must be an object"),
        ("['get_weather(city=Paris)']", "'Paris' is not a value; text needs quotes"),
        ('[{"name": "get_weather", "args": {"city": "A"}, "name": "get_time", "args": {}}]', "'name' is given twice"),
        (
            ']<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Paris]<]minimax[>[</invoke>',
            "'city' is not closed",
        ),
        ('<|open|>call tool="get_weather"<|sep|><|open|>argument key="city"<|sep|>Paris', "'city' is not closed"),
        ("<tool_call>get_weather for Paris</tool_call>", "they must be JSON"),
        ('Action: write_file\nAction Input: "a.txt"', "it takes several, so its input must be JSON: path, content"),
    ):
        assert f"cannot be read: {reason}" in (refusal(text).error or ""), text


def test_a_tagged_call_that_cannot_be_read_is_an_error():
    for text in (
        "<tool_call>please look it up</tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>",
        "<tool_call>{}</tool_call>",
        '<tool_call>{"city": "Paris"}</tool_call>',
        "<tool_call><city>Paris</city></tool_call>",
        "<|tool_call_begin|>0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        '<|tool_call_begin|>0<|tool_call_argument_begin|>{"path": "a"}<|tool_call_end|>',
        "[TOOL_CALLS] [not JSON]",
        "<|content_invoke_tool_json|>{not JSON<|end_message|>",
        "<|content_invoke_tool_text|>search the web<|end_message|>",
        "<|python_tag|>import math",
        "Let me see: <tool_call>{'city'",
        "<|tool_calls_section_begin|>look up the weather<|tool_calls_section_end|>",
        "Yes.<｜tool▁calls▁begin｜>weather of Paris<｜tool▁calls▁end｜>",
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke>Paris</steptml:invoke>",
        "<｜DSML｜function_calls>weather in Paris</｜DSML｜function_calls>",
        '<｜DSML｜function_calls>\n<｜DSML｜parameter name="city">Paris</｜DSML｜parameter>\n</｜DSML｜function_calls>',
        "]<]minimax[>[<tool_call>]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[</tool_call>",
        "<|open|>tools<|sep|>weather<|close|>tools<|sep|>",
        '<|open|>call index="1"<|sep|><|open|>argument key="city"<|sep|>Paris<|close|>argument<|sep|>',
        "<atem:function_calls><atem:invoke>Paris</atem:invoke></atem:function_calls>",
        "<tool_use>the weather of Paris</tool_use>",
        "[TOOL_REQUEST]look[END_TOOL_REQUEST]",
        "<invoke><parameter name='city'>Paris</parameter></invoke>",
        "<function><parameter=city>Paris</parameter></function>",
        "<parameter=city>Paris</parameter>\n</function>\n</tool_call>",
        "get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        'functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>',
        '<|channel|>commentary<|constrain|>json<|message|>{"city":"Paris"}<|call|>',
        "<tool></tool><tool_input>Paris</tool_input>",
        "```tool_call\nlook up the weather\n```",
        '```tool_calls\n{"city": "Paris"}\n```',
    ):
        call = refusal(text)
        assert call.name == "tool_call", text
        assert "cannot be read" in (call.error or "") and "Write the call again" in (call.error or ""), text


def test_an_unreadable_call_does_not_hide_the_next_one():
    text = 'Now.\n<tool_call>hm\n<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    parsed = parse_model_text(text, KNOWN)
    assert [(call.name, call.error is None) for call in parsed.calls] == [("tool_call", False), ("get_time", True)]
    assert parsed.text == "Now."


def test_a_tag_that_is_only_mentioned_is_no_error():
    for text in (
        "The tag <tool_call> starts a call.",
        "The tag <function_calls> wraps them and </function_calls> ends them.",
        "The token <|tool_calls_section_begin|> begins the calls of Kimi.",
        '<parameter name="x"> is the tag of a parameter.',
        "A value is inside <arg_value> and </arg_value>, a name inside <arg_key> and </arg_key>.",
        "For example:\n```tool_call\nthe name of a tool\n```",
        "Action: wait for the answer",
    ):
        parsed = parse_model_text(text, KNOWN)
        assert (parsed.calls, parsed.text) == ((), text)


def test_an_empty_list_of_calls_is_no_error_and_no_text():
    for text in ("<tool_calls>[]</tool_calls>", "<|tool_call_start|>[ ]<|tool_call_end|>"):
        parsed = parse_model_text(f"Nothing to do. {text}", KNOWN)
        assert (parsed.calls, parsed.text) == ((), "Nothing to do.")


def test_one_broken_call_does_not_lose_the_others():
    text = '[get_time(), get_weather(city=here), search_web(query="x")]'
    calls = parse_model_text(text, KNOWN).calls
    assert [(call.name, call.error is None) for call in calls] == [
        ("get_time", True),
        ("get_weather", False),
        ("search_web", True),
    ]


def test_an_action_without_its_input_is_refused_unless_the_tool_takes_none():
    assert "<tool_input> is missing" in (refusal("<tool>get_weather</tool>").error or "")
    for end in ("", "\n", "<|im_end|>"):
        assert "no line 'Action Input:'" in (refusal(f"Thought: Look.\nAction: get_weather{end}").error or "")
        [call] = parse_tool_calls(f"Action: get_time{end}", KNOWN)
        assert call.arguments == {}


def test_an_action_together_with_a_final_answer_is_refused():
    call = refusal("Action: get_weather\nAction Input: Paris\nFinal Answer: It rains.")
    assert "the text has an action and a final answer" in (call.error or "")


def test_a_call_that_is_cut_off_is_refused():
    for text in (
        'Thought: Look.\nAction: get_weather\nAction Input: {"city": "Par',
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_wea",
        "<get_weather>\n<city>Par",
        '<get_weather>{"city": "Paris"</get_weather>',
        "<get_weather>\n<city>Paris</city>\n",
        "<get_weather>\n<city>Paris</city>\n<day>1</day>\n</get_weather>",
        '✿FUNCTION✿: get_weather\n✿ARGS✿: {"city": "Par',
        '<|recipient|>get_weather\n<|content|>{"city": "Par',
    ):
        assert "cannot be read" in (refusal(text).error or ""), text


def test_nothing_is_evaluated(tmp_path):
    path = tmp_path / "made"
    calls = parse_model_text(f"search_web(query=__import__('pathlib').Path({str(path)!r}).touch())", KNOWN).calls
    assert [call.error is None for call in calls] == [False]
    assert not path.exists()
