"""Whether the server answers a request: hosts, origins, tokens, sizes; and what passes of headers.

Every request passes `AccessControl` before any route sees it. Without a valid token only `PUBLIC_PATHS` and the web
page are answered; a server that was started before any token existed listens on this machine alone, whose user may do
everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule.server.authentication import Authenticator, Client
from ferrule.server.mcp.requests import CLIENT_HEADERS
from ferrule.server.responses import Problem, is_endless, problem_of_error

logger = logging.getLogger("ferrule.server")

SESSION_COOKIE: Final = "ferrule_session"
PUBLIC_PATHS: Final = frozenset({"/healthz", "/readyz"})
API_PREFIXES: Final = ("/v1/", "/mcp")
"""Never public, whatever routes the page has."""
PUBLIC_PREFIXES: Final = ("/.well-known/",)
MAX_KNOWN_ADDRESSES: Final = 100
Headers: TypeAlias = Mapping[bytes, bytes]
MAX_BODY_SIZE: Final = 16 * 1024 * 1024
LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
FORWARDED_HEADERS: Final = frozenset(b"cdn-loop forwarded forwarded-for via x-real-ip x-varnish".split())
FORWARDED_PREFIXES: Final = tuple(
    b"cf- fly- tailscale- x-amz-cf- x-amzn- x-appengine- x-arr- x-azure- x-envoy- x-forwarded x-original- "
    b"x-vercel-".split()
)
FORWARDED_SUFFIXES: Final = (b"client-ip", b"clientip")
"""What proxies and tunnels add to the requests that they pass on: whole names, and their beginnings and ends."""
REQUEST_HEADERS: Final = frozenset(
    b"accept accept-encoding content-length content-type host idempotency-key if-modified-since if-none-match "
    b"last-event-id origin range traceparent tracestate transfer-encoding user-agent".split()
)
"""What routes see of a request, besides the headers of MCP: tokens and cookies end here."""
RESPONSE_HEADERS: Final = frozenset(
    b"accept-ranges allow cache-control content-disposition content-encoding content-length content-range "
    b"content-security-policy content-type etag idempotency-replayed last-modified location mcp-protocol-version "
    b"mcp-session-id referrer-policy retry-after set-cookie vary www-authenticate x-accel-buffering "
    b"x-content-type-options x-frame-options".split()
)
"""Headers that a response may have; no other header leaves the server."""
SESSION_PATH: Final = "/v1/session"
_CUT_OFF: Final = Problem(
    503,
    "The server was stopped before it had answered this request, and has cancelled what it did for it. Look at the "
    "records of its calls before you repeat it.",
)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SECURITY_HEADERS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]


class AccessControl:
    """The layer that decides whether a request is answered."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        is_local: bool,
        allowed_hosts: Collection[str] = (),
        allowed_origins: Collection[str] = (),
        max_body_size: int = MAX_BODY_SIZE,
        public_routes: Sequence[Route] = (),
    ) -> None:
        """`is_local`: the server listens on this machine alone, so requests for other hosts come from elsewhere."""
        self._app, self._authenticator, self._max_body_size = app, authenticator, max_body_size
        self._hosts = frozenset(allowed_hosts) | (LOCAL_HOSTS if is_local else frozenset())
        self._checks_hosts = is_local or bool(allowed_hosts)
        self._origins = frozenset(allowed_origins)
        self._public_routes = tuple(public_routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # websockets are not served
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = dict(reversed(scope["headers"]))  # of several with one name, the first counts
        guarded = GuardedSend(send)
        try:
            self._check_host(headers)
            self._check_origin(headers)
            self._check_body(headers, scope["method"])
            text = find_token_text(headers)
            client = scope.setdefault("state", {})["client"] = await self._find_client(scope, headers, text)
            _limit_headers(scope)
        except Exception as error:
            await problem_of_error(error).to_response(scope["path"])(scope, receive, guarded.send)
            return
        if client is not None:
            guarded.find_client = partial(self._authenticator.find_client, text)
        try:
            await self._app(scope, limit_body(receive, self._max_body_size), guarded.send)
        except asyncio.CancelledError:
            if is_endless(scope) or not await guarded.end(_CUT_OFF.to_response(scope["path"])):
                raise

    def _check_host(self, headers: Headers) -> None:
        if not self._checks_hosts:
            return
        host = headers.get(b"host", b"").decode("latin-1")
        if _split_url(f"//{host}").hostname not in self._hosts:
            raise Problem(421, f"This server does not answer for the host {host[:100]!r}. See allowed_hosts.")

    def _check_origin(self, headers: Headers) -> None:
        """Refuse pages of other sites: they must not make requests or open streams in the name of their visitor."""
        if b"origin" not in headers:
            return
        origin = headers[b"origin"].decode("latin-1")
        if origin in self._origins:
            return
        if _split_url(origin).netloc != headers.get(b"host", b"").decode("latin-1"):
            raise Problem(403, f"Requests from the origin {origin[:100]!r} are not accepted. See allowed_origins.")

    def _check_body(self, headers: Headers, method: str) -> None:
        if method in _SAFE_METHODS:
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise Problem(400, "The header Content-Length is not a number.")
        if int(length) > self._max_body_size:
            raise Problem(413, f"The body of a request may have at most {self._max_body_size:,} bytes.")
        has_body = length != b"0" or b"transfer-encoding" in headers
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if has_body and kind != b"application/json":  # which no form of another site can send
            raise Problem(415, "Send JSON, with the header Content-Type: application/json.")

    async def _find_client(self, scope: Scope, headers: Headers, text: str | None) -> Client | None:
        path = scope["path"]
        if path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIXES):
            return None
        if not path.startswith(API_PREFIXES) and any(
            route.matches(scope)[0] is Match.FULL for route in self._public_routes
        ):
            return None
        client = await self._authenticator.find_client(text)
        if client is None:
            raise Problem(
                401,
                "This needs a valid token: send it as `Authorization: Bearer …`. `ferrule tokens new` creates one.",
                headers={"WWW-Authenticate": self._authenticator.challenge(text)},
            )
        # Proxies that add no header speak the oldest version of HTTP, unless somebody has configured another.
        is_forwarded = scope.get("http_version") == "1.0" or any(
            name in FORWARDED_HEADERS or name.startswith(FORWARDED_PREFIXES) or name.endswith(FORWARDED_SUFFIXES)
            for name in headers
        )
        if client.token is None and is_forwarded:
            raise Problem(
                403,
                "This server has no tokens and answers this machine alone; a proxy has forwarded the request from "
                "elsewhere. Create a token: `ferrule tokens new NAME`.",
            )
        return client


