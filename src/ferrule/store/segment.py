"""One file of a journal: locked by whoever has it open, read from its start, deleted when all of it is in SQL.

Its owner writes into memory that is mapped to the file. That costs a fraction of a system call, and the kernel has the
bytes all the same: it keeps them when the process is killed. The file's space is reserved when it is made, because a
write into memory cannot fail politely when a disk is full. What was not written yet is NUL, which stands in no JSON.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
from contextlib import suppress
from pathlib import Path

from ferrule.errors import StoreError
from ferrule.store.line import is_whole

logger = logging.getLogger("ferrule.store")

FORMAT = 1
CHUNK_BYTES = 2_000_000
"""Read, and committed, at once."""


class Segment:
    """One file of a journal, locked by whoever has it open."""

    def __init__(
        self, path: Path, fd: int, owner: str, position: int, end: int, memory: mmap.mmap | _Unmapped | None = None
    ) -> None:
        self.path, self.fd, self.owner = path, fd, owner
        self.position = position
        """Up to here everything is in SQL."""
        self._next = position
        self._end = end
        """Up to here something was written."""
        self._memory = memory
        """Only for who writes."""
        self._size = 0 if memory is None else len(memory)

    @classmethod
    def create(cls, unnamed: Path, owner: str, size: int) -> Segment:
        """A new file, which gets its real name when it is locked: nobody may take it for an abandoned one before."""
        path = unnamed.with_suffix(".jsonl")
        header = json.dumps({"ferrule_journal": FORMAT, "owner": owner}).encode() + b"\n"
        fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            memory = _reserve(fd, size + len(header))
            memory[: len(header)] = header
            unnamed.rename(path)
        except BaseException:
            os.close(fd)
            unnamed.unlink(missing_ok=True)
            raise
        return cls(path, fd, owner, len(header), len(header), memory)

    @classmethod
    def adopt(cls, path: Path) -> Segment | None:
        """The segment if it is free: its owner is dead, and nobody else is about to adopt it."""
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink == 0:
                raise FileNotFoundError(path)
            header = os.pread(fd, 4096, 0).partition(b"\n")[0]
            segment = cls(path, fd, _owner_in(header), len(header) + 1, _end_of(fd))
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        logger.info("segment=<%s>, owner=<%s> | left by a dead process, taken over", path, segment.owner)
        return segment

    def exists(self) -> bool:
        try:
            return os.fstat(self.fd).st_nlink > 0
        except OSError:
            return False

    def append(self, line: bytes) -> bool:
        """Write a line; False when there is no room left for it."""
        assert self._memory is not None, "a segment left by others is only read"
        end = self._end + len(line)
        if end > self._size:
            return False
        self._memory[self._end : end] = line
        self._end = end
        return True

    def backlog(self) -> int:
        """Bytes that are not in SQL yet."""
        return self._end - self.position

    def read(self) -> list[bytes]:
        left = self.backlog()
        size = min(CHUNK_BYTES, left)
        data = os.pread(self.fd, size, self.position)
        while b"\n" not in data and size < left:
            size = min(4 * size, left)
            data = os.pread(self.fd, size, self.position)
        end = data.rfind(b"\n") + 1
        self._next = self.position + end
        lines = data[:end].split(b"\n")[:-1]
        if self._memory is not None:  # what this process wrote is whole
            return lines
        whole = [line for line in lines if is_whole(line)]
        if len(whole) < len(lines):
            torn = len(lines) - len(whole)
            logger.warning("segment=<%s>, lines=<%d> | not written to their end, left out", self.path, torn)
        if lines and not whole:
            self.done()
            return self.read()
        return whole

    def done(self) -> int:
        read, self.position = self._next - self.position, self._next
        return read

    def delete(self) -> None:
        """Everything worth keeping was read."""
        if self.backlog():
            logger.warning("segment=<%s> | its last line was not written to the end, left out", self.path)
        self.path.unlink(missing_ok=True)
        self.close()

    def leave(self) -> None:
        """To whoever comes next, without the room that was not used."""
        with suppress(OSError):
            os.truncate(self.path, self._end)
        self.close()

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        with suppress(OSError):
            os.close(self.fd)


class _Unmapped:
    """Stands for the memory of a file on a file system that cannot map files: every line is a system call."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._size = fd, size

    def __len__(self) -> int:
        return self._size

    def __setitem__(self, where: slice, line: bytes) -> None:
        if os.pwrite(self._fd, line, where.start or 0) != len(line):
            raise OSError(f"a line of {len(line)} bytes was written only in part")

    def close(self) -> None:
        pass


def _reserve(fd: int, size: int) -> mmap.mmap | _Unmapped:
    """Memory whose every byte has its place on the disk; OSError when there is no space."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    elif os.write(fd, bytes(size)) != size:  # macOS
        raise OSError(f"no space for {size} bytes")
    try:
        return mmap.mmap(fd, size)
    except OSError:
        return _Unmapped(fd, size)


def _end_of(fd: int) -> int:
    """Where the file's last byte is that is not NUL."""
    end = os.fstat(fd).st_size
    while end > 0:
        begin = max(0, end - CHUNK_BYTES)
        if written := os.pread(fd, end - begin, begin).rstrip(b"\0"):
            return begin + len(written)
        end = begin
    return 0


def _owner_in(header: bytes) -> str:
    try:
        said = json.loads(header)
        known = said["ferrule_journal"] == FORMAT
        owner = str(said["owner"])
    except (ValueError, KeyError, TypeError):
        raise StoreError("not a journal of ferrule, left alone; delete it if nobody needs it") from None
    if not known:
        raise StoreError("written by another version of ferrule, left alone for that version to read")
    return owner
