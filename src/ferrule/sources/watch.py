"""Noticing that files of tools were saved, added, renamed or deleted.

There is one mechanism: the files are looked at, and compared with how they were at the look before. A look is taken
every `interval` seconds and, when `instant`, also as soon as the system reports that something happened in the
folders. Reports only say when to look. So whatever happened between two looks is found, however an editor saves,
and also when a folder is not there yet, is deleted and made again, or the system reports nothing.
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

from ferrule.sources.folder import tool_folders, watched_files
from ferrule.sources.loaded import digest_of

logger = logging.getLogger("ferrule.sources")

OnChange: TypeAlias = Callable[[set[Path]], Awaitable[object]]
"""Gets the files that changed. The next look waits for it; what it raises is logged."""

QUIET = 0.020
"""Seconds without another report before a look is taken, so that one save is one change …"""
PATIENCE = 0.100
"""… but never wait longer than this."""
FOLDER_CHECK = 0.25
"""Seconds between checks that the folders are still those that are listened to."""
COARSEST_CLOCK = 2.0
"""Seconds: no file system has coarser time stamps."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What a file looked like."""

    stamp: tuple[int, int, int, int]
    digest: str
    is_fresh: bool
    """Written so recently that the next write could leave the same time stamp: then only the content tells."""


class FileWatcher:
    """Calls back when files of tools in some folders change, from when it is made until it is closed.

    Make it before the files are loaded for the first time: then nothing is missed in between.
    """

    def __init__(
        self,
        directories: Iterable[str | Path],
        on_change: OnChange,
        *,
        interval: float = 5.0,
        instant: bool = False,
        files: Callable[[Path], list[Path]] = watched_files,
        folders: Callable[[Path], list[Path]] = tool_folders,
    ) -> None:
        """`files` says which files of a directory count, `folders` in which folders of it they may stand."""
        self._directories = [Path(directory) for directory in directories]
        self._files, self._folders_of = files, folders
        self._on_change, self._interval, self._instant = on_change, interval, instant
        self._seen: dict[Path, _Look] = {}
        self._look()
        self._reported = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch, in a task of the running event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="ferrule-watcher")

    async def aclose(self) -> None:
        """End it. A callback that is running is cancelled."""
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():  # else it ended with its loop
            task.cancel()
            await asyncio.wait([task])

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
                tasks.create_task(self._listen(), name="ferrule-watcher-reports")
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._reported.wait(), self._interval)
                self._reported.clear()
                if changed := await asyncio.to_thread(self._look):
                    await self._tell(changed)

    async def _tell(self, changed: set[Path]) -> None:
        try:
            await self._on_change(changed)
        except Exception:
            logger.exception("files=<%d> | reaction to changed files failed", len(changed))

    # Looking

    def _look(self) -> set[Path]:
        """The files that are not as they were at the last look."""
        before = self._seen
        try:
            paths = [path for directory in self._directories for path in self._files(directory)]
        except OSError as error:
            logger.warning("error=<%s> | a folder of tools cannot be read", error)
            return set()
        looks = {path: _look_at(path, before.get(path)) for path in paths}
        self._seen = {path: look for path, look in looks.items() if look is not None}
        return {path for path in before.keys() | self._seen.keys() if _differs(before.get(path), self._seen.get(path))}

    # Listening

    async def _listen(self) -> None:
        while True:
            folders = _identities(self._folders())
            try:
                if folders:
                    await self._listen_to(folders)
                else:
                    await asyncio.sleep(FOLDER_CHECK)
            except FileNotFoundError:
                continue  # gone between being found and being listened to
            except (OSError, RuntimeError) as error:  # the system has no more watches to give, say
                logger.warning("error=<%s>, interval=<%s> | cannot listen, looking at intervals", error, self._interval)
                await asyncio.sleep(self._interval)
            self._reported.set()

    async def _listen_to(self, folders: dict[Path, tuple[int, int]]) -> None:
        """Pass on reports until the folders are others than these."""
        from watchfiles import awatch

        reports = awatch(
            *folders,
            watch_filter=None,
            debounce=round(PATIENCE * 1000),
            step=round(QUIET * 1000),
            rust_timeout=round(FOLDER_CHECK * 1000),
            yield_on_timeout=True,
            recursive=False,
        )
        async with contextlib.aclosing(reports):
            # Something may have happened before the system began to listen: the first turn counts as a report.
            is_first = True
            async for changes in reports:
                if changes or is_first:
                    self._reported.set()
                is_first = False
                if _identities(self._folders() if changes else folders) != folders:
                    return

    def _folders(self) -> list[Path]:
        try:
            return [folder for directory in self._directories for folder in self._folders_of(directory)]
        except OSError:
            return self._directories


def _look_at(path: Path, before: _Look | None) -> _Look | None:
    try:
        status = path.stat()
    except OSError:
        return None
    stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
    if before is not None and before.stamp == stamp and not before.is_fresh:
        return before
    is_fresh = time.time() - max(status.st_mtime, status.st_ctime) < COARSEST_CLOCK
    return _Look(stamp, digest_of(path), is_fresh)


def _differs(before: _Look | None, now: _Look | None) -> bool:
    return (before and before.digest) != (now and now.digest)


def _identities(folders: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """The folders that are there, and which ones they are: another one may have taken a name."""
    found = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            status = os.stat(folder)
            found[folder] = (status.st_dev, status.st_ino)
    return found
