"""Adjustments of single values: what the schema or the error itself asks for.

- arguments that do not fit the schema: misspelt names and choices, wrong types, numbers out of range
- values the error names: `must be one of …`, `Did you mean …?`
- URLs without a scheme, or without https where it is required
- paths that do not exist, where a similar one was observed
- longer timeouts for calls that ran out of time
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, Final, TypeAlias, TypeGuard

from ferrule.catalog.search.terms import extract_terms, remove_case_and_punctuation, stem
from ferrule.catalog.validation.coercion import coerce
from ferrule.core.content import copy_json, plain_json
from ferrule.core.json_schema import allowed_types
from ferrule.core.names import similar_names
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import JsonSchema
from ferrule.memory.adjustments.failed_call import Adjustment, FailedCall, name_contains, quote_value

Number: TypeAlias = int | float

MAX_TIMEOUT: Final = 60.0
"""Seconds; no suggested timeout is longer."""
_MAX_OPTIONS: Final = 200
_MAX_NUMBER: Final = 1e300

# ---- arguments that do not fit the schema

_TRUE_WORDS: Final = frozenset({"yes", "y", "on", "1", "true", "是"})
_FALSE_WORDS: Final = frozenset({"no", "n", "off", "0", "false", "否"})
_ITEM_SEPARATOR = lazy_pattern(r"\s*[,，;；、\n]\s*")


@dataclass(slots=True)
class _Repair:
    """The arguments while they are being repaired."""

    parameters: dict[str, Any]
    changed: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    confidence: float = 0.9

    def add(self, names: list[str], reason: str, confidence: float) -> None:
        self.changed += names
        self.reasons.append(reason)
        self.confidence = min(self.confidence, confidence)


def fit_arguments_to_schema(call: FailedCall) -> Iterator[Adjustment]:
    """All repairs go into one suggestion, because the call passes only when all of them are made."""
    repair = _Repair(parameters=plain_json(copy_json(call.parameters)))
    _repair_names(call, repair)
    for name, value in list(repair.parameters.items()):
        if name in call.properties and name not in call.secret_names:
            _repair_value(call, repair, name, value)
    if repair.changed:
        yield Adjustment(
            parameters=repair.parameters,
            changed=tuple(dict.fromkeys(repair.changed)),
            reason=" ".join(repair.reasons),
            confidence=repair.confidence,
        )


def _repair_names(call: FailedCall, repair: _Repair) -> None:
    for name in [name for name in call.parameters if _is_unknown_parameter(call, name)]:
        unused = [prop for prop in call.properties if prop not in repair.parameters]
        offered = [prop for prop in _find_options(_DID_YOU_MEAN, call.error) if prop in unused]
        near = similar_names(name, offered, limit=1) or similar_names(name, unused, limit=1)
        if near:
            new, reason, confidence = near[0], f"{near[0]!r} is the nearest.", 0.85
        elif (missing := _find_only_missing(call, repair)) is not None:
            new, reason, confidence = missing, f"{missing!r} is required and missing.", 0.6
        else:
            continue
        repair.parameters = {new if key == name else key: value for key, value in repair.parameters.items()}
        repair.add([name, new], f"There is no parameter {name!r}; {reason}", confidence)


def _is_unknown_parameter(call: FailedCall, name: Any) -> bool:
    """Whether the action has no such parameter. Where extra ones are accepted, the error must mention the name."""
    if not isinstance(name, str) or name in call.properties or name in call.secret_names or not call.properties:
        return False
    return not call.accepts_extra or name in call.error


def _find_only_missing(call: FailedCall, repair: _Repair) -> str | None:
    missing = [name for name in call.required if name not in repair.parameters and name in call.properties]
    unknown = [name for name in repair.parameters if name not in call.properties]
    return missing[0] if len(missing) == len(unknown) == 1 else None


def _repair_value(call: FailedCall, repair: _Repair, name: str, value: Any) -> None:
    schema = call.schema_of(name)
    enum = schema.get("enum")
    right = _convert_loosely(coerce(value, call.properties[name], call.root_schema), schema)
    if type(right) is not type(value) or right != value:
        kind = (
            "one of the listed values" if isinstance(enum, list) else " or ".join(allowed_types(schema)) or "different"
        )
        reason, confidence = f"{name!r} should be {kind}: {quote_value(right)} instead of {quote_value(value)}.", 0.85
    elif isinstance(enum, list) and isinstance(value, str) and value not in enum:
        near: list[str] = similar_names(value, [option for option in enum if isinstance(option, str)], limit=1)
        if not near:
            return
        right, reason, confidence = near[0], f"{name!r} may be {quote_value(near[0])}, not {quote_value(value)}.", 0.8
    elif is_number(value):
        right = _fit_number(value, schema)
        if right == value:
            return
        reason, confidence = f"{right} is the value nearest to {value} that {name!r} may have.", 0.75
    else:
        return
    repair.parameters[name] = right
    repair.add([name], reason, confidence)


def _convert_loosely(value: Any, schema: JsonSchema) -> Any:
    """A value of another type as a person would read it; argument validation is stricter than this."""
    kinds = [kind for kind in allowed_types(schema) if kind != "null"]
    if kinds == ["boolean"] and isinstance(value, (str, int)) and not isinstance(value, bool):
        text = str(value).strip().casefold() if isinstance(value, str) or abs(value) < 2 else ""
        return True if text in _TRUE_WORDS else False if text in _FALSE_WORDS else value
    if kinds == ["array"] and isinstance(value, str):
        return _ITEM_SEPARATOR.split(value.strip()) if value.strip() else []
    if kinds == ["array"] and value is not None and not isinstance(value, list):
        return [value]
    if kinds and "array" not in kinds and isinstance(value, list) and len(value) == 1:
        return value[0]
    return value


# ---- values the error names

_DID_YOU_MEAN = lazy_pattern(
    r"(?:did you mean|do you mean|maybe you meant|perhaps you meant|是不是要找|是否想用|你是指)[:：]?"
    r" ?([^?？\n]{1,300})",
    re.I,
)
_ONE_OF = lazy_pattern(
    r"(?:one of|either|(?:valid|allowed|available|possible|supported|known|permitted) [\w ]{1,30}?(?:are|is|:|include)"
    r"|expected|choose from|可选值|有效值|支持的\w{0,8}|可用的\w{0,8})(?:[:：]| are| is|为|是)?"
    r" ?[\[({]?([^\])}\n。]{1,1000})",
    re.I,
)
_QUOTED = lazy_pattern(r"[\"'`‘“]([^\"'`’”\n]{1,100})[\"'`’”]")
_UNQUOTED_WORD = lazy_pattern(r"[^\s,，、|/;；\[\](){}]{1,100}")


def use_choice_from_error(call: FailedCall) -> Iterator[Adjustment]:
    offered, listed = _find_options(_DID_YOU_MEAN, call.error), _find_options(_ONE_OF, call.error)
    for name, value in call.texts():
        if not call.error_may_concern(value) or name not in call.properties:
            continue
        for option in similar_names(value, offered, limit=2):
            reason = f"The error suggests {quote_value(option)} for {name!r}, which was {quote_value(value)}."
            yield call.with_value(name, option, reason, 0.8)
        for option in similar_names(value, listed, limit=2):
            reason = f"The error lists {quote_value(option)} as possible; {name!r} was {quote_value(value)}."
            yield call.with_value(name, option, reason, 0.65)


def _find_options(pattern: re.Pattern[str], error: str) -> list[str]:
    options: dict[str, None] = {}
    for match in pattern.finditer(error):
        words = _QUOTED.findall(match[1]) or [word.rstrip(".?。？") for word in _UNQUOTED_WORD.findall(match[1])]
        options.update(dict.fromkeys(word for word in words if word))
        if len(options) > _MAX_OPTIONS:
            break
    return list(options)[:_MAX_OPTIONS]


# ---- URLs

_URL_NAMES: Final = frozenset(extract_terms("url uri href link endpoint website"))
_SCHEME = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST = lazy_pattern(r"(?:[\w-]+(?:\.[\w-]+)+|localhost)(?::\d{1,5})?(?:[/?#]|\Z)")
_LOCAL_HOST = lazy_pattern(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0)(?=[:/?#]|\Z)")
_ABOUT_URLS = lazy_pattern(
    r"\bur[li]s?\b|scheme|protocol|address|https?:|invalid|unsupported|网址|地址|协议|无效", re.I
)
_HTTPS_REQUIRED = lazy_pattern(
    r"https (?:is )?required|requires? (?:https|ssl|tls)|(?:use|only) (?:the )?https|must (?:use|be) https"
    r"|must start with ['\"]?https|sent to (?:an )?https port|需要 ?https|使用 ?https",
    re.I,
)


def correct_url(call: FailedCall) -> Iterator[Adjustment]:
    for name, value in call.texts():
        if not name_contains(name, _URL_NAMES) and call.schema_of(name).get("format") not in ("uri", "url"):
            continue
        url = value.strip(" \t\r\n<>\"'`").removeprefix("//")
        if _HTTPS_REQUIRED.search(call.error) and url[:7].lower() == "http://":
            yield call.with_value(name, f"https://{url[7:]}", f"The error asks for https; {name!r} had http.", 0.85)
        elif _ABOUT_URLS.search(call.error) and (_SCHEME.match(url) or _HOST.match(url)):
            scheme = "" if _SCHEME.match(url) else "http://" if _LOCAL_HOST.match(url) else "https://"
            reason = f"{name!r} needs a complete URL; it was {quote_value(value)}."
            yield call.with_value(name, scheme + url, reason, 0.8)


# ---- paths that do not exist: a similar name that was observed, in the same or another folder

MAX_NAMES: Final = 20_000
_MAX_COMPARED: Final = 2000
"""Names that are compared letter by letter, which is slow."""
_MAX_SUGGESTED: Final = 6
_MIN_NAME_SIMILARITY: Final = 0.75

_PATH_NAMES: Final = frozenset(extract_terms("path file filename filepath dir directory folder source src"))
_OTHER_NAMES: Final = frozenset(extract_terms("selector xpath css locator element url uri"))
_EXTENSION = lazy_pattern(r"\.[A-Za-z][A-Za-z0-9]{0,9}\Z")
_PATH_LIKE = lazy_pattern(r"[^\s\"'`,;:()\[\]{}<>|“”‘’，；：]+")
_LINE_END = lazy_pattern(r"(?:\d\d:\d\d|\[DIR\]|\[FILE\]) +([^\n]{1,200}?) *(?=\n|\Z)")
"""A name with blanks, after the time in a long listing or after a mark."""


def use_observed_path(call: FailedCall) -> Iterator[Adjustment]:
    if not call.is_not_found:
        return
    failed = [
        (name, value)
        for name, value in call.texts()
        if _is_path_parameter(name, value) and call.error_may_concern(value)
    ]
    if not failed:
        return
    names = _find_names([call.error, *call.observations])
    for name, value in failed:
        for path, confidence in islice(_rank_similar_paths(value, names), _MAX_SUGGESTED):
            reason = f"There is no {quote_value(value)}; {quote_value(path)} was seen."
            yield call.with_value(name, path, reason, confidence)


def _is_path_parameter(name: str, value: str) -> bool:
    if "://" in value or "\n" in value or len(value) > 1000 or name_contains(name, _OTHER_NAMES):
        return False
    return name_contains(name, _PATH_NAMES) or "/" in value or _EXTENSION.search(value) is not None


def _find_names(texts: Iterable[str]) -> list[str]:
    """Every word that may be the name of a file or folder, each once."""
    matches = (match for text in texts for pattern in (_LINE_END, _PATH_LIKE) for match in pattern.findall(text))
    names = (name.rstrip(".").removeprefix("./") for name in matches)
    return list(islice(dict.fromkeys(name for name in names if len(name) > 1), MAX_NAMES))


def _rank_similar_paths(failed: str, names: list[str]) -> Iterator[tuple[str, float]]:
    offered = {failed}
    for name, confidence in sorted(_find_similar_names(failed, names), key=lambda match: -match[1]):
        path = _complete_path(name, failed)
        if path not in offered:
            offered.add(path)
            yield path, confidence


def _find_similar_names(failed: str, names: list[str]) -> Iterator[tuple[str, float]]:
    target = _file_name(failed)
    folded = remove_case_and_punctuation(target)[:200]
    matcher = SequenceMatcher(b=folded, autojunk=False)
    compared = 0
    for name in names:
        other = _file_name(name)
        if confidence := _compare_names(target, other):
            yield name, confidence
        elif folded and compared < _MAX_COMPARED:
            compared += 1
            matcher.set_seq1(remove_case_and_punctuation(other)[:200])
            if (
                matcher.real_quick_ratio() >= _MIN_NAME_SIMILARITY
                and (ratio := matcher.ratio()) >= _MIN_NAME_SIMILARITY
            ):
                yield name, 0.65 * ratio


def _file_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _compare_names(name: str, other: str) -> float:
    """How likely it is that one file was meant by the other's name; 0 if they differ in more than writing."""
    if name.casefold() == other.casefold():
        return 0.85 if name == other else 0.9  # the very name was refused once; in another folder it may exist
    if (folded := remove_case_and_punctuation(name)) and folded == remove_case_and_punctuation(other):
        return 0.8
    stems = [_EXTENSION.sub("", text).casefold() for text in (name, other)]
    if stems[0] and stems[0] == stems[1]:
        return 0.75
    singulars = [stem(remove_case_and_punctuation(text)) for text in stems]
    return 0.7 if singulars[0] and singulars[0] == singulars[1] else 0.0


