"""An MCP server on loopback that wants tokens, with its authorization server."""

import base64
import hashlib
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.ports import reserved_port
from tests.support.waiting import until_sync


class ProtectedServer:
    """The server and what it has seen. Tokens are valid while they are in `tokens`."""

    def __init__(self, port: int) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self.url = f"{self.origin}/mcp"
        self.tokens: set[str] = set()
        self.refresh_tokens: set[str] = set()
        self.lifetime = 3_600
        self.needs_token = True
        self.refusal: dict[str, Any] | None = None
        """The error that requests with a token are answered with."""
        self.logins = self.refreshes = 0
        self.seen_headers: list[dict[str, str]] = []
        self._codes: dict[str, str] = {}
        server = MCPServer("protected", log_level="ERROR")

        @server.tool()
        async def show_header(name: str, ctx: Context) -> str:
            """A header of the request."""
            request: Any = ctx.request_context.request
            return str(request.headers.get(name, "none"))

        @server.resource("header://{name}")
        async def header_resource(name: str, ctx: Context) -> str:
            """A header of the request."""
            request: Any = ctx.request_context.request
            return str(request.headers.get(name, "none"))

        self._mcp_app = server.streamable_http_app()
        routes = [
            Route("/.well-known/oauth-protected-resource/mcp", self._describe_resource),
            Route("/.well-known/oauth-authorization-server", self._describe_issuer),
            Route("/register", self._register, methods=["POST"]),
            Route("/authorize", self._authorize),
            Route("/token", self._issue_token, methods=["POST"]),
            Mount("/", self._check_token(self._mcp_app)),
        ]
        self.app = Starlette(routes=routes, lifespan=self._mcp_app.router.lifespan_context)

    async def _describe_resource(self, request: Request) -> Response:
        return JSONResponse({"resource": self.url, "authorization_servers": [self.origin], "scopes_supported": ["use"]})

    async def _describe_issuer(self, request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.origin,
                "authorization_endpoint": f"{self.origin}/authorize",
                "token_endpoint": f"{self.origin}/token",
                "registration_endpoint": f"{self.origin}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
            }
        )

    async def _register(self, request: Request) -> Response:
        return JSONResponse({**(await request.json()), "client_id": "registered"}, 201)

    async def _authorize(self, request: Request) -> Response:
        code = secrets.token_urlsafe(8)
        self._codes[code] = request.query_params["code_challenge"]
        values = {"code": code, "state": request.query_params["state"]}
        return RedirectResponse(f"{request.query_params['redirect_uri']}?{urlencode(values)}", 302)

    async def _issue_token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        if form["grant_type"] == "authorization_code":
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            is_allowed = self._codes.pop(form["code"], "") == base64.urlsafe_b64encode(digest).decode().rstrip("=")
            self.logins += 1
        else:
            is_allowed = form["refresh_token"] in self.refresh_tokens
            self.refresh_tokens.discard(form["refresh_token"])  # each is accepted once
            self.refreshes += 1
        if not is_allowed:
            return JSONResponse({"error": "invalid_grant"}, 400)
        token, refresh_token = f"access-{secrets.token_hex(8)}", f"refresh-{secrets.token_hex(8)}"
        self.tokens.add(token)
        self.refresh_tokens.add(refresh_token)
        return JSONResponse(
            {
                "access_token": token,
                "token_type": "Bearer",
                "expires_in": self.lifetime,
                "refresh_token": refresh_token,
                "scope": "use",
            }
        )

    def _check_token(self, app: ASGIApp) -> ASGIApp:
        async def check(scope: Scope, receive: Receive, send: Send) -> None:
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.seen_headers.append(headers)
            if self.needs_token and headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
                await Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})(scope, receive, send)
                return
            if self.refusal is not None and scope["method"] == "POST":
                message = await Request(scope, receive).json()
                answer = {"jsonrpc": "2.0", "id": message.get("id"), "error": self.refusal}
                await JSONResponse(answer, 400)(scope, receive, send)
                return
            await app(scope, receive, send)

        return check


@contextmanager
def protected_server() -> Iterator[ProtectedServer]:
    with reserved_port() as port:
        protected = ProtectedServer(port)
        config = uvicorn.Config(protected.app, port=port, log_level="error", ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            until_sync(lambda: server.started)
            yield protected
        finally:
            server.should_exit = True
            thread.join()
