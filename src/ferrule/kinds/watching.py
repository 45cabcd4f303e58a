"""Noticing that files of tools were saved, added, renamed or deleted.

There is one mechanism: a scan compares the files with their state at the scan before. Scans run every `interval`
seconds and, when `instant`, also as soon as the operating system reports a change in the folders. Such a notification
only triggers a scan. So every change between two scans is found, however an editor saves, and also when a folder does
not exist yet, is deleted and created again, or the system reports nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from ferrule.core.aio import cancel_all, wait_at_most
from ferrule.kinds.source import WatchedFolder, digest_file

logger = logging.getLogger("ferrule.kinds")

OnChange: TypeAlias = Callable[[set[Path]], Awaitable[object]]
"""Gets the files that changed. The next scan waits for it; what it raises is logged."""

QUIET_PERIOD = 0.020
"""Seconds without another notification before a scan, so that one save is one change …"""
MAX_DELAY = 0.100
"""… but a scan is never delayed longer than this."""
FOLDER_CHECK_INTERVAL = 0.25
"""Seconds between checks that the watched folders are still the same directories."""
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
        """If a folder is given as a path, the files that `watched_files` lists are watched."""
        self._folders = [each if isinstance(each, WatchedFolder) else WatchedFolder(Path(each)) for each in folders]
        self._on_change, self._interval, self._instant = on_change, interval, instant
        self._states: dict[WatchedFolder, dict[Path, _FileState]] = {}
        self._scan()
        self._notified = asyncio.Event()
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
        async with asyncio.TaskGroup() as tasks:
            if self._instant:
                tasks.create_task(self._listen(), name="ferrule-watcher-notifications")
            while True:
                await wait_at_most(self._notified, self._interval)
                self._notified.clear()
                changed = await asyncio.to_thread(self._scan)
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

    # Notifications of the operating system

    async def _listen(self) -> None:
        while True:
            folders = _identify_folders(self._folders_to_watch())
            try:
                if folders:
                    await self._listen_to(folders)
                else:
                    await asyncio.sleep(FOLDER_CHECK_INTERVAL)
            except FileNotFoundError:
                continue  # deleted between the check and the start of watching
            except (OSError, RuntimeError) as error:  # for instance, the system's limit of watches is reached
                logger.warning("error=<%s>, interval=<%s> | no notifications, scanning instead", error, self._interval)
                await asyncio.sleep(self._interval)
            self._notified.set()

    async def _listen_to(self, folders: dict[Path, tuple[int, int]]) -> None:
        """Pass notifications on until the set of folders has changed."""
        from watchfiles import awatch

        notifications = awatch(
            *folders,
            watch_filter=None,
            debounce=round(MAX_DELAY * 1000),
            step=round(QUIET_PERIOD * 1000),
            rust_timeout=round(FOLDER_CHECK_INTERVAL * 1000),
            yield_on_timeout=True,
            recursive=False,
        )
        async with contextlib.aclosing(notifications):
            # Something may have changed before watching began: the first round counts as a notification.
            is_first = True
            async for changes in notifications:
                if changes or is_first:
                    self._notified.set()
                is_first = False
                if _identify_folders(self._folders_to_watch() if changes else folders) != folders:
                    return

    def _folders_to_watch(self) -> list[Path]:
        folders: list[Path] = []
        for watched in self._folders:
            try:
                folders += watched.folders(watched.path)
            except OSError:
                folders.append(watched.path)
        return folders


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


def _identify_folders(folders: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Return the folders that exist, with device and inode: a name may now belong to another directory."""
    identities = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            status = os.stat(folder)
            identities[folder] = (status.st_dev, status.st_ino)
    return identities
