"""pydantic-ai tools and toolsets in a library."""

import os
from pathlib import Path
from typing import Any

import pytest

from ferrule import Image, Resource, ToolExecutionContext, ToolExecutionResult, UnifiedToolLibrary
from ferrule.errors import SpecError
from ferrule.kinds.function.tools import tool_of
from tests.kinds.frameworks.endless import pid_of, thread_has_ended
from tests.support.approving import execute_approved
from tests.support.waiting import is_running, time_out_after_start, until


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Tools of the framework, which is loaded only where these tests run."""
    from tests.kinds.frameworks import pydantic_ai_tools

    return pydantic_ai_tools


async def called(name: str, arguments: dict[str, Any], **variables: Any) -> ToolExecutionResult:
    from tests.kinds.frameworks import pydantic_ai_tools as theirs

    async with UnifiedToolLibrary() as library:
        library.register(theirs.toolset, theirs.halving, theirs.removing)
        context = ToolExecutionContext(variables=variables)
        return await library.execute_tool(name, None, arguments, context=context)


def test_a_function_toolset_is_read_at_once(theirs: Any):
    library = UnifiedToolLibrary()
    specs = {spec.tool_id: spec for spec in library.register(theirs.toolset)}
    [capability] = specs["weekday"].capabilities
    assert list(specs) == ["weekday", "never_end", "who", "ask_again", "drawn"]
    assert capability.schema["properties"]["day"] == {
        "type": "string",
        "format": "date",
        "description": "the day in question",
    }
    assert (specs["weekday"].limits.timeout, specs["never_end"].limits.timeout) == (120, 600)
    assert specs["weekday"].metadata == {"framework": "pydantic-ai", "team": "calendar"}


@pytest.mark.integration
async def test_sync_functions_run_in_worker_processes_that_a_timeout_kills(theirs: Any, tmp_path: Path):
    path = tmp_path / "pid"

    async def call(timeout: float) -> ToolExecutionResult:
        context = ToolExecutionContext(timeout=timeout)
        return await library.execute_tool("never_end", None, {"path": str(path)}, context=context)

    async with UnifiedToolLibrary() as library:
        library.register(theirs.toolset)
        first = await library.execute_tool("weekday", None, {"day": "2026-01-01"})
        result = await time_out_after_start(call, path.exists)
        assert not is_running(pid_of(path))
    assert (first.output["name"], first.output["pid"] != os.getpid()) == ("Thursday", True)
    assert result.error_type == "timeout"


async def test_a_function_that_wants_a_context_gets_one():
    result = await called("who", {"greeting": "Hello"}, deps="Ada")
    assert result.text == f"Hello, Ada! (who, {result.call_id})"


async def test_a_model_retry_asks_for_other_arguments_and_a_tool_failed_for_none():
    again = await called("ask_again", {"number": -1})
    never = await called("ask_again", {"number": 0})
    assert (again.error, again.metadata["advice"]) == ("give a number above 0", "change_arguments")
    assert (never.error, never.metadata["advice"]) == ("0 will never do", "give_up")


async def test_pictures_are_parts_and_metadata_is_kept_for_programs():
    result = await called("drawn", {})
    told = Resource(uri="pydantic-ai:metadata", text='{"strokes":3}', mime_type="application/json")
    assert result.output["content"][0] == {"type": "text", "text": "here"}
    assert result.content[1:] == (Image(data=b"hi", mime_type="image/png"), told)


async def test_the_check_of_the_arguments_that_a_tool_brings_is_made():
    assert (await called("half", {"number": 4})).output == {"result": 2.0}
    assert (await called("half", {"number": 3})).error == "3 is odd"


async def test_a_tool_that_wants_approval_does_not_run_without():
    result = await called("remove", {"path": "x"})
    assert (result.error_type, result.metadata["advice"]) == ("approval_required", "ask_approval")


async def test_a_tool_that_wants_approval_runs_when_a_person_has_agreed(theirs: Any):
    from pydantic_ai import ApprovalRequired, FunctionToolset, RunContext, Tool

    async def pay(amount: int) -> int:
        """Pay."""
        return amount

    async def lend(ctx: RunContext[None], amount: int) -> int:
        """Lend."""
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return amount

    wants = Tool(pay, requires_approval=True)
    async with UnifiedToolLibrary() as library:
        library.register(wants, Tool(lend), *await theirs.tools_of_toolset(FunctionToolset([wants]).prefixed("my")))
        for name in ("pay", "my_pay", "lend"):
            assert (await execute_approved(library, name, {"amount": 5})).text == "5"


async def test_any_toolset_is_entered_asked_and_left_in_the_end(theirs: Any):
    remote = theirs.Remote()
    async with UnifiedToolLibrary() as library:
        [spec] = library.register(*await theirs.tools_of_toolset(remote, deps="Ada"))
        result = await library.execute_tool("echo", None, {"text": "hello"})
        assert (spec.description, result.text, remote.life) == ("Echo for Ada.", "hello from Ada", ["entered"])
    assert remote.life == ["entered", "left"]


async def test_a_toolset_around_a_function_toolset_runs_sync_functions_in_threads_that_can_be_stopped(
    theirs: Any, tmp_path: Path
):
    path = tmp_path / "pid"

    async def call(timeout: float) -> ToolExecutionResult:
        context = ToolExecutionContext(timeout=timeout)
        return await library.execute_tool("cal_never_end", None, {"path": str(path)}, context=context)

    async with UnifiedToolLibrary() as library:
        library.register(await theirs.tools_of_toolset(theirs.toolset.prefixed("cal")))
        said = await library.execute_tool("cal_weekday", None, {"day": "2026-01-01", "long": False})
        result = await time_out_after_start(call, path.exists)
        await until(lambda: thread_has_ended("cal_never_end"))
    assert said.output == {"name": "Thu", "pid": os.getpid()}
    assert (result.error_type, pid_of(path)) == ("timeout", os.getpid())


async def test_a_tool_is_prepared_when_its_toolset_is_asked(theirs: Any):
    from pydantic_ai import FunctionToolset, RunContext, Tool
    from pydantic_ai.tools import ToolDefinition

    async def renamed(ctx: RunContext[Any], told: ToolDefinition) -> ToolDefinition | None:
        told.description = f"For {ctx.deps}."
        return told

    tool = Tool(theirs.half, prepare=renamed)
    [made] = await theirs.tools_of_toolset(FunctionToolset([tool]), deps="Ada")
    assert made.spec.description == "For Ada."
    with pytest.raises(SpecError, match="await"):
        tool_of(tool)


def test_a_toolset_that_must_be_asked_says_how(theirs: Any):
    with pytest.raises(SpecError, match=r"register\(\*await tools_of_toolset\(toolset\)\)"):
        UnifiedToolLibrary().register(theirs.Remote())


async def test_a_tool_whose_results_come_from_elsewhere_is_refused(theirs: Any):
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import ExternalToolset

    with pytest.raises(SpecError, match="'later' is external"):
        await theirs.tools_of_toolset(ExternalToolset([ToolDefinition(name="later")]))


async def test_a_tool_that_asks_the_model_of_its_agent_is_told_that_there_is_none():
    from pydantic_ai import Agent, RunContext, Tool

    async def think(ctx: RunContext[Any]) -> str:
        """Ask the model."""
        model: Any = ctx.model
        return str((await Agent(model).run("hello")).output)

    async with UnifiedToolLibrary() as library:
        library.register(Tool(think))
        result = await library.execute_tool("think")
    assert result.error is not None and "without an agent" in result.error
