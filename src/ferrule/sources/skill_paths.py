"""Where skills stand in a folder: Python files at its top, and folders with a `SKILL.md` at any depth that people use.

What lies inside a skill belongs to it and is not searched. Hidden folders are passed over, unless one of them is the
very folder that was asked for (`.claude/skills`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ferrule.sources.folder import PYTHON_SUFFIXES, holds

DOCUMENTS: Final = ("SKILL.md", "skill.md")
MAX_DEPTH: Final = 5
_PASSED_OVER: Final = frozenset({"node_modules", "__pycache__"})


def document_in(folder: Path) -> Path | None:
    """The `SKILL.md` of a folder, if it has one."""
    return next((path for name in DOCUMENTS if os.path.lexists(path := folder / name)), None)


def skill_files(directory: Path) -> list[Path]:
    """The files that bring skills, in order of their paths."""
    return [path for path in watched_skill_files(directory) if not path.name.startswith("_")]


def watched_skill_files(directory: Path) -> list[Path]:
    """Those and the helpers that Python files may import, in order of their paths."""
    documents = [path for folder in skill_folders(directory) if (path := document_in(folder)) is not None]
    if document_in(directory) is not None:
        return documents
    python = [Path(entry.path) for entry in _entries(directory) if holds(entry.is_file)]
    return sorted([*documents, *(path for path in python if path.suffix.lower() in PYTHON_SUFFIXES)])


def skill_folders(directory: Path) -> list[Path]:
    """The folder, whether it is there or not, and those in it that are or may hold skills."""
    return list(_folders(directory, MAX_DEPTH, set()))


def _folders(folder: Path, depth: int, seen: set[str]) -> Iterator[Path]:
    yield folder
    real = os.path.realpath(folder)
    if depth == 0 or real in seen or document_in(folder) is not None:
        return
    seen.add(real)
    for path in sorted(entry.path for entry in _entries(folder) if _may_hold_skills(entry)):
        with suppress(OSError):  # what cannot be read must not hide the others
            yield from _folders(Path(path), depth - 1, seen)


def _may_hold_skills(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith("_") and entry.name not in _PASSED_OVER and holds(entry.is_dir)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
