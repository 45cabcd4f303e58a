"""The files in which MCP clients list their servers: `ferrule mcp import|install|uninstall`."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import printing
from ferrule.cli.mcp import DEFAULT_FILE, File, Force, choose_file, mcp_app, project_folder
from ferrule.cli.session import EXIT_USAGE, AsJson, Session, fail
from ferrule.cli.terminal import confirm, print_error
from ferrule.core.names import did_you_mean
from ferrule.errors import FerruleError, LoadError, SpecError
from ferrule.folder_trust import accept_server
from ferrule.kinds.mcp.config import McpServerConfig, read_server_config
from ferrule.kinds.mcp.mcp_json import (
    CODEX_KEY,
    ImportedServer,
    codex_folder,
    convert_variables,
    find_client_files,
    import_servers,
    read_codex_file,
    read_servers_file,
    remove_servers,
    settings_folder,
    starts_ferrule,
    write_server,
)
from ferrule.kinds.mcp.servers import McpFileSource
from ferrule.store.location import atomic_write

__all__ = ["mcp_app"]


@mcp_app.command("import")
def import_from_others(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A file to take servers from; else those of known clients."),
    ] = None,
    file: File = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Import the servers of Claude Desktop, Claude Code, Cursor, VS Code, Codex and Windsurf."""
    file = choose_file(context, file)
    project = file.absolute().parent
    sources = [source] if source is not None else [path for _, path in find_client_files(project)]
    imported: list[ImportedServer] = []
    problems: list[LoadError] = []
    for path in sources:
        if path.absolute() == file.absolute():
            continue
        try:
            imported += import_servers(path, file, project=project, replace=force)
        except LoadError as error:
            problems.append(error)
    if names := [each.name for each in imported if each.outcome in ("added", "replaced")]:
        tools = {tool.id: tool.target for tool in McpFileSource(file).load().tools}
        for name in names:  # the user has just imported these servers, and is not asked about them
            if isinstance(config := tools.get(name), McpServerConfig):
                accept_server(project_folder(context, file), name, config)
    servers = [{"name": i.name, "from": str(i.path), "outcome": i.outcome, "note": i.note} for i in imported]
    lines = [f"{i.outcome:<8} {i.name} from {i.path}" + (f": {i.note}" if i.note else "") for i in imported]
    if not imported and not problems:
        lines = ["No servers of other programs were found. Name a file with --from."]
    described = {"servers": servers, "errors": [str(problem) for problem in problems]}
    printing.print_outcome(described, *lines, as_json=as_json)
    for problem in problems if not as_json else ():
        print_error(f"ferrule: not read: {problem}")
    if source is not None and problems:
        raise typer.Exit(EXIT_USAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFile:
    """Where a client lists its servers, and in which form."""

    title: str
    user_path: Path
    project_path: str | None
    """Below the folder of a project; None if the client has no such file."""
    key: str = "mcpServers"
    names_type: bool = False
    """Whether an entry says that it is a program."""

    @property
    def is_toml(self) -> bool:
        return self.user_path.suffix == ".toml"


def client_files() -> dict[str, ClientFile]:
    """Return the files of all known clients, by their names on the command line."""
    home = Path.home()
    settings = settings_folder(home)
    return {
        "claude": ClientFile(
            title="Claude Desktop",
            user_path=settings / "Claude" / "claude_desktop_config.json",
            project_path=None,
        ),
        "claude-code": ClientFile(title="Claude Code", user_path=home / ".claude.json", project_path=".mcp.json"),
        "cursor": ClientFile(title="Cursor", user_path=home / ".cursor" / "mcp.json", project_path=".cursor/mcp.json"),
        "vscode": ClientFile(
            title="VS Code",
            user_path=settings / "Code" / "User" / "mcp.json",
            project_path=".vscode/mcp.json",
            key="servers",
            names_type=True,
        ),
        "codex": ClientFile(title="Codex", user_path=codex_folder() / "config.toml", project_path=".codex/config.toml"),
    }


@mcp_app.command("install")
def install(
    context: typer.Context,
    client: Annotated[str, typer.Argument(help="claude, claude-code, cursor, vscode or codex.")],
    name: Annotated[str, typer.Option("--name", help="What the client calls the server.")] = "ferrule",
    virtual: Annotated[str | None, typer.Option("--virtual", help="Offer only this virtual server.")] = None,
    search: Annotated[bool, typer.Option("--search", help="Offer two tools that find and call the others.")] = False,
    in_project: Annotated[bool, typer.Option("--project", help="Write the client's file in this folder.")] = False,
    bundled: Annotated[bool, typer.Option("--bundled", help="Offer the bundled tools too.")] = False,
    replace: Annotated[
        bool | None,
        typer.Option("--replace/--keep", help="Remove the client's own entries of servers that Ferrule serves now."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be written.")] = False,
    file: File = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write Ferrule into a client's list of MCP servers. Other entries stay, and the old file is kept as FILE.bak."""
    target, path = _find_client(client, in_project=in_project)
    options = [*(("--virtual", virtual) if virtual else ()), *(("--search",) if search else ())]
    options += ["--bundled"] if bundled else []
    entry = _make_entry(context.obj, file, options)
    if target.names_type:
        entry = {"type": "stdio", **entry}
    same = _find_servers_of_both(path, DEFAULT_FILE if file is None else file, target)
    removed: list[str] = []
    if not dry_run:
        try:
            before = path.read_bytes() if path.exists() else None
            if target.is_toml:
                _write_toml(path, name, entry, replace=force)
            else:
                write_server(path, name, entry, replace=force, key=target.key)
            if before is not None:
                atomic_write(path.with_name(f"{path.name}.bak"), before)
            if same and replace is None and not as_json:
                reason = f"{', '.join(same)}: Ferrule serves these now, and the client has them by its own entries too."
                question = f"Remove these entries from {path}? `ferrule mcp uninstall` puts them back."
                replace = confirm([reason], question)
            if same and replace:
                removed = _remove_replaced(target, path, same)
        except (FerruleError, OSError) as error:
            fail(f"{error}\nThe entry: {json.dumps({name: entry})}")
    if dry_run:
        is_toml = target.is_toml
        text = _format_toml(name, entry).strip() if is_toml else json.dumps({target.key: {name: entry}}, indent=2)
        lines = [str(path), text]
    else:
        lines = [f"added {name} to {path}"]
        if same and not removed:
            lines.append(f"{', '.join(same)}: now behind Ferrule too. To remove them from {path}: --force --replace")
        if removed:
            lines.append(f"removed {', '.join(removed)} from {path}; `ferrule mcp uninstall {client}` puts them back")
        lines.append(f"Restart {target.title} to use it.")
    described = {"client": client, "file": str(path), "name": name, "server": entry, "written": not dry_run}
    printing.print_outcome({**described, "same": same, "removed": removed}, *lines, as_json=as_json)


@mcp_app.command("uninstall")
def uninstall(
    client: Annotated[str, typer.Argument(help="claude, claude-code, cursor, vscode or codex.")],
    name: Annotated[str, typer.Option("--name", help="What the client calls the server.")] = "ferrule",
    in_project: Annotated[bool, typer.Option("--project", help="Change the client's file in this folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove Ferrule from a client's list of MCP servers, and put back the entries that `install` has removed."""
    target, path = _find_client(client, in_project=in_project)
    try:
        entry = _read_client_servers(target, path).get(name)
        if entry is None:
            fail(f"There is no server {name!r} in {path}.")
        if not starts_ferrule(read_server_config(entry)):
            fail(f"The server {name!r} in {path} is not Ferrule: it stays.")
        entries_file = _removed_entries_path(path)
        restored = _put_back(
            target, path, name, json.loads(entries_file.read_text("utf-8")) if entries_file.exists() else {}
        )
        entries_file.unlink(missing_ok=True)
    except (FerruleError, OSError, ValueError) as error:
        fail(str(error))
    lines = [f"removed {name} from {path}" + (f" and put back {', '.join(restored)}" if restored else "")]
    lines.append(f"Restart {target.title} to use it.")
    described = {"client": client, "file": str(path), "name": name, "restored": restored}
    printing.print_outcome(described, *lines, as_json=as_json)


def _find_client(client: str, *, in_project: bool) -> tuple[ClientFile, Path]:
    files = client_files()
    if client not in files:
        fail(f"There is no client {client!r}.{did_you_mean(client, files)} Known: {', '.join(files)}.")
    target = files[client]
    if in_project and target.project_path is None:
        fail(f"{target.title} has no file for one project: leave out --project.")
    return target, Path.cwd() / str(target.project_path) if in_project else target.user_path


def _read_client_servers(target: ClientFile, path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    return (read_codex_file(path) if target.is_toml else read_servers_file(path, may_be_empty=True)).servers


def _find_servers_of_both(path: Path, own_file: Path, target: ClientFile) -> list[str]:
    """Return the servers that the client would have twice: the same by its own entry and through Ferrule."""
    if not own_file.is_file():
        return []
    same = []
    with suppress(LoadError):
        own = read_servers_file(own_file).servers
        for name, entry in _read_client_servers(target, path).items():
            with suppress(SpecError):  # whichever way the two entries write their variables
                both = [read_server_config(convert_variables(e, Path.cwd(), [])) for e in (entry, own.get(name))]
                if both[0].digest == both[1].digest:
                    same.append(name)
    return same


def _removed_entries_path(path: Path) -> Path:
    """Return where the entries are kept that `install` has removed from a client's file; only the user reads it."""
    return path.with_name(f"{path.name}.ferrule")


def _remove_replaced(target: ClientFile, path: Path, names: Collection[str]) -> list[str]:
    """Remove entries from a client's file, and keep them for `uninstall`. Returns their names."""
    entries_file = _removed_entries_path(path)
    entries: dict[str, Any] = json.loads(entries_file.read_text("utf-8")) if entries_file.exists() else {}
    if target.is_toml:
        text = path.read_text("utf-8")
        entries |= {name: _cut_tables(text, name)[1] for name in names}
        remaining = text
        for name in names:
            remaining, _ = _cut_tables(remaining, name)
        names = [name for name in names if entries[name]]  # an inline table stays
        atomic_write(entries_file, json.dumps(entries).encode())
        atomic_write(path, remaining.encode())
        return list(names)
    entries |= {name: each for name, each in _read_client_servers(target, path).items() if name in names}
    atomic_write(entries_file, json.dumps(entries).encode())  # first: nothing is lost if the next step fails
    return list(remove_servers(path, names))


def _put_back(target: ClientFile, path: Path, name: str, entries: Mapping[str, Any]) -> list[str]:
    """Remove an entry from a client's file and add others that are not there. Returns the names of these."""
    missing = {each: entry for each, entry in entries.items() if each not in _read_client_servers(target, path)}
    if target.is_toml:
        text = "\n".join([_cut_tables(path.read_text("utf-8"), name)[0].rstrip(), *missing.values()])
        tomllib.loads(text)
        atomic_write(path, (text.rstrip() + "\n").encode())
    else:
        remove_servers(path, [name])
        for each, entry in missing.items():
            write_server(path, each, entry, replace=False, key=target.key)
    return list(missing)


def _make_entry(session: Session, file: Path | None, options: list[str]) -> dict[str, Any]:
    """Describe how the client starts Ferrule: with full paths, because the client may be in any folder.

    A project is named by its folder: a file that is named counts as trusted, and what is added to the folder later
    would be run without a question.
    """
    program = shutil.which(sys.argv[0]) or ""
    is_script = Path(program).stem == "ferrule"
    # -P: otherwise Python would import modules from whatever folder the client is started in.
    command = [os.path.abspath(program)] if is_script else [sys.executable, "-P", "-m", "ferrule"]
    if file is not None:
        command += ["mcp", "serve", "--file", str(_require_file(file))]
    elif (config := session.config()).path is not None and session.accepted_servers is None:  # by `--config`
        command += ["--config", str(config.path.absolute()), "mcp", "serve"]
    else:
        folder = config.root if config.path is not None else _require_file(DEFAULT_FILE).parent
        command += ["mcp", "serve", "--folder", str(folder.absolute())]
    return {"command": command[0], "args": [*command[1:], *options]}


def _require_file(file: Path) -> Path:
    path = file.absolute()
    if not path.is_file():
        fail(f"There is no {path}: add a server first, with: ferrule mcp add NAME -- COMMAND")
    return path


# Codex: a table in TOML. The rest of the file, comments included, stays as it is.


def _write_toml(path: Path, name: str, entry: Mapping[str, Any], *, replace: bool) -> None:
    text = path.read_text("utf-8") if path.exists() else ""
    try:
        servers = tomllib.loads(text).get(CODEX_KEY, {})
    except tomllib.TOMLDecodeError as error:
        raise LoadError(f"the file is not TOML: {error}", path=path) from None
    if name in servers:
        if not replace:
            raise LoadError(f"there is already a server {name!r}", path=path, hint="use --force to replace it")
        text, _ = _cut_tables(text, name)
    text = f"{text.rstrip()}\n\n{_format_toml(name, entry)}".lstrip()
    if tomllib.loads(text).get(CODEX_KEY, {}).get(name) != dict(entry):
        raise LoadError("the server is written in another way there", path=path, hint="change the file by hand")
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text.encode())


def _cut_tables(text: str, name: str) -> tuple[str, str]:
    """Return a text without the tables of a server, and these tables."""
    key = rf'(?:{re.escape(name)}|"{re.escape(name)}")'
    header = re.compile(rf"\s*\[\s*{CODEX_KEY}\s*\.\s*{key}\s*(\.[^\]]*)?\]")
    others: list[str] = []
    own: list[str] = []
    is_own = False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            is_own = header.match(line) is not None
        (own if is_own else others).append(line)
    return "".join(others), "".join(own)


def _format_toml(name: str, entry: Mapping[str, Any]) -> str:
    lines = [f"[{CODEX_KEY}.{json.dumps(name)}]"]
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]  # JSON texts are TOML
    return "\n".join(lines) + "\n"
