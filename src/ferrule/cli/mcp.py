"""The commands for MCP servers, and to be one: `ferrule mcp add|list|test|import|serve`."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import show
from ferrule.cli.arguments import read_pairs
from ferrule.cli.session import USAGE, Session, fail, run
from ferrule.cli.terminal import complain, say
from ferrule.errors import CallError, FerruleError, LoadError, SetupError
from ferrule.executors.mcp.config import McpServerConfig, read_server
from ferrule.executors.mcp.executor import McpExecutor
from ferrule.names import did_you_mean
from ferrule.redaction import Redaction
from ferrule.sources.mcp_clients import ImportedServer, import_servers, known_files
from ferrule.sources.mcp_file import McpFile
from ferrule.sources.mcp_json import write_server
from ferrule.spec import Tool

mcp_app = typer.Typer(help="Use the tools of MCP servers.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
File = Annotated[
    Path | None, typer.Option("--file", "-f", help="The file that lists the servers; else the project's mcp.json.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace servers of the same name.")]
DEFAULT_FILE = Path("mcp.json")


@mcp_app.command("add")
def add_server(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What to call the server.")],
    command: Annotated[str | None, typer.Option("--command", help="The program to start.")] = None,
    arg: Annotated[list[str] | None, typer.Option("--arg", help="An argument of it; may be repeated.")] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable for it; ${VAR} is filled in.")
    ] = None,
    cwd: Annotated[str | None, typer.Option("--cwd", help="The folder to start it in.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="The address of a server that runs.")] = None,
    kind: Annotated[str | None, typer.Option("--type", help="http, sse or ws, if the address does not say.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header to send; ${VAR} is filled in.")
    ] = None,
    timeout: Annotated[int | None, typer.Option("--timeout", min=1, help="Milliseconds a call may take.")] = None,
    file: File = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Add a server to mcp.json."""
    file = _file(context, file)
    try:
        said: dict[str, Any] = {
            "type": kind,
            "command": command,
            "args": arg,
            "env": read_pairs(env or (), "--env"),
            "cwd": cwd,
            "url": url,
            "headers": read_pairs(header or (), "--header"),
            "timeout": timeout,
        }
        entry = {key: value for key, value in said.items() if value}
        read_server(entry)
        write_server(file, name, entry, replace=force)
    except (SetupError, OSError) as error:
        fail(str(error), code=USAGE)
    if as_json:
        show.as_json({"name": name, "file": str(file), "server": entry})
    else:
        say(f"added {name} to {file}\nTry it with: ferrule mcp test {shlex.quote(name)}")


@mcp_app.command("serve")
def serve(
    context: typer.Context,
    tools: Annotated[
        list[str] | None, typer.Option("--tool", "-t", help="Offer only this tool; may be repeated.")
    ] = None,
) -> None:
    """Be an MCP server: offer the project's tools to the client that starts this, on standard input and output."""
    from ferrule.library import UnifiedToolLibrary
    from ferrule.server.mcp import McpFace
    from ferrule.server.mcp_asking import ask_the_client

    session: Session = context.obj

    async def story() -> None:
        async with UnifiedToolLibrary(engine=session.engine(on_elicit=ask_the_client, watch=True)) as library:
            if sys.stdin.isatty():
                complain("ferrule: waiting for an MCP client on standard input. Ctrl-C stops.")
            await McpFace(library, tools=tools).serve_stdio()

    run(story())


@mcp_app.command("list")
def list_servers(context: typer.Context, file: File = None, as_json: AsJson = False) -> None:
    """List the servers, with what they offered when they were last connected. Starts none."""
    file = _file(context, file)
    report = McpFile(file).load()
    if as_json:
        servers, errors = map(_described, report.tools), map(show.problem, report.errors)
        show.as_json({"servers": list(servers), "errors": list(errors)})
    else:
        show.table(
            ("server", "state", "actions", "how"),
            [_row(tool) for tool in report.tools],
            empty=f"No servers in {file}. Add one with: ferrule mcp add",
            cut=(3,),
        )
        for error in report.errors:
            complain(f"ferrule: not loaded: {error}")
    if report.errors:
        raise typer.Exit(1)


