"""References: results of earlier steps in the parameters of later ones.

`${1}` is the whole result of step 1, `${1.items[0].name}` a field at any depth. A parameter that is nothing but a
reference keeps the type of the result; inside a longer text the result is inserted as text, and inside a calculation
the number of a quantity such as `38.45 EUR`. Models also write `{{1.name}}`, `${steps.1.result.name}` or
`${step_1.name}`, so these forms work too. `${HOME}` is not a reference.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from ferrule.core.content import as_text, copy_json
from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import InvalidArguments

_REFERENCE = lazy_pattern(r"\$\{([^{}$]{1,300})\}|\{\{([^{}]{1,300})\}\}")
_STEP_REFERENCE = r"^\s*(?:steps?(?:_results?)?\s*[._\[]?\s*){optional}(?P<id>{ids})\]?\s*(?P<path>(?:[.\[].*)?)$"
_PATH_PART = lazy_pattern(r"\.?([^.\[\]]+)|\[\s*(-?\d+)\s*\]|\[\s*[\"']([^\"']+)[\"']\s*\]")
_WHOLE_RESULT_NAMES: Final = ("result", "output")
"""Names for the whole result, which models often write before the path."""
_CALCULATION = lazy_pattern(r"[\d\s.()]*[\d)]\s*[-+*/^×÷][-+*/^×÷\d\s.()]*")
_MAX_CALCULATION_LENGTH: Final = 1_000
_QUANTITY = lazy_pattern(
    r"(?P<before>[$€£¥])?\s*(?P<number>-?\d+(?:\.\d+)?)\s*"
    r"(?P<unit>(?!(?:k|m|mn|bn|hundred|thousand|million|billion|trillion|dozen)$)°?[^\W\d_百千万亿]{1,20}|[$€£¥])?",
    re.IGNORECASE,
)
"""A number with a unit. A percent sign or a word such as million changes the number, so it is no unit."""
MAX_NAMES: Final = 10
MAX_INSERTED_SIZE: Final = 1_000_000
"""Characters of JSON that the references of one step may insert: a short plan can repeat a long result many times."""


def resolve_references(
    value: Any, results: Mapping[str, Any], *, step: Any = "", max_size: int = MAX_INSERTED_SIZE
) -> Any:
    """Replace the references in a value by results.

    Raises InvalidArguments for a reference that cannot be resolved, and where more than `max_size` would be inserted.
    """
    return _ReferenceResolver(results, step, max_size).resolve(value)


def find_referenced_steps(value: Any, step_ids: Collection[str] = ()) -> list[str]:
    """Return the ids of the steps whose results a value refers to. `step_ids` are those that exist, as far as known."""
    targets: dict[str, None] = {}
    if isinstance(value, str):
        for match in _REFERENCE.finditer(value):
            if (parsed := _parse_reference(match, step_ids)) is not None:
                targets[parsed["id"]] = None
    elif isinstance(value, (Mapping, list)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            targets |= dict.fromkeys(find_referenced_steps(inner, step_ids))
    return list(targets)


def find_referenced_values(value: Any, results: Mapping[str, Any]) -> list[Any]:
    """Return the values that the references in a value refer to, as far as these results have them."""
    if isinstance(value, str):
        values = []
        for match in _REFERENCE.finditer(value):
            parsed = _parse_reference(match, results)
            if parsed is not None and parsed["id"] in results:
                with suppress(InvalidArguments):
                    values.append(_look_up_reference(match, results, ""))
        return values
    members = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [inner for member in members for inner in find_referenced_values(member, results)]


def renumber_references(value: Any, ids: Mapping[str, Any]) -> Any:
    """Change the step ids in the references of a value. `ids` maps old ids to new ones."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: _renumber_reference(match, ids), value)
    if isinstance(value, Mapping):
        return {name: renumber_references(inner, ids) for name, inner in value.items()}
    return [renumber_references(inner, ids) for inner in value] if isinstance(value, list) else value


def _renumber_reference(match: re.Match[str], ids: Mapping[str, Any]) -> str:
    parsed = _parse_reference(match, ids)
    if parsed is None or parsed["id"] not in ids:
        return match.group()
    start, end = parsed.span("id")
    changed = f"{parsed.string[:start]}{ids[parsed['id']]}{parsed.string[end:]}"
    return match.group().replace(parsed.string, changed, 1)


