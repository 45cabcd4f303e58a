"""An OpenAPI document as a tool with one action per operation. See docs/openapi.md."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.openapi.operation import Api, Operation
from ferrule.executors.openapi.request import PLACEHOLDER
from ferrule.names import did_you_mean
from ferrule.sources.openapi_document import OpenApiDocument, read_document
from ferrule.sources.openapi_parameters import read_input
from ferrule.sources.openapi_schema import OpenApiSchemas, free_name, shortened
from ferrule.sources.openapi_security import read_schemes, read_security
from ferrule.sources.openapi_server import ServerChoice
from ferrule.spec import Effects, Tool, ToolCapability, ToolCategory, ToolSpec, ToolType

HANDLER: Final = "openapi"

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


class _Found(NamedTuple):
    """An operation where the document has it."""

    action: str
    method: str
    path: str
    item: dict[str, Any]
    said: dict[str, Any]


def read_openapi(
    source: str | Path,
    *,
    name: str | None = None,
    server: str | None = None,
    variables: Mapping[str, str] | None = None,
    operations: Collection[str] | None = None,
    exclude: Collection[str] = (),
    credentials: Mapping[str, str] | None = None,
    guard: AddressGuard | None = None,
) -> Tool:
    """The tool of a document at a path or a URL, or in a text. A URL is fetched: call it in a thread then.

    `server` is a URL or the description of a listed server, `variables` are that server's; `operations` names those to
    take and `exclude` those to leave out (by action, operationId or `GET /path`); `credentials` names the environment
    variable of a security scheme.
    """
    document = read_document(source, guard or AddressGuard())
    return tool_of_document(
        document,
        name=name,
        server=server,
        variables=variables or {},
        operations=operations,
        exclude=exclude,
        credentials=credentials or {},
    )


def tool_of_document(
    document: OpenApiDocument,
    *,
    name: str | None,
    server: str | None,
    variables: Mapping[str, str],
    operations: Collection[str] | None,
    exclude: Collection[str],
    credentials: Mapping[str, str],
) -> Tool:
    """The same for a document that was read."""
    tool_id = name or _tool_id(document)
    found = _chosen(document, list(_operations(document)), operations, exclude)
    schemas = OpenApiSchemas(document)
    schemes = read_schemes(document, tool_id, credentials)
    servers = ServerChoice(document, server, variables)
    capabilities, targets = [], {}
    for each in found:
        security = read_security(document, each.item, each.said, schemes)
        taken = read_input(document, schemas, each.path, each.item, each.said, security)
        capabilities.append(_capability(each, taken.schema))
        targets[each.action] = Operation(
            method=each.method.upper(),
            server=servers.server_for(each.item, each.said),
            path=_path(each.path),
            arguments=tuple(taken.arguments),
            body=taken.body,
            security=security,
        )
    return Tool(
        spec=_spec(document, tool_id, capabilities, targets),
        handler=HANDLER,
        target=Api(operations=targets),
        origin=document.origin if document.url else f"{document.origin}:1",
    )


def _spec(
    document: OpenApiDocument, tool_id: str, capabilities: list[ToolCapability], targets: Mapping[str, Operation]
) -> ToolSpec:
    info = document.mapping("info")
    said = [str(info.get("title") or tool_id), shortened(info.get("description"))]
    return ToolSpec(
        tool_id=tool_id,
        description="\n".join(part for part in said if part),
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


def _capability(found: _Found, schema: dict[str, Any]) -> ToolCapability:
    summary, description = shortened(found.said.get("summary")), shortened(found.said.get("description"))
    said = [summary, description if description != summary else ""]
    text = "\n".join(part for part in said if part) or f"{found.method.upper()} {found.path}"
    return ToolCapability(
        name=found.action,
        description=f"Deprecated. {text}" if found.said.get("deprecated") is True else text,
        parameters=schema,
        category=ToolCategory.HTTP.value,
        effects=_EFFECTS[found.method],
    )


def _operations(document: OpenApiDocument) -> Iterator[_Found]:
    taken: dict[str, int] = {}
    for path, said in document.mapping("paths").items():
        item = document.resolve(said)
        for method, operation in item.items():
            if method in _EFFECTS and isinstance(operation, dict) and path.startswith("/"):
                action = free_name(_action(method, path, operation.get("operationId")), taken)
                yield _Found(action, method, path, item, operation)


def _chosen(
    document: OpenApiDocument, found: list[_Found], wanted: Collection[str] | None, unwanted: Collection[str]
) -> list[_Found]:
    if not found:
        raise document.error("the document describes no operations")
    names = {name: each for each in found for name in _names(each)}
    for name in (*(wanted or ()), *unwanted):
        if name not in names:
            hint = "name actions, operationIds or paths such as 'GET /pets'"
            raise document.error(f"there is no operation {name!r}.{did_you_mean(name, names)}", hint)
    chosen = [
        each
        for each in found
        if (wanted is None or not _names(each).isdisjoint(wanted)) and _names(each).isdisjoint(unwanted)
    ]
    if not chosen:
        raise document.error("no operation of the document is left", "take some, or leave the document out")
    return chosen


def _names(found: _Found) -> set[str]:
    return {found.action, f"{found.method.upper()} {found.path}", str(found.said.get("operationId") or found.action)}


def _action(method: str, path: str, operation_id: Any) -> str:
    if isinstance(operation_id, str) and (readable := _readable(operation_id)):
        return readable
    # /pets/{petId}/toys → get_pets_by_petId_toys
    return _readable(f"{method}{PLACEHOLDER.sub(_by, _path(path))}")


def _by(match: re.Match[str]) -> str:
    return f"by_{match[1]}"


def _readable(text: str) -> str:
    return re.sub(r"[^\w-]+", "_", text).strip("_-")


def _tool_id(document: OpenApiDocument) -> str:
    return _readable(str(document.mapping("info").get("title") or "")).lower()[:40].strip("_-") or "api"


def _path(path: str) -> str:
    """Without a fragment, which documents use to tell operations of one path apart."""
    return path.partition("#")[0]
