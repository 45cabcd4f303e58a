"""Results of earlier steps inside the parameters of later ones.

`${1}` is the whole result of step 1, `${1.items[0].name}` a field at any depth. A parameter that is nothing but a
reference keeps the type of what it refers to; inside a longer text the result is written out. Models also write
`{{1.name}}`, `${steps.1.result.name}` or `${step_1.name}`; that is understood. `${HOME}` is none of our business.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from ferrule.content import as_text, copy_json
from ferrule.errors import InvalidArguments
from ferrule.names import did_you_mean

_REFERENCE = re.compile(r"\$\{([^{}$]{1,300})\}|\{\{([^{}]{1,300})\}\}")
_STEP = re.compile(r"^\s*(?:steps?(?:_results?)?\s*[._\[]?\s*)?(?P<id>[\w-]+?)\]?\s*(?P<path>(?:[.\[].*)?)$", re.S)
_PART = re.compile(r"\.?([^.\[\]]+)|\[\s*(-?\d+)\s*\]|\[\s*[\"']([^\"']+)[\"']\s*\]")
_WHOLE: Final = ("result", "output")
"""Words for the whole result, which models like to write in between."""
SHOWN: Final = 10


def resolve(value: Any, results: Mapping[str, Any], *, step: Any = "") -> Any:
    """The value with its references replaced; InvalidArguments says which one cannot be, and why."""
    if isinstance(value, str):
        return _resolve_text(value, results, step)
    if isinstance(value, Mapping):
        return {name: resolve(inner, results, step=step) for name, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner, results, step=step) for inner in value]
    return value


def steps_referred_to(value: Any) -> list[str]:
    """The ids of the steps whose results a value refers to."""
    found: dict[str, None] = {}
    if isinstance(value, str):
        for match in _REFERENCE.finditer(value):
            if (parsed := _step_in(match)) is not None:
                found[parsed["id"]] = None
    elif isinstance(value, (Mapping, list)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            found |= dict.fromkeys(steps_referred_to(inner))
    return list(found)


def with_other_ids(value: Any, ids: Mapping[str, Any]) -> Any:
    """The value with its references to some steps turned to others: `ids` says to which."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: _with_other_id(match, ids), value)
    if isinstance(value, Mapping):
        return {name: with_other_ids(inner, ids) for name, inner in value.items()}
    return [with_other_ids(inner, ids) for inner in value] if isinstance(value, list) else value


def _with_other_id(match: re.Match[str], ids: Mapping[str, Any]) -> str:
    parsed = _step_in(match, ids)
    if parsed is None or parsed["id"] not in ids:
        return match.group()
    start, end = parsed.span("id")
    changed = f"{parsed.string[:start]}{ids[parsed['id']]}{parsed.string[end:]}"
    return match.group().replace(parsed.string, changed, 1)


def _resolve_text(text: str, results: Mapping[str, Any], step: Any) -> Any:
    whole = _REFERENCE.fullmatch(text.strip())
    if whole is not None and _step_in(whole, results) is not None:
        return copy_json(_look_up(whole, results, step))

    def written(match: re.Match[str]) -> str:
        return match.group() if _step_in(match, results) is None else as_text(_look_up(match, results, step))

    return _REFERENCE.sub(written, text)


def _look_up(match: re.Match[str], results: Mapping[str, Any], step: Any) -> Any:
    parsed = _step_in(match, results)
    if parsed is None or parsed["id"] not in results:
        known = ", ".join(results) or "none"
        raise InvalidArguments(
            f"Step {step} refers to {match.group()}, but there is no result of such a step. Results there are: {known}."
        )
    return _walk(results[parsed["id"]], parsed["path"], match.group(), step)


def _step_in(match: re.Match[str], known: Collection[str] = ()) -> re.Match[str] | None:
    """The step and the path of a reference; None for what only looks like one."""
    inside = str(match.group(1) or match.group(2))
    parsed = _STEP.match(inside)
    if parsed is None:
        return None
    is_ours = parsed["id"].isdecimal() or parsed["id"] in known or inside.strip().casefold().startswith("step")
    return parsed if is_ours else None


def _walk(value: Any, path: str, reference: str, step: Any) -> Any:
    for position, part in enumerate(_PART.finditer(path)):
        name, index, quoted = part.groups()
        key = quoted or (name or "").strip()
        if index is None and key.lstrip("-").isdecimal() and isinstance(value, list):
            index = key
        if index is not None:
            if not isinstance(value, list) or not -len(value) <= int(index) < len(value):
                raise _missing(f"[{index}]", value, reference, step)
            value = value[int(index)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        elif not (position == 0 and key in _WHOLE):
            raise _missing(key, value, reference, step)
    return value


def _missing(key: str, value: Any, reference: str, step: Any) -> InvalidArguments:
    there = f"a {type(value).__name__}"
    near = ""
    if isinstance(value, Mapping):
        there = "only " + (", ".join(map(str, list(value)[:SHOWN])) or "nothing")
        near = did_you_mean(key, map(str, value))
    elif isinstance(value, list):
        there = f"a list of {len(value)}"
    return InvalidArguments(f"Step {step} refers to {reference}, but there is no {key} in it: there is {there}.{near}")
