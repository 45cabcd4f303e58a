"""Calls up to the first sentence after a call: what follows was written without their results."""

from ferrule.parsing import KnownTools, parse_model_text
from tests.parsing.schemas import TOOLS

KNOWN = KnownTools(TOOLS)
PARIS = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
TIME = '{"name": "get_time", "arguments": {}}'
SENTENCE = "After this call I will know the weather."
ONE = {
    "fences": f"I look first.\n```json\n{PARIS}\n```\n\n{SENTENCE}\n\n```json\n{TIME}\n```",
    "tags": f"<tool_call>{PARIS}</tool_call>\n{SENTENCE}\n<tool_call>{TIME}</tool_call>",
    "python": f'get_weather(city="Paris")\n\n{SENTENCE}\n\nget_time()',
    "chinese": f"```json\n{PARIS}\n```\n得到天气之后，我再查询时间。\n```json\n{TIME}\n```",
    "nothing after the sentence": f"{PARIS}\n\nThe weather in Paris is sunny.",
}
BOTH = {
    "a list": f"[{PARIS}, {TIME}]",
    "fences": f"```json\n{PARIS}\n```\n\n```json\n{TIME}\n```",
    "tags": f"<tool_call>{PARIS}</tool_call>\n<tool_call>{TIME}</tool_call>",
    "a word between": f"{PARIS}\n\nand then\n\n{TIME}",
    "a sentence before": f"{SENTENCE}\n\n{PARIS}\n{TIME}",
}


def test_calls_after_a_sentence_that_follows_a_call_are_left_out():
    for case, text in ONE.items():
        reading = parse_model_text(text, KNOWN, until_prose=True)
        assert [call.name for call in reading.calls] == ["get_weather"], case
        assert reading.rest and text.endswith(reading.rest), case
        assert reading.rest.strip() not in reading.source and "get_time" not in reading.text, case


def test_calls_that_follow_each_other_stay_together():
    for case, text in BOTH.items():
        reading = parse_model_text(text, KNOWN, until_prose=True)
        assert [call.name for call in reading.calls] == ["get_weather", "get_time"] and reading.rest == "", case
        assert reading == parse_model_text(text, KNOWN), case


def test_a_text_without_calls_is_not_cut():
    text = "It is sunny in Paris.\n\nThat is what the tool `get_time` cannot tell."
    assert parse_model_text(text, KNOWN, until_prose=True).text == text
