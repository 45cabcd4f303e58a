"""Reading a Python callable: its JSON Schema, and how to call it with JSON arguments."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NoReturn,
    Optional,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson

from ferrule.core.call import RunContext, ToolExecutionContext
from ferrule.core.content import Audio, Image, Output, Resource, Text, check_depth
from ferrule.core.json_schema import JsonSchema, inline_definitions
from ferrule.core.patterns import lazy_pattern
from ferrule.core.schema.binding import (
    MISSING,
    Bind,
    Conversion,
    ConvertingBinder,
    bind_unchanged,
    generate_schemas,
    make_conversion,
    output_schema,
)
from ferrule.core.schema.hints import allows_none, description_of, mentions_class, metadata_of, schema_of_plain_hint
from ferrule.errors import SpecError

CallableKind: TypeAlias = Literal["sync", "async", "generator", "async_generator"]
_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_POSITIONAL_OR_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_PASSED_BY_NAME = (_POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, _VAR_KEYWORD)
_EMPTY = inspect.Parameter.empty
_SCALAR_TYPES = (str, int, bool, type(None))
_CONTENT_TYPES = (Text, Image, Audio, Resource, Output)
"""Results that are not JSON and have no schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSignature:
    """The description of a callable."""

    description: str
    """Its docstring without the section about parameters."""
    parameters: JsonSchema
    output: JsonSchema | None
    """The schema of its results; None when it has no return hint, or one that JSON Schema cannot express."""
    context_parameter: str | None
    """The name of the parameter for the context of the call; not among `parameters`."""
    kind: CallableKind
    bind: Bind
    """Turns valid arguments into those of the callable: `args, kwargs = signature.bind(params, context)`."""


def read_function(fn: Callable[..., Any]) -> FunctionSignature:
    """Read a callable's hints and docstring. Raises a SpecError for a hint that JSON cannot express."""
    declared, return_annotation = caller_parameters(fn)
    annotations = {p.name: p.annotation for p in declared if p.annotation is not _EMPTY}
    if return_annotation is not _EMPTY:
        annotations["return"] = return_annotation
    hints = resolve_hints(fn, annotations)
    contexts = [name for name, hint in hints.items() if _is_context_hint(hint) and name != "return"]
    if len(contexts) > 1:
        raise SpecError(
            f"function {callable_name(fn)!r} has several context parameters ({', '.join(contexts)}): keep one"
        )
    context = contexts[0] if contexts else None
    docs = parse_docstring(docstring_of(fn))
    parameters = [read_parameter(fn, p, hints.get(p.name, Any), docs.parameters) for p in declared if p.name != context]
    schema = _build_parameters_schema(parameters)
    kind = callable_kind(fn)
    return FunctionSignature(
        description=docs.description,
        parameters=schema,
        output=_build_output_schema(hints.get("return", Any), kind),
        context_parameter=context,
        kind=kind,
        bind=_choose_bind(declared, parameters, schema, context),
    )


def _is_context_hint(hint: Any) -> bool:
    if not isinstance(hint, type) and get_origin(hint) in (Annotated, Union, types.UnionType):
        return any(_is_context_hint(option) for option in get_args(hint))
    return hint is ToolExecutionContext or get_origin(hint) is ToolExecutionContext


def _build_parameters_schema(parameters: Sequence[FunctionParameter]) -> JsonSchema:
    conversions = {p.name: p.conversion for p in parameters if p.conversion is not None}
    converted, definitions = generate_schemas(conversions) if conversions else ({}, {})
    schema: JsonSchema = {"type": "object", "properties": {}}
    for parameter in parameters:
        hint_schema = converted[parameter.name] if parameter.plain is None else parameter.plain
        if parameter.kind is _VAR_KEYWORD:
            schema["additionalProperties"] = hint_schema or True
        else:
            schema["properties"][parameter.name] = parameter.schema(hint_schema)
    required = [p.name for p in parameters if p.is_required and p.kind is not _VAR_KEYWORD]
    if required:
        schema["required"] = required
    return inline_definitions(schema, definitions) if definitions else schema


def _build_output_schema(hint: Any, kind: CallableKind) -> JsonSchema | None:
    if kind in ("generator", "async_generator") or hint is NoReturn or mentions_class(hint, _CONTENT_TYPES):
        return None
    schema = schema_of_plain_hint(hint)
    return output_schema(hint) if schema is None else schema or None


