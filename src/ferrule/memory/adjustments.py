"""Other parameters for a call that failed, with reasons.

Each strategy looks for one kind of mistake: arguments that do not fit the schema, a value that the error names, a URL
without its scheme, a path or a selector that does not exist, a timeout that is too short.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, TypeAlias, TypeGuard

from ferrule.catalog.search.terms import extract_terms
from ferrule.catalog.validation import ParameterCheck
from ferrule.catalog.validation.coercion import coerce
from ferrule.core.content import copy_json, plain_json
from ferrule.core.json_schema import allowed_types, list_branches, properties_of, required_names, resolve_schema
from ferrule.core.names import similar_names
from ferrule.core.patterns import lazy_pattern
from ferrule.core.schema_limits import BoundedValidator
from ferrule.core.spec import JsonSchema, ToolCapability
from ferrule.errors import SpecError
from ferrule.memory.call_identity import LOCATORS

_MAX_ERROR_LENGTH: Final = 20_000
_MAX_OBSERVED_LENGTH: Final = 1_000_000
"""Characters read of all observations together, the newest first."""
_MAX_QUOTE_LENGTH: Final = 80

_TIMEOUT = lazy_pattern(r"time[sd]?[\s_-]?out|timeout|deadline exceeded|took (?:too long|longer)|超时", re.I)
_NOT_FOUND = lazy_pattern(
    r"not[\s_-]?found|no such|no (?:element|node|match|file)|does(?:n't| not) exist|not exist|ENOENT"
    r"|(?:could(?:n't| not)|cannot|can't|unable to|failed to) (?:find|locate|open)|waiting for|0 elements"
    r"|找不到|未找到|没有找到|不存在|无法定位",
    re.I,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """Other parameters for a call that failed."""

    parameters: dict[str, Any]
    changed: tuple[str, ...]
    """The parameters that differ; both names of a renamed parameter."""
    reason: str
    confidence: float
    """0 to 1. It only orders suggestions; the values are estimates."""


class FailedCall:
    """A failed call with its error, its schema and the observations before it."""

    def __init__(
        self, capability: ToolCapability, parameters: Mapping[str, Any], error: str, observations: Sequence[str]
    ) -> None:
        self.parameters, self.error = dict(parameters), error[:_MAX_ERROR_LENGTH]
        self.observations = "\n".join(reversed(observations))[:_MAX_OBSERVED_LENGTH]
        """The newest first, as far as they are read."""
        self.root_schema, self.secret_names = capability.schema, capability.secret_names
        schema = resolve_schema(self.root_schema, self.root_schema)
        self.properties = {name: resolve_schema(prop, self.root_schema) for name, prop in properties_of(schema).items()}
        self.required = required_names(schema)
        self.accepts_extra = bool(schema.get("additionalProperties"))
        """The schema accepts parameters it does not name."""

    @property
    def is_timeout(self) -> bool:
        return _TIMEOUT.search(self.error) is not None

    @property
    def is_not_found(self) -> bool:
        return _NOT_FOUND.search(self.error) is not None

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield the name and value of each text parameter that is not secret."""
        for name, value in self.parameters.items():
            if isinstance(value, str) and value.strip() and name not in self.secret_names:
                yield name, value

    def schema_of(self, name: str) -> JsonSchema:
        """Return the schema of a parameter. For a union, return the only branch besides null."""
        branches = list_branches(self.properties.get(name, {}), self.root_schema)
        options = [part for part in branches if allowed_types(part) != ["null"]]
        return options[0] if len(options) == 1 else {}

    def error_may_concern(self, value: str) -> bool:
        """Return whether the error may be about this text: the error quotes the text, or no parameter at all."""
        return value in self.error or not any(len(text) > 2 and text in self.error for _, text in self.texts())

    def with_value(self, name: str, value: Any, reason: str, confidence: float) -> Adjustment:
        return Adjustment(
            parameters={**copy_json(self.parameters), name: value},
            changed=(name,),
            reason=reason,
            confidence=round(confidence, 3),
        )


def name_contains(name: str, terms: Collection[str]) -> bool:
    """Return whether a parameter's name contains one of the terms."""
    return not set(terms).isdisjoint(extract_terms(name))


