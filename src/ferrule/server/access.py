"""Who makes a request, and whether the server answers it: hosts, origins, tokens, sessions, sizes and rates.

Every request passes `AccessControl` before any route sees it. Without a valid token only `PUBLIC_PATHS` and the web
page are answered; a server that was started before any token existed listens on this machine alone, whose user may do
everything.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule.core.aio import retrieve_exception
from ferrule.core.permission import LOCAL_USER, Principal
from ferrule.errors import StoreError, text_with_notes
from ferrule.server.call_limits import CallLimits, ClientCalls
from ferrule.server.endless_responses import is_endless
from ferrule.server.mcp.calls import CLIENT_HEADERS
from ferrule.server.oauth import TokenVerifier
from ferrule.server.problems import Problem, problem_of_error
from ferrule.server.tokens import TOKEN_PREFIX, AccessToken, Permission, Tokens, hash_token

logger = logging.getLogger("ferrule.server")

SESSION_COOKIE: Final = "ferrule_session"
PUBLIC_PATHS: Final = frozenset({"/healthz", "/readyz"})
API_PREFIXES: Final = ("/v1/", "/mcp")
"""Never public, whatever routes the page has."""
PUBLIC_PREFIXES: Final = ("/.well-known/",)
CHECK_INTERVAL: Final = 2.0
"""Seconds for which a token is valid without asking the store: a revoked one is refused everywhere within this time."""
MAX_ANSWER_AGE: Final = 300.0
"""Seconds for which a token is valid while the store does not answer."""
LOOKUP_TIMEOUT: Final = 1.0
"""Seconds that a request with a token that was valid before waits for the store."""
MAX_LOOKUPS: Final = 4
"""At the same time: a store that hangs must not take all threads, whatever tokens clients invent."""
MAX_KNOWN_TOKENS: Final = 10_000
MAX_KNOWN_ADDRESSES: Final = 100
Headers: TypeAlias = Mapping[bytes, bytes]
MAX_BODY_SIZE: Final = 16 * 1024 * 1024
LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
FORWARDED_HEADERS: Final = frozenset(
    b"fastly-client-ip fly-client-ip forwarded true-client-ip via x-client-ip x-cluster-client-ip x-original-host "
    b"x-real-ip".split()
)
FORWARDED_PREFIXES: Final = (b"cf-", b"x-amzn-", b"x-envoy-", b"x-forwarded-", b"tailscale-")
"""What proxies and tunnels add to the requests that they pass on."""
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
"""What a response may have; nothing else leaves the server, whoever set it."""
SESSION_PATH: Final = "/v1/session"
_CUT_OFF: Final = Problem(
    503,
    "The server was stopped before it had answered this request, and has cancelled what it did for it. Look at the "
    "records of its calls before you repeat it.",
)
_NO_TOKEN: Final = ""
"""In place of the hash of a token: whether requests need one."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SECURITY_HEADERS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]


@dataclass(eq=False, kw_only=True)
class Client:
    """Who makes requests: the holder of a token, or the user of this machine where there are no tokens."""

    token: AccessToken | None
    calls: ClientCalls

    @property
    def principal(self) -> Principal:
        return LOCAL_USER if self.token is None else self.token.principal

    @property
    def agent_principal(self) -> Principal | None:
        """Who makes the calls that a model chooses; None for the orchestrator's default."""
        return None if self.token is None else self.token.agent_principal

    @property
    def name(self) -> str:
        return self.principal.label

    @property
    def identity(self) -> str | None:
        """Of its token or session; None for the user of this machine."""
        return None if self.token is None else self.token.token_id

    @property
    def tenant(self) -> str:
        return "" if self.token is None else self.token.tenant

    def add_tenant(self, conversation_id: str) -> str:
        """The conversation's id in the store, with the tenant in front, so that the ids of tenants never collide."""
        return f"{self.tenant}/{conversation_id}" if self.tenant else conversation_id

    @property
    def sees_all_tenants(self) -> bool:
        return self.token is None or self.token.sees_all_tenants

    def may(self, permission: Permission) -> bool:
        return self.token is None or self.token.may(permission)

    def require(self, permission: Permission) -> None:
        if not self.may(permission):
            roles = ", ".join(sorted(self.token.roles)) if self.token is not None else ""
            headers = {"WWW-Authenticate": 'Bearer error="insufficient_scope"'}
            raise Problem(403, f"The token {self.name!r} ({roles}) may not {permission}.", headers=headers)


@dataclass(eq=False, slots=True)
class _Answer:
    """What the store has said about a token."""

    client: Client | None
    """None if the token is not valid."""
    asked_at: float
    due_at: float
    """When the store is to be asked again."""


