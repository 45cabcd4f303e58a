"""The commands `ferrule serve` and `ferrule tokens`."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from ferrule.cli import printing
from ferrule.cli.session import AsJson, Session, fail, run_with_store
from ferrule.cli.terminal import echo, print_error
from ferrule.errors import MissingExtra, SetupError
from ferrule.store import ToolKnowledgeStore
from ferrule.store.location import parse_location
from ferrule.telemetry.logs import LogFormat, LogLevel, configure_logs, json_log_line, log_events

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ferrule.server.tokens import AccessToken

tokens_app = typer.Typer(help="Create, list, rotate and revoke the tokens of `ferrule serve`.", no_args_is_help=True)

WORKER_VARIABLE: Final = "FERRULE_SERVE_WORKER"
"""How worker processes get the options of the command."""
GRACE_SECONDS: Final = 30
_UNITS: Final = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}


def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option("--host", help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", min=0, max=65_535, help="The port.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="How many processes.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model that answers questions.")] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", help="Serve HTTPS with this certificate.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="The key of the certificate.")] = None,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help="How the log is written.")] = "text",
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="What is logged; from info on, every request, call and question.")
    ] = "warning",
) -> None:
    """Serve tools and the agent over HTTP and MCP: programs, chat clients, MCP clients and browsers.

    Without tokens it listens on this machine only. Create one with: ferrule tokens new NAME
    """
    session: Session = context.obj
    section = session.config().server
    host, port = host or section.host, section.port if port is None else port
    for package in ("fastapi", "uvicorn"):
        if find_spec(package) is None:
            raise MissingExtra(package, "server")
    from ferrule.server.tokens import Tokens

    has_tokens = run_with_store(session, lambda store: Tokens(store).any_exist())
    is_local = host == "localhost"
    with suppress(ValueError):  # another name
        is_local = is_local or ipaddress.ip_address(host).is_loopback
    is_open = is_local and not has_tokens and not section.trusted_proxies and section.oauth is None
    if not has_tokens and not is_open and section.oauth is None:
        fail("Without tokens, everybody who reaches the server could use it. Create one first: ferrule tokens new NAME")
    _check_certificate(tls_certificate, tls_key)
    _check_port(host, port)
    path, accepted = session.config().path, session.accepted_servers
    options = {
        "config": None if path is None else str(path.absolute()),
        "is_local": is_local,
        "is_open": is_open,
        "model": model,
        "accepted_servers": None if accepted is None else sorted(accepted),
        "log_format": log_format,
        "log_level": log_level,
        "internal_host": section.internal_host
        or (None if tls_certificate is not None and section.internal_url is None else host),
    }
    settings = {"host": host, "port": port, "ssl_certfile": tls_certificate, "ssl_keyfile": tls_key}

    def say_where(actual_port: int) -> None:
        scheme = "https" if tls_certificate is not None else "http"
        lines = [f"serving on {scheme}://{_host_in_url(host)}:{actual_port} (MCP at /mcp). Ctrl-C stops."]
        if is_open:
            lines.append("there are no tokens: every program on this machine may use the server.")
        for line in lines:
            print_error(json_log_line(line) if log_format == "json" else f"ferrule: {line}")

    configure_logs(log_format, log_level)
    _run_server(options, settings, workers or section.workers, section.trusted_proxies, say_where)


def _run_server(
    options: dict[str, Any],
    settings: dict[str, Any],
    workers: int,
    trusted_proxies: Sequence[str],
    on_listening: Callable[[int], None],
) -> None:
    import uvicorn
    from uvicorn.config import STARTUP_FAILURE

    from ferrule.server.listening import LimitedHttpProtocol, SingleServer, Workers

    settings |= {
        "factory": True,
        "lifespan": "on",
        "workers": workers,
        "http": LimitedHttpProtocol,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": GRACE_SECONDS,
        "forwarded_allow_ips": list(trusted_proxies),
        "proxy_headers": bool(trusted_proxies),
    }
    config = uvicorn.Config("ferrule.cli.serve:make_app", **settings)
    if workers > 1:
        with TemporaryDirectory(prefix="ferrule-") as folder:  # which only this user may enter
            _check_socket_folder(folder)
            os.environ[WORKER_VARIABLE] = json.dumps({**options, "socket_folder": folder})
            Workers(config, on_listening).run()
        return
    os.environ[WORKER_VARIABLE] = json.dumps({**options, "socket_folder": None})
    config.load_app()
    server = SingleServer(config, on_listening)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)


def _check_socket_folder(folder: str) -> None:
    """End the command if the folder cannot contain sockets: their paths are short, and some file systems have none."""
    path = f"{folder}/{'0' * 10}.sock"
    try:
        with socket.socket(socket.AF_UNIX) as private_socket:
            private_socket.bind(path)
        os.unlink(path)
    except OSError as error:
        fail(f"Several workers need sockets, which {folder} cannot have: {error}. Set TMPDIR to another folder.")


def make_app() -> ASGIApp:
    """Make the application of one worker process, which follows `ferrule.toml`."""
    from sse_starlette.sse import AppStatus

    from ferrule.server.app import create_worker_app
    from ferrule.server.listening import bind_internal_port

    # Calls over MCP have the same time to end as others; streams without an end are closed by `LimitedHttpProtocol`.
    AppStatus.enable_automatic_graceful_drain = False
    options = json.loads(os.environ[WORKER_VARIABLE])
    configure_logs(options["log_format"], options["log_level"])
    config = _make_session(options).config()
    engine_config = config.engine_config
    internal_socket = None  # the listener for the other servers of a store, if there may be any
    if options["internal_host"] is not None and parse_location(config.store.url).kind == "postgresql":
        port = config.server.internal_port
        try:
            internal_socket = bind_internal_port(options["internal_host"], port)
        except OSError as error:
            raise SetupError(f"The internal listener cannot use the port {port}: {error}") from None
    is_watched = engine_config.auto_reload or engine_config.watch_for_changes
    return create_worker_app(
        partial(_make_project_app, options, None if internal_socket is None else internal_socket.getsockname()[1]),
        config.path if is_watched else None,
        interval=engine_config.reload_interval,
        instant=engine_config.watch_for_changes,
        private_socket=_find_private_socket(options),
        internal_socket=internal_socket,
        grace_seconds=GRACE_SECONDS,
    )


def _find_private_socket(options: dict[str, Any]) -> Path | None:
    """Return where the other workers reach this one; None for the only worker."""
    folder: str | None = options["socket_folder"]
    return None if folder is None else Path(folder, f"{os.getpid()}.sock")


def _make_session(options: dict[str, Any]) -> Session:
    """Open the project in a worker. Which servers may be started was decided when the command began."""
    accepted = options["accepted_servers"]
    path = None if options["config"] is None else Path(options["config"])
    return Session(path, accepted_servers=None if accepted is None else frozenset(accepted))


def _make_project_app(options: dict[str, Any], internal_port: int | None) -> ASGIApp:
    """Make the application for the project as its files are now."""
    from ferrule.cli.ask import build_orchestrator, select_model
    from ferrule.core.model import Model
    from ferrule.core.permission import Principal
    from ferrule.kinds.mcp.relay import ask_client
    from ferrule.library.library import UnifiedToolLibrary
    from ferrule.orchestrator import Orchestrator
    from ferrule.server.app import create_app
    from ferrule.server.call_limits import EACH_TENANT, CallAllowance
    from ferrule.server.mcp.http import VirtualServer
    from ferrule.web import page_routes

    session = _make_session(options)
    config = session.config()
    library = UnifiedToolLibrary(engine=session.engine(on_elicit=ask_client, watch=True), hub=config.hub)
    log_events(library.engine)
    model = select_model(config.agent, options["model"])

    def answer_with(model: Model) -> Callable[[Principal | None], Orchestrator]:
        def make_orchestrator(principal: Principal | None) -> Orchestrator:
            return build_orchestrator(config.agent, library, model, principal=principal)

        return make_orchestrator

    section = config.server
    return create_app(
        library,
        answer_with(model),
        models={name: answer_with(select_model(config.agent, name)) for name in section.models},
        is_local=options["is_local"],
        is_open=options["is_open"] and not section.trusted_proxies,
        allowed_hosts=section.allowed_hosts,
        allowed_origins=section.allowed_origins,
        max_body_size=section.max_body_size,
        tenant_limits={
            name: CallAllowance(
                holder="This tenant" if name == EACH_TENANT else f"The tenant {name!r}",
                per_minute=each.rate,
                max_concurrent=each.concurrent,
            )
            for name, each in section.tenant_limits.items()
        },
        internal_url=_find_internal_url(section.internal_url, options["internal_host"], internal_port),
        internal_secrets=section.internal_secrets,
        private_socket=_find_private_socket(options),
        virtual_servers={
            name: VirtualServer(**section.virtual_server(name).model_dump()) for name in section.virtual_servers
        },
        oauth=section.oauth,
        page=page_routes(),
        tracing=session.tracing,
    )


def _check_certificate(certificate: Path | None, key: Path | None) -> None:
    if certificate is None and key is not None:
        raise SetupError("--tls-key needs --tls-certificate.")
    if certificate is None:
        return
    for file in filter(None, (certificate, key)):
        if not file.is_file():
            raise SetupError(f"There is no file {file}.")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise SetupError(
            f"{certificate} cannot be used as certificate{' with this key' if key else ''}: {error}"
        ) from None


def _check_port(host: str, port: int) -> None:
    """Raise SetupError if the server could not listen there, before it says that it does."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise SetupError(
            f"The server cannot listen on {_host_in_url(host)}:{port}: {error.strerror}. Choose another address with "
            "--host and --port, or end the program that uses this one."
        ) from None


