"""An OpenAPI document as a tool with one action per operation. See docs/openapi.md."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from ferrule.core.names import did_you_mean
from ferrule.core.schema_limits import estimate_cost
from ferrule.core.spec import Effects, Tool, ToolCapability, ToolCategory, ToolSpec, ToolType
from ferrule.errors import SpecError
from ferrule.http.guard import AddressGuard, origin_of
from ferrule.kinds.openapi.document import OpenApiDocument, is_url, read_document, select_mappings, select_texts
from ferrule.kinds.openapi.operation import PLACEHOLDER, Credential, OpenApiTarget, Operation, OperationInputReader
from ferrule.kinds.openapi.schemas import OpenApiSchemaConverter, make_unique_name, shorten_description

HANDLER: Final = "openapi"
AUTHORIZATION: Final = "Authorization"

_EFFECTS: Final = {
    "get": Effects(read_only=True, idempotent=True),
    "head": Effects(read_only=True, idempotent=True),
    "options": Effects(read_only=True, idempotent=True),
    "trace": Effects(read_only=True, idempotent=True),
    "put": Effects(idempotent=True),
    "delete": Effects(idempotent=True, destructive=True),
    "post": Effects(),
    "patch": Effects(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenApiEntry:
    """One document and the options for it, which are the options of `read_openapi`."""

    source: str
    """A path or a URL."""
    name: str | None = None
    server: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    operations: list[str] | None = None
    exclude: list[str] = field(default_factory=list)
    credentials: dict[str, str] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)
    """Further origins that may get the credentials, such as https://files.example.com."""
    check_hours: float | None = None
    """How old the copy of a document at a URL may be before it is compared with the URL; None: never."""

    def resolve_path(self, folder: Path) -> OpenApiEntry:
        return self if is_url(self.source) else replace(self, source=str(folder / Path(self.source).expanduser()))


def read_openapi(
    source: str | Path,
    *,
    name: str | None = None,
    server: str | None = None,
    variables: Mapping[str, str] | None = None,
    operations: Collection[str] | None = None,
    exclude: Collection[str] = (),
    credentials: Mapping[str, str] | None = None,
    origins: Collection[str] = (),
    guard: AddressGuard | None = None,
) -> Tool:
    """Make the tool of a document at a path or a URL, or in a text. A URL is fetched: then call this in a thread.

    `server` is a URL or the description of a listed server, `variables` are that server's; `operations` names those to
    use and `exclude` those to leave out (by action, operationId or `GET /path`); `credentials` names the environment
    variable of a security scheme. Credentials are sent to the origin of the API's server, and to `origins`.
    """
    entry = OpenApiEntry(
        source=str(source),
        name=name,
        server=server,
        variables=dict(variables or {}),
        operations=None if operations is None else list(operations),
        exclude=list(exclude),
        credentials=dict(credentials or {}),
        origins=list(origins),
    )
    return make_tool_of_document(read_document(source, guard or AddressGuard()), entry)


def make_tool_of_document(document: OpenApiDocument, entry: OpenApiEntry) -> Tool:
    """Make the tool of a document that has been read, with the options of its entry."""
    title = str(document.mapping("info").get("title") or "")
    tool_id = entry.name or _convert_to_identifier(title).lower()[:40].strip("_-") or "api"
    selected = _select_operations(document, entry.operations, entry.exclude)
    inputs = OperationInputReader(document, OpenApiSchemaConverter(document))
    schemes = read_security_schemes(document, tool_id, entry.credentials)
    servers = ServerSelector(document, entry.server, entry.variables)
    addresses = {each.action: servers.server_for(each.item, each.operation) for each in selected}
    accepted = {*servers.api_origins(addresses.values()), *map(origin_of, entry.origins)}
    capabilities, targets = [], {}
    unavailable: dict[str, str] = {}
    for each in selected:
        security = read_security_alternatives(document, each.item, each.operation, schemes)
        operation_input = inputs.read(each.path, each.item, each.operation, security)
        try:
            estimate_cost(operation_input.schema)
        except SpecError as error:
            unavailable[each.action] = str(error)
            continue
        capabilities.append(_make_capability(each, operation_input.schema))
        targets[each.action] = Operation(
            method=each.method.upper(),
            server=addresses[each.action],
            path=_remove_fragment(each.path),
            arguments=tuple(operation_input.arguments),
            body=operation_input.body,
            security=security,
            may_get_credentials=origin_of(addresses[each.action]) in accepted,
        )
    return Tool(
        spec=replace(_make_spec(document, tool_id, capabilities, targets), unavailable_actions=unavailable),
        handler=HANDLER,
        target=OpenApiTarget(operations=targets),
        origin=document.origin if document.url else f"{document.origin}:1",
    )


