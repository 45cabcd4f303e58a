"""`list_workspace_files`, and walking through the folders of a workspace."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from ferrule.core.spec import ToolCategory
from ferrule.errors import CallError
from ferrule.kinds.function.decorator import tool
from ferrule_tools.files.path_rules import Parts, compile_pattern, is_recursive_pattern
from ferrule_tools.files.workspace import (
    REPOSITORY_FOLDERS,
    TEMPORARY_PREFIX,
    Workspace,
    display_path,
    to_valid_utf8,
)

MAX_NAMES_READ: Final = 300_000
"""Names that one call reads."""
_MAX_LISTED: Final = 1_000
_IGNORED_NAMES: Final = frozenset({"node_modules", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderEntry:
    """A file, folder, link or other entry of a folder."""

    parts: Parts
    kind: str
    """`file`, `folder`, `link` or `special`."""


class FolderWalk:
    """Walks through a folder breadth-first, and remembers whether it saw everything."""

    def __init__(self, workspace: Workspace, *, hidden: bool, recursive: bool) -> None:
        self._workspace, self._hidden, self._recursive = workspace, hidden, recursive
        self._names_read = 0
        self.is_complete = True

    def entries(self, start: Parts) -> Iterator[FolderEntry]:
        remaining = deque([start])
        while remaining:
            here = remaining.popleft()
            for entry in self._in_folder(here, is_start=here == start):
                yield entry
                if entry.kind == "folder" and self._recursive and entry.parts[-1] not in REPOSITORY_FOLDERS:
                    remaining.append(entry.parts)

    def _in_folder(self, here: Parts, *, is_start: bool) -> list[FolderEntry]:
        """The entries of one folder, sorted. It is closed again, so that a deep tree does not keep many open."""
        is_secret = self._workspace.secret.name_matcher(here)
        try:
            with self._workspace.open_folder(here) as folder, os.scandir(folder) as entries:
                included = [
                    FolderEntry(parts=(*here, entry.name), kind=_entry_kind(entry))
                    for entry in islice(entries, MAX_NAMES_READ - self._names_read)
                    if self._is_included(entry.name) and not is_secret(entry.name)
                ]
                self._names_read += len(included)
                self.is_complete = self.is_complete and next(entries, None) is None
        except (CallError, OSError):
            if is_start:
                raise
            self.is_complete = False  # removed meanwhile, or not readable
            return []
        return sorted(included, key=lambda entry: entry.parts)

    def _is_included(self, name: str) -> bool:
        if name.startswith(TEMPORARY_PREFIX):
            return False
        return self._hidden or not (name.startswith(".") or name in _IGNORED_NAMES)


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
        path: the folder path, relative to the workspace
        pattern: list only matches, such as *.py, docs/*.md or src/**/*.{yaml,yml}
        recursive: include subfolders
        hidden: include names that begin with a dot, node_modules and __pycache__
        limit: how many to list at most, up to 1000
    """
    start = workspace.parts(path)
    matches = compile_pattern(pattern) if pattern else None
    walk = FolderWalk(workspace, hidden=hidden, recursive=recursive or bool(pattern and is_recursive_pattern(pattern)))
    max_listed = min(max(limit, 1), _MAX_LISTED)
    listed: list[dict[str, Any]] = []
    total = 0
    for entry in walk.entries(start):
        if matches is None or matches(entry.parts[len(start) :]):
            total += 1
            if len(listed) < max_listed:
                listed.append(_describe_entry(workspace, entry))
    output: dict[str, Any] = {"path": display_path(start), "files": listed, "total": total}
    if total > len(listed):
        output["left_out"] = f"{total - len(listed):,} more: look into one folder, or give a pattern"
    if not walk.is_complete:
        output["incomplete"] = f"some folders cannot be read, or there are more than {MAX_NAMES_READ:,} names"
    return output


def _describe_entry(workspace: Workspace, entry: FolderEntry) -> dict[str, Any]:
    description: dict[str, Any] = {"path": display_path(entry.parts), "type": entry.kind}
    if to_valid_utf8(entry.parts[-1]) != entry.parts[-1]:
        description["note"] = "the name is not valid UTF-8, so it cannot be given back"
    if entry.kind == "file":
        try:
            with workspace.open_folder(entry.parts[:-1]) as folder:
                status = os.stat(entry.parts[-1], dir_fd=folder, follow_symlinks=False)
        except (CallError, OSError):
            return description  # removed meanwhile
        description |= {"size": status.st_size, "modified": format_modified_time(status)}
    return description


def format_modified_time(status: os.stat_result) -> str:
    """The time of the last change; some file systems have dates that Python cannot represent."""
    try:
        return datetime.fromtimestamp(int(status.st_mtime), UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return "unknown"


def _entry_kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "special"
