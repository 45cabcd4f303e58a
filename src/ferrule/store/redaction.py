"""Redaction: secrets are removed from records before these are written anywhere.

Three things are secret: the value of anything whose *name* says so (`password`, `api_key`, `Authorization`), at every
depth and also in JSON text, URLs, headers and settings inside strings; what *looks* like a credential (`Bearer …`,
`user:password@host`, a private key); and the values of parameters a tool declares `secret`, which are removed wherever
else they occur in the record.

Nearly all calls contain no secret, so what matters is the cost of finding that out. The record is encoded first, and
one regular expression over the JSON (`may_contain_secret`) tells whether anything in it could be secret. Only then is
the value walked. The expression may be wrong in one direction only: it must match whatever the walk would change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from ferrule.core.content import plain_json, safe_str
from ferrule.core.patterns import lazy_pattern
from ferrule.store.secret_patterns import LOOKS_SECRET, SECRET_NAMES, PlainTextRedaction, SecretNames

MAX_DEPTH = 200
"""Databases reject JSON that is nested deeper."""

MAX_SECRETS = 100
"""Every text is searched for every secret of a call. Of a call with more secrets, no value is recorded at all."""

_MIN_DECLARED_LENGTH = 4
_MIN_NAMED_LENGTH = 8
"""A shorter value is probably a word like `main` or `test`: removing it everywhere would spoil the record."""


class Redaction:
    """Removes secrets from values and texts.

    The expression behind `may_contain_secret` runs twice per call and has about fifty case-insensitive alternatives.
    Python's `re` tries each of them at each character: 40 µs for a typical argument object and 1.5 ms for a kilobyte.
    Rust's engine needs 0.3 µs and 2.4 µs. It is reached through the JSON Schema validator, which is a dependency
    anyway: a text is valid against `{"pattern": …}` when the expression matches somewhere in it.
    """

    def __init__(self, names: Iterable[str] = SECRET_NAMES, *, replacement: str = "[redacted]") -> None:
        import jsonschema_rs

        self.names = tuple(names)
        self.replacement = replacement
        self._secret_names = SecretNames(self.names)
        self._text = PlainTextRedaction(self._secret_names, replacement)
        validator = jsonschema_rs.validator_for({"pattern": f"(?i){self._secret_names.pattern}|{LOOKS_SECRET}"})
        self.may_contain_secret: Callable[[str], bool] = validator.is_valid
        """Whether this JSON or text may contain a secret; False is certain."""

    def find_secrets(self, params: Mapping[str, Any], declared: frozenset[str]) -> tuple[str, ...]:
        """Texts that must not appear anywhere in the record, longest first. `declared`: a tool's secret parameters."""
        return merge_secrets(*map(_secret_spellings, self._find_secret_texts(params, declared)))

    def redact_params(
        self, params: Mapping[str, Any], declared: frozenset[str], secrets: tuple[str, ...]
    ) -> dict[str, Any]:
        """The arguments of a call as they may be recorded."""
        open_params = {name: self.replacement if name in declared else value for name, value in params.items()}
        redacted: dict[str, Any] = self.redact(open_params, secrets)
        return redacted

    def redact(self, value: Any, secrets: tuple[str, ...] = ()) -> Any:
        """The value as plain JSON without secrets, and without anything that JSON cannot represent."""
        if len(secrets) > MAX_SECRETS:
            return self._hide_all(value)
        return self._redact(value, secrets, MAX_DEPTH, set())

    def redact_text(self, text: str, secrets: tuple[str, ...] = ()) -> str:
        """The text without secrets. JSON text stays JSON."""
        redacted: str = self.redact(text, secrets)
        return redacted

    def _redact(self, value: Any, secrets: tuple[str, ...], depth: int, above: set[int]) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return self._redact_text(value, secrets, depth)
        if kind is int or kind is float:
            return self._redact_number(value, secrets)
        if kind not in (dict, list, tuple):
            return self._redact(plain_json(value), secrets, depth, above)
        if depth == 0 or id(value) in above:
            return "[nested too deep]"
        above.add(id(value))
        try:
            if kind is dict:
                return self._redact_members(value, secrets, depth, above)
            return self._redact_items(value, secrets, depth, above)
        finally:
            above.discard(id(value))

    def _redact_members(
        self, members: dict[Any, Any], secrets: tuple[str, ...], depth: int, above: set[int]
    ) -> dict[str, Any]:
        redacted: dict[str, Any] = {}
        repeats: dict[str, int] = {}
        for key, value in members.items():
            name = key if isinstance(key, str) else str(plain_json(key))
            unique_name = redacted_name = self._redact_text(name, secrets, 0)
            while unique_name in redacted:  # two names that differed only in what was removed
                repeats[redacted_name] = repeats.get(redacted_name, 1) + 1
                unique_name = f"{redacted_name} {repeats[redacted_name]}"
            hidden = self._secret_names.hides_member(name, value, members)
            redacted[unique_name] = self.replacement if hidden else self._redact(value, secrets, depth - 1, above)
        return redacted

    def _redact_items(self, items: Sequence[Any], secrets: tuple[str, ...], depth: int, above: set[int]) -> list[Any]:
        redacted: list[Any] = []
        for item, hidden in self._secret_names.mark_secret_items(items):
            if hidden:
                redacted.append(self.replacement)
            elif self._secret_names.is_secret_pair(item):
                redacted.append([self._redact_text(item[0], secrets, 0), self.replacement])
            else:
                redacted.append(self._redact(item, secrets, depth - 1, above))
        return redacted

    def _redact_number(self, value: int | float, secrets: tuple[str, ...]) -> Any:
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if value.bit_length() > 4096:  # Python refuses to format very long integers in decimal
            return hex(value)
        return self.replacement if secrets and str(value) in secrets else value

    def _redact_text(self, text: str, secrets: tuple[str, ...], depth: int) -> str:
        return unescape_text(self._redact_escaped_text(escape_text(text), secrets, depth))

    def _redact_escaped_text(self, text: str, secrets: tuple[str, ...], depth: int) -> str:
        matches = [secret for secret in secrets if secret in text]
        if not matches and not self.may_contain_secret(text):
            return text
        if depth > 0 and text.lstrip()[:1] in ("{", "["):
            try:
                parsed = json.loads(text)
            except (ValueError, RecursionError):  # cut off, or only looks like JSON
                return self._redact_plain_text(text, matches)
            redacted = self._redact(parsed, secrets, depth - 1, set())
            return text if redacted == parsed else json.dumps(redacted, ensure_ascii=False)
        return self._redact_plain_text(text, matches)

    def _redact_plain_text(self, text: str, secrets: list[str]) -> str:
        for secret in secrets:
            text = text.replace(secret, self.replacement)
        return self._text.redact(text)

    def _hide_all(self, value: Any) -> Any:
        if value is None or isinstance(value, bool) or (isinstance(value, (str, dict)) and not value):
            return value
        return {self.replacement: self.replacement} if isinstance(value, dict) else self.replacement

    def _find_secret_texts(self, params: Mapping[str, Any], declared: frozenset[str]) -> set[str]:
        undeclared = {name: value for name, value in params.items() if name not in declared}
        texts: set[str] = set()
        for values, min_length in (
            ([value for name, value in params.items() if name in declared], _MIN_DECLARED_LENGTH),
            (self._find_hidden_values(undeclared), _MIN_NAMED_LENGTH),
        ):
            for text in _find_texts(values):
                if len(text) >= min_length:
                    texts.add(text)
                if len(texts) > MAX_SECRETS:
                    return texts
        return texts

    def _find_hidden_values(self, params: dict[str, Any]) -> Iterator[Any]:
        """Every value that is secret because of its name, at any depth."""
        names, visited, pending = self._secret_names, dict[int, Any](), [params]
        while pending:
            value = pending.pop()
            if not isinstance(value, (dict, list, tuple)) or id(value) in visited:
                continue
            visited[id(value)] = value
            if isinstance(value, dict):
                for name, member in value.items():
                    if isinstance(name, str) and names.hides_member(name, member, value):
                        yield member
                    else:
                        pending.append(member)
            else:
                for item, hidden in names.mark_secret_items(value):
                    if hidden or names.is_secret_pair(item):
                        yield item if hidden else item[1]
                    else:
                        pending.append(item)


