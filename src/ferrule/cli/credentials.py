"""The commands `ferrule credentials` and `ferrule mcp login|logout`: secrets for servers elsewhere."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, urlsplit

import typer

from ferrule.cli import printing
from ferrule.cli.mcp import File, choose_file, find_server, require_accepted
from ferrule.cli.mcp_install import mcp_app
from ferrule.cli.session import EXIT_USAGE, AsJson, fail, run
from ferrule.cli.terminal import echo, print_error
from ferrule.errors import CallError, SetupError
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.store.credentials import LOCAL_ACCOUNT, CredentialEntry, check_credential_name

__all__ = ["credentials_app", "mcp_app"]

credentials_app = typer.Typer(
    help="Store what MCP servers elsewhere are sent in your name, encrypted.", no_args_is_help=True
)

LOGIN_TIMEOUT: Final = 600.0
"""Seconds a person has to log in."""
MAX_REQUEST_LINE: Final = 16_384
_CALLBACK_PATH: Final = "/callback"
_PAGE: Final = "<!doctype html><title>Ferrule</title><p>{}</p>"

Token = Annotated[
    str | None, typer.Option("--token", help="Of the client with this token of `ferrule serve`, instead of yours.")
]
Tenant = Annotated[str, typer.Option("--tenant", help="The tenant of that token.")]


def _account(token: str | None, tenant: str) -> str:
    return LOCAL_ACCOUNT if token is None else f"token:{tenant}/{token}"


@credentials_app.command("set")
def set_credential(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name, as in ${credential:NAME}.")],
    token: Token = None,
    tenant: Tenant = "",
) -> None:
    """Store a credential. Its text is read from the terminal, or from standard input."""
    if sys.stdin.isatty():
        secret = typer.prompt(f"The text of {name}", hide_input=True)
    else:
        secret = sys.stdin.read().rstrip("\r\n")

    async def command() -> None:
        check_credential_name(name)
        if not secret.isprintable():
            raise SetupError("A credential is one line of text. Nothing was stored.")
        async with context.obj.store() as store:
            await store.credentials.set(_account(token, tenant), name, secret)

    run(command())
    echo(f"stored {name}")


@credentials_app.command("list")
def list_credentials(context: typer.Context, as_json: AsJson = False) -> None:
    """List the credentials of all accounts, without their texts."""

    async def command() -> list[CredentialEntry]:
        async with context.obj.store() as store:
            entries: list[CredentialEntry] = await store.credentials.list_entries()
            return entries

    entries = run(command())
    if as_json:
        printing.print_json([{"account": e.account, "name": e.name, "updated_at": e.updated_at} for e in entries])
        return
    printing.print_table(
        ("name", "account", "stored"),
        [(e.name, e.account or "yours", f"{datetime.fromtimestamp(e.updated_at):%Y-%m-%d %H:%M}") for e in entries],
        empty="There are no credentials. Store one with: ferrule credentials set NAME",
    )


@credentials_app.command("delete")
def delete_credential(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The credential.")],
    token: Token = None,
    tenant: Tenant = "",
) -> None:
    """Delete a credential. Servers stop using it within seconds."""

    async def command() -> bool:
        async with context.obj.store() as store:
            return bool(await store.credentials.delete(_account(token, tenant), name))

    if not run(command()):
        fail(f"There is no credential {name!r}. See them with: ferrule credentials list", code=3)
    echo(f"deleted {name}")


# Logins


@mcp_app.command("login")
def log_in(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The server.")],
    paste: Annotated[
        bool, typer.Option("--paste", help="The browser is on another machine: paste the address it ends at.")
    ] = False,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Log in at an MCP server by OAuth. The tokens are stored, encrypted, and refreshed by themselves."""
    is_named, file = file is not None, choose_file(context, file)
    tool = find_server(file, name)
    if not is_named:
        require_accepted(context, tool)
    config = tool.target
    assert isinstance(config, McpServerConfig)
    if config.url is None:
        fail(f"The server {name!r} is a program on this machine: nobody logs in there.", code=EXIT_USAGE)
    tool = replace(tool, target=replace(config, start_timeout=LOGIN_TIMEOUT + config.start_timeout))

    async def command() -> int:
        async with context.obj.store() as store, _BrowserLogin(_callback_port(config), paste=paste) as handler:
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
    if as_json:
        printing.print_json({"name": name, "actions": count})
    else:
        echo(f"{name} can be used: {count} actions")


@mcp_app.command("logout")
def log_out(context: typer.Context, name: Annotated[str, typer.Argument(help="The server.")]) -> None:
    """Forget the tokens of a login. Revoke them at the server too, if others may have them."""
    from ferrule.kinds.mcp.oauth import login_name

    async def command() -> bool:
        async with context.obj.store() as store:
            return bool(await store.credentials.delete(LOCAL_ACCOUNT, login_name(name)))

    if not run(command()):
        fail(f"There is no login at {name!r}.", code=3)
    echo(f"logged out of {name}")


def _callback_port(config: McpServerConfig) -> int:
    return 0 if config.oauth is None or config.oauth.callback_port is None else config.oauth.callback_port


class _BrowserLogin:
    """Opens pages in the user's browser, and waits on this machine for where it is sent in the end."""

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
            is_answer = (
                urlsplit(target).path == _CALLBACK_PATH
                and bool(self._state)
                and parse_qs(urlsplit(target).query).get("state") == [self._state]
            )
            text = "You can close this window." if is_answer else "This page expects the end of a login."
            page = _PAGE.format(text).encode()
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
