"""The journal: where call records wait until they are in the database.

A call's record is one line of JSON (see `encoding.py`), copied into memory that is mapped to a file before the call's
result is returned. The kernel then has it: it survives `kill -9` of the process at any time, and costs less than a
microsecond, because nothing waits for a disk or a database. A writer thread (`writer.py`) reads what was appended and
inserts it into SQL, many lines with one statement. Only after that is a line removed.

A journal is a directory of segments, `<start>-<pid>-<number>.jsonl`. Each belongs to one living process, which holds
a lock on it (`flock`) that the kernel releases when the process dies, however it dies. A segment whose lock is free was
therefore abandoned: the next process that finds it reads it from the start and deletes it. Lines are inserted by record
id and may be inserted twice, so recovery after a crash is no special case but the same code again.

A segment's first line names its owner. Every other line begins with its checksum: a line that was damaged on the disk
is not imported, and its segment stays, as `….damaged`, for a person to look at. The space of a segment is reserved when
it is created, because a write into mapped memory cannot report a full disk: it kills the process. Bytes that were not
written yet are NUL, which never occurs in JSON. So a last line without an end, or with a NUL in it, was being written
when the process was killed; its call was never acknowledged, and the line is skipped.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import mmap
import os
import threading
import time
from binascii import hexlify
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from struct import Struct
from zlib import crc32

from ferrule.errors import StoreError
from ferrule.store.location import make_directory

logger = logging.getLogger("ferrule.store")

FORMAT_VERSION = 2
"""The version in the first line of a segment."""
CHECKSUM_LENGTH = 8
"""Hexadecimal digits before each line."""
SEGMENT_BYTES = 4_000_000
"""A segment that is full is deleted as soon as it has been read, and the next one is created."""
RETRY_INTERVAL = 1.0
READ_CHUNK_BYTES = 2_000_000
"""Read, and inserted, in one transaction."""
MAX_LINES_IN_MEMORY = 200_000
MAX_DEFERRED_SEGMENTS = 64
"""Short-lived processes leave their segments to others up to this number; the next one imports them all."""
_PACK_CHECKSUM = Struct(">I").pack
LINES_TO_WAKE = 5_000
"""A memory journal wakes its reader only after this many lines; a query reads them earlier."""


class _LinesInMemory:
    """Lines in no file: they are lost with the process."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._last_read = 0

    def backlog(self) -> int:
        return len(self.lines)

    def read(self) -> list[bytes]:
        lines = self.lines[:1000]
        self._last_read = len(lines)
        return [line[:-1] for line in lines]

    def mark_read(self) -> int:
        del self.lines[: self._last_read]
        return self._last_read


