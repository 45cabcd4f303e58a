"""Checking the arguments of a call against its tool's parameters.

A check is compiled once per action, on first use, and then costs less than a microsecond for valid arguments. Invalid
arguments are examined again, slowly: lenient mode coerces values that have exactly one sensible reading, and all
remaining errors are explained in one result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ferrule.catalog.validation.coercion import DefaultsFiller, WholeFloats, coerce, has_default
from ferrule.core.call import ValidationError, ValidationResult
from ferrule.core.content import MAX_DEPTH, REDACTED, SCALAR_TYPES, as_text, check_depth, copy_json, plain_json
from ferrule.core.json_schema import JsonSchema, allowed_types, list_branches, properties_of, resolve_schema
from ferrule.core.names import did_you_mean, similar_names
from ferrule.core.schema_limits import compile_schema, estimate_cost
from ferrule.core.spec import ToolCapability, ToolSpec
from ferrule.errors import SpecError, error_text

_LONG_TEXTS = "have texts that are too long to be matched with the patterns of these parameters."
_NO_MATCH = "the arguments match none of the allowed forms."
MAX_CHECKS = 20_000
"""Compiled checks in the cache. When it is full, most of them belong to actions that were replaced: it is cleared."""
_FEW_CHECKS = 50
"""Checks for one value that need no attention where all values are scalars."""
_ABOUT_OTHER_PARAMETERS = frozenset(
    "additionalProperties patternProperties unevaluatedProperties propertyNames dependentSchemas dependencies "
    "allOf anyOf oneOf not if then else".split()
)


class ParameterCheck:
    """The compiled check of one action's parameters."""

    def __init__(self, capability: ToolCapability, *, strict: bool = False, may_take_long: bool = False) -> None:
        """`may_take_long` is for a process that can be killed: long texts may be matched with any patterns there."""
        self.capability, self.strict = capability, strict
        self._schema = schema = resolve_schema(capability.schema, capability.schema)
        try:
            self._cost = estimate_cost(capability.schema)
            self._validator = compile_schema(capability.schema)
        except SpecError as error:
            raise SpecError(f"The parameters of {capability.name!r} cannot be checked: {error}") from None
        except ValueError as error:
            raise SpecError(f"The parameters of {capability.name!r} are not a valid JSON Schema: {error}") from None
        self._limits_texts = self._cost.has_patterns and not may_take_long
        self._is_costly = self._cost.checks > _FEW_CHECKS or self._cost.max_depth is not None
        self._is_valid = self._validator.is_valid
        filler = DefaultsFiller(capability.schema, only_required=not capability.fills_defaults)
        self._fill = filler.fill if has_default(capability.schema) else None
        self._secret = capability.secret_names
        properties = properties_of(schema)
        self._declared = frozenset(properties)
        # Undeclared parameters are refused (strict) or dropped (lenient), unless the schema has a rule for them or
        # declares parameters elsewhere than in its properties.
        self._is_closed = _ABOUT_OTHER_PARAMETERS.isdisjoint(schema)
        self._integers = tuple(n for n, p in properties.items() if "integer" in str(p))
        """Parameters that are or contain integers."""

    def takes_long(self, params: Any) -> bool:
        """Return whether only another process (`ferrule.process.checks`) may check: a check cannot be interrupted."""
        return self._limits_texts and not self._cost.permits_texts(params)

    def _fill_defaults_if_valid(self, params: Any) -> dict[str, Any] | None:
        """Return the arguments with defaults if they are valid, else None. Every valid call takes only this path.

        Raises RecursionError for arguments that are nested too deep; the compiled validator would crash on them.
        """
        if type(params) is not dict or (self._is_closed and not (params.keys() <= self._declared)):
            return None
        # Few scalars cost nothing; in lists and objects there may be millions of values.
        has_many = self._is_costly or not all(type(value) in SCALAR_TYPES for value in params.values())
        if has_many and self._refuse_large(params) is not None:
            return None
        filled = self._fill(params) if self._fill is not None else params.copy()
        if self.takes_long(filled):
            return None
        for name, value in filled.items():
            type_ = type(value)
            if type_ not in SCALAR_TYPES or (type_ is float and name in self._integers):
                # JSON Schema accepts 5.0 as an integer; Python functions do not. And a tool that changes its
                # arguments must not change those of its caller.
                check_depth(value)
                filled[name] = copy_json(value)
                if name in self._integers:
                    inner = properties_of(self._schema).get(name)
                    filled[name] = WholeFloats(self._schema).convert(filled[name], inner)
        try:
            return filled if self._is_valid(filled) else None
        except ValueError:  # a value JSON cannot represent
            return None

    def check(self, params: Mapping[str, Any] | None) -> ValidationResult:
        """Find what is wrong with the arguments, which may be any objects, and what the tool would get."""
        try:
            if (accepted := self._fill_defaults_if_valid(params)) is not None:
                return ValidationResult(True, [], accepted)
            if params is not None and not isinstance(params, Mapping):
                kind = type(params).__name__
                message = f"arguments must be an object of names and values, not {kind}."
                return _refuse(message, expected="an object", received=kind, code="type")
            return self._check({} if params is None else dict(params))
        except RecursionError:
            return _refuse(
                f"arguments must not be nested deeper than {MAX_DEPTH} levels.",
                expected=f"at most {MAX_DEPTH} levels",
                hint="Send a flatter structure, or the whole as text.",
                code="depth",
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a method of one of the arguments failed
            message = f"arguments cannot be read: {type(error).__name__}: {error_text(error)}."
            return _refuse(message, expected="JSON values", code="type")

    def _check(self, arguments: dict[str, Any]) -> ValidationResult:
        for name, value in arguments.items():  # converted to null, they would mean that the parameter is absent
            if isinstance(value, float) and not math.isfinite(value):
                return _refuse(f"must be a number, not {value}.", path=name, expected="a number", code="type")
        if (refused := self._refuse_large(arguments)) is not None:
            return refused
        if self.takes_long(arguments):
            return _refuse_size(_LONG_TEXTS)
        unknown = tuple(name for name in arguments if name not in self._declared) if self._is_closed else ()
        if unknown and self.strict:
            return self._explain(arguments, unknown)
        declared = {k: v for k, v in arguments.items() if k not in unknown} if unknown else arguments
        accepted = self._fill_defaults_if_valid(declared)
        if accepted is None and not self._cost.permits_coercion(declared):
            return _refuse(_NO_MATCH, expected="other arguments", code="anyOf")
        if accepted is None and not self.strict:
            accepted = self._fill_defaults_if_valid(coerce(plain_json(declared), self._schema, self._schema))
        if accepted is None:
            return self._explain(arguments, unknown)
        return ValidationResult(is_valid=True, validated_params=accepted, ignored=unknown)

    def _explain(self, arguments: dict[str, Any], unknown: tuple[str, ...]) -> ValidationResult:
        errors = [unknown_parameter_error([name], self._schema) for name in unknown[:MAX_ERRORS]]
        params = plain_json(arguments)
        if not self.strict:  # do not report what coercion can fix
            params = coerce(params, self._schema, self._schema)
        filled = self._fill(params) if self._fill is not None else params
        if not self._cost.permits_explanation(filled):
            refused = _refuse(_NO_MATCH, expected="other arguments", code="anyOf")
            return ValidationResult(is_valid=False, errors=errors or refused.errors)
        if self.takes_long(filled):
            return ValidationResult(is_valid=False, errors=[*errors, *_refuse_size(_LONG_TEXTS).errors])
        for error in self._validator.iter_errors(filled):
            errors += explain_error(error, schema=self._schema, params=params, secret=self._secret)
            if len(errors) >= MAX_ERRORS:
                break
        # A wrong name for which the error of a missing parameter has a better hint is reported once.
        named = {error.hint.partition(":")[0] for error in errors if error.code == "required"}
        errors = [error for error in errors if f"You passed {error.path!r}" not in named]
        if errors:
            return ValidationResult(is_valid=False, errors=errors)
        # A Python object in strict mode; lenient mode converts it to JSON.
        name = next((name for name, value in arguments.items() if plain_json(value) != value), "")
        kind = type(arguments.get(name)).__name__
        message = f"must be a JSON value, not a Python {kind}."
        return _refuse(message, path=name, expected="JSON", received=kind, code="type")

    def _refuse_large(self, arguments: dict[str, Any]) -> ValidationResult | None:
        """Refuse arguments that would take too long to check: these checks cannot be interrupted."""
        if not self._cost.permits_depth(arguments):
            problem = f"are nested more than {self._cost.max_depth} levels deep, which takes too long to check."
            return _refuse_size(problem, "depth")
        if not self._cost.permits_size(arguments):
            return _refuse_size("have too many values to be checked against these parameters.")
        return None


class ToolParameterValidator:
    """Checks the arguments of any tool; the check of each action is compiled once."""

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self._checks: dict[int, ParameterCheck] = {}
        """By the id of the action, which belongs to no other object because the check keeps the action."""

    def validate(
        self, tool: ToolSpec | ToolCapability, params: Mapping[str, Any] | None, *, action: str | None = None
    ) -> ValidationResult:
        capability = tool.capability(action) if isinstance(tool, ToolSpec) else tool
        if capability is None:
            assert isinstance(tool, ToolSpec)
            raise SpecError(f"Name the action of {tool.tool_id!r} to check. {tool.describe_actions(action)}")
        return self.get_check(capability).check(params)

    def get_check(self, capability: ToolCapability) -> ParameterCheck:
        check = self._checks.get(id(capability))
        if check is None:
            if len(self._checks) >= MAX_CHECKS:
                self._checks.clear()
            check = self._checks[id(capability)] = ParameterCheck(capability, strict=self.strict)
        return check


def _refuse(
    message: str, *, expected: str, code: str, path: str = "", hint: str = "", received: str | None = None
) -> ValidationResult:
    """Return the result for one parameter, or for arguments that are wrong as a whole."""
    error = ValidationError(path=path, message=message, expected=expected, received=received, hint=hint, code=code)
    return ValidationResult(is_valid=False, errors=[error])


def _refuse_size(problem: str, code: str = "size") -> ValidationResult:
    return _refuse(f"the arguments {problem}", expected="smaller arguments", code=code)


# Explaining what is wrong with an argument, so that a model can fix it

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
    is_secret, received = bool(path) and path[0] in secret, error.instance
    if not path and isinstance(received, dict):
        received = {name: REDACTED if name in secret else value for name, value in received.items()}
    received = REDACTED if is_secret else _shorten_value(received)
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


def _shorten_value(value: Any) -> Any:
    """Return a value, cut to a length that fits a message."""
    if isinstance(value, (int, float, bool)) or value is None:
        return value
    text = repr(value) if isinstance(value, str) else as_text(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}… ({len(text)} characters)"
