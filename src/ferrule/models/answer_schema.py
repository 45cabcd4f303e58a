"""Holding an answer to a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ferrule.content import encode_json


def schema_in_words(schema: Mapping[str, Any]) -> str:
    """For models that cannot be held to a schema: they are asked."""
    return f"Answer with one JSON object and nothing else. It must fit this JSON Schema: {encode_json(schema).decode()}"


def fits_strict_mode(schema: Any) -> bool:
    """OpenAI's strict mode takes only objects that are closed and require all they have."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping) or schema.get("type") == "object":
            closed = schema.get("additionalProperties") is False
            if not closed or set(schema.get("required", ())) != set(properties or ()):
                return False
        return all(fits_strict_mode(value) for value in schema.values())
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return all(fits_strict_mode(item) for item in schema)
    return True
