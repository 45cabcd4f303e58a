"""MCP servers, and to be one: `ferrule mcp add|remove|enable|disable|list|test|import|install|serve`."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ferrule.cli import printing
from ferrule.cli.session import EXIT_USAGE, AsJson, Session, fail, parse_pairs, run
from ferrule.cli.terminal import echo, print_error
from ferrule.config import FerruleConfig
from ferrule.core.names import did_you_mean
from ferrule.core.secrets import Redaction
from ferrule.core.spec import Tool
from ferrule.errors import CallError, FerruleError, LoadError, SetupError
from ferrule.folder_trust import accept_server
from ferrule.kinds.mcp.config import SERVING_VARIABLE, McpServerConfig, read_server_config
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.mcp_json import (
    ImportedServer,
    change_server,
    find_client_files,
    import_servers,
    read_servers_file,
    settings_folder,
    write_server,
)
from ferrule.kinds.mcp.servers import McpFileSource
from ferrule.store.location import atomic_write

mcp_app = typer.Typer(help="Use the tools of MCP servers.", no_args_is_help=True)

File = Annotated[
    Path | None, typer.Option("--file", "-f", help="The file that lists the servers; else the project's mcp.json.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace servers of the same name.")]
DEFAULT_FILE = Path("mcp.json")
Server = Annotated[str, typer.Argument(help="The server.")]


@mcp_app.command("add")
def add_server(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What to call the server.")],
    program: Annotated[
        list[str] | None, typer.Argument(help="After `--`: the program to start with its arguments; or an address.")
    ] = None,
    command: Annotated[str | None, typer.Option("--command", help="The program to start.")] = None,
    arg: Annotated[list[str] | None, typer.Option("--arg", help="An argument of it; may be repeated.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable for it; ${VAR} is filled in."),
    ] = None,
    cwd: Annotated[str | None, typer.Option("--cwd", help="The folder to start it in.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="The address of a server that runs.")] = None,
    kind: Annotated[
        str | None, typer.Option("--type", "--transport", "-t", help="http, sse or ws, if the address does not say.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header to send; ${VAR} is filled in."),
    ] = None,
    timeout: Annotated[int | None, typer.Option("--timeout", min=1, help="Milliseconds a call may take.")] = None,
    file: File = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Add a server to mcp.json: `ferrule mcp add time -- uvx mcp-server-time`."""
    file = choose_file(context, file)
    if program and (command or arg or url):
        fail("Write the program either after `--` or with --command and --arg, not both.")
    if program and len(program) == 1 and "://" in program[0]:
        url = program[0]
    elif program:
        command, arg = program[0], program[1:]
    options: dict[str, Any] = {
        "type": kind,
        "command": command,
        "args": arg,
        "env": parse_pairs(env or (), "--env"),
        "cwd": cwd,
        "url": url,
        "headers": parse_pairs([re.sub(r"^([\w-]+):\s*", r"\1=", each) for each in header or ()], "--header"),
        "timeout": timeout,
    }
    _check_options(name, options)
    entry = {key: value for key, value in options.items() if value}
    config = read_server_config(entry, folder=file.absolute().parent)
    write_server(file, name, entry, replace=force)
    accept_server(project_folder(context, file), name, config)  # the user has just written it
    if as_json:
        printing.print_json({"name": name, "file": str(file), "server": entry})
    else:
        echo(f"added {name} to {file}\nTry it with: ferrule mcp test {shlex.quote(name)}")


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Check the options of a new server. Raises SetupError without program and address, or for an empty header."""
    if not (options["command"] or options["url"]):
        raise SetupError(
            f"What is the server {name!r}? Write its program: ferrule mcp add {name} -- PROGRAM ARGUMENTS; or its "
            f"address: ferrule mcp add {name} https://…"
        )
    for header, value in options["headers"].items():
        if value.strip() in ("", "Bearer", "Basic", "Token"):
            raise SetupError(
                f"The header {header} has no value. To have a variable filled in when the server is used, write it in "
                f"single quotes: --header '{header}: Bearer ${{VARIABLE}}'"
            )


@mcp_app.command("remove")
def remove_server(context: typer.Context, name: Server, file: File = None, as_json: AsJson = False) -> None:
    """Remove a server from mcp.json."""
    _change_entry(context, file, name, lambda entry: None, "removed", as_json)


@mcp_app.command("enable")
def enable_server(context: typer.Context, name: Server, file: File = None, as_json: AsJson = False) -> None:
    """Use a server again."""

    def enable(entry: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in entry.items() if key not in ("disabled", "enabled")}

    _change_entry(context, file, name, enable, "enabled", as_json)


@mcp_app.command("disable")
def disable_server(context: typer.Context, name: Server, file: File = None, as_json: AsJson = False) -> None:
    """Keep a server in mcp.json, but do not use it."""
    _change_entry(context, file, name, lambda entry: {**entry, "disabled": True}, "disabled", as_json)


def _change_entry(
    context: typer.Context,
    file: Path | None,
    name: str,
    change: Callable[[dict[str, Any]], dict[str, Any] | None],
    outcome: str,
    as_json: bool,
) -> None:
    path = choose_file(context, file)
    change_server(path, name, change)
    if as_json:
        printing.print_json({"name": name, "file": str(path), "outcome": outcome})
    else:
        echo(f"{outcome} {name} in {path}")


@mcp_app.command("serve")
def serve(
    context: typer.Context,
    tools: Annotated[
        list[str] | None, typer.Option("--tool", "-t", help="Offer only this tool; may be repeated.")
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Refuse a call that the same client has just made and that failed.")
    ] = False,
    virtual: Annotated[
        str | None, typer.Option("--virtual", help="Offer what this virtual server of ferrule.toml selects.")
    ] = None,
    search: Annotated[bool, typer.Option("--search", help="Offer two tools that find and call the others.")] = False,
    plain_names: Annotated[
        bool, typer.Option("--plain-names", help="Name actions as their servers do, where that is unique.")
    ] = False,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Also offer the servers of this file.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Offer the project of this folder, as far as you trust it.")
    ] = None,
) -> None:
    """Serve the project's tools to the MCP client that starts this, on standard input and output."""
    from ferrule.library.library import UnifiedToolLibrary
    from ferrule.server.mcp import McpServer, ask_client

    session: Session = context.obj
    if file is not None and not file.is_file():
        fail(f"There is no file {file}.")
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            fail(f"The folder {folder} cannot be used: {error.strerror}.")
    _refuse_to_serve_itself(file)

    async def command() -> None:
        options: dict[str, Any] = {"tools": tools, "search": search, "plain_names": plain_names}
        if virtual is not None:
            section = session.config().server.virtual_server(virtual).model_dump()
            options = {name: value or section[name] for name, value in options.items()}
        engine = session.engine(on_elicit=ask_client, watch=True, mcp_file=file)
        library = UnifiedToolLibrary(engine=engine, hub=session.config().hub)
        server = McpServer(library, memory=memory, **options)
        async with library:
            if sys.stdin.isatty():
                print_error("ferrule: waiting for an MCP client on standard input. Ctrl-C stops.")
            await server.serve_stdio()

    run(command())


