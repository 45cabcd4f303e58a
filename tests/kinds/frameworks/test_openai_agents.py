"""Function tools of the OpenAI Agents SDK in a library."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ferrule import Image, Text, ToolExecutionContext, ToolExecutionResult, UnifiedToolLibrary
from ferrule.errors import SpecError
from ferrule.kinds.function.tools import tool_of
from tests.kinds.frameworks.endless import pid_of, thread_has_ended, wait_without_end
from tests.support.approving import execute_approved
from tests.support.waiting import is_running, time_out_after_start, until


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Tools of the framework, which is loaded only where these tests run."""
    from tests.kinds.frameworks import openai_agents_tools

    return openai_agents_tools


async def called(tool: Any, arguments: dict[str, Any], **variables: Any) -> ToolExecutionResult:
    async with UnifiedToolLibrary() as library:
        [spec] = library.register(tool)
        context = ToolExecutionContext(variables=variables)
        return await library.execute_tool(spec.tool_id, None, arguments, context=context)


def test_a_function_tool_keeps_its_name_description_and_schema(theirs: Any):
    tool = tool_of(theirs.total)
    [capability] = tool.spec.capabilities
    assert (tool.id, capability.description) == ("total", "Add up the prices of items.")
    assert capability.schema["required"] == ["items", "times"]
    assert capability.schema["properties"]["times"] == {"type": "integer", "description": "how often"}


@pytest.mark.integration
async def test_sync_functions_run_in_worker_processes_that_a_timeout_kills(theirs: Any, tmp_path: Path):
    path = tmp_path / "pid"

    async def call(timeout: float) -> ToolExecutionResult:
        context = ToolExecutionContext(timeout=timeout)
        return await library.execute_tool("never_end", None, {"path": str(path)}, context=context)

    async with UnifiedToolLibrary() as library:
        library.register(theirs.total, theirs.on_its_own_loop, theirs.never_end)
        first = await library.execute_tool("total", None, {"items": [{"name": "tea", "price": 2.5}], "times": 2})
        in_loop = await library.execute_tool("on_its_own_loop", None, {"text": "hi"})
        result = await time_out_after_start(call, path.exists)
        assert not is_running(pid_of(path))
    assert (first.output["total"], first.output["pid"] != os.getpid()) == (5.0, True)
    assert (in_loop.text, result.error_type) == ("hi from a loop", "timeout")


async def test_a_sync_function_that_cannot_be_sent_is_stopped_in_its_thread(tmp_path: Path):
    from agents import function_tool

    path = tmp_path / "pid"

    @function_tool
    def endless_here(path: str) -> None:
        """Never end."""
        wait_without_end(path)

    result = await time_out_after_start(
        lambda timeout: called(tool_of(endless_here, timeout=timeout), {"path": str(path)}), path.exists
    )
    assert (result.error_type, pid_of(path)) == ("timeout", os.getpid())
    await until(lambda: thread_has_ended("endless_here"))


async def test_a_function_that_wants_a_context_gets_one(theirs: Any):
    result = await called(theirs.who, {"greeting": "Hello"}, context="Ada")
    assert result.text == f"Hello, Ada! (who, {result.call_id})"


async def test_a_failure_that_the_sdk_would_hide_is_one(theirs: Any):
    result = await called(theirs.fail, {"reason": "rain"})
    assert (result.is_success, result.error) == (False, "ValueError: rain")


async def test_a_tool_with_words_of_its_own_for_failures_is_heard(theirs: Any):
    result = await called(theirs.fail_politely, {"reason": "rain"})
    assert (result.is_success, result.error) == (False, "Sorry: rain.")


async def test_a_tool_that_wants_approval_does_not_run_without(theirs: Any):
    result = await called(theirs.remove, {"path": "x"})
    assert (result.error_type, result.metadata["advice"]) == ("approval_required", "ask_approval")


async def test_a_tool_that_wants_approval_runs_when_a_person_has_agreed():
    from agents import function_tool

    @function_tool(needs_approval=True)
    async def pay(amount: int) -> int:
        """Pay."""
        return amount

    async with UnifiedToolLibrary() as library:
        library.register(pay)
        result = await execute_approved(library, "pay", {"amount": 5})
    assert (result.is_success, result.text) == (True, "5")


async def test_a_tool_is_not_asked_about_a_call_that_a_person_has_approved():
    from agents import function_tool

    asked: list[str] = []

    async def needs_approval(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        asked.append(call_id)
        return True

    @function_tool(needs_approval=needs_approval)
    async def pay(amount: int) -> int:
        """Pay."""
        return amount

    async with UnifiedToolLibrary() as library:
        library.register(pay)
        result = await execute_approved(library, "pay", {"amount": 5})
    assert result.is_success and result.call_id not in asked


async def test_pictures_are_parts(theirs: Any):
    result = await called(theirs.drawn, {})
    assert result.content == (Text(text="here"), Image(data=b"hi", mime_type="image/png"))


async def test_a_tool_made_by_hand_gets_its_arguments_as_json(theirs: Any):
    assert (await called(theirs.by_hand, {"text": "hi"})).text == '{"text":"hi"}'


def test_a_tool_with_guardrails_is_refused_because_nobody_would_obey_them(theirs: Any):
    from agents import tool_input_guardrail
    from agents.tool_guardrails import ToolGuardrailFunctionOutput

    @tool_input_guardrail
    def never(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("never")

    with pytest.raises(SpecError, match="has guardrails"):
        tool_of(replace(theirs.by_hand, tool_input_guardrails=[never]))


def test_a_tool_that_is_switched_off_is_disabled():
    from agents import function_tool

    off = function_tool(lambda: "on", name_override="off", description_override="Never.", is_enabled=False)
    assert not tool_of(off).spec.enabled
    off.is_enabled = lambda ctx, agent: False
    with pytest.raises(SpecError, match="enabled by a function"):
        tool_of(off)
