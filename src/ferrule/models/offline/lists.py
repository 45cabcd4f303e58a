"""Lists in a sentence: `3, 5 and 7`, `"a", "b"`, `apples, pears and plums`."""

from __future__ import annotations

import re
from typing import Any

from ferrule.models.offline.fitting import as_asked, fits
from ferrule.models.offline.literals import emails_in, members_in, paths_in, urls_in
from ferrule.models.offline.numbers import numbers_in
from ferrule.models.offline.parameter import Parameter, item_of
from ferrule.models.offline.reading import Found, Reading
from ferrule.models.offline.vocabulary import is_generic

_BETWEEN = re.compile(r"\s*(?:,|，|、|;|；)?\s*(?:and|or|和|与|或)?\s*")
_SEPARATED = re.compile(r"\s*(?:,\s*and\b|,|，|、|\band\b|和|与)\s*")
_BY_FORM = {"url": urls_in, "email": emails_in, "path": paths_in}


def fill_list(parameter: Parameter, reading: Reading) -> list[Any] | None:
    """The items a text gives for a list, if it gives any."""
    item = item_of(parameter)
    found = _items(item, reading)
    named = _after_name(parameter, item, reading) if not found else None
    if named is not None:
        return named
    if not found or (not parameter.required and not _is_named(parameter, reading, found[0])):
        return None
    least, most = parameter.schema.get("minItems"), parameter.schema.get("maxItems")
    values = [as_asked(one.value, item) for one in found]
    if (isinstance(least, int) and len(values) < least) or (isinstance(most, int) and len(values) > most):
        return None
    for one in found:
        reading.strike(one.start, one.end)
    return values


def _items(item: Parameter, reading: Reading) -> list[Found]:
    if item.kind == "number":
        found = _longest_row(numbers_in(reading.unquoted), reading.left)
    elif item.kind == "enum":
        found = members_in(reading.left, item.schema["enum"])
    elif item.kind in _BY_FORM:
        found = _BY_FORM[item.kind](reading.left)
    elif item.kind == "text":
        found = reading.quotes
    else:
        found = []
    return [one for one in found if fits(one.value, item)]


def _longest_row(found: list[Found], text: str) -> list[Found]:
    """Numbers with nothing between them but commas and `and`."""
    rows: list[list[Found]] = []
    for one in found:
        if rows and _BETWEEN.fullmatch(text[rows[-1][-1].end : one.start]):
            rows[-1].append(one)
        else:
            rows.append([one])
    return max(rows, key=len, default=[])


def _after_name(parameter: Parameter, item: Parameter, reading: Reading) -> list[Any] | None:
    """Words after the parameter's name, or after a colon: `tags red, green and blue`."""
    if item.kind not in ("text", "place", "id") or not parameter.words:
        return None
    name = r"\s+".join(map(re.escape, parameter.words))
    pattern = rf"(?:(?<![A-Za-z]){name}\b\s*(?:are|is|=|:|：|是|为)?|[:：])\s*([^\0.?!。；;]+)"
    match = re.search(pattern, reading.left, re.IGNORECASE)
    words = [word.strip() for word in _SEPARATED.split(match[1]) if word.strip()] if match else []
    if match is None or not words or is_generic(words[0].lower()) or not all(fits(word, item) for word in words):
        return None
    reading.strike(*match.span())
    return words


def _is_named(parameter: Parameter, reading: Reading, first: Found) -> bool:
    name = r"\s*".join(map(re.escape, parameter.words))
    return re.search(rf"{name}\W*(?:\w+\W+)?\Z", reading.text[: first.start], re.IGNORECASE) is not None
