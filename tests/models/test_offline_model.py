"""The offline model over several turns: results, later steps, failures, and what it says."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary
from ferrule.errors import ModelRefused
from ferrule.messages import Message, ToolCall, assistant_message, tool_message, user_message
from ferrule.models.model import ModelReply, ModelRequest
from ferrule.models.offline import OfflineModel
from tests.models.offline_tools import TOOLS, function, text

NOW = datetime(2026, 3, 4, 10, 0)
Answers = Callable[[ToolCall], str]


async def converse(question: str, answers: Answers, *, tools=TOOLS, before: list[Message] | None = None, **more):
    """Run a question to its end as an agent would; the calls that were made, and the last reply."""
    model = OfflineModel(clock=lambda: NOW)
    messages = [*(before or []), user_message(question)]
    made: list[ToolCall] = []
    for _ in range(6):
        reply = await model.generate(ModelRequest(messages=messages, tools=tools, **more))
        if not reply.tool_calls:
            return [(call.name, call.arguments) for call in made], reply.text
        calls = [
            ToolCall(name=c.name, arguments=c.arguments, id=f"c{len(made) + n}") for n, c in enumerate(reply.tool_calls)
        ]
        made += calls
        messages.append(assistant_message(calls=calls))
        messages += [tool_message(call, answers(call)) for call in calls]
    raise AssertionError(f"no end of calls: {made}")


async def say(question: str, tools: Any = TOOLS, **more: Any) -> ModelReply:
    request = ModelRequest(messages=[user_message(question)], tools=tools, **more)
    return await OfflineModel(clock=lambda: NOW).generate(request)


# What tools have answered


async def test_the_answer_says_which_tool_said_what():
    _, said = await converse("What is 2 + 3?", lambda call: '{"result": 5, "expression": "2 + 3"}')
    assert said == "calculator: 5"


async def test_a_question_in_chinese_is_answered_in_chinese():
    _, said = await converse("北京天气怎么样？", lambda call: "晴，21 度")
    assert said == "get_weather：晴，21 度"


async def test_results_stand_in_the_order_of_the_question():
    answers = {"get_weather": "sunny", "get_time": "18:00"}
    made, said = await converse(
        "What time is it in Tokyo and what's the weather in Paris?", lambda call: answers[call.name]
    )
    assert [name for name, _ in made] == ["get_time", "get_weather"]
    assert said == "get_time: 18:00\nget_weather: sunny"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ('{"temperature": 21, "sky": "clear"}', "temperature: 21, sky: clear"),
        ('["a", "b"]', "a, b"),
        ('"quoted"', "quoted"),
        ('{"items": [{"id": 1}]}', '{"items": [{"id": 1}]}'),
        ("plain words", "plain words"),
    ],
)
async def test_results_are_told_as_people_read_them(answer, shown):
    _, said = await converse("weather in Paris", lambda call: answer)
    assert said == f"get_weather: {shown}"


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
    made, _ = await converse(question, lambda call: "7")
    assert [arguments["expression"].replace(" ", "") for _, arguments in made] == ["3+4", second.replace(" ", "")]


async def test_a_text_goes_on_to_the_next_tool_whole():
    answers = {"read_file": 'He said "stop", then left; 3 times.', "translate": "Er sagte …"}
    made, said = await converse("Read the file a.txt and then translate it to German", lambda call: answers[call.name])
    assert made[1] == ("translate", {"text": 'He said "stop", then left; 3 times.', "target_language": "de"})
    assert said.endswith("translate: Er sagte …")


async def test_a_step_after_one_that_failed_is_not_done():
    made, said = await converse(
        "Read the file a.txt and then translate it to German", lambda call: "Error: no such file"
    )
    assert [name for name, _ in made] == ["read_file"]
    assert said.startswith("read_file failed: Error: no such file\nI did not do “translate it to German”")


# Failures


async def test_a_failure_is_told_and_the_call_not_made_again():
    made, said = await converse("weather in Paris", lambda call: '{"error": "no such city"}')
    assert made == [("get_weather", {"city": "Paris"})]
    assert said == 'get_weather failed: {"error": "no such city"}'


async def test_a_failure_that_says_what_was_meant_is_mended_once():
    def answer(call: ToolCall) -> str:
        good = call.arguments["path"] == "notes.txt"
        return "milk, eggs" if good else "Error: there is no file 'nots.txt'. Did you mean 'notes.txt'?"

    made, said = await converse("Read the file nots.txt", answer)
    assert made == [("read_file", {"path": "nots.txt"}), ("read_file", {"path": "notes.txt"})]
    assert said == "read_file: milk, eggs"


async def test_a_mended_call_that_fails_too_is_told():
    made, said = await converse("Read the file nots.txt", lambda call: "Error: did you mean 'notes.txt'?")
    assert [arguments["path"] for _, arguments in made] == ["nots.txt", "notes.txt"]
    assert said.startswith("read_file failed:")


async def test_a_failure_that_could_mean_two_things_is_not_mended():
    made, _ = await converse("Read the file nots.txt", lambda call: "Error: did you mean 'notes.txt' or 'nuts.txt'?")
    assert len(made) == 1


async def test_allowed_values_in_an_error_mend_a_near_miss():
    tool = function("get_mood", "Get the mood of a team.", "team", team=text("Name of the team"))
    answers = {"sales": "good"}
    made, said = await converse(
        "get the mood of team 'salse'",
        lambda call: answers.get(call.arguments["team"], "Error: team must be one of sales, legal, not 'salse'."),
        tools=[tool],
    )
    assert [arguments["team"] for _, arguments in made] == ["salse", "sales"]
    assert said == "get_mood: good"


# What it cannot do


async def test_it_says_that_it_cannot_what_is_nearest_and_who_it_is():
    reply = await say("Tell me a joke about weather")
    assert not reply.tool_calls
    assert "no tool here fits" in reply.text
    assert "- get_weather: Get the current weather of a city." in reply.text
    assert all(word in reply.text for word in ("offline model", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ferrule[local]"))


async def test_it_says_so_in_chinese_too():
    reply = await say("给我讲个笑话")
    assert reply.text.startswith("我无法回答“给我讲个笑话”")
    assert "离线模型" in reply.text


@pytest.mark.parametrize("question", ["", "   ", "?!", "。"])
async def test_no_question_is_no_reason_to_call(question):
    reply = await say(question)
    assert reply.text
    assert not reply.tool_calls


async def test_without_tools_it_says_so():
    assert "no tool here fits" in (await say("What is 1 + 1?", tools=())).text


async def test_what_is_missing_is_asked_for():
    reply = await say("Send an email to bob@example.com")
    assert reply.text == "To use send_email I still need: subject; body."
    assert (await say("What's the weather?")).text == "To use get_weather I still need: city (The name of the city)."


async def test_the_answer_to_what_was_missing_completes_the_call():
    asked = "What's the weather in fahrenheit?"
    before = [user_message(asked), assistant_message((await say(asked)).text)]
    made, _ = await converse("San Francisco", lambda call: "18", before=before)
    assert made == [("get_weather", {"city": "San Francisco", "unit": "fahrenheit"})]


async def test_one_step_of_several_that_cannot_be_done_is_named():
    made, said = await converse("Write a poem about spring. What is 2 + 2?", lambda call: "4")
    assert [name for name, _ in made] == ["calculator"]
    assert said == "calculator: 4\nI did nothing about “Write a poem about spring.”: no tool fits it."


async def test_a_remark_is_not_taken_for_a_step():
    _, said = await converse("I am on a trip. What's the weather in Rome?", lambda call: "warm")
    assert said == "get_weather: warm"


async def test_two_tools_that_fit_alike_are_not_guessed_between():
    tools = [
        function("open_door", "Open or close a door.", "door", door="string"),
        function("paint_door", "Paint a door or close it.", "door", door="string"),
    ]
    assert not (await say("close the door 'front'", tools=tools)).tool_calls


@pytest.mark.timeout(20)
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
async def test_pages_of_anything_are_soon_done_with(question):
    reply = await say(f"average of {question}")
    assert reply.text or reply.tool_calls


# The request


async def test_the_same_question_gets_the_same_reply():
    question = "Convert 100 USD to EUR and read notes.txt"
    assert await say(question) == await say(question)


async def test_it_calls_nothing_when_it_may_not():
    reply = await say("What is 1 + 1?", tool_choice="none")
    assert not reply.tool_calls
    assert reply.text


async def test_a_demanded_call_is_made_on_less():
    question = "weather in Berlin, sun, moon and stars"
    assert not (await say(question)).tool_calls
    [call] = (await say(question, tool_choice="required")).tool_calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Berlin"})


async def test_the_text_is_handed_on():
    pieces: list[str] = []
    model = OfflineModel()
    reply = await model.generate(ModelRequest(messages=[user_message("Hi")]), pieces.append)
    assert "".join(pieces) == reply.text
    assert (model.name, reply.usage.requests, reply.usage.total_tokens) == ("offline", 1, 0)


async def test_calls_somebody_else_made_are_told():
    call = ToolCall(name="lookup", arguments={"q": "x"}, id="1")
    messages = [user_message("Hm?"), assistant_message(calls=[call]), tool_message(call, "found it")]
    reply = await OfflineModel().generate(ModelRequest(messages=messages, tools=TOOLS))
    assert reply.text == "lookup: found it"


async def test_a_call_that_was_edited_on_its_way_is_not_made_again():
    call = ToolCall(name="get_weather", arguments={"city": "Paris, France"}, id="1")
    messages = [user_message("weather in Paris"), assistant_message(calls=[call]), tool_message(call, "mild")]
    reply = await OfflineModel().generate(ModelRequest(messages=messages, tools=TOOLS))
    assert (reply.tool_calls, reply.text) == ((), "get_weather: mild")


async def test_an_agents_remarks_between_calls_are_not_the_question():
    call = ToolCall(name="get_weather", arguments={"city": "Paris"}, id="1")
    messages = [
        user_message("Hello"),
        assistant_message("Hi."),
        user_message("weather in Paris"),
        user_message("[3 earlier turns of this task are left out here.]"),
        assistant_message(calls=[call]),
        tool_message(call, "mild"),
        user_message("Some calls have failed so far. Think again."),
    ]
    reply = await OfflineModel().generate(ModelRequest(messages=messages, tools=TOOLS))
    assert reply.text == "get_weather: mild"


async def test_a_tool_with_a_coded_name_is_called_by_it_and_spoken_of_by_its_own():
    tool = function("math-2e-factorial", "Calculate the factorial of a number.", "number", number="integer")
    made, said = await converse("the factorial of the number 5", lambda call: "120", tools=[tool])
    assert made == [("math-2e-factorial", {"number": 5})]
    assert said == "math.factorial: 120"


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
        (1, "What is 3 + 4", "calculator", []),
        (2, "double it.", "calculator", [1]),
        (3, "Tell me a joke.", "none", []),
    ]


async def test_an_object_is_made_of_what_the_question_says():
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


async def test_what_was_answered_before_is_what_it_means():
    talk = [user_message("what is 2**10?"), assistant_message("calculator: 1024"), user_message("multiply it by 3")]
    async with UnifiedToolLibrary() as library:
        reply = await OfflineModel().generate(ModelRequest(messages=talk, tools=library.schemas()))
        assert [call.arguments for call in reply.tool_calls] == [{"expression": "1024 * 3"}]
