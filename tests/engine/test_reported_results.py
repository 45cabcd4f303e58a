"""Tools that report success or failure in their result: `{"success": …, "result": …, "error": …}` (000 §7)."""

import threading
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolEngine, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.hub import HubConfig, ToolHub, hub_result_dict
from ferrule.memory.run_memory import RunMemory
from tests.hub.recording_tools import BEST, CallRecorder, engine_with
from tests.kinds.mcp.mcp_servers import engine_for, rough
from tests.support.virtual_time import in_virtual_time

FAILED = {"success": False, "error": "the index is offline"}


def returning(value: Any) -> Any:
    @tool(read_only=True)
    async def report() -> Any:
        """Report a result."""
        return value

    return report


@tool
def report_in_worker() -> dict[str, Any]:
    """Report a failure, from a worker process."""
    return {"success": False, "error": "the index is offline", "log": ["first try", "second try"]}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (FAILED, "the index is offline"),
        ({"success": False, "result": None, "error": "gone", "_meta": {"source": "x"}}, "gone"),
        ({"success": False}, "The tool reported a failure without a message."),
        ({"success": False, "error": "2 failed", "log": "a\nb"}, '2 failed\n{"log":"a\\nb"}'),
    ],
)
async def test_a_reported_failure_is_a_failure_and_recorded_as_one(value: Any, error: str):
    async with ToolEngine() as engine:
        engine.register(returning(value))
        result = await engine.execute("report")
        [record] = await engine.query_call_records()
    assert (result.is_success, result.error, result.error_type) == (False, error, "execution_error")
    assert record.status == "failed" and not record.is_success


@pytest.mark.integration
async def test_a_failure_that_a_worker_process_reports_is_a_failure_with_its_details():
    async with ToolEngine() as engine:
        engine.register(report_in_worker)
        result = await engine.execute("report_in_worker")
    assert not result.is_success and result.error is not None
    assert "the index is offline" in result.error and "second try" in result.error


@tool
def make_lock() -> Any:
    """Return what is not data, from a worker process."""
    return threading.Lock()


class Settings:
    pass


@pytest.mark.integration
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (make_lock, "_thread.lock"),
        (returning({"locks": [threading.Lock()]}), "_thread.lock"),
        (returning({"locks": {"a": threading.Lock()}, "large": 2**80}), "_thread.lock"),
        (returning(Settings()), f"{__name__}.Settings"),
        (returning(Settings), "builtins.type"),
    ],
)
async def test_an_object_without_a_form_in_json_fails_the_call_and_is_named(function: Any, kind: str):
    async with ToolEngine() as engine:
        [registered] = engine.register(function)
        result = await engine.execute(registered.id)
    assert not result.is_success and result.error_type == "execution_error" and result.error is not None
    assert f"returned an object of the type {kind}, which has no form in JSON. Return text, a number," in result.error


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ({"success": True, "result": 42}, {"result": 42}),
        ({"success": True, "result": {"count": 1}, "error": None}, {"count": 1}),
        ({"success": True, "result": [1, 2], "_meta": {}}, {"result": [1, 2]}),
        ({"success": True}, {"success": True}),
        ({"success": True, "result": 1, "took": 2}, {"success": True, "result": 1, "took": 2}),
        ({"success": False, "matches": []}, {"success": False, "matches": []}),
        ({"success": "yes", "result": 1}, {"success": "yes", "result": 1}),
    ],
)
async def test_a_reported_success_is_unwrapped_and_other_results_stay_as_they_are(value: Any, output: dict[str, Any]):
    async with UnifiedToolLibrary() as library:
        library.register(returning(value))
        result = await library.execute_tool("report")
    assert result.is_success and result.output == output


@in_virtual_time
async def test_a_reported_failure_wins_no_race_and_is_no_last_success():
    recorder = CallRecorder()
    broken = recorder.search("find", FAILED, **BEST)
    good = recorder.search("find", {"success": True, "result": "Tea"}, source="mcps", **BEST)
    async with engine_with(broken, good) as engine:
        hub = ToolHub(engine, config=HubConfig(stagger=0.01))
        first = await hub.execute("find", {"query": "x"})
        second = await hub.execute("find", {"query": "x"})
    assert hub_result_dict(first)["result"] == "Tea" and first.metadata["_meta"]["source"] == "mcps"
    assert first.metadata["failures"][0]["error"] == "the index is offline"
    assert second.metadata["_meta"]["source"] == "mcps" and "failures" not in second.metadata


async def test_a_run_remembers_a_reported_failure():
    memory = RunMemory()
    async with ToolEngine() as engine:
        engine.register(returning({"success": False, "error": "Selector '#a' not found"}))
        await engine.execute("report", {}, ToolExecutionContext(memory=memory))
    assert [failure.error for failure in memory.failures] == ["Selector '#a' not found"]


@pytest.mark.integration
async def test_the_result_of_an_mcp_server_is_not_altered(tmp_path: Path):
    listing = tmp_path / "actions.json"
    listing.write_text('[{"name": "structured", "inputSchema": {"type": "object"}}]')
    async with engine_for(rough("--actions", listing)) as engine:
        result = await engine.execute("server", {"structured": FAILED}, action="structured")
    assert result.is_success and result.output == FAILED
