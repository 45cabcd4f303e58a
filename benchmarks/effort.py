"""How much is done for one measurement, and the shape of what comes of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

Sample: TypeAlias = dict[str, Any]
"""Figures by their names: numbers, and here and there a word."""
Ways: TypeAlias = dict[str, list[Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is done for one measurement."""

    samples: int = 3
    seconds: float = 0.2
    """About how long one sample of repeated operations takes."""
    calls: int = 1_000
    """In one batch under a limit."""
    functions: int = 10_000
    further: int = 1_000
    """Tools an agent has beside the one it uses."""
    patience: int = 1_200
    """How often a stubborn model may be asked before nobody waits for an end any more."""
    replayed: int = 10_000
    """Good calls, made with a memory and without."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))
