"""Secrets: values that must not appear in records, events and logs. What a call returns to its caller keeps them.

`Secrets` are known values: keys of servers, variables of the environment, arguments that a tool declares `secret`. They
are replaced in every spelling. `Redaction` recognises secrets: the value of anything whose *name* says so (`password`,
`api_key`, `Authorization`), at every depth and also in JSON text, URLs, headers and settings inside strings; and what
*looks* like a credential (`Bearer …`, `user:password@host`, a private key).

Nearly all calls contain no secret, so what matters is the cost of finding that out. A record is encoded first, and one
regular expression over the JSON (`may_contain_secret`) tells whether anything in it could be secret. Only then is the
value walked. The expression may be wrong in one direction only: it must match whatever the walk would change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache
from typing import Any, Final
from urllib.parse import quote, quote_plus

from ferrule.core.content import MAX_DEPTH as MAX_VALUE_DEPTH
from ferrule.core.content import REDACTED, plain_json, safe_str
from ferrule.core.patterns import lazy_pattern
from ferrule.core.secret_patterns import LOOKS_SECRET, SECRET_NAMES, PlainTextRedaction, SecretNames
from ferrule.core.variables import find_strings, find_variables, is_common_variable
from ferrule.errors import CallError, ExecutionFailed, ModelError

MAX_DEPTH: Final = 200
"""Databases reject JSON that is nested deeper."""
MAX_SECRETS: Final = 100
"""Every text is searched for every secret of a call. Of a call with more secrets, no value is recorded at all."""
MIN_DECLARED_LENGTH: Final = 4
MIN_SECRET_LENGTH: Final = 8
"""A shorter value is probably a word like `main` or `test`: removing it everywhere would spoil the record."""

_PLAIN_ADDRESS = lazy_pattern(r"https?://[^\s@?#]*")
_IMAGE_URL = lazy_pattern(r"data:image/[\w.+-]+;base64,[\w+/=]*")
"""Has no words in which a pattern of secrets could be found, and millions of characters."""


class Secrets:
    """Known values that must not appear in texts, results and errors, however they are spelled there.

    Programs and servers repeat what they were given, especially in error messages.
    """

    def __init__(self, values: Iterable[str] = (), *, redaction: Redaction | None = None) -> None:
        self._redaction = redaction
        self.spellings: tuple[str, ...] = ()
        """Longest first."""
        self.add(values)

    @classmethod
    def from_template(cls, template: Any, environ: Mapping[str, str]) -> Secrets:
        """Return the values of `${VAR}` in a template, without variables that every program gets (`HOME`, `LANG`)."""
        names = {name for text in find_strings(template) for name in find_variables(text)}
        return cls(select_likely(environ.get(name, "") for name in names if not is_common_variable(name)))

    @classmethod
    def from_params(cls, params: Mapping[str, Any], names: Iterable[str]) -> Secrets:
        """Return the values of the parameters that a tool declares secret."""
        texts = _find_texts([params[name] for name in names if name in params])
        return cls(text for text in texts if len(text) >= MIN_DECLARED_LENGTH)

    def __len__(self) -> int:
        return len(self.spellings)

    def add(self, values: Iterable[str]) -> None:
        """Hide more values."""
        self.add_spellings(spelling for value in values for spelling in _list_spellings(value))

    def add_params(self, params: Mapping[str, Any], secret_names: frozenset[str]) -> None:
        """Hide the values of the parameters that a tool declares secret, and of those whose names say so."""
        redaction = self._redaction or _default_redaction()
        self.add_spellings(redaction.find_secrets(params, secret_names))

    def add_spellings(self, spellings: Iterable[str]) -> None:
        """Hide more values, whose spellings are known already."""
        self.spellings = merge_secrets(self.spellings, spellings)

    def find_in(self, *values: Any) -> tuple[str, ...]:
        """Return the spellings that occur in values."""
        if not self.spellings:
            return ()
        try:
            text = "\n".join(_find_texts(plain_json(list(values)), has_names=True))
        except Exception:  # any object: nobody knows what is in it
            return self.spellings
        return tuple(spelling for spelling in self.spellings if spelling in text)

    def redact(self, value: Any) -> Any:
        """Return the value as plain JSON, without these values and without whatever looks like a secret."""
        redaction = self._redaction or _default_redaction()
        for start in range(0, max(1, len(self.spellings)), MAX_SECRETS):
            value = redaction.redact(value, self.spellings[start : start + MAX_SECRETS])
        return value

    def hide(self, value: Any) -> Any:
        """Return the same value with the secrets in its texts replaced."""
        try:
            return self._hide(value) if self.spellings else value
        except RecursionError:
            raise ExecutionFailed("The result is nested too deep to be searched for secrets.") from None

    def _hide(self, value: Any) -> Any:
        if isinstance(value, str):
            for spelling in self.spellings:
                value = value.replace(spelling, REDACTED)
            return value
        if isinstance(value, bytes):
            return self.hide_in_bytes(value)
        if isinstance(value, dict):
            return {self._hide(name): self._hide(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._hide(item) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in fields(value) if field.init]
            return replace(value, **{name: self._hide(getattr(value, name)) for name in names})
        if hasattr(value, "model_dump"):  # pydantic
            plain = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
            return type(value).model_validate(self._hide(plain))
        return value

    def hide_in_bytes(self, content: bytes) -> bytes:
        for spelling in self.spellings:
            content = content.replace(spelling.encode("utf-8", "surrogateescape"), REDACTED.encode())
        return content

    @contextmanager
    def hide_in_errors(self) -> Iterator[None]:
        """Replace secrets in the messages of errors raised inside the block."""
        try:
            yield
        except (CallError, ModelError) as error:
            error.args = self.hide(error.args)
            if self.find_in(safe_str(error.__cause__), safe_str(error.__context__)):
                error.__cause__ = error.__context__ = None
            raise


class StreamFilter:
    """Passes a streamed text on without secrets. An end that may be the start of a secret waits for what follows."""

    def __init__(self, secrets: Secrets, on_text: Callable[[str], None]) -> None:
        self._secrets, self._on_text, self._held_text = secrets, on_text, ""

    def write(self, text: str) -> None:
        text = self._secrets.hide(self._held_text + text)
        longest = len(self._secrets.spellings[0]) - 1 if self._secrets else 0
        spellings = self._secrets.spellings
        starts = (text[-length:] for length in range(min(len(text), longest), 0, -1))
        self._held_text = next((start for start in starts if any(each.startswith(start) for each in spellings)), "")
        if passed := text[: len(text) - len(self._held_text)]:
            self._on_text(passed)

    def flush(self) -> None:
        """Pass on what waits: nothing follows."""
        if self._held_text:
            self._on_text(self._held_text)


class Redaction:
    """Recognises secrets and removes them from values and texts.

    The expression behind `may_contain_secret` runs twice per call and has about fifty case-insensitive alternatives.
    Python's `re` tries each of them at each character: 40 µs for a typical argument object and 1.5 ms for a kilobyte.
    Rust's engine needs 0.3 µs and 2.4 µs. It is reached through the JSON Schema validator, which is a dependency
    anyway: a text is valid against `{"pattern": …}` when the expression matches somewhere in it.
    """

    def __init__(self, names: Iterable[str] = SECRET_NAMES, *, replacement: str = REDACTED) -> None:
        self.replacement = replacement
        self.names = SecretNames(names)
        self.plain_text = PlainTextRedaction(self.names, replacement)
        self.may_contain_secret = _make_search(f"(?i){self.names.pattern}|{LOOKS_SECRET}")
        """Whether this JSON or text may contain a secret; False is certain."""

    def find_secrets(self, params: Mapping[str, Any], declared: frozenset[str]) -> tuple[str, ...]:
        """Return texts to hide in the whole record, longest first. `declared`: a tool's secret parameters."""
        walk = _Walk(self, (), reads_texts=False)
        walk.visit({name: value for name, value in params.items() if name not in declared}, MAX_VALUE_DEPTH)
        texts: set[str] = set()
        for values, min_length in (
            ([value for name, value in params.items() if name in declared], MIN_DECLARED_LENGTH),
            (walk.hidden_values, MIN_SECRET_LENGTH),
        ):
            for text in _find_texts(values):
                if len(text) >= min_length:
                    texts.add(text)
                if len(texts) > MAX_SECRETS:
                    break
        return merge_secrets(*map(_list_spellings, texts))

    def redact_params(
        self, params: Mapping[str, Any], declared: frozenset[str], secrets: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return the arguments of a call as they may be recorded."""
        open_params = {name: self.replacement if name in declared else value for name, value in params.items()}
        redacted: dict[str, Any] = self.redact(open_params, secrets)
        return redacted

    def redact(self, value: Any, secrets: tuple[str, ...] = ()) -> Any:
        """Return the value as plain JSON without secrets, and without anything that JSON cannot represent."""
        if len(secrets) > MAX_SECRETS:
            if value is None or isinstance(value, bool) or (isinstance(value, (str, dict)) and not value):
                return value
            return {self.replacement: self.replacement} if isinstance(value, dict) else self.replacement
        return _Walk(self, secrets).visit(value, MAX_DEPTH)

    def redact_text(self, text: str, secrets: tuple[str, ...] = ()) -> str:
        """Return the text without secrets. JSON text stays JSON."""
        redacted: str = self.redact(text, secrets)
        return redacted


@lru_cache(maxsize=16)
def _make_search(pattern: str) -> Callable[[str], bool]:
    """Compile a pattern that texts are searched for: a millisecond, which every store would take."""
    import jsonschema_rs

    search: Callable[[str], bool] = jsonschema_rs.validator_for({"pattern": pattern}).is_valid
    return search


@cache
def _default_redaction() -> Redaction:
    return Redaction()


class _Walk:
    """One walk over a value, which makes a copy without secrets."""

    def __init__(self, redaction: Redaction, secrets: tuple[str, ...], *, reads_texts: bool = True) -> None:
        self._redaction, self._secrets, self._reads_texts = redaction, secrets, reads_texts
        self._names, self._replacement = redaction.names, redaction.replacement
        self._above: set[int] = set()
        self.hidden_values: list[Any] = []
        """Values that are secret because of their names."""

    def visit(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return self._visit_text(value, depth)
        if kind is float:
            return value if math.isfinite(value) else None
        if kind is int:
            if value.bit_length() > 4096:  # Python refuses to format very long integers in decimal
                return hex(value)
            return self._replacement if self._secrets and str(value) in self._secrets else value
        if kind not in (dict, list, tuple):
            return self.visit(plain_json(value), depth)
        if depth == 0 or id(value) in self._above:
            return "[nested too deep]"
        self._above.add(id(value))
        try:
            return self._visit_members(value, depth) if kind is dict else self._visit_items(value, depth)
        finally:
            self._above.discard(id(value))

    def _visit_members(self, members: dict[Any, Any], depth: int) -> dict[str, Any]:
        redacted: dict[str, Any] = {}
        repeats: dict[str, int] = {}
        for key, value in members.items():
            name = key if isinstance(key, str) else str(plain_json(key))
            unique_name = redacted_name = self._visit_text(name, 0)
            while unique_name in redacted:  # two names that differed only in what was removed
                repeats[redacted_name] = repeats.get(redacted_name, 1) + 1
                unique_name = f"{redacted_name} {repeats[redacted_name]}"
            is_hidden = self._names.hides_member(name, value, members)
            redacted[unique_name] = self._replace(value) if is_hidden else self.visit(value, depth - 1)
        return redacted

    def _visit_items(self, items: Sequence[Any], depth: int) -> list[Any]:
        redacted: list[Any] = []
        for item, is_hidden in self._names.mark_secret_items(items):
            if is_hidden:
                redacted.append(self._replace(item))
            elif self._names.is_secret_pair(item):
                redacted.append([self._visit_text(item[0], 0), self._replace(item[1])])
            else:
                redacted.append(self.visit(item, depth - 1))
        return redacted

    def _replace(self, value: Any) -> str:
        self.hidden_values.append(value)
        return self._replacement

    def _visit_text(self, text: str, depth: int) -> str:
        if not self._reads_texts:
            return text
        spellings = [spelling for spelling in self._secrets if spelling in text]
        if not spellings and (_IMAGE_URL.fullmatch(text) or not self._may_contain_secret(text)):
            return text
        if depth > 0 and text.lstrip()[:1] in ("{", "["):
            try:
                parsed = json.loads(text)
            except (ValueError, RecursionError):  # cut off, or only looks like JSON
                pass
            else:
                redacted = self.visit(parsed, depth - 1)
                return text if redacted == parsed else json.dumps(redacted, ensure_ascii=False)
        for spelling in spellings:
            text = text.replace(spelling, self._replacement)
        return self._redaction.plain_text.redact(text)

    def _may_contain_secret(self, text: str) -> bool:
        try:
            return self._redaction.may_contain_secret(text)
        except UnicodeEncodeError:  # a lone surrogate, which only Python's expressions can read
            return True


def select_likely(values: Iterable[str]) -> Iterator[str]:
    """Yield values that are probably secret and occur nowhere else.

    These are short values, and plain addresses: the response of a server is full of links to itself.
    """
    return (v for v in values if len(v) >= MIN_SECRET_LENGTH and not _PLAIN_ADDRESS.fullmatch(v))


def merge_secrets(*groups: Iterable[str]) -> tuple[str, ...]:
    """Return all spellings once, longest first: one may be a part of another."""
    return tuple(sorted(dict.fromkeys(secret for group in groups for secret in group), key=len, reverse=True))


def _list_spellings(text: str) -> Iterator[str]:
    """Yield a secret as it is written in plain text, in JSON, in the JSON of PHP, and in URLs."""
    if text:
        yield text
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield json.dumps(text)[1:-1]
        yield json.dumps(text)[1:-1].replace("/", "\\/")
        yield quote(text, safe="", errors="replace")
        yield quote_plus(text, errors="replace")


def _find_texts(values: Iterable[Any], *, has_names: bool = False) -> Iterator[str]:
    """Yield all texts and numbers in values, at any depth."""
    visited, pending = dict[int, Any](), [iter(values)]
    while pending:
        for value in pending[-1]:
            if isinstance(value, (Mapping, list, tuple, set, frozenset)):
                if id(value) not in visited:
                    visited[id(value)] = value
                    pending.append(iter(value.values() if isinstance(value, Mapping) else value))
                    if has_names and isinstance(value, Mapping):
                        pending.append(iter(value))
                    break
            elif value is not None and not isinstance(value, bool):
                yield value if isinstance(value, str) else safe_str(value)
        else:
            pending.pop()
