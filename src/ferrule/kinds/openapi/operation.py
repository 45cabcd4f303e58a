"""Operations of an API: what a call needs to know, and how parameters and body are read from the document.

Parameters and body of an operation become one object of arguments. Characters that models' APIs do not accept in names
are replaced by `_` (`filter[name]` is `filter_name`). If two parameters in different locations have the same name, the
second gets its location as a suffix (`id`, `id_query`). The body is one argument, `body`; if a parameter has that name,
the body is `request_body`.

Operations contain no secrets: credentials name the environment variables that hold them when a call is made.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import JsonSchema
from ferrule.kinds.openapi.document import OpenApiDocument, select_mappings, select_texts
from ferrule.kinds.openapi.schemas import OpenApiSchemaConverter, is_value_valid, shorten_description

FORM: Final = "application/x-www-form-urlencoded"
MULTIPART: Final = "multipart/form-data"
JSON: Final = "application/json"
PLACEHOLDER: Final = lazy_pattern(r"\{([^{}]+)\}")
"""An argument in a path, or a variable in a server's URL."""

Location: TypeAlias = Literal["path", "query", "header", "cookie"]
Style: TypeAlias = Literal["simple", "label", "matrix", "form", "space", "tab", "pipe", "deep", "json"]
"""How lists and objects are written as text."""

