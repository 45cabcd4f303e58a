"""LangGraph checkpointers for `GraphWorkflow`, in SQLite or Postgres.

Checkpoints show how far a run is; no run needs them to continue. So a checkpointer whose database is down or was
restarted is logged and does not stop a plan.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from ferrule.errors import MissingExtra, SetupError
from ferrule.store.location import make_directory

logger = logging.getLogger("ferrule.workflow")

MAX_CONNECTIONS: Final = 4
CONNECT_TIMEOUT: Final = 10.0
"""Seconds to wait for a connection; then the checkpoint is not written."""


@asynccontextmanager
async def open_checkpointer(url: str) -> AsyncIterator[Any]:
    """A checkpointer for `GraphWorkflow`, at `sqlite:///path` or `postgresql://…`. Its tables are created."""
    if url.startswith("sqlite:///"):
        opened = _open_sqlite(Path(url.removeprefix("sqlite:///")))
    elif url.startswith(("postgresql://", "postgres://")):
        opened = _open_postgres(url)
    else:
        raise SetupError(f"There is no checkpointer for {url!r}. Write sqlite:///path or postgresql://….")
    async with opened as saver:
        await saver.setup()
        yield saver


@asynccontextmanager
async def _open_sqlite(path: Path) -> AsyncIterator[Any]:
    try:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    except ImportError:
        raise MissingExtra("langgraph-checkpoint-sqlite", "langgraph") from None
    make_directory(path.parent)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    path.chmod(0o600)  # SQLite gives its other files the mode of this one
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        yield saver


@asynccontextmanager
async def _open_postgres(url: str) -> AsyncIterator[Any]:
    """With a pool that checks each connection before it is used: after a restart of the database it opens new ones."""
    try:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool
    except ImportError:
        raise MissingExtra("langgraph-checkpoint-postgres", "langgraph") from None
    pool: Any = AsyncConnectionPool(
        url,
        open=False,
        min_size=1,
        max_size=MAX_CONNECTIONS,
        timeout=CONNECT_TIMEOUT,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
        check=AsyncConnectionPool.check_connection,
    )
    async with pool:
        yield AsyncPostgresSaver(pool)


def log_checkpointer_errors(saver: Any) -> Any:
    """Wrap a checkpointer, so that its failures are logged instead of raised. None stays None."""
    if saver is None:
        return None
    from langgraph.checkpoint.base import BaseCheckpointSaver

    class ErrorLoggingCheckpointer(BaseCheckpointSaver[Any]):
        """Passes everything on; what could not be written is not written."""

        @property
        def config_specs(self) -> Any:
            return saver.config_specs

        def get_next_version(self, current: Any, channel: Any) -> Any:
            return saver.get_next_version(current, channel)

        async def aget_tuple(self, config: Any) -> Any:
            try:
                return await saver.aget_tuple(config)
            except Exception as error:
                return _log_failure(error)

        async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            try:
                return await saver.aput(config, checkpoint, metadata, new_versions)
            except Exception as error:
                _log_failure(error)
                return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}

        async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            try:
                await saver.aput_writes(config, writes, task_id, task_path)
            except Exception as error:
                _log_failure(error)

    return ErrorLoggingCheckpointer(serde=saver.serde)


def _log_failure(error: Exception) -> None:
    logger.warning("error=<%s: %s> | a checkpoint could not be used; the run goes on", type(error).__name__, error)
