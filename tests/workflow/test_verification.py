"""Whether results can be believed, and how they are put into words."""

import re
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent.formats import find_json_values
from ferrule.testing import ScriptedModel
from ferrule.workflow import PlanningAgent, StepContext, StepResult, VerificationAgent
from ferrule.workflow.results import format_result


def result(text: Any, description: str = "find something", step_id: int = 1, **more: Any) -> StepResult:
    said = {"tool_type": "search_web", "success": True, "result": str(text), "output": text, **more}
    return StepResult(step_id=step_id, description=description, **said)


async def verify(one: StepResult, expected: str = "", *others: StepResult) -> Any:
    context = StepContext(question="q", results={str(other.step_id): other for other in others})
    return await VerificationAgent().verify_result(one, context, expected)


@pytest.mark.parametrize(
    ("text", "description", "expected"),
    [
        ("42", "how many stars", "number"),
        ("2026-11-15", "when was it", "date"),
        ("现在是 14:05:09", "time", "time"),
        ("2026-11-18T09:29:09+09:00, 2026-11-18T09:59:59.123Z", "current time", "time"),
        ("现在是09:29:09。", "现在几点", "time"),
        ("2026年11月15日", "when", "日期"),
        ("75 %", "share of tea drinkers", ""),
        ("The film is called 'Error in the sky'.", "which film", ""),
        ("the match ended 3:2 after 120:30 minutes", "score", ""),
        (0, "how many errors", "number"),
        ({"count": 0, "items": []}, "what is there", ""),
        ("Avengers: Infinity War, with Nan", "which film", ""),
        (-3, "age difference in years", "number"),
    ],
)
async def test_what_is_sound_is_believed(text, description, expected):
    verified = await verify(result(text, description), expected)
    assert verified.verified and verified.issues == () and verified.confidence == 1.0


@pytest.mark.parametrize(
    ("text", "description", "expected", "issue"),
    [
        ("", "find", "", "The result is empty."),
        ({"items": [], "text": ""}, "find", "", None),
        ("Error: connection refused", "find", "", "reports an error"),
        ("发生错误，请重试", "查找", "", "reports an error"),
        ("many", "how many stars", "number", "A number was expected"),
        ("soon", "when", "date", "A date was expected"),
        ("early", "what time", "time", "A time was expected"),
        ("2026-02-31", "when", "", "The date 2026-02-31 does not exist."),
        ("23:75", "when", "", "The time 23:75 does not exist."),
        ("2026-11-18T09:61:09", "when", "", "The time 09:61:09 does not exist."),
        ("-5", "how many stars", "number", "is never negative"),
        ("the probability is 140%", "probability of rain", "", "not a share of a whole"),
        ("NaN", "the mean", "", "not a finite number"),
        ({"result": "-Infinity"}, "the mean", "", "not a finite number"),
    ],
)
async def test_what_cannot_be_is_doubted(text, description, expected, issue):
    verified = await verify(result(text, description), expected)
    if issue is not None:
        assert not verified.verified and any(issue in said for said in verified.issues)
        assert verified.confidence < 0.5


async def test_a_failed_step_is_never_verified():
    failed = StepResult(step_id=1, description="d", tool_type="t", success=False, error="boom")
    verified = await verify(failed)
    assert (verified.verified, verified.confidence, verified.issues) == (False, 0.0, ("boom",))


async def test_results_of_one_subject_should_have_something_in_common():
    one = result("Tokyo is the capital of Japan", "capital of Japan", 1)
    other = result("bananas are yellow fruit from the south", "capital of Japan", 2)
    verified = await verify(other, "", one)
    assert verified.verified and verified.confidence == 0.7
    assert verified.issues == ("The result has little in common with that of step 1 on the same subject.",)
    assert (await verify(result("Tokyo, the capital of Japan", "capital of Japan", 2), "", one)).issues == ()
    assert (await verify(result("bananas", "colour of fruit", 2), "", one)).issues == ()


async def test_results_of_several_subjects_need_nothing_in_common():
    said = {"Tokyo": "21:15, a Tuesday", "Paris": "14:17 and rain", "Lima": "eight in the morning"}
    done = [result(text, f"Get the current time in {city}", n) for n, (city, text) in enumerate(said.items())]
    assert (await verify(done[2], "", *done[:2])).issues == ()


def test_results_are_cut_to_the_length_of_their_kind():
    long = "这是一个句子。" * 200
    assert len(format_result(long, name="calculator", tags=["calculate"])) <= 100
    assert len(format_result(long, name="x", tags=["time"])) <= 200
    assert len(format_result(long, name="get_conversation_history")) > 900
    cut = format_result(long, name="x")
    assert len(cut) <= 500 and cut.endswith("。")


def test_of_a_search_the_first_three_hits_are_told():
    hits = [{"title": f"T{n}", "snippet": f"about {n}", "url": f"https://e.test/{n}"} for n in range(5)]
    told = format_result({"results": hits}, name="search_web", tags=["search"])
    assert told.splitlines() == [f"- T{n}: about {n} (https://e.test/{n})" for n in range(3)]


def test_times_and_history_are_put_into_words():
    time = {"time": "2026-11-15T14:05:00+09:00", "zone": "Asia/Tokyo", "text": "It is 14:05 in Tokyo."}
    assert format_result(time, name="get_time", tags=["time"]) == "It is 14:05 in Tokyo."
    turns = [{"question": "Tea?", "answer": "Yes."}, {"question": "Cake?", "answer": ""}]
    assert format_result(turns, name="get_conversation_history") == "- Tea? → Yes.\n- Cake?"
    assert format_result(["Tea?"], name="get_conversation_history") == "- Tea?"


async def test_of_many_tools_the_core_and_ten_others_are_shown_and_the_rest_counted():
    def make(number: int) -> Any:
        @tool(name=f"tool_{number:02}")
        async def one(topic: str) -> str:
            """Look a topic up."""
            return topic

        return one

    async with UnifiedToolLibrary() as library:
        library.register(*map(make, range(30)))
        model = ScriptedModel(['{"steps": [{"id": 1, "description": "d", "tool_type": "tool_29"}]}'])
        plan = await PlanningAgent(library, model, core_tools=["calculator"]).decompose_task("Look a topic up")
        prompt = str(model.requests[0].messages[0]["content"])
        assert len(re.findall(r"\n- tool_\d", prompt)) == 10 and "more tools can be called by their names" in prompt
        assert "- calculator(expression): " in prompt and plan.steps[0].tool_type == "tool_29"


def test_json_is_found_in_any_text():
    assert list(find_json_values('Sure: {"a": 1} and [1, 2] {broken')) == [{"a": 1}, [1, 2]]
    assert list(find_json_values('```json\n{"steps": []}\n```')) == [{"steps": []}]
    assert list(find_json_values("{" * 5000)) == []
