"""How secrets are recognised: by the name of a value, and inside text.

The patterns for text are applied to text of any length: each can start at few positions only and never looks far ahead.
Where a name decides, the value is matched only after its name: a value that is not secret may contain one that is.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache, partial
from typing import Any

from ferrule.core.patterns import lazy_pattern

SECRET_NAMES = (
    "token",
    "pass_word",
    "pass",
    "passwd",
    "pass_phrase",
    "pass_code",
    "pwd",
    "user_pwd",
    "db_pwd",
    "otp",
    "secret",
    "authorization",
    "auth",
    "oauth",
    "auth_key",
    "api_key",
    "access_key",
    "private_key",
    "ssh_key",
    "signing_key",
    "encryption_key",
    "account_key",
    "subscription_key",
    "cookie",
    "credential",
    "creds",
    "session",
    "bearer",
    "jwt",
    "密码",
    "口令",
    "密钥",
    "令牌",
)
"""A name of fewer than five letters must be a word of its own (`auth`, not `author`); longer ones match inside a word.
The parts of a name match joined and separated: `pass_word` stands for `password` and `passWord` too.
"""

MAX_NAME_LENGTH = 200
"""Of a longer name only the beginning is split into words."""

_COUNT_NAME = lazy_pattern(
    r"(?<![a-z])(?:max|min|total|num|n|prompt|completion)_?(?:(?:prompt|completion|input|output|cached?|reasoning"
    r"|thinking|generated|new|used|context|remaining|estimated|text|audio|image)_?)*tokens"
    r"|(?<![a-z])(?:max|min|total|num)_?token"
    r"|tokens?_?(?:count|limit|usage|used|budget|length|size|type|per|remaining|total|max|min)"
    r"|tokeni[sz]|secretar(?:y|ies)"
)
"""Names in which `token` is something to count, whatever the value is: `max_tokens`, `token_count`."""

_WORD = lazy_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")
_LABEL = lazy_pattern(r"\w[\w.:-]{0,199}\Z")
_LABEL_KEYS = frozenset({"name", "key", "header", "field"})
_SEPARATORS = "[-_. ]*"


class SecretNames:
    """Recognises the names of secrets, however they are spelled: `apiKey`, `X-API-Key`, `API_KEY`."""

    def __init__(self, names: Iterable[str]) -> None:
        names = tuple(names)
        self._short = frozenset(n.lower() for n in names if n.isascii() and n.isalnum() and len(n) < 5)
        long = _spelling_pattern(n for n in names if n.lower() not in self._short)
        self._long = re.compile(long, re.IGNORECASE)
        self.pattern = rf"{long}|(?:{_spelling_pattern(sorted(self._short))})(?-i:[^a-z]|$)"
        """Matches in any text at least the names that `is_secret` accepts; for case-insensitive use."""
        self.is_secret = lru_cache(maxsize=4096)(self._is_secret)

    def hides(self, name: str, value: Any) -> bool:
        """Return whether the value of a member is secret because of its name."""
        return self.is_secret(name) and not _is_harmless_value(name, value)

    def hides_member(self, name: str, value: Any, members: Mapping[Any, Any]) -> bool:
        """Return whether a name hides the value, or a sibling does, as in `{"name": "X-Api-Key", "value": …}`."""
        if self.hides(name, value):
            return True
        if name.lower() != "value":
            return False
        labels = [v for k, v in members.items() if isinstance(k, str) and k.lower() in _LABEL_KEYS]
        return any(self.is_label(label) and self.hides(label, value) for label in labels)

    def is_label(self, text: Any) -> bool:
        """Return whether a text is just the name of a secret."""
        return isinstance(text, str) and _LABEL.match(text) is not None and self.is_secret(text)

    def is_secret_pair(self, item: Any) -> bool:
        """Return whether it is a pair like `["X-Api-Key", "abc"]`, as headers are listed."""
        if not isinstance(item, (list, tuple)) or len(item) != 2:
            return False
        return self.is_label(item[0]) and self.hides(item[0], item[1])

    def mark_secret_items(self, items: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
        """Yield each item, and whether it is the value of a secret option, as in `["--password", "abc"]`."""
        is_value = False
        for item in items:
            hidden = is_value and isinstance(item, str) and not item.startswith("-")
            yield item, hidden
            is_value = not hidden and isinstance(item, str) and item.startswith("--") and self.is_label(item[2:])

    def _is_secret(self, name: str) -> bool:
        words = [word.lower() for word in _WORD.findall(name[:MAX_NAME_LENGTH])]
        # In `pass_rate` and `pass_through`, `pass` means no password; at the end of a name it does.
        if not self._short.isdisjoint(set(words) - {"pass"} | set(words[-1:])):
            return True
        if self._long.search(name) is None:  # `pattern` must match whatever is secret
            return False
        rest, count = _COUNT_NAME.subn("", "_".join(words))
        return not count or self._long.search(rest.replace("_", "")) is not None


@cache
def secret_names() -> SecretNames:
    """Return the names that are secret unless a `Redaction` has others."""
    return SecretNames(SECRET_NAMES)


def _spelling_pattern(names: Iterable[str]) -> str:
    """Return a pattern for the names in any spelling: `api_key` also as `apiKey`, `API-KEY` and `api key`."""
    parts = [[re.escape(part) for part in re.split(_SEPARATORS[:-1], name) if part] for name in names]
    return "|".join(_SEPARATORS.join(p) for p in parts if p) or r"[^\s\S]"


def _is_harmless_value(name: str, value: Any) -> bool:
    """Return whether a value is empty, a boolean (`has_password: true`), or a number of tokens or passes."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and not value):
        return True
    numbers = value if isinstance(value, list) else [value]
    is_counted = "tokens" in name.lower() or name.lower() == "pass"
    return is_counted and all(isinstance(n, (int, float)) for n in numbers)


