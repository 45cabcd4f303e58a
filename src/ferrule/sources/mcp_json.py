"""Files that list MCP servers, as Claude Desktop, Cursor and VS Code write them.

Comments and commas before a closing bracket are understood, because VS Code allows them. A server is added without
touching anything else in the file, and the file is replaced as a whole, so that nobody ever reads half of it.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ferrule.errors import LoadError

_STRING = r'("(?:\\.|[^"\\\n])*")'
_COMMENTS = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMAS = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")
_PLACES: Final = (("mcpServers",), ("servers",), ("mcp", "servers"))
"""Where the servers stand: Claude and Cursor, VS Code, and VS Code's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersFile:
    """What stands in such a file."""

    path: Path
    text: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    servers: Mapping[str, Any] = field(default_factory=dict)
    """The entries as they are, good or bad."""
    twice: tuple[str, ...] = ()
    """Names that stand in the file more than once; JSON keeps the last."""
    has_comments: bool = False

    def line(self, name: str) -> int:
        """The line a server's entry begins on."""
        begun = re.search(re.escape(json.dumps(name, ensure_ascii=False)) + r"\s*:\s*\{", self.text)
        return 1 if begun is None else self.text.count("\n", 0, begun.start()) + 1


def read_servers(path: Path) -> ServersFile:
    """The servers of a file; LoadError when it is no such file at all."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"the file cannot be read: {error}", path=path) from None
    keys: list[str] = []
    bare = _COMMENTS.sub(_without, text)
    try:
        document = json.loads(_LAST_COMMAS.sub(_without, bare) or "{}", object_pairs_hook=lambda p: _object(p, keys))
    except (json.JSONDecodeError, RecursionError) as error:
        line, said = (error.lineno, error.msg) if isinstance(error, json.JSONDecodeError) else (1, "nested too deep")
        raise LoadError(f"the file is not JSON: {said}", path=path, line=line) from None
    servers = _servers(document)
    if not isinstance(document, dict) or not isinstance(servers, dict):
        hint = 'write {"mcpServers": {"name": {"command": "…"}}}'
        raise LoadError("the file lists no MCP servers", path=path, hint=hint)
    twice = tuple(dict.fromkeys(key for key in keys if key in servers))
    return ServersFile(path=path, text=text, document=document, servers=servers, twice=twice, has_comments=bare != text)


def write_server(path: Path, name: str, entry: Mapping[str, Any], *, replace: bool) -> None:
    """Add a server to a file, which is made if it is not there; LoadError when that would lose something."""
    known = read_servers(path) if path.exists() else ServersFile(path=path)
    if known.has_comments:
        raise LoadError("the file has comments, which would be lost", path=path, hint="add the server by hand")
    if name in known.servers and not replace:
        raise LoadError(
            f"there is a server {name!r} already", path=path, line=known.line(name), hint="use --force to replace it"
        )
    document = dict(known.document)
    place = next((p for p in _PLACES if isinstance(_at(document, p), dict)), _PLACES[0])
    level = document
    for key in place[:-1]:
        inner = level[key] = dict(level[key])
        level = inner
    level[place[-1]] = {**level.get(place[-1], {}), name: dict(entry)}
    _write_whole(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _write_whole(path: Path, text: str) -> None:
    target = path.resolve()  # the file itself, not the link to it
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        if target.exists():
            os.chmod(temporary, target.stat().st_mode & 0o777)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _servers(document: Any) -> Any:
    if document == {}:
        return {}
    return next((found for place in _PLACES if (found := _at(document, place)) is not None), None)


def _at(document: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _object(pairs: list[tuple[str, Any]], keys: list[str]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        keys += [name for name in found if names.count(name) > 1]
    return found


def _without(match: re.Match[str]) -> str:
    """A string as it is; of anything else only the line breaks, so that lines keep their numbers."""
    return match[1] or "\n" * match[0].count("\n")
