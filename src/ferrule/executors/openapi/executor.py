"""The `openapi` executor: one operation of an API.

Who wrote the document is not known, so the guard holds for its server as for any other address: a private one must be
allowed in the configuration. A status of 400 or more is a failure of the tool.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ferrule.call import Invocation
from ferrule.errors import ExecutorNotFound
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.endpoint import failure_of_status
from ferrule.executors.http.guarded_client import MAX_RESPONSE, GuardedClient, shown_url
from ferrule.executors.http.response_body import read_body
from ferrule.executors.openapi.operation import Api, Operation
from ferrule.executors.openapi.request import fill_operation


class OpenApiExecutor:
    """Calls the operation that a tool's `Api` has for an action."""

    def __init__(self, guard: AddressGuard | None = None, *, max_response: int = MAX_RESPONSE) -> None:
        self._client = GuardedClient(guard or AddressGuard(), max_response=max_response)

    async def execute(self, invocation: Invocation, /) -> Any:
        operation = _operation(invocation)
        # Filled in, the URL may hold secrets: what others see is the URL as the document has it.
        shown = shown_url(f"{operation.server}{operation.path}")
        request = fill_operation(operation, invocation.params, os.environ)
        with request.secrets.hidden_in_errors():
            response = await self._client.send(
                request.method,
                request.url,
                what=f"{request.method} {shown}",
                headers=request.headers,
                content=request.content,
                only_once=not invocation.tool.spec.effects_of(invocation.capability).repeatable,
            )
        if response.status_code >= 400:
            content = request.secrets.hide_in_bytes(response.content)
            raise failure_of_status(
                f"{invocation.tool.id}.{invocation.capability.name}", replace(response, content=content)
            )
        if request.method == "HEAD":
            return request.secrets.hide({"status_code": response.status_code, "headers": response.headers})
        return request.secrets.hide(read_body(replace(response, url=shown)))

    async def aclose(self) -> None:
        """Close idle connections."""
        await self._client.aclose()


def _operation(invocation: Invocation) -> Operation:
    api, action = invocation.tool.target, invocation.capability.name
    if not isinstance(api, Api) or action not in api.operations:
        raise ExecutorNotFound(f"tool {invocation.tool.id!r} has no operation {action!r}: load it with read_openapi.")
    return api.operations[action]
