"""`api_caller`: calls of the APIs that the configuration names.

The configuration has the address and the secrets; a caller chooses a path below it, a query and a body. So a model uses
an API without ever seeing its key, and cannot take the key elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from ferrule.call import ToolExecutionContext
from ferrule.content import Audio, Image, Output, Resource, as_text, describe_part
from ferrule.errors import CallError, NeedsApproval, Refuse, Retry, TransportFault
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.endpoint import failure_of_status
from ferrule.executors.http.guarded_client import GuardedClient, Response, shown_url
from ferrule.executors.http.origins import is_base_address
from ferrule.executors.http.patience import IDEMPOTENT, TRIES, fault_of_host, seconds_for, send_patiently
from ferrule.executors.http.request_body import encode_body
from ferrule.executors.http.response_body import read_body
from ferrule.executors.secrets import Secrets
from ferrule.executors.variables import expand_variables
from ferrule.names import did_you_mean
from ferrule.sources.tool_options import tool
from ferrule.spec import ToolCategory
from ferrule.tools.api_caller.config import ApiConfig
from ferrule.tools.api_caller.paths import address_below

_TOLD_HEADERS: Final = ("etag", "last-modified", "link", "location", "x-next-page", "x-total-count")
"""Headers that a caller may need to go on."""
_METHOD_INSTEAD: Final = frozenset({"_method", "_httpmethod", "x-http-method-override"})
"""By these names, in a query or a form, servers are told to take a request for one of another method."""


class ApiCaller:
    """Calls APIs by their names."""

    def __init__(
        self,
        apis: Mapping[str, ApiConfig],
        *,
        guard: AddressGuard,
        environ: Mapping[str, str],
        tried_by_engine: bool,
    ) -> None:
        """`tried_by_engine`: the engine tries failed calls again, so this does not."""
        self._apis, self._guard, self._environ = apis, guard, environ
        self._tries = 1 if tried_by_engine else TRIES
        # One client per API: the connection one may make must not serve the redirect of another.
        self._clients: dict[tuple[str, str], GuardedClient] = {}

    @tool(
        category=ToolCategory.HTTP,
        subcategory="api",
        tags=["api", "http", "request", "rest", "web service", "接口", "调用", "请求"],
        max_output=200_000,
        examples=[{"api": "github", "path": "repos/python/cpython"}],
    )
    async def api_caller(
        self,
        api: str,
        path: str,
        context: ToolExecutionContext,
        method: str = "GET",
        query: dict[str, Any] | None = None,
        body: Any = None,
    ) -> Output:
        """Call a web API that is set up here by its name; keys are sent by themselves. 按名称调用已配置的接口。

        Args:
            api: the name of the API
            path: the path below the address of the API, such as users/7
            method: the HTTP method
            query: what stands in the query, by name; a list repeats
            body: what to send: an object or a list as JSON, a text as it is
        """
        config = self._config(api)
        method = self._method(api, config, method, path, context)
        secrets = Secrets([config.base_url, config.headers, config.query], self._environ)
        with secrets.hidden_in_errors():
            response = await self._send(api, config, method, path, query or {}, body, context)
            if response.status_code >= 400:
                raise _failure(api, replace(response, content=secrets.hide_in_bytes(response.content)))
        return _told(api, response, secrets)

    async def aclose(self) -> None:
        """Close idle connections."""
        for client in self._clients.values():
            await client.aclose()

    # Steps

    def _config(self, api: str) -> ApiConfig:
        config = self._apis.get(api)
        if config is None:
            known = ", ".join(self._apis)
            raise Retry(f"there is no API {api[:100]!r}.{did_you_mean(api, self._apis)} The APIs are: {known}.")
        missing = [name for name in config.variables if not self._environ.get(name)]
        if missing:
            raise Refuse(f"the API {api!r} needs the environment variable {missing[0]}: a person must set it.")
        return config

    def _method(self, api: str, config: ApiConfig, method: str, path: str, context: ToolExecutionContext) -> str:
        method = method.strip().upper()
        if method not in config.methods:
            raise Retry(
                f"the API {api!r} may not be called with {method[:20]!r}, only with {', '.join(config.methods)}."
            )
        if method in config.ask_before and not context.approved:
            raise NeedsApproval(f"{method} {path[:200]!r} of the API {api!r} needs a person's approval.")
        return method

    async def _send(
        self,
        api: str,
        config: ApiConfig,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Any,
        context: ToolExecutionContext,
    ) -> Response:
        def fill(text: str) -> str:
            return expand_variables(text, self._environ)

        address, written = address_below(self._base(api, config), path)
        _refuse_method_instead(written, query, body)
        own = {name: fill(value) for name, value in config.query.items()}
        headers = {name: fill(value) for name, value in config.headers.items()}
        content = encode_body(body, headers)
        what, may_repeat = f"{method} {shown_url(address)}", method in IDEMPOTENT
        send = partial(
            self._client(api, address, config).send,
            method,
            _with_query(address, written, query, own),
            what=what,
            headers=headers,
            content=content,
            only_once=not may_repeat,
        )
        tries, seconds = self._tries if may_repeat else 1, seconds_for(context, config.timeout)
        try:
            return await send_patiently(send, what=what, tries=tries, seconds=seconds)
        except TransportFault as fault:
            raise fault_of_host(fault) from fault

    def _base(self, api: str, config: ApiConfig) -> str:
        base = expand_variables(config.base_url, self._environ)
        if not is_base_address(base) or "?" in base or "#" in base:  # it is not shown: a password may stand in it
            raise Refuse(
                f"the variable in the base_url of the API {api!r} does not make it an address such as "
                "https://api.example.com/v1, without a password or a query: a person must change it."
            )
        return base

    def _client(self, api: str, address: str, config: ApiConfig) -> GuardedClient:
        host = urlsplit(address).hostname or ""
        if (api, host) not in self._clients:
            # Whoever named the API chose its host, so that may be a private one.
            guard = replace(self._guard, allowed_hosts=(*self._guard.allowed_hosts, host))
            self._clients[api, host] = GuardedClient(guard, max_response=config.max_bytes)
        return self._clients[api, host]


def _with_query(address: str, written: str, query: Mapping[str, Any], own: Mapping[str, str]) -> str:
    """The address with its query. What the configuration says cannot be said otherwise."""
    entries = parse_qsl(written, keep_blank_values=True)
    for name, value in query.items():
        entries += [
            (name, as_text(each)) for each in (value if isinstance(value, list) else [value]) if each is not None
        ]
    fixed = {name.casefold() for name in own}  # some servers do not tell KEY from key
    entries = [(name, value) for name, value in entries if name.casefold() not in fixed]
    said = urlencode([*entries, *own.items()], errors="replace")
    return f"{address}?{said}" if said else address


def _refuse_method_instead(written: str, query: Mapping[str, Any], body: Any) -> None:
    for name in (*dict(parse_qsl(written)), *query, *_members(body)):
        if name.strip().casefold() in _METHOD_INSTEAD:
            raise Retry(f"{name!r} would make this a request of another method. Leave it out, and say it as method.")


def _members(body: Any) -> Iterable[str]:
    """The names in a body, whether it is an object or the text of one or of a form."""
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return dict(parse_qsl(body))
    return body if isinstance(body, dict) else ()


def _failure(api: str, response: Response) -> CallError:
    failure = failure_of_status(api, response)
    details = {**failure.details, "untrusted": True}
    told = fault_of_host(failure) if isinstance(failure, TransportFault) else failure
    told.details = {**told.details, **details}
    return told


def _told(api: str, response: Response, secrets: Secrets) -> Output:
    body = read_body(replace(response, url=shown_url(response.url)))
    parts = (body,) if isinstance(body, (Image, Audio, Resource)) else ()
    headers = {name: response.headers[name] for name in _TOLD_HEADERS if name in response.headers}
    data = {
        "api": api,
        "status_code": response.status_code,
        **({"headers": headers} if headers else {}),
        "body": describe_part(parts[0]) if parts else body,
        "untrusted": True,
    }
    return Output(data=secrets.hide(data), parts=secrets.hide(parts))
