"""Small models that write what they have not read; the calls are those of one of 1.5 billion parameters."""

import json

import pytest

from ferrule import tool
from ferrule.agent import Agent
from ferrule.agent.made_up_values import find_made_up_value
from ferrule.testing import ScriptedModel

COPY = "Copy the content of a.txt to b.txt."
SUM = "Add up the numbers in numbers.txt and write the sum into total.txt."


def call(name: str, **arguments: str) -> str:
    return f"```json\n{json.dumps({'name': name, 'arguments': arguments}, indent=2, ensure_ascii=False)}\n```"


class Folder:
    """Tools that read and write files."""

    def __init__(self) -> None:
        self.files = {"a.txt": "blue 42 whale", "numbers.txt": "12\n30\n33"}

    def tools(self) -> list[object]:
        @tool(read_only=True)
        async def read_file(path: str) -> str:
            """Read a text file."""
            return self.files[path]

        @tool
        async def write_file(path: str, content: str) -> str:
            """Write a text into a file."""
            self.files[path] = content
            return f"wrote {len(content)} characters to {path}"

        return [read_file, write_file]


async def test_a_model_that_writes_a_made_up_content_is_told_to_find_it_out_first():
    made_up = call("write_file", path="b.txt", content="Copy of a.txt")
    turns = [
        made_up,
        call("read_file", path="a.txt"),
        call("write_file", path="b.txt", content="blue 42 whale"),
        "Done.",
    ]
    folder, model = Folder(), ScriptedModel(turns)
    answer = await Agent(folder.tools(), model).run(COPY)
    assert folder.files["b.txt"] == "blue 42 whale" and answer.text == "Done."
    assert [step.is_success for step in answer.steps] == [False, True, True]
    shown = model.requests[1].messages[-2:]
    assert "Copy of" not in str(shown) and '"content": "…"' in shown[0]["content"]
    assert (
        "Not done: the value of content is neither in the task nor in a result. First find it out (read_file)"
        in (shown[1]["content"])
    )


async def test_a_model_that_insists_on_its_value_gets_its_way():
    made_up = call("write_file", path="total.txt", content="1234567890")
    folder, model = Folder(), ScriptedModel([made_up, made_up, "Done."])
    answer = await Agent(folder.tools(), model).run(SUM)
    assert folder.files["total.txt"] == "1234567890" and [s.is_success for s in answer.steps] == [False, True]


async def test_what_stands_for_a_value_in_the_history_is_never_written():
    made_up = call("write_file", path="total.txt", content="The sum of all amounts is: 12345")
    copied = call("write_file", path="total.txt", content="…")
    folder, model = Folder(), ScriptedModel([made_up, copied, "I cannot find out the sum."])
    answer = await Agent(folder.tools(), model).run(SUM)
    assert "total.txt" not in folder.files and answer.is_finished
    assert "Not done: content has no value." in model.requests[2].messages[-1]["content"]


async def test_a_chinese_run_is_told_in_chinese():
    made_up = call("write_file", path="total.txt", content="1234567890")
    model = ScriptedModel([made_up, made_up, "完成。"])
    await Agent(Folder().tools(), model).run("把 numbers.txt 中的数字相加，写入 total.txt。")
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


async def test_a_model_that_calls_through_its_api_is_not_asked():
    turns = [{"name": "write_file", "arguments": {"path": "total.txt", "content": "1234567890"}}, "Done."]
    folder = Folder()
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
