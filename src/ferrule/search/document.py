"""What is searched of a tool: one document for each of its actions, made of weighted fields.

A tool with forty actions, such as an MCP server, is forty documents: each is as easy to find as a tool of its own,
and what is found says which action was meant.

The weight of a term in a document is that of BM25F: occurrences count by the weight of their field, less in a long
field, and each further one counts less. Fields are long or short by fixed measure, not against the average of all
tools: so a document's weights never change when other tools come and go, and are worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ferrule.errors import SpecError
from ferrule.search.words import fold, terms_to_find_by
from ferrule.spec import Tool, ToolCapability

_SATURATION = 1.2


@dataclass(frozen=True, slots=True)
class _Field:
    weight: float
    usual_length: int
    """Terms; a field twice as long counts for less."""
    length_matters: float
    """0 = not at all, 1 = fully."""


_NAME = _Field(3.0, 3, 0.3)
_TAGS = _Field(2.0, 3, 0.0)
_ACTION = _Field(2.5, 3, 0.3)
_DESCRIPTION = _Field(1.5, 15, 0.5)
_OF_ALL_ACTIONS = _Field(0.5, 15, 0.5)
_PARAMETERS = _Field(0.4, 25, 0.5)


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One action of a tool as the index keeps it."""

    number: int
    tool: Tool
    action: str | None
    """None: the tool has no action yet."""
    order: str
    """Where it stands among equals: by priority of its source, then id, then place among the tool's actions."""
    names: frozenset[str]
    """Whoever asks for exactly one of these wants this document."""
    weights: dict[str, float]
    """How much each term says about it, from 0 to 1."""


def documents_of(tool: Tool, numbers: Iterator[int]) -> list[Document]:
    """The documents of an enabled tool, numbered; a disabled one has none."""
    if not tool.spec.enabled:
        return []
    capabilities: Sequence[ToolCapability | None] = tool.spec.capabilities or [None]
    return [_document(next(numbers), tool, capability, place) for place, capability in enumerate(capabilities)]


def _document(number: int, tool: Tool, capability: ToolCapability | None, place: int) -> Document:
    spec = tool.spec
    names = {spec.tool_id, spec.name}
    if capability is not None and len(spec.capabilities) > 1:
        names |= {capability.name, f"{spec.tool_id}{capability.name}"}
    return Document(
        number=number,
        tool=tool,
        action=capability.name if capability is not None else None,
        order=f"{tool.priority} {tool.id}\0{tool.source}\0{place:06}",
        names=frozenset(map(fold, names)),
        weights=_weights(_fields(tool, capability)),
    )


def _fields(tool: Tool, capability: ToolCapability | None) -> Iterator[tuple[_Field, str]]:
    spec = tool.spec
    yield _NAME, spec.tool_id if spec.name == spec.tool_id else f"{spec.tool_id} {spec.name}"
    if spec.tags:
        yield _TAGS, " ".join(spec.tags)
    if capability is None:
        yield _DESCRIPTION, spec.description
        return
    if capability.name != spec.tool_id:
        yield _ACTION, capability.name
    yield _DESCRIPTION, capability.description
    if spec.description != capability.description:
        yield _DESCRIPTION if len(spec.capabilities) == 1 else _OF_ALL_ACTIONS, spec.description
    yield _PARAMETERS, " ".join(_words_of_parameters(capability))


def _words_of_parameters(capability: ToolCapability) -> Iterator[str]:
    for name, said in _properties(capability).items():
        yield name
        if isinstance(said, dict):
            description = said.get("description")
            if isinstance(description, str):
                yield description
            choices = said.get("enum")
            if isinstance(choices, list):
                yield from (choice for choice in choices if isinstance(choice, str))


def _properties(capability: ToolCapability) -> dict[str, Any]:
    try:
        properties = capability.schema.get("properties")
    except SpecError:  # whoever calls it will be told; finding it does not depend on its parameters
        return {}
    return properties if isinstance(properties, dict) else {}


def _weights(fields: Iterator[tuple[_Field, str]]) -> dict[str, float]:
    occurrences: dict[str, float] = {}
    for field, text in fields:
        terms = terms_to_find_by(text)
        one = field.weight / (1 + field.length_matters * (len(terms) / field.usual_length - 1))
        for term in terms:
            occurrences[term] = occurrences.get(term, 0.0) + one
    return {term: count / (_SATURATION + count) for term, count in occurrences.items()}
