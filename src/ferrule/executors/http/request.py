"""The `http_request` tool: any request to any public address.

A response is a result whatever its status: the tool has done its job, and the caller reads `status_code`. Requests that
may be repeated are tried again when the connection breaks or the server is busy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from ferrule.call import Invocation
from ferrule.content import Audio, Image, Output, Resource, as_text, describe_part
from ferrule.errors import TransportFault
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.guarded_client import MAX_RESPONSE, GuardedClient, shown_url
from ferrule.executors.http.header_secrets import HttpRequestConfig, fill_headers
from ferrule.executors.http.patience import IDEMPOTENT, TRIES, fault_of_host, seconds_for, send_patiently
from ferrule.executors.http.request_body import encode_body
from ferrule.executors.http.response_body import read_body


class HttpRequestExecutor:
    """Takes `url`, `method`, `headers`, `body`, `timeout`; gives `status_code`, `headers`, `body`, `url`."""

    def __init__(
        self,
        guard: AddressGuard | None = None,
        config: HttpRequestConfig | None = None,
        *,
        max_response: int = MAX_RESPONSE,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._client = GuardedClient(guard or AddressGuard(), max_response=max_response)
        self._config, self._environ = config or HttpRequestConfig(), environ

    async def execute(self, invocation: Invocation, /) -> Output:
        params = invocation.params
        method, url = str(params.get("method") or "GET").upper(), str(params["url"])
        said = {str(name): as_text(value) for name, value in (params.get("headers") or {}).items()}
        headers, secrets = fill_headers(said, url, self._config.secrets, self._environ)
        what, may_repeat = f"{method} {shown_url(url)}", method in IDEMPOTENT
        content = encode_body(params.get("body"), headers)
        send = partial(
            self._client.send, method, url, what=what, content=content, headers=headers, only_once=not may_repeat
        )
        tries, seconds = TRIES if may_repeat else 1, seconds_for(invocation.context, params.get("timeout"))
        with secrets.hidden_in_errors():
            try:
                response = await send_patiently(send, what=what, tries=tries, seconds=seconds)
            except TransportFault as fault:
                raise fault_of_host(fault) from fault
        body = read_body(response)
        parts = (body,) if isinstance(body, (Image, Audio, Resource)) else ()
        data = {
            "status_code": response.status_code,
            "headers": response.headers,
            "body": describe_part(parts[0]) if parts else body,
            "url": response.url,
            "untrusted": True,
        }
        return Output(data=secrets.hide(data), parts=secrets.hide(parts))

    async def aclose(self) -> None:
        """Close idle connections."""
        await self._client.aclose()