class RunSecrets:
    """The secrets that one run has passed to tools. They are removed from everything that is written about the run."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._secrets: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._secrets)

    def add(self, secrets: Iterable[str]) -> None:
        self._secrets |= dict.fromkeys(secrets)

    def add_params(self, params: Mapping[str, Any], secret_names: frozenset[str]) -> None:
        """Add the values of the parameters that a tool declares secret, and of those whose names say so."""
        self.add(self._redaction.find_secrets(params, secret_names))

    def find_in(self, *values: Any) -> tuple[str, ...]:
        """The secrets of the run that values contain."""
        if not self._secrets:
            return ()
        try:
            text = "\n".join(map(escape_text, _list_texts(plain_json(list(values)))))
        except Exception:  # any object: nobody knows what is in it
            return tuple(self._secrets)
        return tuple(secret for secret in self._secrets if secret in text)

    def redact(self, value: Any) -> Any:
        """The value without the secrets of the run and without whatever looks like a secret."""
        secrets = tuple(sorted(self._secrets, key=len, reverse=True))
        for start in range(0, max(1, len(secrets)), MAX_SECRETS):
            value = self._redaction.redact(value, secrets[start : start + MAX_SECRETS])
        return value


def _list_texts(value: Any) -> Iterator[str]:
    """Everything in a JSON value, names and numbers included, as texts."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield from part
            pending += part.values()
        elif isinstance(part, list):
            pending += part
        elif part is not None and not isinstance(part, bool):
            yield part if isinstance(part, str) else safe_str(part)