def _refuse_to_serve_itself(file: Path | None) -> None:
    """End this process if a Ferrule that serves the same place has started it: each would start the next one."""
    served = os.environ.get(SERVING_VARIABLE, "").split(os.pathsep)
    place = str(Path.cwd() if file is None else file.absolute())
    if place in served:
        fail(
            f"{place} is served already by the Ferrule that has started this one. Remove the entry that starts "
            "`ferrule mcp serve` from its mcp.json."
        )
    os.environ[SERVING_VARIABLE] = os.pathsep.join([*filter(None, served), place])


@mcp_app.command("list")
def list_servers(context: typer.Context, file: File = None, as_json: AsJson = False) -> None:
    """List the servers, with what they offered when they were last connected. Starts none."""
    file = choose_file(context, file)
    report = McpFileSource(file).load()
    columns: printing.Columns = {
        "server": "name",
        "state": lambda each: "off" if not each["enabled"] else "listed" if each["listed"] else "not listed yet",
        "actions": lambda each: len(each["actions"]) if each["listed"] else "",
        "how": "how",
    }
    servers, empty = list(map(_describe_server, report.tools)), f"No servers in {file}. Add one with: ferrule mcp add"
    printing.print_report(("servers", servers), columns, report.errors, as_json=as_json, empty=empty, cut=(3,))


