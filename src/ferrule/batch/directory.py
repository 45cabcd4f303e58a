"""The folder of a batch: its trajectories, an index of them, and a summary.

`trajectories.jsonl` is the truth: one line per finished task, appended with one write. `index.db` can be made again
from it: it says which tasks are finished and where their lines are, so that neither a run nor a report holds a million
of them in memory. A process that is killed leaves at most half a line, which the next one cuts off, and lines that are
not in the index yet, which the next one adds. So every task has exactly one line, whenever the process is killed.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import orjson

from ferrule.batch.tasks import BatchTask
from ferrule.core.content import encode_json
from ferrule.errors import SetupError, StoreError

TRAJECTORIES = "trajectories.jsonl"
SUMMARY = "summary.json"
SETTINGS = "batch.json"
INDEX = "index.db"
INDEX_INTERVAL = 500
"""Finished tasks after which the index is written."""
SYNC_INTERVAL = 1.0
"""Seconds after which lines are forced to the disk; `kill -9` loses none either way, a power failure at most these."""
_CHUNK_SIZE = 1 << 20
TASK_COLUMNS = ("id", "state", "failure", "turns", "calls", "cost", "seconds")
"""What lists of tasks show."""
_COLUMNS = {
    "state": "TEXT",
    "failure": "TEXT",
    "turns": "INTEGER",
    "calls": "INTEGER",
    "failed_calls": "INTEGER",
    "prevented": "INTEGER",
    "input_tokens": "INTEGER",
    "output_tokens": "INTEGER",
    "cost": "REAL",
    "seconds": "REAL",
    "ended_at": "REAL",
}
"""What the index knows of a trajectory: enough for summaries, comparisons and reports."""


class BatchDirectory:
    """The files of one batch. Only one process at a time may write to them."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: int | None = None
        self._lock: int | None = None
        self._length = 0
        self._pending: dict[str, tuple[Any, ...]] = {}
        self._open_ids: set[str] = set()
        self._is_rebuilt = False
        self._index: sqlite3.Connection | None = None
        self._last_sync = 0.0

    # Opening

    @classmethod
    def open_existing(cls, path: Path | str) -> BatchDirectory:
        """Open the folder of a batch to read. What a running batch writes later is not seen.

        Raises SetupError if the folder contains no batch.
        """
        directory = cls(path)
        if not (directory.path / TRAJECTORIES).is_file():
            raise SetupError(f"{directory.path} has no {TRAJECTORIES}. Name the folder that `ferrule batch run` wrote.")
        directory._refuse_links()
        directory._open_index()
        return directory

    def open(self, settings: Mapping[str, Any]) -> Self:
        """Open the folder to write, and repair what a killed process left. `settings` must be the same as before."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._refuse_links()
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise SetupError(f"{self.path} cannot be used as the folder of a batch: {error.strerror}.") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
            raise SetupError(f"Another process works on the batch in {self.path}. Wait for it, or end it.") from None
        try:
            self.settings = self._read_settings(settings)
            self._file = os.open(self.path / TRAJECTORIES, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._length = _cut_incomplete_line(self._file)
            self._open_index()
        except BaseException:
            self.close()
            raise
        return self

    def _refuse_links(self) -> None:
        """Raise SetupError for a symbolic link in the folder: what is written through it would replace another file."""
        for path in self.path.iterdir():
            if path.is_symlink():
                raise SetupError(f"{path} is a symbolic link, and a batch writes only into its own folder. Delete it.")

    def close(self) -> None:
        """Write what is pending and release the folder."""
        if self._index is not None:
            if self._file is not None:
                self.write_index()
            self._index.close()
            self._index = None
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
        if self._lock is not None:
            os.close(self._lock)
        self._file = self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings in the folder. A new folder gets these."""
        path = self.path / SETTINGS
        try:
            stored: dict[str, Any] = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            stored = {"batch_id": uuid4().hex[:12], "created_at": time.time(), **settings}
            write_json_atomically(path, stored)
        except orjson.JSONDecodeError as error:
            raise SetupError(f"{path} is damaged ({error}). Choose another --out, or delete the file.") from None
        for name, value in settings.items():
            if stored.get(name) != value:
                raise SetupError(
                    f"The batch in {self.path} was started with {name} {stored.get(name)!r}, not {value!r}. Its "
                    f"results would be mixed: continue it with the same {name}, or choose another --out."
                )
        return stored

    # Writing

    def claim_tasks(self, tasks: Sequence[BatchTask]) -> tuple[list[tuple[BatchTask, bool]], int, int]:
        """Note that these tasks are worked on.

        Returns the tasks to do, each with whether an earlier process may have started it, and how many others are
        finished, or worked on already because they are in the input twice.
        """
        marks = ",".join("?" * len(tasks))
        rows = self.query(f"SELECT id, digest, offset FROM tasks WHERE id IN ({marks})", [task.id for task in tasks])
        states = {row[0]: (row[1], row[2] is not None or row[0] in self._pending) for row in rows}
        open_tasks: list[tuple[BatchTask, bool]] = []
        new: dict[str, str] = {}
        finished = duplicates = 0
        for task in tasks:
            digest, is_finished = states.get(task.id, (new.get(task.id), False))
            if digest is not None and digest != task.digest:
                raise SetupError(
                    f"Two different tasks have the id {task.id!r}: {task.task[:80]!r} is not what it was when the id "
                    "was used before. Give it another id, or choose another --out."
                )
            if is_finished:
                finished += 1
            elif task.id in self._open_ids:
                duplicates += 1
            else:
                self._open_ids.add(task.id)
                open_tasks.append((task, digest is not None or self._is_rebuilt))
                if digest is None:
                    new[task.id] = task.digest
        if new:
            with self._require_index() as index:
                index.executemany("INSERT INTO tasks (id, digest) VALUES (?, ?)", new.items())
        return open_tasks, finished, duplicates

    def append(self, trajectory: Mapping[str, Any]) -> None:
        """Add the trajectory of a task. After this returns, `kill -9` cannot lose it."""
        assert self._file is not None
        line = encode_json(trajectory, escape_surrogates=True) + b"\n"
        try:
            size = 0
            while size < len(line):
                size += os.write(self._file, line[size:])
        except OSError as error:
            os.ftruncate(self._file, self._length)
            raise StoreError(f"A trajectory cannot be written to {self.path}: {error.strerror}.") from error
        self._pending[trajectory["id"]] = _row_of(trajectory, self._length, len(line))
        self._length += len(line)
        self._open_ids.discard(trajectory["id"])
        if len(self._pending) >= INDEX_INTERVAL:
            self.write_index()

    def sync(self) -> None:
        """Force the lines to the disk if the last time is long ago."""
        if self._file is not None and time.monotonic() - self._last_sync >= SYNC_INTERVAL:
            self._last_sync = time.monotonic()
            os.fsync(self._file)

    def write_index(self) -> None:
        _insert_rows(self._require_index(), self._pending.values(), self._length)
        self._pending.clear()

    def write_summary(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Write `summary.json`: the totals of all trajectories."""
        self.write_index()
        summary = {**summarize(self), **extra}
        write_json_atomically(self.path / SUMMARY, summary)
        return summary

    # Reading

    def list_tasks(self, where: str, order: str, limit: int) -> list[dict[str, Any]]:
        """Read `TASK_COLUMNS` of the finished tasks that fulfil a condition of SQL."""
        condition = f"offset IS NOT NULL AND {where} ORDER BY {order} LIMIT {limit}"
        rows = self.query(f"SELECT {', '.join(TASK_COLUMNS)} FROM tasks WHERE {condition}")
        return [dict(zip(TASK_COLUMNS, row, strict=True)) for row in rows]

    def query(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Query the table `tasks` of the index."""
        return self._require_index().execute(sql, values)

    def find(self, task_id: str) -> dict[str, Any] | None:
        """Return the trajectory of a task; None while the task is not finished."""
        row = self.query("SELECT offset, length FROM tasks WHERE id = ? AND offset IS NOT NULL", [task_id]).fetchone()
        if row is None:
            return None
        with (self.path / TRAJECTORIES).open("rb") as file:
            file.seek(row[0])
            return dict(orjson.loads(file.read(row[1])))

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield all trajectories, in the order in which the tasks ended."""
        with (self.path / TRAJECTORIES).open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield orjson.loads(line)

    @property
    def total_cost(self) -> float:
        """Return the cost of the finished tasks that are in the index."""
        return float(self.query("SELECT COALESCE(SUM(cost), 0) FROM tasks").fetchone()[0])

    # The index

    def _require_index(self) -> sqlite3.Connection:
        if self._index is None:
            raise StoreError(f"The batch in {self.path} is closed.")
        return self._index

    def _open_index(self) -> None:
        """Open the index and add the lines that are not in it."""
        path = self.path / INDEX
        try:
            self._index = _connect(path)
        except sqlite3.DatabaseError:  # damaged: it is made again from the trajectories
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            self._index = _connect(path)
            self._is_rebuilt = True
        index = self._index
        until = int(index.execute("SELECT value FROM progress WHERE name = 'until'").fetchone()[0])
        size = (self.path / TRAJECTORIES).stat().st_size
        if until > size:  # the file was replaced
            with index:
                index.execute("DELETE FROM tasks")
            until = 0
        rows: list[tuple[Any, ...]] = []
        with (self.path / TRAJECTORIES).open("rb") as file:
            file.seek(until)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # a running batch is writing it
                try:
                    trajectory = orjson.loads(line)
                    if not isinstance(trajectory, dict) or not isinstance(trajectory.get("id"), str):
                        raise ValueError("it has no id")
                    rows.append(_row_of(trajectory, until, len(line)))
                except (ValueError, TypeError, AttributeError) as error:
                    raise SetupError(
                        f"{self.path / TRAJECTORIES} is damaged at byte {until}: {error}. Delete that line to go on."
                    ) from None
                until += len(line)
                if len(rows) >= INDEX_INTERVAL:
                    _insert_rows(index, rows, until)
                    rows.clear()
        _insert_rows(index, rows, until)


def _connect(path: Path) -> sqlite3.Connection:
    index = sqlite3.connect(path, timeout=20, check_same_thread=False)
    index.execute("PRAGMA journal_mode=WAL")
    index.execute("PRAGMA synchronous=OFF")  # it can be made again
    columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
    with index:
        index.execute(
            "CREATE TABLE IF NOT EXISTS tasks (id TEXT PRIMARY KEY, digest TEXT, offset INTEGER, length INTEGER, "
            f"{columns}) WITHOUT ROWID"
        )
        index.execute("CREATE TABLE IF NOT EXISTS progress (name TEXT PRIMARY KEY, value)")
        index.execute("INSERT OR IGNORE INTO progress VALUES ('until', 0)")
    index.execute("SELECT id FROM tasks LIMIT 1").fetchone()
    return index


def _insert_rows(index: sqlite3.Connection, rows: Collection[tuple[Any, ...]], until: int) -> None:
    if rows:
        with index:
            marks = ",".join("?" * (4 + len(_COLUMNS)))
            index.executemany(f"INSERT OR REPLACE INTO tasks VALUES ({marks})", rows)
            index.execute("UPDATE progress SET value = ? WHERE name = 'until'", [until])


def _row_of(trajectory: Mapping[str, Any], offset: int, length: int) -> tuple[Any, ...]:
    values = {**trajectory, "calls": None, **(trajectory.get("usage") or {}), **(trajectory.get("totals") or {})}
    return trajectory["id"], trajectory.get("digest"), offset, length, *(values.get(name) for name in _COLUMNS)


def _cut_incomplete_line(file: int) -> int:
    """Cut off what follows the last line end: the process that wrote it was killed. Returns the length."""
    size = end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - _CHUNK_SIZE)
        position = os.pread(file, end - start, start).rfind(b"\n")
        if position >= 0:
            end = start + position + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
    return end


def write_json_atomically(path: Path, value: Any) -> None:
    """Write a JSON file so that a reader, or a process that is killed, finds the old or the new one, never half."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")
    os.replace(temporary, path)


