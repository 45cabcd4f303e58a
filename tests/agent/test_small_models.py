"""Runs with replies as small models write them; some are word for word those of one of 1.5 billion parameters."""

from __future__ import annotations

from typing import Annotated

import pytest

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent import Agent
from ferrule.core.messages import ToolCall, note_message
from ferrule.core.model import ModelReply
from ferrule.core.schema import Secret
from ferrule.testing import ScriptedModel
from ferrule.texts.shorten import estimate_tokens

CALL = '```json\n{\n  "name": "calculator",\n  "arguments": {\n    "expression": "4817 * 263 + 91"\n  }\n}\n```'
QUESTION = "What is 4817 * 263 + 91?"
AFTER_RESULTS = f"Task: {QUESTION}\nAnswer now, or make the next call if the task needs one."


class CountingLibrary(UnifiedToolLibrary):
    """A library that knows which expressions its calculator was given."""

    executed: list[str]


@pytest.fixture
async def library():
    executed: list[str] = []

    @tool
    async def calculator(expression: str) -> str:
        """Evaluate an arithmetic expression."""
        executed.append(expression)
        return "1266962"

    async with CountingLibrary() as opened:
        opened.register(calculator)
        opened.executed = executed
        yield opened


def contents(model: ScriptedModel, request: int) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in model.requests[request].messages[1:]]


async def run(library, *turns, task=QUESTION, **options):
    model = ScriptedModel(turns)
    return await Agent(library, model, tools=["calculator"], **options).run(task), model


# History in the form that the model writes


