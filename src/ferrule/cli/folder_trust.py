"""Which folders the user trusts, and the question before a command runs what a folder contains.

A project decides what is run and where data is sent: Python files, skills, the servers of `mcp.json`, the settings of
`ferrule.toml`. So a folder is used only after the user has trusted it, once. In a trusted folder, entries of `mcp.json`
that are new or changed are asked about again. There is one small file per folder in the user's configuration folder.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from ferrule.cli.terminal import print_error
from ferrule.config import FerruleConfig
from ferrule.core.content import encode_json
from ferrule.kinds.loading import DirectorySource
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.servers import McpFileSource
from ferrule.kinds.skill.directory import skill_files
from ferrule.kinds.source import PYTHON_SUFFIXES, YAML_SUFFIXES, tool_files
from ferrule.store.location import atomic_write, settings_directory
from ferrule.store.redaction import Redaction

MAX_SHOWN = 20
"""Files or commands of one kind in a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTrust:
    """What the user has decided about one folder."""

    folder: Path
    trusted_at: str | None = None
    """None when only some servers were accepted, as by `ferrule mcp add`."""
    servers: frozenset[str] = frozenset()
    """The digests of the entries of `mcp.json` that may be started."""
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of each server by name: the parts of the entry that was last accepted, as digests, to say what has changed."""

    @property
    def is_trusted(self) -> bool:
        return self.trusted_at is not None

    def to_dict(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "trusted_at": self.trusted_at, "servers": sorted(self.servers)}


# Records


def trust_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder with one file for each trusted folder."""
    return settings_directory(environ) / "trusted"


def read_folder_trust(folder: Path) -> FolderTrust:
    """The record of a folder; an empty one when there is none or it is damaged."""
    folder = Path(os.path.realpath(folder))
    record = _parse_trust(_trust_path(folder))
    return record if record is not None and record.folder == folder else FolderTrust(folder=folder)


def list_trusted_folders() -> list[FolderTrust]:
    """The trusted folders, by path."""
    records = [_parse_trust(path) for path in trust_directory().glob("*.json")]
    return sorted((r for r in records if r is not None and r.is_trusted), key=lambda record: record.folder)


def trust_folder(config: FerruleConfig) -> FolderTrust:
    """Trust the folder of a project with all the servers it has now."""
    return _write_trusted(config.root, read_servers(config))


def accept_server(folder: Path, name: str, server: McpServerConfig) -> None:
    """Let one server of a folder be started; whether the folder is trusted does not change."""
    _write(_with_servers(read_folder_trust(folder), {name: server}))


def delete_folder_trust(folder: Path) -> bool:
    """Trust a folder no longer; False when it was not trusted."""
    try:
        _trust_path(Path(os.path.realpath(folder))).unlink()
    except FileNotFoundError:
        return False
    return True


def _trust_path(folder: Path) -> Path:
    return trust_directory() / f"{sha256(os.fsencode(folder)).hexdigest()[:32]}.json"


