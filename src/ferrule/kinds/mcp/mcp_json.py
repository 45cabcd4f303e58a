"""Files that list MCP servers, as Claude Desktop, Cursor and VS Code write them, and importing servers from them.

Comments and trailing commas are accepted, because VS Code allows them. Adding a server leaves the rest of the file as
it is, and the file is replaced as a whole, so that other programs never read half of it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import LoadError, SpecError
from ferrule.kinds.mcp.config import ENV_VARIABLE, McpServerConfig, find_literal_secrets, read_server_config
from ferrule.kinds.source import read_limited_file
from ferrule.store.location import atomic_write

MAX_FILE_SIZE: Final = 64 * 1024 * 1024
_STRING = r'("(?:\\.|[^"\\\n])*")'
_COMMENTS = lazy_pattern(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMAS = lazy_pattern(rf"{_STRING}|,(?=\s*[}}\]])")
_INPUT_VARIABLE = lazy_pattern(r"\$\{input:([^}]+)\}")
_SERVER_KEYS: Final = (("mcpServers",), ("servers",), ("mcp", "servers"))
"""The keys that hold the servers: in files of Claude and Cursor, of VS Code, and in VS Code's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersFile:
    """The content of such a file."""

    path: Path
    text: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    servers: Mapping[str, Any] = field(default_factory=dict)
    """The entries as they are, valid or not."""
    duplicates: tuple[str, ...] = ()
    """Names that are in the file more than once; JSON uses the last."""
    has_comments: bool = False

    def line(self, name: str) -> int:
        start = re.search(re.escape(json.dumps(name, ensure_ascii=False)) + r"\s*:\s*\{", self.text)
        return 1 if start is None else self.text.count("\n", 0, start.start()) + 1


def _read_text(path: Path) -> str:
    try:
        return read_limited_file(path, MAX_FILE_SIZE).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LoadError(f"the file cannot be read: {error}", path=path) from None


def read_servers_file(path: Path, *, may_be_empty: bool = False) -> ServersFile:
    """Read the servers of a file. Raises LoadError when the file lists no servers.

    `may_be_empty`: it may hold the settings of another program and no servers yet.
    """
    text = _read_text(path)
    repeated_keys: list[str] = []

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            names = [name for name, _ in pairs]
            repeated_keys.extend(name for name in value if names.count(name) > 1)
        return value

    plain = _COMMENTS.sub(_keep_line_breaks, text)
    try:
        document = json.loads(_TRAILING_COMMAS.sub(_keep_line_breaks, plain) or "{}", object_pairs_hook=make_object)
    except json.JSONDecodeError as error:
        raise LoadError(f"the file is not JSON: {error.msg}", path=path, line=error.lineno) from None
    except RecursionError:
        raise LoadError("the file is not JSON: nested too deep", path=path, line=1) from None
    lists = [servers for keys in _SERVER_KEYS if (servers := _get_nested(document, keys)) is not None]
    servers = {} if document == {} else next(iter(lists), None)
    if servers is None and may_be_empty and isinstance(document, dict):
        servers = {}
    if not isinstance(document, dict) or not isinstance(servers, dict):
        hint = 'write {"mcpServers": {"name": {"command": "…"}}}'
        raise LoadError("the file lists no MCP servers", path=path, hint=hint)
    duplicates = tuple(dict.fromkeys(key for key in repeated_keys if key in servers))
    return ServersFile(
        path=path, text=text, document=document, servers=servers, duplicates=duplicates, has_comments=plain != text
    )


def write_server(path: Path, name: str, entry: Mapping[str, Any], *, replace: bool, key: str = "mcpServers") -> None:
    """Add a server to a file, which is created if necessary; LoadError when that would lose something.

    `key` holds the servers in a file that has none yet.
    """
    file = read_servers_file(path, may_be_empty=True) if path.exists() else ServersFile(path=path)
    if name in file.servers and not replace:
        hint = "use --force to replace it"
        raise LoadError(f"there is already a server {name!r}", path=path, line=file.line(name), hint=hint)
    _write_servers(file, {**file.servers, name: dict(entry)}, key)


