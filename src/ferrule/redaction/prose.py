"""Secrets inside text: settings, headers, addresses, options of commands, elements, keys, and JSON that was cut off.

The patterns are applied to text of any length: each can start at few places only and never looks far ahead. Where a
name decides, the value is matched only after its name: a value that is not secret may hold one that is.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Callable
from functools import partial

from ferrule.redaction.names import SecretNames

_ISSUED = (
    r"\b(?:sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{30,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_.-]{10,})"
)
"""Keys that their issuers made recognisable: OpenAI, Anthropic, GitHub, GitLab, Slack, AWS, Google; JSON web tokens."""
_ISSUED_BEGIN = r"sk-[a-z0-9_-]{8}|gh[pousr]_[a-z0-9]{8}|github_pat_|glpat-|xox[abprs]-|akia[a-z0-9]{8}|aiza|hf_|eyj"
"""How they begin, which is enough to look closer and much less to look for."""

LOOKS_SECRET = (
    rf"{_ISSUED_BEGIN}|"
    r"(?:bearer|basic)[\s\\]|://[^\s/?#\"'<>]*@|[?&][\w.-]*(?:key|sig|signature)="
    r"|authorization|cookie|api-key|auth-token|access-token|private-token|private key(?: block)? ?----|\\u0000"
)
"""Finds in JSON or text, whatever its case, what is hidden without a name that says so."""

_HEADERS = ("authorization", "cookie", "api-key", "auth-token", "access-token", "private-token")
"""Headers whose names end like this are hidden to the end of the line."""
_NOTHING = frozenset(
    ("none", "null", "nil", "undefined", "true", "false")
    + ("str", "string", "bytes", "int", "integer", "number", "bool", "boolean", "any", "object")
)
"""Values that are no secrets where they stand without quotation marks: nothing, yes, no, and types of parameters."""

_SCHEME = re.compile(r"\b(bearer|basic)(\s{1,8})([^\s\"'<>,;]{1,8192})", re.IGNORECASE)
_USER_INFO = re.compile(r"://([^\s/?#\"'<>]{1,1024})@")
_ISSUED_KEY = re.compile(_ISSUED)
_PRIVATE_KEY = re.compile(
    r"----(?:-| )BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?:-| )----.*?"
    r"(?:----(?:-| )END [A-Z0-9 ]{0,40}KEY(?: BLOCK)?(?:-| )----|\Z)",
    re.DOTALL,
)

_MARK = r"(?P<mark>\\{0,8}[\"'])"
_COMMA, _COLON = r"\s{0,16},\s{0,16}", r"\s{0,16}:\s{0,16}"
_MEMBER = re.compile(rf"{_MARK}(?P<name>[^\"'\\]{{1,200}}+)(?P=mark){_COLON}")
_LABELLED = re.compile(
    rf"{_MARK}(?:[Nn]ame|[Kk]ey|[Hh]eader|[Ff]ield)(?P=mark){_COLON}(?P=mark)(?P<name>[\w.:-]{{1,200}}+)(?P=mark)"
    rf"{_COMMA}(?P=mark)[Vv]alue(?P=mark){_COLON}"
)
_PAIR = re.compile(rf"[\[(,]\s{{0,16}}[\[(]\s{{0,16}}{_MARK}(?P<name>[\w.:-]{{1,200}}+)(?P=mark){_COMMA}")
_OPTION = re.compile(r"--(?P<name>[\w.-]{1,200}+)(?:(?P<mark>\\{0,8}[\"'])\s{0,16},\s{0,16}|[ \t]{1,4}+(?!-))")
_ELEMENT = re.compile(r"<(?P<name>[\w.:-]{1,200}+)(?:\s[^<>]{0,500})?>(?P<mark>)")
_ASSIGNED = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]{1,200}+)(?P<mark>)(?P<sign>[ \t]{0,4}+=(?![=>~])|[ \t]{0,4}+:)(?P<space>[ \t]{0,4}+)"
)

_QUOTED = r"(?P<quote>\\{0,8}[\"']).*?(?:(?<!\\)(?P=quote)|\Z)"
_MEMBER_VALUE = re.compile(rf"{_QUOTED}|\{{[^{{}}]*\}}?|\[[^\[\]]*\]?|[^\s,}}\]\"']+", re.DOTALL)
_WORD_VALUE = re.compile(rf"{_QUOTED}|\[[^\[\]\r\n]*\]?|[^\s&;\"'<>]+", re.DOTALL)
_ELEMENT_VALUE = re.compile(r"(?:<!\[CDATA\[[^<>]{1,8192}>|[^<>]{1,8192})(?=</)")
_REST_OF_LINE = re.compile(r"[^\r\n\"']+")

Values = Callable[[re.Match[str]], re.Match[str] | None]


class Prose:
    """Takes secrets out of text that is nothing but text."""

    def __init__(self, names: SecretNames, replacement: str) -> None:
        self._names, self._replacement = names, replacement

    def clean(self, text: str) -> str:
        text = _PRIVATE_KEY.sub(lambda match: self._replacement, text)
        text = _ISSUED_KEY.sub(lambda match: self._replacement, text)
        for names, values in (
            (_MEMBER, _MEMBER_VALUE),
            (_LABELLED, _MEMBER_VALUE),
            (_PAIR, _MEMBER_VALUE),
            (_OPTION, _WORD_VALUE),
            (_ELEMENT, _ELEMENT_VALUE),
        ):
            text = self._hide(text, names, partial(self._value, values=values))
        text = _SCHEME.sub(self._hide_credentials, text)
        text = _USER_INFO.sub(self._hide_user_info, text)
        return self._hide(text, _ASSIGNED, self._assigned_value)

    def _hide(self, text: str, names: re.Pattern[str], value_of: Values) -> str:
        pieces, end = [], 0
        for named in names.finditer(text):
            if named.start() < end:
                continue
            if value := value_of(named):
                mark = named["mark"] or ""
                pieces += [text[end : named.end()], mark, self._replacement, mark]
                end = value.end()
        return "".join(pieces) + text[end:]

    def _value(self, named: re.Match[str], values: re.Pattern[str]) -> re.Match[str] | None:
        if not self._names.is_secret(named["name"]):
            return None
        value = values.match(named.string, named.end())
        return None if value is None or _says_nothing(named["name"], value.group()) else value

    def _assigned_value(self, named: re.Match[str]) -> re.Match[str] | None:
        """What stands after `name=`, `name = ` or `name: `."""
        name, text = named["name"], named.string
        if named["sign"].endswith("="):
            before = text[named.start() - 1 : named.start()]
            if before in ("?", "&") and _signs_an_address(name):
                return _WORD_VALUE.match(text, named.end())
        elif name.lower().endswith(_HEADERS):
            return _REST_OF_LINE.match(text, named.end())
        elif _is_verb(named) or not (named["space"] or text.startswith(("'", '"', "\\"), named.end())):
            return None
        return self._value(named, _WORD_VALUE)

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


def _says_nothing(name: str, value: str) -> bool:
    """`password=None`, `password: str`, `tokens: 12`."""
    word = value.strip("\\\"',;|()[]{} \t\r\n").lower()
    is_quoted = value.lstrip("\\")[:1] in ("'", '"')
    return not word or (not is_quoted and (word in _NOTHING or ("tokens" in name.lower() and word.isdecimal())))


def _signs_an_address(name: str) -> bool:
    return name.lower() == "key" or name.lower().endswith(("sig", "signature"))


def _is_verb(named: re.Match[str]) -> bool:
    """Tells `all tests pass: 12` from `pass: hunter2`."""
    before = named.string[max(0, named.start() - 4) : named.start()].rstrip(" \t")
    return named["name"].lower() == "pass" and before[-1:].isalnum()


def _is_basic_credentials(credentials: str) -> bool:
    """Tells `Basic dXNlcjpwYXNz` from `Basic usage`."""
    if not credentials.isalpha() or not (credentials.islower() or credentials.istitle() or credentials.isupper()):
        return True
    try:
        return b":" in b64decode(credentials, validate=True)
    except (BadBase64, ValueError):
        return False
