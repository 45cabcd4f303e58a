"""From an endpoint's description and the arguments of a call to one HTTP request.

`{param}` in the URL is percent-encoded, and can neither reach the host nor leave its place in the path. A template
that is nothing but `{param}` keeps the value's type: numbers stay numbers in a body, lists repeat in a query. Where
a parameter has no value, the header, the query entry or the member of the body that names it is left out.
Parameters no template names go to the query of GET, HEAD, DELETE and OPTIONS, into the body of other methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlencode

from ferrule.content import as_text, encode_json
from ferrule.errors import Retry, SetupError
from ferrule.executors.secrets import Secrets
from ferrule.executors.templates import fill_text, names_in, whole_placeholder
from ferrule.executors.variables import fill_template

_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
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
    """Must not show in what is told about the call."""


def fill_endpoint(config: Mapping[str, Any], params: Mapping[str, Any], environ: Mapping[str, str]) -> EndpointRequest:
    """The request a call makes."""
    given = {name: value for name, value in params.items() if value is not None}
    templates = [config.get(key) for key in ("url", "headers", "query", "body")]
    named = set(names_in(templates))
    rest = {name: value for name, value in given.items() if name not in named}
    headers = {name: as_text(value) for name, value in _filled(config.get("headers") or {}, given, environ).items()}
    query = _filled(config.get("query") or {}, given, environ)
    body = _filled(config.get("body", _ABSENT), given, environ)
    method = str(config.get("method") or ("GET" if body is _ABSENT else "POST")).upper()
    if method in _WITHOUT_BODY or not (body is _ABSENT or isinstance(body, dict)):
        query |= rest
    elif rest:
        body = rest if body is _ABSENT else {**body, **rest}
    if not (body is _ABSENT or isinstance(body, str) or "content-type" in map(str.lower, headers)):
        headers["Content-Type"] = "application/json"
    return EndpointRequest(
        method=method,
        url=_url(str(config["url"]), given, environ, query),
        headers=headers,
        content=None
        if body is _ABSENT
        else body.encode("utf-8", "replace")
        if isinstance(body, str)
        else encode_json(body),
        secrets=Secrets(templates, environ),
    )


def _filled(template: Any, given: Mapping[str, Any], environ: Mapping[str, str]) -> Any:
    """The template with values; `_ABSENT` when it needs one that is not given."""
    if isinstance(template, str):
        name = whole_placeholder(template)
        if name is not None:
            return given.get(name, _ABSENT)
        text = fill_text(template, given, environ)
        return _ABSENT if text is None else text
    if isinstance(template, Mapping):
        filled = {name: _filled(part, given, environ) for name, part in template.items()}
        return {name: value for name, value in filled.items() if value is not _ABSENT}
    if isinstance(template, (list, tuple)):
        return [value for part in template if (value := _filled(part, given, environ)) is not _ABSENT]
    return template


def _url(template: str, given: Mapping[str, Any], environ: Mapping[str, str], query: Mapping[str, Any]) -> str:
    _check_host(template, environ)
    missing = []

    def write(name: str) -> str:
        text = as_text(given[name]) if name in given else ""
        if not text:
            missing.append(name)
        return quote(text, safe="", errors="replace") or _NO_VALUE

    address, _, written_query = fill_template(template, environ, write).partition("#")[0].partition("?")
    if _NO_VALUE in address:
        raise Retry(f"parameter {missing[0]!r} is part of the address and needs a value.")
    # A server may undo the encoding before it cuts the path into segments.
    if any(part in (".", "..") for part in unquote(address).replace("\\", "/").split("/")):
        raise Retry("'.' and '..' cannot be part of the address: they would lead to another one.")
    entries = [entry for entry in written_query.split("&") if entry and _NO_VALUE not in entry]
    entries += [urlencode({name: _query_value(value)}, doseq=True, errors="replace") for name, value in query.items()]
    return f"{address}?{'&'.join(entries)}" if entries else address


def _check_host(template: str, environ: Mapping[str, str]) -> None:
    marked = fill_template(template, environ, lambda name: _NO_VALUE)
    scheme, _, rest = marked.partition("://")
    host = rest.replace("?", "/").replace("#", "/").replace("\\", "/").partition("/")[0]
    if not host or _NO_VALUE in scheme + host:
        raise SetupError(
            f"the url {template!r} must name its host: a {{param}} can only stand in the path or the query after it"
        )


def _query_value(value: Any) -> Any:
    return [as_text(each) for each in value] if isinstance(value, (list, tuple)) else as_text(value)
