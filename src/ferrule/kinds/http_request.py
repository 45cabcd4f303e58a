"""The `http_request` tool: any request to any public address.

Every response is a result, whatever its status: the caller reads `status_code`. Requests that may be repeated are
retried when the connection breaks or the server is busy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from ferrule.core.call import Invocation
from ferrule.core.content import Audio, Image, Output, Resource, as_text, describe_part, encode_json
from ferrule.core.secrets import Secrets
from ferrule.core.variables import (
    expand_variables,
    fill_if_complete,
    fill_template,
    find_parameters,
    find_strings,
    find_variables,
    sole_placeholder_name,
)
from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, SetupError, Transient, TransportFault
from ferrule.http.bodies import body_excerpt, encode_body, read_body
from ferrule.http.client import FORWARDED_HEADERS, MAX_RESPONSE_BYTES, GuardedClient, HttpResponse, format_url
from ferrule.http.guard import AddressGuard, origin_of
from ferrule.http.retry import (
    IDEMPOTENT,
    MAX_ATTEMPTS,
    convert_host_fault,
    request_timeout,
    retry_details,
    send_with_retries,
)

# A header may name an environment variable, `Bearer ${GITHUB_TOKEN}`, and is recorded like that. The configuration
# lists the variables that may be named and the hosts each may be sent to; any other variable is refused.


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequestConfig:
    """What `http_request` may use."""

    secrets: dict[str, list[str]] = field(default_factory=dict)
    """Environment variables that headers may name as `${NAME}`, each with the hosts it may be sent to."""

    def __post_init__(self) -> None:
        for name, hosts in self.secrets.items():
            for host in hosts:
                if origin_of(host) is None:
                    raise SetupError(
                        f"secrets: {name} cannot be sent to {host!r}: write a host such as api.github.com, which is "
                        "reached by https, or an origin such as http://localhost:8080"
                    )


def fill_headers(
    headers: Mapping[str, str], url: str, allowed: Mapping[str, Sequence[str]], environ: Mapping[str, str]
) -> tuple[dict[str, str], Secrets]:
    """Return the headers with the values of the variables they name, and these values as secrets."""
    naming = {name: names for name, value in headers.items() if (names := find_variables(value))}
    origin = origin_of(url)
    for header, variables in naming.items():
        for variable in variables:
            if origin is None or origin not in map(origin_of, allowed.get(variable, ())):
                raise Retry(
                    f"the header {header!r} names the variable {variable!r}, which may not be sent to this host. "
                    "A person can allow it in ferrule.toml: "
                    f'[tools.http_request] secrets = {{ {variable} = ["{origin or "api.example.com"}"] }}'
                )
            if header.lower() in FORWARDED_HEADERS:
                reason = "is also sent to other hosts after a redirect: it cannot contain a secret."
                raise Retry(f"the header {header!r} {reason}")
            if not environ.get(variable):
                raise Refuse(f"the environment variable {variable!r} is not set: a person must set it.")
    filled = {name: expand_variables(value, environ) if name in naming else value for name, value in headers.items()}
    return filled, Secrets.from_template([headers[name] for name in naming], environ)


METHOD_HEADERS: Final = frozenset({"x-http-method", "x-http-method-override", "x-method-override"})


class HttpRequestExecutor:
    """Takes `url`, `method`, `headers`, `body`, `timeout`; returns `status_code`, `headers`, `body`, `url`."""

    def __init__(
        self,
        guard: AddressGuard | None = None,
        config: HttpRequestConfig | None = None,
        *,
        max_response: int = MAX_RESPONSE_BYTES,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._client = GuardedClient(guard or AddressGuard(), max_response=max_response)
        self._config, self._environ = config or HttpRequestConfig(), environ

    async def execute(self, invocation: Invocation, /) -> Output:
        params = invocation.params
        method, url = str(params.get("method") or "GET").upper(), str(params["url"])
        requested = {str(name): as_text(value) for name, value in (params.get("headers") or {}).items()}
        for name in requested:  # some servers take the method from a header: rules and approvals are about `method`
            if name.strip().lower() in METHOD_HEADERS:
                raise Retry(f"the header {name!r} would change the method of the request: use the argument `method`.")
        headers, secrets = fill_headers(requested, url, self._config.secrets, self._environ)
        what, may_repeat = f"{method} {format_url(url)}", method in IDEMPOTENT
        content = encode_body(params.get("body"), headers)
        send = partial(
            self._client.send, method, url, what=what, content=content, headers=headers, only_once=not may_repeat
        )
        attempts = MAX_ATTEMPTS if may_repeat else 1
        timeout = request_timeout(invocation.context, params.get("timeout"))
        with secrets.hide_in_errors():
            try:
                response = await send_with_retries(send, what=what, attempts=attempts, timeout=timeout)
            except TransportFault as fault:
                raise convert_host_fault(fault) from fault
        details = {"status_code": response.status_code, "headers": response.headers, "url": response.url}
        return make_response_output(response, secrets, details)

    async def aclose(self) -> None:
        """Close idle connections."""
        await self._client.aclose()


def make_response_output(response: HttpResponse, secrets: Secrets, details: Mapping[str, Any]) -> Output:
    """Return the output with the body of a response and these details. The body is untrusted."""
    body = read_body(response)
    parts = (body,) if isinstance(body, (Image, Audio, Resource)) else ()
    data = {**details, "body": describe_part(parts[0]) if parts else body, "untrusted": True}
    return Output(data=secrets.hide(data), parts=secrets.hide(parts))


# The `http` executor calls one HTTP endpoint that a file describes.
#
# The author of the file chose the host, so it may be a private one; a redirect may not lead to a private address. A
# status of 400 or more is a failure of the tool.

_UNREACHABLE_STATUSES = frozenset({502, 503, 504})
_TEMPORARY_STATUSES = frozenset({408, 425, 429})


class HttpEndpointExecutor:
    """Calls the endpoint in a tool's `implementation_config`: url, method, headers, query, body, timeout."""

    def __init__(self, guard: AddressGuard | None = None, *, max_response: int = MAX_RESPONSE_BYTES) -> None:
        self._guard, self._max_response = guard or AddressGuard(), max_response
        # One client per host: a connection that one tool may open must not serve the redirect of another.
        self._clients: dict[str, GuardedClient] = {}

    async def execute(self, invocation: Invocation, /) -> Any:
        config = invocation.tool.spec.implementation_config
        request = build_endpoint_request(config, invocation.params, os.environ)
        client = self._client(request.url)
        response = await send_endpoint_request(
            client, request, invocation, invocation.tool.id, config["url"], timeout=config.get("timeout")
        )
        return request.secrets.hide(read_body(response))

    async def aclose(self) -> None:
        """Close idle connections."""
        for client in self._clients.values():
            await client.aclose()

    def _client(self, url: str) -> GuardedClient:
        import httpx

        try:
            host = httpx.URL(url).raw_host.decode("ascii")
        except httpx.InvalidURL as error:
            raise Retry(f"the arguments make a URL that is not valid: {error}") from error
        if host not in self._clients:
            guard = replace(self._guard, allowed_hosts=(*self._guard.allowed_hosts, host))
            self._clients[host] = GuardedClient(guard, max_response=self._max_response)
        return self._clients[host]