def quote_value(value: Any) -> str:
    """Return a value as reasons show it."""
    text = repr(value)
    return text if len(text) <= _MAX_QUOTE_LENGTH else f"{text[:_MAX_QUOTE_LENGTH]}…"


_Number: TypeAlias = int | float

_MAX_TIMEOUT: Final = 60.0
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


def _fit_arguments_to_schema(call: FailedCall) -> Iterator[Adjustment]:
    """Suggest all repairs together, because the call passes only when all of them are made."""
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
    for name in call.parameters if call.properties else ():
        if not isinstance(name, str) or name in call.properties or name in call.secret_names:
            continue
        if call.accepts_extra and name not in call.error:
            continue
        unused = [prop for prop in call.properties if prop not in repair.parameters]
        missing = [prop for prop in call.required if prop in unused]
        offered = [prop for prop in _find_options(_DID_YOU_MEAN, call.error) if prop in unused]
        near = similar_names(name, offered, limit=1) or similar_names(name, unused, limit=1)
        if near:
            new, reason, confidence = near[0], f"{near[0]!r} is the nearest.", 0.85
        elif len(missing) == 1 == len(repair.parameters.keys() - call.properties.keys()):
            new, reason, confidence = missing[0], f"{missing[0]!r} is required and missing.", 0.6
        else:
            continue
        repair.parameters = {new if key == name else key: value for key, value in repair.parameters.items()}
        repair.add([name, new], f"There is no parameter {name!r}; {reason}", confidence)


def _repair_value(call: FailedCall, repair: _Repair, name: str, value: Any) -> None:
    schema = call.schema_of(name)
    enum = schema.get("enum")
    right = _convert_loosely(coerce(value, call.properties[name], call.root_schema), schema)
    if type(right) is not type(value) or right != value:
        types = " or ".join(allowed_types(schema)) or "different"
        kind = "one of the listed values" if isinstance(enum, list) else types
        reason, confidence = f"{name!r} should be {kind}: {quote_value(right)} instead of {quote_value(value)}.", 0.85
    elif isinstance(enum, list) and isinstance(value, str) and value not in enum:
        near: list[str] = similar_names(value, [option for option in enum if isinstance(option, str)], limit=1)
        if not near:
            return
        right, reason, confidence = near[0], f"{name!r} may be {quote_value(near[0])}, not {quote_value(value)}.", 0.8
    elif _is_number(value):
        right = _fit_number(value, schema)
        if right == value:
            return
        reason, confidence = f"{right} is the value nearest to {value} that {name!r} may have.", 0.75
    else:
        return
    repair.parameters[name] = right
    repair.add([name], reason, confidence)


def _convert_loosely(value: Any, schema: JsonSchema) -> Any:
    """Return the value in the type that a person would read it as. Argument validation is stricter."""
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


def _use_choice_from_error(call: FailedCall) -> Iterator[Adjustment]:
    for pattern, template, confidence in (
        (_DID_YOU_MEAN, "The error suggests {} for {!r}, which was {}.", 0.8),
        (_ONE_OF, "The error lists {} as possible; {!r} was {}.", 0.65),
    ):
        options = _find_options(pattern, call.error)
        for name, value in call.texts() if options else ():
            if call.error_may_concern(value) and name in call.properties:
                for option in similar_names(value, options, limit=2):
                    reason = template.format(quote_value(option), name, quote_value(value))
                    yield call.with_value(name, option, reason, confidence)


def _find_options(pattern: re.Pattern[str], error: str) -> list[str]:
    lists = (_QUOTED.findall(match[1]) or _UNQUOTED_WORD.findall(match[1]) for match in pattern.finditer(error))
    words = (word.rstrip(".?。？") for listed in lists for word in listed)
    return list(dict.fromkeys(islice(filter(None, words), _MAX_OPTIONS)))


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


def _correct_url(call: FailedCall) -> Iterator[Adjustment]:
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


# ---- paths that do not exist