async def test_calls_written_as_text_are_shown_as_the_model_wrote_them(library):
    answer, model = await run(library, CALL, "The result of 4817 * 263 + 91 is 1266962.")
    assert contents(model, 1) == [
        ("user", QUESTION),
        ("assistant", CALL),
        ("user", f"Result of calculator: 1266962\n{AFTER_RESULTS}"),
    ]
    assert not any("tool_calls" in message for message in model.requests[1].messages)
    # The history of the run itself stays in OpenAI's format.
    assert [message["role"] for message in answer.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert answer.messages[2]["content"] is None and answer.messages[2]["tool_calls"]


async def test_a_model_with_tool_calls_of_its_api_sees_them_as_those(library):
    _, model = await run(library, {"name": "calculator", "arguments": {"expression": "1"}}, "Done: 1266962.")
    assert [message["role"] for message in model.requests[1].messages[2:]] == ["assistant", "tool"]


async def test_results_of_several_written_calls_are_one_message(library):
    both = CALL + "\n" + CALL.replace("91", "92")
    _, model = await run(library, both, "Both are known.")
    result = "Result of calculator: 1266962"
    assert contents(model, 1)[-1] == ("user", f"{result}\n{result}\n{AFTER_RESULTS}")


async def test_only_after_new_results_that_are_no_failures_the_model_is_told_to_answer(library):
    invalid = '```json\n{\n  "name": "calculator",\n  "arguments": {}\n}\n```'
    _, model = await run(library, CALL, CALL.replace("91", "92"), invalid, "Both are 1266962.")
    assert contents(model, 2)[2] == ("user", "Result of calculator: 1266962")
    assert contents(model, 2)[-1] == ("user", f"Result of calculator: 1266962\n{AFTER_RESULTS}")
    assert AFTER_RESULTS not in str(contents(model, 3))


async def test_what_a_model_writes_after_its_call_does_not_stay_in_its_history(library):
    reply = f"I will calculate this.\n{CALL}\nThe result is 12345.\n<tools></tools>"
    _, model = await run(library, reply, "It is 1266962.")
    assert contents(model, 1)[1] == ("assistant", f"I will calculate this.\n{CALL}")


async def test_a_call_that_fails_again_is_not_shown_and_its_tool_is_not_offered_in_the_next_turn(library):
    @tool
    async def get_office(employee_number: str) -> str:
        """Tell in which office an employee sits."""
        raise ValueError(f"unknown employee number {employee_number!r}")

    library.register(get_office)
    call = '```json\n{\n  "name": "get_office",\n  "arguments": {\n    "employee_number": "E-1234"\n  }\n}\n```'
    model = ScriptedModel([call, call, CALL, "It is unknown."])
    await Agent(library, model, tools=["calculator", "get_office"]).run(f"Where does Maria Lopez sit? {QUESTION}")
    shown = [[schema["function"]["name"] for schema in request.tools] for request in model.requests]
    assert shown == [["calculator", "get_office"]] * 2 + [["calculator"], ["calculator", "get_office"]]
    [(_, shown_text)] = contents(model, 2)
    assert shown_text.count("Result of get_office:") == 2 and "E-1234" not in shown_text.partition("Result")[0]


async def log_in(badge: str) -> str:
    """Log in."""
    return "welcome"


async def log_in_with_secret(badge: Annotated[str, Secret]) -> str:
    """Log in."""
    return "welcome"


@pytest.mark.parametrize(("function", "is_secret"), [(log_in, False), (log_in_with_secret, True)])
async def test_a_resumed_run_shows_calls_as_the_model_wrote_them_unless_they_had_secrets(library, function, is_secret):
    library.register(tool(name="log_in")(function))
    login = '```json\n{"name": "log_in", "arguments": {"badge": "k7"}}\n```'
    question = {"name": "ask_user", "arguments": {"question": "Which?"}}
    model = ScriptedModel([login, CALL, question, "It is 1266962."])
    tools = ["calculator", "log_in"]
    waiting = await Agent(library, model, tools=tools).run(QUESTION)
    answer = await Agent(library, model, tools=tools).resume(waiting.run_id, "The first.")
    assert answer.is_finished
    shown = contents(model, 3)
    assert ("assistant", CALL) in shown and ("user", "Result of calculator: 1266962") in shown
    assert (("assistant", login) in shown) is not is_secret
    stored = await library.engine.store.read_entries(f"run:{waiting.run_id}")
    assert ("k7" in str(stored)) is not is_secret


async def test_a_chinese_run_has_chinese_results(library):
    task = "请计算 4817 * 263 + 91 的结果"
    _, model = await run(library, CALL, "结果是 1266962。", task=task)
    reminder = f"任务：{task}\n请现在回答；只有任务还需要时才继续调用工具。"
    assert contents(model, 1)[-1] == ("user", f"calculator 的结果：1266962\n{reminder}")


@pytest.mark.parametrize("residue", ["```json\n```", "{ }", "<tools></tools>", CALL])
async def test_residue_beside_a_call_does_not_stay_in_the_history(library, residue):
    made = ToolCall(name="calculator", arguments={"expression": "4817 * 263 + 91"})
    answer, _ = await run(library, ModelReply(text=residue, tool_calls=(made,)), "It is 1266962.")
    assert answer.messages[2]["content"] is None and len(library.executed) == 1


# Replies that are no answers


@pytest.mark.parametrize(
    "reply",
    [
        "```json\n```",
        "{ }",
        "[]",
        "<tools> </tools>",
        "<tool_response>\n1266962\n</tool_response>",
        "I will use the calculator tool to find the result.",
        "To answer this, I need to call the calculator:",
        "我将使用计算工具来得到结果。",
        QUESTION,
    ],
)
async def test_a_reply_that_is_no_answer_is_asked_about_once(library, reply):
    answer, model = await run(library, reply, CALL, "It is 1266962.")
    assert answer.text == "It is 1266962." and len(library.executed) == 1
    asked = model.requests[1].messages[-1]
    assert asked == note_message("That is not an answer. Call a tool, or answer the user.")


@pytest.mark.parametrize("reply", ['{"name": "calculator"}', '```json\n{"name": "calculator"}\n```'])
async def test_nothing_but_the_name_of_a_tool_is_a_call_without_arguments(library, reply):
    answer, model = await run(library, reply, CALL, "It is 1266962.")
    assert answer.text == "It is 1266962." and len(library.executed) == 1
    assert "expression: is required" in model.requests[1].messages[-1]["content"]


async def test_a_call_of_an_unknown_tool_is_told_which_tools_there_are(library):
    reply = '```json\n{\n  "name": "multiply",\n  "arguments": {\n    "x": 4817,\n    "y": 263\n  }\n}\n```'
    answer, model = await run(library, reply, CALL, "It is 1266962.")
    assert answer.is_finished
    assert "There is no tool multiply. The tools are: calculator" in model.requests[1].messages[-1]["content"]


@pytest.mark.parametrize(
    "reply",
    [
        "The tool returned 1266962.",
        "I will be brief: 1266962.",
        'The configuration is {"name": "web", "port": 80}.',
        "You need to restart the server. Let me know if anything is unclear.",
        "我会说中文。",
    ],
)
async def test_answers_are_not_taken_for_intentions(library, reply):
    answer, model = await run(library, reply)
    assert answer.text == reply and len(model.requests) == 1


async def test_an_intention_that_is_repeated_is_the_answer(library):
    text = "I will use the calculator tool to find the result."
    answer, model = await run(library, text, text)
    assert answer.is_finished and answer.text == text and len(model.requests) == 2


# The same call again


async def test_a_repeated_call_is_not_made_and_the_answer_is_asked_for_without_tools(library):
    answer, model = await run(library, CALL, CALL, "It is 1266962.")
    assert answer.text == "It is 1266962." and library.executed == ["4817 * 263 + 91"]
    assert (answer.steps[1].text, answer.steps[1].advice) == ("1266962", "[You already have this result. Answer now.]")
    assert [bool(request.tools) for request in model.requests] == [True, True, False]
    [(_, asked)] = contents(model, 2)
    result = 'Result of calculator {"expression":"4817 * 263 + 91"}: 1266962'
    assert asked == f"{QUESTION}\n\n{result}\n\nAnswer the question from these results."


async def test_a_model_that_is_asked_for_its_answer_may_go_on_with_another_call(library):
    answer, model = await run(library, CALL, CALL, CALL.replace("91", "92"), "It is 1266962.")
    assert answer.is_finished and len(library.executed) == 2 and model.requests[3].tools


async def test_a_model_that_repeats_its_call_to_the_end_is_stopped_with_the_result(library):
    model = ScriptedModel([CALL], loop=True)
    answer = await Agent(library, model, tools=["calculator"]).run(QUESTION)
    assert not answer.is_finished and "1266962" in answer.text
    assert len(model.requests) == 5 and len(library.executed) == 1


async def test_another_call_in_between_makes_the_call_a_new_one(library):
    other = CALL.replace("91", "92")
    await run(library, CALL, other, CALL, "It is 1266962.")
    assert len(library.executed) == 3


async def test_two_calls_that_alternate_with_the_same_results_are_repetitions(library):
    """As a model of 1.5 billion parameters did: price, calculation, the same price, the same calculation …"""
    other = CALL.replace("91", "92")
    answer, model = await run(library, CALL, other, CALL, other, "It is 1266962.")
    assert answer.is_finished and len(library.executed) == 3
    assert "already have this result" in answer.steps[3].advice and not model.requests[4].tools


NESTED = """```json
{
  "name": "write_file",
  "arguments": {
    "path": "total.txt",
    "content": "The total amount is: " + (calculator("sum", {"expression": "sales.csv", "columns": ["amount"]}) || "0")
  }
}
```"""


async def test_a_call_inside_another_is_named_as_the_first_to_make_and_not_shown_again(library):
    @tool
    async def write_file(path: str, content: str) -> str:
        """Write a text file."""
        return "ok"

    library.register(write_file)
    model = ScriptedModel([NESTED, CALL, "Done."])
    answer = await Agent(library, model, tools=["calculator", "write_file"]).run(QUESTION)
    assert answer.is_finished and not answer.steps[0].is_success and len(library.executed) == 1
    shown = contents(model, 1)
    assert [role for role, _ in shown] == ["user"] and shown[0][1].startswith(f"{QUESTION}\nResult of write_file: Not")
    assert "First call calculator alone; then call write_file" in shown[0][1]


@pytest.mark.parametrize("reply", [NESTED, '```json\n{"name": "calculator", "arguments": {}}\n```'])
async def test_a_model_that_repeats_a_call_that_cannot_be_made_is_stopped(library, reply):
    @tool
    async def write_file(path: str, content: str) -> str:
        """Write a text file."""
        return "ok"

    library.register(write_file)
    model = ScriptedModel([reply], loop=True)
    answer = await Agent(library, model, tools=["calculator", "write_file"]).run(QUESTION)
    assert not answer.is_finished and len(model.requests) == 4 and not model.requests[-1].tools


async def test_calls_that_are_repeated_on_purpose_are_made():
    calls: list[str] = []

    @tool
    async def press_button(name: str) -> str:
        """Press a button."""
        calls.append(name)
        return "ok"

    @tool(polling=True)
    async def job(id: str) -> str:
        """Ask for a job."""
        calls.append(id)
        return "running"

    script = [{"name": "press_button", "arguments": {"name": "a"}}] * 3 + [
        {"name": "job", "arguments": {"id": "j"}}
    ] * 3
    answer = await Agent([press_button, job], ScriptedModel([*script, "Done."])).run("Press a three times, then wait")
    assert calls == ["a"] * 3 + ["j"] * 3 and answer.is_finished


# Other tools at the first failure


async def advice_after(failing: object, *others: object, task: str, **arguments: str) -> str:
    """What a model is told last after its call of the first tool failed."""
    async with UnifiedToolLibrary() as library:
        library.register(failing, *others)
        name = failing.__name__  # type: ignore[attr-defined]
        model = ScriptedModel([{"name": name, "arguments": arguments}, "It failed."])
        await Agent(library, model).run(task)
        return str(model.requests[1].messages[-1]["content"]).splitlines()[-1]


async def test_the_first_permanent_failure_names_the_tools_that_fit():
    def weather_service(city: str) -> str:
        """Get the current weather of a city from the weather service."""
        raise RuntimeError("the weather service was shut down for good in 2023")

    def station_report(city: str) -> str:
        """Get the latest weather report of the station in a city."""
        return f"{city}: 17 degrees"

    def send_mail(text: str) -> str:
        """Send a mail."""
        return "ok"

    task = "What is the weather in Lisbon now?"
    told = await advice_after(weather_service, station_report, send_mail, task=task, city="Lisbon")
    assert told == "Try instead: the tool 'station_report'."


async def test_a_failure_names_no_tool_that_does_another_job():
    def get_price(item: str) -> str:
        """Look up the price of one unit of an item."""
        raise RuntimeError("the price list was withdrawn for good")

    def get_department(department: str) -> str:
        """Look up a department: its manager and floor."""
        return "floor 3"

    def get_stock(item: int) -> str:
        """Count the valves in stock, by number."""
        return "7"

    task = "What is the price of the item copper valve in stock?"
    told = await advice_after(get_price, get_department, get_stock, task=task, item="copper valve")
    assert "withdrawn for good" in told and "Try instead" not in told


async def test_a_value_of_something_else_names_the_tool_that_finds_the_right_one():
    def get_customer(customer_id: str) -> str:
        """Look up a customer: name, email and city."""
        raise LookupError(f"There is no customer {customer_id}.")

    def get_order(order_id: int) -> str:
        """Look up an order: its customer id and total."""
        return "C-23"

    def find_customer(name: str) -> str:
        """Look up a customer's telephone number by name."""
        return "555-0182"

    task = "In which city is the customer who placed order 5120?"
    told = await advice_after(get_customer, get_order, find_customer, task=task, customer_id="5120")
    assert told.endswith("Try instead: the tool 'get_order'.")


# The first prompt


@pytest.mark.parametrize("task", ["What time is it?", "现在几点了？"])
async def test_the_agent_adds_little_to_the_first_prompt(library, task):
    _, model = await run(library, "It is noon.", task=task)
    assert estimate_tokens(model.requests[0].messages[0]["content"]) < 55
    assert [schema["function"]["name"] for schema in model.requests[0].tools] == ["calculator"]


async def test_control_tools_are_described_in_the_language_of_the_run(library):
    for task, description in [("Go", "End the task with the answer."), ("开始吧", "给出答案并结束任务。")]:
        _, model = await run(library, "Done.", task=task, control_tools=["finish_task"])
        [_, finish] = [schema["function"] for schema in model.requests[0].tools]
        assert finish["name"] == "finish_task" and finish["description"] == description
        assert finish["parameters"]["required"] == ["message"]


async def test_control_tools_that_are_not_shown_can_be_called(library):
    answer, _ = await run(library, '{"name": "finish_task", "arguments": {"message": "It is 7."}}')
    assert answer.is_finished and answer.text == "It is 7."


async def test_optional_parameters_are_shown_without_null():
    @tool
    async def search(query: str, site: str | None = None, tags: list[str] | None = None) -> str:
        """Search."""
        return "nothing"

    model = ScriptedModel([{"name": "search", "arguments": {"query": "a", "site": None}}, "Nothing."])
    answer = await Agent([search], model, tools=["search"]).run("Search a")
    properties = model.requests[0].tools[0]["function"]["parameters"]["properties"]
    assert properties["site"] == {"type": "string"}
    assert properties["tags"] == {"type": "array", "items": {"type": "string"}}
    assert answer.steps[0].is_success


async def test_a_model_that_insists_on_a_call_that_fails_is_asked_for_its_answer_without_tools():
    @tool(read_only=True)
    async def find_employee(name: str) -> str:
        """Find an employee by name."""
        raise LookupError(f"there is no employee named {name!r}")

    call = '```json\n{\n  "name": "find_employee",\n  "arguments": {\n    "name": "Bob Stone"\n  }\n}\n```'
    model = ScriptedModel([call, call, call, "There is no employee named Bob Stone."])
    answer = await Agent([find_employee], model).run("What is the employee number of Bob Stone?")
    assert answer.is_finished and answer.text == "There is no employee named Bob Stone."
    assert [len(request.tools) for request in model.requests] == [1, 1, 1, 0]
    assert str(model.requests[-1].messages[-1]["content"]).endswith("Answer the question from these results.")
