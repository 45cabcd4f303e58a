"""Which calls count as the same call.

Arguments are compared by meaning: the order of keys, 1 or 1.0, an explicit default, spaces around a search text, and
parameters that only comment on the call make no difference. Timeout parameters are compared separately: they matter
only for calls that timed out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from ferrule.core.content import encode_json
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import Tool, ToolCapability

# What parameters are for is guessed from their names; schemas rarely say it.
COSMETIC: Final = frozenset(
    "comment explanation justification rationale reason reasoning request_id thinking thought thoughts trace_id".split()
)
"""Parameters in which models explain themselves; a schema may add others by `x-cosmetic: true`, or false."""
TIMING: Final = frozenset("timeout timeout_ms timeout_s timeout_seconds max_wait wait wait_ms wait_time".split())
LOCATORS: Final = ("selector", "xpath", "css", "locator", "element", "ref")
"""Parameters that only point at something: it exists for every action or for none."""

ADDRESSES: Final = frozenset({"directory", "file", "filename", "folder", "path", "uri", "url"})
"""Parameters that name a thing by its location: it is the same thing in every action."""

_LOCATIONS: Final = frozenset(
    [
        *ADDRESSES,
        *"account branch browser bucket chat collection database db dir domain frame host iframe namespace org".split(),
        *"organization page profile project region repo repository server session sheet site tab table tenant".split(),
        *"user window workspace".split(),
    ]
)
_SEARCHES: Final = frozenset({"keyword", "keywords", "q", "query", "search", "term", "terms"})
_SPACE_INSIGNIFICANT: Final = ADDRESSES | _SEARCHES | {*LOCATORS, "domain", "host"}
_WORD = lazy_pattern(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@lru_cache(maxsize=4096)
def is_location(name: str) -> bool:
    """Return whether the parameter says where to look: the same thing may exist in another location."""
    return not _LOCATIONS.isdisjoint(word.lower() for word in _WORD.findall(name))


@dataclass(frozen=True, slots=True)
class CallIdentity:
    key: tuple[str, str, str, str, bytes]
    """Source, tool, its fingerprint, action, arguments."""
    timing: float
    """Its largest timeout parameter, in whatever unit; 0 without one."""

    @property
    def tool(self) -> tuple[str, str, str]:
        return self.key[:3]


def identify_call(tool: Tool, capability: ToolCapability, params: Mapping[str, Any]) -> CallIdentity:
    properties = capability.schema.get("properties") or {}
    compared: dict[str, Any] = {}
    timing = 0.0
    for name, value in params.items():
        prop = properties.get(name)
        prop = prop if isinstance(prop, dict) else {}
        if value is None or prop.get("x-cosmetic", name in COSMETIC):
            continue
        if name in TIMING and isinstance(value, (int, float)):
            timing = max(timing, float(value))
        elif "default" not in prop or value != prop["default"]:
            compared[name] = _normalize_value(value, name)
    spec, arguments = tool.spec, encode_json(compared, sort_keys=True)
    return CallIdentity((tool.source, spec.tool_id, spec.fingerprint, capability.name, arguments), timing)


def normalize_whitespace(text: str) -> str:
    """Return a text without differences in spaces and Unicode composition."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _normalize_value(value: Any, name: str) -> Any:
    kind = type(value)
    if kind is str:
        # In code and in text to be replaced, spaces are part of the value.
        is_space_significant = name not in _SPACE_INSIGNIFICANT
        if value.isascii() and (value.isidentifier() or is_space_significant):
            return value
        return unicodedata.normalize("NFC", value) if is_space_significant else normalize_whitespace(value)
    if kind is float:
        return int(value) if value.is_integer() else value
    if kind is dict:
        return {key: _normalize_value(inner, str(key)) for key, inner in value.items()}
    if kind is list:
        return [_normalize_value(inner, name) for inner in value]
    return value


def digest_output(data: Mapping[str, Any]) -> int:
    """Return a number by which two outputs in one process are compared."""
    return hash(encode_json(data, sort_keys=True))
