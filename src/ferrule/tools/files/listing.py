"""`list_workspace_files`, and going through the folders of a workspace."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from ferrule.errors import CallError
from ferrule.sources.tool_options import tool
from ferrule.spec import ToolCategory
from ferrule.tools.files.globs import matcher, reaches_deeper
from ferrule.tools.files.workspace import HISTORIES, TEMPORARY, Parts, Workspace, sayable, shown

MOST_SEEN: Final = 300_000
"""Names that one call looks at."""
_MOST_LISTED: Final = 1_000
_NOISE: Final = frozenset({"node_modules", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something in a folder."""

    parts: Parts
    kind: str
    """`file`, `folder`, `link` or `special`."""


class Walk:
    """Goes through a folder, what stands higher first, and remembers whether it came to the end."""

    def __init__(self, workspace: Workspace, *, hidden: bool, recursive: bool) -> None:
        self._workspace, self._hidden, self._recursive = workspace, hidden, recursive
        self._seen = 0
        self.is_complete = True

    def entries(self, start: Parts) -> Iterator[Entry]:
        waiting = deque([start])
        while waiting:
            here = waiting.popleft()
            for entry in self._in_folder(here, is_start=here == start):
                yield entry
                if entry.kind == "folder" and self._recursive and entry.parts[-1] not in HISTORIES:
                    waiting.append(entry.parts)

    def _in_folder(self, here: Parts, *, is_start: bool) -> list[Entry]:
        """Of one folder, in order; it is read whole and closed again, so that no deep tree keeps many of them open."""
        try:
            with self._workspace.folder(here) as folder, os.scandir(folder) as entries:
                found = [
                    Entry(parts=(*here, entry.name), kind=_kind(entry))
                    for entry in islice(entries, MOST_SEEN - self._seen)
                    if self._is_wanted(entry.name)
                ]
                self._seen += len(found)
                self.is_complete = self.is_complete and next(entries, None) is None
        except (CallError, OSError):
            if is_start:
                raise
            self.is_complete = False  # gone since, or not ours to read
            return []
        return sorted(found, key=lambda entry: entry.parts)

    def _is_wanted(self, name: str) -> bool:
        if name.startswith(TEMPORARY):
            return False
        return self._hidden or not (name.startswith(".") or name in _NOISE)


@tool(
    category=ToolCategory.FILE_MANAGEMENT,
    tags=["files", "folder", "directory", "list", "workspace", "文件", "目录"],
    read_only=True,
    idempotent=True,
    isolation="process",
    max_output=400_000,
    examples=[{}, {"path": "docs", "recursive": True}, {"pattern": "src/**/*.py"}],
)
def list_workspace_files(
    workspace: Workspace,
    path: str = ".",
    pattern: str | None = None,
    recursive: bool = False,
    hidden: bool = False,
    limit: int = 200,
) -> dict[str, Any]:
    """List the files and folders of the workspace. 列出工作区的文件和文件夹。

    Args:
        path: the folder path to look into, from the workspace down
        pattern: only what matches, such as *.py, docs/*.md or src/**/*.{yaml,yml}
        recursive: look into the folders in it too
        hidden: with names that begin with a dot, node_modules and __pycache__
        limit: how many to list at most, up to 1000
    """
    start = workspace.parts(path)
    fits = matcher(pattern) if pattern else None
    walk = Walk(workspace, hidden=hidden, recursive=recursive or bool(pattern and reaches_deeper(pattern)))
    most = min(max(limit, 1), _MOST_LISTED)
    listed: list[dict[str, Any]] = []
    total = 0
    for entry in walk.entries(start):
        if fits is None or fits(entry.parts[len(start) :]):
            total += 1
            if len(listed) < most:
                listed.append(_described(workspace, entry))
    told: dict[str, Any] = {"path": shown(start), "files": listed, "total": total}
    if total > len(listed):
        told["left_out"] = f"{total - len(listed):,} more: look into one folder, or give a pattern"
    if not walk.is_complete:
        told["incomplete"] = f"some folders cannot be read, or there are more than {MOST_SEEN:,} names"
    return told


def _described(workspace: Workspace, entry: Entry) -> dict[str, Any]:
    said: dict[str, Any] = {"path": shown(entry.parts), "type": entry.kind}
    if sayable(entry.parts[-1]) != entry.parts[-1]:
        said["note"] = "the name is not valid UTF-8, so it cannot be given back"
    if entry.kind == "file":
        try:
            with workspace.folder(entry.parts[:-1]) as folder:
                found = os.stat(entry.parts[-1], dir_fd=folder, follow_symlinks=False)
        except (CallError, OSError):
            return said  # gone since
        said |= {"size": found.st_size, "modified": moment_of(found)}
    return said


def moment_of(found: os.stat_result) -> str:
    """When something was changed; some file systems have dates that no calendar has."""
    try:
        return datetime.fromtimestamp(int(found.st_mtime), UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return "unknown"


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "special"
