"""The parameters of an action for people to see: a secret that stands in the file of a tool is nobody's business."""

from __future__ import annotations

from typing import Any

from ferrule.spec import JsonSchema, ToolCapability

_VALUES = frozenset({"default", "example", "examples"})
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Words whose members are names of schemas, which may be called anything."""


def open_schema(capability: ToolCapability) -> JsonSchema:
    """The schema without the defaults of secret parameters."""
    schema = capability.schema
    if "writeOnly" not in str(schema):
        return schema
    stripped, secret = _without_values(schema), capability.secret_names
    if "properties" in schema:
        stripped["properties"].update({n: p for n, p in schema["properties"].items() if n not in secret})
    return stripped  # type: ignore[no-any-return]


def open_examples(capability: ToolCapability) -> list[dict[str, Any]]:
    """Calls to learn from, with an ellipsis in the place of each secret."""
    secret = capability.secret_names
    return [{n: "…" if n in secret else value for n, value in each.items()} for each in capability.examples]


def _without_values(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_values(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        word: {name: _without_values(part) for name, part in said.items()}
        if word in _BY_NAME and isinstance(said, dict)
        else _without_values(said)
        for word, said in schema.items()
        if word not in _VALUES
    }
