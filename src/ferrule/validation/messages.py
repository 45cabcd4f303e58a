"""What is wrong with an argument, in words a model can act on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ferrule.call import ValidationError
from ferrule.content import as_text
from ferrule.names import did_you_mean, near_names
from ferrule.spec import JsonSchema
from ferrule.validation.schema_walk import branches, properties_of, resolve, types_of

REDACTED = "[redacted]"
_SHOWN = 120

_TYPE_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def explain(found: Any, *, schema: JsonSchema, params: dict[str, Any], secret: frozenset[str]) -> list[ValidationError]:
    """Our words for one of the schema validator's errors (several, where it speaks of several parameters)."""
    path = list(found.instance_path)
    kind, said = found.kind.name, found.kind.value
    hidden = bool(path) and path[0] in secret
    received = REDACTED if hidden else _shown(_without(found.instance, secret) if not path else found.instance)
    here = schema_at(schema, path)
    if kind == "required":
        return [_missing(path, said, here, params if not path else found.instance, schema)]
    if kind in ("additionalProperties", "unevaluatedProperties"):
        return [unknown_parameter([*path, name], here) for name in said]
    # The validator's own message may quote all arguments.
    message, hint = _words(
        kind, said, received, "is not valid" if hidden or (secret and not path) else found.message, here
    )
    return [
        ValidationError(
            path=path_text(path),
            message=message,
            expected=expected_text(here, schema),
            received=received,
            hint=hint,
            code=kind,
        )
    ]


def unknown_parameter(path: Sequence[Any], parent: JsonSchema) -> ValidationError:
    known = list(properties_of(parent))
    hint = did_you_mean(str(path[-1]), known).strip() or (
        f"The parameters are: {', '.join(known)}." if known else "It takes no parameters."
    )
    return ValidationError(
        path=path_text(path),
        message=f"there is no parameter {str(path[-1])!r}.",
        expected="no such parameter",
        received=None,
        hint=hint,
        code="additionalProperties",
    )


def path_text(path: Iterable[Any]) -> str:
    """`headers.accept`, `items[2].id`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def expected_text(schema: JsonSchema, root: JsonSchema) -> str:
    """What a parameter takes, in a few words."""
    return " or ".join(dict.fromkeys(_one_expected(option) for option in branches(schema, root)))


def schema_at(schema: JsonSchema, path: Sequence[Any]) -> JsonSchema:
    """The part of the schema that speaks about a place in the arguments; empty when none does."""
    here = resolve(schema, schema)
    for part in path:
        for option in branches(here, schema):
            inner = option.get("items") if isinstance(part, int) else properties_of(option).get(part)
            if isinstance(inner, dict):
                here = resolve(inner, schema)
                break
        else:
            return {}
    return here


def _missing(path: list[Any], name: str, parent: JsonSchema, given: Any, root: JsonSchema) -> ValidationError:
    prop = resolve(properties_of(parent).get(name), root)
    unknown = [key for key in given if key not in properties_of(parent)] if isinstance(given, dict) else []
    near = near_names(name, unknown, most=1)
    hint = f"You passed {near[0]!r}: is that it?" if near else str(prop.get("description", ""))
    return ValidationError(
        path=path_text([*path, name]),
        message="is required.",
        expected=expected_text(prop, root),
        received=None,
        hint=hint,
        code="required",
    )


def _words(kind: str, said: Any, received: Any, fallback: str, schema: JsonSchema) -> tuple[str, str]:
    got = f"not {received}" if isinstance(received, str) else f"not {as_text(received)}"
    match kind:
        case "type":
            wanted = " or ".join(_TYPE_WORDS.get(t, t) for t in said)
            return f"must be {wanted}, {got}.", _example(schema)
        case "enum":
            near = did_you_mean(str(received).strip("'\""), [str(option) for option in said]).strip()
            return f"must be one of {_listed(said)}, {got}.", near
        case "const":
            return f"must be {as_text(said)}, {got}.", ""
        case "minimum":
            return f"must be at least {said}, {got}.", ""
        case "maximum":
            return f"must be at most {said}, {got}.", ""
        case "exclusiveMinimum":
            return f"must be more than {said}, {got}.", ""
        case "exclusiveMaximum":
            return f"must be less than {said}, {got}.", ""
        case "multipleOf":
            return f"must be a multiple of {said}, {got}.", ""
        case "minLength":
            return f"must have at least {said} characters, {got}.", ""
        case "maxLength":
            return f"must have at most {said} characters, {got}.", ""
        case "minItems":
            return f"must have at least {said} items.", ""
        case "maxItems":
            return f"must have at most {said} items.", ""
        case "uniqueItems":
            return "must not have the same item twice.", ""
        case "pattern":
            return f"must match the pattern {said}, {got}.", _example(schema)
        case "anyOf" | "oneOf":
            return f"fits none of the forms it may have, {got}.", ""
        case _:
            return f"{fallback}.", ""


def _one_expected(schema: JsonSchema) -> str:
    if isinstance(schema.get("enum"), list):
        return f"one of {_listed(schema['enum'])}"
    words = [_TYPE_WORDS.get(t, t) for t in types_of(schema)] or ["any value"]
    text = " or ".join(words)
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (("minimum", "from"), ("maximum", "to"), ("pattern", "matching"), ("format", "as"))
        if key in schema
    ]
    return " ".join([text, *bounds])


def _example(schema: JsonSchema) -> str:
    examples = schema.get("examples")
    return f"For example: {as_text(examples[0])}." if isinstance(examples, list) and examples else ""


def _listed(options: Sequence[Any]) -> str:
    shown = [as_text(option) for option in options[:20]]
    return ", ".join(shown) + (f" … ({len(options)} in all)" if len(options) > 20 else "")


def _without(params: Any, secret: frozenset[str]) -> Any:
    return {k: REDACTED if k in secret else v for k, v in params.items()} if isinstance(params, dict) else params


def _shown(value: Any) -> Any:
    """A value short enough to be read back."""
    if isinstance(value, (int, float, bool)) or value is None:
        return value
    text = repr(value) if isinstance(value, str) else as_text(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
