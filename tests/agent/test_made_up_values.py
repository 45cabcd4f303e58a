"""Small models that write what they have not read; the calls are those of one of 1.5 billion parameters."""

import json
from typing import Any

import pytest

from ferrule.agent import Agent
from ferrule.agent.made_up_values import find_made_up_key, find_made_up_value
from ferrule.testing import ScriptedModel
from tests.agent.calls import Folder

COPY = "Copy the content of a.txt to b.txt."
SUM = "Add up the numbers in numbers.txt and write the sum into total.txt."


def call(name: str, **arguments: str) -> str:
    return f"```json\n{json.dumps({'name': name, 'arguments': arguments}, indent=2, ensure_ascii=False)}\n```"


class NumberFolder(Folder):
    """Two files, and tools that read and write them."""

    def __init__(self) -> None:
        super().__init__(a="blue 42 whale", numbers="12\n30\n33")

    def tools(self) -> list[Any]:
        return super().tools()[1:]


async def test_a_model_that_writes_a_made_up_content_is_told_to_find_it_out_first():
    made_up = call("write_file", path="b.txt", content="Copy of a.txt")
    turns = [
        made_up,
        call("read_file", path="a.txt"),
        call("write_file", path="b.txt", content="blue 42 whale"),
        "Done.",
    ]
    folder, model = NumberFolder(), ScriptedModel(turns)
    answer = await Agent(folder.tools(), model).run(COPY)
    assert folder.files["b.txt"] == "blue 42 whale" and answer.text == "Done."
    assert [step.is_success for step in answer.steps] == [False, True, True]
    [_, shown] = model.requests[1].messages  # a model that sees its call again writes it again
    assert shown["content"].startswith(f"{COPY}\nResult of write_file: Not done: the value of content is neither in")
    assert "First find it out (read_file)" in shown["content"]


async def test_a_model_that_insists_on_its_value_gets_its_way():
    made_up = call("write_file", path="total.txt", content="1234567890")
    folder, model = NumberFolder(), ScriptedModel([made_up, made_up, "Done."])
    answer = await Agent(folder.tools(), model).run(SUM)
    assert folder.files["total.txt"] == "1234567890" and [s.is_success for s in answer.steps] == [False, True]


async def test_a_chinese_run_is_told_in_chinese():
    made_up = call("write_file", path="total.txt", content="1234567890")
    model = ScriptedModel([made_up, made_up, "完成。"])
    await Agent(NumberFolder().tools(), model).run("把 numbers.txt 中的数字相加，写入 total.txt。")
    assert "未执行：content 的值既不在任务中，也不在结果中。" in model.requests[1].messages[-1]["content"]


async def test_tools_that_do_not_say_what_they_change_look_something_up_if_their_names_say_so():
    def get_order(order_id: int) -> dict[str, object]:
        """Look up an order."""
        return {"customer": "mara.v@example.com"}

    def write_file(path: str, content: str) -> str:
        """Write a text file."""
        return f"wrote {content}"

    made_up = call("write_file", path="contact.txt", content="John Doe <john.doe@example.com>")
    model = ScriptedModel([made_up, '```json\n{"name": "get_order", "arguments": {"order_id": 8841}}\n```', "Done."])
    answer = await Agent([get_order, write_file], model).run("Write who placed order 8841 to contact.txt.")
    assert [step.is_success for step in answer.steps] == [False, True]
    assert "First find it out (get_order)" in model.requests[1].messages[-1]["content"]


async def test_a_model_that_copies_the_example_of_a_description_is_told_to_use_the_values_of_the_task():
    def get_price(item: str) -> str:
        """Look up the price of one unit of an item."""
        return "38.45 EUR"

    def calculate(expression: str) -> str:
        """Compute an arithmetic expression.

        Args:
            expression: for example (2 + 3) * 4
        """
        return {"7 * 38.45": "269.15"}.get(expression, "20")

    turns = [
        call("get_price", item="copper valve"),
        call("calculate", expression="(2 + 3) * 4"),
        call("calculate", expression="7 * 38.45"),
        "They cost 269.15 EUR.",
    ]
    model = ScriptedModel(turns)
    answer = await Agent([get_price, calculate], model).run("How much do 7 units of the item copper valve cost?")
    assert [step.text for step in answer.steps][1:] == [
        "Not done: expression is the example of the description. Use the values of the task and of the results.",
        "269.15",
    ]
    assert "(2 + 3) * 4" not in str(model.requests[2].messages)


async def test_a_model_that_replaces_a_file_which_it_has_not_read_is_told_to_read_it_first():
    edit = "In the file a.txt change the number from 42 to 43. Leave everything else as it is."
    turns = [
        call("write_file", path="a.txt", content="number = 43"),
        call("read_file", path="a.txt"),
        call("write_file", path="a.txt", content="blue 43 whale"),
        "Done.",
    ]
    folder, model = NumberFolder(), ScriptedModel(turns)
    await Agent(folder.tools(), model).run(edit)
    assert folder.files["a.txt"] == "blue 43 whale"
    told = "Not done: you have not read a.txt. First call read_file; if a.txt is new, make the call again."
    assert model.requests[1].messages[-1]["content"] == f"{edit}\nResult of write_file: {told}"
    shown = [[schema["function"]["name"] for schema in request.tools] for request in model.requests]
    assert shown[:3] == [["read_file", "write_file"], ["read_file"], ["read_file", "write_file"]]


@pytest.mark.parametrize(
    ("task", "content"),
    [
        ("Create c.txt that contains exactly this text: Hello from the workshop", "Hello from the workshop"),
        ("创建文件 c.txt，内容为：星期三 开会", "星期三 开会"),
    ],
)
async def test_a_text_of_the_task_is_written_without_a_question(task: str, content: str):
    folder = NumberFolder()
    answer = await Agent(
        folder.tools(), ScriptedModel([call("write_file", path="c.txt", content=content), "Done."])
    ).run(task)
    assert folder.files["c.txt"] == content and [step.is_success for step in answer.steps] == [True]


