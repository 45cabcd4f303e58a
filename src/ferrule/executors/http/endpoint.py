"""The `http` executor: a tool that is one HTTP endpoint, as a file describes it.

Whoever wrote the file chose the host, so it may be a private one; a redirect away from it may not lead to one. A
status of 400 or more is a failure of the tool.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ferrule.call import Invocation
from ferrule.errors import CallError, ExecutionFailed, Retry, Transient, TransportFault
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.endpoint_request import fill_endpoint
from ferrule.executors.http.guarded_client import MAX_RESPONSE, GuardedClient, Response, shown_url
from ferrule.executors.http.patience import retry_after
from ferrule.executors.http.response_body import beginning_of_body, read_body

_UNREACHABLE = frozenset({502, 503, 504})
_PASSING = frozenset({408, 425, 429})


class HttpEndpointExecutor:
    """Calls the endpoint in a tool's `implementation_config`: url, method, headers, query, body, timeout."""

    def __init__(self, guard: AddressGuard | None = None, *, max_response: int = MAX_RESPONSE) -> None:
        self._guard, self._max_response = guard or AddressGuard(), max_response
        # One client per host: the connection one tool may make must not serve the redirect of another.
        self._clients: dict[str, GuardedClient] = {}

    async def execute(self, invocation: Invocation, /) -> Any:
        config = invocation.tool.spec.implementation_config
        # Filled in, the URL may hold secrets of the environment: what others see is the URL as written.
        request = fill_endpoint(config, invocation.params, os.environ)
        with request.secrets.hidden_in_errors():
            response = await self._client(request.url).send(
                request.method,
                request.url,
                what=f"{request.method} {shown_url(config['url'])}",
                headers=request.headers,
                content=request.content,
                timeout=config.get("timeout"),
                only_once=not invocation.tool.spec.effects_of(invocation.capability).repeatable,
            )
        if response.status_code >= 400:
            content = request.secrets.hide_in_bytes(response.content)
            raise failure_of_status(invocation.tool.id, replace(response, content=content))
        return request.secrets.hide(read_body(replace(response, url=shown_url(config["url"]))))

    async def aclose(self) -> None:
        """Close idle connections."""
        for client in self._clients.values():
            await client.aclose()

    def _client(self, url: str) -> GuardedClient:
        host = _host(url)
        if host not in self._clients:
            guard = replace(self._guard, allowed_hosts=(*self._guard.allowed_hosts, host))
            self._clients[host] = GuardedClient(guard, max_response=self._max_response)
        return self._clients[host]


def _host(url: str) -> str:
    import httpx

    try:
        return httpx.URL(url).raw_host.decode("ascii")
    except httpx.InvalidURL as error:
        raise Retry(f"the arguments make a URL that is not valid: {error}") from error


def failure_of_status(tool_id: str, response: Response) -> CallError:
    """What a status of 400 or more means: try again later, or do not."""
    said = beginning_of_body(response)
    message = f"the endpoint of {tool_id!r} answered with status {response.status_code}" + (
        f": {said}" if said else "."
    )
    details: dict[str, Any] = {"status_code": response.status_code}
    if (wait := retry_after(response.headers)) is not None:
        details["retry_after"] = wait
    if response.status_code in _UNREACHABLE:
        return TransportFault(message, **details)
    if response.status_code >= 500 or response.status_code in _PASSING:
        return Transient(message, **details)
    return ExecutionFailed(message, **details)
