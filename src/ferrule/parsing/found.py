"""What a reader found: a stretch of the text that is not prose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ferrule.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Found:
    """A stretch of the text, and the calls in it."""

    start: int
    end: int
    calls: tuple[ToolCall, ...] = ()
    tagged: bool = False
    """Written in a format that serves for nothing but calls: what looks like one elsewhere in the text is then none."""
    kind: Literal["calls", "thought", "wrapper", "token", "code"] = "calls"
    """A wrapper goes with the calls it wraps, a token goes always, and code stays."""
