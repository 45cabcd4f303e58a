"""Checkpoints of LangGraph beside the records, in every kind of store."""

import json

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
