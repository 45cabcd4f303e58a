"""The `openapi` executor: calls one operation of an API.

The document may come from anywhere, so the address guard applies to its server like to any other address: a private one
must be allowed in the configuration. A status of 400 or more is a failure. An argument can neither change the host nor
leave its segment of the path. Secrets come from the environment when a call is made.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode

from ferrule.core.call import Invocation
from ferrule.core.content import as_text, encode_json
from ferrule.core.secrets import MIN_SECRET_LENGTH, Secrets
from ferrule.errors import ExecutorNotFound, PermissionDenied, Retry
from ferrule.http.bodies import read_body
from ferrule.http.client import MAX_RESPONSE_BYTES, GuardedClient
from ferrule.http.guard import AddressGuard, origin_of
from ferrule.kinds.http_request import EndpointRequest, send_endpoint_request
from ferrule.kinds.openapi.operation import (
    FORM,
    MULTIPART,
    PLACEHOLDER,
    Argument,
    Body,
    Credential,
    OpenApiTarget,
    Operation,
)


class OpenApiExecutor:
    """Calls the operation that a tool's `OpenApiTarget` has for an action."""

    def __init__(self, guard: AddressGuard | None = None, *, max_response: int = MAX_RESPONSE_BYTES) -> None:
        self._client = GuardedClient(guard or AddressGuard(), max_response=max_response)

    async def execute(self, invocation: Invocation, /) -> Any:
        target, action = invocation.tool.target, invocation.capability.name
        name = invocation.tool.id
        if not isinstance(target, OpenApiTarget) or action not in target.operations:
            raise ExecutorNotFound(f"tool {name!r} has no operation {action!r}: load it with read_openapi.")
        operation = target.operations[action]
        request = build_request(operation, invocation.params, os.environ)
        public_url = f"{operation.server}{operation.path}"
        response = await send_endpoint_request(self._client, request, invocation, f"{name}.{action}", public_url)
        if request.method == "HEAD":
            return request.secrets.hide({"status_code": response.status_code, "headers": response.headers})
        return request.secrets.hide(read_body(response))

    async def aclose(self) -> None:
        """Close idle connections."""
        await self._client.aclose()


def build_request(operation: Operation, params: Mapping[str, Any], environ: Mapping[str, str]) -> EndpointRequest:
    """Make the HTTP request of a call. Raises Retry or PermissionDenied."""
    values = [(each, value) for each in operation.arguments if (value := params.get(each.argument)) is not None]
    in_path = {each.name: encode_path_argument(each, value) for each, value in values if each.location == "path"}
    path, _, query_of_path = _fill_path(operation.path, in_path).partition("?")
    query = [query_of_path] if query_of_path else []
    cookies: list[str] = []
    for each, value in values:
        if each.location in ("query", "cookie"):
            entries = query if each.location == "query" else cookies
            entries += encode_query_argument(each, value)
    headers = {"Accept": "application/json, */*;q=0.8"}
    headers |= {each.name: encode_header_argument(each, value) for each, value in values if each.location == "header"}
    content = None
    if operation.body is not None and (body := params.get(operation.body.argument)) is not None:
        content, headers["Content-Type"] = encode_body(operation.body, body)
    credentials = _select_credentials(operation, environ)
    for credential, secret in credentials:
        if credential.location == "header":
            headers[credential.name] = secret
        else:
            entries = query if credential.location == "query" else cookies
            entries.append(f"{quote(credential.name, safe='')}={quote(secret, safe='')}")
    if cookies:
        headers["Cookie"] = "; ".join(cookies)
    url = f"{operation.server}{path}" + (f"?{'&'.join(query)}" if query else "")
    secrets = Secrets.from_template([f"${{{credential.variable}}}" for credential, _ in credentials], environ)
    for credential, _ in credentials:
        if credential.is_basic:  # the login is hidden as it is sent, and the password alone
            login = environ[credential.variable]
            password = login.partition(":")[2]
            secrets.add([_encode_login(login), *([password] if len(password) >= MIN_SECRET_LENGTH else [])])
    return EndpointRequest(
        method=operation.method,
        url=url,
        headers=headers,
        content=content,
        secrets=secrets,
        private_headers=frozenset(each.name for each, _ in credentials if each.location == "header"),
    )