def _make_spec(
    document: OpenApiDocument, tool_id: str, capabilities: list[ToolCapability], targets: Mapping[str, Operation]
) -> ToolSpec:
    info = document.mapping("info")
    texts = [str(info.get("title") or tool_id), shorten_description(info.get("description"))]
    return ToolSpec(
        tool_id=tool_id,
        description="\n".join(text for text in texts if text),
        version=str(info.get("version") or "1.0.0"),
        tool_type=ToolType.HTTP,
        category=ToolCategory.HTTP,
        capabilities=capabilities,
        metadata={
            "openapi": document.version,
            "servers": list(dict.fromkeys(operation.server for operation in targets.values())),
            "source_hash": document.digest,
        },
    )


def _convert_to_identifier(text: str) -> str:
    return re.sub(r"[^\w-]+", "_", text).strip("_-")


# Operations


class _DocumentOperation(NamedTuple):
    """An operation as the document describes it."""

    action: str
    method: str
    path: str
    item: dict[str, Any]
    """The path item, with what all operations of the path share."""
    operation: dict[str, Any]

    @property
    def names(self) -> set[str]:
        """Return the names by which a user may select the operation."""
        operation_id = _read_operation_id(self.operation)
        return {self.action, f"{self.method.upper()} {self.path}", operation_id or self.action}


def _read_operation_id(operation: dict[str, Any]) -> str:
    value = operation.get("operationId")
    return value if isinstance(value, str) else ""


def _select_operations(
    document: OpenApiDocument, include: Collection[str] | None, exclude: Collection[str]
) -> list[_DocumentOperation]:
    used_names: dict[str, int] = {}
    operations = []
    for path, value in document.mapping("paths").items():
        item = document.resolve(value)
        for method, operation in item.items():
            if method in _EFFECTS and isinstance(operation, dict) and path.startswith("/"):
                name = _convert_to_identifier(_read_operation_id(operation))
                # /pets/{petId}/toys → get_pets_by_petId_toys
                words = PLACEHOLDER.sub(lambda match: f"by_{match[1]}", _remove_fragment(path))
                action = make_unique_name(name or _convert_to_identifier(f"{method}{words}"), used_names)
                operations.append(_DocumentOperation(action, method, path, item, operation))
    if not operations:
        raise document.error("the document describes no operations")
    names = {name: each for each in operations for name in each.names}
    for name in (*(include or ()), *exclude):
        if name not in names:
            hint = "name actions, operationIds or paths such as 'GET /pets'"
            raise document.error(f"there is no operation {name!r}.{did_you_mean(name, names)}", hint)
    selected = [
        each
        for each in operations
        if (include is None or not each.names.isdisjoint(include)) and each.names.isdisjoint(exclude)
    ]
    if not selected:
        raise document.error("all operations of the document are excluded", "include some, or remove the document")
    return selected


def _make_capability(operation: _DocumentOperation, schema: dict[str, Any]) -> ToolCapability:
    summary, description = (shorten_description(operation.operation.get(key)) for key in ("summary", "description"))
    texts = [summary, description if description != summary else ""]
    text = "\n".join(text for text in texts if text) or f"{operation.method.upper()} {operation.path}"
    return ToolCapability(
        name=operation.action,
        description=f"Deprecated. {text}" if operation.operation.get("deprecated") is True else text,
        parameters=schema,
        fills_defaults=False,
        category=ToolCategory.HTTP.value,
        effects=_EFFECTS[operation.method],
    )


def _remove_fragment(path: str) -> str:
    """Remove the fragment by which documents distinguish operations of one path."""
    return path.partition("#")[0]


# Security schemes: which environment variables hold the secrets, and where these are sent. The variable of a scheme is
# `FERRULE_<TOOL>_<SCHEME>` unless the user names another. It holds the key or the token, or for HTTP basic
# `user:password`. A header `Authorization` that is only listed among the parameters counts as an optional scheme of
# that name, whose variable holds the whole header.


def read_security_schemes(
    document: OpenApiDocument, tool_id: str, variables: Mapping[str, str]
) -> dict[str, Credential]:
    """Read the document's schemes by name, except schemes that a variable cannot serve (client certificates)."""
    listed = document.mapping("securityDefinitions") or document.mapping("components", "securitySchemes")
    schemes = {AUTHORIZATION: {"type": "apiKey", "in": "header", "name": AUTHORIZATION}, **listed}
    for name in variables:
        if name not in schemes:
            hint = did_you_mean(name, schemes).strip() or f"its schemes are: {', '.join(schemes)}"
            raise document.error(f"there is no security scheme {name!r}", hint)
    credentials = {}
    for name, scheme in schemes.items():
        default = re.sub(r"[\W_]+", "_", f"FERRULE_{tool_id}_{name}", flags=re.ASCII).upper()
        credential = _read_credential(document.resolve(scheme), variables.get(name) or default)
        if credential is not None:
            credentials[name] = credential
    return credentials