@lru_cache(MAX_KNOWN_ADDRESSES)
def _split_url(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError:
        raise Problem(400, f"{text[:100]!r} is not a valid address.") from None


def find_token_text(headers: Headers) -> str | None:
    """Return the token of a request, from its header or the cookie of a session."""
    scheme, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() == "bearer" and text.strip():
        return text.strip()
    if b"cookie" not in headers:
        return None
    return cookie_parser(headers[b"cookie"].decode("latin-1")).get(SESSION_COOKIE)


def _limit_headers(scope: Scope) -> None:
    """Remove the headers that routes do not need. The state has all headers, for servers that they are passed on to."""
    headers, may_see_cookie = scope["headers"], scope["path"] == SESSION_PATH
    scope["state"][CLIENT_HEADERS] = headers
    scope["headers"] = [
        (name, value)
        for name, value in headers
        if name in REQUEST_HEADERS or name.startswith(b"mcp-") or (may_see_cookie and name == b"cookie")
    ]


def limit_body(receive: Receive, max_size: int) -> Receive:
    """Enforce the size limit while a body arrives, whatever length was announced."""
    rest = max_size

    async def receive_within_limit() -> Message:
        nonlocal rest
        message = await receive()
        if message["type"] == "http.request":
            rest -= len(message.get("body", b""))
            if rest < 0:
                raise Problem(413, "The request is too long.")
        return message

    return receive_within_limit


class GuardedSend:
    """Sends a response with the headers that it may and must have.

    A stream whose client is not valid any more is ended, instead of sending it what happens after that.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.find_client: Callable[[], Awaitable[Client | None]] | None = None
        """Whose response it is; None for public ones."""
        self._has_ended = False
        self._content_type: bytes | None = None
        """None until the response has begun."""

    async def send(self, message: Message) -> None:
        if self._has_ended:
            return
        if message["type"] == "http.response.start":
            headers = [pair for pair in message["headers"] if pair[0].lower() in RESPONSE_HEADERS]
            names = {name for name, _ in headers}
            headers += [pair for pair in _SECURITY_HEADERS if pair[0] not in names]
            self._content_type = next((value for name, value in headers if name.lower() == b"content-type"), b"")
            message = {**message, "headers": headers}
        elif message.get("more_body"):
            self._has_ended = not await self._is_client_valid()
            if self._has_ended:  # the server then tells the application that the client has disconnected
                message = {"type": "http.response.body", "body": b""}
        else:
            self._has_ended = True
        await self._send(message)

    async def end(self, problem: Response) -> bool:
        """Send a problem in place of the response, or as the last event of its stream; False if neither is possible."""
        body = bytes(problem.body)
        if self._content_type is None:
            head = {"type": "http.response.start", "status": problem.status_code, "headers": problem.raw_headers}
            await self.send(head)
        elif self._content_type.startswith(b"text/event-stream"):
            body = b"event: error\ndata: " + body + b"\n\n"
        else:
            return False
        await self.send({"type": "http.response.body", "body": body})
        return True

    async def _is_client_valid(self) -> bool:
        try:
            return self.find_client is None or await self.find_client() is not None
        except Exception as error:  # the store is not available
            logger.warning("error=<%s> | a stream was ended: its token could not be checked", error)
            return False
