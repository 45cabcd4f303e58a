"""One call that failed, and whether that still says something about a call of now."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from ferrule.memory.failure_class import FailureClass
from ferrule.memory.identity import CallIdentity, same_text
from ferrule.memory.parameters import LOCATORS, is_place

SHORTEST: Final = 2
SECRET: Final = 4
"""A shorter one is a word like any other."""
MENTIONED: Final = 3
"""A shorter text stands in another by chance."""

_FOR_WANT_OF_TIME = re.compile(r"time[ -]?d?[ -]?out|exceeded|超时", re.IGNORECASE)


@dataclass(slots=True, kw_only=True)
class Failure:
    """A call that failed in this run."""

    identity: CallIdentity
    tool_id: str
    action: str
    parameters: dict[str, Any]
    error: str
    failure_class: FailureClass
    last_at: float
    value: tuple[str, str] | None = None
    """The parameter and the value that were not found, where the failure says so."""
    host: str = ""
    """Where it failed, if it was about a host."""
    count: int = 1
    """How often it was made and failed."""
    asked_again: int = 0
    """How often it was asked for again and not made."""
    asked_at: float = 0.0
    """When that was last: what began before has not helped it."""
    reopened: bool = False
    """Something has changed since: it may be tried again."""
    openers: set[Any] = field(default_factory=set)
    """The calls that have reopened it so far."""
    _texts: list[str] | None = field(default=None, repr=False, compare=False)

    @property
    def wanted_time(self) -> bool:
        return self.failure_class is FailureClass.TRANSIENT or _FOR_WANT_OF_TIME.search(self.error) is not None

    def speaks_of(self, identity: CallIdentity) -> bool:
        """Whether it says something about a call of the same arguments: more time may be what it needed."""
        return identity.timing <= self.identity.timing or not self.wanted_time

    def in_the_same_place(self, params: Mapping[str, Any], missing: str) -> bool:
        """Whether another call looks for `missing` where this one did not find it."""
        return _places(self.parameters, missing) == _places(params, missing)

    def may_depend_on(self, params: Mapping[str, Any]) -> bool:
        """Whether a change another tool made with these arguments may have made the way free.

        Where both speak of the same kind of thing, they must speak of the same one; else nobody knows.
        """
        if self.failure_class in (FailureClass.VALIDATION, FailureClass.PERMANENT):
            return False
        return all(params[name] == value for name, value in self.parameters.items() if name in params)

    def is_mentioned_in(self, said: Collection[str]) -> bool:
        """Whether the texts of another call's arguments speak of what this one was about."""
        if self._texts is None:
            self._texts = [text for text in texts_in(self.parameters) if len(text) >= MENTIONED]
        return any(m in other or (len(other) >= MENTIONED and other in m) for other in said for m in self._texts)


def without_secrets(text: str, params: Mapping[str, Any], secret_names: Collection[str]) -> str:
    """What a failure says, without the values that must not be remembered."""
    for secret in texts_in([params[name] for name in secret_names if name in params]):
        if len(secret) >= SECRET:
            text = text.replace(secret, "[redacted]")
    return text


def host_of(params: Mapping[str, Any]) -> str:
    """The host the arguments speak of; empty when they speak of none."""
    for value in params.values():
        if isinstance(value, str) and "://" in value[:12]:
            try:
                return urlsplit(value).hostname or ""
            except ValueError:
                continue
    return ""


def missing_value(params: Mapping[str, Any], error: str) -> tuple[str, str] | None:
    """The argument that a failure names as not found: one that points at something first, else the longest."""
    named = [
        (name, value)
        for name, value in params.items()
        if isinstance(value, str) and len(value) >= SHORTEST and value in error
    ]
    if not named:
        return None
    name, value = max(named, key=lambda item: (item[0] in LOCATORS, len(item[1])))
    return name, same_text(value)


def _places(params: Mapping[str, Any], missing: str) -> dict[str, Any]:
    return {n: value for n, value in params.items() if n != missing and value is not None and is_place(n)}


def texts_in(value: Any, depth: int = 0) -> list[str]:
    """The texts in arguments, however deep within reason."""
    if isinstance(value, str):
        return [value]
    if depth > 4:
        return []
    if isinstance(value, Mapping):
        return [text for inner in value.values() for text in texts_in(inner, depth + 1)]
    if isinstance(value, list):
        return [text for inner in value for text in texts_in(inner, depth + 1)]
    return []