@mcp_app.command("test")
def test_server(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The server.")],
    timeout: Annotated[float, typer.Option("--timeout", "-t", min=0.1, help="Seconds to wait for it.")] = 60,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Connect to a server, list its actions and measure how long that takes."""
    file = _file(context, file)
    tool = _find(file, name)

    async def story() -> dict[str, Any]:
        executor = McpExecutor()
        try:
            started = time.perf_counter()
            report = await McpFile(file).discover(executor, [tool], timeout)
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
            raise LoadError(str(error), path=file) from error
        finally:
            await executor.aclose()

    found = run(story())
    if as_json:
        show.as_json(found)
        return
    titled = f"{found['server'] or name} {found['version'] or ''}".strip()
    say(f"{titled}, protocol {found['protocol']}")
    say(f"connected in {found['connect_seconds']:.2f} s, answers in {found['answer_seconds'] * 1000:.1f} ms")
    rows = [(each["name"], each["description"]) for each in found["actions"]]
    show.table(("action", "what it does"), rows, empty="It has no actions.", cut=(1,))


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
    file = _file(context, file)
    project = file.absolute().parent
    sources = [source] if source is not None else [path for _, path in known_files(project)]
    imported: list[ImportedServer] = []
    problems: list[LoadError] = []
    for path in sources:
        if path.absolute() == file.absolute():
            continue
        try:
            imported += import_servers(path, file, project=project, replace=force)
        except LoadError as error:
            problems.append(error)
    if as_json:
        servers = [{"name": i.name, "from": str(i.path), "outcome": i.outcome, "note": i.note} for i in imported]
        show.as_json({"servers": servers, "errors": [str(p) for p in problems]})
    else:
        for each in imported:
            say(f"{each.outcome:<8} {each.name} from {each.path}" + (f": {each.note}" if each.note else ""))
        for problem in problems:
            complain(f"ferrule: not read: {problem}")
        if not imported and not problems:
            say("No servers of other programs were found. Name a file with --from.")
    if source is not None and problems:
        raise typer.Exit(USAGE)


def _find(file: Path, name: str) -> Tool:
    report = McpFile(file).load()
    tools = {tool.id: tool for tool in report.tools}
    if name not in tools:
        for error in report.errors:
            if repr(name) in error.message:
                fail(str(error), code=USAGE)
        fail(f"No server {name!r} in {file}.{did_you_mean(name, tools)} See them with: ferrule mcp list", code=3)
    return tools[name]


def _described(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.id,
        "enabled": tool.spec.enabled,
        "listed": tool.spec.metadata["listed"],
        "how": _how(tool),
        "actions": [capability.name for capability in tool.spec.capabilities],
        "origin": tool.origin,
    }


def _row(tool: Tool) -> tuple[str, str, str, str]:
    state = "off" if not tool.spec.enabled else "listed" if tool.spec.metadata["listed"] else "not listed yet"
    count = str(len(tool.spec.capabilities)) if tool.spec.metadata["listed"] else ""
    return tool.id, state, count, _how(tool)


def _how(tool: Tool) -> str:
    config = tool.target
    assert isinstance(config, McpServerConfig)
    return Redaction().clean_text(" ".join((config.where, *config.args)))


def _file(context: typer.Context, named: Path | None) -> Path:
    """The file that was named, else that of the project; without a project, one in this folder."""
    if named is not None or context.obj is None:
        return named or DEFAULT_FILE
    try:
        config = context.obj.config()
    except FerruleError as error:
        fail(str(error), code=USAGE)
    inside = config.path is not None and config.engine_config.mcp_file is not None
    path = Path(config.placed_engine_config.mcp_file) if inside else DEFAULT_FILE
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
