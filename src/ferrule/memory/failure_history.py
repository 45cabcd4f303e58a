"""How tools failed in earlier runs, and what helped, in general words.

A pattern belongs to one version of a tool (its fingerprint) and one action. Its weight halves every week and it is
deleted after a month without a new failure. Patterns only warn: a call that failed last week may work today.

Runs may belong to different people, so a pattern has no values of arguments and no error texts; these stay in the
memory of the run that met them. Only selectors that found nothing are kept, without secrets: they say something about a
page, not about a person. Each tenant has its own patterns. A pattern that a person pinned stays until it is
deleted, and its weight stays what it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from typing import Any, Final

from ferrule.core.content import encode_json
from ferrule.core.json_schema import properties_of, resolve_schema
from ferrule.core.spec import Tool
from ferrule.memory.adjustments import quote_value
from ferrule.memory.call_identity import LOCATORS
from ferrule.memory.failures import POLICIES, CallFailure, FailureClass
from ferrule.store import ToolKnowledgeStore

STREAM: Final = "failures"
DAY: Final = 86_400.0
HALF_LIFE: Final = 7 * DAY
EXPIRY: Final = 30 * DAY
MAX_SELECTORS: Final = 5
MAX_SELECTOR_LENGTH: Final = 200
MAX_PATTERNS: Final = 500
"""The patterns with the smallest weight are deleted first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePattern:
    """A way in which a tool fails, and which parameters were changed when it worked again."""

    tool_id: str
    action: str
    fingerprint: str
    failure_class: str
    parameters: list[str]
    """The names of the parameters of the failed call; only the one that caused the failure, if that is known."""
    count: float
    """Halves every week."""
    first_at: float
    last_at: float
    selectors: list[str] = field(default_factory=list)
    """The last selectors that found nothing, without secrets."""
    changed_parameters: list[str] | None = None
    """The names of the parameters that had other values when the call worked; None if it never did."""
    recoveries: int = 0
    prevented: int = 0
    """How many calls were not made because they had failed in this way before in their run."""
    pinned: bool = False
    """Never expires."""

    @property
    def key(self) -> str:
        identity = [self.tool_id, self.action, self.fingerprint, self.failure_class, self.parameters]
        return sha256(encode_json(identity)).hexdigest()[:24]

    @property
    def what_helped(self) -> str | None:
        """Return what helped, in general words."""
        if self.changed_parameters is None:
            return None
        return f"another value of {' and '.join(self.changed_parameters)}" if self.changed_parameters else "a retry"

    def is_expired(self, now: float) -> bool:
        return not self.pinned and now - self.last_at > EXPIRY

    def weight(self, now: float) -> float:
        if self.pinned:
            return self.count
        return self.count * math.pow(0.5, max(0.0, now - self.last_at) / HALF_LIFE)

    def __str__(self) -> str:
        action = "" if self.action == self.tool_id else f" ({self.action})"
        names = f" with a value of {', '.join(self.parameters)}" if self.parameters else ""
        advice = (
            POLICIES[FailureClass(self.failure_class)].advice
            if self.what_helped is None
            else f"What helped: {self.what_helped}."
        )
        selectors = f" These found nothing: {', '.join(map(quote_value, self.selectors))}." if self.selectors else ""
        return f"{self.tool_id}{action} failed{names} ({self.failure_class}). {advice}{selectors}"


