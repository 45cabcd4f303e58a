"""The HTTP server: one application for programs, MCP clients, OpenAI clients and the page.

The layers of a request, outermost first. `create_worker_app` adds the first two, `create_app` the others:

    InternalListener     serves the application to the other servers and workers too, if there may be others
    ReloadableApp        makes everything below again when ferrule.toml changes
    ObservedRequests     counts requests and their times, and writes the access log
    TracedApp            makes the request part of a trace, if traces are configured
    InternalRequests     runs calls for the other servers and takes their messages, at the internal listener
    AccessControl        checks host, origin, token and size, and limits the headers
    FrequentRequests     answers plain calls before they are routed
    FastAPI              all other routes
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, FastAPI, Query
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ferrule.config import OAuthSection
from ferrule.core.aio import cancel_all
from ferrule.core.events import ToolEngineEvent, ToolEngineEventType
from ferrule.core.permission import CallPolicy
from ferrule.errors import FerruleError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.policy.policy import check_policy
from ferrule.server import access_routes, call_routes, chat_routes, question_routes, tool_routes
from ferrule.server.access import MAX_BODY_SIZE, SESSION_COOKIE, AccessControl
from ferrule.server.api_document import complete_document
from ferrule.server.authentication import Authenticator, Client
from ferrule.server.call_limits import CallAllowance, CallLimits
from ferrule.server.fleet import describe_event
from ferrule.server.listening import InternalListener
from ferrule.server.mcp.http import McpHttpApp, RequestForwarder, VirtualServer
from ferrule.server.metrics import ObservedRequests
from ferrule.server.oauth import TokenVerifier
from ferrule.server.reloading import MakeApp, ReloadableApp
from ferrule.server.responses import (
    Problem,
    encode_event,
    event_stream,
    handle_error,
    handle_invalid_request,
    json_response,
    mark_endless,
)
from ferrule.server.services import AnyClient, MakeOrchestrator, ReadingClient, Services, ServicesOfApp
from ferrule.server.stateful_servers import InternalEndpoint, InternalRequests, StatefulServers
from ferrule.server.store_changes import CHANGED, Part
from ferrule.server.tokens import SESSION_SECONDS, Tokens
from ferrule.telemetry.http import TracedApp
from ferrule.telemetry.tracing import Tracing

logger = logging.getLogger("ferrule.server")

MAX_QUEUED_EVENTS: Final = 1_000
"""Of one listener; a slower one loses events and is told how many."""


def add_layers(app: ASGIApp, layers: Sequence[Middleware | None]) -> ASGIApp:
    """Wrap an application. The first layer is the outermost one; None stands for a layer that is not needed."""
    for layer in filter(None, reversed(layers)):
        app = layer.cls(app, *layer.args, **layer.kwargs)
    return app


def create_worker_app(
    make_app: MakeApp,
    file: Path | None,
    *,
    interval: float,
    instant: bool,
    private_socket: Path | None,
    internal_socket: socket.socket | None,
    grace_seconds: int,
) -> ASGIApp:
    """Make the application of a worker process, which makes the application of `make_app` again when `file` changes.

    At `private_socket` the application is also served to the other workers, and at `internal_socket`, which is bound
    to a port, to the other servers; each is None if there are none.
    """
    has_others = private_socket is not None or internal_socket is not None
    return add_layers(
        ReloadableApp(make_app, file, interval=interval, instant=instant),
        [
            Middleware(InternalListener, private_socket, internal_socket, grace_seconds=grace_seconds)
            if has_others
            else None
        ],
    )


def create_app(
    library: UnifiedToolLibrary,
    make_orchestrator: MakeOrchestrator | None = None,
    *,
    is_local: bool = True,
    is_open: bool = False,
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
    virtual_servers: Mapping[str, VirtualServer | Collection[str]] | None = None,
    max_body_size: int | None = None,
    oauth: OAuthSection | None = None,
    policy: CallPolicy | None = None,
    models: Mapping[str, MakeOrchestrator] | None = None,
    tenant_limits: Mapping[str, CallAllowance] | None = None,
    internal_url: str | None = None,
    private_socket: Path | None = None,
    internal_secrets: Sequence[str] = (),
    page: Sequence[Route] = (),
    tracing: Tracing | None = None,
) -> ASGIApp:
    """Make the application that serves a library, which is opened and closed with it.

    `is_local`: it listens on this machine alone. `is_open`: requests need no token until the first one is created.
    `make_orchestrator` makes what answers the questions of one principal; without it there are only tools.
    `oauth` names an issuer whose tokens are accepted too. `virtual_servers` are selections of tools, served to MCP
    clients at `/mcp/NAME`. `policy` decides about all calls of the clients instead of the library's; the
    orchestrators that `make_orchestrator` makes must have it too. `models` make what answers with another model, for
    clients that choose it by its name. `tenant_limits` are for all tokens of a tenant together, `*` for each tenant
    without an entry; where the library's limits are shared by all servers, so are those of tokens and tenants. At
    `internal_url` the other servers of the store reach the internal listener, for the MCP sessions that this server
    has opened and the stateful MCP servers that it has started; at `private_socket`, those reach it that share its
    port. They prove by one of the `internal_secrets` that they belong to the fleet. `page` are the routes of the web
    page, which are public: what it shows, it reads with the visitor's token. `tracing` makes each request part of a
    trace.
    """
    check_policy(policy)
    tokens = Tokens(library.engine.store)
    verifier = None if oauth is None else TokenVerifier(oauth)
    limits = CallLimits(library.engine.store, library.engine.concurrency.config, tenant_limits)
    authenticator = Authenticator(tokens, limits, is_open=is_open and verifier is None, verifier=verifier)
    services = Services(
        library, tokens, limits, make_orchestrator, policy, models, internal_url, private_socket, internal_secrets
    )
    fleet, forwarder = services.fleet, RequestForwarder(services.fleet)
    selections: dict[str, VirtualServer | Collection[str]] = {"": VirtualServer(), **(virtual_servers or {})}
    mcp_apps = {
        f"/mcp/{name}" if name else "/mcp": McpHttpApp(library, each, policy, forwarder)
        for name, each in selections.items()
    }

    services.mcp_sessions.update((path, each.sessions) for path, each in mcp_apps.items())
    shared = None if fleet.address is None else StatefulServers(library.engine, fleet)
    mcp_servers: list[McpHttpApp | InternalEndpoint] = [*mcp_apps.values()]
    mcp_servers += [] if shared is None else [shared.endpoint]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with library:
            async with _run_beside_requests(services, mcp_servers, has_model=make_orchestrator is not None):
                yield
            services.metrics.write()
            await limits.aclose()
            if shared is not None:
                await shared.aclose()
            await forwarder.aclose()
            await services.aclose()

    app = FastAPI(title="Ferrule", version=_version(), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.services, app.state.authenticator = services, authenticator
    tool_calls = call_routes.ToolCallApp(services)
    _add_routes(app, tool_calls, mcp_apps, verifier, page)
    return add_layers(
        app,
        [
            Middleware(ObservedRequests, services.metrics),
            Middleware(TracedApp, tracing) if tracing is not None else None,
            Middleware(InternalRequests, shared.endpoint, fleet) if shared is not None else None,
            Middleware(
                AccessControl,
                authenticator=authenticator,
                is_local=is_local,
                allowed_hosts=allowed_hosts,
                allowed_origins=allowed_origins,
                public_routes=page,
                max_body_size=max_body_size or MAX_BODY_SIZE,
            ),
            Middleware(FrequentRequests, tool_calls, mcp_apps),
        ],
    )


def _add_routes(
    app: FastAPI,
    tool_calls: call_routes.ToolCallApp,
    mcp_apps: Mapping[str, McpHttpApp],
    verifier: TokenVerifier | None,
    page: Sequence[Route],
) -> None:
    app.router.routes.append(Route("/v1/tools/{name}/call", tool_calls, methods=["POST"]))
    for each in (
        tool_routes.router,
        call_routes.router,
        tool_routes.servers_router,
        question_routes.router,
        chat_routes.router,
        access_routes.router,
        access_routes.credentials_router,
        access_routes.costs_router,
        router,
    ):
        app.include_router(each)
    app.router.routes += [] if verifier is None else verifier.routes()
    for path, mcp_app in mcp_apps.items():
        # In front: the routes are tried in their order, and this one is used most.
        app.router.routes.insert(0, Route(path, mcp_app, methods=None))
    app.router.routes.extend(page)
    for error_type in (Problem, FerruleError, HTTPException, Exception):
        app.add_exception_handler(error_type, handle_error)
    app.add_exception_handler(RequestValidationError, handle_invalid_request)
    complete_document(app)


def _version() -> str:
    from ferrule import __version__

    return __version__


@asynccontextmanager
async def _run_beside_requests(
    services: Services, mcp_servers: Iterable[McpHttpApp | InternalEndpoint], *, has_model: bool
) -> AsyncIterator[None]:
    """Run what a server does beside answering requests: samples, the fleet, approved runs, sessions of MCP."""
    await services.fleet.register()
    work = [services.limit_samples.run(), services.fleet.run()]
    if has_model:
        work.append(services.continuations.run())
    tasks = [asyncio.create_task(each) for each in work]
    async with AsyncExitStack() as stack:
        for mcp_server in mcp_servers:
            await stack.enter_async_context(mcp_server.run())
        yield
    await cancel_all(tasks)
    await services.continuations.aclose()


class FrequentRequests:
    """Answers single calls over HTTP, and plain calls and lists over MCP: routing would take longer than they do."""

    def __init__(self, app: ASGIApp, tool_calls: call_routes.ToolCallApp, mcp_apps: Mapping[str, McpHttpApp]) -> None:
        """`mcp_apps` by their paths."""
        self._app, self._tool_calls, self._mcp_apps = app, tool_calls, mcp_apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            if (name := self._tool_calls.find_name(scope["path"])) is not None:
                scope["endpoint"], scope["path_params"] = self._tool_calls, {"name": name}  # for traces
                await self._tool_calls(scope, receive, send)
                return
            if (mcp_app := self._mcp_apps.get(scope["path"])) is not None:
                scope["endpoint"], scope["path_params"] = mcp_app, {}
                try:
                    rest = await mcp_app.answer_directly(scope, receive, send)
                except Problem as error:  # the body is too long or not complete
                    await error.to_response()(scope, receive, send)
                    return
                if rest is None:
                    return
                receive = rest
        await self._app(scope, receive, send)


# Health, sessions and events


router = APIRouter()


@router.get("/healthz", tags=["server"])
async def get_health() -> Response:
    """Return whether the process answers."""
    return json_response({"status": "ok", "version": _version()})


@router.get("/readyz", tags=["server"])
async def get_readiness(services: ServicesOfApp) -> Response:
    """Return whether the server can do all its work: the store answers, and has accepted all records."""
    await services.check_store()
    return json_response({"status": "ok"})


@router.get("/metrics", tags=["server"])
async def get_metrics(services: ServicesOfApp, client: ReadingClient) -> Response:
    """Return calls, requests, durations, rejections, slots and queues of all workers, in Prometheus' format."""
    if not client.sees_all_tenants:
        raise Problem(403, "Metrics are about all tenants: use a token without a tenant, with the role admin.")
    living = await services.fleet.collect_metrics()
    return Response(services.metrics.render(living), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.post("/v1/session", tags=["access"], status_code=201)
async def open_session(request: Request, services: ServicesOfApp, client: AnyClient) -> Response:
    """Exchange a token for a cookie, with which a page can make requests and read events."""
    if client.token is None:
        raise Problem(409, "This server has no tokens: requests from this machine need none.")
    response = json_response({"name": client.token.name, "roles": sorted(client.token.roles)}, 201)
    response.set_cookie(
        SESSION_COOKIE,
        await services.tokens.create_session(client.token),
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.delete("/v1/session", tags=["access"])
async def close_session(request: Request, services: ServicesOfApp, client: AnyClient) -> Response:
    """End a session."""
    text = request.cookies.get(SESSION_COOKIE)
    session = None if text is None else await services.tokens.find(text)
    if text is None or session is None or session.parent_id is None:
        raise Problem(404, "There is no session.")
    await services.tokens.revoke(session.token_id)
    request.app.state.authenticator.forget(session.token_id)
    response = json_response({"ended": True})
    response.delete_cookie(SESSION_COOKIE)
    return response


@router.get("/v1/me", tags=["access"])
async def show_client(client: AnyClient) -> Response:
    """Return who the client is, and what it may do."""
    permissions = [name for name in ("read", "call", "approve", "administer") if client.may(name)]
    token = None if client.token is None else client.token.to_dict()
    return json_response({"name": client.name, "permissions": permissions, "token": token})


@router.get("/v1/events", tags=["events"])
async def stream_events(
    services: ServicesOfApp,
    client: ReadingClient,
    request: Request,
    types: Annotated[str | None, Query(description="Only these types, separated by commas.")] = None,
) -> Response:
    """Return what happens, on any server of the store, and what the client may see of it, as server-sent events.

    `changed` names the parts of the store that any server has changed: `approvals`, `runs`, `calls`.
    """
    names = None if types is None else {name.strip() for name in types.split(",")}
    unknown = (names or set()) - {CHANGED, *(each.value for each in ToolEngineEventType)}
    if unknown:
        raise Problem(422, f"There are no events of the type {', '.join(sorted(unknown))}.")
    mark_endless(request.scope)
    return event_stream(_read_events(services, client, names), request)


async def _read_events(services: Services, client: Client, names: set[str] | None) -> AsyncIterator[bytes]:
    queue: asyncio.Queue[ToolEngineEvent | list[Part]] = asyncio.Queue(MAX_QUEUED_EVENTS)
    lost = 0

    def add(event: ToolEngineEvent | list[Part]) -> None:
        nonlocal lost
        try:
            queue.put_nowait(event)
        except asyncio.QueueFull:
            lost += 1

    async def receive(event: ToolEngineEvent) -> None:
        add(event)

    def is_wanted(event: ToolEngineEvent) -> bool:
        return (names is None or event.event_type.value in names) and services.visibility(client).shows_event(event)

    subscriptions = []
    if names != {CHANGED}:
        subscriptions.append(services.engine.subscribe(receive, is_wanted))
        subscriptions.append(services.fleet.subscribe(lambda event: add(event) if is_wanted(event) else None))
    if names is None or CHANGED in names:
        subscriptions.append(services.changes.subscribe(add))
    try:
        yield b": connected\n\n"
        while True:
            event = await queue.get()
            if lost:
                yield encode_event("lost", {"events": lost})
                lost = 0
            if isinstance(event, list):
                yield encode_event(CHANGED, {"parts": event})
            else:
                yield encode_event(event.event_type.value, describe_event(event))
    finally:
        for unsubscribe in subscriptions:
            with suppress(Exception):
                unsubscribe()