# Secrets inside text

_ISSUED_KEY_PATTERN = (
    r"\b(?:sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{30,}|frl_[A-Za-z0-9_-]{40,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_.-]{10,})"
)
"""Keys that their issuers made recognisable: OpenAI, Anthropic, GitHub, GitLab, Slack, AWS, Google; our own tokens;
JSON web tokens.
"""
_ISSUED_KEY_START = (
    r"sk-[a-z0-9_-]{8}|gh[pousr]_[a-z0-9]{8}|github_pat_|glpat-|xox[abprs]-|akia[a-z0-9]{8}|aiza|hf_|frl_|eyj"
)
"""How they begin: cheaper to search for, and enough to look closer."""

LOOKS_SECRET = (
    rf"{_ISSUED_KEY_START}|"
    r"(?:bearer|basic)[\s\\]|://[^\s/?#\"'<>]*@|[?&][\w.-]*(?:key|sig|signature)="
    r"|authorization|cookie|api-key|auth-token|access-token|private-token|private key(?: block)? ?----|\\u0000"
)
"""Matches in JSON or text, in any case, what is secret without a secret name."""

_SECRET_HEADER_ENDINGS = ("authorization", "cookie", "api-key", "auth-token", "access-token", "private-token")
"""Headers with these endings are hidden to the end of the line."""
_PLACEHOLDERS = frozenset(
    ("none", "null", "nil", "undefined", "true", "false")
    + ("str", "string", "bytes", "int", "integer", "number", "bool", "boolean", "any", "object")
)
"""Values that are harmless where they are not quoted: null, booleans and names of types."""

_SCHEME = lazy_pattern(r"\b((?:basic\s{1,8})?bearer|basic)(\s{1,8})([^\s\"'<>,;]{1,8192})", re.IGNORECASE)
_USER_INFO = lazy_pattern(r"://([^\s/?#\"'<>]{1,1024})@")
_ISSUED_KEY = lazy_pattern(_ISSUED_KEY_PATTERN)
_PRIVATE_KEY = lazy_pattern(
    r"----(?:-| )BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?:-| )----.*?"
    r"(?:----(?:-| )END [A-Z0-9 ]{0,40}KEY(?: BLOCK)?(?:-| )----|\Z)",
    re.DOTALL,
)

_QUOTE_MARK = r"(?P<mark>\\{0,8}[\"'])"
_COMMA, _COLON = r"\s{0,16},\s{0,16}", r"\s{0,16}:\s{0,16}"
_MEMBER_NAME = lazy_pattern(rf"{_QUOTE_MARK}(?P<name>[^\"'\\]{{1,200}}+)(?P=mark){_COLON}")
_LABELLED_NAME = lazy_pattern(
    rf"{_QUOTE_MARK}(?:[Nn]ame|[Kk]ey|[Hh]eader|[Ff]ield)(?P=mark){_COLON}(?P=mark)(?P<name>[\w.:-]{{1,200}}+)(?P=mark)"
    rf"{_COMMA}(?P=mark)[Vv]alue(?P=mark){_COLON}"
)
_PAIR_NAME = lazy_pattern(rf"[\[(,]\s{{0,16}}[\[(]\s{{0,16}}{_QUOTE_MARK}(?P<name>[\w.:-]{{1,200}}+)(?P=mark){_COMMA}")
_OPTION_NAME = lazy_pattern(r"--(?P<name>[\w.-]{1,200}+)(?:(?P<mark>\\{0,8}[\"'])\s{0,16},\s{0,16}|[ \t]{1,4}+(?!-))")
_ELEMENT_NAME = lazy_pattern(r"<(?P<name>[\w.:-]{1,200}+)(?:\s[^<>]{0,500})?>(?P<mark>)")
_ASSIGNED_NAME = lazy_pattern(
    r"(?<![\w.-])(?P<name>[\w.-]{1,200}+)(?P<mark>)(?P<sign>[ \t]{0,4}+=(?![=>~])|[ \t]{0,4}+:)(?P<space>[ \t]{0,4}+)"
)

