"""Which names say that their value is a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

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
"""A name of fewer than five letters must be a word of its own (`auth`, not `author`); longer ones match inside one.
The parts of a name are found together and apart: `pass_word` is `password` and `passWord` too.
"""

_LONGEST = 200
"""Nothing longer is read word by word."""

_COUNTED = re.compile(
    r"(?<![a-z])(?:max|min|total|num|n|prompt|completion)_?(?:(?:prompt|completion|input|output|cached?|reasoning"
    r"|thinking|generated|new|used|context|remaining|estimated|text|audio|image)_?)*tokens"
    r"|(?<![a-z])(?:max|min|total|num)_?token"
    r"|tokens?_?(?:count|limit|usage|used|budget|length|size|type|per|remaining|total|max|min)"
    r"|tokeni[sz]|secretar(?:y|ies)"
)
"""Names in which `token` is a thing to count, whatever the value is: `max_tokens`, `token_count`."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")
_LABEL = re.compile(r"\w[\w.:-]{0,199}\Z")
_LABEL_KEYS = frozenset({"name", "key", "header", "field"})
_SEPARATORS = "[-_. ]*"


class SecretNames:
    """Tells the names of secrets from others, however they are spelled: `apiKey`, `X-API-Key`, `API_KEY`."""

    def __init__(self, names: Iterable[str]) -> None:
        listed = tuple(names)
        self._short = frozenset(n.lower() for n in listed if n.isascii() and n.isalnum() and len(n) < 5)
        long = _any_of(n for n in listed if n.lower() not in self._short)
        self._long = re.compile(long, re.IGNORECASE)
        self.pattern = rf"{long}|(?:{_any_of(sorted(self._short))})(?-i:[^a-z]|$)"
        """Finds in any text whatever `is_secret` says yes to, and some more; for case-insensitive use."""
        self.is_secret = lru_cache(maxsize=4096)(self._is_secret)

    def hides(self, name: str, value: Any) -> bool:
        """Whether the value of a member is secret because of its name."""
        return self.is_secret(name) and not _says_nothing(name, value)

    def hides_member(self, name: str, value: Any, members: Mapping[Any, Any]) -> bool:
        """The same for a member among others: in `{"name": "X-Api-Key", "value": …}` the name stands beside it."""
        if self.hides(name, value):
            return True
        if name.lower() != "value":
            return False
        labels = [v for k, v in members.items() if isinstance(k, str) and k.lower() in _LABEL_KEYS]
        return any(self.is_label(label) and self.hides(label, value) for label in labels)

    def is_label(self, text: Any) -> bool:
        """Whether a text is the name of a secret and nothing else."""
        return isinstance(text, str) and _LABEL.match(text) is not None and self.is_secret(text)

    def hides_second(self, item: Any) -> bool:
        """Whether it is a pair like `["X-Api-Key", "abc"]`, as headers are listed."""
        if not isinstance(item, (list, tuple)) or len(item) != 2:
            return False
        return self.is_label(item[0]) and self.hides(item[0], item[1])

    def hidden_items(self, items: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
        """Each item, and whether it is the value of a secret option: the words of a command are listed like this."""
        is_value = False
        for item in items:
            hidden = is_value and isinstance(item, str) and not item.startswith("-")
            yield item, hidden
            is_value = not hidden and isinstance(item, str) and item.startswith("--") and self.is_label(item[2:])

    def _is_secret(self, name: str) -> bool:
        words = [word.lower() for word in _WORD.findall(name[:_LONGEST])]
        # `pass_rate`, `pass_through`: only at the end of a name a pass is a password.
        if not self._short.isdisjoint(set(words) - {"pass"} | set(words[-1:])):
            return True
        if self._long.search(name) is None:  # what is secret by its words must be so as it is written: see the screen
            return False
        rest, counted = _COUNTED.subn("", "_".join(words))
        return not counted or self._long.search(rest.replace("_", "")) is not None


def _any_of(names: Iterable[str]) -> str:
    """Finds any of the names however it is written: `api_key` also as `apiKey`, `API-KEY` and `api key`."""
    parts = [[re.escape(part) for part in re.split(_SEPARATORS[:-1], name) if part] for name in names]
    return "|".join(_SEPARATORS.join(p) for p in parts if p) or r"[^\s\S]"


def _says_nothing(name: str, value: Any) -> bool:
    """Nothing, yes and no are not secrets (`has_password: true`), and a number of tokens or passes is a count."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and not value):
        return True
    numbers = value if isinstance(value, list) else [value]
    is_counted = "tokens" in name.lower() or name.lower() == "pass"
    return is_counted and all(isinstance(n, (int, float)) for n in numbers)
