"""Whole outputs that were too long for a record, kept by their content: the same bytes are kept once.

They are kept as they are given, in files only their owner may read: whoever puts one here has taken its secrets out.
"""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ferrule.errors import StoreError
from ferrule.store.private_files import make_directory

BYTES_IN_MEMORY = 64_000_000
JUST_WRITTEN = 3600.0
"""Seconds in which an artifact is not deleted: the record that refers to it may still be on its way."""

_ID = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    artifact_id: str
    size: int
    media_type: str


class ArtifactStore:
    """A directory of artifacts; without a directory the newest ones in memory."""

    def __init__(self, directory: Path | None = None, *, bytes_in_memory: int = BYTES_IN_MEMORY) -> None:
        self._directory = directory
        self._bytes_in_memory = bytes_in_memory
        self._memory: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, data: bytes, media_type: str) -> Artifact:
        artifact_id = sha256(data).hexdigest()
        try:
            if self._directory is None:
                self._remember(artifact_id, data)
            else:
                _write_file(self._path(self._directory, artifact_id), data)
        except OSError as error:
            raise StoreError(f"an output of {len(data)} bytes cannot be kept: {error}") from error
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
        """Delete what no record refers to; False when it is not there, or too new to be sure."""
        if self._directory is None:
            return self._memory.pop(artifact_id, None) is not None
        path = self._path(self._directory, artifact_id)
        try:
            if time.time() - path.stat().st_mtime < JUST_WRITTEN:
                return False
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def _remember(self, artifact_id: str, data: bytes) -> None:
        with self._lock:
            self._memory.pop(artifact_id, None)
            self._memory[artifact_id] = data
            total = sum(map(len, self._memory.values()))
            while total > self._bytes_in_memory and len(self._memory) > 1:
                total -= len(self._memory.pop(next(iter(self._memory))))

    @staticmethod
    def _path(directory: Path, artifact_id: str) -> Path:
        # An id comes from outside: it must never lead out of the directory.
        if not _ID.match(artifact_id):
            raise StoreError(f"{artifact_id!r} is not the id of an artifact (64 hexadecimal digits)")
        return directory / artifact_id[:2] / artifact_id


def _write_file(path: Path, data: bytes) -> None:
    try:
        os.utime(path)  # it is there; from now on it counts as just written
        return
    except FileNotFoundError:
        make_directory(path.parent)
    unnamed = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        unnamed.rename(path)
    except BaseException:
        unnamed.unlink(missing_ok=True)
        raise