def _find_internal_url(url: str | None, host: str, port: int | None) -> str | None:
    """Find where other servers reach an internal listener; None if that cannot be known."""
    if port is None:
        return None
    if url is not None:
        return url if urlsplit(url).port is not None else f"{url}:{port}"
    if host in ("0.0.0.0", "::"):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect(("192.0.2.1", 9))  # sends nothing; chooses the interface to other networks
                host = str(probe.getsockname()[0])
        except OSError:
            return None
    return f"http://{_host_in_url(host)}:{port}"


def _host_in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# Tokens


@tokens_app.command("new")
def create_token(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The name of the person or program that will use the token.")],
    role: Annotated[
        list[str] | None, typer.Option("--role", "-r", help="viewer, caller, approver or admin; may be repeated.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option("--tool", "-t", help="Only this tool or pattern; may be repeated.")
    ] = None,
    max_effect: Annotated[
        str, typer.Option("--max-effect", help="The strongest effect of a call: read_only, changing or destructive.")
    ] = "destructive",
    tenant: Annotated[str, typer.Option("--tenant", help="The tenant whose data the token gives access to.")] = "",
    rate: Annotated[float | None, typer.Option("--rate", help="Calls a minute.")] = None,
    concurrent: Annotated[int | None, typer.Option("--concurrent", help="Calls at the same time.")] = None,
    expires: Annotated[str | None, typer.Option("--expires", help="For how long: 30m, 12h, 90d.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token. It is printed once, and stored as a hash."""
    from ferrule.core.permission import LOCAL_USER
    from ferrule.server.tokens import AuditLog, Tokens

    async def create(store: ToolKnowledgeStore) -> tuple[AccessToken, str]:
        token, text = await Tokens(store).create(
            name,
            roles=role or ["caller"],
            tools=tool or None,
            max_effect=max_effect,  # type: ignore[arg-type]  # which is checked there
            tenant=tenant,
            calls_per_minute=rate,
            max_concurrent=concurrent,
            expires_in=None if expires is None else parse_duration(expires),
        )
        await AuditLog(store).write(LOCAL_USER, "create_token", name, roles=sorted(token.roles), tenant=tenant)
        return token, text

    token, text = run_with_store(context.obj, create)
    printing.print_outcome({**token.to_dict(), "token": text}, text, as_json=as_json)
    if not as_json:
        print_error(f"Token {name!r} created ({', '.join(sorted(token.roles))}). It is not shown again.")


@tokens_app.command("list")
def list_tokens(context: typer.Context, as_json: AsJson = False) -> None:
    """List the tokens."""
    from ferrule.server.tokens import Tokens

    def describe_state(token: AccessToken) -> str:
        if token.revoked_at is not None:
            return "revoked"
        if token.expires_at is None:
            return "valid"
        expired = token.expires_at < datetime.now().timestamp()
        return f"{'expired' if expired else 'until'} {datetime.fromtimestamp(token.expires_at):%Y-%m-%d %H:%M}"

    tokens = run_with_store(context.obj, lambda store: Tokens(store).list_tokens())
    columns: printing.Columns = {
        "name": lambda token: token.name,
        "roles": lambda token: ", ".join(sorted(token.roles)),
        "tools": lambda token: ", ".join(sorted(token.tools or ["all"])),
        "most": lambda token: token.max_effect,
        "tenant": lambda token: token.tenant or "-",
        "a minute": lambda token: "-" if token.calls_per_minute is None else f"{token.calls_per_minute:g}",
        "at once": lambda token: "-" if token.max_concurrent is None else token.max_concurrent,
        "created": lambda token: f"{datetime.fromtimestamp(token.created_at):%Y-%m-%d}",
        "state": describe_state,
    }
    empty = "There are no tokens. Create one with: ferrule tokens new NAME"
    printing.print_list(tokens, columns, as_json=as_json, empty=empty, describe=lambda token: token.to_dict(), cut=(2,))


@tokens_app.command("rotate")
def rotate_token(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name or id.")],
    overlap: Annotated[
        str, typer.Option("--overlap", help="How long the earlier secret stays valid too: 0m, 12h, 7d.")
    ] = "24h",
    as_json: AsJson = False,
) -> None:
    """Give a token another secret. It is printed once; what the token may do stays."""
    from ferrule.core.permission import LOCAL_USER
    from ferrule.server.tokens import AuditLog, Tokens

    seconds = parse_duration(overlap)

    async def rotate(store: ToolKnowledgeStore) -> tuple[AccessToken, str]:
        token = await Tokens(store).find_by_name(name)
        text = await Tokens(store).rotate(token, seconds)
        await AuditLog(store).write(LOCAL_USER, "rotate_token", token.name, tenant=token.tenant, overlap=seconds)
        return token, text

    token, text = run_with_store(context.obj, rotate)
    printing.print_outcome({**token.to_dict(), "token": text, "overlap": seconds}, text, as_json=as_json)
    if not as_json:
        end = f"for {overlap} more" if seconds else "no more"
        print_error(
            f"Token {token.name!r} has another secret, which is not shown again. The earlier one is valid {end}."
        )


@tokens_app.command("revoke")
def revoke_token(context: typer.Context, name: Annotated[str, typer.Argument(help="Its name or id.")]) -> None:
    """Revoke a token: every server refuses it within five seconds."""
    from ferrule.core.permission import LOCAL_USER
    from ferrule.server.tokens import AuditLog, Tokens

    async def revoke(store: ToolKnowledgeStore) -> None:
        await Tokens(store).revoke(name)
        await AuditLog(store).write(LOCAL_USER, "revoke_token", name)

    run_with_store(context.obj, revoke)
    echo(f"Token {name!r} is revoked.")


def parse_duration(text: str) -> float:
    """Parse `30m`, `12h` or `90d` into seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", text.strip())
    if match is None:
        raise SetupError(f"A duration is written 30m, 12h or 90d, not {text!r}.")
    return float(match[1]) * _UNITS[match[2]]
