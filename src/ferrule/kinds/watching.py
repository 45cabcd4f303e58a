"""Noticing that files of tools were saved, added, renamed or deleted.

A scan compares the files with their state at the scan before, every `interval` seconds or, when `instant`, several
times a second. So every change is found, however an editor saves, on any file system, and also when a folder does not
exist yet, or is deleted and created again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from ferrule.core.aio import cancel_all
from ferrule.kinds.source import WatchedFolder, digest_file

logger = logging.getLogger("ferrule.kinds")

OnChange: TypeAlias = Callable[[set[Path]], Awaitable[object]]
"""Gets the files that changed. The next scan waits for it; what it raises is logged."""

INSTANT_INTERVAL = 0.2
"""Seconds between two scans when changes are to be noticed immediately."""
MAX_SCAN_SHARE = 0.05
"""The share of time spent on scans: folders with very many files are scanned less often."""
MAX_TIMESTAMP_STEP = 2.0
"""Seconds; no file system has coarser timestamps."""


@dataclass(frozen=True, slots=True)
class _FileState:
    """A file at the time of a scan."""

    stamp: tuple[int, int, int, int]
    digest: str
    is_fresh: bool
    """Written so recently that the next write could have the same timestamp: then the content must be compared."""


class FileWatcher:
    """Calls back when files of tools in some folders change, from its construction until it is closed.

    Construct it before the files are loaded for the first time: then no change is missed in between.
    """

    def __init__(
        self,
        folders: Iterable[WatchedFolder | str | Path],
        on_change: OnChange,
        *,
        interval: float = 5.0,
        instant: bool = False,
    ) -> None:
        """Watch the files that `watched_files` lists in a folder that is given as a path."""
        self._folders = [each if isinstance(each, WatchedFolder) else WatchedFolder(Path(each)) for each in folders]
        self._on_change, self._interval = on_change, min(interval, INSTANT_INTERVAL) if instant else interval
        self._states: dict[WatchedFolder, dict[Path, _FileState]] = {}
        self._scan()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch, in a task of the running event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="ferrule-watcher")

    async def aclose(self) -> None:
        """Stop watching. A callback that is running is cancelled."""
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():  # else it ended with its loop
            await cancel_all([task])

    async def __aenter__(self) -> FileWatcher:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(self) -> None:
        pause = self._interval
        while True:
            await asyncio.sleep(pause)
            started = time.monotonic()
            changed = await asyncio.to_thread(self._scan)
            pause = max(self._interval, (time.monotonic() - started) / MAX_SCAN_SHARE)
            try:
                if changed:
                    await self._on_change(changed)
            except Exception:
                logger.exception("files=<%d> | the callback for changed files failed", len(changed))

    def _scan(self) -> set[Path]:
        """Return the files that are not as they were at the last scan."""
        before = self._known_files()
        self._states = {folder: self._states_in(folder, before) for folder in self._folders}
        earlier = {path: state.digest for path, state in before.items()}
        now = {path: state.digest for path, state in self._known_files().items()}
        return {path for path in earlier.keys() | now.keys() if earlier.get(path) != now.get(path)}

    def _known_files(self) -> dict[Path, _FileState]:
        return {path: state for states in self._states.values() for path, state in states.items()}

    def _states_in(self, folder: WatchedFolder, before: dict[Path, _FileState]) -> dict[Path, _FileState]:
        try:
            paths = folder.files(folder.path)
        except OSError as error:
            # The files have not been deleted: their state is simply not known now.
            logger.warning("folder=<%s>, error=<%s> | a folder of tools cannot be read", folder.path, error)
            return self._states.get(folder, {})
        states = {path: _read_state(path, before.get(path)) for path in paths}
        return {path: state for path, state in states.items() if state is not None}


def _read_state(path: Path, before: _FileState | None) -> _FileState | None:
    try:
        status = path.stat()
    except OSError:
        return None
    stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
    if before is not None and before.stamp == stamp and not before.is_fresh:
        return before
    is_fresh = time.time() - max(status.st_mtime, status.st_ctime) < MAX_TIMESTAMP_STEP
    return _FileState(stamp, digest_file(path), is_fresh)
