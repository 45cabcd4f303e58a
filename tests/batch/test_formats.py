"""Trajectories in the formats of others, compared and shown."""

import json
from html.parser import HTMLParser

import atif
import pytest

from ferrule.batch import BatchDirectory
from ferrule.batch.formats import convert
from ferrule.batch.report import build_report, compare_directories, sign_test
from ferrule.core.messages import ToolCall, Usage
from ferrule.core.model import ModelReply
from tests.batch.scripted_batch import AddingModel, make_tasks, read_lines, run_batch


class FailingModel(AddingModel):
    """Insists on a call that fails, and gives up; tasks with an odd number it solves."""

    name = "failing"

    async def generate(self, request, on_text=None):
        task = next(m["content"] for m in request.messages if m["role"] == "user")
        if int(task.split("+")[0]) % 2:
            return await super().generate(request, on_text)
        call = ToolCall(name="add", arguments={"a": "x", "b": 1})
        return ModelReply(text="计算", tool_calls=(call,), usage=Usage(requests=1, input_tokens=10, output_tokens=1))


@pytest.fixture
async def batches(tmp_path):
    await run_batch(tmp_path / "a", make_tasks(6), model=FailingModel())
    await run_batch(tmp_path / "b", make_tasks(6))
    with BatchDirectory.open_existing(tmp_path / "a") as a, BatchDirectory.open_existing(tmp_path / "b") as b:
        yield a, b


async def test_atif_has_the_prompt_the_tools_and_the_calls_with_their_records(batches):
    first, second = batches
    for trajectory in [*first.read(), *second.read()]:
        document = atif.Trajectory.model_validate(convert(trajectory, "atif"))
        assert document.steps[0].source == "system" and document.agent.tool_definitions
        assert document.final_metrics is not None
        prompt = sum(step.metrics.prompt_tokens or 0 for step in document.steps if step.metrics is not None)
        assert prompt == document.final_metrics.total_prompt_tokens == trajectory["usage"]["input_tokens"]
    step = next(step for step in atif.Trajectory.model_validate(convert(trajectory, "atif")).steps if step.tool_calls)
    assert step.tool_calls is not None and step.observation is not None
    assert step.tool_calls[0].extra is not None and step.tool_calls[0].extra["record"]["status"] == "success"
    assert step.observation.results[0].source_call_id == step.tool_calls[0].tool_call_id


async def test_openai_lines_have_messages_and_tools(batches):
    _, second = batches
    for trajectory in second.read():
        line = convert(trajectory, "openai")
        assert [schema["function"]["name"] for schema in line["tools"]] == ["add"]
        assert line["messages"][3] == {
            "role": "tool",
            "tool_call_id": line["messages"][2]["tool_calls"][0]["id"],
            "content": trajectory["answer"],
        }


async def test_in_sharegpt_the_speakers_take_turns(batches):
    for directory in batches:
        for trajectory in directory.read():
            line = convert(trajectory, "sharegpt")
            speakers = [turn["from"] for turn in line["conversations"]]
            assert all(speaker in ("human", "observation") for speaker in speakers[::2])
            assert all(speaker in ("gpt", "function_call") for speaker in speakers[1::2])
            assert json.loads(line["tools"])[0]["name"] == "add" and line["system"]


async def test_batches_are_compared_task_by_task(batches):
    comparison = compare_directories(*batches)
    assert (comparison.tasks, comparison.solved) == (6, (3, 6))
    assert (comparison.gained, comparison.lost) == (["t0", "t2", "t4"], [])
    assert comparison.p_value == pytest.approx(0.25)
    turns = comparison.sums["turns"]
    assert turns[0] is not None and turns[1] == 12
    assert any(sentence.startswith("Solved: 3 (50.0%) → 6 (100.0%); B gains 3") for sentence in comparison.sentences())
    assert read_lines(batches[0].path)[0]["id"]


def test_the_sign_test_is_that_of_the_textbooks():
    assert sign_test(0, 0) == 1.0
    assert sign_test(10, 0) == pytest.approx(2 / 1024)
    assert sign_test(300, 250) == pytest.approx(0.0366, abs=1e-3)


async def test_the_report_is_one_file_that_loads_nothing(batches):
    page = build_report(*batches)
    loaded: list[str | None] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            loaded.extend(value for name, value in attributes if name in ("src", "href"))

    Reader().feed(page)
    assert loaded == [] and page.count("<svg") >= 3
    assert "3 of 6 tasks have an answer" in page and "Tasks without an answer" in page
