"""Deleting what is old covers everything in the store, and never a run that still has work to do."""

import os
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from ferrule import Orchestrator, UnifiedToolLibrary, tool
from ferrule.agent import Agent
from ferrule.store import DeletionReport, Retention, ToolKnowledgeStore
from ferrule.store.client_requests import claim_request
from ferrule.testing import ScriptedModel
from tests.store.records import finish_record


def all_is_old() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=1)


@tool
async def note(text: str) -> str:
    """Note a text."""
    return f"noted {text}"


@tool(destructive=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


def call(name: str, **arguments: object) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def run_agent(library: UnifiedToolLibrary, run_id: str, *script: Any) -> None:
    await Agent(library, ScriptedModel(list(script))).run("Go", run_id=run_id)


async def contents(store: ToolKnowledgeStore) -> tuple[set[str], set[str | None]]:
    records = await store.query_call_records(limit=1000)
    return set(await store.list_streams()), {record.conversation_id for record in records}


async def test_everything_old_is_deleted_except_runs_that_are_not_over(store_url):
    async with UnifiedToolLibrary(store=ToolKnowledgeStore(store_url)) as library:
        store = library.engine.store
        library.register(note, delete)
        await run_agent(library, "finished", call("note", text="a"), "done")
        await run_agent(library, "waiting", call("note", text="b"), call("delete", path="c"))
        await run_agent(library, "half approved", [call("delete", path="d"), call("delete", path="e")])
        agent = Agent(library, ScriptedModel(["done"]))
        await agent.resume("half approved", approvals={"call_1": True})
        for run_id in ("crashed", "in progress"):
            store.write_entry(f"run:{run_id}", "00000001", {"kind": "begin", "task": run_id, "messages": []})
            finish_record(store, conversation_id=run_id)
        answer = await Orchestrator(library, ScriptedModel(["42"])).process_task("How much?", strategy="direct")
        store.write_entry("failures", "1", {})
        store.write_entry("failures:acme", "1", {})
        await store.query(claim_request, "token:ci", "key", "digest", "claim", lifetime=60)
        store.write_entry("pins", "1", "of another kind")
        finish_record(store, conversation_id=None)

        async with store.lock("run:in progress"):
            before = await contents(store)
            expected = DeletionReport(
                calls=3, runs=3, conversation_entries=2, failures=2, cached_answers=1, approvals=1, responses=1
            )
            assert await store.delete_records(older_than=all_is_old(), dry_run=True) == expected
            assert await contents(store) == before
            assert f"asked:{answer.run_id}" in before[0]
            assert await store.delete_records(older_than=timedelta(days=1)) == DeletionReport()
            assert await contents(store) == before

            assert await store.delete_records(older_than=all_is_old()) == expected
            streams, conversations = await contents(store)
            assert streams == {"run:waiting", "run:half approved", "run:in progress", "pins"}
            assert conversations == {"waiting", "half approved", "in progress"}
        assert (await store.delete_records(older_than=all_is_old())).runs == 1
        assert (await Agent(library, ScriptedModel(["done"])).resume("waiting", approvals=True)).text == "done"


async def test_retention_deletes_old_runs_in_the_background(tmp_path):
    path = tmp_path / "calls.db"
    async with UnifiedToolLibrary(store=str(path)) as library:
        library.register(note, delete)
        await run_agent(library, "old", call("note", text="a"), "done")
        await run_agent(library, "waiting", call("delete", path="c"))
        await run_agent(library, "new", call("note", text="b"), "done")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE entries SET written_at = 1 WHERE stream <> 'run:new'")
        database.execute("UPDATE tool_calls SET started_at = 1")
    async with ToolKnowledgeStore(str(path), retention=Retention(max_age=timedelta(days=1))) as store:
        streams, conversations = await contents(store)
        assert streams == {"run:waiting", "run:new"} and "old" not in conversations and "new" in conversations


async def test_artifacts_without_records_are_deleted(tmp_path):
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        orphan, used, new = (store.artifacts.add(data, "text/plain").artifact_id for data in (b"o", b"u", b"n"))
        finish_record(store, artifact_id=used)
        for artifact_id in (orphan, used):
            os.utime(tmp_path / "calls.db.artifacts" / artifact_id[:2] / artifact_id, (time.time() - 172_800,) * 2)
        for dry_run in (True, False):
            report = await store.delete_records(older_than=timedelta(days=1), dry_run=dry_run)
            assert report == DeletionReport(artifacts=1)
        assert (store.artifacts.get(used), store.artifacts.get(new)) == (b"u", b"n")
        assert not store.artifacts.can_remove(orphan)


async def test_an_agent_does_not_lose_a_run_that_it_resumes_while_old_data_is_deleted(tmp_path):
    async with UnifiedToolLibrary(store=str(tmp_path / "calls.db")) as library:

        @tool(read_only=True)
        async def clean() -> str:
            """Delete everything old, in the middle of a run."""
            report = await library.engine.store.delete_records(older_than=all_is_old())
            return f"{report.runs} runs deleted"

        library.register(clean)
        agent = Agent(library, ScriptedModel([call("clean"), "done"]))
        answer = await agent.run("Clean", run_id="r")
        assert answer.steps[0].text.startswith("0 runs deleted") and await agent.history("r")


@pytest.mark.integration
async def test_a_server_whose_clock_is_ahead_keeps_the_keys_of_requests(
    postgres_url: str, tmp_path: Any, monkeypatch: Any
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    real_time = time.time
    async with ToolKnowledgeStore(postgres_url) as store:

        async def claim(key: str) -> Any:
            return await store.query(claim_request, "/ada", key, "digest", uuid4().hex, lifetime=86_400.0)

        assert await claim("mine") is None
        monkeypatch.setattr(time, "time", lambda: real_time() + 2 * 86_400)  # another server, two days ahead
        assert await claim("another") is None
        monkeypatch.setattr(time, "time", real_time)
        assert (await claim("mine"))["status"] is None
