"""Answers without a language model: the result of a call as a sentence or a list, in the language of the question."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from ferrule.core.patterns import lazy_pattern
from ferrule.texts.language import contains_chinese

_ANSWERS: Final[dict[str, tuple[str, str]]] = {
    "file_processor__write": ("Wrote {path} ({size:bytes}).", "已写入 {path}（{size:bytes}）。"),
    "file_processor__overwrite": ("Replaced {path} ({size:bytes}).", "已覆盖 {path}（{size:bytes}）。"),
    "file_processor__append": ("Added it to {path} (now {size:bytes}).", "已追加到 {path}（现在 {size:bytes}）。"),
    "file_processor__copy": ("Copied {path} to {to}.", "已把 {path} 复制到 {to}。"),
    "file_processor__move": ("Moved {path} to {to}.", "已把 {path} 移动到 {to}。"),
    "file_processor__delete": ("Deleted {path}.", "已删除 {path}。"),
    "lines": ("{path} has {lines:line}.", "{path} 有 {lines} 行。"),
    "size": ("{path} has {size:bytes}.", "{path} 有 {size:bytes}。"),
    "date": ("Today is {weekday}, {time:day}.", "今天是{time:day}，{weekday}。"),
    "clock": ("It is {time:clock}.", "现在是 {time:clock}。"),
    "web_scraper": ("{text}", "{text}"),
    "summarize": ("{summary}", "{summary}"),
}
"""What is answered, by action or by the key of a phrase, in English and Chinese."""
_LISTS: Final[dict[str, tuple[str, str, tuple[str, str], tuple[str, str]]]] = {
    "list_workspace_files": (
        "files",
        "{path}",
        ("There {count:is} {count:entry} here:", "这里有 {count} 项："),
        ("There are no files here.", "这里没有文件。"),
    ),
    "names": (
        "files",
        "{item}",
        ("{count:file} found:", "找到 {count} 个文件："),
        ("There is no such file.", "没有这样的文件。"),
    ),
    "search_files": (
        "matches",
        "{path}, line {line}: {text}",
        ("{count:line} found:", "找到 {count} 行："),
        ("Nothing was found.", "没有找到。"),
    ),
}
_LISTS["matches"] = _LISTS["search_files"]
"""Results that are lists: the field, the form of an item, the heading, and the answer for an empty list."""
_PLURALS: Final = {"entry": "entries", "bytes": "bytes"}
_MAIN_FIELDS: Final = tuple("result answer text output summary value content message formatted body".split())
_INTERNAL_FIELDS: Final = frozenset({"untrusted", "note", "made_by", "headers", "encoding", "status_code"})
_MAX_ITEMS: Final = 50
_MAX_DECIMALS: Final = 4
_FUNCTION: Final = lazy_pattern(r"\b(?:pi|[a-z]+[0-9]*(?=\())")
_ROUNDED: Final = lazy_pattern(r"round\(.*, ?\d+\)\Z")
"""Here the question says how many decimals it wants."""
_FIELD: Final = lazy_pattern(r"\{(\w+)(?::(\w+))?\}")


def answer_sentence(
    action: str, arguments: Mapping[str, Any], result: str, *, language: str, key: str = "", subject: str = ""
) -> str:
    """Return the result of a call as a person would say it.

    `key` names the answer if the question asked for one part of the result; `subject` is what a number is about.
    """
    value = parse_json(result)
    chinese = language == "zh"
    fields = {**arguments, **value} if isinstance(value, dict) else dict(arguments)
    for name in filter(None, (key, action)):
        sentence = _fill_list(name, fields, chinese) or _fill_sentence(name, fields, chinese)
        if sentence:
            return sentence.strip()
    main = _main_value(value if value is not None else result.strip())
    if isinstance(main, int | float) and not isinstance(main, bool):
        expression = str(arguments.get("expression") or "")
        is_exact = isinstance(main, float) and not main.is_integer() and _ROUNDED.match(expression)
        digits = repr(main) if is_exact else number_as_text(main)
        return _number_sentence(subject or expression, main, digits, chinese=chinese)
    return value_as_text(main)


def main_text(result: str) -> str:
    """Return the part of a result that a later step may refer to, as text."""
    value = parse_json(result)
    main = _main_value(value if value is not None else result.strip())
    return str(main) if isinstance(main, int | float) else value_as_text(main)


def error_text(result: str) -> str:
    """Return the error message of a failed call, without what it advises a model."""
    result = result.partition("\nTry instead: ")[0]
    value = parse_json(result)
    message = value.get("error") or value.get("message") if isinstance(value, dict) else None
    return value_as_text(message if message else result)


def _number_sentence(subject: str, value: float, text: str, *, chinese: bool) -> str:
    """`15% of 80 is 12.`; what is after `|` in the subject follows the number."""
    subject, _, unit = subject.partition("|")
    is_rounded = isinstance(value, float) and float(text) != value
    if not subject:
        return f"结果是 {text}。" if chinese else f"The result is {text}."
    if contains_chinese(subject):
        return f"{subject}{'约' if is_rounded else ''}是 {text}{unit}。"
    if not unit and not re.search(r"[A-Za-z]{2}", _FUNCTION.sub("", subject)):
        return f"{subject} {'≈' if is_rounded else '='} {text}"
    return f"{subject[0].upper()}{subject[1:]} is {'about ' if is_rounded else ''}{text}{unit}."


def number_as_text(value: float) -> str:
    """At most four decimals, or four significant digits of a number below 1."""
    if isinstance(value, int) or value.is_integer():
        return str(int(value)) if abs(value) < 1e15 or isinstance(value, int) else repr(value)
    rounded = round(value, _MAX_DECIMALS)
    return f"{rounded:.{_MAX_DECIMALS}f}".rstrip("0").rstrip(".") if abs(value) >= 0.1 else f"{value:.{_MAX_DECIMALS}g}"


def value_as_text(value: Any, indent: str = "") -> str:
    """Return a value as plain text: lists and objects as lines."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number_as_text(value)
    if isinstance(value, Mapping):
        fields = {name: item for name, item in value.items() if name not in _INTERNAL_FIELDS and item not in (None, "")}
        lines = [f"{indent}- {str(name).replace('_', ' ')}: {_nested(item, indent)}" for name, item in fields.items()]
        return "\n".join(lines)
    if isinstance(value, Sequence):
        lines = [f"{indent}- {_item_as_text(item)}" for item in value[:_MAX_ITEMS]]
        more = [f"{indent}- … ({len(value) - _MAX_ITEMS} more)"] if len(value) > _MAX_ITEMS else []
        return "\n".join(lines + more)
    return ""