_QUOTED_VALUE = r"(?P<quote>\\{0,8}[\"']).*?(?:(?<!\\)(?P=quote)|\Z)"
_MEMBER_VALUE = lazy_pattern(rf"{_QUOTED_VALUE}|\{{[^{{}}]*\}}?|\[[^\[\]]*\]?|[^\s,}}\]\"']+", re.DOTALL)
_WORD_VALUE = lazy_pattern(rf"{_QUOTED_VALUE}|\[[^\[\]\r\n]*\]?|[^\s&;\"'<>]+", re.DOTALL)
_ELEMENT_VALUE = lazy_pattern(r"(?:<!\[CDATA\[[^<>]{1,8192}>|[^<>]{1,8192})(?=</)")
_REST_OF_LINE = lazy_pattern(r"[^\r\n\"']+")

FindValue = Callable[[re.Match[str]], re.Match[str] | None]


class PlainTextRedaction:
    """Removes secrets from text that is not JSON: settings, headers, addresses, options, elements, truncated JSON."""

    def __init__(self, names: SecretNames, replacement: str) -> None:
        self._names, self._replacement = names, replacement

    def redact(self, text: str) -> str:
        text = _PRIVATE_KEY.sub(lambda match: self._replacement, text)
        text = _ISSUED_KEY.sub(lambda match: self._replacement, text)
        for names, values in (
            (_MEMBER_NAME, _MEMBER_VALUE),
            (_LABELLED_NAME, _MEMBER_VALUE),
            (_PAIR_NAME, _MEMBER_VALUE),
            (_OPTION_NAME, _WORD_VALUE),
            (_ELEMENT_NAME, _ELEMENT_VALUE),
        ):
            text = self._hide(text, names, partial(self._find_value, values=values))
        text = _SCHEME.sub(self._hide_credentials, text)
        text = _USER_INFO.sub(self._hide_user_info, text)
        return self._hide(text, _ASSIGNED_NAME, self._find_assigned_value)

    def _hide(self, text: str, names: re.Pattern[str], value_of: FindValue) -> str:
        pieces, end = [], 0
        for named in names.finditer(text):
            if named.start() < end:
                continue
            if value := value_of(named):
                mark = named["mark"] or ""
                pieces += [text[end : named.end()], mark, self._replacement, mark]
                end = value.end()
        return "".join(pieces) + text[end:]

    def _find_value(self, named: re.Match[str], values: re.Pattern[str]) -> re.Match[str] | None:
        if not self._names.is_secret(named["name"]):
            return None
        value = values.match(named.string, named.end())
        return None if value is None or _is_placeholder(named["name"], value.group()) else value

    def _find_assigned_value(self, named: re.Match[str]) -> re.Match[str] | None:
        """Return the value after `name=`, `name = ` or `name: `."""
        name, text = named["name"], named.string
        if named["sign"].endswith("="):
            before = text[named.start() - 1 : named.start()]
            is_signature = name.lower() == "key" or name.lower().endswith(("sig", "signature"))
            if before in ("?", "&") and is_signature:
                return _WORD_VALUE.match(text, named.end())
        elif name.lower().endswith(_SECRET_HEADER_ENDINGS):
            return _REST_OF_LINE.match(text, named.end())
        elif _is_verb_pass(named) or not (named["space"] or text.startswith(("'", '"', "\\"), named.end())):
            return None
        return self._find_value(named, _WORD_VALUE)

    def _hide_credentials(self, match: re.Match[str]) -> str:
        scheme, space, credentials = match.groups()
        if scheme.lower() == "basic" and not _is_basic_credentials(credentials):
            return match.group()
        return f"{scheme}{space}{self._replacement}"

    def _hide_user_info(self, match: re.Match[str]) -> str:
        user, colon, _password = match.group(1).partition(":")
        if colon:
            return f"://{user}:{self._replacement}@"
        # Only http has tokens for users (`https://TOKEN@host`); `ssh://git@host` is an ordinary name.
        before = match.string[max(0, match.start() - 5) : match.start()].lower()
        return f"://{self._replacement}@" if before.endswith(("http", "https")) else match.group()


def _is_placeholder(name: str, value: str) -> bool:
    """Return whether a value is a placeholder: `password=None`, `password: str`, `tokens: 12`."""
    word = value.strip("\\\"',;|()[]{} \t\r\n").lower()
    is_quoted = value.lstrip("\\")[:1] in ("'", '"')
    return not word or (not is_quoted and (word in _PLACEHOLDERS or ("tokens" in name.lower() and word.isdecimal())))


def _is_verb_pass(named: re.Match[str]) -> bool:
    """Tell `all tests pass: 12` from `pass: hunter2`."""
    before = named.string[max(0, named.start() - 4) : named.start()].rstrip(" \t")
    return named["name"].lower() == "pass" and before[-1:].isalnum()


def _is_basic_credentials(credentials: str) -> bool:
    """Tell `Basic dXNlcjpwYXNz` from `Basic usage`."""
    if not credentials.isalpha() or not (credentials.islower() or credentials.istitle() or credentials.isupper()):
        return True
    try:
        return b":" in b64decode(credentials, validate=True)
    except (BadBase64, ValueError):
        return False