async def send_endpoint_request(
    client: GuardedClient,
    request: EndpointRequest,
    invocation: Invocation,
    name: str,
    public_url: str,
    *,
    timeout: float | None = None,
) -> HttpResponse:
    """Send the request of a call. Raises a CallError for a status of 400 or more.

    The URL of the request may contain secrets: messages and the response have `public_url`.
    """
    public_url = format_url(public_url)
    only_once = not invocation.tool.spec.effects_of(invocation.capability).repeatable
    with request.secrets.hide_in_errors():
        response = await client.send(
            request.method,
            request.url,
            what=f"{request.method} {public_url}",
            headers=request.headers,
            content=request.content,
            timeout=timeout,
            only_once=only_once,
            private_headers=request.private_headers,
            private_body=request.private_body,
        )
    if response.status_code >= 400:
        content = request.secrets.hide_in_bytes(response.content)
        raise make_status_error(name, replace(response, content=content), only_once=only_once)
    return replace(response, url=public_url)


def make_status_error(tool_id: str, response: HttpResponse, *, only_once: bool) -> CallError:
    """Make the error of a status of 400 or more, which says whether a later attempt may succeed.

    `only_once`: a repetition would do harm. A server that fails, or a gateway that lost it, may have done the work.
    """
    text = body_excerpt(response)
    reason = f": {text}" if text else "."
    message = f"the endpoint of {tool_id!r} answered with status {response.status_code}{reason}"
    details: dict[str, Any] = {"status_code": response.status_code, **retry_details(response.headers)}
    if only_once and response.status_code >= 500:
        details["outcome"] = "unknown"
    if response.status_code in _UNREACHABLE_STATUSES:
        return TransportFault(message, **details)
    if response.status_code >= 500 or response.status_code in _TEMPORARY_STATUSES:
        return Transient(message, **details)
    return ExecutionFailed(message, **details)


# From an endpoint's description and the arguments of a call to one HTTP request.
#
# `{param}` in the URL is percent-encoded, and can change neither the host nor the structure of the path. A template
# that is only `{param}` keeps the value's type: numbers stay numbers in a body, lists repeat in a query. Where
# a parameter has no value, the header, the query entry or the member of the body that names it is omitted.
# Parameters that no template names go to the query of GET, HEAD, DELETE and OPTIONS, into the body of other methods.

