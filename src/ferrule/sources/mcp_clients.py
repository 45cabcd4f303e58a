"""Where other programs keep their MCP servers, and taking servers over from there."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ferrule.errors import LoadError, SpecError
from ferrule.executors.mcp.config import read_server
from ferrule.executors.mcp.secrets import secret_places
from ferrule.sources.mcp_json import read_servers, write_server

_INPUT = re.compile(r"\$\{input:([^}]+)\}")
_ENVIRONMENT = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedServer:
    """What became of one server of another program's file."""

    name: str
    path: Path
    outcome: Literal["added", "replaced", "skipped", "bad"]
    note: str = ""


def known_files(project: Path) -> Iterator[tuple[str, Path]]:
    """The files of Claude, Cursor, VS Code and Windsurf that are there: the project's first, then the user's."""
    home = Path.home()
    settings = _settings_folder(home)
    places = [
        ("Claude Code", project / ".mcp.json"),
        ("Cursor", project / ".cursor" / "mcp.json"),
        ("VS Code", project / ".vscode" / "mcp.json"),
        ("Claude Desktop", settings / "Claude" / "claude_desktop_config.json"),
        ("Claude Code", home / ".claude.json"),
        ("Cursor", home / ".cursor" / "mcp.json"),
        ("VS Code", settings / "Code" / "User" / "mcp.json"),
        ("Windsurf", home / ".codeium" / "windsurf" / "mcp_config.json"),
    ]
    return ((program, path) for program, path in places if path.is_file())


def import_servers(source: Path, target: Path, *, project: Path, replace: bool) -> list[ImportedServer]:
    """Copy the servers of one file into another. LoadError when one of the files cannot be used at all."""
    return [
        _import(name, entry, source, target, project=project, replace=replace)
        for name, entry in read_servers(source).servers.items()
    ]


def _import(name: str, entry: Any, source: Path, target: Path, *, project: Path, replace: bool) -> ImportedServer:
    taken = name in (read_servers(target).servers if target.exists() else {})
    if taken and not replace:
        return ImportedServer(name=name, path=source, outcome="skipped", note="there is one of this name already")
    try:
        config = read_server(entry)
    except SpecError as error:
        return ImportedServer(name=name, path=source, outcome="bad", note=str(error))
    asked: list[str] = []
    try:
        write_server(target, name, _in_our_words(entry, project, asked), replace=replace)
    except LoadError as error:
        return ImportedServer(name=name, path=source, outcome="bad", note=str(error))
    notes = [f"set the environment variable {', '.join(asked)}"] if asked else []
    if secrets := secret_places(config):
        notes.append(f"{target.name} now holds the value of {', '.join(secrets)}: show it to nobody, or write ${{VAR}}")
    outcome: Literal["added", "replaced"] = "replaced" if taken else "added"
    return ImportedServer(name=name, path=source, outcome=outcome, note="; ".join(notes))


def _in_our_words(value: Any, project: Path, asked: list[str]) -> Any:
    """`${env:X}`, `${input:x}` and `${workspaceFolder}` in the way `mcp.json` says them."""
    if isinstance(value, Mapping):
        return {key: _in_our_words(each, project, asked) for key, each in value.items()}
    if isinstance(value, list):
        return [_in_our_words(each, project, asked) for each in value]
    if not isinstance(value, str):
        return value

    def ask(match: re.Match[str]) -> str:
        variable = re.sub(r"[^A-Za-z0-9]+", "_", match[1]).strip("_").upper()
        if variable not in asked:
            asked.append(variable)
        return f"${{{variable}}}"

    text = _INPUT.sub(ask, _ENVIRONMENT.sub(r"${\1}", value))
    return text.replace("${workspaceFolder}", str(project.absolute())).replace("${userHome}", str(Path.home()))


def _settings_folder(home: Path) -> Path:
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
