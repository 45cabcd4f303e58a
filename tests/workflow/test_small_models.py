"""Plans with replies as small models write them: nothing that a model makes up passes."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest

from ferrule import AgentState, Policy, UnifiedToolLibrary, tool
from ferrule.agent.answer import StepAttempt, StepResult
from ferrule.testing import ScriptedModel
from ferrule.workflow import SimpleWorkflow
from ferrule.workflow.results import find_made_up_number
from tests.workflow.plans import plan

QUESTION = "How many stars does the project acme/rocket have?"
NOTHING_ELSE = '{"steps": []}'


def lookup(**parameters: object) -> dict[str, object]:
    return {"id": 1, "description": "Look up the stars", "tool_type": "get_stars", "parameters": parameters}


@tool(read_only=True)
async def get_stars(repository: str) -> int:
    """Get the number of stars of a repository."""
    if repository != "acme/rocket":
        raise LookupError(f"404: there is no repository {repository}")
    return 28


@tool(read_only=True)
async def count_stars(project: str) -> int:
    """Count."""
    raise RuntimeError("the service was shut down")


async def run(model: ScriptedModel, *tools: object):
    async with UnifiedToolLibrary() as library:
        library.register(*tools)
        return await SimpleWorkflow(library, model).run(QUESTION)


COUNT = {"id": 1, "description": "Count", "tool_type": "count_stars", "parameters": {"project": "rocket"}}


async def test_what_a_model_knows_after_a_failed_step_is_an_answer_and_marked():
    model = ScriptedModel([plan(COUNT), "The project has 10 stars."])
    done = await run(model, count_stars)
    [result] = done.results
    assert result.success and [attempt.success for attempt in result.attempts] == [False, True]
    assert result.verification is not None and result.verification.verified and result.verification.confidence == 0.5
    assert done.state is AgentState.FINISHED and len(model.requests) == 2
    assert done.answer == (
        "The project has 10 stars.\n"
        "(Not from count_stars, which failed: this is what the model knows by itself, unchecked.)"
    )


async def test_a_model_that_knows_nothing_without_its_tool_has_no_answer():
    done = await run(ScriptedModel([plan(COUNT), "UNKNOWN.", NOTHING_ELSE]), count_stars)
    assert not done.results[0].success and "the service was shut down" in done.answer


async def test_nothing_is_changed_by_what_a_model_says_in_place_of_a_tool():
    sent: list[str] = []

    @tool
    async def send(text: str) -> str:
        """Send a message."""
        sent.append(text)
        return "sent"

    thought = {"id": 2, "description": "Double it", "tool_type": "none", "dependencies": [1]}
    mail = {"id": 3, "description": "Send", "tool_type": "send", "parameters": {"text": "${2}"}, "dependencies": [2]}
    done = await run(
        ScriptedModel([plan(COUNT, thought, mail), "It has 10.", "20 stars.", "Not sent."]), count_stars, send
    )
    assert [result.success for result in done.results] == [True, True, False] and sent == []
    assert done.results[2].error == "It needs the result of step 2, which no tool confirms."
    assert done.answer.startswith("Not sent.\n(Not from count_stars")


@pytest.mark.parametrize(
    "steps",
    [
        # A step that only waits for the others has their results too.
        [{"id": 2, "description": "Think", "tool_type": "none"}, {"dependencies": [2], "parameters": {"text": "${2}"}}],
        [{"dependencies": [1], "parameters": {"text": "${1}"}}],
    ],
    ids=["through a step that waits for all", "at once"],
)
async def test_a_call_that_may_be_repeated_is_a_change_too(steps: list[dict[str, object]]):
    deleted: list[str] = []

    @tool(destructive=True, idempotent=True)
    async def delete(text: str) -> str:
        """Delete something."""
        deleted.append(text)
        return "deleted"

    *others, last = steps
    last = {"id": 3, "description": "Delete it", "tool_type": "delete", **last}
    async with UnifiedToolLibrary(policy=Policy(default="allow")) as library:
        library.register(count_stars, delete)
        model = ScriptedModel([plan(COUNT, *others, last), "It has 10.", *(["20."] * len(others)), "Not deleted."])
        done = await SimpleWorkflow(library, model).run(QUESTION)
    assert deleted == [] and "which no tool confirms" in (done.results[-1].error or "")


def text_of_request(model: ScriptedModel, number: int) -> str:
    return "\n".join(str(message.get("content")) for message in model.requests[number].messages)


async def test_the_arguments_of_a_change_are_not_taken_from_a_result_that_no_tool_confirms():
    sent: list[str] = []

    @tool
    async def send(text: str) -> str:
        """Send a message."""
        sent.append(text)
        return "sent"

    thought = {"id": 2, "description": "Think", "tool_type": "none", "dependencies": [1]}
    ask = {"id": 3, "description": "What shall I send?", "tool_type": "ask_user", "dependencies": [2]}
    mail = {"id": 4, "description": "Send", "tool_type": "send", "dependencies": [3]}
    model = ScriptedModel(
        [plan(COUNT, thought, ask, mail), "It has 4711.", "So 4711, I think.", '{"text": "Hello"}', "Sent."]
    )
    async with UnifiedToolLibrary(policy=Policy(default="allow")) as library:
        library.register(count_stars, send)
        workflow = SimpleWorkflow(library, model)
        waiting = await workflow.run(QUESTION)
        done = await workflow.resume(waiting.run_id, "A greeting")
    assert sent == ["Hello"] and done.state is AgentState.FINISHED
    assert "4711" in text_of_request(model, 2) and "A greeting" in text_of_request(model, 3)
    assert "4711" not in text_of_request(model, 3)
    assert [result.is_confirmed for result in done.results] == [False, False, True, True]


async def test_a_revised_plan_does_not_contain_what_no_tool_confirms():
    @tool(read_only=True)
    async def get_owner(stars: str) -> str:
        """Get the owner."""
        raise LookupError(f"nobody has {stars}")

    @tool(read_only=True)
    async def get_year(project: str) -> str:
        """Get the year."""
        return "since 1999"

    owner = {"id": 2, "description": "Owner", "tool_type": "get_owner", "parameters": {"stars": "${1}"}}
    year = {"id": 3, "description": "Year", "tool_type": "get_year", "parameters": {"project": "x"}}
    # In place of the owner, the model first tries other arguments, and then knows nothing.
    replies = ["4711 stars", '{"stars": "4711 stars"}', "UNKNOWN", NOTHING_ELSE, "Nobody knows."]
    model = ScriptedModel([plan(COUNT, year, {**owner, "dependencies": [1, 3]}), *replies])
    done = await run(model, count_stars, get_owner, get_year)
    assert [result.success for result in done.results] == [True, True, False]
    revision = text_of_request(model, 4)
    assert "since 1999" in revision and "[2] Owner" in revision and "as ${1}" in revision
    assert "4711" not in revision


def test_a_second_attempt_that_fails_does_not_hide_where_the_first_result_is_from():
    failed = StepAttempt(level="name", tool="a", success=False)
    reasoned = StepAttempt(level="reasoning", tool="none", success=True)
    found = StepAttempt(level="name", tool="b", success=True)
    step: dict[str, Any] = {"step_id": 1, "description": "Count", "tool_type": "a", "success": True}
    attempts: dict[tuple[StepAttempt, ...], bool] = {
        (failed, reasoned, failed): True,
        (found, failed, reasoned): True,
        (failed, reasoned, found): False,
    }
    attempts |= {(reasoned,): False, (found, failed): False}
    for made, expected in attempts.items():
        assert StepResult(**step, attempts=made).is_reasoned_instead is expected, made


async def test_a_plan_in_which_every_step_needs_all_earlier_ones_is_executed():
    """What its results rest on is looked up once for each of them."""
    add_all = {"tool_type": "add_up", "parameters": {"expression": "1 + 2"}}
    steps = [{"id": n, "description": f"Step {n}", "dependencies": [*range(1, n)], **add_all} for n in range(1, 40)]

    @tool
    async def note(text: str) -> str:
        """Write a note."""
        return text

    last = {"id": 40, "description": "Note", "tool_type": "note", "parameters": {"text": "x"}}
    model = ScriptedModel([plan(*steps, {**last, "dependencies": [*range(1, 40)]}), "Done."])
    done = await run(model, add_up, note)
    assert all(result.success for result in done.results) and len(done.results) == 40


async def test_a_revised_plan_cannot_reason_from_nothing():
    step = {"id": 1, "description": "Count", "tool_type": "count_stars", "parameters": {"project": "rocket"}}
    guess = {"id": 2, "description": "Estimate the stars", "tool_type": "none"}
    model = ScriptedModel([plan(step), "UNKNOWN", plan(guess), NOTHING_ELSE])
    done = await run(model, count_stars)
    assert not any(result.success for result in done.results) and "10" not in done.answer
    assert "nothing to reason from" in (done.results[-1].error or "")


async def test_arguments_that_the_error_mentions_are_filled_in_again_from_the_text_of_the_model():
    call = '```json\n{\n  "name": "get_stars",\n  "arguments": {\n    "repository": "acme/rocket"\n  }\n}\n```'
    model = ScriptedModel([plan(lookup(repository="rocket")), call])
    done = await run(model, get_stars)
    assert done.answer == "28" and [attempt.success for attempt in done.results[0].attempts] == [False, True]
    assert "404: there is no repository rocket" in str(model.requests[1].messages)


async def test_the_prompt_for_the_answer_is_the_question_with_the_results():
    steps = [lookup(repository="acme/rocket"), {**lookup(repository="acme/rocket"), "id": 2}]
    model = ScriptedModel([plan(*steps), "It has 28 stars."])
    done = await run(model, get_stars)
    [message] = model.requests[-1].messages
    assert message["role"] == "user" and message["content"].startswith(QUESTION) and done.answer == "It has 28 stars."
    assert message["content"].endswith("Answer the question from these results. If they do not answer it, say so.")


async def test_a_step_that_names_no_tool_is_done_by_the_tool_that_takes_its_parameters():
    step = {**lookup(repository="acme/rocket"), "tool_type": "function"}
    done = await run(ScriptedModel([plan(step), "It has 28 stars."]), get_stars, count_stars)
    [result] = done.results
    assert result.success and "28" in str(result.output)
    assert "names the tool 'function'" in done.plan.problems[0] and "'get_stars' is used" in done.plan.problems[0]


async def test_the_schema_of_a_plan_lists_the_tools():
    model = ScriptedModel([plan(lookup(repository="acme/rocket")), "It has 28 stars."])
    await run(model, get_stars)
    schema = model.requests[0].answer_schema
    assert schema is not None
    step = schema["properties"]["steps"]["items"]["properties"]
    assert {"get_stars", "none", "ask_user"} <= {*step["tool_type"]["enum"]}


async def test_a_model_that_plans_reads_each_tool_once_and_in_short():
    @tool(read_only=True)
    async def star_history(project: str, days: int = 1, unit: Literal["day", "week"] = "day") -> str:
        """Tell how many stars a project had. It knows all projects."""
        return "28"

    model = ScriptedModel([plan(lookup(repository="acme/rocket")), "It has 28 stars."])
    await run(model, get_stars, star_history)
    [system, _] = model.requests[0].messages
    assert not model.requests[0].tools
    assert (
        "\n- star_history(project, days?: integer, unit?: day|week): Tell how many stars a project had.\n"
        in system["content"]
    )


@tool(read_only=True)
async def repository_info(name: str) -> dict[str, object]:
    """Look up facts about a repository."""
    return {"owner": "acme", "stars": 4721 if name == "acme/rocket" else 318}


@tool(read_only=True)
async def add_up(expression: str) -> int:
    """Add numbers up."""
    if not re.fullmatch(r"[\d\s+]+", expression):
        raise ValueError("only numbers and + are allowed")
    return sum(map(int, expression.split("+")))


def sum_of_stars(expression: str) -> str:
    """The plan of a model of 1.5 billion parameters, without what does not matter."""
    names = ["acme/rocket", "acme/boat"]
    steps = [
        {"id": number, "description": f"Look up {name}", "tool_type": "repository_info", "parameters": {"name": name}}
        for number, name in enumerate(names, 1)
    ]
    total = {
        "id": 3,
        "description": "Add the stars up",
        "tool_type": "add_up",
        "parameters": {"expression": expression},
    }
    return plan(*steps, total)


@pytest.mark.parametrize(
    ("expression", "attempts"), [("${1} + ${2}", [False, True]), ("${1.count} + ${2.count}", [True])]
)
async def test_arguments_that_refer_to_the_wrong_part_of_a_result_are_filled_in_from_the_results(
    expression: str, attempts: list[bool]
):
    call = '```json\n{\n  "name": "add_up",\n  "arguments": {\n    "expression": "4721 + 318"\n  }\n}\n```'
    model = ScriptedModel([sum_of_stars(expression), call, "They have 5039 stars."])
    done = await run(model, repository_info, add_up)
    assert done.results[2].output == 5039 and done.answer == "They have 5039 stars."
    assert [attempt.success for attempt in done.results[2].attempts] == attempts
    assert '"stars":4721' in str(model.requests[1].messages) and len(model.requests) == 3


async def test_an_object_in_place_of_a_text_stands_for_its_field_of_that_name():
    @tool(read_only=True)
    async def find_employee(name: str) -> dict[str, object]:
        """Look up an employee."""
        return {"name": name, "department": "Logistics", "extension": 5127}

    @tool(read_only=True)
    async def get_department(department: str) -> dict[str, str]:
        """Look up a department."""
        return {"manager": "Irene Okafor"} if department == "Logistics" else {}

    steps = [
        {"id": 1, "description": "Find", "tool_type": "find_employee", "parameters": {"name": "Dana Reyes"}},
        {"id": 2, "description": "Look up", "tool_type": "get_department", "parameters": {"department": "${1}"}},
    ]
    model = ScriptedModel([plan(*steps), "It is Irene Okafor."])
    done = await run(model, find_employee, get_department)
    assert done.results[1].output == {"manager": "Irene Okafor"} and len(model.requests) == 2


async def test_arguments_with_a_table_inside_are_filled_in_from_the_results_after_a_failure():
    @tool
    async def read_file(path: str) -> str:
        """Read a text file."""
        return "name,score\nann,91\nbob,78\n"

    @tool
    async def calculate(expression: str) -> float:
        """Compute an arithmetic expression."""
        if not re.fullmatch(r"[\d\s()+/]+", expression):
            raise SyntaxError("invalid syntax. Perhaps you forgot a comma?")
        return 84.5

    steps = [
        {"id": 1, "description": "Read", "tool_type": "read_file", "parameters": {"path": "scores.csv"}},
        {
            "id": 2,
            "description": "Compute the average",
            "tool_type": "calculate",
            "parameters": {"expression": "sum(${1}) / count(${1})"},
        },
    ]
    call = '```json\n{\n  "name": "calculate",\n  "arguments": {\n    "expression": "(91 + 78) / 2"\n  }\n}\n```'
    model = ScriptedModel([plan(*steps), call, "The average is 84.5."])
    done = await run(model, read_file, calculate)
    assert done.results[1].output == 84.5 and [a.success for a in done.results[1].attempts] == [False, True]
    asked = model.requests[1]
    assert asked.max_tokens is not None and asked.answer_schema is not None and not asked.tools
    assert "invalid syntax. Perhaps you forgot a comma?" in str(asked.messages) and "sum(" not in str(asked.messages)


PRICES = "What do 3 copper valves and 2 steel pipes cost together?"


@tool(read_only=True)
async def get_price(item: str) -> str:
    """Look up the price of one unit of an item."""
    return {"copper valve": "38.45 EUR", "steel pipe": "12.5 EUR"}[item]


@tool(read_only=True)
async def calculate(expression: str) -> float:
    """Compute an arithmetic expression."""
    known = {"38.45 * 3": 115.35, "12.5 * 2": 25.0, "115.35 + 25.0": 140.35, "3 * 10": 30, "2 * 15": 30, "30 + 30": 60}
    if expression not in known:
        raise SyntaxError("invalid syntax (<unknown>, line 1)")
    return known[expression]


def calculation(number: int, expression: str, *needed: int) -> dict[str, object]:
    parameters = {"expression": expression}
    return {
        "id": number,
        "description": "Calculate",
        "tool_type": "calculate",
        "parameters": parameters,
        "dependencies": list(needed),
    }


def price(number: int, item: str) -> dict[str, object]:
    return {"id": number, "description": "Look up", "tool_type": "get_price", "parameters": {"item": item}}


MADE_UP = plan(calculation(1, "3 * 10"), calculation(2, "2 * 15"), calculation(3, "${1} + ${2}", 1, 2))
"""The plan of a model of 1.5 billion parameters, which has not looked up the prices."""


async def run_prices(*turns: str):
    model = ScriptedModel(turns)
    async with UnifiedToolLibrary() as library:
        library.register(get_price, calculate)
        return await SimpleWorkflow(library, model).run(PRICES), model


async def test_a_plan_that_calculates_with_made_up_numbers_is_asked_for_once_more():
    looked_up = plan(
        price(1, "copper valve"),
        calculation(2, "${1} * 3", 1),
        price(3, "steel pipe"),
        calculation(4, "${1} * 2", 3),  # word for word: it means ${3}
        calculation(5, "${2} + ${4}", 2, 4),
    )
    done, model = await run_prices(MADE_UP, looked_up, "The total cost is 140.35 EUR.")
    assert done.results[-1].output == 140.35 and done.answer == "The total cost is 140.35 EUR."
    assert len(model.requests) == 3 and all(result.verification.verified for result in done.results)
    asked = model.requests[1].messages[-1]["content"]
    assert "the number 10 in step 1 is made up" in asked and "get_price" in asked
    assert "Step 4 depends on step 3, but refers to 1; it uses 3." in done.errors


async def test_what_is_calculated_with_made_up_numbers_is_not_verified_and_no_answer():
    answer = "The cost of 3 copper valves and 2 steel pipes together is 60."
    done, _ = await run_prices(MADE_UP, MADE_UP, NOTHING_ELSE, answer)
    assert [result.made_up_number for result in done.results] == ["10", "15", "10"]
    assert not any(result.verification.verified or result.verification.confidence > 0.5 for result in done.results)
    assert done.answer != answer and done.answer.startswith("I could not find an answer.")
    assert "60 (not verified: 10 is neither in the question nor in a result)" in done.answer


async def test_an_answer_with_a_number_from_nowhere_is_not_given_after_a_failed_step():
    steps = [price(1, "copper valve"), calculation(2, "${1} * 4", 1)]
    refilled = '{"expression": "38.45 EUR * 4"}'
    turns = [plan(*steps), refilled, refilled, "UNKNOWN", NOTHING_ELSE, "The cost together is 100.40 EUR."]
    done, _ = await run_prices(*turns)
    assert "100.40" not in done.answer
    assert "1. Look up: 38.45 EUR" in done.answer and "2. Calculate: SyntaxError" in done.answer


async def test_a_revised_plan_calculates_nothing_with_a_number_in_place_of_a_failed_result():
    lost = {"id": 1, "description": "Count", "tool_type": "count_stars", "parameters": {"project": "rocket"}}
    product = calculation(2, "(10 + 3) * 3")
    model = ScriptedModel([plan(lost), "UNKNOWN", plan(product), NOTHING_ELSE, "It is 39."])
    async with UnifiedToolLibrary() as library:
        library.register(count_stars, calculate, get_stars)
        done = await SimpleWorkflow(library, model).run(QUESTION)
    assert [result.success for result in done.results] == [False, False] and "39" not in done.answer
    assert "the number 10 is neither in the question nor in a result" in (done.results[1].error or "")


@pytest.mark.parametrize(
    "expression", ["3 * 24", "80 * 15 / 100", "3.1416 * 3", "777", "2026-11-17", "1/2/2026", "555 items"]
)
async def test_numbers_of_the_question_usual_constants_and_plain_arguments_are_not_made_up(expression: str):
    @tool(read_only=True)
    async def calculate(expression: str) -> float:
        """Compute an arithmetic expression."""
        return 12

    model = ScriptedModel([plan(calculation(1, expression)), "It is 12."])
    async with UnifiedToolLibrary() as library:
        library.register(calculate, get_stars)
        await SimpleWorkflow(library, model).run("What is 15% of 80, and how many hours are 3 days?")
    assert "made up" not in str([request.messages for request in model.requests])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80 * 0.15", None),
        ("80 * 1.15", None),
        ("It is 1,234.57 EUR", None),
        ("It is 60.", "60"),
        ("It costs 100.40 EUR.", "100.40"),
        ("8 * 10", "10"),
    ],
)
def test_a_number_is_made_up_if_it_does_not_follow_from_a_known_one(text: str, number: str | None):
    assert find_made_up_number(text, "15% of 80; 1234.5678") == number
