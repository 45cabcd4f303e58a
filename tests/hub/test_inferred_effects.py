"""Tools of one name that declare nothing, as document 000 writes them: combined, raced, or called once."""

from typing import Any

import pytest

from ferrule.hub import ToolHub
from tests.hub.recording_tools import CallRecorder, engine_with

UNDECLARED: dict[str, Any] = {"read_only": None}


async def call_both(name: str, recorder: CallRecorder, answers: tuple[Any, Any] = ("one", "two")) -> Any:
    first = recorder.search(name, answers[0], **UNDECLARED)
    second = recorder.search(name, answers[1], source="mcps", **UNDECLARED)
    async with engine_with(first, second) as engine:
        return await ToolHub(engine).execute(name, {"query": "x"})


async def test_tools_that_read_by_their_name_are_combined():
    recorder = CallRecorder()
    result = await call_both("web_search", recorder)
    assert len(recorder.started) == 2 and "one" in result.text and "two" in result.text
    assert result.metadata["inferred"] == {"web_search (tools)": "reads", "web_search (mcps)": "reads"}


async def test_tools_that_compute_by_their_name_race():
    recorder = CallRecorder()
    result = await call_both("calculate", recorder)
    assert result.text in ("one", "two") and result.metadata["inferred"]["calculate (tools)"] == "computes"
    assert result.metadata["_meta"]["synthesized"] is False


@pytest.mark.parametrize(
    "name", ["read_and_archive", "get_next_ticket", "send_mail", "searchAndDelete", "pop", "查询并标记", "发送邮件"]
)
async def test_a_tool_that_changes_something_by_its_name_is_called_once(name):
    recorder = CallRecorder()
    result = await call_both(name, recorder)
    assert len(recorder.started) == 1 and result.metadata["inferred"][f"{name} (tools)"] == "changes"


async def test_a_name_that_says_nothing_leaves_the_tools_as_they_are():
    recorder = CallRecorder()
    result = await call_both("frobnicate", recorder)
    assert len(recorder.started) == 1 and "inferred" not in result.metadata


async def test_a_declaration_counts_more_than_the_name():
    recorder = CallRecorder()
    first = recorder.search("web_search", "one", read_only=False)
    second = recorder.search("web_search", "two", source="mcps", read_only=False)
    async with engine_with(first, second) as engine:
        result = await ToolHub(engine).execute("web_search", {"query": "x"})
    assert len(recorder.started) == 1 and "inferred" not in result.metadata


async def test_an_action_of_a_server_that_reads_by_its_name_backs_up_a_tool_that_failed():
    recorder = CallRecorder()
    first = recorder.search("web_search", RuntimeError("down"))
    second = recorder.search("web_search", "two", source="mcps", **UNDECLARED)
    async with engine_with(first, second) as engine:
        result = await ToolHub(engine).execute("web_search", {"query": "x"})
    assert result.text == "two" and recorder.started.count("web_search") == 2
