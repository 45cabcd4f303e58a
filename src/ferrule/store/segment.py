"""One file of a journal: locked by whoever has it open, read from its start, deleted when all of it is in SQL."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from ferrule.errors import StoreError
from ferrule.store.line import is_whole

logger = logging.getLogger("ferrule.store")

FORMAT = 1
CHUNK_BYTES = 500_000
"""Read, and committed, at once."""


class Segment:
    """One file of a journal, locked by whoever has it open."""

    def __init__(self, path: Path, fd: int, owner: str, position: int) -> None:
        self.path, self.fd, self.owner = path, fd, owner
        self.position = position
        """Up to here everything is in SQL."""
        self._next = position

    @classmethod
    def create(cls, unnamed: Path, owner: str) -> Segment:
        """A new file, which gets its real name when it is locked: nobody may take it for an abandoned one before."""
        path = unnamed.with_suffix(".jsonl")
        header = json.dumps({"ferrule_journal": FORMAT, "owner": owner}).encode() + b"\n"
        fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.write(fd, header) != len(header):
                raise OSError(f"no space for {unnamed}")
            unnamed.rename(path)
        except BaseException:
            os.close(fd)
            unnamed.unlink(missing_ok=True)
            raise
        return cls(path, fd, owner, len(header))

    @classmethod
    def adopt(cls, path: Path) -> Segment | None:
        """The segment if it is free: its owner is dead, and nobody else is about to adopt it."""
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink == 0:
                raise FileNotFoundError(path)
            header = os.pread(fd, 4096, 0).partition(b"\n")[0]
            segment = cls(path, fd, _owner_in(header), len(header) + 1)
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

    def backlog(self) -> int:
        """Bytes that are not in SQL yet."""
        try:
            return os.fstat(self.fd).st_size - self.position
        except OSError:  # reading it will tell
            return 1

    def read(self) -> list[bytes]:
        size = CHUNK_BYTES
        data = os.pread(self.fd, size, self.position)
        while b"\n" not in data and len(data) == size:
            size *= 4
            data = os.pread(self.fd, size, self.position)
        end = data.rfind(b"\n") + 1
        self._next = self.position + end
        lines = [line for line in data[:end].split(b"\n") if line]
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

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.fd)


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
