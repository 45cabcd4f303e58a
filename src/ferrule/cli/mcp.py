"""MCP servers, and to be one: `ferrule mcp add|remove|enable|disable|list|test|serve|pin|diff|accept`."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import printing
from ferrule.cli.prompts import confirm
from ferrule.cli.session import EXIT_USAGE, AsJson, Session, fail, parse_pairs, run
from ferrule.cli.terminal import echo, print_error
from ferrule.core.content import encode_json
from ferrule.core.names import did_you_mean
from ferrule.core.secrets import Redaction
from ferrule.core.spec import Tool, ToolCapability
from ferrule.errors import CallError, FerruleError, LoadError, SetupError
from ferrule.folder_trust import accept_server
from ferrule.kinds.mcp.config import SERVING_VARIABLE, McpServerConfig, read_server_config
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.listing import listed_instructions, pinned_parts
from ferrule.kinds.mcp.mcp_json import change_server, write_server
from ferrule.kinds.mcp.pins import (
    INSTRUCTIONS,
    ServerPins,
    find_changes,
    find_instructions_changes,
    read_pins,
    write_pins,
)
from ferrule.kinds.mcp.servers import McpFileSource
from ferrule.store import ToolKnowledgeStore

mcp_app = typer.Typer(help="Use the tools of MCP servers.", no_args_is_help=True)

File = Annotated[
    Path | None, typer.Option("--file", "-f", help="The file that lists the servers; else the project's mcp.json.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace servers of the same name.")]
DEFAULT_FILE = Path("mcp.json")


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
        fail("Write the program either after `--` or with --command and --arg, not both.", code=EXIT_USAGE)
    if program and len(program) == 1 and "://" in program[0]:
        url = program[0]
    elif program:
        command, arg = program[0], program[1:]
    try:
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
    except (SetupError, OSError) as error:
        fail(str(error), code=EXIT_USAGE)
    if as_json:
        printing.print_json({"name": name, "file": str(file), "server": entry})
    else:
        echo(f"added {name} to {file}\nTry it with: ferrule mcp test {shlex.quote(name)}")


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """SetupError without program and address, or with a header without a value, as of a variable that is not set."""
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
def remove_server(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The server.")],
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Remove a server from mcp.json."""
    _change_entry(context, file, name, lambda entry: None, "removed", as_json)


