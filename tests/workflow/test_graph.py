"""The workflow on LangGraph: resuming from every kind of store, and checkpointers."""

import asyncio
import json
from importlib.util import find_spec
from typing import Annotated, Any

import pytest

from ferrule import Secret, UnifiedToolLibrary, tool
from ferrule.agent import AgentState
from ferrule.testing import ScriptedModel
from ferrule.workflow import GraphWorkflow, open_checkpointer
from tests.support.postgres import run_postgres

pytestmark = pytest.mark.skipif(
    find_spec("langgraph") is None, reason='needs LangGraph: pip install "ferrule[langgraph]"'
)
PLAN = json.dumps({"steps": [{"id": 1, "description": "d", "tool_type": "delete", "parameters": {"path": "a"}}]})


async def test_a_waiting_run_is_resumed_from_any_store(store_url):
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
            flow = GraphWorkflow(library, ScriptedModel(["x"]))
        done = await flow.resume(paused.run_id, approvals=True)
        assert done.answer == "deleted a" and deleted == ["a"]


async def test_steps_before_a_crash_are_not_repeated(store_url):
    steps = [{"id": n, "description": f"thought {n}", "dependencies": [n - 1] if n > 1 else []} for n in (1, 2, 3)]
    model = ScriptedModel([json.dumps({"steps": steps}), "one", "two", RuntimeError("crash"), "three", "All three."])
    async with UnifiedToolLibrary(store=store_url) as library:
        flow = GraphWorkflow(library, model)
        with pytest.raises(RuntimeError, match="crash"):
            await flow.run("Think", run_id="the-run")
        if store_url is not None:  # as another process would
            flow = GraphWorkflow(library, model)
        done = await flow.resume("the-run")
        assert [result.output for result in done.results] == ["one", "two", "three"] and done.answer == "All three."


async def test_a_checkpointer_sees_the_state_without_secrets():
    from langgraph.checkpoint.memory import InMemorySaver

    @tool
    async def enter(pin: Annotated[str, Secret()]) -> str:
        """Open the door."""
        return f"opened with {pin}"

    step = {"id": 1, "description": "enter", "tool_type": "enter", "parameters": {"pin": "PIN-8642"}}
    saver = InMemorySaver()
    async with UnifiedToolLibrary() as library:
        library.register(enter)
        flow = GraphWorkflow(library, ScriptedModel([json.dumps({"steps": [step]})]), checkpointer=saver)
        done = await flow.run("Enter")
    checkpoint = saver.get({"configurable": {"thread_id": done.run_id}})
    assert checkpoint is not None
    state = checkpoint["channel_values"]
    assert done.answer == "opened with PIN-8642" and "PIN-8642" not in str(state)
    assert state["current_step"] == 1 and state["final_answer"] and state["task_plan"]["steps"][0]["id"] == 1


THOUGHT = json.dumps({"steps": [{"id": 1, "description": "think", "tool_type": "none"}]})


async def count_checkpoints(saver: Any, run_id: str) -> int:
    return len([item async for item in saver.alist({"configurable": {"thread_id": run_id}})])


@pytest.mark.integration
async def test_plans_go_on_after_the_database_of_their_checkpoints_was_restarted():
    with run_postgres() as server:
        async with UnifiedToolLibrary() as library, open_checkpointer(server.url) as saver:
            flow = GraphWorkflow(library, ScriptedModel([THOUGHT, "yes", THOUGHT, "yes again"]), checkpointer=saver)
            assert (await flow.run("Think", run_id="before")).answer == "yes"
            await asyncio.to_thread(server.restart)
            assert (await flow.run("Think", run_id="after")).answer == "yes again"
            assert await count_checkpoints(saver, "before") == await count_checkpoints(saver, "after") > 3


@pytest.mark.long
async def test_a_checkpointer_that_is_lost_does_not_stop_a_plan(caplog):
    with run_postgres() as server:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        async with UnifiedToolLibrary() as library, AsyncPostgresSaver.from_conn_string(server.url) as saver:
            await saver.setup()
            flow = GraphWorkflow(library, ScriptedModel([THOUGHT, "yes", THOUGHT, "yes again"]), checkpointer=saver)
            assert (await flow.run("Think")).answer == "yes" and "checkpoint" not in caplog.text
            await asyncio.to_thread(server.restart)  # its only connection is lost
            assert (await flow.run("Think")).answer == "yes again" and "a checkpoint could not be used" in caplog.text


@pytest.mark.integration
async def test_texts_that_databases_reject_are_no_error(postgres_url, caplog):
    hostile = "a\0b\ud800c"
    plan = json.dumps({"steps": [{"id": 1, "description": hostile, "tool_type": "none"}]})
    async with UnifiedToolLibrary() as library, open_checkpointer(postgres_url) as saver:
        flow = GraphWorkflow(library, ScriptedModel([plan, hostile]), checkpointer=saver)
        done = await flow.run(hostile, run_id=f"run {hostile}")
        assert done.state is AgentState.FINISHED and "checkpoint" not in caplog.text
        assert await count_checkpoints(saver, "run a\ufffdb\ufffdc") > 3


async def test_checkpoint_files_belong_to_their_owner(tmp_path):
    path = tmp_path / "new" / "checkpoints.db"
    async with UnifiedToolLibrary() as library, open_checkpointer(f"sqlite:///{path}") as saver:
        flow = GraphWorkflow(library, ScriptedModel([THOUGHT, "yes"]), checkpointer=saver)
        done = await flow.run("Think")
        assert await count_checkpoints(saver, done.run_id) > 3
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
