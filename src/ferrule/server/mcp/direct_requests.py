"""Requests that are answered without the SDK, as what answers them sees them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from starlette.types import Scope

from ferrule.core.call import Progress
from ferrule.core.permission import Principal
from ferrule.kinds.mcp.relay import CAPABILITIES_KEY, LOG_LEVEL_KEY, is_logged
from ferrule.server.authentication import Client
from ferrule.server.mcp.calls import IncomingRequest, decode_headers
from ferrule.server.mcp.direct_answer import DirectAnswer
from ferrule.server.mcp.sessions import McpSession


class DirectRequest(IncomingRequest):
    """A request over HTTP that wants no progress."""

    def __init__(self, principal: Principal, meta: Mapping[str, Any], scope: Scope, client: Client) -> None:
        self.principal, self.may_approve = principal, client.may("approve")
        self.limit = client.calls.slot if client.calls.is_limited else nullcontext
        self._meta, self._scope = meta, scope

    @property
    def meta(self) -> Mapping[str, Any]:
        return self._meta

    @property
    def headers(self) -> Mapping[str, str]:
        return decode_headers(self._scope)

    async def send_progress(self, progress: Progress) -> None:
        """It wants none."""


class NewerRequest(DirectRequest):
    """A request of the newer protocol, whose client wants nothing but the result, and is asked with it."""

    def __init__(self, principal: Principal, meta: Mapping[str, Any], scope: Scope, client: Client) -> None:
        super().__init__(principal, meta, scope, client)
        self.capabilities = meta[CAPABILITIES_KEY]
        self.waits_for_answers = self.uses_older_protocol = False
        self.client_key = self

    @property
    def log_level(self) -> str | None:
        return None

    async def send_log(self, params: Any) -> None:
        """It wants none."""


class OlderRequest(DirectRequest):
    """A request in a session of the older protocol, whose client is asked while it waits."""

    def __init__(
        self,
        principal: Principal,
        meta: Mapping[str, Any],
        scope: Scope,
        client: Client,
        *,
        session: McpSession,
        answer: DirectAnswer,
    ) -> None:
        super().__init__(principal, meta, scope, client)
        self._session, self._answer, self.capabilities = session, answer, session.capabilities
        self.waits_for_answers = self.uses_older_protocol = True
        self.client_key = session.connection

    @property
    def log_level(self) -> str | None:
        level = self._meta.get(LOG_LEVEL_KEY)
        return level if isinstance(level, str) else self._session.log_level

    async def send_request(self, request: Any) -> Any:
        return await self._session.ask(self._answer, request)

    async def send_log(self, params: Any) -> None:
        if is_logged(params.level, self.log_level):
            described = params.model_dump(mode="json", by_alias=True, exclude_none=True)
            message = {"jsonrpc": "2.0", "method": "notifications/message", "params": described}
            await self._answer.send_message(message)
