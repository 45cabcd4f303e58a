"""Reading schemas that strangers wrote: what is not as it should be is passed over, and no tool spoils the others."""

from __future__ import annotations

from typing import Any

from ferrule.errors import SpecError
from ferrule.spec import JsonSchema, ToolCapability


def schema_of(capability: ToolCapability) -> JsonSchema:
    """The parameters of an action; none if they cannot be read, which whoever calls it will be told."""
    try:
        return capability.schema
    except SpecError:
        return {"type": "object", "properties": {}}


def list_under(word: str, schema: JsonSchema) -> list[Any]:
    """What stands under a word that should have a list."""
    said = schema.get(word)
    return said if isinstance(said, list) else []


def required_by(schema: JsonSchema) -> list[str]:
    return [name for name in list_under("required", schema) if isinstance(name, str)]
