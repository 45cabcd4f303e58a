"""Putting a schema and the definitions it refers to together, as short as they can be said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ferrule.spec import JsonSchema

_PREFIX = "#/$defs/"


def settle_definitions(schema: JsonSchema, definitions: dict[str, JsonSchema]) -> JsonSchema:
    """The schema with definitions written where they are used, if that is one place or they are a mere choice.

    What is used more often, or contains itself, stays a definition. Definitions lose their titles, which repeat
    the names of classes.
    """
    untitled = {name: {k: v for k, v in said.items() if k != "title"} for name, said in definitions.items()}
    uses = Counter(_references(schema))
    for said in untitled.values():
        uses.update(_references(said))
    # One used once cannot contain itself: that would be a second use.
    inlined = {name: said for name, said in untitled.items() if uses[name] == 1 or "enum" in said}
    settled: JsonSchema = _write_out(schema, inlined)
    kept = {name: _write_out(said, inlined) for name, said in untitled.items() if name not in inlined}
    return {**settled, "$defs": kept} if kept else settled


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        name = _referred(node)
        if name is not None:
            yield name
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _write_out(node: Any, inlined: dict[str, JsonSchema]) -> Any:
    if isinstance(node, list):
        return [_write_out(value, inlined) for value in node]
    if not isinstance(node, dict):
        return node
    name = _referred(node)
    if name is None or name not in inlined:
        return {key: _write_out(value, inlined) for key, value in node.items()}
    # What stands beside a reference is about this use, and wins.
    beside = {key: _write_out(value, inlined) for key, value in node.items() if key != "$ref"}
    return {**_write_out(inlined[name], inlined), **beside}


def _referred(node: dict[str, Any]) -> str | None:
    reference = node.get("$ref")
    return reference.removeprefix(_PREFIX) if isinstance(reference, str) and reference.startswith(_PREFIX) else None
