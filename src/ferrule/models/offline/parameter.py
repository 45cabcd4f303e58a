"""One parameter of a tool, and what kind of value it asks for.

The kind is read from type, format, enum, name and description. Names of kinds are names of things in the world (a time
zone, a path, a place), so they hold for any tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ferrule.models.offline.vocabulary import is_generic
from ferrule.search.words import terms_of
from ferrule.spec import JsonSchema
from ferrule.validation.schema_walk import branches, properties_of, resolve, types_of

_FORMATS = {
    "date": "date",
    "date-time": "datetime",
    "time": "time",
    "uri": "url",
    "url": "url",
    "iri": "url",
    "email": "email",
    "idn-email": "email",
    "uuid": "pattern",
    "ipv4": "pattern",
}
_BY_NAME: list[tuple[str, str]] = [
    (r"time ?zone|\btz\b|时区", "zone"),
    (r"\bexpr(ession)?\b|\bformula\b|\barithmetic\b|表达式|算式", "expression"),
    (r"\b(ur[li]|link|href|web ?(site|page)|endpoint)\b|网址|链接", "url"),
    (r"\be ?-?mails?\b|邮箱|邮件地址", "email"),
    (r"\b(file ?)?(path|name of file)\b|\bfile( ?name)?\b|\b(directory|dir|folder)\b|路径|文件名|目录|文件夹", "path"),
    (r"\bdate ?time\b|\btimestamp\b", "datetime"),
    (r"\bdate\b|\bday\b|日期", "date"),
    (r"\btime\b|时间|时刻", "time"),
    (r"\bcurrency\b|货币|币种", "currency"),
    (r"\b(language|lang|locale)\b|语言|语种", "language"),
    (
        r"\b(city|location|place|town|country|region|area|destination|origin|airport)\b|城市|地点|地区|位置|国家|地名",
        "place",
    ),
    (
        r"\b(id|identifier|number|no|code|sku|ticker|symbol|isbn|ip|key|zip|hash|username|user|login)\b|编号|代码|单号",
        "id",
    ),
]
_BY_DESCRIPTION: list[tuple[str, str]] = [
    (r"\btime ?zone\b|\bIANA\b|时区", "zone"),
    (r"\b(arithmetic|math\w*) expression\b|\bexpression to (be )?(eval|calc|comp)|表达式|算式", "expression"),
    (r"\be-?mail address|邮箱", "email"),
    (r"^\W*(the |a )?(full |complete )?url\b|网址", "url"),
    (r"%Y.*%H|YYYY.*HH|date and time|date-time|日期时间", "datetime"),
    (r"%Y-|YYYY|\bdate\b|日期", "date"),
    (r"\bHH:MM|%H:%M", "time"),
    (r"\b(file|folder|directory) ?path\b|\bpath (to|of)\b|文件路径", "path"),
    (r"^\W*(the |a )?(name of (the |a )?)?(city|town|place|location|country)\b|城市", "place"),
    (r"^\W*(the |a )?(target |source )?language\b|目标语言|源语言", "language"),
    (r"\bcurrency code\b|货币代码", "currency"),
]
_FROM = frozenset(
    ["from", "source", "origin", "src", "departure", "start", "begin", "base", "old", "original", "since", "源", "原"]
)
_TO = frozenset(
    [
        "to",
        "target",
        "destination",
        "dest",
        "recipient",
        "receiver",
        "arrival",
        "end",
        "new",
        "into",
        "dst",
        "until",
        "目标",
        "收件人",
    ]
)
TITLES = frozenset(["title", "name", "subject", "label", "heading", "caption", "headline", "topic"])
BODIES = frozenset(
    [
        "text",
        "message",
        "body",
        "content",
        "note",
        "comment",
        "description",
        "msg",
        "reminder",
        "task",
        "item",
        "prompt",
        "input",
    ]
)
QUERIES = frozenset(["query", "q", "keyword", "keywords", "search", "term", "terms", "question", "phrase", "topic"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """What a tool asks for under one name."""

    name: str
    schema: JsonSchema
    root: JsonSchema
    kind: str
    required: bool
    words: tuple[str, ...]
    """The words of its name."""
    role: str
    """`from`, `to` or nothing: which of two values of one kind it takes."""

    @property
    def description(self) -> str:
        return str(self.schema.get("description") or "")


def parameters_in(schema: Any) -> list[Parameter]:
    """The parameters of a function schema, those required first."""
    root = schema if isinstance(schema, dict) else {}
    here = resolve(root, root)
    required = here.get("required")
    names = required if isinstance(required, list) else []
    found = [_parameter(name, said, root, name in names) for name, said in properties_of(here).items()]
    return sorted(found, key=lambda parameter: not parameter.required)


def item_of(parameter: Parameter) -> Parameter:
    """What one item of a list is, as a parameter of its own."""
    return _parameter(parameter.name, parameter.schema.get("items") or {}, parameter.root, parameter.required)


def _parameter(name: str, said: Any, root: JsonSchema, required: bool) -> Parameter:
    whole = resolve(said, root)
    options = [option for option in branches(whole, root) if types_of(option) != ["null"]] or [{}]
    # A description beside anyOf holds for what is chosen.
    schema = {**{k: v for k, v in whole.items() if k in ("description", "default", "examples")}, **options[0]}
    spaced = _spaced(name)
    words = tuple(spaced.split())
    role = "from" if _FROM & {*words} else "to" if _TO & {*words} else ""
    return Parameter(
        name=name,
        schema=schema,
        root=root,
        kind=_kind(spaced, schema),
        required=required,
        words=words,
        role=role,
    )


def _kind(name: str, schema: Mapping[str, Any]) -> str:
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return "enum"
    types = [kind for kind in types_of(dict(schema)) if kind != "null"]
    kind = types[0] if types else "object" if "properties" in schema else "string"
    if kind in ("integer", "number"):
        return "number"
    if kind in ("boolean", "array", "object"):
        return kind
    said_format = schema.get("format")
    if isinstance(said_format, str) and said_format in _FORMATS:
        return _FORMATS[said_format]
    return _kind_of_text(name, str(schema.get("description") or ""), schema)


def _kind_of_text(name: str, description: str, schema: Mapping[str, Any]) -> str:
    by_description = next((k for p, k in _BY_DESCRIPTION if re.search(p, description, re.IGNORECASE)), None)
    by_name = next((k for p, k in _BY_NAME if re.search(p, name, re.IGNORECASE)), None)
    if by_name in ("date", "time") and by_description in ("date", "time", "datetime"):
        return by_description
    if by_name == "date" and re.search(r"\btime\b", name):
        return "datetime"
    if by_name not in (None, "id"):
        return str(by_name)
    if isinstance(schema.get("pattern"), str) and by_description in (None, "currency"):
        return "pattern"
    if {*name.split()} & QUERIES and by_description == "date":
        return "text"
    return by_description or by_name or "text"


def _spaced(name: str) -> str:
    return re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)).strip().lower()


def said_words(parameter: Parameter) -> list[str]:
    """The words of its name that say something, as the search has them."""
    return [term for term in terms_of(" ".join(parameter.words)) if not is_generic(term)]
