"""The commands about what a server changed: `ferrule mcp pin|diff|accept`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import printing
from ferrule.cli.mcp import File, choose_file, find_server, mcp_app, require_accepted
from ferrule.cli.prompts import confirm
from ferrule.cli.session import AsJson, Session, fail, run
from ferrule.cli.terminal import echo, print_error
from ferrule.core.content import encode_json
from ferrule.core.names import did_you_mean
from ferrule.core.spec import Tool, ToolCapability
from ferrule.errors import LoadError
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.listing import listed_instructions, pinned_parts
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

__all__ = ["mcp_app"]

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