def read_security_alternatives(
    document: OpenApiDocument, item: Mapping[str, Any], operation: Mapping[str, Any], schemes: Mapping[str, Credential]
) -> tuple[tuple[Credential, ...], ...]:
    """Read the alternatives of an operation. An alternative without credentials comes last."""
    requirements = select_mappings(operation.get("security", document.value.get("security")))
    alternatives = [tuple(schemes[name] for name in each if name in schemes) for each in requirements]
    listed = [
        document.resolve(each) for owner in (item, operation) for each in select_mappings(owner.get("parameters"))
    ]
    headers = {str(each.get("name")).lower() for each in listed if each.get("in") == "header"}
    if not any(alternatives) and "authorization" in headers:
        alternatives = [(schemes[AUTHORIZATION],), ()]
    return tuple(sorted(dict.fromkeys(alternatives), key=lambda alternative: not alternative))


def _read_credential(scheme: Mapping[str, Any], variable: str) -> Credential | None:
    kind, location, name = scheme.get("type"), scheme.get("in"), scheme.get("name")
    http_scheme = str(scheme.get("scheme", "")).lower()
    if kind == "apiKey" and isinstance(name, str):
        if location == "header" or location == "query" or location == "cookie":
            return Credential(variable=variable, location=location, name=name)
        return None
    is_basic = kind == "basic" or (kind == "http" and http_scheme == "basic")
    if is_basic:
        prefix = "Basic "
    elif kind in ("oauth2", "openIdConnect") or (kind == "http" and http_scheme in ("bearer", "")):
        prefix = "Bearer "
    elif kind == "http":
        prefix = f"{http_scheme.capitalize()} "
    else:
        return None
    return Credential(variable=variable, location="header", name=AUTHORIZATION, prefix=prefix, is_basic=is_basic)


# Servers


class ServerSelector:
    """The choice of the server of each operation.

    It is the server the user names; otherwise the first that the operation, its path or the document lists, with its
    variables filled in. A relative URL is resolved against the URL of the document.
    """

    def __init__(self, document: OpenApiDocument, server: str | None, variables: Mapping[str, str]) -> None:
        self._document, self._variables = document, variables
        self._user_choice = None if server is None else self._chosen_by_user(server)

    def server_for(self, item: Mapping[str, Any], operation: Mapping[str, Any]) -> str:
        if self._user_choice is not None:
            return self._user_choice
        for owner in (operation, item):
            if servers := _list_servers(owner):
                return self._absolute_url(servers[0])
        return self._absolute_url(next(iter(self._document_servers()), {"url": "/"}))

    def api_origins(self, addresses: Iterable[str]) -> set[str | None]:
        """Return the origin of the API's server, or of all operations where only these have servers."""
        if self._user_choice is not None or self._document.url or self._document_servers():
            return {origin_of(self.server_for({}, {}))}
        origins = set(map(origin_of, addresses))
        return origins if len(origins) == 1 else set()

    def _chosen_by_user(self, server: str) -> str:
        """Find the server by its URL, or by its description in the document."""
        listed = self._document_servers()
        for each in listed:
            if server in (each.get("description"), each["url"]):
                return self._absolute_url(each)
        if "://" not in server:
            names = ", ".join(repr(each.get("description") or each["url"]) for each in listed)
            raise self._document.error(f"there is no server {server!r}", f"give a URL, or one of: {names or 'none'}")
        return self._absolute_url({"url": server})

    def _document_servers(self) -> list[dict[str, Any]]:
        value = self._document.value
        if not self._document.is_version_2:
            return _list_servers(value)
        schemes = select_texts(value.get("schemes")) or ["https"]
        scheme = "https" if "https" in schemes else schemes[0]
        host, base = value.get("host"), str(value.get("basePath") or "/")
        return [{"url": f"{scheme}://{host}{base if base.startswith('/') else f'/{base}'}" if host else base}]

    def _absolute_url(self, server: Mapping[str, Any]) -> str:
        definitions = server.get("variables")
        definitions = definitions if isinstance(definitions, dict) else {}
        url = PLACEHOLDER.sub(lambda match: self._variable(match[1], definitions.get(match[1])), server["url"])
        try:
            url = urljoin(self._document.url, url)
            parts = urlsplit(url)
        except ValueError as error:
            raise self._document.error(f"the server {url!r} is not a URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            hint = "name one: server='https://api.example.com/v1'"
            raise self._document.error(f"the server {url!r} has no host", hint)
        if parts.username or parts.password:
            hint = "use a security scheme and its variable"
            raise self._document.error("the server's URL contains a password", hint)
        return url.partition("#")[0].partition("?")[0].rstrip("/")

    def _variable(self, name: str, definition: Any) -> str:
        definition = definition if isinstance(definition, dict) else {}
        values = definition.get("enum")
        allowed = list(map(str, values)) if isinstance(values, list) else []
        value = self._variables.get(name, definition.get("default", next(iter(allowed), None)))
        if value is None:
            hint = f"give one: variables={{{name!r}: …}}"
            raise self._document.error(f"the server's variable {name!r} has no value", hint)
        if name in self._variables and allowed and value not in allowed:
            hint = f"use {', '.join(allowed)}"
            raise self._document.error(f"the server's variable {name!r} cannot be {value!r}", hint)
        return str(value)


def _list_servers(owner: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [each for each in select_mappings(owner.get("servers")) if isinstance(each.get("url"), str)]
