"""What callers of an operation may give: its parameters and its body in one object.

Names that models' APIs do not take are written with `_` (`filter[name]` is `filter_name`). Of two parameters of one
name in different places the first keeps it, the other gets its place as a suffix (`id`, `id_query`). The body is one
parameter, `body`; where a parameter has that name, it is `request_body`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ferrule.executors.openapi.body import FORM, PARTS
from ferrule.executors.openapi.operation import Argument, Body, Credential, Style
from ferrule.executors.openapi.request import PLACEHOLDER
from ferrule.sources.openapi_document import OpenApiDocument, mappings_in, texts_in
from ferrule.sources.openapi_schema import OpenApiSchemas, fits, shortened
from ferrule.spec import JsonSchema

_PLACES: Final = ("path", "query", "header", "cookie")
# The client sets them itself, from the body or from credentials.
_OWN_HEADERS: Final = frozenset(
    {"authorization", "connection", "content-length", "content-type", "cookie", "host", "transfer-encoding"}
)
_STYLES: Final[dict[str, Style]] = {
    "simple": "simple",
    "label": "label",
    "matrix": "matrix",
    "form": "form",
    "spaceDelimited": "space",
    "pipeDelimited": "pipe",
    "deepObject": "deep",
    # Of version 2.0
    "csv": "form",
    "ssv": "space",
    "tsv": "tab",
    "pipes": "pipe",
}


@dataclass(slots=True, kw_only=True)
class OperationInput:
    """What an operation takes, as callers see it and as the request is made from it."""

    schema: JsonSchema = field(default_factory=lambda: {"type": "object", "properties": {}})
    arguments: list[Argument] = field(default_factory=list)
    body: Body | None = None

    def add(self, name: str, schema: JsonSchema, *, is_required: bool, suffix: str) -> str:
        """Take in a parameter; gives the name it got."""
        taken = self.schema["properties"]
        plain = re.sub(r"[^\w.-]+", "_", name).strip("_") or "parameter"
        free = plain if plain not in taken else suffix.replace("*", plain)
        number = 2
        while free in taken:
            free, number = f"{suffix.replace('*', plain)}_{number}", number + 1
        taken[free] = schema
        if is_required:
            self.schema.setdefault("required", []).append(free)
        return free


def read_input(
    document: OpenApiDocument,
    schemas: OpenApiSchemas,
    path: str,
    item: dict[str, Any],
    operation: dict[str, Any],
    security: Iterable[Sequence[Credential]],
) -> OperationInput:
    """The input of one operation of a path."""
    found = OperationInput()
    parameters = _parameters(document, path, item, operation)
    secrets = {(each.place, each.name.lower()) for alternative in security for each in alternative}
    for parameter in parameters:
        place, name = parameter["in"], parameter["name"].lower()
        is_ours = place in _PLACES and (place, name) not in secrets
        if is_ours and not (place == "header" and name in _OWN_HEADERS):
            _add_parameter(found, document, schemas, parameter)
    if document.is_2:
        _add_body_of_2(found, document, schemas, parameters, operation)
    else:
        _add_body(found, document, schemas, operation)
    if definitions := schemas.definitions_for(found.schema):
        found.schema["$defs"] = definitions
    return found


def _parameters(
    document: OpenApiDocument, path: str, item: dict[str, Any], operation: dict[str, Any]
) -> list[dict[str, Any]]:
    """Those of the path and those of the operation, which win; and what the path names but nobody describes."""
    said = [document.resolve(p) for owner in (item, operation) for p in mappings_in(owner.get("parameters"))]
    named_well = [p for p in said if isinstance(p.get("in"), str) and isinstance(p.get("name"), str) and p["name"]]
    found = {(p["in"], p["name"]): p for p in named_well}
    named = PLACEHOLDER.findall(path)
    undescribed: list[dict[str, Any]] = [
        {"in": "path", "name": name, "type": "string", "schema": {"type": "string"}}
        for name in dict.fromkeys(named)
        if ("path", name) not in found
    ]
    return [p for p in found.values() if p["in"] != "path" or p["name"] in named] + undescribed


def _add_parameter(
    found: OperationInput, document: OpenApiDocument, schemas: OpenApiSchemas, parameter: dict[str, Any]
) -> None:
    content = parameter.get("content")
    media = next(iter(content.values()), None) if isinstance(content, dict) else None
    said = parameter if document.is_2 else (media if isinstance(media, dict) else parameter).get("schema", {})
    place, name = parameter["in"], parameter["name"]
    argument = found.add(
        name,
        _parameter_schema(schemas, parameter, said if isinstance(said, dict) else {}),
        is_required=parameter.get("required") is True or place == "path",
        suffix=f"*_{place}",
    )
    style, explode = _style(parameter, place, document.is_2)
    found.arguments.append(Argument(argument=argument, name=name, place=place, style=style, explode=explode))


def _parameter_schema(schemas: OpenApiSchemas, parameter: dict[str, Any], said: dict[str, Any]) -> JsonSchema:
    # Here the default is kept: what the server would take by itself may as well be sent.
    schema = schemas.convert({word: value for word, value in said.items() if word != "default"})
    described = [shortened(parameter.get("description")) or schema.pop("description", "")]
    if parameter.get("deprecated") is True:
        described.insert(0, "Deprecated.")
    if text := " ".join(part for part in described if part):
        schema = {"description": text, **{word: value for word, value in schema.items() if word != "description"}}
    if "default" in said and fits(said["default"], schema):
        schema["default"] = said["default"]
    return schema


def _style(parameter: dict[str, Any], place: str, is_2: bool) -> tuple[Style, bool]:
    if "content" in parameter:
        return "json", False
    usual = "form" if place in ("query", "cookie") else "simple"
    if is_2:
        style = parameter.get("collectionFormat", "csv" if usual == "form" else "simple")
        return ("form", True) if style == "multi" else (_STYLES.get(str(style), "form"), False)
    style = _STYLES.get(str(parameter.get("style", usual)), "form" if usual == "form" else "simple")
    return style, bool(parameter.get("explode", style == "form"))


# The body


def _add_body(
    found: OperationInput, document: OpenApiDocument, schemas: OpenApiSchemas, operation: dict[str, Any]
) -> None:
    said = document.resolve(operation.get("requestBody"))
    content = said.get("content")
    if not isinstance(content, dict) or not content:
        return
    media_type = _chosen(content)
    media = content[media_type]
    schema = media.get("schema", {}) if isinstance(media, dict) else {}
    _put_body(
        found,
        schemas,
        schema,
        "application/json" if media_type.endswith("*") else media_type.partition(";")[0].strip().lower(),
        description=said.get("description"),
        is_required=said.get("required") is True,
        files=_files(document, schema),
    )


def _add_body_of_2(
    found: OperationInput,
    document: OpenApiDocument,
    schemas: OpenApiSchemas,
    parameters: Iterable[dict[str, Any]],
    operation: dict[str, Any],
) -> None:
    media_types = texts_in(operation.get("consumes") or document.value.get("consumes"))
    fields = {p["name"]: p for p in parameters if p["in"] == "formData"}
    body = next((p for p in parameters if p["in"] == "body"), None)
    if body is not None:
        media_type = _chosen(media_types or ["application/json"])
        _put_body(
            found,
            schemas,
            body.get("schema", {}),
            "application/json" if media_type in (FORM, PARTS) else media_type,
            description=body.get("description"),
            is_required=body.get("required") is True,
        )
    elif fields:
        required = [name for name, said in fields.items() if said.get("required") is True]
        files = frozenset(name for name, said in fields.items() if said.get("type") == "file")
        _put_body(
            found,
            schemas,
            {"type": "object", "properties": fields, "required": required},
            PARTS if files or PARTS in media_types else FORM,
            is_required=bool(required),
            files=files,
        )


def _put_body(
    found: OperationInput,
    schemas: OpenApiSchemas,
    schema: Any,
    media_type: str,
    *,
    is_required: bool,
    description: Any = None,
    files: frozenset[str] = frozenset(),
) -> None:
    is_structured = media_type in (FORM, PARTS) or media_type.endswith("json")
    converted = schemas.convert(schema) if is_structured else {"type": "string"}
    text = [shortened(description) or converted.pop("description", "") or "The body of the request."]
    if media_type != "application/json":
        text.append(f"Sent as {media_type}.")
    if files:
        text.append(f"Only text can be sent as a file: {', '.join(sorted(files))}.")
    rest = {word: said for word, said in converted.items() if word != "description"}
    schema = {"description": " ".join(text), **rest}
    argument = found.add("body", schema, is_required=is_required, suffix="request_*")
    found.body = Body(argument=argument, media_type=media_type, files=files if media_type == PARTS else frozenset())


def _chosen(media_types: Iterable[str]) -> str:
    """The best we can send: JSON, then forms, then whatever comes first."""
    listed = list(media_types)
    for wanted in ("application/json", "+json", "json", FORM, PARTS, "*/*", "text/"):
        for media_type in listed:
            if wanted in media_type.lower() and "patch+json" not in media_type:
                return media_type
    return listed[0]


def _files(document: OpenApiDocument, schema: Any) -> frozenset[str]:
    """The members of a form that are files."""
    properties = document.resolve(schema).get("properties")
    found = set()
    for name, said in (properties if isinstance(properties, dict) else {}).items():
        resolved = document.resolve(said)
        inner = document.resolve(resolved.get("items")) if resolved.get("type") == "array" else resolved
        if inner.get("format") == "binary" or "contentMediaType" in inner:
            found.add(name)
    return frozenset(found)
