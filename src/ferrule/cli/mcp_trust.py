"""What MCP servers may offer and are sent: `ferrule mcp pin|diff|accept|login|logout` and `ferrule credentials`."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, urlsplit

import typer

from ferrule.cli import printing
from ferrule.cli.mcp import File, Server, choose_file, find_server, find_trusted_server, require_accepted
from ferrule.cli.mcp_install import mcp_app
from ferrule.cli.session import AsJson, fail, run, run_with_store
from ferrule.cli.terminal import confirm, echo, print_error
from ferrule.core.content import encode_json
from ferrule.core.names import did_you_mean
from ferrule.core.spec import Tool, ToolCapability
from ferrule.errors import CallError, LoadError, SetupError
from ferrule.kinds.mcp.config import McpServerConfig
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
from ferrule.store.credentials import LOCAL_ACCOUNT, CredentialEntry, check_credential_name

__all__ = ["credentials_app", "mcp_app"]

credentials_app = typer.Typer(
    help="Store credentials that are sent to remote MCP servers on your behalf, encrypted.", no_args_is_help=True
)

# What a server changed

AnyServer = Annotated[str | None, typer.Argument(help="The server; all of them if none is named.")]
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
    context: typer.Context, server: AnyServer = None, timeout: Timeout = 60, file: File = None, as_json: AsJson = False
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
    context: typer.Context, server: AnyServer = None, timeout: Timeout = 60, file: File = None, as_json: AsJson = False
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
    server: Server,
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
    """Return whether the user accepts what is shown now, or has named the digest of what was shown."""
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

    async def compare(store: ToolKnowledgeStore) -> tuple[list[_Comparison], list[LoadError]]:
        executor = McpExecutor()
        try:
            report = await McpFileSource(path).discover(executor, tools, timeout)
            listed = [tool for tool in report.tools if executor.is_connected(tool.id)]
            return [await _compare_server(store, tool) for tool in listed], list(report.errors)
        finally:
            await executor.aclose()

    return run_with_store(context.obj, compare)


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
    listed = tool.spec.capabilities
    return _Comparison(server=tool.id, capabilities=listed, instructions=instructions, pins=pins, changes=changes)


def _select(comparison: _Comparison, name: str | None) -> _Comparison:
    """Return the comparison with the changes of one part, or of all parts if `name` is None."""
    names = [capability.name for capability in comparison.capabilities]
    if name and name not in names:
        hint = did_you_mean(name, names)
        fail(f"The server {comparison.server!r} lists no action {name!r}.{hint}", code=3)
    if not comparison.pins.is_known:
        fail(f"The server {comparison.server!r} is not pinned yet. Pin it: ferrule mcp pin {comparison.server}", code=1)
    changes = {part: diff for part, diff in comparison.changes.items() if name in (None, part)}
    return replace(comparison, changes=changes)


def _write(context: typer.Context, comparison: _Comparison, name: str | None) -> None:
    """Accept one part, or all parts if `name` is None, as they were listed when they were compared."""
    capabilities = [each for each in comparison.capabilities if name in (None, each.name)]
    instructions = comparison.instructions if name in (None, INSTRUCTIONS) else None

    async def write(store: ToolKnowledgeStore) -> None:
        write_pins(store, comparison.server, capabilities, comparison.pins, instructions=instructions)
        await store.flush()

    run_with_store(context.obj, write)


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


# Credentials

LOGIN_TIMEOUT: Final = 600.0
"""Seconds a person has to log in."""
MAX_REQUEST_LINE: Final = 16_384
_CALLBACK_PATH: Final = "/callback"

Token = Annotated[
    str | None, typer.Option("--token", help="For the client with this token of `ferrule serve`; default: for you.")
]
Tenant = Annotated[str, typer.Option("--tenant", help="The tenant of that token.")]
CredentialName = Annotated[str, typer.Argument(help="Its name, as in ${credential:NAME}.")]


def _account(token: str | None, tenant: str) -> str:
    return LOCAL_ACCOUNT if token is None else f"token:{tenant}/{token}"


@credentials_app.command("set")
def set_credential(context: typer.Context, name: CredentialName, token: Token = None, tenant: Tenant = "") -> None:
    """Store a credential. Its text is read from the terminal, or from standard input."""
    if sys.stdin.isatty():
        secret = typer.prompt(f"The text of {name}", hide_input=True)
    else:
        secret = sys.stdin.read().rstrip("\r\n")
    check_credential_name(name)
    if not secret.isprintable():
        fail("A credential is one line of text. Nothing was stored.")
    run_with_store(context.obj, lambda store: store.credentials.set(_account(token, tenant), name, secret))
    echo(f"stored {name}")


@credentials_app.command("list")
def list_credentials(context: typer.Context, as_json: AsJson = False) -> None:
    """List the credentials of all accounts, without their texts."""
    entries: list[CredentialEntry] = run_with_store(context.obj, lambda store: store.credentials.list_entries())
    columns: printing.Columns = {
        "name": "name",
        "account": lambda entry: entry["account"] or "yours",
        "stored": lambda entry: f"{datetime.fromtimestamp(entry['updated_at']):%Y-%m-%d %H:%M}",
    }
    rows = [{"account": e.account, "name": e.name, "updated_at": e.updated_at} for e in entries]
    empty = "There are no credentials. Store one with: ferrule credentials set NAME"
    printing.print_list(rows, columns, as_json=as_json, empty=empty)


@credentials_app.command("delete")
def delete_credential(context: typer.Context, name: CredentialName, token: Token = None, tenant: Tenant = "") -> None:
    """Delete a credential. Servers stop using it within seconds."""
    if not run_with_store(context.obj, lambda store: store.credentials.delete(_account(token, tenant), name)):
        fail(f"There is no credential {name!r}. See them with: ferrule credentials list", code=3)
    echo(f"deleted {name}")


# Logins


@mcp_app.command("login")
def log_in(
    context: typer.Context,
    name: Server,
    paste: Annotated[
        bool, typer.Option("--paste", help="For a browser on another machine: you paste the address that it ends at.")
    ] = False,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Log in at an MCP server by OAuth. The tokens are stored, encrypted, and refreshed automatically."""
    _, tool = find_trusted_server(context, file, name)
    config = tool.target
    assert isinstance(config, McpServerConfig)
    if config.url is None:
        fail(f"The server {name!r} is a program on this machine, which needs no login.")
    tool = replace(tool, target=replace(config, start_timeout=LOGIN_TIMEOUT + config.start_timeout))

    port = 0 if config.oauth is None else config.oauth.callback_port or 0

    async def command() -> int:
        async with context.obj.store() as store, _BrowserLogin(port, paste=paste) as handler:
            executor = McpExecutor(store=store)
            executor.login_handler = handler
            try:
                listing = await executor.connect(tool)
            except CallError as error:
                raise SetupError(str(error)) from error
            finally:
                await executor.aclose()
            if not handler.was_shown:
                print_error(f"ferrule: {name!r} asks for no login, or you are logged in already.")
            return len(listing.capabilities)

    count = run(command())
    printing.print_outcome({"name": name, "actions": count}, f"{name} can be used: {count} actions", as_json=as_json)


