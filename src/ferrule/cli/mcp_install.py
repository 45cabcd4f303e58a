"""The files in which MCP clients list servers: `ferrule mcp import` reads them, `ferrule mcp install` writes them."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ferrule.cli import printing
from ferrule.cli.mcp import DEFAULT_FILE, File, Force, choose_file, mcp_app, project_folder
from ferrule.cli.session import EXIT_USAGE, AsJson, Session, fail
from ferrule.cli.terminal import echo, print_error
from ferrule.core.names import did_you_mean
from ferrule.errors import FerruleError, LoadError
from ferrule.folder_trust import accept_server
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.mcp_json import (
    ImportedServer,
    find_client_files,
    import_servers,
    read_servers_file,
    settings_folder,
    write_server,
)
from ferrule.kinds.mcp.servers import McpFileSource
from ferrule.store.location import atomic_write

__all__ = ["mcp_app"]

CODEX_KEY: Final = "mcp_servers"


@mcp_app.command("import")
def import_from_others(
    context: typer.Context,
    source: Annotated[
        Path | None, typer.Option("--from", help="A file to take servers from; else those of Claude, Cursor, VS Code.")
    ] = None,
    file: File = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Take over the servers of Claude Desktop, Claude Code, Cursor, VS Code and Windsurf."""
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
    _accept_imported(context, file, [each.name for each in imported if each.outcome in ("added", "replaced")])
    if as_json:
        servers = [{"name": i.name, "from": str(i.path), "outcome": i.outcome, "note": i.note} for i in imported]
        printing.print_json({"servers": servers, "errors": [str(p) for p in problems]})
    else:
        for each in imported:
            echo(f"{each.outcome:<8} {each.name} from {each.path}" + (f": {each.note}" if each.note else ""))
        for problem in problems:
            print_error(f"ferrule: not read: {problem}")
        if not imported and not problems:
            echo("No servers of other programs were found. Name a file with --from.")
    if source is not None and problems:
        raise typer.Exit(EXIT_USAGE)


def _accept_imported(context: typer.Context, file: Path, names: list[str]) -> None:
    """Servers that the user has just taken over need no further question."""
    tools = {tool.id: tool.target for tool in McpFileSource(file).load().tools} if names else {}
    for name in names:
        if isinstance(config := tools.get(name), McpServerConfig):
            accept_server(project_folder(context, file), name, config)


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
    """The files of all clients that are known, by their names on the command line."""
    home = Path.home()
    settings = settings_folder(home)
    codex = Path(os.environ.get("CODEX_HOME") or home / ".codex")
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
        "codex": ClientFile(title="Codex", user_path=codex / "config.toml", project_path=".codex/config.toml"),
    }


@mcp_app.command("install")
def install(
    context: typer.Context,
    client: Annotated[str, typer.Argument(help="claude, claude-code, cursor, vscode or codex.")],
    name: Annotated[str, typer.Option("--name", help="What the client calls the server.")] = "ferrule",
    virtual: Annotated[str | None, typer.Option("--virtual", help="Offer only this virtual server.")] = None,
    search: Annotated[bool, typer.Option("--search", help="Offer two tools that find and call the others.")] = False,
    in_project: Annotated[bool, typer.Option("--project", help="Write the client's file in this folder.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be written.")] = False,
    file: File = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write Ferrule into a client's list of MCP servers. Other entries stay, and the old file is kept as FILE.bak."""
    files = client_files()
    if client not in files:
        fail(f"There is no client {client!r}.{did_you_mean(client, files)} Known: {', '.join(files)}.", code=EXIT_USAGE)
    target = files[client]
    if in_project and target.project_path is None:
        fail(f"{target.title} has no file for one project: leave out --project.", code=EXIT_USAGE)
    path = Path.cwd() / str(target.project_path) if in_project else target.user_path
    options = [*(("--virtual", virtual) if virtual else ()), *(("--search",) if search else ())]
    try:
        entry = _make_entry(context.obj or Session(None), file, options)
    except FerruleError as error:
        fail(str(error), code=EXIT_USAGE)
    if target.names_type:
        entry = {"type": "stdio", **entry}
    if not dry_run:
        try:
            _write(target, path, name, entry, force)
        except (FerruleError, OSError) as error:
            fail(f"{error}\nThe entry: {json.dumps({name: entry})}", code=EXIT_USAGE)
    if as_json:
        printing.print_json(
            {"client": client, "file": str(path), "name": name, "server": entry, "written": not dry_run}
        )
        return
    text = _format_toml(name, entry).strip() if target.is_toml else json.dumps({target.key: {name: entry}}, indent=2)
    if dry_run:
        echo(f"{path}\n{text}")
        return
    echo(f"added {name} to {path}")
    if both := _find_servers_of_both(path, file, target):
        echo(f"{', '.join(both)}: now behind Ferrule too; remove them from {path}")
    echo(f"Restart {target.title} to use it.")


def _find_servers_of_both(path: Path, file: Path | None, target: ClientFile) -> list[str]:
    """The servers that the client would have twice: its own entry, and through Ferrule."""
    own_file = DEFAULT_FILE if file is None else file
    if target.is_toml or not own_file.is_file():
        return []
    try:
        names, own_names = (read_servers_file(each).servers for each in (path, own_file))
    except LoadError:
        return []
    return [name for name in names if name in own_names]


def _make_entry(session: Session, file: Path | None, options: list[str]) -> dict[str, Any]:
    """How the client starts Ferrule: with full paths, because it may do so in any folder.

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
        fail(f"There is no {path}: add a server first, with: ferrule mcp add NAME -- COMMAND", code=EXIT_USAGE)
    return path


def _write(target: ClientFile, path: Path, name: str, entry: Mapping[str, Any], replace: bool) -> None:
    before = path.read_bytes() if path.exists() else None
    if target.is_toml:
        _write_toml(path, name, entry, replace=replace)
    else:
        write_server(path, name, entry, replace=replace, key=target.key)
    if before is not None:
        atomic_write(path.with_name(f"{path.name}.bak"), before)


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
        text = _remove_tables(text, name)
    text = f"{text.rstrip()}\n\n{_format_toml(name, entry)}".lstrip()
    if tomllib.loads(text).get(CODEX_KEY, {}).get(name) != dict(entry):
        raise LoadError("the server is written in another way there", path=path, hint="change the file by hand")
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text.encode())


def _remove_tables(text: str, name: str) -> str:
    key = rf'(?:{re.escape(name)}|"{re.escape(name)}")'
    header = re.compile(rf"\s*\[\s*{CODEX_KEY}\s*\.\s*{key}\s*(\.[^\]]*)?\]")
    lines, is_own = [], False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            is_own = header.match(line) is not None
        if not is_own:
            lines.append(line)
    return "".join(lines)


def _format_toml(name: str, entry: Mapping[str, Any]) -> str:
    lines = [f"[{CODEX_KEY}.{json.dumps(name)}]"]
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]  # JSON texts are TOML
    return "\n".join(lines) + "\n"