@mcp_app.command("enable")
def enable_server(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The server.")],
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Use a server again."""

    def enable(entry: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in entry.items() if key not in ("disabled", "enabled")}

    _change_entry(context, file, name, enable, "enabled", as_json)


@mcp_app.command("disable")
def disable_server(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The server.")],
    file: File = None,
    as_json: AsJson = False,
) -> None:
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
    try:
        change_server(path, name, change)
    except (SetupError, OSError) as error:
        fail(str(error), code=EXIT_USAGE)
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
    """Be an MCP server: offer the project's tools to the client that starts this, on standard input and output."""
    from ferrule.library.library import UnifiedToolLibrary
    from ferrule.server.mcp import McpServer, ask_client

    session: Session = context.obj
    if file is not None and not file.is_file():
        fail(f"There is no file {file}.", code=EXIT_USAGE)
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            fail(f"The folder {folder} cannot be used: {error.strerror}.", code=EXIT_USAGE)
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
    """End this process if it was started by one that serves the same: each would start the next one."""
    served = os.environ.get(SERVING_VARIABLE, "").split(os.pathsep)
    place = str(Path.cwd() if file is None else file.absolute())
    if place in served:
        fail(
            f"{place} is served already by the Ferrule that has started this one. Remove the entry that starts "
            "`ferrule mcp serve` from its mcp.json.",
            code=EXIT_USAGE,
        )
    os.environ[SERVING_VARIABLE] = os.pathsep.join([*filter(None, served), place])


@mcp_app.command("list")
def list_servers(context: typer.Context, file: File = None, as_json: AsJson = False) -> None:
    """List the servers, with what they offered when they were last connected. Starts none."""
    file = choose_file(context, file)
    report = McpFileSource(file).load()
    if as_json:
        servers, errors = map(_describe_server, report.tools), map(printing.problem_to_dict, report.errors)
        printing.print_json({"servers": list(servers), "errors": list(errors)})
    else:
        printing.print_table(
            ("server", "state", "actions", "how"),
            [_server_row(tool) for tool in report.tools],
            empty=f"No servers in {file}. Add one with: ferrule mcp add",
            cut=(3,),
        )
        for error in report.errors:
            print_error(f"ferrule: not loaded: {error}")
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
    is_named, file = file is not None, choose_file(context, file)
    tool = find_server(file, name)
    if not is_named:
        require_accepted(context, tool)

    async def command() -> dict[str, Any]:
        executor = McpExecutor()
        try:
            started = time.perf_counter()
            report = await McpFileSource(file).discover(executor, [tool], timeout)
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

    report = run(command())
    if as_json:
        printing.print_json(report)
        return
    title = f"{report['server'] or name} {report['version'] or ''}".strip()
    echo(f"{title}, protocol {report['protocol']}")
    echo(f"connected in {report['connect_seconds']:.2f} s, answers in {report['answer_seconds'] * 1000:.1f} ms")
    rows = [(action["name"], action["description"]) for action in report["actions"]]
    printing.print_table(("action", "what it does"), rows, empty="It has no actions.", cut=(1,))


def find_server(file: Path, name: str) -> Tool:
    report = McpFileSource(file).load()
    tools = {tool.id: tool for tool in report.tools}
    if name not in tools:
        for error in report.errors:
            if repr(name) in error.message:
                fail(str(error), code=EXIT_USAGE)
        fail(f"No server {name!r} in {file}.{did_you_mean(name, tools)} See them with: ferrule mcp list", code=3)
    return tools[name]


def require_accepted(context: typer.Context, tool: Tool) -> None:
    """End the command when the user has not trusted the entry of this server."""
    assert isinstance(tool.target, McpServerConfig)
    accepted = (context.obj or Session(None)).accepted_servers
    if accepted is not None and tool.target.trust_digest not in accepted:
        fail(f"The server {tool.id!r} is not trusted. Look at its entry, then run: ferrule trust", code=EXIT_USAGE)


def project_folder(context: typer.Context, file: Path) -> Path:
    """The folder whose trust covers a file of servers: that of the project, else the file's own."""
    config = (context.obj or Session(None)).config_before_trust
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


def _server_row(tool: Tool) -> tuple[str, str, str, str]:
    state = "off" if not tool.spec.enabled else "listed" if tool.spec.metadata["listed"] else "not listed yet"
    count = str(len(tool.spec.capabilities)) if tool.spec.metadata["listed"] else ""
    return tool.id, state, count, _transport_of(tool)


def _transport_of(tool: Tool) -> str:
    config = tool.target
    assert isinstance(config, McpServerConfig)
    return Redaction().redact_text(" ".join((config.location, *config.args)))


def choose_file(context: typer.Context, named: Path | None) -> Path:
    """The file named on the command line, else that of the project; without a project, `mcp.json` in this folder."""
    if named is not None or context.obj is None:
        return named or DEFAULT_FILE
    try:
        config = context.obj.config_before_trust
    except FerruleError as error:
        fail(str(error), code=EXIT_USAGE)
    inside = config.path is not None and config.engine_config.mcp_file is not None
    path = Path(config.engine_config_with_paths.mcp_file) if inside else DEFAULT_FILE
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


# What a server changed

Server = Annotated[str | None, typer.Argument(help="The server; all of them if none is named.")]
Timeout = Annotated[float, typer.Option("--timeout", "-t", min=0.1, help="Seconds to wait for each server.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """What a server lists now beside what the user accepted."""

    server: str
    capabilities: list[ToolCapability]
    instructions: str
    pins: ServerPins
    changes: dict[str, str]
    """By the name of the action; under an empty name, of the instructions of the server."""

    @property
    def removed(self) -> list[str]:
        return sorted(self.pins.actions.keys() - {capability.name for capability in self.capabilities})

    @property
    def digest(self) -> str:
        """Of everything that the server offers: `accept` compares it with what was shown."""
        parts = {each.name: pinned_parts(each.listed or each) for each in self.capabilities}
        return sha256(encode_json([self.server, self.instructions, parts])).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        changes = [{"action": action, "diff": diff} for action, diff in self.changes.items()]
        described = {"server": self.server, "known": self.pins.is_known, "changes": changes, "removed": self.removed}
        return {**described, "digest": self.digest}


@mcp_app.command("diff")
def show_changes(
    context: typer.Context, server: Server = None, timeout: Timeout = 60, file: File = None, as_json: AsJson = False
) -> None:
    """Show what servers have changed since you accepted it; exit code 1 if there is anything."""
    comparisons, errors = _compare(context, server, timeout, file)
    if as_json:
        printing.print_json({"servers": [each.to_dict() for each in comparisons], "errors": list(map(str, errors))})
    else:
        for each in comparisons:
            _print_changes(each)
        _print_errors(errors)
    if errors or any(each.changes for each in comparisons):
        raise typer.Exit(1)


@mcp_app.command("pin")
def pin_servers(
    context: typer.Context, server: Server = None, timeout: Timeout = 60, file: File = None, as_json: AsJson = False
) -> None:
    """Accept the instructions and actions of servers that were never used. For changes see: ferrule mcp accept"""
    comparisons, errors = _compare(context, server, timeout, file)
    for each in comparisons:
        if not each.pins.is_known:
            _write(context, each, None)
    if as_json:
        servers = [{**each.to_dict(), "pinned": not each.pins.is_known} for each in comparisons]
        printing.print_json({"servers": servers, "errors": list(map(str, errors))})
    else:
        for each in comparisons:
            if each.pins.is_known:
                _print_changes(each)
            else:
                echo(f"{each.server}: pinned {printing.format_count(len(each.capabilities), 'action')}")
        _print_errors(errors)
    if errors or any(each.changes for each in comparisons):
        raise typer.Exit(1)


@mcp_app.command("accept")
def accept_changes(
    context: typer.Context,
    server: Annotated[str, typer.Argument(help="The server.")],
    action: Annotated[str | None, typer.Argument(help="The action; everything if none is named.")] = None,
    instructions: Annotated[bool, typer.Option("--instructions", help="Only the instructions of the server.")] = False,
    yes: Annotated[
        str | None,
        typer.Option("--yes", metavar="DIGEST", help="Do not ask: accept what was shown with this digest."),
    ] = None,
    timeout: Timeout = 60,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Show what a server has changed, all of it or one part, and accept exactly that."""
    if instructions and action is not None:
        fail("Name an action, or accept the instructions of the server: not both in one command.", code=2)
    name = INSTRUCTIONS if instructions else action or None
    comparisons, errors = _compare(context, server, timeout, file)
    if errors:
        fail(f"not compared: {errors[0]}", code=1)
    comparison = _select(comparisons[0], name)
    is_accepted = bool(comparison.changes) and _is_accepted(comparison, yes, as_json)
    if is_accepted:
        _write(context, comparison, name)
    if as_json:
        accepted = list(comparison.changes) if is_accepted else []
        printing.print_json({"servers": [{**comparison.to_dict(), "accepted": accepted}], "errors": []})
    elif not comparison.changes:
        echo(f"{server}: nothing to accept in {printing.format_count(len(comparison.capabilities), 'action')}")
    elif is_accepted:
        echo(f"{server}: accepted {', '.join(map(_format_name, comparison.changes))}")
    if comparison.changes and not is_accepted:
        raise typer.Exit(1)


def _is_accepted(comparison: _Comparison, yes: str | None, as_json: bool) -> bool:
    """Whether the user accepts what is shown now, or has accepted it where it was shown."""
    if yes is not None and yes != comparison.digest:
        fail(
            f"The server {comparison.server!r} now offers something else than what was shown as {yes!r}. "
            f"Look at it again: ferrule mcp diff {comparison.server}",
            code=1,
        )
    if yes is not None or as_json:
        return yes is not None
    _print_changes(comparison)
    return confirm([], "Accept this?")


def _compare(
    context: typer.Context, server: str | None, timeout: float, file: Path | None
) -> tuple[list[_Comparison], list[LoadError]]:
    """Connect to servers and compare them."""
    path = choose_file(context, file)
    tools = [find_server(path, server)] if server is not None else list(McpFileSource(path).load().tools)
    for tool in tools if file is None else ():
        require_accepted(context, tool)
    session: Session = context.obj

    async def command() -> tuple[list[_Comparison], list[LoadError]]:
        executor = McpExecutor()
        async with session.store() as store:
            try:
                report = await McpFileSource(path).discover(executor, tools, timeout)
                listed = [tool for tool in report.tools if executor.is_connected(tool.id)]
                return [await _compare_server(store, tool) for tool in listed], list(report.errors)
            finally:
                await executor.aclose()

    return run(command())


async def _compare_server(store: ToolKnowledgeStore, tool: Tool) -> _Comparison:
    pins = await read_pins(store, tool.id)
    if pins.problem:
        fail(f"What was accepted of {tool.id!r} cannot be read: {pins.problem}.", code=1)
    changes = {
        capability.name: diff
        for capability in tool.spec.capabilities
        if (diff := find_changes(tool.id, capability, pins))
    }
    instructions = listed_instructions(tool)
    if diff := find_instructions_changes(tool.id, instructions, pins):
        changes = {INSTRUCTIONS: diff, **changes}
    return _Comparison(
        server=tool.id,
        capabilities=tool.spec.capabilities,
        instructions=instructions,
        pins=pins,
        changes=changes,
    )


def _select(comparison: _Comparison, name: str | None) -> _Comparison:
    """The comparison with the changes of what has this name, or with all."""
    names = [capability.name for capability in comparison.capabilities]
    if name and name not in names:
        hint = did_you_mean(name, names)
        fail(f"The server {comparison.server!r} lists no action {name!r}.{hint}", code=3)
    if not comparison.pins.is_known:
        fail(f"The server {comparison.server!r} is not pinned yet. Pin it: ferrule mcp pin {comparison.server}", code=1)
    changes = {part: diff for part, diff in comparison.changes.items() if name in (None, part)}
    return replace(comparison, changes=changes)


def _write(context: typer.Context, comparison: _Comparison, name: str | None) -> None:
    """Accept what has this name, or everything, as it was listed when it was compared."""
    session: Session = context.obj
    capabilities = [each for each in comparison.capabilities if name in (None, each.name)]
    instructions = comparison.instructions if name in (None, INSTRUCTIONS) else None

    async def command() -> None:
        async with session.store() as store:
            write_pins(store, comparison.server, capabilities, comparison.pins, instructions=instructions)
            await store.flush()

    run(command())


def _print_changes(comparison: _Comparison) -> None:
    server = comparison.server
    if not comparison.pins.is_known:
        echo(f"{server}: not pinned yet. It is pinned when it is first used, or with: ferrule mcp pin {server}")
        return
    for name, diff in comparison.changes.items():
        echo(f"{server}: {_format_name(name)}\n{diff}\n")
    if comparison.removed:
        echo(f"{server}: not listed any more: {', '.join(comparison.removed)}")
    if comparison.changes:
        command = f"ferrule mcp accept {server} [ACTION | --instructions] --yes {comparison.digest}"
        echo(f"Accept what is right with: {command}")
    else:
        echo(f"{server}: no changes in {printing.format_count(len(comparison.capabilities), 'action')}")


def _format_name(name: str) -> str:
    return "the instructions of the server" if name == INSTRUCTIONS else name


def _print_errors(errors: list[LoadError]) -> None:
    for error in errors:
        print_error(f"ferrule: not compared: {error}")