def summarize(directory: BatchDirectory) -> dict[str, Any]:
    """Compute the totals of all trajectories from the index."""
    ended = "FROM tasks WHERE offset IS NOT NULL"
    names = ("turns", "calls", "failed_calls", "prevented", "input_tokens", "output_tokens")
    sums = ", ".join(f"COALESCE(SUM({name}), 0)" for name in names)
    total, unpriced, timed, cost, *counts = directory.query(
        f"SELECT COUNT(*), COALESCE(SUM(cost IS NULL), 0), COUNT(seconds), SUM(cost), {sums} {ended}"
    ).fetchone()
    turns, calls, failed_calls, prevented, input_tokens, output_tokens = counts

    def count_by(name: str) -> dict[str, int]:
        where = f"AND {name} IS NOT NULL GROUP BY {name} ORDER BY COUNT(*) DESC"
        return dict(directory.query(f"SELECT {name}, COUNT(*) {ended} {where}").fetchall())

    def find_percentile(rank: float) -> float | None:
        where = "AND seconds IS NOT NULL ORDER BY seconds LIMIT 1 OFFSET ?"
        row = directory.query(f"SELECT seconds {ended} {where}", [int(rank * max(0, timed - 1))]).fetchone()
        return None if row is None else float(row[0])

    return {
        "tasks": total,
        "states": count_by("state"),
        "failures": count_by("failure"),
        "turns": turns,
        "calls": calls,
        "failed_calls": failed_calls,
        "repeated_failures_prevented": prevented,
        "usage": {"input_tokens": input_tokens, "output_tokens": output_tokens},
        "cost": cost if cost is not None else (0.0 if not total else None),
        "tasks_without_price": unpriced,
        "seconds": {name: find_percentile(rank) for name, rank in PERCENTILES.items()},
    }


PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def format_task_value(value: Any) -> str:
    """Format a value of `TASK_COLUMNS` for a table."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