def _choose_bind(
    declared: Sequence[inspect.Parameter],
    parameters: Sequence[FunctionParameter],
    schema: JsonSchema,
    context: str | None,
) -> Bind:
    """Return the cheapest function that passes arguments in a form the callable takes."""
    are_unchanged = all(p.plain is not None and p.make_default is None for p in parameters)
    if context is None and are_unchanged and all(p.kind in _PASSED_BY_NAME for p in declared):
        return bind_unchanged
    variadic = next((p.name for p in declared if p.kind is _VAR_POSITIONAL), None)
    # `*args` comes after the other positional parameters, so these must then be passed by position too.
    by_position = (_POSITIONAL_ONLY,) if variadic is None else (_POSITIONAL_ONLY, _POSITIONAL_OR_KEYWORD)
    return ConvertingBinder(
        context_parameter=context,
        conversions={
            p.name: p.conversion for p in parameters if p.conversion is not None and p.kind is not _VAR_KEYWORD
        },
        extra=next((p.conversion for p in parameters if p.kind is _VAR_KEYWORD), None),
        declared=frozenset(p.name for p in parameters if p.kind is not _VAR_KEYWORD),
        secret=frozenset(name for name, inner in schema["properties"].items() if inner.get("writeOnly")),
        defaults={p.name: p.make_default for p in parameters if p.make_default is not None},
        positional={p.name: MISSING if p.default is _EMPTY else p.default for p in declared if p.kind in by_position},
        variadic=variadic,
    )


# Parameters


@dataclass(slots=True, kw_only=True)
class FunctionParameter:
    """A parameter while its function is being read."""

    name: str
    kind: Any
    """`inspect.Parameter.kind`."""
    plain: JsonSchema | None
    """Its schema; None when its values need a conversion."""
    conversion: Conversion | None
    """How its values are converted; None when they need no conversion."""
    description: str
    default: Any
    """MISSING when it is required."""
    make_default: Callable[[], Any] | None
    """Set when the default is in a pydantic `Field(...)`, which Python does not apply."""

    @property
    def is_required(self) -> bool:
        return self.default is MISSING and self.make_default is None and self.kind is not _VAR_POSITIONAL

    def schema(self, hint_schema: JsonSchema) -> JsonSchema:
        """Return the property in the function's schema, from the schema of the parameter's hint."""
        schema = _move_description_to_union(hint_schema)
        if self.description:
            schema["description"] = self.description
        default = self._json_default() if not schema.get("writeOnly") else MISSING
        if default is not MISSING:
            schema["default"] = default
        return schema

    def _json_default(self) -> Any:
        """Return the default as JSON; MISSING if JSON cannot express it, and the function's own default applies."""
        value = self.make_default() if self.make_default is not None else self.default
        if value is MISSING:
            return MISSING
        try:
            value = value if self.conversion is None else self.conversion.to_json(value)
            if type(value) in _SCALAR_TYPES:
                return value
            check_depth(value)
            copy = orjson.loads(orjson.dumps(value))
        except (TypeError, ValueError, RecursionError):
            return MISSING
        return copy if copy == value else MISSING


def read_parameter(
    fn: Callable[..., Any], parameter: inspect.Parameter, hint: Any, descriptions: Mapping[str, str]
) -> FunctionParameter:
    """Read one parameter of `fn`, with its resolved hint and the descriptions in the docstring."""
    default = MISSING if parameter.default is _EMPTY else parameter.default
    make_default = None
    if _is_pydantic_field(default):
        hint, default = Annotated[hint, default], MISSING
    metadata = metadata_of(hint)
    field = next(filter(_is_pydantic_field, metadata), None)
    if field is not None and default is MISSING and not field.is_required():
        make_default = partial(field.get_default, call_default_factory=True)
    if default is None and not allows_none(hint):
        hint = Optional[hint]  # noqa: UP045 (`|` does not accept every kind of hint)
    if parameter.kind is _VAR_POSITIONAL:
        hint = list[hint]
    plain = schema_of_plain_hint(hint)
    return FunctionParameter(
        name=parameter.name,
        kind=parameter.kind,
        plain=plain,
        conversion=_make_parameter_conversion(fn, parameter, hint) if plain is None else None,
        description=description_of(metadata) or descriptions.get(parameter.name, ""),
        default=default,
        make_default=make_default,
    )


def _make_parameter_conversion(fn: Callable[..., Any], parameter: inspect.Parameter, hint: Any) -> Conversion:
    try:
        return make_conversion(hint)
    except SpecError as error:
        raise SpecError(
            f"function {callable_name(fn)!r}: parameter {parameter.name!r} has the type hint "
            f"{inspect.formatannotation(hint)}, which JSON cannot express ({error}). Use text, numbers, lists, "
            f"a dataclass, a TypedDict or a pydantic model, or leave the parameter out with functools.partial."
        ) from error


