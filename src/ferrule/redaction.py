"""Secrets are taken out of what is recorded, before it is written anywhere.

Three things are secret: the value of anything whose *name* says so (`password`, `api_key`, `Authorization`), at every
depth and also in JSON text, URLs and headers inside strings; what *looks* like a credential (`Bearer …`,
`user:password@host`, a private key); and the values of parameters a tool declares `secret`, which are removed wherever
else they turn up in the record.

Nearly all calls carry no secret, so the price of finding that out is what matters. The record is encoded first, and
one regular expression over the JSON (the `screen`) tells whether anything in it could be secret. Only then is the
value walked. The screen may be wrong in one direction only: it must hit whatever the walk would change.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from ferrule.content import plain_json

SECRET_NAMES = (
    "token",
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "pwd",
    "secret",
    "authorization",
    "auth",
    "api_key",
    "access_key",
    "private_key",
    "cookie",
    "credential",
    "session",
    "bearer",
    "jwt",
    "密码",
    "口令",
    "密钥",
    "令牌",
)
"""A name of fewer than five letters must be a word of its own (`auth`, not `author`); longer ones match inside one."""

DEPTH = 200
"""Databases refuse JSON that is nested without end; nobody reads it either."""

_DECLARED_LENGTH = 4
_NAMED_LENGTH = 8
"""A value shorter than this is a word like `main` or `test`: removing it everywhere would spoil the record."""

_COUNTED = re.compile(
    r"(?<![a-z])(?:(?:max|min|total|num|n|prompt|completion|input|output|cached?|reasoning|thinking|generated|new|used"
    r"|context|remaining|estimated|text|audio|image)_?)+tokens|(?<![a-z])(?:max|min|total|num)_?token"
    r"|tokens?_?(?:count|limit|usage|used|budget|length|size|type|per|remaining|total|max|min)|tokeni[sz]|secretar(?:y|ies)"
)
"""Names in which `token` is a thing to count: `max_tokens`, `token_count`."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")
_SEPARATORS = "[-_. ]*"
_LOOKS_SECRET = (
    r"bearer\s|basic\s|://[^\s/?#\"'<>]*@|[?&][\w.-]*(?:key|sig|signature)="
    r"|authorization|cookie|x-api-key|x-auth-token|private key-----|\\u0000"
)

# The patterns below are applied to text of any length: each can start at few places only and never looks far ahead.
# Where a name decides, the value is matched only after its name: a value that is not secret may hold one that is.
_SCHEME = re.compile(r"\b(bearer|basic)(\s{1,8})([^\s\"'<>,;]{1,8192})", re.IGNORECASE)
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key|x-auth-token)(\s{0,4}:\s{0,4})([^\r\n\"']+)", re.IGNORECASE
)
_USER_INFO = re.compile(r"://([^\s/?#\"'<>]{1,1024})@")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}KEY-----|\Z)", re.DOTALL)
_ASSIGNED = re.compile(r"(?<![\w.-])(?P<name>[\w.-]{1,200})=(?P<mark>)")
_ASSIGNED_VALUE = re.compile(r"\"[^\"]*\"?|'[^']*'?|[^\s&;\"'<>]+")
_MEMBER = re.compile(r"(?P<mark>\\{0,8}[\"'])(?P<name>[^\"'\\]{1,200})(?P=mark)\s{0,16}:\s{0,16}")
_MEMBER_VALUE = re.compile(r"(\\{0,8}[\"']).*?(?:(?<!\\)\1|\Z)|\{[^{}]*\}?|\[[^\[\]]*\]?|[^\s,}\]\"']+", re.DOTALL)


