"""The text of docs/settings.md: every section and key of `ferrule.toml`, from the classes that read it."""

import ast
import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from inspect import getsource
from textwrap import dedent
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ferrule.config import SECTIONS, ToolsSection
from ferrule.kinds.openapi.tool import OpenApiEntry
from ferrule.policy.budgets import Budget
from ferrule_tools.ai import AskModelConfig, SummarizeConfig
from ferrule_tools.browser import BrowserConfig
from ferrule_tools.data import DataAnalyzerConfig
from ferrule_tools.database import DatabaseQueryConfig
from ferrule_tools.notify import NotifyConfig
from ferrule_tools.python import PythonExecutorConfig
from ferrule_tools.web.api_caller import ApiCallerConfig
from ferrule_tools.web.search_web import SearchConfig
from ferrule_tools.web.web_scraper import ScraperConfig

INTRODUCTION = """\
# Every setting

Each section and key of `ferrule.toml`. This page is generated from the code; [Configuration](configuration.md)
explains the file with an example. A key with a single value can also be set by a variable, which wins over the file:
`FERRULE_STORE_URL` is `url` in `[store]`."""

PLUGIN_SECTIONS: dict[str, type] = {
    "data_analyzer": DataAnalyzerConfig,
    "database_query": DatabaseQueryConfig,
    "search_web": SearchConfig,
    "web_scraper": ScraperConfig,
    "api_caller": ApiCallerConfig,
    "browser_navigator": BrowserConfig,
    "python_executor": PythonExecutorConfig,
    "notify": NotifyConfig,
    "ask_model": AskModelConfig,
    "summarize": SummarizeConfig,
}
"""The sections `[tools.NAME]` of the bundled tools."""

NOT_IN_FILES = {"accepted_servers", "for_untrusted_folder", "openapi", "plugins", "origin", "jitter"}
"""Fields that the program sets itself."""

WORDS: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    dict: "table",
    Mapping: "table",
    Any: "any",
}


def settings_page() -> str:
    parts = [INTRODUCTION]
    for name, section_type in SECTIONS.items():
        parts += section_parts(f"[{name}]", name, section_type)
    parts += section_parts("[tools]", "tools", ToolsSection)
    for name, section_type in PLUGIN_SECTIONS.items():
        parts += section_parts(f"[tools.{name}]", f"tools.{name}", section_type)
    parts += section_parts("[[openapi]]", "openapi", OpenApiEntry)
    parts += section_parts("[[budgets]]", "budgets", Budget)
    return "\n\n".join(parts) + "\n"


def section_parts(title: str, path: str, section_type: type) -> list[str]:
    """The heading, description and table of one section, then those of the sections inside it."""
    texts, inner, rows = field_texts(section_type), [], []
    hints = typing.get_type_hints(section_type)
    for name, default in fields_of(section_type):
        if name in NOT_IN_FILES:
            continue
        for inner_title, inner_type in inner_sections(path, name, hints[name]):
            inner += section_parts(inner_title, inner_title.strip("[]"), inner_type)
        rows.append(f"| `{name}` | {type_text(hints[name])} | {default} | {texts.get(name, '')} |")
    table = "\n".join(["| key | type | default | |", "| --- | --- | --- | --- |", *rows])
    return [f"## `{title}`", *([text] if (text := description_of(section_type)) else []), table, *inner]


def description_of(section_type: type) -> str:
    text = " ".join((section_type.__doc__ or "").split())
    return "" if text.startswith(f"{section_type.__name__}(") else text


def fields_of(section_type: type) -> Iterator[tuple[str, str]]:
    """The names of the fields, each with the text of its default value."""
    if issubclass(section_type, BaseModel):
        for name, info in section_type.model_fields.items():
            is_required = info.default is PydanticUndefined and info.default_factory is None
            yield name, "required" if is_required else value_text(info.get_default(call_default_factory=True))
        return
    for each in dataclasses.fields(section_type):
        if each.default_factory is not dataclasses.MISSING:
            yield each.name, value_text(each.default_factory())
        else:
            yield each.name, "required" if each.default is dataclasses.MISSING else value_text(each.default)


def value_text(value: Any) -> str:
    if value is None or dataclasses.is_dataclass(value) or isinstance(value, BaseModel):
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, frozenset | set):
        value = sorted(value)
    if isinstance(value, float):
        return f"`{value:g}`" if value < 1e15 else f"`{value}`"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"`{text}`" if len(text) <= 60 else "see the description"


def field_texts(section_type: type) -> dict[str, str]:
    """What the class says below each field."""
    tree = ast.parse(dedent(getsource(section_type))).body[0]
    texts = {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for statement, text in zip(body, body[1:], strict=False):
        match statement, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(description))):
                texts[name] = " ".join(description.split()).replace("|", r"\|")
    return texts


def inner_sections(path: str, name: str, hint: Any) -> Iterator[tuple[str, type]]:
    if is_section(hint):
        yield f"[{path}.{name}]", hint
        return
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (dict, Mapping) or (origin is not None and isinstance(origin, type) and issubclass(origin, Mapping)):
        for option in (arguments[1], *typing.get_args(arguments[1])):
            if is_section(option):
                yield f"[{path}.{name}.NAME]", option
    elif origin in (list, tuple):
        if is_section(arguments[0]):
            yield f"[[{path}.{name}]]", arguments[0]
    elif origin in (types.UnionType, typing.Union):
        for option in arguments:
            yield from inner_sections(path, name, option)


def is_section(hint: Any) -> bool:
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, BaseModel))


def type_text(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(f"`{each}`" for each in arguments)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_text(each) for each in arguments if each is not types.NoneType)
    if origin in (list, tuple, frozenset, set) or (origin is not None and "Sequence" in str(origin)):
        return f"list of {type_text(arguments[0])}" if arguments else "list"
    if is_section(hint):
        return "table"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(f"`{each.value}`" for each in hint)
    return WORDS.get(origin or hint) or ("table" if "Mapping" in str(origin or hint) else "text")