_MAX_NAMES: Final = 10_000
_MAX_PATHS: Final = 6
_PATH_NAMES: Final = frozenset(extract_terms("path file filename filepath dir directory folder source src"))
_OTHER_NAMES: Final = frozenset(extract_terms("selector xpath css locator element url uri"))
_EXTENSION = lazy_pattern(r"\.[A-Za-z][A-Za-z0-9]{0,9}\Z")
_PATH_LIKE = lazy_pattern(r"[^\s\"'`,;:()\[\]{}<>|“”‘’，；：]{2,1000}")
_LINE_END = lazy_pattern(r"(?:\d\d:\d\d|\[DIR\]|\[FILE\]) +([^\n]{1,200}?) *(?=\n|\Z)")
"""A name with blanks, after the time in a long listing or after a mark."""


def _use_observed_path(call: FailedCall) -> Iterator[Adjustment]:
    """Suggest similar names that were observed, in the same or another folder."""
    for name, value in call.texts() if call.is_not_found else ():
        if not _is_path_parameter(name, value) or not call.error_may_concern(value):
            continue
        for step, path in enumerate(_find_similar_paths(value, [call.error, call.observations])):
            reason = f"There is no {quote_value(value)}; {quote_value(path)} was seen."
            yield call.with_value(name, path, reason, 0.8 - 0.02 * step)


def _is_path_parameter(name: str, value: str) -> bool:
    if "://" in value or "\n" in value or len(value) > 1000 or name_contains(name, _OTHER_NAMES):
        return False
    return name_contains(name, _PATH_NAMES) or "/" in value or _EXTENSION.search(value) is not None


def _find_similar_paths(failed: str, texts: Iterable[str]) -> list[str]:
    """Return the observed paths whose last part is similar, best first, each written like the failed path."""
    matches = (match for text in texts for pattern in (_LINE_END, _PATH_LIKE) for match in pattern.findall(text))
    paths = (_complete_path(match.rstrip(".").removeprefix("./"), failed) for match in matches)
    by_file_name: dict[str, str] = {}
    for path in islice(paths, _MAX_NAMES):
        if path != failed:
            by_file_name.setdefault(_file_name(path), path)
    return [by_file_name[match] for match in similar_names(_file_name(failed), by_file_name, limit=_MAX_PATHS)]


def _file_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _complete_path(name: str, failed: str) -> str:
    """Return an observed name written like the failed path: beside it, or below the folder that both share."""
    folder = failed.rstrip("/").rpartition("/")[0]
    first, has_folder = name.partition("/")[0], "/" in name.rstrip("/")
    if not folder or not first:
        return name
    if has_folder and first in (parents := folder.split("/")):
        return "/".join([*parents[: parents.index(first)], name])
    return name if has_folder and not failed.startswith("/") else f"{folder}/{name}"


# ---- timeouts

_TIMEOUT_NAME = lazy_pattern(r"time[_-]?out|(?:\A|[_-])(?:max[_-]?)?wait(?:[_-]|\Z)|deadline", re.I)
_MILLISECONDS = lazy_pattern(r"ms\Z|milli|毫秒", re.I)
_MIN_MILLISECONDS: Final = 1000
"""A timeout this large is taken for milliseconds."""


def _lengthen_timeout(call: FailedCall) -> Iterator[Adjustment]:
    """Double a timeout, up to a minute and the schema's maximum."""
    if not call.is_timeout:
        return
    for name in dict.fromkeys([*call.parameters, *call.properties]):
        schema = call.schema_of(name)
        value = call.parameters.get(name, schema.get("default"))
        if not _TIMEOUT_NAME.search(name) or not _is_number(value) or value <= 0:
            continue
        words = f"{name} {schema.get('description', '')}"
        is_in_ms = value >= _MIN_MILLISECONDS or _MILLISECONDS.search(name) or _MILLISECONDS.search(words)
        highest = type(value)(_MAX_TIMEOUT * 1000 if is_in_ms else _MAX_TIMEOUT)
        longer = _fit_number(min(2 * value, highest), schema)
        if longer > value:
            amount = "twice as long" if longer == 2 * value else "as long as is allowed"
            reason = f"The call timed out: {name!r} is {amount}, {longer} instead of {value}."
            yield call.with_value(name, longer, reason, 0.6 if name in call.parameters else 0.55)


