"""A call that failed, what was seen before it, and another way to make it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferrule.content import copy_json
from ferrule.search.words import terms_of
from ferrule.spec import JsonSchema, ToolCapability
from ferrule.validation.schema_walk import branches, properties_of, resolve, types_of

MOST_OF_AN_ERROR: Final = 20_000
MOST_OBSERVED: Final = 1_000_000
"""Characters that are read, of all observations together, the newest first."""
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """Other parameters for a call that failed."""

    parameters: dict[str, Any]
    changed: tuple[str, ...]
    """The parameters that differ; of a renamed one both names."""
    reason: str
    confidence: float
    """0 to 1; it orders suggestions, nobody has measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """What there is to go by."""

    parameters: dict[str, Any]
    error: str
    observations: tuple[str, ...]
    """The newest first."""
    avoid: frozenset[str]
    """Values that are known to fail."""
    root: JsonSchema
    properties: dict[str, JsonSchema]
    required: tuple[str, ...]
    takes_others: bool
    """The schema welcomes parameters it does not name."""
    secret: frozenset[str]

    @classmethod
    def of(
        cls,
        capability: ToolCapability,
        parameters: Mapping[str, Any],
        error: str,
        observations: Sequence[str],
        avoid: Collection[str],
    ) -> FailedCall:
        root = capability.schema
        schema = resolve(root, root)
        required = schema.get("required")
        return cls(
            parameters=dict(parameters),
            error=error[:MOST_OF_AN_ERROR],
            observations=tuple(_newest(observations)),
            avoid=frozenset(avoid),
            root=root,
            properties={name: resolve(prop, root) for name, prop in properties_of(schema).items()},
            required=tuple(name for name in required if isinstance(name, str)) if isinstance(required, list) else (),
            takes_others=bool(schema.get("additionalProperties")),
            secret=capability.secret_names,
        )

    def texts(self) -> Iterator[tuple[str, str]]:
        """The parameters that are text, by name."""
        for name, value in self.parameters.items():
            if isinstance(value, str) and value.strip() and name not in self.secret:
                yield name, value

    def numbers(self) -> Iterator[tuple[str, int | float]]:
        for name, value in self.parameters.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in self.secret:
                yield name, value

    def schema_of(self, name: str) -> JsonSchema:
        """What the schema says about a parameter; of a union what it says about the one thing beside null."""
        real = [one for one in branches(self.properties.get(name, {}), self.root) if types_of(one) != ["null"]]
        return real[0] if len(real) == 1 else {}

    def words_about(self, name: str) -> set[str]:
        """The terms a parameter is named with."""
        return set(terms_of(name))

    def blames(self, value: str) -> bool:
        """Whether the error may be about this text: it quotes it, or it quotes no parameter at all."""
        return value in self.error or not any(len(text) > 2 and text in self.error for _, text in self.texts())

    def with_value(self, name: str, value: Any, reason: str, confidence: float) -> Adjustment:
        return Adjustment(
            parameters={**copy_json(self.parameters), name: value},
            changed=(name,),
            reason=reason,
            confidence=round(confidence, 3),
        )


def shown(value: Any) -> str:
    """A value as a reason names it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _newest(observations: Sequence[str]) -> Iterator[str]:
    left = MOST_OBSERVED
    for text in reversed(observations):
        if left <= 0:
            return
        yield text[:left]
        left -= len(text)
