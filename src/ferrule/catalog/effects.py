"""What a call does, as far as its tool declares it or its name says it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from ferrule.catalog.tags import infer_kind
from ferrule.core.spec import ToolCapability, ToolSpec

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")


@lru_cache(maxsize=4096)
def split_name(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: `sendEmail`, `send_email` and `send-email` are the same."""
    return tuple(word.lower() for word in _WORD.findall(name))


def only_reads(spec: ToolSpec, capability: ToolCapability) -> bool:
    """Return whether a call of an action changes nothing: by its declared effects, or else by the verb of its name."""
    effects = spec.effects_of(capability)
    if effects.read_only or effects.polling or effects.cacheable:
        return True
    return not effects.destructive and infer_kind((spec.tool_id, capability.name), ()) in ("reads", "computes")
