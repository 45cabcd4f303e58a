"""From an operation and the arguments of a call to one HTTP request.

The server is the document's: an argument can neither reach the host nor leave its place in the path. Secrets come
from the environment when a call is made.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from ferrule.errors import PermissionDenied, Retry
from ferrule.executors.http.endpoint_request import EndpointRequest
from ferrule.executors.openapi.body import encode_body
from ferrule.executors.openapi.operation import Credential, Operation
from ferrule.executors.openapi.values import header_text, path_text, query_entries
from ferrule.executors.secrets import SHORTEST, Secrets

PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


def fill_operation(operation: Operation, params: Mapping[str, Any], environ: Mapping[str, str]) -> EndpointRequest:
    """The request a call makes."""
    given = [(each, value) for each in operation.arguments if (value := params.get(each.argument)) is not None]
    values = {each.name: path_text(each, value) for each, value in given if each.place == "path"}
    path, _, written_query = _filled_path(operation.path, values).partition("?")
    query = [written_query] if written_query else []
    query += [entry for each, value in given if each.place == "query" for entry in query_entries(each, value)]
    headers = {"Accept": "application/json, */*;q=0.8"}
    headers |= {each.name: header_text(each, value) for each, value in given if each.place == "header"}
    cookies = [entry for each, value in given if each.place == "cookie" for entry in query_entries(each, value)]
    content = None
    if operation.body is not None and (body := params.get(operation.body.argument)) is not None:
        content, headers["Content-Type"] = encode_body(operation.body, body)
    credentials = _credentials(operation, environ)
    for credential, secret in credentials:
        if credential.place == "header":
            headers[credential.name] = secret
        else:
            target = query if credential.place == "query" else cookies
            target.append(f"{quote(credential.name, safe='')}={quote(secret, safe='')}")
    if cookies:
        headers["Cookie"] = "; ".join(cookies)
    url = f"{operation.server}{path}" + (f"?{'&'.join(query)}" if query else "")
    secrets = Secrets([f"${{{credential.variable}}}" for credential, _ in credentials], environ)
    for credential, _ in credentials:
        if credential.is_basic:
            secrets.add(_forms_of_login(environ[credential.variable]))
    return EndpointRequest(method=operation.method, url=url, headers=headers, content=content, secrets=secrets)


def _filled_path(template: str, values: Mapping[str, str]) -> str:
    def write(match: re.Match[str]) -> str:
        text = values.get(match[1])
        if not text:
            raise Retry(f"parameter {match[1]!r} is part of the address and needs a value.")
        return text

    path = PLACEHOLDER.sub(write, template)
    # A server may undo the encoding before it cuts the path into segments.
    address = unquote(path.partition("?")[0]).replace("\\", "/")
    if any(segment in (".", "..") for segment in address.split("/")):
        raise Retry("'.' and '..' cannot be part of the address: they would lead to another one.")
    return path


def _credentials(operation: Operation, environ: Mapping[str, str]) -> list[tuple[Credential, str]]:
    """The first alternative whose variables are all set, with what to send."""
    for alternative in operation.security:
        if all(environ.get(credential.variable) for credential in alternative):
            return [(each, _secret(each, environ[each.variable])) for each in alternative]
    if operation.security:
        ways = [" and ".join(each.variable for each in alternative) for alternative in operation.security]
        raise PermissionDenied(
            f"{operation.method} {operation.path} needs credentials: set the environment variable {', or '.join(ways)}."
        )
    return []


def _secret(credential: Credential, value: str) -> str:
    return credential.prefix + (_encoded(value) if credential.is_basic else value)


def _forms_of_login(user_and_password: str) -> list[str]:
    """What else of it must not show: as it is sent, and the password alone."""
    password = user_and_password.partition(":")[2]
    return [_encoded(user_and_password), *([password] if len(password) >= SHORTEST else [])]


def _encoded(user_and_password: str) -> str:
    return base64.b64encode(user_and_password.encode("utf-8", "surrogateescape")).decode()