class Authenticator:
    """Finds the client of a request by its token or session."""

    def __init__(
        self, tokens: Tokens, limits: CallLimits, *, is_open: bool, verifier: TokenVerifier | None = None
    ) -> None:
        """`is_open`: requests need no token, until one is created. `verifier` accepts tokens of an issuer too."""
        self._tokens, self._limits, self._is_open, self._verifier = tokens, limits, is_open, verifier
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        """By the hashes of tokens."""
        self._lookups: dict[str, asyncio.Task[Client | None]] = {}
        self._lookup_slots = {kind: asyncio.Semaphore(MAX_LOOKUPS) for kind in ("known", "own", "issuer")}
        self._is_failing = False
        self._local = Client(token=None, calls=ClientCalls())

    async def find_client(self, text: str | None) -> Client | None:
        """The client with this token; the local user where no tokens exist, whatever a client sends.

        While the store does not answer, what it has said in the last `MAX_ANSWER_AGE` seconds counts. Raises StoreError
        if it has said nothing.
        """
        if self._is_open:
            local = await self._find(_NO_TOKEN, None)
            if local is not None:
                return local
            self._is_open = False  # also when all tokens have expired
        return None if text is None else await self._find(hash_token(text), text)

    async def _find(self, key: str, text: str | None) -> Client | None:
        now = time.monotonic()
        answer = self._find_answer(key, now)
        if answer is not None and now < answer.due_at:
            return answer.client
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = asyncio.create_task(self._look_up(key, text))
            lookup.add_done_callback(partial(self._end_lookup, key))
        await asyncio.wait({lookup}, timeout=None if answer is None else LOOKUP_TIMEOUT)
        if lookup.cancelled():  # the token was revoked meanwhile
            return await self._find(key, text)
        if answer is None or (lookup.done() and not isinstance(lookup.exception(), StoreError)):
            return lookup.result()
        if not lookup.done():
            answer.due_at = float("inf")  # until the look-up has ended
        return answer.client

    def _find_answer(self, key: str, now: float) -> _Answer | None:
        answer = self._answers.get(key)
        if answer is None or now - answer.asked_at >= (CHECK_INTERVAL if answer.client is None else MAX_ANSWER_AGE):
            return None
        token = None if answer.client is None else answer.client.token
        return answer if token is None or self._tokens.is_valid(token) else None

    async def _look_up(self, key: str, text: str | None) -> Client | None:
        # Neither invented tokens nor those of a slow issuer hold up the tokens that are known.
        is_own = text is None or text.startswith(TOKEN_PREFIX)
        async with self._lookup_slots["known" if key in self._answers else "own" if is_own else "issuer"]:
            asked_at = time.monotonic()
            try:
                client = await self._ask_store(key, text)
            except StoreError as error:
                if key in self._answers:
                    self._answers[key].due_at = time.monotonic() + CHECK_INTERVAL
                if not self._is_failing:
                    logger.warning("error=<%s> | tokens cannot be looked up", text_with_notes(error))
                self._is_failing = True
                raise
        self._is_failing = False
        self._answers[key] = _Answer(client, asked_at, asked_at + CHECK_INTERVAL)
        self._answers.move_to_end(key, last=client is not None)  # texts that are no tokens must not replace tokens
        if len(self._answers) > MAX_KNOWN_TOKENS:
            self._answers.popitem(last=False)
        return client

    async def _ask_store(self, key: str, text: str | None) -> Client | None:
        if text is None:
            return None if await self._tokens.any_exist() else self._local
        verifier = None if text.startswith(TOKEN_PREFIX) else self._verifier
        token = await (self._tokens.find(text) if verifier is None else verifier.verify(text))
        if token is None:
            return None
        earlier = self._answers.get(key)
        if earlier is not None and earlier.client is not None and earlier.client.token == token:
            return earlier.client
        return Client(token=token, calls=self._limits.find(token))

    def _end_lookup(self, key: str, lookup: asyncio.Task[Client | None]) -> None:
        del self._lookups[key]
        retrieve_exception(lookup)  # nobody may have waited for it
        if (answer := self._answers.get(key)) is not None:
            answer.due_at = min(answer.due_at, time.monotonic() + CHECK_INTERVAL)

    def on_token_created(self) -> None:
        """From now on requests need a token: ask the store at the next one."""
        self._answers.pop(_NO_TOKEN, None)

    def forget(self, token_id: str) -> None:
        """Ask the store again about a token and its sessions, because it was just revoked here."""
        for key, answer in list(self._answers.items()):
            token = None if answer.client is None else answer.client.token
            if token is not None and token_id in (token.token_id, token.parent_id):
                del self._answers[key]
                if (lookup := self._lookups.get(key)) is not None:
                    lookup.cancel()  # what it finds may be from before

    def challenge(self, text: str | None) -> str:
        """The header `WWW-Authenticate` for a request without a valid token."""
        challenge = "Bearer" if self._verifier is None else self._verifier.challenge
        if text is None:
            return challenge
        return f'{challenge}{"," if self._verifier is not None else ""} error="invalid_token"'


class AccessControl:
    """The outermost layer of the application."""

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
        if scope["type"] != "http":  # there are no websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = dict(reversed(scope["headers"]))  # of several with one name, the first counts
        body, guarded = LimitedBody(receive, self._max_body_size), GuardedSend(send)
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
            await self._app(scope, body.receive, guarded.send)
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
        """A page of another site must not make requests in the name of the user who visits it, nor open streams."""
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
        if client.token is None and any(
            name in FORWARDED_HEADERS or name.startswith(FORWARDED_PREFIXES) for name in headers
        ):
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
    """The token that a request brings, in its header or as the cookie of a session."""
    scheme, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() == "bearer" and text.strip():
        return text.strip()
    if b"cookie" not in headers:
        return None
    return cookie_parser(headers[b"cookie"].decode("latin-1")).get(SESSION_COOKIE)


def _limit_headers(scope: Scope) -> None:
    """Remove the headers that routes do not need; those that may be passed on are found in the state."""
    headers, may_see_cookie = scope["headers"], scope["path"] == SESSION_PATH
    scope["state"][CLIENT_HEADERS] = headers
    scope["headers"] = [
        (name, value)
        for name, value in headers
        if name in REQUEST_HEADERS or name.startswith(b"mcp-") or (may_see_cookie and name == b"cookie")
    ]


class LimitedBody:
    """Enforces the size limit while a body arrives, whatever length was announced."""

    def __init__(self, receive: Receive, max_size: int) -> None:
        self._receive, self._rest = receive, max_size

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._rest -= len(message.get("body", b""))
            if self._rest < 0:
                raise Problem(413, "The request is too long.")
        return message


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
