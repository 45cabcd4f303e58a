"""OAuth for MCP servers elsewhere: logins that the store keeps, encrypted, and their tokens in requests.

A person logs in once (`ferrule mcp login NAME`): the SDK finds the authorization server, registers a client and
exchanges the code. From then on every server that uses the store sends the token and refreshes it; of several that want
to refresh it, one does, because many authorization servers accept a refresh token only once. A token is sent to the
address that the login was for, and to no other.

A separate module, because the SDK takes a second to import.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import ValidationError

from ferrule.core.secrets import Secrets
from ferrule.errors import LockHeld, SetupError, StoreError
from ferrule.kinds.mcp.config import LoginHandler, McpServerConfig, OAuthClientConfig
from ferrule.store import ToolKnowledgeStore
from ferrule.store.credentials import LOCAL_ACCOUNT

logger = logging.getLogger("ferrule.mcp")

EXPIRY_MARGIN: Final = 30.0
"""Seconds before its end at which a token is refreshed."""
REQUEST_TIMEOUT: Final = 30.0
LOCK_TIMEOUT: Final = 60.0
CHECK_INTERVAL: Final = 2.0
"""Seconds after which the store is asked again for a login that was not there."""
MAX_TOKEN_RESPONSE: Final = 1_000_000
"""Bytes."""
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, kw_only=True)
class StoredLogin:
    """What the store keeps of a login."""

    url: str
    """The server that it is for."""
    tokens: dict[str, Any] | None = None
    expires_at: float | None = None
    client: dict[str, Any] | None = None
    """The registration of Ferrule at the authorization server."""
    metadata: dict[str, Any] | None = None
    """What the authorization server says about itself."""
    resource: dict[str, Any] | None = None
    """What the server says about itself as a protected resource."""

    @property
    def access_token(self) -> str | None:
        return None if self.tokens is None else self.tokens.get("access_token")

    @property
    def is_fresh(self) -> bool:
        return self.access_token is not None and (
            self.expires_at is None or time.time() < self.expires_at - EXPIRY_MARGIN
        )

    def with_tokens(self, tokens: OAuthToken) -> StoredLogin:
        lifetime = tokens.expires_in
        expires_at = None if lifetime is None else time.time() + max(0, int(lifetime))
        return replace(self, tokens=tokens.model_dump(mode="json", exclude_none=True), expires_at=expires_at)


class LoginStorage:
    """The login at one server, in the store; also what the SDK asks for tokens."""

    def __init__(self, store: ToolKnowledgeStore, tool_id: str, url: str, secrets: Secrets) -> None:
        self._store, self._secrets = store, secrets
        self.name, self._url = login_name(tool_id), url
        self.context: Any = None
        """The state of the SDK's flow, whose discoveries are stored with the tokens."""

    async def load(self) -> StoredLogin | None:
        text = await self._store.credentials.get(LOCAL_ACCOUNT, self.name)
        login = None if text is None else StoredLogin(**json.loads(text))
        if login is None or login.url != self._url:  # the entry has another address now
            return None
        self._hide(login)
        return login

    async def save(self, login: StoredLogin) -> None:
        self._hide(login)
        await self._store.credentials.set(LOCAL_ACCOUNT, self.name, json.dumps(asdict(login)))

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Wait until no other server refreshes the login, and keep other servers from refreshing it."""
        deadline = time.monotonic() + LOCK_TIMEOUT
        async with AsyncExitStack() as stack:
            while True:
                try:
                    await stack.enter_async_context(self._store.lock(f"credentials/{self.name}"))
                    break
                except LockHeld:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.1)
            yield

    def _hide(self, login: StoredLogin) -> None:
        texts = [(login.tokens or {}).get(key) for key in ("access_token", "refresh_token", "id_token")]
        texts.append((login.client or {}).get("client_secret"))
        self._secrets.add(text for text in texts if text)

    # What the SDK asks for

    async def get_tokens(self) -> OAuthToken | None:
        login = await self.load()
        return None if login is None or login.tokens is None else OAuthToken.model_validate(login.tokens)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        login = (await self.load() or StoredLogin(url=self._url)).with_tokens(tokens)
        client = _to_json(self.context.client_info) or login.client
        metadata, resource = _to_json(self.context.oauth_metadata), _to_json(self.context.protected_resource_metadata)
        await self.save(replace(login, client=client, metadata=metadata, resource=resource))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        login = await self.load()
        return None if login is None or login.client is None else OAuthClientInformationFull(**login.client)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        login = await self.load() or StoredLogin(url=self._url)
        await self.save(replace(login, client=_to_json(client_info)))


def login_name(tool_id: str) -> str:
    """Return the name of a login among the credentials. No user can choose this name for a credential."""
    return f"mcp-login:{tool_id}"


def _to_json(model: Any) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def make_auth(
    config: McpServerConfig,
    tool_id: str,
    store: ToolKnowledgeStore,
    secrets: Secrets,
    login_handler: LoginHandler | None,
) -> httpx2.Auth | None:
    """Make what adds tokens to requests. Return None for a server whose entry has the header `Authorization`."""
    if config.url is None or any(name.lower() == "authorization" for name in config.headers):
        return None
    settings, storage = config.oauth or OAuthClientConfig(), LoginStorage(store, tool_id, config.url, secrets)
    if settings.grant == "client_credentials":
        client_id, secret = settings.client_id or "", settings.client_secret or ""
        provider = ClientCredentialsOAuthProvider(
            config.url, storage, client_id, secret, scope=settings.scope, issuer=settings.issuer
        )
        storage.context = provider.context
        return provider
    if login_handler is not None:
        return InteractiveLogin(config.url, settings, storage, login_handler)
    return SavedLogin(storage)


class SavedLogin(httpx2.Auth):
    """Adds the token of a login to requests, and refreshes it when it has expired or is refused."""

    def __init__(self, storage: LoginStorage) -> None:
        self._storage = storage
        self._login: StoredLogin | None = None
        self._loaded_at = float("-inf")
        self._renewing: asyncio.Task[None] | None = None
        self._refused_refresh_token: str | None = None

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        token = await self._find_token()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code != 401:
            return
        newer = await self._find_token(refused=token or "")
        if newer is not None and newer != token:
            request.headers["Authorization"] = f"Bearer {newer}"
            yield request

    async def _find_token(self, refused: str | None = None) -> str | None:
        login = self._login
        is_usable = login is not None and login.is_fresh and login.access_token != refused
        is_known_absent = login is None and time.monotonic() - self._loaded_at < CHECK_INTERVAL
        if not is_usable and not is_known_absent:
            if self._renewing is None or self._renewing.done():
                # A separate task: a call that is cancelled must not lose a refresh token just issued.
                self._renewing = asyncio.create_task(self._renew(refused))
            await asyncio.shield(self._renewing)
        login = self._login
        return login.access_token if login is not None and login.is_fresh else None

    async def _renew(self, refused: str | None) -> None:
        try:
            self._login, self._loaded_at = await self._storage.load(), time.monotonic()
            if not self._needs_refresh(self._login, refused):
                return
            async with self._storage.lock():
                login = await self._storage.load()  # another server may have refreshed it meanwhile
                if login is not None and self._needs_refresh(login, refused):
                    login = await self._refresh(login)
                self._login = login
        except (SetupError, StoreError, OAuthFlowError, httpx2.HTTPError, ValueError) as error:
            logger.warning("login=<%s> | its token could not be refreshed: %s", self._storage.name, error)

    def _needs_refresh(self, login: StoredLogin | None, refused: str | None) -> bool:
        if login is None or login.tokens is None or (login.is_fresh and login.access_token != refused):
            return False
        refresh_token = login.tokens.get("refresh_token")
        return refresh_token is not None and refresh_token != self._refused_refresh_token

    async def _refresh(self, login: StoredLogin) -> StoredLogin:
        provider = OAuthClientProvider(login.url, OAuthClientMetadata(redirect_uris=None), None)  # type: ignore[arg-type]
        _restore_context(provider, login)
        _check_address(provider._get_token_endpoint())
        request = await provider._refresh_token()
        async with httpx2.AsyncClient(timeout=REQUEST_TIMEOUT) as client:
            response = await client.send(request)
        if response.status_code != 200 or len(response.content) > MAX_TOKEN_RESPONSE:
            if 400 <= response.status_code < 500 and response.status_code != 429:
                self._refused_refresh_token = (login.tokens or {}).get("refresh_token")
            raise OAuthFlowError(f"the authorization server answered {response.status_code}")
        tokens = OAuthToken.model_validate_json(response.content)
        previous = OAuthToken.model_validate(login.tokens)
        unchanged = {
            "scope": tokens.scope or previous.scope,
            "refresh_token": tokens.refresh_token or previous.refresh_token,
        }
        renewed = login.with_tokens(tokens.model_copy(update=unchanged))
        await self._storage.save(renewed)
        return renewed


def _restore_context(provider: OAuthClientProvider, login: StoredLogin) -> None:
    context = provider.context
    try:
        if login.tokens is not None:
            context.current_tokens = OAuthToken.model_validate(login.tokens)
            context.token_expiry_time = login.expires_at
        if login.client is not None:
            context.client_info = OAuthClientInformationFull.model_validate(login.client)
        if login.metadata is not None:
            context.oauth_metadata = OAuthMetadata.model_validate(login.metadata)
        if login.resource is not None:
            context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(login.resource)
    except ValidationError as error:
        raise SetupError(f"The login at {login.url} cannot be read: {error}. Log in again.") from None


class InteractiveLogin(OAuthClientProvider):
    """Logs in with the help of a person whenever the server refuses a request."""

    def __init__(self, url: str, settings: OAuthClientConfig, storage: LoginStorage, handler: LoginHandler) -> None:
        metadata = OAuthClientMetadata(
            client_name="Ferrule",
            redirect_uris=[handler.redirect_uri],  # type: ignore[list-item]
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            scope=settings.scope,
        )
        super().__init__(
            url, metadata, storage, self._show_page, self._read_answer, client_metadata_url=settings.client_metadata_url
        )
        self._storage, self._handler = storage, handler
        storage.context = self.context
        self._answer = ""
        self._own_client: OAuthClientInformationFull | None = None
        if settings.client_id is not None:
            self._own_client = OAuthClientInformationFull(
                client_id=settings.client_id,
                client_secret=settings.client_secret,
                redirect_uris=metadata.redirect_uris,
                token_endpoint_auth_method="none" if settings.client_secret is None else "client_secret_basic",
                issuer=settings.issuer,
            )

    async def _initialize(self) -> None:
        login = await self._storage.load()
        if login is not None:
            _restore_context(self, login)
        client = self.context.client_info
        uris = [] if client is None else [str(uri) for uri in client.redirect_uris or ()]
        if self._own_client is not None:
            self.context.client_info = self._own_client
        elif self._handler.redirect_uri not in uris:  # it was registered for another port: register again
            self.context.client_info = None
        self._initialized = True

    async def _show_page(self, url: str) -> None:
        _check_address(url)
        _check_address(self._get_token_endpoint())  # before anything secret is sent there
        client, metadata = self.context.client_info, self.context.oauth_metadata
        methods = None if metadata is None else metadata.token_endpoint_auth_methods_supported
        if client is not None and client is self._own_client and client.client_secret and methods:
            is_basic = "client_secret_basic" in methods
            client.token_endpoint_auth_method = "client_secret_basic" if is_basic else "client_secret_post"
        self._answer = await self._handler.show(url)

    async def _read_answer(self) -> AuthorizationCodeResult:
        values = parse_qs(urlsplit(self._answer).query)
        if "error" in values:
            details = " ".join(values.get("error_description", ()))
            raise OAuthFlowError(f"the login was refused: {values['error'][0]} {details}".strip())
        code, state, issuer = (values.get(name, [None])[0] for name in ("code", "state", "iss"))
        return AuthorizationCodeResult(code=code or "", state=state, iss=issuer)


def _check_address(url: str) -> None:
    """Raise OAuthFlowError unless what is sent there is encrypted, or stays on this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise OAuthFlowError(f"the authorization server must use https, not {parts.scheme}://{parts.hostname}")
