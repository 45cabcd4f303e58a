"""LangChain tools in a library."""

import os
from pathlib import Path
from typing import Any

import pytest

from ferrule import Image, Resource, ToolExecutionContext, ToolExecutionResult, UnifiedToolLibrary
from ferrule.errors import SpecError
from ferrule.kinds.function.tools import tool_of
from ferrule.process.function_reference import NameReference, make_reference
from tests.kinds.frameworks.endless import pid_of
from tests.support.waiting import is_running, time_out_after_start


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Tools of the framework, which is loaded only where these tests run."""
    from tests.kinds.frameworks import langchain_tools

    return langchain_tools


async def called(tool: Any, _timeout: float = 120, /, **arguments: Any) -> ToolExecutionResult:
    async with UnifiedToolLibrary() as library:
        [spec] = library.register(tool)
        context = ToolExecutionContext(timeout=_timeout)
        return await library.execute_tool(spec.tool_id, None, arguments, context=context)


def test_a_decorated_function_keeps_its_name_description_and_schema(theirs: Any):
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


async def test_arguments_are_checked_before_langchain_sees_them(theirs: Any):
    result = await called(theirs.total, items=[], times=0)
    assert result.error_type == "validation_error"
    assert result.validation_errors[0]["path"] == "times"


def test_what_can_be_found_by_name_is_not_copied(theirs: Any):
    function = tool_of(theirs.total).target.function("total")
    reference = make_reference(function, copy_objects=True)
    assert isinstance(reference, NameReference) and reference.caller is not None


@pytest.mark.integration
async def test_sync_tools_run_in_worker_processes_that_a_timeout_kills(theirs: Any, tmp_path: Path):
    path = tmp_path / "pid"

    async def call(tool_id: str, timeout: float = 120, **arguments: Any) -> ToolExecutionResult:
        return await library.execute_tool(tool_id, None, arguments, context=ToolExecutionContext(timeout=timeout))

    async with UnifiedToolLibrary() as library:
        library.register(
            theirs.total, theirs.doubling, theirs.never_end, tool_of(theirs.Counter(), isolation="process")
        )
        by_name = await call("total", items=[{"name": "tea", "price": 2.5}, {"name": "bread"}], times=2)
        as_copy = await call("doubling", item={"name": "tea", "price": 2})
        calls, process = (await call("counter")).output["result"]
        assert (by_name.output["total"], as_copy.output["price"], calls) == (7.0, 4, 1)
        assert os.getpid() not in (by_name.output["pid"], as_copy.output["pid"], process)
        timed_out = await time_out_after_start(lambda timeout: call("never_end", timeout, path=str(path)), path.exists)
        assert timed_out.error_type == "timeout" and not is_running(pid_of(path)) and pid_of(path) != os.getpid()
        assert (await library.engine.query_call_records(tool_name="never_end"))[0].status == "failed"


async def test_an_async_tool_runs_on_the_event_loop_and_is_cancelled_by_a_time_out(theirs: Any):
    assert (await called(theirs.thread_name)).text == "MainThread"
    assert (await called(theirs.thread_name, 0.05, pause=600)).error_type == "timeout"


async def test_a_tool_with_a_class_of_its_own_keeps_what_it_keeps(theirs: Any):
    async with UnifiedToolLibrary() as library:
        library.register(theirs.Counter())
        await library.execute_tool("counter", None, {"step": 2})
        result = await library.execute_tool("counter")
    assert result.output == {"result": [3, os.getpid()]}


async def test_a_tool_made_inside_a_function_runs_in_a_thread():
    from langchain_core.tools import StructuredTool

    def here() -> int:
        """Say in which process this runs."""
        return os.getpid()

    assert (await called(StructuredTool.from_function(here))).output == {"result": os.getpid()}


async def test_a_tool_exception_is_a_failure(theirs: Any):
    result = await called(theirs.refuse, reason="I say so")
    assert (result.error, result.error_type) == ("no, because I say so", "execution_error")


@pytest.mark.parametrize(
    ("handler", "said"),
    [(True, "no, because of rain"), ("Try tomorrow.", "Try tomorrow."), (lambda e: f"({e})", "(no, because of rain)")],
)
async def test_a_failure_that_langchain_would_hide_is_one_with_the_words_of_its_handler(theirs: Any, handler, said):
    result = await called(theirs.refuse.model_copy(update={"handle_tool_error": handler}), reason="of rain")
    assert (result.is_success, result.error) == (False, said)


async def test_an_artifact_is_kept_for_programs_and_not_shown_to_the_model(theirs: Any):
    result = await called(theirs.look_up, word="ferrule")
    assert result.text == "ferrule: found"
    assert result.content == (Resource(uri="langchain:artifact", text='{"pages":[1,2]}', mime_type="application/json"),)


async def test_the_id_of_the_call_is_given_to_a_tool_that_asks_for_it(theirs: Any):
    assert list(tool_of(theirs.own_call).spec.capabilities[0].schema["properties"]) == ["text"]
    result = await called(theirs.own_call, text="it is")
    assert result.text == f"it is {result.call_id}"


def test_a_tool_that_wants_what_only_an_agent_has_is_refused(theirs: Any):
    with pytest.raises(SpecError, match="its argument 'user' is injected by LangChain's own agent"):
        tool_of(theirs.of_user)


async def test_blocks_with_a_picture_are_parts(theirs: Any):
    result = await called(theirs.picture)
    assert result.output["content"][0] == {"type": "text", "text": "here"}
    assert result.content[1] == Image(data=b"hi", mime_type="image/png")


async def test_a_tool_of_the_old_kind_takes_one_text(theirs: Any):
    assert (await called(theirs.old_fashioned, tool_input="hey")).text == "HEY"


def test_what_else_a_tool_says_is_kept(theirs: Any):
    spec = tool_of(theirs.doubling, timeout=3, read_only=True).spec
    assert (spec.tags, spec.limits.timeout, spec.effects.read_only) == (["prices"], 3, True)
    assert spec.metadata == {"framework": "langchain", "return_direct": True}


def test_lists_and_toolkits_are_opened(theirs: Any):
    library = UnifiedToolLibrary()
    specs = library.register([theirs.refuse, theirs.look_up], theirs.Kit())
    assert [spec.tool_id for spec in specs] == ["refuse", "look_up", "total", "counter"]


async def test_the_config_of_the_call_reaches_the_tool():
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import StructuredTool

    async def user(config: RunnableConfig) -> str:
        """Say who asks."""
        return str(config["configurable"]["user"])

    async with UnifiedToolLibrary() as library:
        library.register(StructuredTool.from_function(coroutine=user))
        context = ToolExecutionContext(variables={"config": {"configurable": {"user": "ada"}}})
        assert (await library.execute_tool("user", None, {}, context=context)).text == "ada"


def test_a_schema_given_as_a_dictionary_is_taken_as_it_is():
    from langchain_core.tools import BaseTool

    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}

    class Raw(BaseTool):
        def _run(self, title: str) -> str:
            return title

    [capability] = tool_of(Raw(name="raw", description="Raw.", args_schema=schema)).spec.capabilities
    assert capability.schema == schema
