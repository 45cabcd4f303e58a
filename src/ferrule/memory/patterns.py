"""What failed in earlier runs, and what cured it.

A pattern belongs to one version of a tool (its fingerprint), one action and one host; it fades with time and is
forgotten when nobody has met it for a month. Patterns warn, they never forbid: what failed last week may work today.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from typing import Any, Final

from ferrule.content import as_text, encode_json
from ferrule.memory.failure import Failure
from ferrule.memory.failure_class import FailureClass
from ferrule.spec import Tool
from ferrule.store import ToolKnowledgeStore

BOOK: Final = "failures"
DAY: Final = 86_400.0
HALF_LIFE: Final = 7 * DAY
EXPIRY: Final = 30 * DAY
MOST: Final = 500
"""Patterns that are kept; what was met least goes first."""
LONGEST: Final = 500
"""Characters of an argument; more is cut."""
SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePattern:
    """A way in which a tool fails, and the arguments that worked instead if any did."""

    tool_id: str
    action: str
    fingerprint: str
    host: str
    failure_class: str
    error: str
    parameters: dict[str, Any]
    """Only the one that is to blame, where that is known."""
    count: float
    """Fades by half every week."""
    first_at: float
    last_at: float
    cure: dict[str, Any] | None = None
    cured: int = 0

    @property
    def key(self) -> str:
        said = [self.tool_id, self.action, self.fingerprint, self.host, self.parameters]
        return sha256(encode_json(said, sort_keys=True)).hexdigest()[:24]

    def weight(self, now: float) -> float:
        return self.count * math.pow(0.5, max(0.0, now - self.last_at) / HALF_LIFE)

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host else ""
        action = "" if self.action == self.tool_id else f" ({self.action})"
        # What a tool said stands in quotation marks: it must not pass for what we say.
        error = encode_json(_short(self.error)).decode()
        said = f"{self.tool_id}{action}{where} failed with {_short(as_text(self.parameters))}: {error}"
        if self.cure is not None:
            said += f" What worked instead: {_short(as_text(self.cure))}"
        return said


class FailureBook:
    """The patterns of one store. Load it once; from then on it keeps itself and the store up to date."""

    def __init__(self, store: ToolKnowledgeStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._patterns: dict[str, FailurePattern] = {}
        self._loaded = False

    async def load(self) -> None:
        """Read what earlier runs left; what has expired, or is too much, is deleted."""
        if self._loaded:
            return
        self._loaded = True
        now, notes = self._clock(), await self._store.notes(BOOK)
        known = {key: pattern for key, said in notes.items() if (pattern := _read(said)) is not None}
        fresh = [key for key, pattern in known.items() if now - pattern.last_at <= EXPIRY]
        kept = sorted(fresh, key=lambda key: known[key].weight(now))[-MOST:]
        for key in kept:
            self._patterns.setdefault(known[key].key, known[key])
        if gone := notes.keys() - set(kept):
            await self._store.forget_notes(BOOK, list(gone))

    def patterns(self, tool_id: str | None = None) -> list[FailurePattern]:
        """Those of one tool or of all, the weightiest first."""
        now = self._clock()
        found = [p for p in self._patterns.values() if tool_id in (None, p.tool_id) and now - p.last_at <= EXPIRY]
        return sorted(found, key=lambda pattern: (-pattern.weight(now), pattern.key))

    def warnings(self, tools: Iterable[Tool], most: int = 5) -> list[str]:
        """What a run that begins should know about these tools, as they are now."""
        current = {(tool.id, tool.spec.fingerprint) for tool in tools}
        return [str(p) for p in self.patterns() if (p.tool_id, p.fingerprint) in current][:most]

    def failed(self, tool: Tool, failure: Failure) -> None:
        if failure.failure_class is FailureClass.TRANSIENT:
            return
        made = self._pattern_of(tool, failure, self._clock())
        known = self._patterns.get(made.key)
        if known is not None:
            made = replace(
                made,
                count=known.weight(made.last_at) + 1,
                first_at=known.first_at,
                cure=known.cure,
                cured=known.cured,
            )
        self._keep(made)

    def cured(self, tool: Tool, failure: Failure, parameters: Mapping[str, Any]) -> None:
        known = self._patterns.get(self._pattern_of(tool, failure, 0.0).key)
        if known is not None:
            self._keep(replace(known, cure=self._kept(parameters), cured=known.cured + 1))

    def cure_of(self, tool: Tool, failure: Failure) -> dict[str, Any] | None:
        """What worked instead in an earlier run."""
        known = self._patterns.get(self._pattern_of(tool, failure, 0.0).key)
        return None if known is None else known.cure

    async def forget(self, tool_id: str | None = None) -> int:
        """Forget the patterns of one tool, or of all; returns how many."""
        await self.load()
        gone = [key for key, pattern in self._patterns.items() if tool_id in (None, pattern.tool_id)]
        for key in gone:
            del self._patterns[key]
        return await self._store.forget_notes(BOOK, gone) if gone else 0

    def _keep(self, pattern: FailurePattern) -> None:
        self._patterns.pop(pattern.key, None)
        self._patterns[pattern.key] = pattern
        if len(self._patterns) > MOST:
            del self._patterns[next(iter(self._patterns))]
        self._store.note(BOOK, pattern.key, asdict(pattern))

    def _pattern_of(self, tool: Tool, failure: Failure, now: float) -> FailurePattern:
        blamed = failure.parameters if failure.value is None else dict([failure.value])
        return FailurePattern(
            tool_id=tool.id,
            action=failure.action,
            fingerprint=tool.spec.fingerprint,
            host=failure.host,
            failure_class=failure.failure_class.value,
            error=self._store.redaction.clean_text(failure.error),
            parameters=self._kept(blamed),
            count=1.0,
            first_at=now,
            last_at=now,
        )

    def _kept(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as other runs, which may be other people's, may see them."""
        cleaned: dict[str, Any] = self._store.redaction.clean(dict(parameters))
        return {
            name: value if len(as_text(value)) <= LONGEST else _short(as_text(value)) for name, value in cleaned.items()
        }


_NAMES: Final = frozenset(field.name for field in fields(FailurePattern))


def _read(said: Any) -> FailurePattern | None:
    """A pattern as it was noted; None for what another version wrote."""
    if not isinstance(said, dict) or not set(said) <= _NAMES or not isinstance(said.get("parameters"), dict):
        return None
    try:
        return FailurePattern(**said)
    except TypeError:
        return None


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 1].rstrip() + "…"
