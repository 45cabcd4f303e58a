"""Filling in defaults, at every depth, without touching what the caller passed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

from ferrule.spec import JsonSchema
from ferrule.validation.schema_walk import only_branch, properties_of, resolve

Filler: TypeAlias = Callable[[Any], Any]


def compile_defaults(schema: JsonSchema) -> Filler | None:
    """A function that returns a value with its defaults filled in; None when the schema has no defaults."""
    return _Compiler(schema).filler(schema)


class _Compiler:
    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._open: set[int] = set()

    def filler(self, schema: Any) -> Filler | None:
        plain = only_branch(resolve(schema, self._root), self._root)
        # A schema that contains itself is filled down to where it does: no caller nests defaults without end.
        if id(schema) in self._open or not plain:
            return None
        self._open.add(id(schema))
        try:
            if "properties" in plain:
                return self._of_object(plain)
            if isinstance(plain.get("items"), dict):
                return self._of_array(plain["items"])
            return None
        finally:
            self._open.discard(id(schema))

    def _of_object(self, schema: JsonSchema) -> Filler | None:
        defaults: list[tuple[str, Any, bool]] = []
        nested: list[tuple[str, Filler]] = []
        for name, prop in properties_of(schema).items():
            prop = resolve(prop, self._root)
            if "default" in prop:
                defaults.append((name, prop["default"], isinstance(prop["default"], (dict, list))))
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
