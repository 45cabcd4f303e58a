"""Explaining what is wrong with an argument, so that a model can fix it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ferrule.core.call import ValidationError
from ferrule.core.content import REDACTED, as_text
from ferrule.core.json_schema import JsonSchema, allowed_types, list_branches, properties_of, resolve_schema
from ferrule.core.names import did_you_mean, similar_names

_MAX_VALUE_LENGTH = 120
"""Characters of a value in a message."""

_MESSAGES = {
    "minimum": "must be at least {limit}, {got}.",
    "maximum": "must be at most {limit}, {got}.",
    "exclusiveMinimum": "must be more than {limit}, {got}.",
    "exclusiveMaximum": "must be less than {limit}, {got}.",
    "multipleOf": "must be a multiple of {limit}, {got}.",
    "minLength": "must have at least {limit} characters, {got}.",
    "maxLength": "must have at most {limit} characters, {got}.",
    "minItems": "must have at least {limit} items.",
    "maxItems": "must have at most {limit} items.",
    "uniqueItems": "must not have the same item twice.",
    "anyOf": "matches none of the allowed forms, {got}.",
    "oneOf": "matches none of the allowed forms, {got}.",
}
_TYPE_NAMES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


MAX_ERRORS = 20
MAX_COMPARED_NAMES = 300
"""Names that are compared with a wrong one, which takes up to 30 µs for each."""


def explain_error(
    error: Any, *, schema: JsonSchema, params: dict[str, Any], secret: frozenset[str]
) -> list[ValidationError]:
    """Turn an error of jsonschema-rs into ours: several, where it is about several parameters."""
    path = list(error.instance_path)
    keyword, limit = error.kind.name, error.kind.value
    is_secret = bool(path) and path[0] in secret
    received = (
        REDACTED if is_secret else _shorten_value(error.instance if path else _redact_params(error.instance, secret))
    )
    inner = find_schema_at(schema, path)
    if keyword == "required":
        return [_missing_parameter_error(path, limit, inner, error.instance if path else params, schema)]
    if keyword in ("additionalProperties", "unevaluatedProperties"):
        return [unknown_parameter_error([*path, name], inner) for name in limit[:MAX_ERRORS]]
    # The validator's own message may quote all arguments, secret ones too.
    fallback = "is not valid" if is_secret or (secret and not path) else error.message
    message, hint = _describe_violation(keyword, limit, received, fallback, inner)
    return [
        ValidationError(
            path=format_path(path),
            message=message,
            expected=describe_expected(inner, schema),
            received=received,
            hint=hint,
            code=keyword,
        )
    ]


def unknown_parameter_error(path: Sequence[Any], parent: JsonSchema) -> ValidationError:
    names = list(properties_of(parent))
    hint = did_you_mean(str(path[-1]), names[:MAX_COMPARED_NAMES]).strip() or (
        f"The parameters are: {', '.join(names)}." if names else "It takes no parameters."
    )
    return ValidationError(
        path=format_path(path),
        message=f"there is no parameter {str(path[-1])!r}.",
        expected="no such parameter",
        received=None,
        hint=hint,
        code="additionalProperties",
    )


def format_path(path: Iterable[Any]) -> str:
    """Return `headers.accept`, `items[2].id`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def describe_expected(schema: JsonSchema, root: JsonSchema) -> str:
    """Return what a parameter accepts, in a few words."""
    return " or ".join(dict.fromkeys(_describe_option(option) for option in list_branches(schema, root)))


def find_schema_at(schema: JsonSchema, path: Sequence[Any]) -> JsonSchema:
    """Return the part of the schema for a path in the arguments; empty when there is none."""
    result = resolve_schema(schema, schema)
    for part in path:
        for option in list_branches(result, schema):
            inner = option.get("items") if isinstance(part, int) else properties_of(option).get(part)
            if isinstance(inner, dict):
                result = resolve_schema(inner, schema)
                break
        else:
            return {}
    return result


def _missing_parameter_error(
    path: list[Any], name: str, parent: JsonSchema, values: Any, root: JsonSchema
) -> ValidationError:
    prop = resolve_schema(properties_of(parent).get(name), root)
    unknown = [key for key in values if key not in properties_of(parent)] if isinstance(values, dict) else []
    similar = similar_names(name, unknown[:MAX_COMPARED_NAMES], limit=1)
    description = str(prop.get("description", "")).strip().rstrip(".")
    hint = f"It is described as “{description}”." if description else ""
    hint = f"You passed {similar[0]!r}: did you mean {name!r}?" if similar else hint
    return ValidationError(
        path=format_path([*path, name]),
        message="is required.",
        expected=describe_expected(prop, root),
        received=None,
        hint=hint,
        code="required",
    )


def _describe_violation(keyword: str, limit: Any, received: Any, fallback: str, schema: JsonSchema) -> tuple[str, str]:
    """Return the message and the hint for a value that violates a keyword of its schema."""
    got = f"not {received}" if isinstance(received, str) else f"not {as_text(received)}"
    match keyword:
        case "type":
            types = " or ".join(_TYPE_NAMES.get(name, name) for name in limit)
            return f"must be {types}, {got}.", _example_hint(schema)
        case "enum":
            hint = did_you_mean(str(received).strip("'\""), [str(option) for option in limit]).strip()
            return f"must be one of {_list_options(limit)}, {got}.", hint
        case "const":
            return f"must be {as_text(limit)}, {got}.", ""
        case "pattern":
            return f"must match the pattern {limit}, {got}.", _example_hint(schema)
    template = _MESSAGES.get(keyword)
    return template.format(limit=limit, got=got) if template else f"{fallback}.", ""


def _describe_option(schema: JsonSchema) -> str:
    if isinstance(schema.get("enum"), list):
        return f"one of {_list_options(schema['enum'])}"
    types = [_TYPE_NAMES.get(name, name) for name in allowed_types(schema)] or ["any value"]
    bounds = [
        f"{preposition} {schema[keyword]}"
        for keyword, preposition in (("minimum", "from"), ("maximum", "to"), ("pattern", "matching"), ("format", "as"))
        if keyword in schema
    ]
    return " ".join([" or ".join(types), *bounds])


def _example_hint(schema: JsonSchema) -> str:
    examples = schema.get("examples")
    return f"For example: {as_text(examples[0])}." if isinstance(examples, list) and examples else ""


def _list_options(options: Sequence[Any]) -> str:
    listed = [as_text(option) for option in options[:20]]
    return ", ".join(listed) + (f" … ({len(options)} in all)" if len(options) > 20 else "")


def _redact_params(params: Any, secret: frozenset[str]) -> Any:
    return {k: REDACTED if k in secret else v for k, v in params.items()} if isinstance(params, dict) else params


def _shorten_value(value: Any) -> Any:
    """Return a value, cut to a length that fits a message."""
    if isinstance(value, (int, float, bool)) or value is None:
        return value
    text = repr(value) if isinstance(value, str) else as_text(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}… ({len(text)} characters)"
