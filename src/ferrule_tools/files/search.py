"""`search_files`: finds files by name and by content.

It runs in a separate process, which can be killed if a caller's regular expression takes forever.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from ferrule.core.spec import ToolCategory
from ferrule.errors import CallError, Retry
from ferrule.kinds.function.decorator import tool
from ferrule.texts.shorten import cut
from ferrule_tools.files.content import detect_content
from ferrule_tools.files.path_rules import Parts, compile_pattern, is_recursive_pattern
from ferrule_tools.files.workspace import (
    MAX_NAMES_READ,
    FolderEntry,
    FolderWalk,
    Workspace,
    display_path,
    to_valid_utf8,
)

_MAX_LISTED: Final = 1_000


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
    """Format the time of the last change; some file systems have dates that Python cannot represent."""
    try:
        return datetime.fromtimestamp(int(status.st_mtime), UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return "unknown"


# search_files

SEARCH_TIMEOUT: Final = 30.0
"""Seconds a search may take."""
_SEARCH_SHARE: Final = 0.7
"""The share of its timeout after which a search returns the matches so far."""
_MAX_FILE: Final = 10_000_000
"""Bytes; larger files are not searched."""
_SAMPLE_SIZE: Final = 65_536
_MAX_QUERY: Final = 1_000
_MAX_SHOWN: Final = 300
"""Characters of a line that are shown, around the match."""
_MAX_MATCHES: Final = 1_000
_MAX_CONTEXT: Final = 10
_MAX_CHARACTERS: Final = 60_000


@dataclass(slots=True, kw_only=True)
class _Search:
    """The limits of a search, and what it has found so far."""

    workspace: Workspace
    max_matches: int
    context_lines: int
    deadline: float
    names: list[str] = field(default_factory=list)
    matches: list[dict[str, Any]] = field(default_factory=list)
    characters: int = 0
    searched: int = 0
    binary: int = 0
    too_large: list[str] = field(default_factory=list)
    unreadable: int = 0

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.deadline

    @property
    def is_full(self) -> bool:
        return max(len(self.names), len(self.matches)) >= self.max_matches or self.characters > _MAX_CHARACTERS

    def search_file(self, parts: Parts, pattern: re.Pattern[str]) -> None:
        text = self._read_text(parts)
        if text is None:
            return
        self.searched += 1
        lines, count = text.split("\n"), self.context_lines
        for number, line in enumerate(lines):
            match = pattern.search(line)
            if match is None:
                continue
            before = [cut(each.rstrip("\r"), _MAX_SHOWN) for each in lines[max(number - count, 0) : number]]
            after = [cut(each.rstrip("\r"), _MAX_SHOWN) for each in lines[number + 1 : number + 1 + count]]
            excerpt = _excerpt(line, match)
            output = {"path": display_path(parts), "line": number + 1, "text": excerpt}
            self.matches.append({**output, "before": before, "after": after} if count else output)
            self.characters += sum(map(len, (excerpt, *before, *after)))
            if self.is_full or self.is_late:
                return

    def _read_text(self, parts: Parts) -> str | None:
        """Read the text of a file; None, and a note, if the file cannot be searched."""
        try:
            with self.workspace.open_file(parts) as file:
                if os.fstat(file.fileno()).st_size > _MAX_FILE:
                    self.too_large.append(display_path(parts))
                    return None
                sample = file.read(_SAMPLE_SIZE)
                kind = detect_content(sample, parts[-1], is_whole=len(sample) < _SAMPLE_SIZE)
                if kind.encoding is None:
                    self.binary += 1
                    return None
                return (sample + file.read(_MAX_FILE)).decode(kind.encoding, "replace")
        except (CallError, OSError):
            self.unreadable += 1  # removed meanwhile, or not readable
            return None


@tool(
    category=ToolCategory.FILE_MANAGEMENT,
    tags=["files", "search", "grep", "glob", "find", "text", "workspace", "文件", "搜索"],
    timeout=SEARCH_TIMEOUT,
    read_only=True,
    idempotent=True,
    isolation="process",
    max_output=400_000,
    examples=[
        {"query": "TODO", "files": "*.py"},
        {"query": r"def \w+_all\(", "regex": True, "context": 2},
        {"files": "**/*.{yaml,yml}"},
    ],
)
def search_files(
    workspace: Workspace,
    query: str | None = None,
    files: str | None = None,
    path: str = ".",
    regex: bool = False,
    case_sensitive: bool = False,
    context: int = 0,
    limit: int = 100,
    hidden: bool = False,
) -> dict[str, Any]:
    """Search the files of the workspace for text, or for names. 在工作区的文件中搜索文本或文件名。

    Binary files and folders such as .git are skipped.

    Args:
        query: the text to look for, line by line; left out, only names are searched
        files: a pattern of their names, such as *.py or docs/**/*.md
        path: the folder path to search in, relative to the workspace
        regex: the query is a regular expression
        case_sensitive: distinguish upper and lower case
        context: how many lines to show before and after each match, up to 10
        limit: how many matches to return at most, up to 1000
        hidden: include names that begin with a dot, node_modules and __pycache__
    """
    if not query and not files:
        raise Retry("Say what to look for: text as query, names as files, or both.")
    start = workspace.parts(path)
    matches_name = compile_pattern(files) if files else None
    pattern = _compile_query(query, regex, case_sensitive) if query else None
    search = _Search(
        workspace=workspace,
        max_matches=min(max(limit, 1), _MAX_MATCHES),
        context_lines=min(max(context, 0), _MAX_CONTEXT),
        deadline=time.monotonic() + _SEARCH_SHARE * SEARCH_TIMEOUT,
    )
    walk = FolderWalk(workspace, hidden=hidden, recursive=True)
    for entry in walk.entries(start):
        if entry.kind != "file" or (matches_name is not None and not matches_name(entry.parts[len(start) :])):
            continue
        if pattern is None:
            search.names.append(display_path(entry.parts))
        else:
            search.search_file(entry.parts, pattern)
        if search.is_full or search.is_late:
            break
    output: dict[str, Any] = {"files": search.names}
    if pattern is not None:
        output = {"matches": search.matches, "files_searched": search.searched}
        counts = {"binary": search.binary, "unreadable": search.unreadable, "too_large": search.too_large[:10]}
        if skipped := {name: count for name, count in counts.items() if count}:
            output["skipped"] = skipped
    if search.is_late:
        output["incomplete"] = (
            f"it was stopped after {_SEARCH_SHARE * SEARCH_TIMEOUT:g} seconds: name a folder or a pattern of files"
        )
    elif search.is_full:
        output["incomplete"] = "there may be more: narrow the search, or raise limit"
    elif not walk.is_complete:
        output["incomplete"] = f"some folders cannot be read, or there are more than {MAX_NAMES_READ:,} names"
    return output


def _compile_query(query: str, regex: bool, case_sensitive: bool) -> re.Pattern[str]:
    if len(query) > _MAX_QUERY:
        raise Retry(f"The query has {len(query):,} characters: look for something shorter.")
    if "\n" in query:
        raise Retry("The query goes over several lines, but lines are searched one by one: look for one of them.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # syntax that later versions of Python may read differently
            return re.compile(query if regex else re.escape(query), 0 if case_sensitive else re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise Retry(f"{query!r} is not a regular expression: {error}. Leave regex out to search literally.") from None


def _excerpt(line: str, match: re.Match[str]) -> str:
    if len(line) <= _MAX_SHOWN:
        return line.rstrip("\r")
    start = max(0, min(match.start() - _MAX_SHOWN // 3, len(line) - _MAX_SHOWN))
    return f"{'…' if start else ''}{line[start : start + _MAX_SHOWN]}{'…' if start + _MAX_SHOWN < len(line) else ''}"
