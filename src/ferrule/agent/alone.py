"""Nobody goes on with a run while somebody else does: they would do everything twice.

Within a process the runs are known; between processes there is a locked file for each, beside the journal, which the
kernel frees when the process dies, however it dies. Processes on other machines, with Postgres, are not seen.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from weakref import WeakKeyDictionary

from ferrule.errors import SetupError
from ferrule.store import ToolKnowledgeStore
from ferrule.store.private_files import make_directory

_alive: WeakKeyDictionary[ToolKnowledgeStore, set[str]] = WeakKeyDictionary()
"""The runs of each store that go on in this process."""


@contextmanager
def alone(store: ToolKnowledgeStore, run_id: str) -> Iterator[None]:
    """Two that went on with one run would do everything twice and write over each other's notes."""
    alive = _alive.setdefault(store, set())
    if run_id in alive:
        raise SetupError(f"The run {run_id!r} is going on already. Wait for its answer, or cancel it first.")
    alive.add(run_id)
    try:
        with _locked(store.location.journal, run_id):
            yield
    finally:
        alive.discard(run_id)


@contextmanager
def _locked(journal: Path | None, run_id: str) -> Iterator[None]:
    if journal is None:  # in memory, where no other process is
        yield
        return
    path = journal.with_suffix(".runs") / f"{sha256(run_id.encode()).hexdigest()[:32]}.lock"
    held = _lock(path)
    if held is None:
        raise SetupError(f"The run {run_id!r} is going on in another process. Wait for its answer, or end it.")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(held)


def _lock(path: Path) -> int | None:
    """The file, open and locked; None while somebody else has it."""
    make_directory(path.parent)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                return file
        except BlockingIOError:
            os.close(file)
            return None
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # whoever had it has just taken it away