class Journal:
    """The segments of one process, in a directory that several processes may share; without one, lines in memory.

    Any thread may append; everything else is for one reader at a time.
    """

    def __init__(self, directory: Path | None, wake: Callable[[], None], start: str) -> None:
        self.directory, self.reader_sleeps = directory, False
        """The reader sets `reader_sleeps`: wake it when there is enough to read."""
        self.owner, self._start = owner_name(start), start
        self._wake = wake
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._current: JournalSegment | None = None
        """The segment that is appended to."""
        self._segments: list[JournalSegment] = []
        self._failure: OSError | ValueError | None = None
        self._next_attempt = 0.0
        """After a failure no segment is created for a while: not every call shall pay for it."""
        self._memory = _LinesInMemory()
        """Lines that could not be written to a file, or all."""
        self._reading: JournalSegment | _LinesInMemory = self._memory
        self._unreadable: set[Path] = set()
        self.append = self._append_to_memory if directory is None else self._append_to_segment
        """Stores a line. Raises OSError if that is not possible."""

    def _append_to_memory(self, line: bytes) -> None:
        lines = self._memory.lines
        if (waiting := len(lines)) >= MAX_LINES_IN_MEMORY:
            raise OSError(f"{waiting} records wait in memory because the database accepts none")
        lines.append(line)
        if self.reader_sleeps and waiting >= LINES_TO_WAKE:
            self.reader_sleeps = False
            self._wake()

    def _append_to_segment(self, line: bytes) -> None:
        with self._lock:
            try:
                if self._current is None or not self._current.append(line):
                    self._create_segment(len(line)).append(line)
            except (OSError, ValueError) as error:  # ValueError: the memory was closed meanwhile
                # The next line must not follow half a line, so nothing more is appended to this segment. The line is
                # inserted from memory instead, if the database still works.
                self._current = None
                if time.monotonic() >= self._next_attempt:
                    self._failure, self._next_attempt = error, time.monotonic() + RETRY_INTERVAL
                self._append_to_memory(line)
                raise
            finally:
                if self.reader_sleeps:
                    self.reader_sleeps = False
                    self._wake()

    def ensure_segment(self) -> None:
        """Have a file, by whose lock other processes see that this one lives; OSError when there can be none."""
        with self._lock:
            if self.directory is not None and self._current is None:
                self._create_segment(0)

    def backlog(self) -> int:
        """Return how much waits to be read, in bytes or lines."""
        return self._memory.backlog() + sum(segment.backlog() for segment in self._segments)

    def has_enough_to_read(self) -> bool:
        """Return whether reading now is worth a transaction."""
        return self.backlog() >= (LINES_TO_WAKE if self.directory is None else 1)

    def read(self) -> list[bytes]:
        """Return the next lines: the same lines until `mark_read` confirms that they are in the database."""
        self._reading = self._memory
        if lines := self._memory.read():
            return lines
        for segment in list(self._segments):
            has_ended = segment is not self._current  # checked before reading: no line can follow after that
            try:
                lines = segment.read()
            except OSError:
                logger.exception("segment=<%s> | cannot be read through its open file, left for recovery", segment.path)
                with self._lock:
                    self._segments.remove(segment)
                    if segment is self._current:
                        self._current = None
                segment.abandon()
                continue
            if lines:
                self._reading = segment
                return lines
            if has_ended:
                self._segments.remove(segment)
                segment.delete()
        return []

    def mark_read(self) -> int:
        """Confirm that the lines of the last `read` are in the database; return their part of the backlog."""
        return self._reading.mark_read()

    def rotate(self) -> None:
        """Replace a segment that was deleted from outside; after a failure, allow another attempt immediately."""
        with self._lock:
            self._next_attempt = 0.0
            if self._current is not None and not self._current.exists():
                self._current = None

    def take_abandoned(self) -> Iterator[JournalSegment]:
        """Yield the segments of dead processes, oldest first. The caller ends each with `delete` or `close`.

        Raises StoreError for a segment of another format.
        """
        if self.directory is None:
            return
        own = {segment.path for segment in self._segments}
        try:
            paths = sorted(p for p in self.directory.iterdir() if p not in own and p not in self._unreadable)
        except OSError:  # it does not exist yet; if it should, `append` reports that
            return
        for path in paths:
            try:
                if path.suffix == ".jsonl" and (segment := JournalSegment.take_over(path)):
                    yield segment
                elif path.suffix == ".new" and time.time() - path.stat().st_mtime > 60:
                    path.unlink()  # its process was killed between creating and renaming it
            except FileNotFoundError:
                continue  # another process was faster
            except (ValueError, OSError) as error:
                self._unreadable.add(path)
                logger.warning("segment=<%s> | %s", path, error)

    def has_segment_of(self, owner: str) -> bool:
        """Return whether a segment of another process can be imported, now or when the process has ended."""
        return any(path not in self._unreadable for path in self._segments_of(owner))

    def is_used_by(self, owner: str) -> bool:
        """Return whether another process lives that writes to this journal."""
        return any(map(_is_locked, self._segments_of(owner)))

    def _segments_of(self, owner: str) -> Iterator[Path]:
        _, pid, start = owner.rsplit(":", 2)
        return iter(()) if self.directory is None else self.directory.glob(f"{start}-{pid}-*.jsonl")

    def has_room_for_segment(self) -> bool:
        """Return whether one more segment may be left for another process to import."""
        if self.directory is None:
            return False
        try:
            return len(os.listdir(self.directory)) < MAX_DEFERRED_SEGMENTS
        except OSError:
            return True

    def close(self, *, keep: bool) -> None:
        """Close the files. Lines that were not read, or all of them with `keep`, stay for the next process."""
        with self._lock:
            segments, self._segments, self._current = self._segments, [], None
        if self.directory is None:
            self._memory.lines.clear()
        for segment in segments:
            if keep or segment.backlog():
                segment.abandon()
            else:
                segment.delete()

    def close_files(self) -> None:
        """Close the files in a forked child. The parent process keeps them, and its locks on them."""
        for segment in self._segments:
            segment.close()

    def _create_segment(self, min_size: int) -> JournalSegment:
        assert self.directory is not None, "lines are in memory"
        if time.monotonic() < self._next_attempt:
            reason = getattr(self._failure, "strerror", None) or str(self._failure)
            raise OSError(getattr(self._failure, "errno", errno.EIO), reason, str(self.directory))
        make_directory(self.directory)
        segment = JournalSegment.create(
            self.directory / f"{self._start}-{os.getpid()}-{next(self._numbers):06}.new",
            self.owner,
            max(SEGMENT_BYTES, min_size + CHECKSUM_LENGTH),
        )
        # In this order: a segment in the list that is not the current one counts as ended, and is deleted when empty.
        self._current = segment
        self._segments.append(segment)
        return segment