_LOCATIONS: Final = ("path", "query", "header", "cookie")
# The client sets these headers itself, from the body or from credentials.
_CLIENT_HEADERS: Final = frozenset(
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
    # Version 2.0
    "csv": "form",
    "ssv": "space",
    "tsv": "tab",
    "pipes": "pipe",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A parameter of an operation."""

    argument: str
    """Its name in the arguments of a call."""
    name: str
    """Its name in the request."""
    location: Location
    style: Style
    explode: bool
    """Each item of a list, each property of an object, is written separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    argument: str
    media_type: str
    files: frozenset[str] = frozenset()
    """Fields of a form that are sent as files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Where a secret comes from and where it is sent."""

    variable: str
    """The environment variable."""
    location: Location
    name: str
    """The name of the header, the query parameter or the cookie."""
    prefix: str = ""
    """For example `Bearer `."""
    is_basic: bool = False
    """The variable holds `user:password`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    method: str
    server: str
    """A URL without a slash at its end."""
    path: str
    """With `{name}` for each argument."""
    arguments: tuple[Argument, ...] = ()
    body: Body | None = None
    security: tuple[tuple[Credential, ...], ...] = ()
    """Alternatives, each with all the credentials it needs; empty when none are needed."""
    may_get_credentials: bool = True
    """False for an operation at another origin than the API's, which the user has not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenApiTarget:
    """The target of an API's tool."""

    operations: Mapping[str, Operation]
    """By action."""


@dataclass(slots=True, kw_only=True)
class OperationInput:
    """The arguments of an operation: their schema for callers, and what the request is made from."""

    schema: JsonSchema = field(default_factory=lambda: {"type": "object", "properties": {}})
    arguments: list[Argument] = field(default_factory=list)
    body: Body | None = None

    def add(self, name: str, schema: JsonSchema, *, is_required: bool, fallback: str) -> str:
        """Add an argument; returns the name it got. `fallback` is used, with `*` for the name, when that is in use."""
        properties = self.schema["properties"]
        plain = re.sub(r"[^\w.-]+", "_", name).strip("_") or "parameter"
        unique = plain if plain not in properties else fallback.replace("*", plain)
        number = 2
        while unique in properties:
            unique, number = f"{fallback.replace('*', plain)}_{number}", number + 1
        properties[unique] = schema
        if is_required:
            self.schema.setdefault("required", []).append(unique)
        return unique


class OperationInputReader:
    """Reads the inputs of a document's operations."""

    def __init__(self, document: OpenApiDocument, schemas: OpenApiSchemaConverter) -> None:
        self._document, self._schemas = document, schemas

    def read(
        self, path: str, item: dict[str, Any], operation: dict[str, Any], security: Iterable[Sequence[Credential]]
    ) -> OperationInput:
        result = OperationInput()
        parameters = self._parameters(path, item, operation)
        credentials = {(each.location, each.name.lower()) for alternative in security for each in alternative}
        for parameter in parameters:
            location, name = parameter["in"], parameter["name"].lower()
            is_set_by_client = (location, name) in credentials or (location == "header" and name in _CLIENT_HEADERS)
            if location in _LOCATIONS and not is_set_by_client:
                self._add_parameter(result, parameter)
        if self._document.is_version_2:
            self._add_body_of_version_2(result, parameters, operation)
        else:
            self._add_body(result, operation)
        if definitions := self._schemas.definitions_for(result.schema):
            result.schema["$defs"] = definitions
        return result

    # Parameters

    def _parameters(self, path: str, item: dict[str, Any], operation: dict[str, Any]) -> list[dict[str, Any]]:
        """List the parameters of the path and the operation, and parameters that are only named in the path."""
        resolve = self._document.resolve
        described = [resolve(p) for owner in (item, operation) for p in select_mappings(owner.get("parameters"))]
        valid = [p for p in described if isinstance(p.get("in"), str) and isinstance(p.get("name"), str) and p["name"]]
        parameters = {(p["in"], p["name"]): p for p in valid}
        names_in_path = PLACEHOLDER.findall(path)
        undescribed: list[dict[str, Any]] = [
            {"in": "path", "name": name, "type": "string", "schema": {"type": "string"}}
            for name in dict.fromkeys(names_in_path)
            if ("path", name) not in parameters
        ]
        return [p for p in parameters.values() if p["in"] != "path" or p["name"] in names_in_path] + undescribed

    def _add_parameter(self, result: OperationInput, parameter: dict[str, Any]) -> None:
        content = parameter.get("content")
        media = next(iter(content.values()), None) if isinstance(content, dict) else None
        owner = media if isinstance(media, dict) else parameter
        schema = parameter if self._document.is_version_2 else owner.get("schema", {})
        location, name = parameter["in"], parameter["name"]
        argument = result.add(
            name,
            self._parameter_schema(parameter, schema if isinstance(schema, dict) else {}),
            is_required=parameter.get("required") is True or location == "path",
            fallback=f"*_{location}",
        )
        style, explode = _read_style(parameter, location, self._document.is_version_2)
        result.arguments.append(Argument(argument=argument, name=name, location=location, style=style, explode=explode))

    def _parameter_schema(self, parameter: dict[str, Any], schema: dict[str, Any]) -> JsonSchema:
        # Unlike in a body, the default is kept in the schema; it is not sent.
        converted = self._schemas.convert({key: value for key, value in schema.items() if key != "default"})
        texts = [shorten_description(parameter.get("description")) or converted.pop("description", "")]
        if parameter.get("deprecated") is True:
            texts.insert(0, "Deprecated.")
        if description := " ".join(text for text in texts if text):
            converted = {"description": description, **_remove_description(converted)}
        if "default" in schema and is_value_valid(schema["default"], converted):
            converted["default"] = schema["default"]
        return converted

    # The body

    def _add_body(self, result: OperationInput, operation: dict[str, Any]) -> None:
        body = self._document.resolve(operation.get("requestBody"))
        content = body.get("content")
        if not isinstance(content, dict) or not content:
            return
        media_type = _choose_media_type(content)
        media = content[media_type]
        media_type = JSON if media_type.endswith("*") else media_type.partition(";")[0].strip().lower()
        schema = media.get("schema", {}) if isinstance(media, dict) else {}
        properties = self._document.resolve(schema).get("properties")
        files = set()
        for name, value in (properties if isinstance(properties, dict) else {}).items():
            field_schema = self._document.resolve(value)
            if field_schema.get("type") == "array":
                field_schema = self._document.resolve(field_schema.get("items"))
            if field_schema.get("format") == "binary" or "contentMediaType" in field_schema:
                files.add(name)
        is_required = body.get("required") is True
        self._set_body(result, schema, media_type, body.get("description"), is_required=is_required, files=files)

    def _add_body_of_version_2(
        self, result: OperationInput, parameters: Iterable[dict[str, Any]], operation: dict[str, Any]
    ) -> None:
        media_types = select_texts(operation.get("consumes") or self._document.value.get("consumes"))
        fields = {p["name"]: p for p in parameters if p["in"] == "formData"}
        body = next((p for p in parameters if p["in"] == "body"), None)
        if body is not None:
            media_type = _choose_media_type(media_types or [JSON])
            media_type = JSON if media_type in (FORM, MULTIPART) else media_type
            schema, is_required = body.get("schema", {}), body.get("required") is True
            self._set_body(result, schema, media_type, body.get("description"), is_required=is_required)
        elif fields:
            required = [name for name, parameter in fields.items() if parameter.get("required") is True]
            files = {name for name, parameter in fields.items() if parameter.get("type") == "file"}
            media_type = MULTIPART if files or MULTIPART in media_types else FORM
            schema = {"type": "object", "properties": fields, "required": required}
            self._set_body(result, schema, media_type, is_required=bool(required), files=files)

    def _set_body(
        self,
        result: OperationInput,
        schema: Any,
        media_type: str,
        description: Any = None,
        *,
        is_required: bool,
        files: Collection[str] = (),
    ) -> None:
        is_structured = media_type in (FORM, MULTIPART) or media_type.endswith("json")
        converted = self._schemas.convert(schema) if is_structured else {"type": "string"}
        texts = [shorten_description(description) or converted.pop("description", "") or "The body of the request."]
        if media_type != JSON:
            texts.append(f"Sent as {media_type}.")
        if files:
            texts.append(f"Only text can be sent as a file: {', '.join(sorted(files))}.")
        schema = {"description": " ".join(texts), **_remove_description(converted)}
        argument = result.add("body", schema, is_required=is_required, fallback="request_*")
        sent_files = frozenset(files if media_type == MULTIPART else ())
        result.body = Body(argument=argument, media_type=media_type, files=sent_files)


def _read_style(parameter: dict[str, Any], location: str, is_version_2: bool) -> tuple[Style, bool]:
    if "content" in parameter:
        return "json", False
    default: Style = "form" if location in ("query", "cookie") else "simple"
    if is_version_2:
        name = parameter.get("collectionFormat", "csv" if default == "form" else "simple")
        return ("form", True) if name == "multi" else (_STYLES.get(str(name), "form"), False)
    style = _STYLES.get(str(parameter.get("style", default)), default)
    return style, bool(parameter.get("explode", style == "form"))


def _remove_description(schema: JsonSchema) -> JsonSchema:
    return {keyword: value for keyword, value in schema.items() if keyword != "description"}


def _choose_media_type(media_types: Iterable[str]) -> str:
    """Choose JSON if possible, then forms, then the first media type."""
    candidates = list(media_types)
    for preferred in (JSON, "+json", "json", FORM, MULTIPART, "*/*", "text/"):
        for media_type in candidates:
            if preferred in media_type.lower() and "patch+json" not in media_type:
                return media_type
    return candidates[0]
