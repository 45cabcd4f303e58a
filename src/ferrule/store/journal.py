"""The journal is the queue.

A call's record is one line of JSON (see `line.py`), copied into memory that is mapped to a file (`segment.py`) before
the call's result is handed to anybody. The kernel then has it: it survives `kill -9` of the process at any moment, and
costs less than a microsecond, because nothing waits for a disk or a database. A writer thread (`writer.py`) reads what
was appended and puts it into SQL, many lines with one statement. Only after that is a line ever removed.

A journal is a directory of segments, `<start>-<pid>-<number>.jsonl`. Each belongs to one living process, which holds
a lock on it (`flock`) that the kernel frees when the process dies, however it dies. A segment whose lock is free was
left behind: whoever finds it reads it again from the start and deletes it. Lines are inserted by record id and may be
inserted twice, so recovery after a crash is no special case but the same code once more.

A segment's first line names its owner; a last line without an end, or with a gap, was being written when the process
was killed. Its call was never acknowledged, so it is left out.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Protocol

from ferrule.errors import StoreError
from ferrule.store.private_files import make_directory
from ferrule.store.segment import Segment

logger = logging.getLogger("ferrule.store")

SEGMENT_BYTES = 4_000_000
"""A segment that is full is deleted as soon as it has been read, and another one begun."""
LINES_IN_MEMORY = 200_000
SEGMENTS_LEFT = 64
"""So many are left to others; whoever makes more puts them all away."""
LINES_TO_WAKE = 5_000
"""In memory nobody is in a hurry until somebody asks."""


class Journal(Protocol):
    """Where lines wait for SQL. Any thread may append; everything else is for one reader at a time."""

    owner: str
    reader_sleeps: bool
    """Whether the reader wants to be woken when there is enough to read."""

    def append(self, line: bytes, /) -> None:
        """Keep the line; OSError when that is not possible."""

    def backlog(self) -> int:
        """How much waits to be read, in units of its own."""

    def has_enough(self) -> bool:
        """Whether it is worth while to read now."""

    def read(self) -> list[bytes]:
        """The next lines; the same ones again until `done` says that they are safe elsewhere."""

    def done(self) -> int:
        """Returns how much of the backlog that was."""

    def rotate(self) -> None:
        """Begin a new segment where that is due; after a failure, try again."""

    def abandoned(self) -> Iterator[Segment]:
        """What dead processes left behind, oldest first; the caller ends each with `delete` or `close`."""

    def is_tidy(self) -> bool:
        """Whether one more segment may be left to whoever comes next."""

    def close(self, *, keep: bool) -> None:
        """End it. What was not read, or everything to `keep`, is left to whoever comes next."""

    def continue_in_child(self, start: str) -> None:
        """After a fork: the parent's lines and locks are not ours."""


class MemoryJournal:
    """For stores without a file: its lines are gone when the process is."""

    def __init__(self, wake: Callable[[], None], start: str) -> None:
        self.owner, self.reader_sleeps = owner_name(start), False
        self._wake = wake
        self._lines: list[bytes] = []
        self._read = 0

    def append(self, line: bytes) -> None:
        waiting = len(self._lines)
        if waiting >= LINES_IN_MEMORY:
            raise OSError(f"{waiting} records wait in memory and the database takes none")
        self._lines.append(line)
        if self.reader_sleeps and waiting >= LINES_TO_WAKE:
            self.reader_sleeps = False
            self._wake()

    def backlog(self) -> int:
        return len(self._lines)

    def has_enough(self) -> bool:
        return len(self._lines) >= LINES_TO_WAKE

    def read(self) -> list[bytes]:
        lines = self._lines[:1000]
        self._read = len(lines)
        return [line[:-1] for line in lines]

    def done(self) -> int:
        del self._lines[: self._read]
        return self._read

    def rotate(self) -> None:
        pass

    def abandoned(self) -> Iterator[Segment]:
        return iter(())

    def is_tidy(self) -> bool:
        return False

    def close(self, *, keep: bool) -> None:
        self._lines.clear()

    def continue_in_child(self, start: str) -> None:
        self.owner, self._lines = owner_name(start), []


