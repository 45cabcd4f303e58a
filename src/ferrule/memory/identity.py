"""When two calls are the same call.

Arguments are compared by what they ask for: the order of keys, 1 or 1.0, a default written out, spaces around what is
only looked for, and parameters that only comment on the call make no difference. How long a call may wait is kept
apart: it matters only where a call failed for want of time.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ferrule.content import encode_json
from ferrule.memory.parameters import COSMETIC, TIMING, spaces_count
from ferrule.spec import Tool, ToolCapability


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """One call, as far as it can be compared with others."""

    key: tuple[str, str, str, str, bytes]
    """Source, tool, its fingerprint, action, arguments."""
    timing: float
    """How long it may wait, in units of its own; 0 = it does not say."""

    @property
    def tool(self) -> tuple[str, str, str]:
        return self.key[:3]

    @property
    def action(self) -> str:
        return self.key[3]


def identify(tool: Tool, capability: ToolCapability, params: Mapping[str, Any]) -> CallIdentity:
    properties = capability.schema.get("properties") or {}
    said: dict[str, Any] = {}
    timing = 0.0
    for name, value in params.items():
        prop = properties.get(name)
        if not isinstance(prop, dict):
            prop = _NOTHING
        if value is None or _is_cosmetic(name, prop):
            continue
        if name in TIMING and isinstance(value, (int, float)):
            timing = max(timing, float(value))
        elif "default" not in prop or value != prop["default"]:
            said[name] = value
    spec = tool.spec
    return CallIdentity((tool.source, spec.tool_id, spec.fingerprint, capability.name, _encoded(said)), timing)


def same_text(text: str) -> str:
    """A text without differences nobody means."""
    return " ".join(unicodedata.normalize("NFC", text).split())


_NOTHING: Final[dict[str, Any]] = {}


def _is_cosmetic(name: str, prop: Mapping[str, Any]) -> bool:
    said = prop.get("x-cosmetic")
    return name in COSMETIC if said is None else bool(said)


def _encoded(said: dict[str, Any]) -> bytes:
    return encode_json({name: _same(value, name) for name, value in said.items()}, sort_keys=True)


def _same(value: Any, name: str) -> Any:
    kind = type(value)
    if kind is str:
        if value.isascii() and (value.isidentifier() or spaces_count(name)):
            return value
        return unicodedata.normalize("NFC", value) if spaces_count(name) else same_text(value)
    if kind is float:
        return int(value) if value.is_integer() else value
    if kind is dict:
        return {key: _same(inner, str(key)) for key, inner in value.items()}
    if kind is list:
        return [_same(inner, name) for inner in value]
    return value


def digest(data: Mapping[str, Any]) -> int:
    """Tells whether two outputs of one run are the same."""
    return hash(encode_json(data, sort_keys=True))