def remove_servers(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Remove the entries of servers from a file, and return them."""
    file = read_servers_file(path, may_be_empty=True)
    removed = {name: entry for name, entry in file.servers.items() if name in names}
    if removed:
        _write_servers(file, {name: entry for name, entry in file.servers.items() if name not in names}, "mcpServers")
    return removed


def change_server(path: Path, name: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change the entry of a server, or remove it where `change` returns None; LoadError when there is none."""
    file = read_servers_file(path) if path.exists() else ServersFile(path=path)
    entry = file.servers.get(name)
    if not isinstance(entry, dict):
        raise LoadError(f"there is no server {name!r}.{did_you_mean(name, file.servers)}", path=path)
    changed = change(dict(entry))
    servers = {each: (changed if each == name else value) for each, value in file.servers.items()}
    _write_servers(file, {each: value for each, value in servers.items() if value is not None}, "mcpServers")


def _write_servers(file: ServersFile, servers: Mapping[str, Any], key: str) -> None:
    if file.has_comments:
        hint = "change the file by hand"
        raise LoadError("the file has comments, which would be lost", path=file.path, hint=hint)
    document = dict(file.document)
    *outer_keys, last_key = next((k for k in _SERVER_KEYS if isinstance(_get_nested(document, k), dict)), (key,))
    level = document
    for outer in outer_keys:
        inner = level[outer] = dict(level[outer])
        level = inner
    level[last_key] = dict(servers)
    target = file.path.resolve()  # the file itself, not a link to it
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    atomic_write(target, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
    os.chmod(target, mode)


def _get_nested(document: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _keep_line_breaks(match: re.Match[str]) -> str:
    """Return a matched string unchanged, and only the line breaks of a comment, so that line numbers stay right."""
    return match[1] or "\n" * match[0].count("\n")


# The files of other programs

Outcome: TypeAlias = Literal["added", "replaced", "skipped", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedServer:
    """The outcome for one server of another program's file."""

    name: str
    path: Path
    outcome: Outcome
    note: str = ""


def find_client_files(project: Path) -> Iterator[tuple[str, Path]]:
    """Yield the existing files of Claude, Cursor, VS Code, Codex and Windsurf: the project's first, then the user's."""
    home = Path.home()
    settings = settings_folder(home)
    files = [
        ("Claude Code", project / ".mcp.json"),
        ("Cursor", project / ".cursor" / "mcp.json"),
        ("VS Code", project / ".vscode" / "mcp.json"),
        ("Codex", project / ".codex" / "config.toml"),
        ("Claude Desktop", settings / "Claude" / "claude_desktop_config.json"),
        ("Claude Code", home / ".claude.json"),
        ("Cursor", home / ".cursor" / "mcp.json"),
        ("VS Code", settings / "Code" / "User" / "mcp.json"),
        ("Codex", codex_folder() / "config.toml"),
        ("Windsurf", home / ".codeium" / "windsurf" / "mcp_config.json"),
    ]
    return ((program, path) for program, path in files if path.is_file())


def import_servers(source: Path, target: Path, *, project: Path, replace: bool) -> list[ImportedServer]:
    """Copy the servers of one file into another. LoadError when one of the files cannot be used at all."""
    file = read_codex_file(source) if source.suffix == ".toml" else read_servers_file(source, may_be_empty=True)
    own = _get_nested(file.document, ("projects", str(project.absolute()), "mcpServers"))  # as Claude Code stores them
    servers = {**(own if isinstance(own, dict) else {}), **file.servers}
    imported = []
    for name, entry in servers.items():
        outcome, note = _import_server(name, entry, target, project=project, replace=replace)
        imported.append(ImportedServer(name=name, path=source, outcome=outcome, note=note))
    return imported


def _import_server(name: str, entry: Any, target: Path, *, project: Path, replace: bool) -> tuple[Outcome, str]:
    exists = name in (read_servers_file(target).servers if target.exists() else {})
    if exists and not replace:
        return "skipped", "there is already one of this name"
    inputs: list[str] = []
    try:
        entry = convert_variables(entry, project, inputs)
        config = read_server_config(entry)
        if starts_ferrule(config):
            return "skipped", "it is Ferrule itself"
        write_server(target, name, entry, replace=replace)
    except (SpecError, LoadError) as error:
        return "bad", str(error)
    notes = [f"set the environment variable {', '.join(inputs)}"] if inputs else []
    if secrets := find_literal_secrets(config):
        names = ", ".join(secrets)
        notes.append(f"{target.name} now holds the value of {names}: do not share it, or write ${{VAR}} instead")
    return "replaced" if exists else "added", "; ".join(notes)


def starts_ferrule(config: McpServerConfig) -> bool:
    """Return whether an entry starts `ferrule mcp serve`, as `ferrule mcp install` writes it: it would serve itself."""
    words = [Path(config.command or "").stem, *config.args]
    return "ferrule" in words and any(pair == ("mcp", "serve") for pair in pairwise(words))


CODEX_KEY: Final = "mcp_servers"


def codex_folder() -> Path:
    return Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")


def read_codex_file(path: Path) -> ServersFile:
    """Read the servers of Codex's `config.toml`, as entries of `mcp.json`. Raises LoadError."""
    try:
        document = tomllib.loads(_read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise LoadError(f"the file is not TOML: {error}", path=path) from None
    servers = document.get(CODEX_KEY, {})
    if not isinstance(servers, dict):
        raise LoadError(f"{CODEX_KEY} is not a table", path=path)
    return ServersFile(path=path, servers={name: _entry_of_codex(entry) for name, entry in servers.items()})


def _entry_of_codex(entry: Any) -> Any:
    """Convert an entry of Codex: its names for headers, times in seconds, and variables that are passed on."""
    if not isinstance(entry, dict):
        return entry
    headers = dict(entry.get("http_headers") or {})
    headers |= {name: f"${{{variable}}}" for name, variable in (entry.get("env_http_headers") or {}).items()}
    if token := entry.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    passed = {name: f"${{{name}}}" for name in entry.get("env_vars") or () if isinstance(name, str)}
    seconds = entry.get("tool_timeout_sec")
    converted = {
        **{name: entry[name] for name in ("command", "args", "cwd", "url") if name in entry},
        "env": passed | dict(entry.get("env") or {}),
        "headers": headers,
        "timeout": seconds * 1000 if isinstance(seconds, int | float) else None,
        "disabled": entry.get("enabled") is False,
    }
    return {name: value for name, value in converted.items() if value}


def convert_variables(value: Any, project: Path, inputs: list[str]) -> Any:
    """Write `${env:X}`, `${input:x}` and `${workspaceFolder}` as `mcp.json` has them; adds to `inputs`."""
    if isinstance(value, Mapping):
        return {key: convert_variables(each, project, inputs) for key, each in value.items()}
    if isinstance(value, list):
        return [convert_variables(each, project, inputs) for each in value]
    if not isinstance(value, str):
        return value

    def variable_for(match: re.Match[str]) -> str:
        variable = re.sub(r"[^A-Za-z0-9]+", "_", match[1]).strip("_").upper()
        if variable not in inputs:
            inputs.append(variable)
        return f"${{{variable}}}"

    text = _INPUT_VARIABLE.sub(variable_for, ENV_VARIABLE.sub(r"${\1}", value))
    return text.replace("${workspaceFolder}", str(project.absolute())).replace("${userHome}", str(Path.home()))


def settings_folder(home: Path) -> Path:
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