_METHODS_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_ABSENT: Any = object()
_NO_VALUE = "\0"
"""Stands in a filled URL where a parameter has no value: no URL can contain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRequest:
    method: str
    url: str
    headers: dict[str, str]
    content: bytes | None
    secrets: Secrets
    """Hidden in results and messages."""
    private_headers: frozenset[str] = frozenset()
    """Headers with secrets, which only this server may get."""
    private_body: bool = False
    """The body has a secret in it."""


def build_endpoint_request(
    config: Mapping[str, Any], params: Mapping[str, Any], environ: Mapping[str, str]
) -> EndpointRequest:
    """Make the request of a call. Raises Retry or SetupError."""
    values = {name: value for name, value in params.items() if value is not None}
    templates = [config.get(key) for key in ("url", "headers", "query", "body")]
    named = set(find_parameters(templates))
    rest = {name: value for name, value in values.items() if name not in named}
    headers = _fill_value(config.get("headers") or {}, values, environ)
    headers = {name: as_text(value) for name, value in headers.items()}
    query = _fill_value(config.get("query") or {}, values, environ)
    body = _fill_value(config.get("body", _ABSENT), values, environ)
    method = str(config.get("method") or ("GET" if body is _ABSENT else "POST")).upper()
    if method in _METHODS_WITHOUT_BODY or not (body is _ABSENT or isinstance(body, dict)):
        query |= rest
    elif rest:
        body = rest if body is _ABSENT else {**body, **rest}
    if not (body is _ABSENT or isinstance(body, str) or "content-type" in map(str.lower, headers)):
        headers["Content-Type"] = "application/json"
    text = body.encode("utf-8", "replace") if isinstance(body, str) else None
    return EndpointRequest(
        method=method,
        url=_fill_url(str(config["url"]), values, environ, query),
        headers=headers,
        content=text if text is not None or body is _ABSENT else encode_json(body),
        secrets=Secrets.from_template(templates, environ),
        private_headers=frozenset(n for n, text in (config.get("headers") or {}).items() if _has_variable(text)),
        private_body=_has_variable(config.get("body")),
    )


def _has_variable(template: Any) -> bool:
    return any(find_variables(text) for text in find_strings(template))


def _fill_value(template: Any, values: Mapping[str, Any], environ: Mapping[str, str]) -> Any:
    """Fill in a template. Return `_ABSENT` when a value is missing."""
    if isinstance(template, str):
        name = sole_placeholder_name(template)
        if name is not None:
            return values.get(name, _ABSENT)
        text = fill_if_complete(template, values, environ)
        return _ABSENT if text is None else text
    if isinstance(template, Mapping):
        filled = {name: _fill_value(part, values, environ) for name, part in template.items()}
        return {name: value for name, value in filled.items() if value is not _ABSENT}
    if isinstance(template, (list, tuple)):
        return [value for part in template if (value := _fill_value(part, values, environ)) is not _ABSENT]
    return template


def _fill_url(template: str, values: Mapping[str, Any], environ: Mapping[str, str], query: Mapping[str, Any]) -> str:
    marked = fill_template(template, environ, lambda name: _NO_VALUE)
    scheme, _, rest = marked.partition("://")
    host = rest.replace("?", "/").replace("#", "/").replace("\\", "/").partition("/")[0]
    if not host or _NO_VALUE in scheme + host:
        reason = "must name its host: a {param} can only stand in the path or the query after it"
        raise SetupError(f"the url {template!r} {reason}")
    missing = []

    def render_parameter(name: str) -> str:
        text = as_text(values[name]) if name in values else ""
        if not text:
            missing.append(name)
        return quote(text, safe="", errors="replace") or _NO_VALUE

    address, _, written_query = fill_template(template, environ, render_parameter).partition("#")[0].partition("?")
    if _NO_VALUE in address:
        raise Retry(f"parameter {missing[0]!r} is part of the address and needs a value.")
    # A server may decode the path before it splits it into segments.
    if any(part in (".", "..") for part in unquote(address).replace("\\", "/").split("/")):
        raise Retry("'.' and '..' cannot be part of the address: they would change it to another one.")
    entries = [entry for entry in written_query.split("&") if entry and _NO_VALUE not in entry]
    for name, value in query.items():
        texts = [as_text(each) for each in value] if isinstance(value, (list, tuple)) else as_text(value)
        entries.append(urlencode({name: texts}, doseq=True, errors="replace"))
    return f"{address}?{'&'.join(entries)}" if entries else address