def check_formats(directory: Path) -> None:
    """Raise StoreError if another version of Ferrule has written a segment."""
    for path in directory.glob("*.jsonl"):
        with suppress(ValueError, OSError), path.open("rb") as file:
            _parse_header(file.readline(4096), path)


def owner_name(start: str) -> str:
    return f"{os.uname().nodename}:{os.getpid()}:{start}"


class JournalSegment:
    """One file of a journal, locked by the process that has it open and deleted when all of it is in the database."""

    def __init__(
        self, path: Path, fd: int, owner: str, position: int, end: int, memory: mmap.mmap | _UnmappedFile | None = None
    ) -> None:
        self.path, self.fd, self.owner = path, fd, owner
        self._is_damaged = False
        self.position = position
        """Up to here everything is in the database."""
        self._next = position
        self._end = end
        """Up to here lines were written."""
        self._memory = memory
        """Only in the process that writes."""
        self._size = 0 if memory is None else len(memory)

    @classmethod
    def create(cls, temporary: Path, owner: str, size: int) -> JournalSegment:
        """Create a file. It gets its real name after it is locked, so that no process counts it as abandoned."""
        path = temporary.with_suffix(".jsonl")
        header = json.dumps({"ferrule_journal": FORMAT_VERSION, "owner": owner}).encode() + b"\n"
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            memory = _map_reserved_space(fd, size + len(header))
            memory[: len(header)] = header
            temporary.rename(path)
        except BaseException:
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise
        return cls(path, fd, owner, len(header), len(header), memory)

    @classmethod
    def take_over(cls, path: Path) -> JournalSegment | None:
        """Return the segment if its owner is dead and no other process is taking it over; else None."""
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink == 0:
                raise FileNotFoundError(path)
            header = os.pread(fd, 4096, 0).partition(b"\n")[0]
            segment = cls(path, fd, _parse_header(header, path), len(header) + 1, _find_end(fd))
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        logger.info("segment=<%s>, owner=<%s> | its process has died, taking it over", path, segment.owner)
        return segment

    def exists(self) -> bool:
        try:
            return os.fstat(self.fd).st_nlink > 0
        except OSError:
            return False

    def append(self, line: bytes) -> bool:
        """Write a line; return False without room for the line."""
        assert self._memory is not None, "a segment that was taken over is only read"
        line = hexlify(_PACK_CHECKSUM(crc32(line))) + line  # twice as fast as b"%08x"
        end = self._end + len(line)
        if end > self._size:
            return False
        self._memory[self._end : end] = line
        self._end = end
        return True

    def backlog(self) -> int:
        """Count the bytes that are not in the database yet."""
        return self._end - self.position

    def read(self) -> list[bytes]:
        backlog = self.backlog()
        size = min(READ_CHUNK_BYTES, backlog)
        data = os.pread(self.fd, size, self.position)
        while b"\n" not in data and size < backlog:  # a line longer than a chunk
            size = min(4 * size, backlog)
            data = os.pread(self.fd, size, self.position)
        end = data.rfind(b"\n") + 1
        self._next = self.position + end
        lines = data[:end].split(b"\n")[:-1]
        if self._memory is not None:  # what this process wrote is complete
            return [line[CHECKSUM_LENGTH:] for line in lines]
        complete = self._select_intact(lines)
        if lines and not complete:
            self.mark_read()
            return self.read()
        return complete

    def _select_intact(self, lines: list[bytes]) -> list[bytes]:
        """Return the complete, undamaged lines without their checksums."""
        without_gap = [line for line in lines if b"\0" not in line]
        # The checksum was computed over the line with its end, which `split` has removed.
        intact = [
            line[CHECKSUM_LENGTH:]
            for line in without_gap
            if line[:CHECKSUM_LENGTH] == hexlify(_PACK_CHECKSUM(crc32(b"\n", crc32(line[CHECKSUM_LENGTH:]))))
        ]
        if damaged := len(without_gap) - len(intact):
            self._is_damaged = True
            logger.error("segment=<%s>, lines=<%d> | damaged, not imported; the file is kept", self.path, damaged)
        if incomplete := len(lines) - len(without_gap):
            logger.warning("segment=<%s>, lines=<%d> | not written to their end, skipped", self.path, incomplete)
        return intact

    def mark_read(self) -> int:
        length, self.position = self._next - self.position, self._next
        return length

    def delete(self) -> None:
        """Delete the file: all complete lines are in the database. A damaged file gets another name instead."""
        if self.backlog():
            logger.warning("segment=<%s> | its last line was not written to its end, skipped", self.path)
        if self._is_damaged:
            self.path.rename(self.path.with_suffix(".damaged"))
        else:
            self.path.unlink(missing_ok=True)
        self.close()

    def abandon(self) -> None:
        """Leave the file for the next process, without its unused space."""
        with suppress(OSError):
            os.truncate(self.path, self._end)
        self.close()

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        with suppress(OSError):
            os.close(self.fd)


