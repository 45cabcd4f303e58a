"""Filling in defaults, at every depth, without touching what the caller passed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

from ferrule.spec import JsonSchema
from ferrule.validation.schema_walk import properties_of, resolve, types_of

Filler: TypeAlias = Callable[[Any], Any]


def compile_defaults(schema: JsonSchema) -> Filler | None:
    """A function that returns a value with its defaults filled in; None when the schema has no defaults."""
    return _Compiler(schema).filler(schema) if _names_a_default(schema) else None


class _Compiler:
    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._made: dict[int, Filler | None] = {}

    def filler(self, schema: Any) -> Filler | None:
        if isinstance(schema, dict) and "$ref" in schema:
            # Schemas may contain themselves, or each other many times over: what a reference leads to is looked at
            # once, and only when a value gets there.
            return lambda value: self._follow(schema, value)
        return self._make(schema)

    def _follow(self, schema: JsonSchema, value: Any) -> Any:
        if id(schema) not in self._made:
            self._made[id(schema)] = self._make(schema)
        fill = self._made[id(schema)]
        return value if fill is None else fill(value)

    def _make(self, schema: Any) -> Filler | None:
        plain = resolve(schema, self._root)
        options = plain.get("anyOf") or plain.get("oneOf")
        if isinstance(options, list):  # `X | null` means X; where several could hold, nothing is filled in
            real = [option for option in options if types_of(resolve(option, self._root)) != ["null"]]
            return self.filler(real[0]) if len(real) == 1 else None
        if "properties" in plain:
            return self._of_object(plain)
        if isinstance(plain.get("items"), dict):
            return self._of_array(plain["items"])
        return None

    def _of_object(self, schema: JsonSchema) -> Filler | None:
        defaults: list[tuple[str, Any, bool]] = []
        nested: list[tuple[str, Filler]] = []
        for name, prop in properties_of(schema).items():
            said = resolve(prop, self._root)
            if "default" in said:
                defaults.append((name, said["default"], isinstance(said["default"], (dict, list))))
            if (inner := self.filler(prop)) is not None:
                nested.append((name, inner))
        if not defaults and not nested:
            return None

        def fill(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            filled = dict(value)
            for name, default, is_container in defaults:
                if name not in filled:
                    filled[name] = copy.deepcopy(default) if is_container else default
            for name, inner in nested:
                if name in filled:
                    filled[name] = inner(filled[name])
            return filled

        return fill

    def _of_array(self, items: JsonSchema) -> Filler | None:
        inner = self.filler(items)
        if inner is None:
            return None
        return lambda value: [inner(item) for item in value] if isinstance(value, list) else value


def _names_a_default(schema: JsonSchema) -> bool:
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if "default" in part:
                return True
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return False