def get_room(room: str) -> dict[str, str]:
    """Who teaches in a room."""
    return {"teacher_id": "T-305"}


def get_teacher(teacher_id: str) -> dict[str, str]:
    """Contact data of a teacher."""
    return {"phone": "0551-88213"}


@pytest.mark.integration
async def test_a_model_that_looks_something_up_by_a_made_up_key_is_told_to_find_it_out_first():
    made_up, room = call("get_teacher", teacher_id="T-002"), call("get_room", room="12B")
    model = ScriptedModel([made_up, room, call("get_teacher", teacher_id="T-305"), "It is 0551-88213."])
    task = "What is the phone number of the person who teaches in room 12B?"
    answer = await Agent([get_room, get_teacher], model).run(task)
    assert [step.is_success for step in answer.steps] == [False, True, True]
    assert "First find it out (get_room)" in answer.steps[0].text and "T-002" not in str(model.requests[1].messages)


@pytest.mark.integration
async def test_a_model_that_goes_on_guessing_is_asked_about_two_calls():
    guesses = [call("get_teacher", teacher_id=f"T-00{number}") for number in (2, 1, 3)]
    answer = await Agent([get_room, get_teacher], ScriptedModel([*guesses, "It is unknown."])).run(
        "Who is in room 12B?"
    )
    assert [step.is_success for step in answer.steps] == [False, False, True]


@pytest.mark.parametrize("task", ["How much is seventeen times twenty?", "十七乘以二十等于多少？"])
async def test_numbers_that_the_task_has_as_words_are_not_made_up(task: str):
    def calculate(expression: str) -> str:
        """Compute an arithmetic expression."""
        return "340"

    turns = [call("calculate", expression="17 * 20"), "It is 340."]
    answer = await Agent([get_room, calculate], ScriptedModel(turns)).run(task)
    assert [step.is_success for step in answer.steps] == [True]


async def test_the_name_of_a_file_in_a_calculation_is_not_its_content():
    def calculate(expression: str) -> str:
        """Compute an arithmetic expression."""
        return "75"

    code = call("calculate", expression="sum(map(int, open('numbers.txt').readlines()))")
    turns = [code, call("read_file", path="numbers.txt"), call("calculate", expression="12 + 30 + 33"), "It is 75."]
    model = ScriptedModel(turns)
    answer = await Agent([*NumberFolder().tools(), calculate], model).run("Add up the numbers in numbers.txt.")
    assert [step.is_success for step in answer.steps] == [False, True, True]
    assert "First find it out (read_file)" in answer.steps[0].text


@pytest.mark.parametrize("is_small", [True, False])
async def test_a_small_model_is_asked_about_a_calculation_with_a_made_up_number_and_has_found_out_nothing_by_it(
    is_small: bool,
):
    def get_price(item: str) -> str:
        """Look up the price of one unit of an item."""
        return "38.45 EUR"

    def calculate(expression: str) -> str:
        """Compute an arithmetic expression."""
        return "70"

    turns: list[object] = [
        call("calculate", expression=text) if is_small else {"name": "calculate", "arguments": {"expression": text}}
        for text in ("7 * 1", "7 * 10")
    ]
    turns += [call("get_price", item="copper valve"), "It is 269.15 EUR."]
    answer = await Agent([get_price, calculate], ScriptedModel(turns)).run("How much do 7 copper valves cost?")
    assert [step.is_success for step in answer.steps] == [True, not is_small, True]
    question = "the value of expression is neither in the task nor in a result. First find it out (get_price)"
    assert (question in answer.steps[1].text) is is_small


@pytest.mark.parametrize(
    ("value", "is_made_up"),
    [
        ("T-002", True),
        (4711, True),
        ("2024-07-31", True),
        ("12b", False),
        ("RE77", False),
        ("2024-02-10", False),
        ("report_2026.txt", False),
        ("Lisbon", False),
        ("weather in 2031", False),
    ],
)
def test_numbers_and_ids_that_nobody_has_mentioned_are_made_up_keys(value: object, is_made_up: bool):
    known = "Room 12B, train RE 77, 10 February 2024"
    assert find_made_up_key({"key": value}, known) == ("key" if is_made_up else None)


async def test_values_of_a_model_that_calls_through_its_api_are_not_asked_about():
    turns = [{"name": "write_file", "arguments": {"path": "total.txt", "content": "1234567890"}}, "Done."]
    folder = NumberFolder()
    answer = await Agent(folder.tools(), ScriptedModel(turns)).run(SUM)
    assert folder.files["total.txt"] == "1234567890" and [step.is_success for step in answer.steps] == [True]


@pytest.mark.parametrize(
    ("content", "is_made_up"),
    [
        ("1234567890", True),
        ("Deadline: [Date]", True),
        ("<content of a.txt>", True),
        ("See a.txt", True),
        ("John Doe <john.doe@example.com>", True),
        ("hello  WORLD", False),
        ("Dear Ann,\nthe meeting is on Friday.", False),
        ("list[key] <b>bold</b>", False),
        ("budget 900", False),
    ],
)
def test_numbers_names_of_files_and_blanks_are_made_up_and_own_words_are_not(content: str, is_made_up: bool):
    known = "Write the text 'Hello world' into a.txt; the budget is 900."
    arguments = {"path": "report_2026.txt", "content": content, "append": True, "lines": 3}
    assert find_made_up_value(arguments, known) == ("content" if is_made_up else None)