@mcp_app.command("logout")
def log_out(context: typer.Context, name: Server) -> None:
    """Forget the tokens of a login. Revoke them at the server too, if others may have them."""
    from ferrule.kinds.mcp.oauth import login_name

    if not run_with_store(context.obj, lambda store: store.credentials.delete(LOCAL_ACCOUNT, login_name(name))):
        fail(f"There is no login at {name!r}.", code=3)
    echo(f"logged out of {name}")


class _BrowserLogin:
    """A login in the user's browser. A port of this machine receives the address at which the login ends."""

    def __init__(self, port: int, *, paste: bool) -> None:
        self._port, self._paste = port, paste
        self._server: asyncio.Server | None = None
        self._state = ""
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.redirect_uri = ""
        self.was_shown = False

    async def __aenter__(self) -> _BrowserLogin:
        try:
            self._server = await asyncio.start_server(self._receive, "127.0.0.1", self._port, limit=MAX_REQUEST_LINE)
        except OSError as error:
            raise SetupError(f"The port {self._port} for the login cannot be used: {error}") from None
        port = self._server.sockets[0].getsockname()[1]
        self.redirect_uri = f"http://127.0.0.1:{port}{_CALLBACK_PATH}"
        return self

    async def __aexit__(self, *exc: Any) -> None:
        if self._server is not None:
            self._server.close()

    async def show(self, url: str, /) -> str:
        self.was_shown = True
        self._state = parse_qs(urlsplit(url).query).get("state", [""])[0]
        print_error(f"ferrule: log in here: {url}")
        if self._paste:
            print_error("ferrule: then paste the address at which your browser ends (it cannot be opened there):")
            line: str = await asyncio.to_thread(sys.stdin.readline)
            return line.strip()
        await asyncio.to_thread(webbrowser.open, url)
        async with asyncio.timeout(LOGIN_TIMEOUT):
            return await self._answer

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = (await reader.readuntil(b"\n")).decode("latin-1").split()
            target = line[1] if len(line) > 1 else ""
            # Only the answer to our own question: any page can make a browser open this address.
            parts = urlsplit(target)
            has_state = bool(self._state) and parse_qs(parts.query).get("state") == [self._state]
            is_answer = has_state and parts.path == _CALLBACK_PATH
            text = "You can close this window." if is_answer else "This page expects the end of a login."
            page = f"<!doctype html><title>Ferrule</title><p>{text}</p>".encode()
            status = "200 OK" if is_answer else "400 Bad Request"
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n"
            writer.write(f"{head}Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode() + page)
            await writer.drain()
            if is_answer and not self._answer.done():
                self._answer.set_result(target)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # not a browser
        finally:
            writer.close()
