"""What another framework's tool says about itself, in our words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ferrule.executors.function.reference import OnObject
from ferrule.sources.tool_options import ToolOptions
from ferrule.spec import JsonSchema

_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTool:
    """All that is needed to make a tool of ours."""

    name: str
    description: str
    parameters: JsonSchema
    output: JsonSchema | None
    options: ToolOptions
    call: OnObject
    """Calls it as its framework would."""
    made_from: Callable[..., Any] | type
    """The code behind it."""


def untitled(schema: Mapping[str, Any]) -> JsonSchema:
    """The schema without the titles that pydantic makes from names: they say nothing more, and a model reads them."""
    plain: JsonSchema = {}
    for word, said in schema.items():
        if word in _OF_SCHEMAS and isinstance(said, Mapping):
            plain[word] = {name: untitled(each) if isinstance(each, Mapping) else each for name, each in said.items()}
        elif isinstance(said, Mapping) and word not in ("default", "const"):
            plain[word] = untitled(said)
        elif isinstance(said, list) and word not in ("default", "enum", "examples", "required"):
            plain[word] = [untitled(each) if isinstance(each, Mapping) else each for each in said]
        elif word != "title":
            plain[word] = said
    return plain
