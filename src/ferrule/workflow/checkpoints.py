"""Where LangGraph keeps the checkpoints of runs: beside the records, in the same kind of store."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

from ferrule.store.location import Location

BUSY_SECONDS = 20
"""How long to wait while another process writes."""

T = TypeVar("T")


@asynccontextmanager
async def open_checkpoints(location: Location, clean: Callable[[Any], Any]) -> AsyncIterator[Any]:
    """A saver of LangGraph. What it writes down is made `clean` before."""
    serializer = _serializer(clean)
    if location.kind == "postgresql":
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        url = str(location.database).replace("postgresql+psycopg://", "postgresql://", 1)
        async with AsyncPostgresSaver.from_conn_string(url, serde=serializer) as saver:
            await saver.setup()
            yield saver
    elif location.kind == "sqlite":
        path = Path(str(location.database))
        connection = await asyncio.to_thread(_connect, path.with_name(f"{path.stem}-graph.db"))
        with closing(connection), ThreadPoolExecutor(1, "ferrule-checkpoints") as thread:
            yield _sqlite_saver(connection, thread, serializer)
    else:
        from langgraph.checkpoint.memory import InMemorySaver

        yield InMemorySaver(serde=serializer)


def _serializer(clean: Callable[[Any], Any]) -> Any:
    """LangGraph's own, and JSON for what it cannot write: numbers of more than 64 bits."""
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    class Serializer(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            obj = clean(obj)
            try:
                return super().dumps_typed(obj)
            except TypeError:
                return "plain-json", json.dumps(obj).encode()

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return json.loads(data[1]) if data[0] == "plain-json" else super().loads_typed(data)

    return Serializer()


def _sqlite_saver(connection: sqlite3.Connection, thread: ThreadPoolExecutor, serializer: Any) -> Any:
    """LangGraph's saver for SQLite in a thread, with one transaction for each step of the graph.

    Its own async saver makes two, and goes to its thread and back three or four times for each: that is more than
    the graph itself costs.
    """
    from langgraph.checkpoint.base import WRITES_IDX_MAP
    from langgraph.checkpoint.sqlite import SqliteSaver

    class Saver(SqliteSaver):
        async def aget_tuple(self, config: Any) -> Any:
            return await _within(thread, self.get_tuple, config)

        async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            return await _within(thread, self.put, config, checkpoint, metadata, new_versions)

        async def aput_writes(
            self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
        ) -> None:
            # What a node gives is in the checkpoint that follows at once: no two of ours run side by side, one of
            # which could be done before the other. What people are asked, and say, stands in no checkpoint.
            if any(channel in WRITES_IDX_MAP for channel, _ in writes):
                await _within(thread, self.put_writes, config, writes, task_id, task_path)

        async def adelete_thread(self, thread_id: str) -> None:
            await _within(thread, self.delete_thread, thread_id)

    return Saver(connection, serde=serializer)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")  # as the records: a crash of the process loses nothing
    return connection


async def _within(thread: ThreadPoolExecutor, work: Callable[..., T], *given: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(thread, work, *given)