def _move_description_to_union(schema: JsonSchema) -> JsonSchema:
    """Move the description of `X | None` from inside one option of the union beside the union."""
    options = schema.get("anyOf")
    if not isinstance(options, list):
        return schema
    real = [option for option in options if option != {"type": "null"}]
    if len(real) != 1 or len(options) != 2:
        return schema
    lifted = {keyword: real[0][keyword] for keyword in ("description", "writeOnly") if keyword in real[0]}
    inner = {keyword: value for keyword, value in real[0].items() if keyword not in lifted}
    return {**schema, "anyOf": [inner if option is real[0] else option for option in options], **lifted}


def _is_pydantic_field(thing: Any) -> bool:
    return type(thing).__name__ == "FieldInfo" and type(thing).__module__ == "pydantic.fields"


# Callables: functions, methods, partials, callable objects and wrapped functions, treated alike


def callable_name(fn: Any) -> str:
    """Return the name of a callable for messages."""
    function = unwrap_callable(fn)
    return str(getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(fn))


def unwrap_callable(fn: Any) -> Any:
    """Return the plain function below partials, methods, wrappers and callable objects, or the closest thing to it."""
    while True:
        if hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif isinstance(fn, types.FunctionType):
            return fn
        elif isinstance(fn, partial):
            fn = fn.func
        elif isinstance(fn, (types.MethodType, staticmethod, classmethod)):
            fn = fn.__func__
        elif is_callable_object(fn):
            fn = type(fn).__call__
        else:
            return fn


def is_callable_object(thing: Any) -> bool:
    """Return whether it is an object whose class has a `__call__` written in Python."""
    return callable(thing) and not isinstance(thing, type) and isinstance(type(thing).__call__, types.FunctionType)


def callable_kind(fn: Callable[..., Any]) -> CallableKind:
    """Return how a call of it returns its result. A wrapper counts, not what it wraps."""
    called = type(fn).__call__ if is_callable_object(fn) else fn
    if inspect.iscoroutinefunction(called):
        return "async"
    if inspect.isasyncgenfunction(called):
        return "async_generator"
    return "generator" if inspect.isgeneratorfunction(called) else "sync"


def docstring_of(fn: Any) -> str | None:
    """Return the docstring of a callable; that of a partial is its function's, a method may inherit its own."""
    if isinstance(fn, partial):
        return docstring_of(fn.func)
    if is_callable_object(fn):
        return type(fn).__call__.__doc__ or type(fn).__doc__
    return fn.__doc__ or (inspect.getdoc(fn) if isinstance(fn, types.MethodType) else None)