def _parse_trust(path: Path) -> FolderTrust | None:
    try:
        document = json.loads(path.read_bytes())
        folder, trusted_at, servers = (document[key] for key in ("folder", "trusted_at", "servers"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(folder, str) or not isinstance(trusted_at, str | None) or not isinstance(servers, list):
        return None
    parts = document.get("parts")
    return FolderTrust(
        folder=Path(folder),
        trusted_at=trusted_at,
        servers=frozenset(map(str, servers)),
        parts={n: p for n, p in parts.items() if isinstance(p, dict)} if isinstance(parts, dict) else {},
    )


def _write_trusted(folder: Path, servers: Mapping[str, McpServerConfig]) -> FolderTrust:
    record = _with_servers(read_folder_trust(folder), servers)
    return _write(replace(record, trusted_at=record.trusted_at or datetime.now(UTC).isoformat(timespec="seconds")))


def _with_servers(record: FolderTrust, servers: Mapping[str, McpServerConfig]) -> FolderTrust:
    return replace(
        record,
        servers=record.servers.union(server.trust_digest for server in servers.values()),
        parts={**record.parts, **{name: _digest_by_field(server) for name, server in servers.items()}},
    )


def _write(record: FolderTrust) -> FolderTrust:
    document = {**record.to_dict(), "parts": record.parts}
    atomic_write(_trust_path(record.folder), json.dumps(document, indent=2).encode())
    return record


# What a folder would run


def read_servers(config: FerruleConfig) -> dict[str, McpServerConfig]:
    """The servers of a project's `mcp.json`, as they are written: no variable is filled in."""
    file = config.engine_config_with_paths.mcp_file
    # A file that is not trusted may name a device, which has no end.
    tools = McpFileSource(file).load().tools if file is not None and Path(file).is_file() else ()
    return {tool.id: tool.target for tool in tools if isinstance(tool.target, McpServerConfig)}


def describe_contents(config: FerruleConfig) -> list[str]:
    """What the files of a project would run or reach, one line each. Nothing is run to find out."""
    settings = config.engine_config_with_paths
    tools = Path(settings.tools_directory)
    yaml_tools = DirectorySource(tools, files=partial(tool_files, suffixes=YAML_SUFFIXES)).load().tools
    commands = [
        f"{tool.id}: {' '.join(map(str, command))}"
        for tool in yaml_tools
        if (command := tool.spec.implementation_config.get("command")) is not None
    ]
    kinds: list[tuple[str, Sequence[str]]] = [
        ("Python file", [str(path) for path in tool_files(tools, PYTHON_SUFFIXES)]),
        ("command", commands),
        ("skill", [str(path) for folder in settings.skills_directories for path in skill_files(Path(folder))]),
        ("server", [describe_server(name, server) for name, server in read_servers(config).items()]),
        ("OpenAPI document", [entry.source for entry in settings.openapi]),
    ]
    return [line for kind, items in kinds for line in _describe_items(kind, items)]


def describe_server(name: str, server: McpServerConfig) -> str:
    """A server's command or address on one line, without its secrets."""
    words = [server.location, *map(shlex.quote, server.args)]
    return Redaction().redact_text(f"{name}: {' '.join(words)}")


def _digest_by_field(server: McpServerConfig) -> dict[str, str]:
    """What an entry consists of, by names that may be shown."""
    values = {
        "command": server.command,
        "args": server.args,
        "cwd": server.cwd,
        "url": server.url,
        "type": server.kind,
        "trusted": server.trusted,
        "autoApprove": sorted(server.auto_approve),
        **{f"the variable {name}": value for name, value in server.env.items()},
        **{f"the header {name}": value for name, value in server.headers.items()},
    }
    return {name: sha256(encode_json([name, value])).hexdigest()[:16] for name, value in values.items() if value}


def _describe_changes(name: str, server: McpServerConfig, record: FolderTrust) -> str:
    """A server that is new or changed: its command, and the names of everything else that its entry has or changes."""
    before, current = record.parts.get(name), _digest_by_field(server)
    if before is None:
        groups = {"new, with": [part for part in current if part not in ("command", "args", "url")]}
    else:
        groups = {
            "changes": [part for part in current if part in before and current[part] != before[part]],
            "adds": [part for part in current if part not in before],
            "removes": [part for part in before if part not in current],
        }
    changes = "; ".join(f"{verb} {', '.join(parts)}" for verb, parts in groups.items() if parts)
    return f"{describe_server(name, server)} ({changes or 'new'})"


def _describe_items(kind: str, items: Sequence[str]) -> Iterator[str]:
    for item in items[:MAX_SHOWN]:
        yield f"  {kind} {item}".replace("\n", "␊")  # a file name must not look like another line
    if len(items) > MAX_SHOWN:
        yield f"  and {len(items) - MAX_SHOWN} more of this kind"


# Asking


def decide_trust(config: FerruleConfig) -> FolderTrust:
    """The record of a project's folder, after asking about what is new in it if there is a terminal."""
    record = read_folder_trust(config.root)
    if not record.is_trusted and not has_terminal():
        return record
    servers = read_servers(config)
    if not record.is_trusted:
        question = [f"ferrule: {record.folder} is not trusted yet. Its files decide what is run:"]
        if confirm([*question, *describe_contents(config)], "Do you trust the files of this folder?"):
            return _write_trusted(config.root, servers)
        return record
    unknown = {n: s for n, s in servers.items() if s.trust_digest not in record.servers and not s.disabled}
    if unknown:
        question = [f"ferrule: these servers of {config.engine_config.mcp_file} are new or changed:"]
        question += _describe_items(
            "server", [_describe_changes(name, server, record) for name, server in unknown.items()]
        )
        if confirm(question, "Start them from now on?"):
            return _write_trusted(config.root, unknown)
    return record


def explain_untrusted(folder: Path) -> str:
    """The end of a message about a folder that is not trusted."""
    return f"Look at its files, then run: ferrule trust {shlex.quote(str(folder))}"


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(lines: Iterable[str], question: str) -> bool:
    """Whether the user says yes; False where there is no terminal to ask at."""
    if not has_terminal():
        return False
    for line in lines:
        print_error(line)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    with _interruptible():
        return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a read that blocks, also inside an event loop that has its own handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
