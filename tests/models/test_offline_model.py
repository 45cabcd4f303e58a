"""The offline model over several turns: results, later steps, failures, and what it says."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from ferrule.core.messages import Message, ToolCall, assistant_message, tool_message, user_message
from ferrule.core.model import ModelReply, ModelRequest
from ferrule.errors import ModelRefused
from ferrule.models.offline import OfflineModel
from tests.models.offline_tools import TOOLS, function

NOW = datetime(2026, 3, 4, 10, 0)
Answers = Callable[[ToolCall], str]


async def converse(question: str, answers: Answers, *, tools=TOOLS, before: list[Message] | None = None, **more):
    """Run a question to its end as an agent would; the calls that were made, and the last reply."""
    model = OfflineModel()
    messages = [*(before or []), user_message(question)]
    all_calls: list[ToolCall] = []
    for _ in range(6):
        reply = await model.generate(ModelRequest(messages=messages, tools=tools, **more))
        if not reply.tool_calls:
            return [(call.name, call.arguments) for call in all_calls], reply.text
        calls = [
            ToolCall(name=c.name, arguments=c.arguments, id=f"c{len(all_calls) + n}")
            for n, c in enumerate(reply.tool_calls)
        ]
        all_calls += calls
        messages.append(assistant_message(calls=calls))
        messages += [tool_message(call, answers(call)) for call in calls]
    raise AssertionError(f"no end of calls: {all_calls}")


async def say(question: str, tools: Any = TOOLS, **more: Any) -> ModelReply:
    request = ModelRequest(messages=[user_message(question)], tools=tools, **more)
    return await OfflineModel().generate(request)


# What tools have answered


@pytest.mark.parametrize(
    ("question", "result", "answer"),
    [
        ("What is 2 + 3?", '{"result": 5, "expression": "2 + 3"}', "2 + 3 = 5"),
        ("What is 15% of 80?", "12", "15% of 80 is 12."),
        ("10 miles to km", "16.09344", "10 miles is about 16.0934 km."),
        ("80的15%是多少", "12", "80的15%是 12。"),
        ("What is $5 plus $3?", "8", "5 plus 3 is 8."),
        ("$12.50 x 8", "100", "12.50 x 8 = 100"),
        ("what is a 15% tip on $80", "12.0", "A 15% tip on 80 is 12."),
        ("10 dollars divided by 4", "2.5", "10 divided by 4 is 2.5."),
        ("$20 / $5", "4", "20 / 5 = 4"),
        ("what percent of $80 is $20", "25", "20 is 25% of 80."),
        ("¥120 打八折", "96", "120打八折是 96。"),
        ("299元打七折是多少", "209.3", "299打七折是 209.3。"),
    ],
)
async def test_a_number_is_told_in_the_words_of_the_question(question, result, answer):
    _, text = await converse(question, lambda call: result)
    assert text == answer


@pytest.mark.parametrize(
    ("question", "result", "answer"),
    [
        (
            "what is 5 divided by 0",
            "this divides by zero.",
            "I could not compute 5 divided by 0: this divides by zero.",
        ),
        ("5除以0等于多少", "this divides by zero.", "无法计算 5除以0：除数不能为零。"),
        ("读取文件 a.txt", "'a.txt' does not exist.", "没有成功：'a.txt' 不存在。"),
    ],
)
async def test_a_failed_call_is_told_as_one_whatever_its_result_says(question, result, answer):
    _, text = await converse(question, lambda call: result, failed_calls=frozenset({"c0"}))
    assert text == answer


async def test_a_call_that_did_not_fail_is_not_told_as_a_failure():
    _, text = await converse("read the file a.txt", lambda call: "Error handling in C", failed_calls=frozenset())
    assert text == "Error handling in C"


@pytest.mark.parametrize(
    "question",
    [
        "what is 3 + 4 of 12 apples",
        "is 2 + 2 about 5 or 6",
        "15% of 80 after 3 years",
        "what is 7 - 2 in base 8",
        "2 + 2 = 5, right?",
        "if I have 3 + 4 apples and eat 2",
        "what is $5 plus €3",
    ],
)
async def test_no_number_is_given_where_a_part_of_the_question_would_be_left_out(question):
    reply = await say(question)
    assert not reply.tool_calls and reply.finish_reason == "refused"


async def test_a_question_in_chinese_is_answered_in_chinese():
    _, text = await converse("北京天气怎么样？", lambda call: "晴，21 度")
    assert text == "晴，21 度"


async def test_results_are_in_the_order_of_the_question():
    answers = {"get_weather": "sunny", "get_time": "18:00"}
    calls, text = await converse(
        "What time is it in Tokyo and what's the weather in Paris?", lambda call: answers[call.name]
    )
    assert [name for name, _ in calls] == ["get_time", "get_weather"]
    assert text == "18:00\nsunny"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"temperature": 21, "sky": "clear"}', "- temperature: 21\n- sky: clear"),
        ('["a", "b"]', "- a\n- b"),
        ('"quoted"', "quoted"),
        ('{"items": [{"id": 1, "name": "x"}]}', "- id 1, name x"),
        ('{"result": 21.5}', "The result is 21.5."),
        ("true", "yes"),
        ("plain words", "plain words"),
    ],
)
async def test_results_are_formatted_for_people(answer, expected):
    _, text = await converse("weather in Paris", lambda call: answer)
    assert text == expected


# Later steps that need an earlier result


@pytest.mark.parametrize(
    ("question", "second"),
    [
        ("What is 3 + 4 and double it", "7 * 2"),
        ("What is 3 + 4? Then multiply the result by 5.", "7 * 5"),
        ("计算 3+4，然后把结果翻倍", "7 * 2"),
        ("计算 3+4，再乘以5", "7 * 5"),
        ("Calculate 3 + 4 and then add 10", "7 + 10"),
        ("Calculate 3 + 4; divide it by 2", "7 / 2"),
    ],
)
async def test_a_later_step_gets_the_result_before_it(question, second):
    calls, _ = await converse(question, lambda call: "7")
    assert [arguments["expression"].replace(" ", "") for _, arguments in calls] == ["3+4", second.replace(" ", "")]


async def test_a_text_is_passed_to_the_next_tool_unchanged():
    answers = {"read_file": 'He said "stop", then left; 3 times.', "count_words": "7"}
    calls, text = await converse("Read the file a.txt and then count the words of it", lambda call: answers[call.name])
    assert calls[1] == ("count_words", {"text": 'He said "stop", then left; 3 times.'})
    assert text.endswith("7.")


async def test_a_step_that_needs_a_failed_result_is_skipped():
    calls, text = await converse(
        "Read the file a.txt and then translate it to German", lambda call: "Error: no such file"
    )
    assert [name for name, _ in calls] == ["read_file"]
    assert text.startswith("The call failed: Error: no such file\n“translate it to German” was not done")


# Failures


async def test_a_failure_is_reported_and_the_call_is_not_repeated():
    calls, text = await converse("weather in Paris", lambda call: '{"error": "no such city"}')
    assert calls == [("get_weather", {"city": "Paris"})]
    assert text == "The call failed: no such city"


# What it cannot do


async def test_without_a_fitting_tool_it_refuses_in_one_line():
    reply = await say("Tell me a joke about weather")
    assert (reply.tool_calls, reply.finish_reason) == ((), "refused")
    assert reply.text.startswith("I can't answer “Tell me a joke about weather” without a language model")
    assert "\n" not in reply.text


@pytest.mark.parametrize(
    ("question", "tool"),
    [
        ("4 tickets at 17.50 each, how much is that?", "calculator"),
        ("translate good night into German", "translate"),
        ("三个人平分120元，每人多少", "calculator"),
    ],
)
async def test_a_refusal_names_the_tool_that_a_language_model_could_use(question, tool):
    reply = await say(question)
    assert not reply.tool_calls and tool in reply.text and "\n" not in reply.text


async def test_it_says_so_in_chinese_too():
    reply = await say("给我讲个笑话")
    assert reply.text.startswith("没有语言模型，我无法回答“给我讲个笑话”") and reply.finish_reason == "refused"


@pytest.mark.parametrize("question", ["", "   ", "?!", "。"])
async def test_an_empty_question_makes_no_call(question):
    reply = await say(question)
    assert reply.text
    assert not reply.tool_calls


async def test_without_tools_it_says_so():
    assert "no tool that is set up here fits" in (await say("What is 1 + 1?", tools=())).text


async def test_missing_arguments_are_asked_for():
    reply = await say("Send an email to bob@example.com")
    assert reply.text == "To use send_email I still need: subject; body."
    assert (await say("What's the weather?")).text == "To use get_weather I still need: city (The name of the city)."


async def test_a_step_without_a_tool_is_named():
    calls, text = await converse("Write a poem about spring. What is 2 + 2?", lambda call: "4")
    assert [name for name, _ in calls] == ["calculator"]
    assert text == "2 + 2 = 4\n“Write a poem about spring.” was not done: no tool fits it."


async def test_a_remark_is_not_taken_for_a_step():
    _, text = await converse("I am on a trip. What's the weather in Rome?", lambda call: "warm")
    assert text == "warm"


async def test_of_two_tools_that_fit_equally_none_is_called():
    tools = [
        function("open_door", "Open or close a door.", "door", door="string"),
        function("paint_door", "Paint a door or close it.", "door", door="string"),
    ]
    assert not (await say("close the door 'front'", tools=tools)).tool_calls


@pytest.mark.parametrize(
    "question",
    [
        "1, " * 3000,
        "1+" * 3000,
        "(" * 3000,
        "weather in Paris and " * 300,
        "一二三" * 3000,
        " " * 30_000 + "x",
        "/a" * 5000,
    ],
    ids=["list", "sum", "brackets", "and", "numerals", "spaces", "path"],
)
async def test_very_long_questions_are_fast(question):
    reply = await say(f"average of {question}")
    assert reply.text or reply.tool_calls


# The request


async def test_the_same_question_gets_the_same_reply():
    question = "Convert 100 USD to EUR and read notes.txt"
    assert await say(question) == await say(question)


async def test_it_calls_nothing_with_tool_choice_none():
    reply = await say("What is 1 + 1?", tool_choice="none")
    assert not reply.tool_calls
    assert reply.text


async def test_a_required_call_needs_less_confidence():
    question = "weather in Berlin, sun, moon and stars"
    assert not (await say(question)).tool_calls
    [call] = (await say(question, tool_choice="required")).tool_calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Berlin"})


async def test_the_text_is_streamed():
    pieces: list[str] = []
    model = OfflineModel()
    reply = await model.generate(ModelRequest(messages=[user_message("Hi")]), pieces.append)
    assert "".join(pieces) == reply.text
    assert (model.name, reply.usage.requests, reply.usage.total_tokens) == ("offline", 1, 0)


LOOKUP = ToolCall(name="lookup", arguments={"q": "x"}, id="1")
WEATHER = ToolCall(name="get_weather", arguments={"city": "Paris, France"}, id="1")


@pytest.mark.parametrize(
    "messages",
    [
        [user_message("Hm?"), assistant_message(calls=[LOOKUP]), tool_message(LOOKUP, "mild")],
        [user_message("weather in Paris"), assistant_message(calls=[WEATHER]), tool_message(WEATHER, "mild")],
        [
            user_message("Hello"),
            assistant_message("Hi."),
            user_message("weather in Paris"),
            user_message("[3 earlier turns of this task are left out here.]"),
            assistant_message(calls=[WEATHER]),
            tool_message(WEATHER, "mild"),
            user_message("Some calls have failed so far. Think again."),
        ],
    ],
    ids=["a call by another model", "edited arguments", "messages of the agent"],
)
async def test_the_result_of_a_call_is_the_answer(messages):
    reply = await OfflineModel().generate(ModelRequest(messages=messages, tools=TOOLS))
    assert (reply.tool_calls, reply.text) == ((), "mild")


async def test_a_tool_with_an_encoded_name_is_called_by_it():
    tool = function("math-2e-factorial", "Calculate the factorial of a number.", "number", number="integer")
    calls, text = await converse("the factorial of the number 5", lambda call: "120", tools=[tool])
    assert calls == [("math-2e-factorial", {"number": 5})]
    assert text == "The result is 120."


# Answers by a schema

STEP = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "description": {"type": "string"},
        "tool_type": {"type": "string"},
        "dependencies": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["id", "description", "tool_type", "dependencies"],
}
PLAN = {"type": "object", "properties": {"steps": {"type": "array", "items": STEP}}, "required": ["steps"]}


async def test_a_plan_has_a_step_for_each_request():
    reply = await say("What is 3 + 4 and then double it. Tell me a joke.", answer_schema=PLAN)
    assert [tuple(step.values()) for step in json.loads(reply.text)["steps"]] == [
        (1, "What is 3 + 4", "calculator", {"expression": "3 + 4"}, []),
        (2, "double it.", "calculator", {}, [1]),
        (3, "Tell me a joke.", "none", {}, []),
    ]


async def test_an_object_is_made_of_the_values_of_the_question():
    schema = {
        "type": "object",
        "properties": {"email": {"type": "string"}, "amount": {"type": "number"}, "note": {"type": "string"}},
        "required": ["email", "amount"],
    }
    reply = await say("Charge bob@example.com an amount of 25", answer_schema=schema)
    assert json.loads(reply.text) == {"email": "bob@example.com", "amount": 25}


async def test_an_answer_it_would_have_to_invent_is_refused():
    schema = {"type": "object", "properties": {"quality": {"type": "integer"}}, "required": ["quality"]}
    with pytest.raises(ModelRefused, match="offline model cannot give an answer of this form"):
        await say("Was that a good answer?", answer_schema=schema)