def caller_parameters(fn: Callable[..., Any]) -> tuple[list[inspect.Parameter], Any]:
    """Return the parameters a caller may pass, and the return annotation.

    Keyword arguments of a partial are left out: they may be keys, and a model must not choose them.
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"the parameters of {callable_name(fn)!r} cannot be read ({error}). Wrap it in a function with type hints."
        ) from error
    fixed = fn.keywords if isinstance(fn, partial) else ()
    return [p for name, p in signature.parameters.items() if name not in fixed], signature.return_annotation


def resolve_hints(fn: Callable[..., Any], annotations: dict[str, Any]) -> dict[str, Any]:
    """Return the annotations with names in quotes replaced by what they name."""
    if all(isinstance(hint, type) for hint in annotations.values()):
        return annotations
    function = unwrap_callable(fn)
    # Linters advise to import types under `if TYPE_CHECKING`, the context's among them: supply that one.
    contexts = {ToolExecutionContext.__name__: ToolExecutionContext, "RunContext": RunContext}
    names = {**contexts, **getattr(function, "__globals__", {})}
    resolved: dict[str, Any] = {}
    for name, hint in annotations.items():
        annotated = types.SimpleNamespace(
            __annotations__={name: hint}, __type_params__=getattr(function, "__type_params__", ())
        )
        try:
            resolved.update(get_type_hints(annotated, globalns=names, include_extras=True))
        except Exception as error:
            if name == "return":
                continue
            raise SpecError(
                f"function {callable_name(function)!r}: the type hint {hint!r} of parameter {name!r} cannot be "
                f"resolved at run time ({error}). Import or define it at the top level of {function.__module__!r}, "
                f"outside `if TYPE_CHECKING`."
            ) from error
    return resolved


# Docstrings: the sections about parameters (Google's `Args:`, NumPy's underlined `Parameters`, reST's `:param x:`) are
# cut out and parsed; the rest, including notes on results and errors, is the description. A section that cannot be
# parsed stays in the description.

Entries: TypeAlias = Iterable[tuple[str, str]]
"""Names with their descriptions."""

_TITLES: Final = "Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters|参数|參數"
_PARAMETER_NAME: Final = r"\\?\*{0,2}([^\W\d]\w*)"

# A section goes on as long as lines are indented or empty.
_GOOGLE_SECTION: Final = lazy_pattern(
    rf"^(?:{_TITLES})[ \t]*[:：][ \t]*\n((?:[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)+)", re.MULTILINE
)
_GOOGLE_ENTRY: Final = lazy_pattern(rf"\s*{_PARAMETER_NAME}[ \t]*(?:[(（].*?[)）])?[ \t]*[:：][ \t]*(.*)")

# A section goes on until the next underlined title.
_NUMPY_SECTION: Final = lazy_pattern(
    rf"^(?:{_TITLES})[ \t]*\n-{{3,}}[ \t]*\n((?:(?!^\S.*\n[-=]{{3,}}[ \t]*$).*\n?)+)", re.MULTILINE
)
_NUMPY_ENTRY: Final = lazy_pattern(rf"{_PARAMETER_NAME}(?:[ \t]*,[ \t]*{_PARAMETER_NAME})*[ \t]*(?::.*)?$")

# A field goes on as long as lines are indented. `:type x:` repeats the hint and is dropped.
_REST_FIELD: Final = lazy_pattern(
    rf"^:(?:(?:param|parameter|arg|argument|key|keyword)[ \t]+(?:[^:\n]*[ \t])?{_PARAMETER_NAME}|type[^:\n]*)[ \t]*:"
    r"[ \t]*(.*(?:\n+[ \t]+\S.*)*)\n?",
    re.MULTILINE,
)
_MANY_EMPTY_LINES: Final = lazy_pattern(r"\n{3,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """The parts of a docstring."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def parse_docstring(text: str | None) -> Docstring:
    """Parse a docstring of any of the three styles; one that cannot be parsed is all description."""
    if not text:
        return Docstring()
    text = inspect.cleandoc(text).strip()
    for sections, read in _STYLES:
        matches = list(sections.finditer(text))
        if matches:
            try:
                parameters = {name: entry for match in matches for name, entry in read(match) if entry}
            except _MalformedSection:
                break
            description = _MANY_EMPTY_LINES.sub("\n\n", sections.sub("\n", text)).strip()
            return Docstring(description=description, parameters=parameters)
    return Docstring(description=text)


class _MalformedSection(Exception):
    """A section is not written as its title promises."""


def _parse_google_section(section: re.Match[str]) -> Entries:
    """Read `name (type): text`; lines that are indented deeper belong to the text."""
    lines = section[1].strip("\n").split("\n")
    margin = _indent_width(lines[0])
    return [(match[1], entry) for match, entry in _split_entries(lines, margin, _GOOGLE_ENTRY, lambda match: match[2])]


def _parse_numpy_section(section: re.Match[str]) -> Entries:
    """Read `name : type`, or `name, name : type`, with the text indented below."""
    lines = section[1].strip("\n").split("\n")
    entries = _split_entries(lines, 0, _NUMPY_ENTRY, lambda match: "")
    return [(name, entry) for match, entry in entries for name in re.findall(r"\w+", match[0].partition(":")[0])]


def _split_entries(
    lines: list[str], margin: int, entry: re.Pattern[str], first_line: Callable[[re.Match[str]], str]
) -> Iterable[tuple[re.Match[str], str]]:
    """Yield entries: a line at the margin begins one, all other lines continue its text."""
    entries: list[tuple[re.Match[str], list[str]]] = []
    for line in lines:
        if line.strip() and _indent_width(line) <= margin:
            match = entry.match(line)
            if match is None:
                raise _MalformedSection(line)
            entries.append((match, [first_line(match)]))
        elif entries:
            entries[-1][1].append(line)
    return [(match, text[0] if len(text) == 1 else inspect.cleandoc("\n".join(text))) for match, text in entries]


def _indent_width(line: str) -> int:
    return len(line) - len(line.lstrip())


_STYLES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Entries]], ...]] = (
    (_REST_FIELD, lambda field: [(field[1], inspect.cleandoc(field[2]))] if field[1] else []),
    (_NUMPY_SECTION, _parse_numpy_section),
    (_GOOGLE_SECTION, _parse_google_section),
)