class FileJournal:
    """The segments of one process, in a directory it may share with others."""

    def __init__(self, directory: Path, wake: Callable[[], None], start: str) -> None:
        self.directory, self.reader_sleeps = directory, False
        self.owner, self._start = owner_name(start), start
        self._wake = wake
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._current: Segment | None = None
        """The one that is appended to."""
        self._segments: list[Segment] = []
        self._broken = False
        """A failure stops the trying until the reader has come by: calls must not pay for it."""
        self._rescued = MemoryJournal(wake, start)
        """Lines no file would take."""
        self._reading: Segment | MemoryJournal = self._rescued
        self._unreadable: set[Path] = set()

    def append(self, line: bytes) -> None:
        with self._lock:
            try:
                if self._current is None or not self._current.append(line):
                    self._begin_segment(len(line)).append(line)
            except (OSError, ValueError):  # ValueError: the memory was closed meanwhile
                # The next line must not stand behind half a line, so this segment has ended. Meanwhile the line goes
                # into SQL from memory, if the database still works.
                self._current, self._broken = None, True
                self._rescued.append(line)
                raise
            finally:
                if self.reader_sleeps:
                    self.reader_sleeps = False
                    self._wake()

    def backlog(self) -> int:
        return self._rescued.backlog() + sum(segment.backlog() for segment in self._segments)

    def has_enough(self) -> bool:
        return self.backlog() > 0

    def read(self) -> list[bytes]:
        self._reading = self._rescued
        if lines := self._rescued.read():
            return lines
        for segment in list(self._segments):
            has_ended = segment is not self._current  # asked before reading: nothing is added to it after that
            try:
                lines = segment.read()
            except OSError:
                logger.exception("segment=<%s> | cannot be read through its open file, left for recovery", segment.path)
                self._leave(segment)
                continue
            if lines:
                self._reading = segment
                return lines
            if has_ended:
                self._segments.remove(segment)
                segment.delete()
        return []

    def done(self) -> int:
        return self._reading.done()

    def rotate(self) -> None:
        """End a segment that somebody deleted; after a failure, allow another try."""
        with self._lock:
            self._broken = False
            if self._current is not None and not self._current.exists():
                self._current = None

    def abandoned(self) -> Iterator[Segment]:
        own = {segment.path for segment in self._segments}
        try:
            paths = sorted(p for p in self.directory.iterdir() if p not in own and p not in self._unreadable)
        except OSError:  # there is none; if there should be, whoever appends to it complains
            return
        for path in paths:
            try:
                if path.suffix == ".jsonl" and (segment := Segment.adopt(path)):
                    yield segment
                elif path.suffix == ".new" and time.time() - path.stat().st_mtime > 60:
                    path.unlink()  # its maker was killed before it could name it
            except FileNotFoundError:
                continue  # somebody else was faster
            except (StoreError, OSError) as error:
                self._unreadable.add(path)
                logger.warning("segment=<%s> | %s", path, error)

    def is_tidy(self) -> bool:
        try:
            return len(os.listdir(self.directory)) < SEGMENTS_LEFT
        except OSError:
            return True

    def close(self, *, keep: bool) -> None:
        with self._lock:
            segments, self._segments, self._current = self._segments, [], None
        for segment in segments:
            if keep or segment.backlog():
                segment.leave()
            else:
                segment.delete()

    def continue_in_child(self, start: str) -> None:
        self._lock = threading.Lock()
        for segment in self._segments:
            segment.close()  # the lock stays with the parent's file
        self._segments, self._current = [], None
        self.owner, self._start = owner_name(start), start
        self._rescued.continue_in_child(start)

    def _begin_segment(self, at_least: int) -> Segment:
        if self._broken:
            raise OSError(f"no file in {self.directory} could be written")
        make_directory(self.directory)
        segment = Segment.create(
            self.directory / f"{self._start}-{os.getpid()}-{next(self._numbers):06}.new",
            self.owner,
            max(SEGMENT_BYTES, at_least),
        )
        # In this order: the reader takes one that is not current for ended, and deletes it when it is empty.
        self._current = segment
        self._segments.append(segment)
        return segment

    def _leave(self, segment: Segment) -> None:
        with self._lock:
            self._segments.remove(segment)
            if segment is self._current:
                self._current = None
        segment.leave()


def owner_name(start: str) -> str:
    return f"{os.uname().nodename}:{os.getpid()}:{start}"
