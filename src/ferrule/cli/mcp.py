"""MCP servers, and to be one: `ferrule mcp add|remove|enable|disable|list|test|import|install|serve`."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
import tomllib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import printing
from ferrule.cli.session import AsJson, Session, fail, parse_pairs, run
from ferrule.cli.terminal import echo, print_error
from ferrule.config import FerruleConfig, VirtualServerSection
from ferrule.core.names import did_you_mean
from ferrule.core.secrets import Redaction
from ferrule.core.spec import Tool
from ferrule.errors import CallError, LoadError, SetupError
from ferrule.folder_trust import accept_server
from ferrule.kinds.mcp.config import SERVING_VARIABLE, McpServerConfig, read_server_config
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.mcp_json import change_server, write_server
from ferrule.kinds.mcp.servers import McpFileSource

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
        "env": parse_pairs(env, "--env"),
        "cwd": cwd,
        "url": url,
        "headers": parse_pairs([re.sub(r"^([\w-]+):\s*", r"\1=", each) for each in header or ()], "--header"),
        "timeout": timeout,
    }
    if not (command or url):
        raise SetupError(
            f"What is the server {name!r}? Write its program: ferrule mcp add {name} -- PROGRAM ARGUMENTS; or its "
            f"address: ferrule mcp add {name} https://…"
        )
    for title, value in options["headers"].items():
        if value.strip() in ("", "Bearer", "Basic", "Token"):
            raise SetupError(
                f"The header {title} has no value. To have a variable filled in when the server is used, write it in "
                f"single quotes: --header '{title}: Bearer ${{VARIABLE}}'"
            )
    entry = {key: value for key, value in options.items() if value}
    config = read_server_config(entry, folder=file.absolute().parent)
    write_server(file, name, entry, replace=force)
    accept_server(project_folder(context, file), name, config)  # the user has just written it
    lines = [f"added {name} to {file}", f"Try it with: ferrule mcp test {shlex.quote(name)}"]
    printing.print_outcome({"name": name, "file": str(file), "server": entry}, *lines, as_json=as_json)


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
    described = {"name": name, "file": str(path), "outcome": outcome}
    printing.print_outcome(described, f"{outcome} {name} in {path}", as_json=as_json)


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
        bool | None,
        typer.Option(
            "--plain-names/--server-names",
            help="Name actions as their servers do, where unique, or SERVER__ACTION.",
        ),
    ] = None,
    bundled: Annotated[
        bool, typer.Option("--bundled", help="Offer the bundled tools too, and those of installed packages.")
    ] = False,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Also offer the servers of this file.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Offer the project of this folder, as far as you trust it.")
    ] = None,
) -> None:
    """Serve the servers of mcp.json and the project's tools to the MCP client that starts this, on standard input.

    Bundled tools are offered with --bundled, where ferrule.toml names them, or where --tool or --virtual selects them.
    """
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
        section = VirtualServerSection(plain_names=True)
        if virtual is not None:
            section = session.config().server.virtual_server(virtual)
        named = None if bundled or tools or virtual is not None else _find_named_tools(session.config())
        engine = session.engine(on_elicit=ask_client, watch=True, mcp_file=file, bundled=named)
        library = UnifiedToolLibrary(engine=engine, hub=session.config().hub)
        server = McpServer(
            library,
            memory=memory,
            tools=section.tools if tools is None else tools,
            search=search or section.search,
            plain_names=section.plain_names if plain_names is None else plain_names,
        )
        async with library:
            if sys.stdin.isatty():
                print_error("ferrule: waiting for an MCP client on standard input. Ctrl-C stops.")
            await server.serve_stdio()

    run(command())


def _find_named_tools(config: FerruleConfig) -> Collection[str] | None:
    """Return the bundled tools that ferrule.toml names; None if it says by `builtin_tools` which are offered."""
    section = {} if config.path is None else tomllib.loads(config.path.read_text("utf-8")).get("engine", {})
    if "builtin_tools" in section or "FERRULE_ENGINE_BUILTIN_TOOLS" in os.environ:
        return None
    return config.tools.plugins.keys()


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
    config = tool.target
    assert isinstance(config, McpServerConfig)
    return {
        "name": tool.id,
        "enabled": tool.spec.enabled,
        "listed": tool.spec.metadata["listed"],
        "how": Redaction().redact_text(" ".join((config.location, *config.args))),
        "actions": [capability.name for capability in tool.spec.capabilities],
        "origin": tool.origin,
    }


def choose_file(context: typer.Context, named: Path | None) -> Path:
    """Choose the file named on the command line, else the project's; without a project, `mcp.json` in this folder."""
    if named is not None:
        return named
    config = context.obj.config_before_trust
    inside = config.path is not None and config.engine_config.mcp_file is not None
    path = Path(config.engine_config_with_paths.mcp_file) if inside else DEFAULT_FILE
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
