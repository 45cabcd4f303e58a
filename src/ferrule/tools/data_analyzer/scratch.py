"""Space on disk for one call.

A call that is killed cannot tidy up after itself, so the next one does: a folder that nobody holds a lock on is left
over.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "ferrule-data-"
_MAKING: Final = 60.0
"""Seconds in which a folder that was just made gets its lock."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that only this user can look into, and that is gone afterwards."""
    _remove_left_over(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_over(where: Path) -> None:
    for folder in where.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else's, or gone since
            found = folder.lstat()
            if found.st_uid == os.getuid() and found.st_mtime < time.time() - _MAKING:
                _remove_unless_held(folder)


def _remove_unless_held(folder: Path) -> None:
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(held)