class FailureHistory:
    """The failure patterns of one tenant in a store. After `load`, it updates itself and the store."""

    def __init__(self, store: ToolKnowledgeStore, *, tenant: str = "", clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._stream = f"{STREAM}:{tenant}" if tenant else STREAM
        self._patterns: dict[str, FailurePattern] = {}
        self._loaded = False

    async def load(self) -> None:
        """Read the patterns of earlier runs; expired and surplus ones are deleted."""
        if self._loaded:
            return
        self._loaded = True
        now, notes = self._clock(), await self._store.read_entries(self._stream)
        stored = {key: pattern for key, entry in notes.items() if (pattern := _parse_pattern(entry)) is not None}
        current = [key for key, pattern in stored.items() if not pattern.is_expired(now)]
        current = sorted(current, key=lambda key: (stored[key].pinned, stored[key].weight(now)))[-MAX_PATTERNS:]
        for key in current:
            self._patterns.setdefault(stored[key].key, stored[key])
        if obsolete := notes.keys() - set(current):
            await self._store.delete_entries(self._stream, list(obsolete))

    async def reload(self) -> None:
        """Read the patterns again: other processes have learned and forgotten some."""
        await self._store.flush()
        self._patterns, self._loaded = {}, False
        await self.load()

    def patterns(self, tool_id: str | None = None) -> list[FailurePattern]:
        """Return the patterns of one tool or of all: first the pinned ones, then the others by decreasing weight."""
        now = self._clock()
        patterns = [p for p in self._patterns.values() if tool_id in (None, p.tool_id) and not p.is_expired(now)]
        return sorted(patterns, key=lambda pattern: (not pattern.pinned, -pattern.weight(now), pattern.key))

    def warnings(self, tools: Iterable[Tool], limit: int = 5) -> list[str]:
        """Return what a new run should know about these tools in their current version."""
        current = {(tool.id, tool.spec.fingerprint) for tool in tools}
        return [str(p) for p in self.patterns() if (p.tool_id, p.fingerprint) in current][:limit]

    def on_failure(self, tool: Tool, failure: CallFailure) -> None:
        if failure.failure_class is FailureClass.TRANSIENT:
            return
        pattern = replace(_make_pattern(tool, failure, self._clock()), selectors=self._find_selectors(tool, failure))
        previous = self._patterns.get(pattern.key)
        if previous is not None:
            pattern = replace(
                pattern,
                count=previous.weight(pattern.last_at) + 1,
                first_at=previous.first_at,
                selectors=list(dict.fromkeys([*previous.selectors, *pattern.selectors]))[-MAX_SELECTORS:],
                changed_parameters=previous.changed_parameters,
                recoveries=previous.recoveries,
                prevented=previous.prevented,
                pinned=previous.pinned,
            )
        self._save(pattern)

    def on_refusal(self, tool: Tool, failure: CallFailure) -> None:
        pattern = self._patterns.get(_make_pattern(tool, failure, 0.0).key)
        if pattern is not None:
            self._save(replace(pattern, prevented=pattern.prevented + 1))

    def on_recovery(self, tool: Tool, failure: CallFailure, parameters: Mapping[str, Any]) -> None:
        pattern = self._patterns.get(_make_pattern(tool, failure, 0.0).key)
        if pattern is not None:
            names = {*failure.parameters, *parameters}
            changed = [name for name in names if failure.parameters.get(name) != parameters.get(name)]
            changed = _declared_names(tool, failure.action, changed)
            self._save(replace(pattern, changed_parameters=changed, recoveries=pattern.recoveries + 1))

    def what_helped(self, tool: Tool, failure: CallFailure) -> str | None:
        """Return what helped after such a failure in an earlier run, in general words."""
        pattern = self._patterns.get(_make_pattern(tool, failure, 0.0).key)
        return None if pattern is None else pattern.what_helped

    async def pin(self, key: str, *, pinned: bool = True) -> FailurePattern | None:
        """Keep a pattern, or let it expire again; return None if no pattern has this key."""
        await self.load()
        pattern = self._patterns.get(key)
        if pattern is None:
            return None
        pattern = replace(pattern, pinned=pinned)
        self._save(pattern)
        await self._store.flush()
        return pattern

    async def forget(self, tool_id: str | None = None, key: str | None = None) -> int:
        """Delete the patterns of one tool, or the one with this key, or all; returns how many."""
        await self.load()
        patterns = [p for p in self._patterns.values() if tool_id in (None, p.tool_id)]
        keys = [pattern.key for pattern in patterns if key in (None, pattern.key)]
        for key in keys:
            del self._patterns[key]
        return await self._store.delete_entries(self._stream, keys) if keys else 0

    def _find_selectors(self, tool: Tool, failure: CallFailure) -> list[str]:
        if failure.failure_class is not FailureClass.NOT_FOUND:
            return []
        capability = tool.spec.capability(failure.action)
        names = set(LOCATORS) - (capability.secret_names if capability is not None else frozenset())
        values = [failure.parameters.get(name) for name in _declared_names(tool, failure.action, names)]
        texts = [value for value in values if isinstance(value, str) and len(value) <= MAX_SELECTOR_LENGTH]
        return [text for text in texts if self._store.redaction.redact_text(text) == text]

    def _save(self, pattern: FailurePattern) -> None:
        self._patterns.pop(pattern.key, None)
        self._patterns[pattern.key] = pattern
        if len(self._patterns) > MAX_PATTERNS:
            oldest = next((key for key, each in self._patterns.items() if not each.pinned), next(iter(self._patterns)))
            del self._patterns[oldest]
        self._store.write_entry(self._stream, pattern.key, asdict(pattern))


def _make_pattern(tool: Tool, failure: CallFailure, now: float) -> FailurePattern:
    names = failure.parameters if failure.value is None else [failure.value[0]]
    return FailurePattern(
        tool_id=tool.id,
        action=failure.action,
        fingerprint=tool.spec.fingerprint,
        failure_class=failure.failure_class.value,
        parameters=_declared_names(tool, failure.action, names),
        count=1.0,
        first_at=now,
        last_at=now,
    )


def _declared_names(tool: Tool, action: str, names: Iterable[str]) -> list[str]:
    """Return the names that the tool itself declares. All other names are what a caller wrote."""
    capability = tool.spec.capability(action)
    schema = {} if capability is None else resolve_schema(capability.schema, capability.schema)
    return sorted(set(names) & properties_of(schema).keys())


_FIELDS: Final = frozenset(each.name for each in fields(FailurePattern))


def _parse_pattern(entry: Any) -> FailurePattern | None:
    """Read a stored pattern; return None for one that another version wrote."""
    if not isinstance(entry, dict) or not set(entry) <= _FIELDS or not isinstance(entry.get("parameters"), list):
        return None
    try:
        FailureClass(str(entry.get("failure_class")))
        return FailurePattern(**entry)
    except (TypeError, ValueError):
        return None