def _fill_path(template: str, values: Mapping[str, str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        text = values.get(match[1])
        if not text:
            raise Retry(f"parameter {match[1]!r} is part of the address and needs a value.")
        return text

    path = PLACEHOLDER.sub(replacement, template)
    # A server may decode the path before it splits it into segments.
    segments = unquote(path.partition("?")[0]).replace("\\", "/").split("/")
    if any(segment in (".", "..") for segment in segments):
        raise Retry("'.' and '..' cannot be part of the address: they would change its path.")
    return path


# Credentials


def _select_credentials(operation: Operation, environ: Mapping[str, str]) -> list[tuple[Credential, str]]:
    """Return the first alternative whose variables are all set, with the values to send."""
    if not operation.may_get_credentials and operation.security:
        if () in operation.security:
            return []
        origin = origin_of(operation.server) or operation.server
        raise PermissionDenied(
            f"{operation.method} {operation.path} goes to {origin}, which is not the API's own server, so it does not "
            f'get its credentials. A person can allow it in ferrule.toml: [[openapi]] origins = ["{origin}"]'
        )
    for alternative in operation.security:
        if all(environ.get(credential.variable) for credential in alternative):
            values = [(each, environ[each.variable]) for each in alternative]
            return [(each, each.prefix + (_encode_login(v) if each.is_basic else v)) for each, v in values]
    if operation.security:
        options = [" and ".join(each.variable for each in alternative) for alternative in operation.security]
        variables = ", or ".join(options)
        raise PermissionDenied(
            f"{operation.method} {operation.path} needs credentials: set the environment variable {variables}."
        )
    return []


def _encode_login(user_and_password: str) -> str:
    return base64.b64encode(user_and_password.encode("utf-8", "surrogateescape")).decode()


# Arguments as text, in the styles that OpenAPI has for lists and objects. Everything that comes from a caller is
# percent-encoded; the separators and brackets of a style are not.


def _encode_value(value: Any) -> str:
    return _percent_encode("" if value is None else as_text(value))


def _percent_encode(text: str) -> str:
    return quote(text, safe="", errors="replace")


_SEPARATORS = {"form": ",", "simple": ",", "space": "%20", "tab": "%09", "pipe": "%7C"}


def encode_path_argument(argument: Argument, value: Any) -> str:
    if argument.style == "json":
        return _percent_encode(encode_json(value).decode())
    if argument.style == "matrix":
        return "".join(f";{entry}" for entry in encode_query_argument(argument, value))
    separator = "." if argument.style == "label" and argument.explode else ","
    text = separator.join(_encode_items(value, argument.explode))
    return f".{text}" if argument.style == "label" else text


def encode_query_argument(argument: Argument, value: Any) -> list[str]:
    """Encode an argument as `name=value` entries of a query."""
    name = _percent_encode(argument.name)
    if argument.style == "json":
        return [f"{name}={_percent_encode(encode_json(value).decode())}"]
    if argument.style == "deep" and isinstance(value, dict):
        return _encode_deep_object(name, value)
    if argument.explode and isinstance(value, dict):
        return _encode_items(value, True)
    if argument.explode and isinstance(value, list):
        return [f"{name}={_encode_value(item)}" for item in value]
    separator = _SEPARATORS.get(argument.style, ",")
    return [f"{name}={separator.join(_encode_items(value, False))}"]


def encode_header_argument(argument: Argument, value: Any) -> str:
    """Encode an argument as a header, without percent-encoding."""
    if argument.style == "json":
        return encode_json(value).decode()
    return ",".join(_encode_items(value, argument.explode, as_text))


def _encode_items(value: Any, explode: bool, encode: Callable[[Any], str] = _encode_value) -> list[str]:
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        if explode:
            return [f"{encode(str(key))}={encode(item)}" for key, item in value.items()]
        return [encode(part) for key, item in value.items() for part in (str(key), item)]
    return [encode(value)]


def _encode_deep_object(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        named = [(f"{name}[{_percent_encode(str(key))}]", item) for key, item in value.items()]
        return [entry for inner_name, item in named for entry in _encode_deep_object(inner_name, item)]
    return [f"{name}={_encode_value(item)}" for item in (value if isinstance(value, list) else [value])]


# Bodies


def encode_body(body: Body, value: Any) -> tuple[bytes, str]:
    """Encode a body. Return its bytes and its content type."""
    if body.media_type in (FORM, MULTIPART) and not isinstance(value, dict):
        raise Retry(f"{body.argument!r} is sent as a form: it must be an object with its fields.")
    if body.media_type == FORM:
        return urlencode(_list_form_fields(value)).encode(), FORM
    if body.media_type == MULTIPART:
        return _encode_multipart(value, body.files)
    if body.media_type.endswith("json"):
        return encode_json(value), body.media_type
    return as_text(value).encode("utf-8", "replace"), body.media_type


def _list_form_fields(value: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the fields as texts. A list repeats its field, and objects are written as JSON."""
    fields = [(name, item) for name, item in value.items() if item is not None]
    return [(name, as_text(each)) for name, item in fields for each in (item if isinstance(item, list) else [item])]


def _encode_multipart(value: dict[str, Any], files: frozenset[str]) -> tuple[bytes, str]:
    import httpx

    texts = [(name, text.encode("utf-8", "replace")) for name, text in _list_form_fields(value)]
    parts: list[Any] = [(name, (name if name in files else None, text)) for name, text in texts]
    if not parts:
        raise Retry("the body is a form without any field. Give at least one.")
    request = httpx.Request("POST", "http://body", files=parts)
    return request.read(), request.headers["content-type"]
