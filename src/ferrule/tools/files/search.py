"""`search_files`: files by their names, and by what stands in them.

It runs in a process of its own: what a caller writes as a regular expression may take for ever, and is killed then.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from dataclasses import dataclass, field
from typing import Any, Final

from ferrule.errors import CallError, Retry
from ferrule.sources.tool_options import tool
from ferrule.spec import ToolCategory
from ferrule.tools.files.encodings import look_at
from ferrule.tools.files.globs import matcher
from ferrule.tools.files.listing import MOST_SEEN, Walk
from ferrule.tools.files.workspace import Parts, Workspace, shown

LIMIT: Final = 30.0
"""Seconds a search may take."""
_SHARE: Final = 0.7
"""Of its time, after which it tells what it has found so far."""
_LARGEST: Final = 10_000_000
"""Bytes of a file that is searched."""
_SAMPLE: Final = 65_536
_LONGEST_QUERY: Final = 1_000
_SHOWN: Final = 300
"""Characters of a line that are shown, around the match."""
_MOST: Final = 1_000
_MOST_CONTEXT: Final = 10
_MOST_CHARACTERS: Final = 60_000


@dataclass(slots=True)
class _Findings:
    matches: list[dict[str, Any]] = field(default_factory=list)
    searched: int = 0
    binary: int = 0
    too_large: list[str] = field(default_factory=list)
    unreadable: int = 0
    characters: int = 0

    def add(self, match: dict[str, Any]) -> None:
        self.matches.append(match)
        self.characters += sum(map(len, (match["text"], *match.get("before", ()), *match.get("after", ()))))

    def skipped(self) -> dict[str, Any]:
        said = {"binary": self.binary, "unreadable": self.unreadable, "too_large": self.too_large[:10]}
        return {name: count for name, count in said.items() if count}


@tool(
    category=ToolCategory.FILE_MANAGEMENT,
    tags=["files", "search", "grep", "glob", "find", "text", "workspace", "文件", "搜索"],
    timeout=LIMIT,
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

    Binary files and histories such as .git are passed over.

    Args:
        query: the text to look for, line by line; left out, only names are looked for
        files: a pattern of their names, such as *.py or docs/**/*.md
        path: the folder path to search in, from the workspace down
        regex: the query is a regular expression
        case_sensitive: capital letters are not the same as small ones
        context: how many lines to show before and after each match, up to 10
        limit: how many matches to give at most, up to 1000
        hidden: with names that begin with a dot, node_modules and __pycache__
    """
    if not query and not files:
        raise Retry("Say what to look for: text as query, names as files, or both.")
    start = workspace.parts(path)
    fits = matcher(files) if files else None
    wanted = _compiled(query, regex, case_sensitive) if query else None
    most, around = min(max(limit, 1), _MOST), min(max(context, 0), _MOST_CONTEXT)
    until = time.monotonic() + _SHARE * LIMIT
    walk = Walk(workspace, hidden=hidden, recursive=True)
    found, names, is_late = _Findings(), list[str](), False
    for entry in walk.entries(start):
        if entry.kind != "file" or (fits is not None and not fits(entry.parts[len(start) :])):
            continue
        if wanted is None:
            names.append(shown(entry.parts))
        else:
            _search(workspace, entry.parts, wanted, around, most, until, found)
        is_late = time.monotonic() > until
        if is_late or max(len(names), len(found.matches)) >= most or found.characters > _MOST_CHARACTERS:
            break
    told: dict[str, Any] = {"files": names} if wanted is None else _told(found)
    if is_late:
        told["incomplete"] = f"it was stopped after {_SHARE * LIMIT:g} seconds: name a folder or a pattern of files"
    elif max(len(names), len(found.matches)) >= most or found.characters > _MOST_CHARACTERS:
        told["incomplete"] = "there may be more: narrow the search, or raise limit"
    elif not walk.is_complete:
        told["incomplete"] = f"some folders cannot be read, or there are more than {MOST_SEEN:,} names"
    return told


def _told(found: _Findings) -> dict[str, Any]:
    told: dict[str, Any] = {"matches": found.matches, "files_searched": found.searched}
    if skipped := found.skipped():
        told["skipped"] = skipped
    return told


def _compiled(query: str, regex: bool, case_sensitive: bool) -> re.Pattern[str]:
    if len(query) > _LONGEST_QUERY:
        raise Retry(f"The query has {len(query):,} characters: look for something shorter.")
    if "\n" in query:
        raise Retry("The query goes over several lines, but lines are searched one by one: look for one of them.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what later versions of Python may read in another way
            return re.compile(query if regex else re.escape(query), 0 if case_sensitive else re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise Retry(f"{query!r} is no regular expression: {error}. Leave regex out to look for it as it is.") from None


def _search(
    workspace: Workspace,
    parts: Parts,
    wanted: re.Pattern[str],
    around: int,
    most: int,
    until: float,
    found: _Findings,
) -> None:
    text = _text_of(workspace, parts, found)
    if text is None:
        return
    found.searched += 1
    lines = text.split("\n")
    for number, line in enumerate(lines):
        match = wanted.search(line)
        if match is None:
            continue
        said: dict[str, Any] = {"path": shown(parts), "line": number + 1, "text": _excerpt(line, match)}
        if around:
            said["before"] = [_cut(each) for each in lines[max(number - around, 0) : number]]
            said["after"] = [_cut(each) for each in lines[number + 1 : number + 1 + around]]
        found.add(said)
        if len(found.matches) >= most or found.characters > _MOST_CHARACTERS or time.monotonic() > until:
            return


def _text_of(workspace: Workspace, parts: Parts, found: _Findings) -> str | None:
    """The text of a file; None, and a note of it, when it is not one to search."""
    try:
        with workspace.open_file(parts) as opened, open(opened, "rb", closefd=False) as file:
            if os.fstat(opened).st_size > _LARGEST:
                found.too_large.append(shown(parts))
                return None
            sample = file.read(_SAMPLE)
            kind = look_at(sample, parts[-1], is_whole=len(sample) < _SAMPLE)
            if kind.encoding is None:
                found.binary += 1
                return None
            return (sample + file.read(_LARGEST)).decode(kind.encoding, "replace")
    except (CallError, OSError):
        found.unreadable += 1  # gone since, or not ours to read
        return None


def _excerpt(line: str, match: re.Match[str]) -> str:
    if len(line) <= _SHOWN:
        return line.rstrip("\r")
    start = max(0, min(match.start() - _SHOWN // 3, len(line) - _SHOWN))
    return f"{'…' if start else ''}{line[start : start + _SHOWN]}{'…' if start + _SHOWN < len(line) else ''}"


def _cut(line: str) -> str:
    return line.rstrip("\r") if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
