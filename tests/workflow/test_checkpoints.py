"""Checkpoints of LangGraph beside the records, in every kind of store."""

import json
import sqlite3
from contextlib import closing

import pytest

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent import AgentState
from ferrule.testing import ScriptedModel
from ferrule.workflow import GraphWorkflow
from tests.store.conftest import postgres_cluster, postgres_url, store_url

pytest.importorskip("langgraph", reason='needs LangGraph: pip install "ferrule[langgraph]"')
__all__ = ["postgres_cluster", "postgres_url", "store_url"]
PLAN = json.dumps({"steps": [{"id": 1, "description": "d", "tool_type": "delete", "parameters": {"path": "a"}}]})


async def test_a_run_that_waits_goes_on_in_any_store(store_url):
    deleted: list[str] = []

    @tool(destructive=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        deleted.append(path)
        return f"deleted {path}"

    async with UnifiedToolLibrary(store=store_url) as library:
        library.register(delete)
        flow = GraphWorkflow(library, ScriptedModel([PLAN]))
        paused = await flow.run("Delete a")
        assert paused.state is AgentState.WAITING and deleted == []
        if store_url is not None:  # as another process would
            await flow.aclose()
            flow = GraphWorkflow(library, ScriptedModel(["x"]))
        done = await flow.resume(paused.run_id, approvals=True)
        await flow.aclose()
        assert done.answer == "deleted a" and deleted == ["a"]


async def test_what_was_thought_before_a_crash_is_not_thought_again(store_url):
    steps = [{"id": n, "description": f"thought {n}", "dependencies": [n - 1] if n > 1 else []} for n in (1, 2, 3)]
    model = ScriptedModel([json.dumps({"steps": steps}), "one", "two", RuntimeError("crash"), "three", "All three."])
    async with UnifiedToolLibrary(store=store_url) as library:
        flow = GraphWorkflow(library, model)
        with pytest.raises(RuntimeError, match="crash"):
            await flow.run("Think", run_id="the-run")
        if store_url is not None:  # as another process would
            await flow.aclose()
            flow = GraphWorkflow(library, model)
        done = await flow.resume("the-run")
        await flow.aclose()
        assert [result.output for result in done.results] == ["one", "two", "three"] and done.answer == "All three."


async def test_a_run_that_is_over_leaves_no_checkpoints(tmp_path):
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path / 'calls.db'}") as library:
        flow = GraphWorkflow(library, ScriptedModel(['{"steps": [{"id": 1, "description": "think"}]}', "thought"]))
        done = await flow.run("Think")
        await flow.aclose()
        again = await flow.resume(done.run_id)
    with closing(sqlite3.connect(tmp_path / "calls-graph.db")) as database:
        kept = [database.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("checkpoints", "writes")]
    assert kept == [(0,), (0,)] and again.answer == done.answer == "thought"
