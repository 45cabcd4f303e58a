"""Function tools of the OpenAI Agents SDK in a library."""

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agents import function_tool, tool_input_guardrail
from agents.tool_guardrails import ToolGuardrailFunctionOutput

from ferrule import Image, Text, ToolExecutionContext, ToolExecutionResult, UnifiedToolLibrary
from ferrule.errors import SpecError
from ferrule.kinds.function.tools import tool_of
from tests.support.approving import execute_approved
from tests.kinds.frameworks import openai_agents_tools as theirs


async def called(tool: Any, arguments: dict[str, Any], **variables: Any) -> ToolExecutionResult:
    async with UnifiedToolLibrary() as library:
        [spec] = library.register(tool)
        context = ToolExecutionContext(variables=variables)
        return await library.execute_tool(spec.tool_id, None, arguments, context=context)


def test_a_function_tool_keeps_its_name_description_and_schema():
    tool = tool_of(theirs.total)
    [capability] = tool.spec.capabilities
    assert (tool.id, capability.description) == ("total", "Add up the prices of items.")
    assert capability.schema["required"] == ["items", "times"]
    assert capability.schema["properties"]["times"] == {"type": "integer", "description": "how often"}


async def test_sync_functions_run_in_worker_processes_where_a_time_out_ends_them_for_good(tmp_path: Path):
    async with UnifiedToolLibrary() as library:
        library.register(theirs.total, tool_of(theirs.write_late, timeout=0.3))
        first = await library.execute_tool("total", None, {"items": [{"name": "tea", "price": 2.5}], "times": 2})
        result = await library.execute_tool("write_late", None, {"path": str(tmp_path / "late.txt")})
        (tmp_path / "late.txt.allowed").touch()
        await asyncio.sleep(0.3)  # what still ran would write within 10 ms
    assert (first.output["total"], first.output["pid"] != os.getpid()) == (5.0, True)
    assert result.error_type == "timeout"
    assert not (tmp_path / "late.txt").exists()


async def test_a_sync_function_that_cannot_be_sent_is_stopped_in_its_thread(tmp_path: Path):
    @function_tool
    def late_here(path: str) -> str:
        """Wait until it is allowed, then write."""
        while not Path(path + ".allowed").exists():
            time.sleep(0.01)
        Path(path).write_text("too late")
        return "written"

    result = await called(tool_of(late_here, timeout=0.1), {"path": str(tmp_path / "late.txt")})
    (tmp_path / "late.txt.allowed").touch()
    await asyncio.sleep(0.3)  # a thread that still ran would write within 10 ms
    assert (result.error_type, (tmp_path / "late.txt").exists()) == ("timeout", False)


async def test_a_function_that_wants_a_context_gets_one():
    result = await called(theirs.who, {"greeting": "Hello"}, context="Ada")
    assert result.text == f"Hello, Ada! (who, {result.call_id})"


async def test_a_failure_that_the_sdk_would_hide_is_one():
    result = await called(theirs.fail, {"reason": "rain"})
    assert (result.is_success, result.error) == (False, "ValueError: rain")


async def test_a_tool_with_words_of_its_own_for_failures_is_heard():
    result = await called(theirs.fail_politely, {"reason": "rain"})
    assert (result.is_success, result.error) == (False, "Sorry: rain.")


async def test_a_tool_that_wants_approval_does_not_run_without():
    result = await called(theirs.remove, {"path": "x"})
    assert (result.error_type, result.metadata["advice"]) == ("approval_required", "ask_approval")


async def test_a_tool_that_wants_approval_runs_when_a_person_has_agreed():
    @function_tool(needs_approval=True)
    async def pay(amount: int) -> int:
        """Pay."""
        return amount

    async with UnifiedToolLibrary() as library:
        library.register(pay)
        result = await execute_approved(library, "pay", {"amount": 5})
    assert (result.is_success, result.text) == (True, "5")


async def test_a_sync_tool_may_run_an_event_loop_of_its_own():
    assert (await called(theirs.on_its_own_loop, {"text": "hi"})).text == "hi from a loop"


async def test_pictures_are_parts():
    result = await called(theirs.drawn, {})
    assert result.content == (Text(text="here"), Image(data=b"hi", mime_type="image/png"))


async def test_a_tool_made_by_hand_gets_its_arguments_as_json():
    assert (await called(theirs.by_hand, {"text": "hi"})).text == '{"text":"hi"}'


def test_a_tool_with_guardrails_is_refused_because_nobody_would_obey_them():
    @tool_input_guardrail
    def never(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("never")

    with pytest.raises(SpecError, match="has guardrails"):
        tool_of(replace(theirs.by_hand, tool_input_guardrails=[never]))


def test_a_tool_that_is_switched_off_is_disabled():
    off = function_tool(lambda: "on", name_override="off", description_override="Never.", is_enabled=False)
    assert not tool_of(off).spec.enabled
    off.is_enabled = lambda ctx, agent: False
    with pytest.raises(SpecError, match="enabled by a function"):
        tool_of(off)