class Redaction:
    """The rule by which records lose their secrets."""

    def __init__(self, names: Iterable[str] = SECRET_NAMES, *, replacement: str = "[redacted]") -> None:
        # Rust's regular expressions are four times as fast as Python's here, and JSON Schema is the way to them that
        # is installed anyway: a text is valid when the pattern is found in it.
        import jsonschema_rs

        self.names = tuple(names)
        self.replacement = replacement
        self._short = frozenset(n.lower() for n in self.names if n.isascii() and n.isalnum() and len(n) < 5)
        self._long = re.compile(_any_of(n for n in self.names if n.lower() not in self._short), re.IGNORECASE)
        screen = jsonschema_rs.validator_for({"pattern": f"(?i){_any_of(self.names)}|{_LOOKS_SECRET}"})
        self.suspects: Callable[[str], bool] = screen.is_valid
        """Whether this JSON or text may hold a secret."""
        self.is_secret_name = lru_cache(maxsize=4096)(self._is_secret_name)

    def secrets_of(self, params: Mapping[str, Any], declared: frozenset[str]) -> tuple[str, ...]:
        """Texts that must not appear anywhere in the record, longest first. `declared`: a tool's secret parameters."""
        found: set[str] = set()
        for name, value in params.items():
            if name in declared:
                found.update(t for t in _texts(value) if len(t) >= _DECLARED_LENGTH)
            else:
                found.update(t for t in self._named_secrets({name: value}, DEPTH) if len(t) >= _NAMED_LENGTH)
        spelled = {form for text in found for form in _spellings(text)}
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
        return self._clean(value, secrets, DEPTH, set())

    def clean_text(self, text: str, secrets: tuple[str, ...] = ()) -> str:
        """The text without secrets. JSON text stays JSON."""
        return self._clean_text(text, secrets, DEPTH)

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
            return [self._clean(item, secrets, depth - 1, above) for item in value]
        finally:
            above.discard(id(value))

    def _clean_members(
        self, members: dict[Any, Any], secrets: tuple[str, ...], depth: int, above: set[int]
    ) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        for key, value in members.items():
            name = key if isinstance(key, str) else str(plain_json(key))
            shown = self._clean_text(name, secrets, 0)
            while shown in cleaned:  # two names that differed only in what was taken out
                shown += "'"
            hidden = self.is_secret_name(name) and not _says_nothing(name, value)
            cleaned[shown] = self.replacement if hidden else self._clean(value, secrets, depth - 1, above)
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
        text = _PRIVATE_KEY.sub(lambda match: self.replacement, text)
        text = self._hide_values(text, _MEMBER, _MEMBER_VALUE)
        text = _HEADER.sub(lambda match: f"{match[1]}{match[2]}{self.replacement}", text)
        text = _SCHEME.sub(self._hide_credentials, text)
        text = _USER_INFO.sub(self._hide_user_info, text)
        return self._hide_values(text, _ASSIGNED, _ASSIGNED_VALUE)

    def _hide_values(self, text: str, names: re.Pattern[str], values: re.Pattern[str]) -> str:
        pieces, end = [], 0
        for named in names.finditer(text):
            before = text[named.start() - 1 : named.start()]
            if named.start() < end or not self._is_secret_in_text(named["name"], before):
                continue
            if value := values.match(text, named.end()):
                pieces += [text[end : named.end()], named["mark"], self.replacement, named["mark"]]
                end = value.end()
        return "".join(pieces) + text[end:]

    def _is_secret_in_text(self, name: str, before: str) -> bool:
        if self.is_secret_name(name):
            return True
        return before in ("?", "&") and (name.lower() == "key" or name.lower().endswith(("sig", "signature")))

    def _hide_credentials(self, match: re.Match[str]) -> str:
        scheme, space, credentials = match.groups()
        if scheme.lower() == "basic" and not _is_basic_credentials(credentials):
            return match.group()
        return f"{scheme}{space}{self.replacement}"

    def _hide_user_info(self, match: re.Match[str]) -> str:
        user, colon, _password = match.group(1).partition(":")
        if colon:
            return f"://{user}:{self.replacement}@"
        # Only http has tokens for users (`https://TOKEN@host`); `ssh://git@host` is an ordinary name.
        before = match.string[max(0, match.start() - 5) : match.start()].lower()
        return f"://{self.replacement}@" if before.endswith(("http", "https")) else match.group()

    def _is_secret_name(self, name: str) -> bool:
        words = [word.lower() for word in _WORD.findall(name)]
        if not self._short.isdisjoint(words):
            return True
        if self._long.search(name) is None:  # what is secret by its words must be so as it is written: see the screen
            return False
        return self._long.search(_COUNTED.sub("", "_".join(words))) is not None

    def _named_secrets(self, value: Any, depth: int) -> Iterable[str]:
        if depth == 0:
            return
        if isinstance(value, dict):
            for name, member in value.items():
                if isinstance(name, str) and self.is_secret_name(name) and not _says_nothing(name, member):
                    yield from _texts(member)
                else:
                    yield from self._named_secrets(member, depth - 1)
        elif isinstance(value, (list, tuple)):
            for item in value:
                yield from self._named_secrets(item, depth - 1)


def storable_text(text: str) -> str:
    """The text without the two things databases refuse: NUL characters and halves of characters."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _any_of(names: Iterable[str]) -> str:
    """Finds any of the names however it is written: `api_key` also as `apiKey`, `API-KEY` and `api key`."""
    parts = [[re.escape(part) for part in re.split(_SEPARATORS[:-1], name) if part] for name in names]
    return "|".join(_SEPARATORS.join(p) for p in parts if p) or r"[^\s\S]"


def _says_nothing(name: str, value: Any) -> bool:
    """Nothing, yes and no are not secrets (`has_password: true`), and a number of tokens is a count."""
    if value is None or value == "" or isinstance(value, bool):
        return True
    numbers = value if isinstance(value, list) else [value]
    return "tokens" in name.lower() and all(isinstance(n, (int, float)) for n in numbers)


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, bool):
        yield value if isinstance(value, str) else str(value)


def _spellings(text: str) -> Iterable[str]:
    """A secret as it stands in plain text, in JSON and in URLs."""
    text = storable_text(text)
    yield text
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield json.dumps(text)[1:-1]
    yield quote(text, safe="")
    yield quote_plus(text)


def _is_basic_credentials(credentials: str) -> bool:
    """Tells `Basic dXNlcjpwYXNz` from `Basic usage`."""
    if not credentials.isalpha() or not (credentials.islower() or credentials.istitle() or credentials.isupper()):
        return True
    try:
        return b":" in b64decode(credentials, validate=True)
    except (BadBase64, ValueError):
        return False
