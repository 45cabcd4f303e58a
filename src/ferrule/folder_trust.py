"""Which folders the user trusts, and what a folder would run.

A project decides what is run and where data is sent: Python files, skills, the servers of `mcp.json`, the settings of
`ferrule.toml`. So a folder is used only after the user has trusted it, once. In a trusted folder, entries of `mcp.json`
that are new or changed are asked about again. There is one small file per folder in the user's configuration folder.
Trust is for the folder and not for its path: one that another user has put there is asked about again.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from ferrule.config import FILE_NAME, FerruleConfig
from ferrule.core.content import encode_json
from ferrule.core.secrets import Redaction
from ferrule.engine.config import NO_FOLDER, ToolEngineConfig
from ferrule.errors import SetupError
from ferrule.kinds.loading import DirectorySource
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.servers import McpFileSource
from ferrule.kinds.skill.directory import skill_files
from ferrule.kinds.source import PYTHON_SUFFIXES, YAML_SUFFIXES, tool_files
from ferrule.store.location import atomic_write, settings_directory

REPLACED = "You have trusted another folder at this path: another user has replaced it, or owns it now."
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
    identity: str = ""
    """Its owner and its number in the file system, which stay while its files are changed."""
    was_replaced: bool = False
    """Whether another folder was trusted at this path."""
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of each server by name: the parts of the entry that was last accepted, as digests, to say what has changed."""

    @property
    def is_trusted(self) -> bool:
        return self.trusted_at is not None

    def to_dict(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "trusted_at": self.trusted_at, "servers": sorted(self.servers)}


# Records


def trust_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with one file for each trusted folder."""
    return settings_directory(environ) / "trusted"


def read_folder_trust(folder: Path) -> FolderTrust:
    """Return the record of a folder; an empty one when there is none, it is damaged, or it is about another folder."""
    folder = Path(os.path.realpath(folder))
    record, identity = _parse_trust(_trust_path(folder)), ""
    with suppress(OSError):
        status = folder.stat()  # without the device, whose number may change whenever file systems are mounted
        identity = f"{status.st_uid}:{status.st_ino}"
    if record is None or record.folder != folder:
        return FolderTrust(folder=folder, identity=identity)
    # Another folder may be there if it belongs to the same user, this one or root, who could change its files as well:
    # a new clone, or a copy of it in the layers of a container image.
    owner = identity.partition(":")[0]
    is_of_same_owner = owner == record.identity.partition(":")[0] and owner in ("0", str(getattr(os, "getuid", int)()))
    if record.identity != identity and not is_of_same_owner:
        return FolderTrust(folder=folder, identity=identity, was_replaced=bool(record.identity))
    return record


def list_trusted_folders() -> list[FolderTrust]:
    """Return the trusted folders, by path."""
    records = [_parse_trust(path) for path in trust_directory().glob("*.json")]
    return sorted((r for r in records if r is not None and r.is_trusted), key=lambda record: record.folder)


def trust_folder(config: FerruleConfig, servers: Mapping[str, McpServerConfig] | None = None) -> FolderTrust:
    """Trust the folder of a project with these servers (all that it has now), besides those accepted before."""
    record = _with_servers(read_folder_trust(config.root), read_servers(config) if servers is None else servers)
    return _write(replace(record, trusted_at=record.trusted_at or datetime.now(UTC).isoformat(timespec="seconds")))


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
        identity=str(document.get("identity", "")),
        parts={n: p for n, p in parts.items() if isinstance(p, dict)} if isinstance(parts, dict) else {},
    )


def _with_servers(record: FolderTrust, servers: Mapping[str, McpServerConfig]) -> FolderTrust:
    return replace(
        record,
        servers=record.servers.union(server.trust_digest for server in servers.values()),
        parts={**record.parts, **{name: _digest_by_field(server) for name, server in servers.items()}},
    )


def _write(record: FolderTrust) -> FolderTrust:
    document = {**record.to_dict(), "identity": record.identity, "parts": record.parts}
    atomic_write(_trust_path(record.folder), json.dumps(document, indent=2).encode())
    return record


def untrusted_error(folder: Path) -> SetupError:
    return SetupError(
        f"{folder} is not trusted: nothing in it is run, and its {FILE_NAME} is not used. {how_to_trust(folder)}"
    )


def how_to_trust(folder: Path) -> str:
    """Return the end of a message about a folder that is not trusted."""
    reason = f"{REPLACED} " if read_folder_trust(folder).was_replaced else ""
    return f"{reason}Look at its files, then run: ferrule trust {shlex.quote(str(folder))}"


def read_trusted_project(path: Path) -> FerruleConfig:
    """Return the project of a folder, with or without a `ferrule.toml`, if the folder is trusted.

    Whoever names a file decides that it is used, as `--config` does. In a folder without a project, nothing is read,
    now or later.
    """
    if not path.is_dir():
        return FerruleConfig.read(path)
    config = FerruleConfig.find(path)
    if config.path is None:
        config = FerruleConfig.defaults_for_folder(path)
    record = read_folder_trust(config.root)
    if record.is_trusted:
        return replace(config, engine_config=replace(config.engine_config, accepted_servers=record.servers))
    settings = config.engine_config_with_paths
    sources = [settings.tools_directory, *settings.skills_directories, *filter(None, [settings.mcp_file])]
    if config.path is not None or any(map(os.path.lexists, sources)):
        raise untrusted_error(record.folder)
    return replace(config, engine_config=replace(without_tool_sources(config.engine_config), auto_reload=False))


def without_tool_sources(config: ToolEngineConfig) -> ToolEngineConfig:
    """Return the configuration without folders of tools and skills, MCP servers and OpenAPI documents."""
    return replace(config, tools_directory=NO_FOLDER, skills_directories=(), mcp_file=None, openapi=())


# What a folder would run


def read_servers(config: FerruleConfig) -> dict[str, McpServerConfig]:
    """Return the servers of a project's `mcp.json`, as they are written: no variable is filled in."""
    file = config.engine_config_with_paths.mcp_file
    # A file that is not trusted may name a device, which has no end.
    tools = McpFileSource(file).load().tools if file is not None and Path(file).is_file() else ()
    return {tool.id: tool.target for tool in tools if isinstance(tool.target, McpServerConfig)}


def describe_contents(config: FerruleConfig) -> list[str]:
    """Return what the files of a project would run or reach, one line each. Nothing is run to find out."""
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
    return [line for kind, items in kinds for line in describe_items(kind, items)]


def describe_server(name: str, server: McpServerConfig) -> str:
    """Return a server's command or address on one line, without its secrets."""
    words = [server.location, *map(shlex.quote, server.args)]
    return Redaction().redact_text(f"{name}: {' '.join(words)}")


def _digest_by_field(server: McpServerConfig) -> dict[str, str]:
    """Return what an entry consists of, by names that may be shown."""
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


def describe_changes(name: str, server: McpServerConfig, record: FolderTrust) -> str:
    """Describe a new or changed server by its command and by the names of what else its entry has or changes."""
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


def describe_items(kind: str, items: Sequence[str]) -> Iterator[str]:
    for item in items[:MAX_SHOWN]:
        yield f"  {kind} {item}".replace("\n", "␊")  # a file name must not look like another line
    if len(items) > MAX_SHOWN:
        yield f"  and {len(items) - MAX_SHOWN} more of this kind"
