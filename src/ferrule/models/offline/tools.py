"""The tools of a request, and the kinds of values that their parameters take.

A kind (`url`, `path`, `place`, …) is derived from type, format, enum, name and description, so that it works for any
tool. The tools of a request are prepared once and cached: a turn costs the same with ten tools and with a thousand.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ferrule.catalog.search import SearchIndex
from ferrule.catalog.search.terms import extract_terms, read_translations
from ferrule.catalog.tags import DEFAULT_TABLE, extract_tags
from ferrule.core.json_schema import allowed_types, list_branches, properties_of, required_names, resolve_schema
from ferrule.core.messages import Schema
from ferrule.core.names import decode_model_name
from ferrule.core.patterns import lazy_pattern
from ferrule.core.schema_limits import BoundedValidator
from ferrule.core.spec import JsonSchema, Tool, ToolCapability, ToolSpec
from ferrule.errors import SpecError
from ferrule.models.offline.values import significant_terms
from ferrule.texts.language import begins_with_cjk

_MAX_CACHED_LISTS = 4
_HEAD_TERM_COUNT = 6
"""The first terms of a description say what the tool does, the others how."""
CONTROL_TOOLS = frozenset({"finish_task", "ask_user", "search_tools", "call_tool"})
"""Tools by which a model talks to its agent or looks for other tools; no question asks for them."""

_KIND_BY_FORMAT = {
    "date": "date",
    "date-time": "date",
    "time": "date",
    "uri": "url",
    "url": "url",
    "iri": "url",
    "email": "email",
    "idn-email": "email",
    "uuid": "pattern",
    "ipv4": "pattern",
}
_KIND_PATTERNS_OF_NAMES = [
    (r"time ?zone|\btz\b|时区", "zone"),
    (r"\bexpr(ession)?\b|\bformula\b|\barithmetic\b|表达式|算式", "expression"),
    (r"\b(ur[li]|link|href|web ?(site|page)|endpoint)\b|网址|链接", "url"),
    (r"\be ?-?mails?\b|邮箱|邮件地址", "email"),
    (r"\b(file ?)?(path|name of file)\b|\bfile( ?name)?\b|\b(directory|dir|folder)\b|路径|文件名|目录|文件夹", "path"),
    (r"\bdate\b|\bday\b|\btime\b|日期|时间", "date"),
    (r"\b(currency|language|lang|locale)\b|货币|币种|语言|语种", "code"),
    (
        r"\b(city|location|place|town|country|region|area|destination|origin|airport)\b|城市|地点|地区|位置|国家|地名",
        "place",
    ),
    (
        r"\b(id|identifier|number|no|code|sku|ticker|symbol|isbn|ip|key|zip|hash|username|user|login|selector|xpath)\b"
        r"|编号|代码|单号",
        "id",
    ),
]
_KIND_PATTERNS_OF_DESCRIPTIONS = [
    (r"\btime ?zone\b|\bIANA\b|时区", "zone"),
    (r"\b(arithmetic|math\w*) expression\b|\bexpression to (be )?(eval|calc|comp)|表达式|算式", "expression"),
    (r"\be-?mail address|邮箱", "email"),
    (r"^\W*(the |a )?(full |complete )?url\b|网址", "url"),
    (r"%Y-|YYYY|\bdate\b|日期", "date"),
    (r"\b(file|folder|directory) ?path\b|\bpath (to|of)\b|^\W*the (new )?path\b|文件路径", "path"),
    (r"^\W*(the |a )?(name of (the |a )?)?(city|town|place|location|country)\b|城市", "place"),
]
_KIND_BY_NAME = [(lazy_pattern(pattern, re.IGNORECASE), kind) for pattern, kind in _KIND_PATTERNS_OF_NAMES]
_KIND_BY_DESCRIPTION = [
    (lazy_pattern(pattern, re.IGNORECASE), kind) for pattern, kind in _KIND_PATTERNS_OF_DESCRIPTIONS
]
_FROM_WORDS = frozenset("from source origin src departure start begin base old original since 源 原".split())
_TO_WORDS = frozenset(
    "to target destination dest recipient receiver arrival end new into dst until 目标 收件人".split()
)
TITLE_WORDS = frozenset("title name subject label heading caption headline topic".split())
BODY_WORDS = frozenset("text message body content note comment description msg reminder task item prompt input".split())
QUERY_WORDS = frozenset("query q keyword keywords search term terms question phrase topic".split())


@dataclass(frozen=True, kw_only=True)
class OfferedParameter:
    name: str
    schema: JsonSchema
    root: JsonSchema
    kind: str
    is_required: bool
    words: tuple[str, ...]
    """The words of its name."""
    role: str
    """`from`, `to` or empty: which of two values of one kind it takes."""

    @property
    def description(self) -> str:
        return str(self.schema.get("description") or "")

    def convert(self, value: Any) -> Any:
        """Return the value in the form that the schema asks for; None if it does not accept the value."""
        if self.kind == "number" and self.schema.get("type") == "integer":
            value = int(value) if float(value).is_integer() else None
        is_accepted = value is not None and (self._validator is None or self._validator(value))
        return value if is_accepted else None

    @cached_property
    def _validator(self) -> Any:
        return _build_validator(self.schema)


def _read_parameter(name: str, schema: Any, root: JsonSchema, is_required: bool) -> OfferedParameter:
    whole = resolve_schema(schema, root)
    options = [option for option in list_branches(whole, root) if allowed_types(option) != ["null"]] or [{}]
    # A description beside anyOf belongs to every option.
    chosen = {**{k: v for k, v in whole.items() if k in ("description", "default", "examples")}, **options[0]}
    spaced = re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)).strip().lower()
    words = tuple(spaced.split())
    return OfferedParameter(
        name=name,
        schema=chosen,
        root=root,
        kind=_derive_kind(spaced, chosen),
        is_required=is_required,
        words=words,
        role="from" if _FROM_WORDS & {*words} else "to" if _TO_WORDS & {*words} else "",
    )


def _derive_kind(name: str, schema: Mapping[str, Any]) -> str:
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return "enum"
    types = [kind for kind in allowed_types(dict(schema)) if kind != "null"]
    kind = types[0] if types else "object" if "properties" in schema else "string"
    if kind in ("integer", "number"):
        return "number"
    if kind in ("boolean", "array", "object"):
        return kind
    format = schema.get("format")
    if isinstance(format, str) and format in _KIND_BY_FORMAT:
        return _KIND_BY_FORMAT[format]
    description = str(schema.get("description") or "")
    by_description = next((kind for pattern, kind in _KIND_BY_DESCRIPTION if pattern.search(description)), None)
    by_name = next((kind for pattern, kind in _KIND_BY_NAME if pattern.search(name)), None)
    if by_name is not None and by_name != "id":
        return by_name
    if isinstance(schema.get("pattern"), str) and by_description is None:
        return "pattern"
    if {*name.split()} & QUERY_WORDS and by_description == "date":
        return "text"
    return by_description or by_name or "text"


def _build_validator(schema: JsonSchema) -> Callable[[Any], bool] | None:
    """Return the check of a value; None for a schema that is invalid, or that refers to other documents."""
    try:
        return BoundedValidator(schema).is_valid
    except (ValueError, SpecError):
        return None


@dataclass(frozen=True, eq=False)
class OfferedTool:
    name: str
    description: str
    schema: dict[str, Any]
    """Its parameters, as JSON Schema."""

    @cached_property
    def display_name(self) -> str:
        """Return the name of the tool as its author wrote it, without the encoding for models."""
        return decode_model_name(self.name)

    def accepts(self, arguments: Any) -> bool:
        """Return whether arguments follow its schema; a tool whose schema is invalid accepts nothing."""
        return self._validator is not None and self._validator(arguments)

    @cached_property
    def _validator(self) -> Any:
        return _build_validator(self.schema)

    @cached_property
    def tags(self) -> frozenset[str]:
        return frozenset(extract_tags(self.display_name.replace("_", " "), self.description))

    @cached_property
    def parameters(self) -> list[OfferedParameter]:
        """Return the parameters, required ones first."""
        root = resolve_schema(self.schema, self.schema)
        required = required_names(root)
        parameters = [
            _read_parameter(name, inner, self.schema, name in required) for name, inner in properties_of(root).items()
        ]
        return sorted(parameters, key=lambda parameter: not parameter.is_required)

    def takes(self, kind: str) -> bool:
        """Return whether it has a parameter of a kind."""
        return any(parameter.kind == kind for parameter in self.parameters)

    @cached_property
    def name_terms(self) -> frozenset[str]:
        return frozenset(significant_terms(self.display_name))

    @cached_property
    def terms(self) -> frozenset[str]:
        """Return the terms of its name and description."""
        return frozenset(extract_terms(self.display_name)) | frozenset(extract_terms(self.description))

    @cached_property
    def request_terms(self) -> frozenset[str]:
        """Return the words by which one asks for the tool, and which are no argument then."""
        return frozenset([*extract_terms(self.display_name), *extract_terms(self.description)[:_HEAD_TERM_COUNT]])

    @cached_property
    def parameter_terms(self) -> frozenset[str]:
        return frozenset(extract_terms(" ".join(f"{p.name} {p.description}" for p in self.parameters)))

    @cached_property
    def chinese_words(self) -> dict[str, str]:
        """Chinese words that ask for the tool, the longest first, and the term of the tool that each stands for."""
        words = {term: term for term in self.terms if begins_with_cjk(term)}
        for word, tags in DEFAULT_TABLE.words.items():
            if begins_with_cjk(word) and self.tags.intersection(
                tags[:1]
            ):  # a browser is on the web, but does not search
                same = (term for term in self.name_terms if {*DEFAULT_TABLE.tags_in([term])}.intersection(tags))
                words.setdefault(word, next(same, word))
        for word, terms in read_translations().items():
            if len(word) > 1 and (term := next((term for term in terms if term in self.terms), "")):
                words[word] = term
        return dict(sorted(words.items(), key=lambda pair: -len(pair[0])))


class OfferedTools:
    def __init__(self, schemas: Sequence[Schema]) -> None:
        self.by_name: dict[str, OfferedTool] = {}
        self._index = SearchIndex()
        for tool in map(_read_tool, schemas):
            if tool is not None and tool.name not in self.by_name and tool.name not in CONTROL_TOOLS:
                self.by_name[tool.name] = tool
                self._index.add(_to_registry_tool(tool))

    @cached_property
    def calculators(self) -> list[OfferedTool]:
        """Tools that take an arithmetic expression: a question may consist of nothing else."""
        return [tool for tool in self.by_name.values() if tool.takes("expression")]

    def search(self, text: str, limit: int = 8) -> list[OfferedTool]:
        """Return the tools that fit a text best. The tags of its words are searched for too."""
        tags = " ".join(DEFAULT_TABLE.tags_in([text]))
        return [self.by_name[hit.tool.id] for hit in self._index.search(f"{text} {tags}", limit)]


class OfferedToolsCache:
    """The last lists of tools, prepared."""

    def __init__(self) -> None:
        self._entries: deque[tuple[list[Schema], OfferedTools]] = deque(maxlen=_MAX_CACHED_LISTS)

    def get(self, schemas: Sequence[Schema]) -> OfferedTools:
        # Comparing lists of the same objects is fast; a list that is created again each turn is compared by content.
        tools = next((tools for cached, tools in self._entries if cached == list(schemas)), None)
        if tools is None:
            tools = OfferedTools(schemas)
            self._entries.append((list(schemas), tools))
        return tools


def _read_tool(schema: Any) -> OfferedTool | None:
    function = schema.get("function", schema) if isinstance(schema, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"].strip():
        return None
    parameters = function.get("parameters")
    return OfferedTool(
        name=function["name"],
        description=str(function.get("description") or ""),
        schema=parameters if isinstance(parameters, dict) else {},
    )


def _to_registry_tool(tool: OfferedTool) -> Tool:
    """Return the tool in the form that the search index takes."""
    capability = ToolCapability(
        name=tool.name, description=tool.description, parameters={"type": "object", **tool.schema}
    )
    spec = ToolSpec(
        tool_id=tool.name,
        name=tool.display_name,
        description=tool.description,
        capabilities=[capability],
        tags=sorted(tool.tags),
    )
    return Tool(spec=spec, handler="")