def merge_secrets(*groups: Iterable[str]) -> tuple[str, ...]:
    """All secrets once, longest first: one may be a part of another."""
    return tuple(sorted(dict.fromkeys(secret for group in groups for secret in group), key=len, reverse=True))


# Databases reject two things in a text: NUL characters and lone surrogates. They are written as an escape, so that ids
# and arguments come back exactly as they were: a mark, which Unicode reserves for such purposes, and four digits.

ESCAPE_MARK = "\ufdd0"
_REJECTED = lazy_pattern(f"[\0{ESCAPE_MARK}\ud800-\udfff]")
_ESCAPE = lazy_pattern(f"{ESCAPE_MARK}([0-9a-f]{{4}})")


def escape_text(text: str) -> str:
    """The text with everything escaped that a database rejects."""
    if text.isascii() and "\0" not in text:  # nearly all ids
        return text
    return _REJECTED.sub(lambda match: f"{ESCAPE_MARK}{ord(match[0]):04x}", text)


def unescape_text(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text) if ESCAPE_MARK in text else text


def map_texts(function: Callable[[str], str], value: Any) -> Any:
    """The JSON value with the function applied to every text and name in it."""
    if isinstance(value, str):
        return function(value)
    if isinstance(value, dict):
        return {function(name): map_texts(function, member) for name, member in value.items()}
    return [map_texts(function, item) for item in value] if isinstance(value, list) else value


def to_storable_text(text: str) -> str:
    """The text without what databases reject, for a place that has no escapes."""
    return _REJECTED.sub("\ufffd", text)


def _find_texts(values: Iterable[Any]) -> Iterator[str]:
    """All texts and numbers in them, at any depth."""
    visited, pending = dict[int, Any](), [iter(values)]
    while pending:
        for value in pending[-1]:
            if isinstance(value, (Mapping, list, tuple, set, frozenset)):
                if id(value) not in visited:
                    visited[id(value)] = value
                    pending.append(iter(value.values() if isinstance(value, Mapping) else value))
                    break
            elif value is not None and not isinstance(value, bool):
                yield value if isinstance(value, str) else safe_str(value)
        else:
            pending.pop()


def _secret_spellings(text: str) -> Iterable[str]:
    """A secret as it is written in plain text, in JSON and in URLs."""
    text = escape_text(text)
    yield text
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield json.dumps(text)[1:-1]
    yield quote(text, safe="")
    yield quote_plus(text)


__all__ = [
    "SECRET_NAMES",
    "Redaction",
    "RunSecrets",
    "merge_secrets",
    "escape_text",
    "map_texts",
    "to_storable_text",
    "unescape_text",
]
