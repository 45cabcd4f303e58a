"""What a run of a plan writes down as it goes, beside and after which it can be gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.agent.run import BOOKS
from ferrule.errors import SetupError
from ferrule.library import UnifiedToolLibrary


class RunNotes:
    """The book of one run."""

    def __init__(self, library: UnifiedToolLibrary, run_id: str) -> None:
        self.run_id, self._store, self._number = run_id, library.engine.store, 0

    def write(self, kind: str, **said: Any) -> None:
        self._number += 1
        self._store.note(BOOKS + self.run_id, f"{self._number:08}", {"kind": kind, **said})

    async def read(self) -> list[Mapping[str, Any]]:
        entries = await self._store.notes(BOOKS + self.run_id)
        if not entries:
            raise SetupError(
                f"There is no run {self.run_id!r} in this store. `ferrule runs list` shows those there are."
            )
        self._number = int(max(entries))
        return list(entries.values())
