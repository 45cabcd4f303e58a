"""A provider that is asked over HTTP: the request goes out, JSON comes back, and what went wrong is said in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

from ferrule.content import encode_json
from ferrule.errors import CallError, ExecutionFailed, Refuse, Transient, TransportFault
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.guarded_client import GuardedClient, Response
from ferrule.executors.http.patience import retry_after
from ferrule.executors.http.response_body import beginning_of_body
from ferrule.executors.secrets import Secrets
from ferrule.tools.search_web.search import Found, Request, Row, Search

MAX_RESPONSE = 3_000_000
_UNREACHABLE = frozenset({502, 503, 504})


class Api(Protocol):
    """How one provider is spoken to."""

    name: str

    def request(self, search: Search, /) -> Request: ...

    def rows(self, answer: dict[str, Any], /) -> Sequence[Row]:
        """The results in an answer. What is not as it should be may raise TypeError, LookupError or ValueError."""

    def failure(self, response: Response, answer: Any, /) -> CallError | None:
        """What a status of 400 or more means, where that is known better than by the number."""


class HttpProvider:
    """Searches by an API. Whoever set it up chose its host, so that may be a private one."""

    def __init__(self, api: Api, *, url: str, guard: AddressGuard, key: str | None = None) -> None:
        self._api, self._url = api, url
        self._secrets = Secrets()
        if key:
            self._secrets.add([key])
        host = urlsplit(url).hostname or ""
        guard = replace(guard, allowed_hosts=(*guard.allowed_hosts, host))
        self._client = GuardedClient(guard, max_response=MAX_RESPONSE)

    @property
    def name(self) -> str:
        return self._api.name

    async def find(self, search: Search, /) -> Found:
        request = self._api.request(search)
        with self._secrets.hidden_in_errors():
            response = await self._send(request)
            # Here too: what is cut out of it might begin or end in the middle of the key.
            response = replace(response, content=self._secrets.hide_in_bytes(response.content))
            answer = self._secrets.hide(_json(response))
            if response.status_code >= 400:
                raise self._api.failure(response, answer) or self._failure(response, answer)
            return Found(rows=self._rows(response, answer), cannot=request.cannot)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _send(self, request: Request) -> Response:
        is_get = request.body is None
        query = f"?{urlencode(request.params, errors='replace')}" if request.params else ""
        headers = {"Accept": "application/json", **request.headers}
        return await self._client.send(
            "GET" if is_get else "POST",
            f"{self._url.rstrip('/')}{request.url}{query}",
            what=f"the search with {self.name}",
            headers=headers if is_get else {**headers, "Content-Type": "application/json"},
            content=None if is_get else encode_json(request.body),
        )

    def _rows(self, response: Response, answer: Any) -> Sequence[Row]:
        if isinstance(answer, dict):
            try:
                return self._api.rows(answer)
            except (TypeError, LookupError, ValueError, AttributeError):
                pass
        said = beginning_of_body(response, 200)
        raise ExecutionFailed(
            f"{self.name} did not answer with search results in JSON but with: {said}", untrusted=True
        )

    def _failure(self, response: Response, answer: Any) -> CallError:
        status = response.status_code
        said = said_in(answer) or beginning_of_body(response, 200)
        message = f"{self.name} answered with status {status}" + (f": {said}" if said else ".")
        facts: dict[str, Any] = {"untrusted": True} if said else {}
        if status == 429:
            wait = retry_after(response.headers)
            return Transient(message, **facts, **({} if wait is None else {"retry_after": wait}))
        if status in (401, 403):
            return Refuse(f"{message} A person must look after the key or the address in the configuration.", **facts)
        if status in _UNREACHABLE:
            return TransportFault(message, **facts)
        return Transient(message, **facts) if status >= 500 else ExecutionFailed(message, **facts)


def said_in(answer: Any) -> str:
    """The message in an error's JSON, wherever it stands: `error`, `detail`, `message`, or one inside another."""
    for _ in range(4):
        if isinstance(answer, str):
            return " ".join(answer.split())[:300]
        if not isinstance(answer, Mapping):
            return ""
        answer = next((answer[name] for name in ("error", "detail", "message") if name in answer), None)
    return ""


def _json(response: Response) -> Any:
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        return None