# ---- numbers as a schema allows them


def _is_number(value: Any) -> TypeGuard[_Number]:
    """Return whether the value is a finite number to calculate with. Booleans are not numbers here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER


def _fit_number(value: _Number, schema: JsonSchema) -> _Number:
    """Return the nearest number within the bounds of the schema, rounded down to the schema's step.

    An exclusive bound is met by whole numbers only; suggestions that do not pass the schema are dropped later.
    """
    is_integer = [kind for kind in allowed_types(schema) if kind != "null"] == ["integer"]
    for keyword, exclusive, side, step in (
        ("minimum", "exclusiveMinimum", max, 1),
        ("maximum", "exclusiveMaximum", min, -1),
    ):
        if _is_number(bound := schema.get(keyword)):
            value = side(value, bound)
        if _is_number(bound := schema.get(exclusive)):
            value = side(value, bound + step)
    multiple = schema.get("multipleOf")
    if _is_number(multiple) and multiple > 0 and value % multiple:
        value = value // multiple * multiple
    return int(value) if is_integer else value


# ---- selectors that matched nothing

_MAX_SELECTOR_LENGTH: Final = 1000
_MAX_ELEMENTS: Final = 3

_LOCATOR_NAME = lazy_pattern(r"selector|xpath|选择器", re.I)
_UNUSABLE_ELEMENT = lazy_pattern(
    r"not (?:visible|interactable|clickable|attached)|intercepts pointer|strict mode violation|stale element"
    r"|(?:in|not a )valid selector|不可见|不可点击",
    re.I,
)
_LISTED_ELEMENT = lazy_pattern(
    r"(?<=[:;] )(?P<selector>(?:(?!: |; )[^\n]){1,300}?) "
    r"\((?P<role>[a-z]{2,20})(?:, '(?P<text>[^'\n]{0,300})')?(?:, class '[^'\n]{1,300}')?\)(?=[;.]|\s*\Z)"
)
"""For example `On the page: a#stars (link, '28.4k stars'); span#n (number, '3', class 'count')`."""
_COMBINATOR = lazy_pattern(r"[\s>+~]+(?![^\[(]*[\])])")
_SELECTOR_PIECE = lazy_pattern(r"(?P<tag>\A[A-Za-z][\w-]*)|#(?P<id>[\w-]+)|\.(?P<class>[\w-]+)")
_POSITION = lazy_pattern(r":(?:nth-[\w-]+\([^)]*\)|(?:first|last|only)-(?:child|of-type))")
_EXACT_ATTRIBUTE = lazy_pattern(r"\[([\w-]+)=[\"']?([^\"'\]]+)[\"']?\]")
_LETTERS = lazy_pattern(r"[A-Za-z]{3,}")


def _replace_selector(call: FailedCall) -> Iterator[Adjustment]:
    if not (call.is_timeout or call.is_not_found or _UNUSABLE_ELEMENT.search(call.error)):
        return
    for name, value in call.texts():
        if not _is_locator_parameter(call, name) or not call.error_may_concern(value):
            continue
        # A tool lists the most similar elements first.
        is_css = name.lower() != "ref" and "xpath" not in name.lower()
        elements = _LISTED_ELEMENT.finditer(call.error) if is_css else ()
        for step, element in enumerate(islice(elements, _MAX_ELEMENTS)):
            content = f" {quote_value(element['text'][:60])}" if element["text"] else ""
            reason = f"{quote_value(value)} found nothing; the error lists the {element['role']}{content}."
            yield call.with_value(name, element["selector"], reason, 0.7 - 0.02 * step)
        for step, selector in enumerate(_relax_selector(value)):
            reason = f"{quote_value(value)} found nothing; this is less strict."
            yield call.with_value(name, selector, reason, 0.3 - 0.02 * min(step, 9))


def _is_locator_parameter(call: FailedCall, name: str) -> bool:
    if name.lower() in LOCATORS and not (name == "element" and "ref" in call.parameters):
        return True
    return _LOCATOR_NAME.search(f"{name} {call.schema_of(name).get('description', '')}") is not None


def _relax_selector(selector: str) -> Iterator[str]:
    """Yield less strict CSS selectors, the strictest first: without position and nesting, then by parts of names."""
    is_xpath = selector.startswith(("/", "./", "(/", "xpath="))
    if is_xpath or "=" in selector.partition("[")[0]:  # `text=…` and others that are not CSS
        return
    # The last compound names the element itself, the compounds before it what it is nested in.
    compound = _POSITION.sub("", _COMBINATOR.split(selector[:_MAX_SELECTOR_LENGTH].strip())[-1])
    if compound != selector and any(mark in compound for mark in "#.["):
        yield compound
    pieces = list(_SELECTOR_PIECE.finditer(_EXACT_ATTRIBUTE.sub("", compound)))
    tag = next((piece["tag"] for piece in pieces if piece["tag"]), "")
    names = [(kind, piece[kind]) for kind in ("class", "id") for piece in pieces if piece[kind]]
    for attribute, value in [*names, *_EXACT_ATTRIBUTE.findall(compound)]:
        for word in _LETTERS.findall(value)[:4]:
            yield f'{tag}[{attribute}*="{word}"]'
            yield f'[{attribute}*="{word}"]'


# ---- all strategies together

MAX_SUGGESTIONS: Final = 10
_MAX_CHECKED: Final = 20
"""Suggestions that are checked against the schema, the best first."""
_CHECKS_AT_ONCE: Final = 10
"""How many checks of the arguments must fit into the time that one call may take."""

_STRATEGIES: Final = (
    _fit_arguments_to_schema,
    _use_choice_from_error,
    _correct_url,
    _use_observed_path,
    _replace_selector,
    _lengthen_timeout,
)


def suggest_adjustments(
    capability: ToolCapability,
    parameters: Mapping[str, Any],
    error: str,
    observations: Sequence[str] = (),
    *,
    avoid: Collection[str] = (),
) -> list[Adjustment]:
    """Return other parameters that may work where these failed, best first. Each fits the schema and has a reason.

    Observations are texts that earlier calls returned, the newest last. No parameter is set to a text in `avoid`.
    If the schema is broken, or the parameters take too long to check, nothing is suggested.
    """
    try:
        check = _ArgumentCheck(capability, parameters)
    except SpecError:  # the schema itself is broken, so no arguments can pass
        return []
    call = FailedCall(capability, parameters, error, observations)
    if not check.permits(call.parameters):
        return []
    suggestions = chain.from_iterable(strategy(call) for strategy in _STRATEGIES)
    ranked = sorted(suggestions, key=lambda adjustment: -adjustment.confidence)
    new: list[Adjustment] = []
    for adjustment in ranked:
        values = [adjustment.parameters.get(name) for name in adjustment.changed]
        is_avoided = any(isinstance(value, str) and value in avoid for value in values)
        if not is_avoided and adjustment.parameters not in [call.parameters, *(each.parameters for each in new)]:
            new.append(adjustment)
    usable = (each for each in new[:_MAX_CHECKED] if check.accepts(each.parameters))
    return list(islice(usable, MAX_SUGGESTIONS))


class _ArgumentCheck:
    """The check of suggested arguments: strictly by the schema if the failed ones passed it, else leniently."""

    def __init__(self, capability: ToolCapability, failed: Mapping[str, Any]) -> None:
        self._lenient = ParameterCheck(capability)
        self._validator = BoundedValidator(capability.schema)
        self._is_strict = self._passes_schema(dict(failed))

    def permits(self, parameters: dict[str, Any]) -> bool:
        """Return whether the parameters can be coerced, and checked many times, without taking long."""
        is_bounded = self._validator.permits(parameters, times=_CHECKS_AT_ONCE)
        return is_bounded and self._validator.cost.permits_coercion(parameters)

    def accepts(self, parameters: dict[str, Any]) -> bool:
        if not self.permits(parameters):
            return False
        return self._passes_schema(parameters) or (not self._is_strict and self._lenient.check(parameters).is_valid)

    def _passes_schema(self, parameters: dict[str, Any]) -> bool:
        try:
            return self._validator.is_valid(parameters)
        except ValueError:  # a value that JSON cannot represent
            return False
