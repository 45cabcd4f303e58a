"""The rule: walking a value, and taking out what is secret."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from ferrule.content import plain_json
from ferrule.redaction.names import SECRET_NAMES, SecretNames
from ferrule.redaction.prose import LOOKS_SECRET, Prose

DEPTH = 200
"""Databases refuse JSON that is nested without end; nobody reads it either."""

MOST_SECRETS = 100
"""Every text is searched for every secret of a call. Of a call with more of them than this nothing is shown."""

_DECLARED_LENGTH = 4
_NAMED_LENGTH = 8
"""A value shorter than this is a word like `main` or `test`: removing it everywhere would spoil the record."""


class Redaction:
    """The rule by which records lose their secrets."""

    def __init__(self, names: Iterable[str] = SECRET_NAMES, *, replacement: str = "[redacted]") -> None:
        # Rust's regular expressions are four times as fast as Python's here, and JSON Schema is the way to them that
        # is installed anyway: a text is valid when the pattern is found in it.
        import jsonschema_rs

        self.names = tuple(names)
        self.replacement = replacement
        self._secret_names = SecretNames(self.names)
        self._prose = Prose(self._secret_names, replacement)
        screen = jsonschema_rs.validator_for({"pattern": f"(?i){self._secret_names.pattern}|{LOOKS_SECRET}"})
        self.suspects: Callable[[str], bool] = screen.is_valid
        """Whether this JSON or text may hold a secret."""

    def secrets_of(self, params: Mapping[str, Any], declared: frozenset[str]) -> tuple[str, ...]:
        """Texts that must not appear anywhere in the record, longest first. `declared`: a tool's secret parameters."""
        spelled = dict.fromkeys(form for text in self._secret_texts(params, declared) for form in _spellings(text))
        return tuple(sorted(spelled, key=len, reverse=True))

    def clean_params(
        self, params: Mapping[str, Any], declared: frozenset[str], secrets: tuple[str, ...]
    ) -> dict[str, Any]:
        """The arguments of a call as they may be recorded."""
        open_params = {name: self.replacement if name in declared else value for name, value in params.items()}
        cleaned: dict[str, Any] = self.clean(open_params, secrets)
        return cleaned

    def clean(self, value: Any, secrets: tuple[str, ...] = ()) -> Any:
        """The value as plain JSON without secrets, and without anything JSON or a database has no word for."""
        if len(secrets) > MOST_SECRETS:
            return self._hide_all(value)
        return self._clean(value, secrets, DEPTH, set())

    def clean_text(self, text: str, secrets: tuple[str, ...] = ()) -> str:
        """The text without secrets. JSON text stays JSON."""
        cleaned: str = self.clean(text, secrets)
        return cleaned

    def _clean(self, value: Any, secrets: tuple[str, ...], depth: int, above: set[int]) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return self._clean_text(value, secrets, depth)
        if kind is int or kind is float:
            return self._clean_number(value, secrets)
        if kind not in (dict, list, tuple):
            return self._clean(plain_json(value), secrets, depth, above)
        if depth == 0 or id(value) in above:
            return "[nested too deep]"
        above.add(id(value))
        try:
            if kind is dict:
                return self._clean_members(value, secrets, depth, above)
            return self._clean_items(value, secrets, depth, above)
        finally:
            above.discard(id(value))

    def _clean_members(
        self, members: dict[Any, Any], secrets: tuple[str, ...], depth: int, above: set[int]
    ) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        repeats: dict[str, int] = {}
        for key, value in members.items():
            name = key if isinstance(key, str) else str(plain_json(key))
            shown = only = self._clean_text(name, secrets, 0)
            while shown in cleaned:  # two names that differed only in what was taken out
                repeats[only] = repeats.get(only, 1) + 1
                shown = f"{only} {repeats[only]}"
            hidden = self._secret_names.hides_member(name, value, members)
            cleaned[shown] = self.replacement if hidden else self._clean(value, secrets, depth - 1, above)
        return cleaned

    def _clean_items(self, items: Sequence[Any], secrets: tuple[str, ...], depth: int, above: set[int]) -> list[Any]:
        cleaned: list[Any] = []
        for item, hidden in self._secret_names.hidden_items(items):
            if hidden:
                cleaned.append(self.replacement)
            elif self._secret_names.hides_second(item):
                cleaned.append([self._clean_text(item[0], secrets, 0), self.replacement])
            else:
                cleaned.append(self._clean(item, secrets, depth - 1, above))
        return cleaned

    def _clean_number(self, value: int | float, secrets: tuple[str, ...]) -> Any:
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if value.bit_length() > 4096:  # Python refuses to write very long integers in decimal
            return hex(value)
        return self.replacement if secrets and str(value) in secrets else value

    def _clean_text(self, text: str, secrets: tuple[str, ...], depth: int) -> str:
        text = storable_text(text)
        found = [secret for secret in secrets if secret in text]
        if not found and not self.suspects(text):
            return text
        if depth > 0 and text.lstrip()[:1] in ("{", "["):
            try:
                parsed = json.loads(text)
            except (ValueError, RecursionError):  # cut off, or only looks like JSON
                return self._clean_prose(text, found)
            cleaned = self._clean(parsed, secrets, depth - 1, set())
            return text if cleaned == parsed else json.dumps(cleaned, ensure_ascii=False)
        return self._clean_prose(text, found)

    def _clean_prose(self, text: str, secrets: list[str]) -> str:
        for secret in secrets:
            text = text.replace(secret, self.replacement)
        return self._prose.clean(text)

    def _hide_all(self, value: Any) -> Any:
        if value is None or isinstance(value, bool) or (isinstance(value, (str, dict)) and not value):
            return value
        return {self.replacement: self.replacement} if isinstance(value, dict) else self.replacement

    def _secret_texts(self, params: Mapping[str, Any], declared: frozenset[str]) -> set[str]:
        undeclared = {name: value for name, value in params.items() if name not in declared}
        found: set[str] = set()
        for values, shortest in (
            ([value for name, value in params.items() if name in declared], _DECLARED_LENGTH),
            (self._hidden_values(undeclared), _NAMED_LENGTH),
        ):
            for text in _texts(values):
                if len(text) >= shortest:
                    found.add(text)
                if len(found) > MOST_SECRETS:
                    return found
        return found

    def _hidden_values(self, params: dict[str, Any]) -> Iterator[Any]:
        """Every value that is secret because of its name, at any depth."""
        names, seen, waiting = self._secret_names, dict[int, Any](), [params]
        while waiting:
            value = waiting.pop()
            if not isinstance(value, (dict, list, tuple)) or id(value) in seen:
                continue
            seen[id(value)] = value
            if isinstance(value, dict):
                for name, member in value.items():
                    if isinstance(name, str) and names.hides_member(name, member, value):
                        yield member
                    else:
                        waiting.append(member)
            else:
                for item, hidden in names.hidden_items(value):
                    if hidden or names.hides_second(item):
                        yield item if hidden else item[1]
                    else:
                        waiting.append(item)


def storable_text(text: str) -> str:
    """The text without the two things databases refuse: NUL characters and halves of characters."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _texts(values: Iterable[Any]) -> Iterator[str]:
    """All texts and numbers in them, at any depth."""
    seen, waiting = dict[int, Any](), [iter(values)]
    while waiting:
        for value in waiting[-1]:
            if isinstance(value, (Mapping, list, tuple, set, frozenset)):
                if id(value) not in seen:
                    seen[id(value)] = value
                    waiting.append(iter(value.values() if isinstance(value, Mapping) else value))
                    break
            elif value is not None and not isinstance(value, bool):
                yield value if isinstance(value, str) else str(value)
        else:
            waiting.pop()


def _spellings(text: str) -> Iterable[str]:
    """A secret as it stands in plain text, in JSON and in URLs."""
    text = storable_text(text)
    yield text
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield json.dumps(text)[1:-1]
    yield quote(text, safe="")
    yield quote_plus(text)