class _ReferenceResolver:
    """Inserts results into the parameters of one step, and stops before they become too large."""

    def __init__(self, results: Mapping[str, Any], step: Any, max_size: int) -> None:
        self._results, self._step = results, step
        self._max_size, self._size = max_size, 0
        self._texts: dict[str, str] = {}

    def resolve(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._resolve_text(value)
        if isinstance(value, Mapping):
            return {name: self.resolve(inner) for name, inner in value.items()}
        return [self.resolve(inner) for inner in value] if isinstance(value, list) else value

    def _resolve_text(self, text: str) -> Any:
        whole = _REFERENCE.fullmatch(text.strip())
        if whole is not None and _parse_reference(whole, self._results) is not None:
            self._insert(whole)
            return copy_json(_look_up_reference(whole, self._results, self._step))
        numbers = self._find_numbers(text)
        return _REFERENCE.sub(
            lambda match: (
                match.group()
                if _parse_reference(match, self._results) is None
                else numbers.get(match.group()) or self._insert(match)
            ),
            text,
        )

    def _find_numbers(self, text: str) -> dict[str, str]:
        """Return the numbers of the quantities in a calculation, if all have the same unit: kilometres and metres
        cannot be added."""
        if len(text) > _MAX_CALCULATION_LENGTH or _CALCULATION.fullmatch(_REFERENCE.sub("1", text)) is None:
            return {}
        numbers: dict[str, str] = {}
        units: set[str] = set()
        for match in _REFERENCE.finditer(text):
            value = _look_up_reference(match, self._results, self._step)
            if isinstance(value, str):
                if (quantity := _QUANTITY.fullmatch(value.strip())) is None:
                    return {}
                numbers[match.group()] = quantity["number"]
                units |= {unit.casefold() for unit in (quantity["before"], quantity["unit"]) if unit}
        return numbers if len(units) == 1 else {}

    def _insert(self, reference: re.Match[str]) -> str:
        """Return the result as text, if there is room for it."""
        text = self._texts.get(reference.group())
        if text is None:
            text = as_text(_look_up_reference(reference, self._results, self._step))
            self._texts[reference.group()] = text
        self._size += len(text) + 1
        if self._size > self._max_size:
            raise InvalidArguments(
                f"Step {self._step} was not executed: the results that its parameters refer to have more than "
                f"{self._max_size} characters together, with {reference.group()}. Refer to parts of results, or to "
                "fewer of them."
            )
        return text


def _look_up_reference(match: re.Match[str], results: Mapping[str, Any], step: Any) -> Any:
    parsed = _parse_reference(match, results)
    if parsed is None or parsed["id"] not in results:
        available = ", ".join(results) or "none"
        raise InvalidArguments(
            f"Step {step} refers to {match.group()}, but that step has no result. Available results: {available}."
        )
    return _follow_path(results[parsed["id"]], parsed["path"], match.group(), step)


def _parse_reference(match: re.Match[str], step_ids: Collection[str] = ()) -> re.Match[str] | None:
    """Return the step id and the path in a reference, or None for text that only looks like a reference.

    An existing step is found by its own id first, whatever that is: `2.1`, `fetch.page` or `step_1`.
    """
    inside = str(match.group(1) or match.group(2))
    to_existing_step, to_any_step = _reference_patterns(tuple(step_ids))
    if to_existing_step is not None and (parsed := to_existing_step.match(inside)) is not None:
        return parsed
    parsed = to_any_step.match(inside)
    if parsed is None:
        return None
    return parsed if parsed["id"].isdecimal() or inside.strip().casefold().startswith("step") else None


@lru_cache(maxsize=64)
def _reference_patterns(step_ids: tuple[str, ...]) -> tuple[re.Pattern[str] | None, re.Pattern[str]]:
    """Return the patterns of references to one of these steps, and to any step."""
    longest_first = sorted(step_ids, key=len, reverse=True)
    to_existing_step = _STEP_REFERENCE.format(optional="??", ids="|".join(map(re.escape, longest_first)))
    to_any_step = _STEP_REFERENCE.format(optional="?", ids=r"[\w-]+?")
    return re.compile(to_existing_step, re.S) if step_ids else None, re.compile(to_any_step, re.S)


def _follow_path(value: Any, path: str, reference: str, step: Any) -> Any:
    for position, part in enumerate(_PATH_PART.finditer(path)):
        name, index, quoted = part.groups()
        key = quoted or (name or "").strip()
        if isinstance(value, list) and index is None and key.lstrip("-").isdecimal():
            index = key
        elif isinstance(value, Mapping) and index in value:  # an object whose names are numbers
            index, key = None, index
        if index is not None:
            if not isinstance(value, list) or not -len(value) <= int(index) < len(value):
                raise _missing_value_error(f"[{index}]", value, reference, step)
            value = value[int(index)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        elif not (position == 0 and key in _WHOLE_RESULT_NAMES):
            raise _missing_value_error(key, value, reference, step)
    return value


def _missing_value_error(key: str, value: Any, reference: str, step: Any) -> InvalidArguments:
    actual = f"a {type(value).__name__}"
    near = ""
    if isinstance(value, Mapping):
        actual = "an object with " + (", ".join(map(str, list(value)[:MAX_NAMES])) or "nothing")
        near = did_you_mean(key, map(str, value))
    elif isinstance(value, list):
        actual = f"a list of {len(value)}"
    return InvalidArguments(f"Step {step} refers to {reference}, but the result has no {key}: it is {actual}.{near}")