def _complete_path(name: str, failed: str) -> str:
    """An observed name written like the failed path: beside it, or below the folder that both share."""
    folder = failed.rstrip("/").rpartition("/")[0]
    if not folder or name.startswith("/"):
        return name
    if "/" not in name.rstrip("/"):
        return f"{folder}/{name}"
    first = name.partition("/")[0]
    parents = folder.split("/")
    if first in parents:
        return "/".join([*parents[: parents.index(first)], name])
    return f"{folder}/{name}" if failed.startswith("/") else name


# ---- timeouts

_TIMEOUT_NAME = lazy_pattern(r"time[_-]?out|(?:\A|[_-])(?:max[_-]?)?wait(?:[_-]|\Z)|deadline", re.I)
_MILLISECONDS = lazy_pattern(r"ms\Z|milli|毫秒", re.I)
_MIN_MILLISECONDS: Final = 1000
"""A timeout this large is taken for milliseconds."""


def lengthen_timeout(call: FailedCall) -> Iterator[Adjustment]:
    """Twice as long, up to a minute and the schema's maximum."""
    if not call.is_timeout:
        return
    for name in dict.fromkeys([*call.parameters, *call.properties]):
        schema = call.schema_of(name)
        value = call.parameters.get(name, schema.get("default"))
        if not _TIMEOUT_NAME.search(name) or not is_number(value) or value <= 0:
            continue
        words = f"{name} {schema.get('description', '')}"
        is_in_ms = value >= _MIN_MILLISECONDS or _MILLISECONDS.search(name) or _MILLISECONDS.search(words)
        highest = type(value)(MAX_TIMEOUT * 1000 if is_in_ms else MAX_TIMEOUT)
        longer = _fit_number(min(2 * value, highest), schema)
        if longer > value:
            amount = "twice as long" if longer == 2 * value else "as long as is allowed"
            reason = f"The call timed out: {name!r} is {amount}, {longer} instead of {value}."
            yield call.with_value(name, longer, reason, 0.6 if name in call.parameters else 0.55)


# ---- numbers as a schema allows them


def is_number(value: Any) -> TypeGuard[Number]:
    """A finite number that can be calculated with; booleans are not numbers here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER


def _fit_number(value: Number, schema: JsonSchema) -> Number:
    """The nearest number within the bounds of the schema, rounded down to its step.

    An exclusive bound is met by whole numbers only; suggestions that do not pass the schema are dropped later.
    """
    is_integer = [kind for kind in allowed_types(schema) if kind != "null"] == ["integer"]
    for keyword, exclusive, side, step in (
        ("minimum", "exclusiveMinimum", max, 1),
        ("maximum", "exclusiveMaximum", min, -1),
    ):
        if is_number(bound := schema.get(keyword)):
            value = side(value, bound)
        if is_number(bound := schema.get(exclusive)):
            value = side(value, bound + step)
    multiple = schema.get("multipleOf")
    if is_number(multiple) and multiple > 0 and value % multiple:
        value = value // multiple * multiple
    return int(value) if is_integer else value