class _UnmappedFile:
    """Replaces mapped memory on a file system that cannot map files: every line is a system call."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._size = fd, size

    def __len__(self) -> int:
        return self._size

    def __setitem__(self, position: slice, line: bytes) -> None:
        if os.pwrite(self._fd, line, position.start or 0) != len(line):
            raise OSError(f"a line of {len(line)} bytes was written only in part")

    def close(self) -> None:
        pass


def _map_reserved_space(fd: int, size: int) -> mmap.mmap | _UnmappedFile:
    """Map memory to disk space that is really allocated. Raises OSError if the disk is full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    elif os.write(fd, bytes(size)) != size:  # macOS
        raise OSError(f"no space for {size} bytes")
    try:
        return mmap.mmap(fd, size)
    except OSError:
        return _UnmappedFile(fd, size)


def _find_end(fd: int) -> int:
    """Return the position after the last byte that is not NUL."""
    end = os.fstat(fd).st_size
    while end > 0:
        begin = max(0, end - READ_CHUNK_BYTES)
        if content := os.pread(fd, end - begin, begin).rstrip(b"\0"):
            return begin + len(content)
        end = begin
    return 0


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _parse_header(header: bytes, path: Path) -> str:
    """Return the owner of a segment. Raises ValueError for another kind of file, StoreError for another format."""
    try:
        fields = json.loads(header)
        version, owner = int(fields["ferrule_journal"]), str(fields["owner"])
    except (ValueError, KeyError, TypeError):
        raise ValueError("not a journal of ferrule, ignored; delete the file if it is not needed") from None
    if version != FORMAT_VERSION:
        failure = StoreError(
            f"the journal was written by another version of ferrule (it has format {version}, not {FORMAT_VERSION}): "
            "let that version import it (`ferrule calls`), or move its file away to go on without these records"
        )
        failure.add_note(str(path))
        raise failure
    return owner
