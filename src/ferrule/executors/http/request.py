"""The `http_request` tool: any request to any public address.

A response is a result whatever its status: the tool has done its job, and the caller reads `status_code`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from ferrule.call import Invocation
from ferrule.content import Audio, Image, Output, Resource, as_text, describe_part, encode_json
from ferrule.errors import Retry, Transient, TransportFault
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.guarded_client import MAX_RESPONSE, GuardedClient, shown_url
from ferrule.executors.http.response_body import read_body

_FORM = "application/x-www-form-urlencoded"


class HttpRequestExecutor:
    """Takes `url`, `method`, `headers`, `body`, `timeout`; gives `status_code`, `headers`, `body`, `url`."""

    def __init__(self, guard: AddressGuard | None = None, *, max_response: int = MAX_RESPONSE) -> None:
        self._client = GuardedClient(guard or AddressGuard(), max_response=max_response)

    async def execute(self, invocation: Invocation, /) -> Output:
        params = invocation.params
        method, url = str(params.get("method") or "GET").upper(), str(params["url"])
        headers = {str(name): as_text(value) for name, value in (params.get("headers") or {}).items()}
        try:
            response = await self._client.send(
                method,
                url,
                what=f"{method} {shown_url(url)}",
                content=_encode_body(params.get("body"), headers),
                headers=headers,
                timeout=params.get("timeout"),
            )
        except TransportFault as fault:
            raise _failure_of_host(fault) from fault
        body = read_body(response)
        parts = (body,) if isinstance(body, (Image, Audio, Resource)) else ()
        return Output(
            data={
                "status_code": response.status_code,
                "headers": response.headers,
                "body": describe_part(parts[0]) if parts else body,
                "url": response.url,
            },
            parts=parts,
        )

    async def aclose(self) -> None:
        """Close idle connections."""
        await self._client.aclose()


def _failure_of_host(fault: TransportFault) -> Retry | Transient:
    """One host that cannot be reached, of all there are, must not count against the tool."""
    return Retry(str(fault)) if fault.details.get("unknown_host") else Transient(str(fault))


def _encode_body(body: Any, headers: dict[str, str]) -> bytes | None:
    """The bytes to send; says in the headers what they are unless the caller did."""
    if body is None:
        return None
    if isinstance(body, str):
        return body.encode()
    said = next((value for name, value in headers.items() if name.lower() == "content-type"), None)
    if said is None:
        headers["Content-Type"] = "application/json"
    elif said.startswith(_FORM) and isinstance(body, dict):
        return urlencode(body, doseq=True).encode()
    return encode_json(body)
