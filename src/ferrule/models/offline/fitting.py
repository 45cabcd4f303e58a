"""Whether a value is one that a parameter takes, how it must be written, and which of several it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, time
from operator import ge, gt, le, lt
from typing import Any

from ferrule.models.offline.moments import Moment
from ferrule.models.offline.parameter import Parameter
from ferrule.models.offline.reading import Found
from ferrule.search.words import terms_of

_BEHIND = {
    "from": r"(?:\bfrom|\bof|从|由)\s*\Z",
    "to": r"(?:\bto|\binto|\bin|\btowards|到|成|为|给)\s*\Z",
}
_UNIT = re.compile(r"\s*-?([A-Za-z]+|[\u4e00-\u9fff]{1,2})")
_BY_NAME, _BY_PREPOSITION, _BY_UNIT = 4, 3, 2
_STRFTIME = re.compile(r"%[YymdHIMSp](?:[-/:. T]?%[YymdHIMSp])+")
_TWO_LETTERS = re.compile(r"\b(?:ISO|codes?)\b|代码|['\"‘“(](?:en|fr|de|es|zh|ja)['\"’”),]", re.IGNORECASE)


def nearness(found: Found, parameter: Parameter, text: str) -> int:
    """How clearly a text says that a value is meant for a parameter; 0 = it does not."""
    before, after = text[: found.start], text[found.end :]
    if _named_before(parameter, before):
        return _BY_NAME
    if parameter.role and re.search(_BEHIND[parameter.role], before, re.IGNORECASE):
        return _BY_PREPOSITION
    unit = _UNIT.match(after)
    if unit and parameter.kind == "number":
        said = {*terms_of(parameter.name), *terms_of(parameter.description)}
        if {*terms_of(unit[1])} & said or (len(unit[1]) <= 2 and unit[1] in parameter.description):
            return _BY_UNIT
    return 0


def with_name(found: Found, parameter: Parameter, text: str) -> Found:
    """A value together with the parameter's name beside it, which is no word of the question then."""
    named = _named_before(parameter, text[: found.start])
    unit = _UNIT.match(text, found.end) if parameter.kind == "number" else None
    of_name = unit is not None and {*terms_of(unit[1])} & {*terms_of(parameter.name)}
    start = named.start() if named is not None else found.start
    return Found(found.value, start, unit.end() if unit is not None and of_name else found.end)


def _named_before(parameter: Parameter, before: str) -> re.Match[str] | None:
    name = r"[\s_-]*".join(map(re.escape, parameter.words))
    last = re.escape(parameter.words[-1]) if parameter.words else "(?!)"
    said = rf"(?<![A-Za-z])(?:{name}|{last})\s*(?:is|of|=|:|：|to|as|是|为)?\s*[\"'“]?\Z"
    return re.search(said, before, re.IGNORECASE)


def fits(value: Any, parameter: Parameter) -> bool:
    """Whether the schema takes a value, as far as can be told before all are there."""
    schema = parameter.schema
    value = as_asked(value, parameter)
    if value is None:
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _in_range(value, parameter)
    if not isinstance(value, str):
        return True
    pattern, longest, least = schema.get("pattern"), schema.get("maxLength"), schema.get("minLength")
    if isinstance(longest, int) and len(value) > longest or isinstance(least, int) and len(value) < least:
        return False
    try:
        return not isinstance(pattern, str) or re.search(pattern, value) is not None
    except re.error:
        return True


def as_asked(value: Any, parameter: Parameter) -> Any:
    """The value in the form the parameter asks for; None when it has none."""
    kind = parameter.kind
    if isinstance(value, Moment):
        return _moment(value, parameter)
    if kind == "number" and parameter.schema.get("type") == "integer":
        return int(value) if float(value).is_integer() else None
    if kind == "language" and isinstance(value, str) and re.fullmatch(r"[A-Z][a-z]+ [a-z]{2}", value):
        name, code = value.split()
        said = f"{parameter.description} {parameter.schema.get('examples', '')}"
        return code if _TWO_LETTERS.search(said) or "code" in parameter.words else name
    return value


def _in_range(value: float, parameter: Parameter) -> bool:
    breaks: dict[str, Callable[[float, float], bool]] = {
        "minimum": lt,
        "maximum": gt,
        "exclusiveMinimum": le,
        "exclusiveMaximum": ge,
    }
    for word, breaks_it in breaks.items():
        bound = parameter.schema.get(word)
        if isinstance(bound, int | float) and not isinstance(bound, bool) and breaks_it(value, bound):
            return False
    return True


def _moment(moment: Moment, parameter: Parameter) -> str | None:
    said = _STRFTIME.search(parameter.description)
    if parameter.kind == "date" and moment.day is not None:
        return moment.day.strftime(said.group()) if said and "%H" not in said.group() else moment.day.isoformat()
    if parameter.kind == "time" and moment.time is not None:
        seconds = parameter.schema.get("format") == "time" or "HH:MM:SS" in parameter.description
        return moment.time.strftime("%H:%M:%S" if seconds else "%H:%M")
    if parameter.kind == "datetime" and moment.day is not None:
        at = datetime.combine(moment.day, moment.time or time(0))
        if said:
            return at.strftime(said.group())
        return (
            at.strftime("%Y-%m-%d %H:%M:%S") if re.search(r"YYYY-MM-DD HH", parameter.description) else at.isoformat()
        )
    return None