def _nested(value: Any, indent: str) -> str:
    if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(i, Mapping | list) for i in value)):
        return "\n" + value_as_text(value, indent + "  ")
    return ", ".join(map(value_as_text, value)) if isinstance(value, list) else value_as_text(value)


def _item_as_text(item: Any) -> str:
    if not isinstance(item, Mapping):
        return value_as_text(item)
    fields = {name: value for name, value in item.items() if name not in _INTERNAL_FIELDS and value not in (None, "")}
    return ", ".join(f"{str(name).replace('_', ' ')} {_nested(value, '  ')}" for name, value in fields.items())


def _main_value(value: Any) -> Any:
    """Return the part of a result that answers a question."""
    if not isinstance(value, dict):
        return value
    main = next((value[name] for name in _MAIN_FIELDS if value.get(name) not in (None, "")), None)
    if main is None and len(value) == 1:
        main = next(iter(value.values()))
    return _main_value(main) if isinstance(main, dict) and len(main) == 1 else value if main is None else main


def _fill_sentence(name: str, fields: Mapping[str, Any], chinese: bool) -> str:
    template = _ANSWERS.get(name, ("", ""))[chinese]
    if any(match[1] not in fields for match in _FIELD.finditer(template)):
        return ""
    return _FIELD.sub(lambda match: _format_field(fields[match[1]], match[2], chinese), template)


def _fill_list(name: str, fields: Mapping[str, Any], chinese: bool) -> str:
    if name not in _LISTS:
        return ""
    field, form, heading, empty = _LISTS[name]
    items = fields.get(field)
    if not isinstance(items, list):
        return ""
    if not items:
        return empty[chinese]
    rows = [item if isinstance(item, dict) else {"item": item} for item in items]
    lines = ["- " + _FIELD.sub(lambda match: _nested(row.get(match[1], ""), ""), form) for row in rows[:_MAX_ITEMS]]  # noqa: B023
    more = [f"- … (+{len(items) - _MAX_ITEMS})"] if len(items) > _MAX_ITEMS else []
    heading_fields = {**fields, "count": len(items)}
    title = _FIELD.sub(
        lambda match: _format_field(heading_fields.get(match[1], ""), match[2], chinese), heading[chinese]
    )
    return "\n".join([title, *lines, *more])


def _format_field(value: Any, style: str | None, chinese: bool) -> str:
    if style is None:
        document = parse_json(value) if isinstance(value, str) and value.lstrip().startswith(("{", "[")) else None
        return value_as_text(value if document is None else document)
    if style == "is":
        return "is" if value == 1 else "are"
    if style == "bytes" and chinese:
        return f"{value} 字节"
    if style in ("bytes", "line", "file", "entry"):
        return f"{value} {style.removesuffix('s') if value == 1 else _PLURALS.get(style, style + 's')}"
    at = datetime.fromisoformat(str(value))
    if style == "clock":
        return f"{at:%H:%M}"
    return f"{at.year}年{at.month}月{at.day}日" if chinese else f"{at.day} {at:%B %Y}"


def parse_json(text: str) -> Any:
    """Return the value that a text is; None if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None
