"""Arguments written as plain text between tags: what they are is said by the tool's schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ferrule.parsing.known import Known
from ferrule.parsing.literals import Unreadable, read_whole

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "float": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "dict": (dict,),
    "array": (list,),
    "tuple": (list,),
    "null": (type(None),),
}
_WRAPPERS = frozenset({"arguments", "parameters", "properties", "input", "args"})
_DEEPEST = 8


def value_of(said: str, tool: Known, parameter: str, *, is_text: bool = False) -> Any:
    """What a parameter's text stands for: text stays text where the schema takes text.

    What does not fit stays text too: the validator says it better. `is_text` is the writer's word, for parameters
    the schema does not know.
    """
    schema = tool.properties.get(parameter)
    kinds = set(_kinds(schema, tool.parameters)) if isinstance(schema, Mapping) else set()
    if is_text and not kinds:
        return said
    if "string" in kinds and not _could_be_more(said, kinds):
        return said
    try:
        value = read_whole(said)
    except Unreadable:
        return said
    if not kinds:
        return said if isinstance(value, str) else value
    return value if any(_fits(value, kind) for kind in kinds) else said


def unwrapped(arguments: dict[str, Any], tool: Known) -> dict[str, Any]:
    """The arguments, where a model put all of them into one parameter called `arguments` or the like."""
    if len(arguments) != 1:
        return arguments
    [(name, value)] = arguments.items()
    if name in tool.properties or name not in _WRAPPERS:
        return arguments
    if isinstance(value, str):
        try:
            value = read_whole(value)
        except Unreadable:
            return arguments
    return value if isinstance(value, dict) else arguments


def _kinds(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """The types a value may have, through references and unions."""
    if depth > _DEEPEST:
        return
    kind = schema.get("type")
    yield from [kind] if isinstance(kind, str) else [k for k in kind or () if isinstance(k, str)]
    for said in [schema["const"]] if "const" in schema else schema.get("enum") or ():
        yield from [name for name in _KINDS if _fits(said, name)]
    options = [o for keyword in ("anyOf", "oneOf", "allOf") for o in schema.get(keyword) or ()]
    reference = schema.get("$ref")
    if isinstance(reference, str) and (target := _target(reference, root)) is not None:
        options.append(target)
    for option in options:
        if isinstance(option, Mapping):
            yield from _kinds(option, root, depth + 1)


def _target(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    place: Any = root
    for step in reference.removeprefix("#/").split("/"):
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place if isinstance(place, Mapping) else None


def _could_be_more(said: str, kinds: set[str]) -> bool:
    """Where a schema takes text and something else: null, objects and lists are recognised by how they look."""
    said = said.strip()
    return ("null" in kinds and said in ("null", "None")) or (
        said[:1] in ("{", "[") and bool(kinds & {"object", "array"})
    )


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return kind not in _KINDS or isinstance(value, _KINDS[kind])
