"""A call that failed, what was observed before it, and another set of parameters for it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferrule.catalog.search.terms import extract_terms
from ferrule.core.content import copy_json
from ferrule.core.json_schema import allowed_types, list_branches, properties_of, resolve_schema
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import JsonSchema, ToolCapability

_MAX_ERROR_LENGTH: Final = 20_000
_MAX_OBSERVED_LENGTH: Final = 1_000_000
"""Characters read of all observations together, the newest first."""
_MAX_QUOTE_LENGTH: Final = 80

_TIMEOUT = lazy_pattern(r"time[sd]?[\s_-]?out|timeout|deadline exceeded|took (?:too long|longer)|超时", re.I)
_NOT_FOUND = lazy_pattern(
    r"not[\s_-]?found|no such|no (?:element|node|match|file)|does(?:n't| not) exist|not exist|ENOENT"
    r"|(?:could(?:n't| not)|cannot|can't|unable to|failed to) (?:find|locate|open)|waiting for|0 elements"
    r"|找不到|未找到|没有找到|不存在|无法定位",
    re.I,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """Other parameters for a call that failed."""

    parameters: dict[str, Any]
    changed: tuple[str, ...]
    """The parameters that differ; both names of a renamed parameter."""
    reason: str
    confidence: float
    """0 to 1. It only orders suggestions; the values are estimates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """A failed call with its error, its schema and the observations before it."""

    parameters: dict[str, Any]
    error: str
    observations: str
    """The newest first, as far as they are read."""
    failed_values: frozenset[str]
    """Values that are known to fail."""
    root_schema: JsonSchema
    properties: dict[str, JsonSchema]
    required: tuple[str, ...]
    accepts_extra: bool
    """The schema accepts parameters it does not name."""
    secret_names: frozenset[str]

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
        schema = resolve_schema(root, root)
        required = schema.get("required")
        return cls(
            parameters=dict(parameters),
            error=error[:_MAX_ERROR_LENGTH],
            observations="\n".join(reversed(observations))[:_MAX_OBSERVED_LENGTH],
            failed_values=frozenset(avoid),
            root_schema=root,
            properties={name: resolve_schema(prop, root) for name, prop in properties_of(schema).items()},
            required=tuple(name for name in required if isinstance(name, str)) if isinstance(required, list) else (),
            accepts_extra=bool(schema.get("additionalProperties")),
            secret_names=capability.secret_names,
        )

    @property
    def is_timeout(self) -> bool:
        return _TIMEOUT.search(self.error) is not None

    @property
    def is_not_found(self) -> bool:
        return _NOT_FOUND.search(self.error) is not None

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield the name and value of each text parameter that is not secret."""
        for name, value in self.parameters.items():
            if isinstance(value, str) and value.strip() and name not in self.secret_names:
                yield name, value

    def schema_of(self, name: str) -> JsonSchema:
        """Return the schema of a parameter. For a union, return the only branch besides null."""
        branches = list_branches(self.properties.get(name, {}), self.root_schema)
        options = [part for part in branches if allowed_types(part) != ["null"]]
        return options[0] if len(options) == 1 else {}

    def error_may_concern(self, value: str) -> bool:
        """Return whether the error may be about this text: the error quotes the text, or no parameter at all."""
        return value in self.error or not any(len(text) > 2 and text in self.error for _, text in self.texts())

    def with_value(self, name: str, value: Any, reason: str, confidence: float) -> Adjustment:
        return Adjustment(
            parameters={**copy_json(self.parameters), name: value},
            changed=(name,),
            reason=reason,
            confidence=round(confidence, 3),
        )


def name_contains(name: str, terms: Collection[str]) -> bool:
    """Return whether a parameter's name contains one of the terms."""
    return not set(terms).isdisjoint(extract_terms(name))


def quote_value(value: Any) -> str:
    """Return a value as reasons show it."""
    text = repr(value)
    return text if len(text) <= _MAX_QUOTE_LENGTH else f"{text[:_MAX_QUOTE_LENGTH]}…"