@mcp_app.command("test")
def test_server(
    context: typer.Context,
    name: Server,
    timeout: Annotated[float, typer.Option("--timeout", "-t", min=0.1, help="Seconds to wait for the server.")] = 60,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Connect to a server, list its actions and measure how long that takes."""
    path, tool = find_trusted_server(context, file, name)

    async def command() -> dict[str, Any]:
        executor = McpExecutor()
        try:
            started = time.perf_counter()
            report = await McpFileSource(path).discover(executor, [tool], timeout)
            for error in report.errors:
                raise error
            connected = time.perf_counter() - started
            listing = await executor.connect(tool)
            return {
                "name": name,
                "server": listing.server_name,
                "version": listing.server_version,
                "protocol": listing.protocol_version,
                "connect_seconds": round(connected, 4),
                "answer_seconds": round(await executor.ping(tool), 6),
                "actions": [{"name": c.name, "description": c.description} for c in listing.capabilities],
            }
        except CallError as error:
            raise LoadError(str(error), path=path) from error
        finally:
            await executor.aclose()

    report = run(command())
    if as_json:
        printing.print_json(report)
        return
    title = f"{report['server'] or name} {report['version'] or ''}".strip()
    echo(f"{title}, protocol {report['protocol']}")
    echo(f"connected in {report['connect_seconds']:.2f} s, answers in {report['answer_seconds'] * 1000:.1f} ms")
    columns = {"action": "name", "description": "description"}
    printing.print_list(report["actions"], columns, as_json=False, empty="The server has no actions.", cut=(1,))


def find_server(file: Path, name: str) -> Tool:
    report = McpFileSource(file).load()
    tools = {tool.id: tool for tool in report.tools}
    if name not in tools:
        for error in report.errors:
            if repr(name) in error.message:
                fail(str(error))
        fail(f"No server {name!r} in {file}.{did_you_mean(name, tools)} See them with: ferrule mcp list", code=3)
    return tools[name]


def find_trusted_server(context: typer.Context, file: Path | None, name: str) -> tuple[Path, Tool]:
    """Find a server and its file. Ends the command unless the user trusts the entry, or names its file."""
    path = choose_file(context, file)
    tool = find_server(path, name)
    if file is None:
        require_accepted(context, tool)
    return path, tool


def require_accepted(context: typer.Context, tool: Tool) -> None:
    """End the command when the user has not trusted the entry of this server."""
    assert isinstance(tool.target, McpServerConfig)
    accepted = context.obj.accepted_servers
    if accepted is not None and tool.target.trust_digest not in accepted:
        fail(f"The server {tool.id!r} is not trusted. Look at its entry, then run: ferrule trust")


def project_folder(context: typer.Context, file: Path) -> Path:
    """Return the folder whose trust covers a file of servers: the project's folder, else the folder of the file."""
    config: FerruleConfig = context.obj.config_before_trust
    return file.absolute().parent if config.path is None else config.root


def _describe_server(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.id,
        "enabled": tool.spec.enabled,
        "listed": tool.spec.metadata["listed"],
        "how": _transport_of(tool),
        "actions": [capability.name for capability in tool.spec.capabilities],
        "origin": tool.origin,
    }


def _transport_of(tool: Tool) -> str:
    config = tool.target
    assert isinstance(config, McpServerConfig)
    return Redaction().redact_text(" ".join((config.location, *config.args)))


def choose_file(context: typer.Context, named: Path | None) -> Path:
    """Choose the file named on the command line, else the project's; without a project, `mcp.json` in this folder."""
    if named is not None:
        return named
    config = context.obj.config_before_trust
    inside = config.path is not None and config.engine_config.mcp_file is not None
    path = Path(config.engine_config_with_paths.mcp_file) if inside else DEFAULT_FILE
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


# The files in which MCP clients list servers: `import` reads them, `install` writes them

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
    """Import the servers of Claude Desktop, Claude Code, Cursor, VS Code and Windsurf."""
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
        fail(f"There is no client {client!r}.{did_you_mean(client, files)} Known: {', '.join(files)}.")
    target = files[client]
    if in_project and target.project_path is None:
        fail(f"{target.title} has no file for one project: leave out --project.")
    path = Path.cwd() / str(target.project_path) if in_project else target.user_path
    options = [*(("--virtual", virtual) if virtual else ()), *(("--search",) if search else ())]
    entry = _make_entry(context.obj, file, options)
    if target.names_type:
        entry = {"type": "stdio", **entry}
    if not dry_run:
        try:
            _write_entry(target, path, name, entry, force)
        except (FerruleError, OSError) as error:
            fail(f"{error}\nThe entry: {json.dumps({name: entry})}")
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
    """Return the servers that the client would have twice: by its own entry, and through Ferrule."""
    own_file = DEFAULT_FILE if file is None else file
    if target.is_toml or not own_file.is_file():
        return []
    try:
        names, own_names = (read_servers_file(each).servers for each in (path, own_file))
    except LoadError:
        return []
    return [name for name in names if name in own_names]


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


def _write_entry(target: ClientFile, path: Path, name: str, entry: Mapping[str, Any], replace: bool) -> None:
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
