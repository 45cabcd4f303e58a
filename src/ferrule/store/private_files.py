"""Records are for their owner: folders and files that are made here are not readable by others."""

from __future__ import annotations

import os
from pathlib import Path


def make_directory(path: Path) -> None:
    """The directory and those above it, as far as they are not there. Others are left as they are."""
    if not path.is_dir():
        make_directory(path.parent)  # `mkdir(parents=True)` would make these for everybody
        path.mkdir(mode=0o700, exist_ok=True)


def make_file(path: Path) -> None:
    """An empty file, if there is none. What SQLite puts beside a database may be read by whom the database may."""
    make_directory(path.parent)
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
