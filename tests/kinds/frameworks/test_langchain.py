"""LangChain tools in a library."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool

from ferrule import Image, Resource, ToolExecutionContext, ToolExecutionResult, UnifiedToolLibrary
from ferrule.errors import SpecError
from ferrule.kinds.function.tools import tool_of
from ferrule.process.function_reference import ObjectNameReference, make_reference
from tests.kinds.frameworks import langchain_tools as theirs


async def called(tool: Any, _timeout: float = 30, /, **arguments: Any) -> ToolExecutionResult:
    async with UnifiedToolLibrary() as library:
        [spec] = library.register(tool)
        context = ToolExecutionContext(timeout=_timeout)
        return await library.execute_tool(spec.tool_id, None, arguments, context=context)


def test_a_decorated_function_keeps_its_name_description_and_schema():
    tool = tool_of(theirs.total)
    [capability] = tool.spec.capabilities
    assert (tool.id, capability.description) == ("total", "Add up the prices of items.")
    assert capability.schema["required"] == ["items"]
    assert capability.schema["properties"]["times"] == {
        "type": "integer",
        "description": "how often",
        "minimum": 1,
        "default": 1,
    }
    assert tool.origin.startswith("tests.kinds.frameworks.langchain_tools:total (langchain_tools.py:")


async def test_arguments_are_checked_before_langchain_sees_them():
    result = await called(theirs.total, items=[], times=0)
    assert result.error_type == "validation_error"
    assert result.validation_errors[0]["path"] == "times"


async def test_a_function_at_the_top_of_a_module_runs_in_a_worker_process_with_the_types_it_wants():
    result = await called(theirs.total, items=[{"name": "tea", "price": 2.5}, {"name": "bread"}], times=2)
    assert (result.output["total"], result.output["pid"] != os.getpid()) == (7.0, True)


def test_what_can_be_found_by_name_is_not_copied():
    function = tool_of(theirs.total).target.function("total")
    assert isinstance(make_reference(function, copy_objects=True), ObjectNameReference)


async def test_a_tool_made_from_a_function_runs_in_a_worker_process_as_a_copy():
    result = await called(theirs.doubling, item={"name": "tea", "price": 2})
    assert result.output["price"] == 4
    assert result.output["pid"] != os.getpid()


async def test_a_time_out_ends_a_sync_tool_for_good(tmp_path: Path):
    late = tmp_path / "late.txt"
    async with UnifiedToolLibrary() as library:
        library.register(theirs.write_late)
        (tmp_path / "first.txt.allowed").touch()
        await library.execute_tool("write_late", None, {"path": str(tmp_path / "first.txt")})
        context = ToolExecutionContext(timeout=1)
        result = await library.execute_tool("write_late", None, {"path": str(late)}, context=context)
        (tmp_path / "late.txt.allowed").touch()
        await asyncio.sleep(0.3)  # what still ran would write within 10 ms
        records = await library.engine.query_call_records(tool_name="write_late")
    assert (result.error_type, [record.status for record in records]) == ("timeout", ["failed", "success"])
    assert not late.exists()


async def test_an_async_tool_runs_on_the_event_loop_and_is_cancelled_by_a_time_out():
    assert (await called(theirs.thread_name)).text == "MainThread"
    assert (await called(theirs.thread_name, 0.05, pause=10)).error_type == "timeout"


async def test_a_tool_with_a_class_of_its_own_keeps_what_it_keeps():
    async with UnifiedToolLibrary() as library:
        library.register(theirs.Counter())
        await library.execute_tool("counter", None, {"step": 2})
        result = await library.execute_tool("counter")
    assert result.output == {"result": [3, os.getpid()]}


async def test_a_tool_with_a_class_of_its_own_is_copied_into_a_process_on_request():
    calls, process = (await called(tool_of(theirs.Counter(), isolation="process"))).output["result"]
    assert (calls, process != os.getpid()) == (1, True)


async def test_a_tool_made_inside_a_function_runs_in_a_thread():
    def here() -> int:
        """Say in which process this runs."""
        return os.getpid()

    assert (await called(StructuredTool.from_function(here))).output == {"result": os.getpid()}


async def test_a_tool_exception_is_a_failure():
    result = await called(theirs.refuse, reason="I say so")
    assert (result.error, result.error_type) == ("no, because I say so", "execution_error")


@pytest.mark.parametrize(
    ("handler", "said"),
    [(True, "no, because of rain"), ("Try tomorrow.", "Try tomorrow."), (lambda e: f"({e})", "(no, because of rain)")],
)
async def test_a_failure_that_langchain_would_hide_is_one_with_the_words_of_its_handler(handler, said):
    result = await called(theirs.refuse.model_copy(update={"handle_tool_error": handler}), reason="of rain")
    assert (result.is_success, result.error) == (False, said)


async def test_an_artifact_is_kept_for_programs_and_not_shown_to_the_model():
    result = await called(theirs.look_up, word="ferrule")
    assert result.text == "ferrule: found"
    assert result.content == (Resource(uri="langchain:artifact", text='{"pages":[1,2]}', mime_type="application/json"),)


async def test_the_id_of_the_call_is_given_to_a_tool_that_asks_for_it():
    assert list(tool_of(theirs.own_call).spec.capabilities[0].schema["properties"]) == ["text"]
    result = await called(theirs.own_call, text="it is")
    assert result.text == f"it is {result.call_id}"


def test_a_tool_that_wants_what_only_an_agent_has_is_refused():
    with pytest.raises(SpecError, match="its argument 'user' is injected by LangChain's own agent"):
        tool_of(theirs.of_user)


async def test_blocks_with_a_picture_are_parts():
    result = await called(theirs.picture)
    assert result.output["content"][0] == {"type": "text", "text": "here"}
    assert result.content[1] == Image(data=b"hi", mime_type="image/png")


async def test_a_tool_of_the_old_kind_takes_one_text():
    assert (await called(theirs.old_fashioned, tool_input="hey")).text == "HEY"


def test_what_else_a_tool_says_is_kept():
    spec = tool_of(theirs.doubling, timeout=3, read_only=True).spec
    assert (spec.tags, spec.limits.timeout, spec.effects.read_only) == (["prices"], 3, True)
    assert spec.metadata == {"framework": "langchain", "return_direct": True}


def test_lists_and_toolkits_are_opened():
    library = UnifiedToolLibrary()
    specs = library.register([theirs.refuse, theirs.look_up], theirs.Kit())
    assert [spec.tool_id for spec in specs] == ["refuse", "look_up", "total", "counter"]


async def test_the_config_of_the_call_reaches_the_tool():
    async def user(config: RunnableConfig) -> str:
        """Say who asks."""
        return str(config["configurable"]["user"])

    async with UnifiedToolLibrary() as library:
        library.register(StructuredTool.from_function(coroutine=user))
        context = ToolExecutionContext(variables={"config": {"configurable": {"user": "ada"}}})
        assert (await library.execute_tool("user", None, {}, context=context)).text == "ada"


def test_a_schema_given_as_a_dictionary_is_taken_as_it_is():
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}

    class Raw(BaseTool):
        def _run(self, title: str) -> str:
            return title

    [capability] = tool_of(Raw(name="raw", description="Raw.", args_schema=schema)).spec.capabilities
    assert capability.schema == schema
