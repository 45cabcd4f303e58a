"""Which files of a folder describe tools.

Those of the folder itself and of the folders in it, one level deep. Names that start with `.` or `_` are passed
over: editors' own files, and helpers that are there to be imported. So are Python packages (folders with an
`__init__.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

YAML_SUFFIXES: Final = frozenset({".yaml", ".yml"})
PYTHON_SUFFIXES: Final = frozenset({".py"})
TOOL_SUFFIXES: Final = YAML_SUFFIXES | PYTHON_SUFFIXES


def tool_files(directory: Path, suffixes: Collection[str] = TOOL_SUFFIXES) -> list[Path]:
    """The files that describe tools, in order of their paths."""
    return [path for path in watched_files(directory, suffixes) if not path.name.startswith("_")]


def watched_files(directory: Path, suffixes: Collection[str] = TOOL_SUFFIXES) -> list[Path]:
    """Those and the helpers they may import, in order of their paths."""
    entries = [entry for folder in tool_folders(directory) for entry in _visible(folder)]
    paths = [Path(entry.path) for entry in entries if holds(entry.is_file)]
    return sorted(path for path in paths if path.suffix.lower() in suffixes)


def tool_folders(directory: Path) -> list[Path]:
    """The folder, whether it is there or not, and those in it."""
    inner = [Path(e.path) for e in _visible(directory) if holds(e.is_dir) and not e.name.startswith("_")]
    return [directory, *(path for path in sorted(inner) if not (path / "__init__.py").exists())]


def holds(question: Callable[[], bool]) -> bool:
    """What an entry of a folder says about itself; no, where it cannot be looked at, such as a link to itself."""
    try:
        return question()
    except OSError:
        return False


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
