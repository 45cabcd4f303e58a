"""Whole outputs that were too long for a record, stored by the hash of their content: equal bytes are stored once.

They are stored unchanged, in files only their owner may read; the caller of `add` has removed secrets before.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import StoreError
from ferrule.store.location import atomic_write

MAX_MEMORY_BYTES = 64_000_000
MIN_AGE_TO_DELETE = 3600.0
"""Seconds: a newer artifact is not deleted, because the record that refers to it may not be in the database yet."""

_ID = lazy_pattern(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    artifact_id: str
    size: int
    media_type: str


class ArtifactStore:
    """A directory of artifacts; without a directory the newest ones in memory."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._memory: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def add(self, data: bytes, media_type: str) -> Artifact:
        artifact_id = sha256(data).hexdigest()
        try:
            if self._directory is None:
                with self._lock:
                    self._memory.pop(artifact_id, None)
                    self._memory[artifact_id] = data
                    total = sum(map(len, self._memory.values()))
                    while total > MAX_MEMORY_BYTES and len(self._memory) > 1:
                        total -= len(self._memory.pop(next(iter(self._memory))))
            else:
                path = self._path(self._directory, artifact_id)
                try:
                    os.utime(path)  # it exists already; from now on it counts as new
                except FileNotFoundError:
                    atomic_write(path, data)
        except OSError as error:
            raise StoreError(f"an output of {len(data)} bytes cannot be stored: {error.strerror}") from error
        return Artifact(artifact_id=artifact_id, size=len(data), media_type=media_type)

    def get(self, artifact_id: str) -> bytes:
        try:
            if self._directory is None:
                return self._memory[artifact_id]
            return self._path(self._directory, artifact_id).read_bytes()
        except (KeyError, FileNotFoundError):
            raise StoreError(
                f"no artifact {artifact_id!r}; it may have been deleted together with its record"
            ) from None

    def remove(self, artifact_id: str) -> bool:
        """Delete an artifact without records; False when it does not exist or is too new to be deleted safely."""
        if self._directory is None:
            return self._memory.pop(artifact_id, None) is not None
        if not self.can_remove(artifact_id):
            return False
        self._path(self._directory, artifact_id).unlink(missing_ok=True)
        return True

    def can_remove(self, artifact_id: str) -> bool:
        """Return whether `remove` would delete the artifact."""
        if self._directory is None:
            return artifact_id in self._memory
        try:
            return time.time() - self._path(self._directory, artifact_id).stat().st_mtime >= MIN_AGE_TO_DELETE
        except FileNotFoundError:
            return False

    def list_older_than(self, timestamp: float) -> Iterator[str]:
        """Yield the artifacts that were last written before a time. Artifacts in memory are never listed."""
        for path in self._directory.glob("??/*") if self._directory is not None else ():
            with suppress(FileNotFoundError):
                if _ID.match(path.name) and path.stat().st_mtime < timestamp:
                    yield path.name

    @staticmethod
    def _path(directory: Path, artifact_id: str) -> Path:
        # An id comes from a caller: it must never lead out of the directory.
        if not _ID.match(artifact_id):
            raise StoreError(f"{artifact_id!r} is not the id of an artifact (64 hexadecimal digits)")
        return directory / artifact_id[:2] / artifact_id
