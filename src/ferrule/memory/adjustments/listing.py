"""Names of files in what was observed: listings, `find`, trees, JSON, error messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

MOST_NAMES: Final = 20_000
_MOST_NODES: Final = 100_000
_LONGEST_LINE: Final = 2000
_MOST_BLANKS: Final = 4
"""In a name; a line with more of them is a sentence."""
_LONG_LISTING = re.compile(r"[-dlbcps][-rwxsStT]{9}[.+@]?\s+\d+\s+\S+\s+\S+\s+[\d.,]+[KMGT]?\s+\S+\s+\S+\s+\S+\s+")
_BEFORE_A_NAME = re.compile(r"(?:\[(?:FILE|DIR)\]|[\s│├└─|`+*•>-]|\d+[.)]\s)+")
_LOOKS_LIKE_A_PATH = re.compile(r"[^\s\"'`,;:()\[\]{}<>|“”‘’，；：]*[/.][^\s\"'`,;:()\[\]{}<>|“”‘’，；：]+")
_NAME_KEYS: Final = ("path", "name", "file", "filename", "full_path")


def names_in(error: str, observations: Iterable[str]) -> list[str]:
    """Every name that may be a file or folder, as it is written there, each once."""
    found: dict[str, None] = dict.fromkeys(_paths_in(error))
    for text in observations:
        for name in _names_of(text):
            found[name] = None
            if len(found) >= MOST_NAMES:
                return list(found)
    return list(found)


def _names_of(text: str) -> Iterator[str]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            yield from _of_json(json.loads(text))
        except (ValueError, RecursionError):
            pass
        else:
            return
    folder = ""
    for line in text.splitlines():
        line = line[:_LONGEST_LINE].strip()
        if not line:
            folder = ""
        elif line.endswith(":") and "/" in line and " " not in line:  # a folder's heading in `ls -R`
            folder = line[:-1].rstrip("/").removeprefix("./") + "/"
        else:
            yield from _of_line(line, folder)


def _of_line(line: str, folder: str) -> Iterator[str]:
    details = _LONG_LISTING.match(line)
    name = line[details.end() :] if details else line
    marks = _BEFORE_A_NAME.match(name)
    whole = name[marks.end() if marks else 0 :].split(" -> ")[0].strip("\"'` ")
    if whole and whole.count(" ") <= _MOST_BLANKS:
        yield folder + whole.removeprefix("./")
    for path in _paths_in(line):
        yield folder + path


def _paths_in(prose: str) -> Iterator[str]:
    for token in _LOOKS_LIKE_A_PATH.findall(prose):
        written = token.rstrip(".").removeprefix("./")
        if written:
            yield written


def _of_json(value: Any) -> Iterator[str]:
    waiting = [value]
    for _ in range(_MOST_NODES):
        if not waiting:
            return
        part = waiting.pop()
        if isinstance(part, dict):
            named = next((part[key] for key in _NAME_KEYS if isinstance(part.get(key), str)), None)
            if named:
                yield named.removeprefix("./")
            inside = [inner for inner in part.values() if isinstance(inner, (dict, list)) or _has_lines(inner)]
            waiting += reversed(inside)
        elif isinstance(part, list):
            waiting += reversed(part)
        elif isinstance(part, str):
            for line in part.splitlines()[:MOST_NAMES]:
                yield from _of_line(line.strip()[:_LONGEST_LINE], "")


def _has_lines(value: Any) -> bool:
    return isinstance(value, str) and ("\n" in value or "/" in value or "." in value)
