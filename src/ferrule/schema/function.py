"""From a Python callable to its JSON Schema, and from JSON arguments to a call of it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin

from ferrule.call import ToolExecutionContext
from ferrule.content import Audio, Image, Output, Resource, Text
from ferrule.errors import SpecError
from ferrule.schema.binding import MISSING, Bind, Binder, bind_as_they_are, bind_with_context
from ferrule.schema.callables import Kind, doc_of, kind_of, name_of, open_parameters, resolve_hints
from ferrule.schema.definitions import settle_definitions
from ferrule.schema.docstrings import read_docstring
from ferrule.schema.hints import mentions, plain_schema
from ferrule.schema.models import input_schemas, output_schema
from ferrule.schema.parameters import EXTRA, MANY, FunctionParameter, read_parameter
from ferrule.spec import JsonSchema

_BY_POSITION = inspect.Parameter.POSITIONAL_ONLY
_EITHER_WAY = inspect.Parameter.POSITIONAL_OR_KEYWORD
_EMPTY = inspect.Parameter.empty
_UNDESCRIBED = (Text, Image, Audio, Resource, Output)
"""What a tool returns in these travels in a form of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSignature:
    """What a callable says about itself, in the words of JSON Schema."""

    description: str
    """Its docstring without what that says about parameters."""
    parameters: JsonSchema
    output: JsonSchema | None
    """Of what it returns; None when it does not say, or JSON Schema cannot."""
    context_parameter: str | None
    """Takes the context of the call; not among `parameters`."""
    kind: Kind
    bind: Bind
    """Turns valid arguments into what the callable takes: `args, kwargs = signature.bind(params, context)`."""


def read_function(fn: Callable[..., Any]) -> FunctionSignature:
    """Read a callable's hints and docstring. A SpecError names what JSON cannot express."""
    found, returned = open_parameters(fn)
    written = {p.name: p.annotation for p in found if p.annotation is not _EMPTY}
    if returned is not _EMPTY:
        written["return"] = returned
    hints = resolve_hints(fn, written)
    context = _context_parameter(fn, hints)
    docs = read_docstring(doc_of(fn))
    parameters = [read_parameter(fn, p, hints.get(p.name, Any), docs.parameters) for p in found if p.name != context]
    schema = _schema(parameters)
    kind = kind_of(fn)
    return FunctionSignature(
        description=docs.description,
        parameters=schema,
        output=_output(hints.get("return", Any), kind),
        context_parameter=context,
        kind=kind,
        bind=_bind(found, parameters, schema, context),
    )


def _context_parameter(fn: Callable[..., Any], hints: dict[str, Any]) -> str | None:
    names = [name for name, hint in hints.items() if _is_context(hint) and name != "return"]
    if len(names) > 1:
        raise SpecError(f"function {name_of(fn)!r} has several context parameters ({', '.join(names)}): keep one")
    return names[0] if names else None


def _is_context(hint: Any) -> bool:
    if not isinstance(hint, type) and get_origin(hint) in (Annotated, Union, types.UnionType):
        return any(_is_context(option) for option in get_args(hint))
    return hint is ToolExecutionContext


def _schema(parameters: Sequence[FunctionParameter]) -> JsonSchema:
    conversions = {p.name: p.conversion for p in parameters if p.conversion is not None}
    said, definitions = input_schemas(conversions) if conversions else ({}, {})
    schema: JsonSchema = {"type": "object", "properties": {}}
    for parameter in parameters:
        hinted = said[parameter.name] if parameter.plain is None else parameter.plain
        if parameter.kind is EXTRA:
            schema["additionalProperties"] = hinted or True
        else:
            schema["properties"][parameter.name] = parameter.schema(hinted)
    required = [p.name for p in parameters if p.is_required and p.kind is not EXTRA]
    if required:
        schema["required"] = required
    return settle_definitions(schema, definitions) if definitions else schema


def _output(hint: Any, kind: Kind) -> JsonSchema | None:
    if kind in ("generator", "async_generator") or hint is NoReturn or mentions(hint, _UNDESCRIBED):
        return None
    schema = plain_schema(hint)
    return output_schema(hint) if schema is None else schema or None


def _bind(
    found: Sequence[inspect.Parameter], parameters: Sequence[FunctionParameter], schema: JsonSchema, context: str | None
) -> Bind:
    """The cheapest way to pass arguments on that the function can take."""
    if all(p.is_passed_as_it_is for p in parameters) and not any(p.kind is _BY_POSITION for p in found):
        return bind_as_they_are if context is None else partial(bind_with_context, context)
    many = next((p.name for p in found if p.kind is MANY), None)
    # What is passed after others by position takes them along.
    by_position = (_BY_POSITION,) if many is None else (_BY_POSITION, _EITHER_WAY)
    return Binder(
        context_parameter=context,
        conversions={p.name: p.conversion for p in parameters if p.conversion is not None and p.kind is not EXTRA},
        extra=next((p.conversion for p in parameters if p.kind is EXTRA), None),
        declared=frozenset(p.name for p in parameters if p.kind is not EXTRA),
        secret=frozenset(name for name, said in schema["properties"].items() if said.get("writeOnly")),
        defaults={p.name: p.make_default for p in parameters if p.make_default is not None},
        positional={p.name: MISSING if p.default is _EMPTY else p.default for p in found if p.kind in by_position},
        variadic=many,
    )
