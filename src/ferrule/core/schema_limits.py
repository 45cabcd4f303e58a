"""How costly it is to check values against a schema, and schemas compiled so that a check always ends soon.

Schemas come from other people's servers and documents. A few lines of references can expand to billions of checks for
one value, and a pattern may backtrack for years. Neither can be stopped once it runs, so the cost is estimated when the
schema is compiled: the number of subschemas that can apply to one value, at each depth of the value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from ferrule.core.content import is_nested_deeper
from ferrule.core.json_schema import JsonSchema, follow_reference, properties_of, read_list_keyword
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import SpecError

MAX_SCHEMA_VALUES: Final = 50_000
"""Objects, lists, texts and numbers in one schema."""
MAX_SCHEMA_DEPTH: Final = 60
"""Levels of nested subschemas."""
MAX_CHECKS_PER_VALUE: Final = 100_000
MAX_CHECKS: Final = 10_000_000
"""In one call: less than a second."""
MAX_COERCED_CHECKS: Final = 250_000
"""Looking for another reading of a value takes up to 2 µs for each subschema."""
MAX_EXPLAINED_CHECKS: Final = 10_000
"""Explaining why arguments are invalid takes several hundred times as long as finding out that they are."""
MAX_EXPLAINED_CHARACTERS: Final = 100_000_000
"""Of all errors together."""
MAX_BACKTRACKS: Final = 5_000
"""Steps a pattern may go back for one text; a text that needs more does not match."""
MAX_PATTERN_SIZE: Final = 2 * 1024 * 1024
"""Bytes of a compiled pattern."""
MAX_SCHEMA_STATES: Final = 50_000
"""Of all patterns of one schema: compiling a state takes up to 40 µs."""
MAX_PATTERN_STEPS: Final = 1_000_000
"""Characters of a value, each counted as often as the patterns for it have states. A step takes up to 0.15 µs."""
MAX_ESTIMATE_STEPS: Final = 100_000
"""Real schemas take up to 4,000; a step takes up to 2 µs."""
MAX_VALUE_DEPTH: Final = 64
"""Levels of a value for which the cost is estimated."""
MIN_VALUE_DEPTH: Final = 2
"""Arguments must be able to have this many levels: the object itself and its values."""

_SAME_VALUE_SCHEMAS: Final = ("not", "if", "then", "else")
_SAME_VALUE_LISTS: Final = ("anyOf", "oneOf", "allOf")
_ANY_PROPERTY: Final = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_ANY_ITEM: Final = ("items", "additionalItems", "unevaluatedItems", "contains")
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "dependentSchemas", "dependencies"})
_UNEVALUATED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
"""For these, the subschemas that apply to the same value are checked once more, and so on in each of them."""
_VALUE_CHECKS: Final = 5
"""What it costs to read a value, as checks."""
_NUMBER_LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const")
_BACKTRACKING_STATES: Final = 500
_TEXT_COST: Final = 20
"""What it costs to match a text, as characters: there may be many short ones."""
_PATTERN_PART: Final = lazy_pattern(
    r"(?P<open>\((?:\?(?:[:=!]|<[=!]|P?<\w+>))?)|(?P<close>\))|\{\s*(?P<least>\d+)\s*(?:,\s*(?P<most>\d*)\s*)?\}"
    r"|(?P<mark>[*+?|^$])|\\[pP]\{\w+\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.",
    re.DOTALL,
)
_OPTION_CHECKS: Final = {dict: 50, list: 50, float: 25, int: 2}
"""What it costs to compare a value with an option of `enum`, by its type; texts are looked up."""
_NAMES_PER_CHECK: Final = 10
"""Texts of `enum` or `required` with which another reading of a value is compared in the time of one check."""
_LONG_FLOAT: Final = 2.0**64
_LONG_NUMBER_CHECKS: Final = 5_000
"""What it costs to compare with a number of very many digits, or to divide by a very small one."""
_FRACTION_CHECKS: Final = 25
"""What it costs to divide by a number that is not an integer."""

_Place: TypeAlias = "tuple[str, str | int | None]"
"""A property by its name, an item by its index; None for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaCost:
    """Estimate of what it costs to check values against a schema."""

    checks: int = 1
    """Subschemas that may be checked for one value; one with a pattern that may backtrack counts as many."""
    subschemas: int = 1
    """The same, where each counts as one, and as more if it has many options or required names: another reading of a
    value is compared with each of them."""
    required: int = 0
    """Names that may be missing."""
    max_depth: int | None = None
    """Levels of a value for which that holds; deeper values may cost more. None: any depth."""
    states: Mapping[str, int] = field(default_factory=dict)
    """Of the patterns in each property. A match takes as long as the pattern has states and the text has characters."""
    other_states: int = 0
    """Of patterns that may be for any part of the value: those outside the properties, and what is referred to."""

    @property
    def has_patterns(self) -> bool:
        return bool(self.other_states or self.states)

    def permits_depth(self, value: Any) -> bool:
        return self.max_depth is None or not is_nested_deeper(value, self.max_depth)

    def permits_size(self, value: Any, times: int = 1) -> bool:
        return times * (_VALUE_CHECKS + self.checks) * count_values(value) <= MAX_CHECKS

    def permits_texts(self, value: Any, times: int = 1) -> bool:
        """Return whether all texts of a value can be matched with the patterns this many times at once.

        Other values are checked in another process (`ferrule.process.checks`): a match cannot be interrupted.
        """
        steps = self.other_states * _count_characters(value) if self.other_states else 0
        if isinstance(value, Mapping):
            used = ((states, value[name]) for name, states in self.states.items() if states and name in value)
            steps += sum(states * _count_characters(part) for states, part in used)
        return times * steps <= MAX_PATTERN_STEPS

    def permits_coercion(self, value: Any) -> bool:
        """Return whether values can be looked at one by one for another reading."""
        return self.subschemas * count_values(value) <= MAX_COERCED_CHECKS

    def permits_explanation(self, value: Any) -> bool:
        """Return whether all errors can be collected: each has a copy of the part of the value that it is about."""
        checks = self.subschemas * count_values(value)
        parts = islice(_iterate_values(value), MAX_EXPLAINED_CHECKS if self.required else 0)
        missing = self.required * sum(isinstance(part, dict) for part in parts)  # each may lack all names
        characters = (checks + missing) * _count_characters(value)
        return max(checks, missing) <= MAX_EXPLAINED_CHECKS and characters <= MAX_EXPLAINED_CHARACTERS


def estimate_cost(schema: JsonSchema) -> SchemaCost:
    """Estimate the cost of a schema. Raises SpecError for one that is too costly to be used."""
    parts = _list_parts(schema)
    references = sum(not _REFERENCES.isdisjoint(part) for part in parts)
    total = _count_pattern_states(parts)
    if total > MAX_SCHEMA_STATES:
        raise SpecError(
            f"the patterns of the schema are too large: together they have over {MAX_SCHEMA_STATES:,} states"
        )
    try:
        checks, max_depth = _CostEstimate(parts, _own_cost).compute()
        is_simple = checks == 1 and all(_reading_cost(part) == 1 for part in parts)
        subschemas, _ = (1, None) if is_simple else _CostEstimate(parts, _reading_cost).compute()
    except RecursionError:
        raise SpecError("the schema is too costly to check: a reference leads to too many others") from None
    required = 0
    for part in parts:
        dependent = part.get("dependentRequired")
        names = [part.get("required"), *(dependent.values() if isinstance(dependent, dict) else ())]
        required += sum(len(each) for each in names if isinstance(each, list))
    states: dict[str, int] = {}
    if references and total:  # a reference may be to any part of the schema
        total = min(total * (1 + references), MAX_PATTERN_STEPS)
    elif total:
        states = {name: _count_pattern_states(_list_parts(part)) for name, part in properties_of(schema).items()}
    return SchemaCost(
        checks=checks,
        subschemas=subschemas,
        required=required,
        max_depth=max_depth,
        states=states,
        other_states=total - sum(states.values()),
    )


def compile_schema(schema: Any) -> Any:
    """Compile a validator of jsonschema-rs whose patterns cannot run for long, and that fetches nothing.

    The schema must have passed `estimate_cost` if it comes from elsewhere.
    """
    import jsonschema_rs  # 30 ms to import: only when something is checked

    options = jsonschema_rs.FancyRegexOptions(backtrack_limit=MAX_BACKTRACKS, size_limit=MAX_PATTERN_SIZE)
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=options)


class BoundedValidator:
    """A compiled schema that accepts only values that can be checked at once.

    Raises SpecError for a schema that is too costly, and ValueError for one that is invalid.
    """

    def __init__(self, schema: JsonSchema) -> None:
        self.cost, self.validator = estimate_cost(schema), compile_schema(schema)

    def permits(self, value: Any, *, times: int = 1) -> bool:
        """Return whether checking a value this many times cannot take long."""
        cost = self.cost
        return cost.permits_depth(value) and cost.permits_size(value, times) and cost.permits_texts(value, times)

    def is_valid(self, value: Any) -> bool:
        return self.permits(value) and bool(self.validator.is_valid(value))


def _list_parts(schema: Any) -> list[JsonSchema]:
    """Return every dictionary in a schema. Raises SpecError for a schema that is too large or nested too deep."""
    parts: list[JsonSchema] = []
    count, level = 0, [schema]
    for _ in range(2 * MAX_SCHEMA_DEPTH):  # between two subschemas there is often a list or a map of them
        count += len(level)
        if count > MAX_SCHEMA_VALUES:
            raise SpecError(f"the schema is too large: it has more than {MAX_SCHEMA_VALUES:,} values")
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                parts.append(part)
                inner += part.values()
            elif isinstance(part, list):
                inner += part
        if not inner:
            return parts
        level = inner
    raise SpecError(f"the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep")


def _count_pattern_states(parts: Iterable[JsonSchema]) -> int:
    return min(sum(count_states(pattern) for part in parts for pattern in _patterns_of(part)), MAX_PATTERN_STEPS)


def _patterns_of(schema: JsonSchema) -> list[str]:
    names = schema.get("patternProperties")
    patterns = [schema.get("pattern"), *(names if isinstance(names, dict) else ())]
    return [pattern for pattern in patterns if isinstance(pattern, str)]


def count_states(pattern: str) -> int:
    """About how many states a pattern has: its characters and classes, each as often as it may be repeated."""
    groups, last, position = [0], 0, 0
    while position < len(pattern):
        match = _PATTERN_PART.match(pattern, position)
        assert match is not None, "the last alternative matches any character"
        position = match.end()
        if match["open"]:
            groups.append(0)
        elif match["close"]:
            last = groups.pop() if len(groups) > 1 else 0
            groups[-1] += last
        elif match["least"]:
            repeated = last * max(int(match["least"][:9]), int((match["most"] or "1")[:9]), 1)
            repeated = min(repeated, MAX_PATTERN_STEPS)
            groups[-1] += repeated - last
            last = repeated
        elif not match["mark"]:
            groups[-1], last = groups[-1] + 1, 1
    return max(sum(groups), _BACKTRACKING_STATES if _needs_backtracking(pattern) else 1)


def _count_characters(value: Any) -> int:
    count, pending, parts = 0, [value], 0
    while pending:
        part = pending.pop()
        parts += 1
        if parts > MAX_PATTERN_STEPS:  # it contains itself, or has too many parts for any pattern
            return MAX_PATTERN_STEPS + 1
        if isinstance(part, str):
            count += _TEXT_COST + (len(part) if part.isascii() else 4 * len(part))
        elif isinstance(part, int):  # lenient checks take it for a text
            count += _TEXT_COST + part.bit_length() // 3
        elif isinstance(part, Mapping):
            pending += [*part, *part.values()]
        elif isinstance(part, (list, tuple)):
            pending += part
    return count


def count_values(value: Any) -> int:
    """Return how many values there are in a JSON value. Very long numbers count as many."""
    count = 0
    for part in _iterate_values(value):
        count += 1
        if isinstance(part, int):  # comparing one takes as long as the square of its digits
            count += part.bit_length() ** 2 // 10_000
        elif isinstance(part, float) and abs(part) > _LONG_FLOAT:
            count += 400
        if count > MAX_CHECKS:  # too many for any schema
            break
    return count


def _iterate_values(value: Any) -> Iterator[Any]:
    """Yield a JSON value and all values in it; without end, if it contains itself."""
    pending = [value]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part


@dataclass(slots=True)
class _SubschemaCounts:
    """The subschemas that apply to the same value as a schema, and those that apply to its parts."""

    own: int
    parts: dict[_Place, Counter[int]]


class _CostEstimate:
    def __init__(self, parts: list[JsonSchema], own_cost: Callable[[JsonSchema], int]) -> None:
        """Take all dictionaries of a schema, itself first."""
        self._root, self._own_cost = parts[0], own_cost
        names = ("$id", "id", "$anchor", "$dynamicAnchor")
        self._named = [
            part for part in parts if part is self._root or any(isinstance(part.get(name), str) for name in names)
        ]
        """The schemas that references may use by a name, or that paths may start in."""
        self._steps = 0
        self._pending = [self._root]
        self._checks: dict[int, _SubschemaCounts | None] = {}
        """By the id of a schema; None while it is being computed."""

    def compute(self) -> tuple[int, int | None]:
        """Return the most checks for one value, and the depth of values up to which that holds (None: any depth)."""
        while self._pending:
            self._count_subschemas_of(self._pending.pop())
        first = id(self._root)
        costs: dict[int, int] = dict.fromkeys(self._checks, 1)
        previous = 1
        for depth in range(1, MAX_VALUE_DEPTH + 1):
            costs, before = {number: self._cost_at_depth(number, costs) for number in self._checks}, costs
            if costs[first] > MAX_CHECKS_PER_VALUE:
                if depth <= MIN_VALUE_DEPTH:
                    raise _too_costly()
                return previous, depth - 1
            if costs == before:
                return costs[first], None
            previous = costs[first]
        return previous, MAX_VALUE_DEPTH

    def _count_subschemas_of(self, schema: JsonSchema) -> _SubschemaCounts:
        number = id(schema)
        if number in self._checks:  # None: a schema that applies itself to the same value again
            return self._checks[number] or _SubschemaCounts(1, {})
        self._checks[number] = None
        checks = _SubschemaCounts(self._own_cost(schema), {})
        for place, part in _schemas_of_parts(schema):
            self._count_steps()
            self._pending.append(part)
            checks.parts.setdefault(place, Counter())[id(part)] += 1
        for inner in self._schemas_of_same_value(schema):
            self._count_steps()
            other = self._count_subschemas_of(inner)
            checks.own = min(checks.own + other.own, MAX_CHECKS)
            for place, targets in other.parts.items():
                mine = checks.parts.setdefault(place, Counter())
                for target, times in targets.items():
                    self._count_steps()
                    mine[target] = min(mine[target] + times, MAX_CHECKS)
        if not _UNEVALUATED.isdisjoint(schema):
            checks.own = min(3 * checks.own, MAX_CHECKS)
        self._checks[number] = checks
        return checks

    def _schemas_of_same_value(self, schema: JsonSchema) -> Iterator[JsonSchema]:
        candidates = [schema.get(keyword) for keyword in _SAME_VALUE_SCHEMAS]
        for keyword in _SAME_VALUE_LISTS:
            candidates += read_list_keyword(keyword, schema)
        for keyword in ("dependentSchemas", "dependencies"):  # which of them counts depends on the draft
            dependent = schema.get(keyword)
            candidates += dependent.values() if isinstance(dependent, dict) else []
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            candidates += self._find_targets(schema.get(keyword))
        return (candidate for candidate in candidates if isinstance(candidate, dict))

    def _find_targets(self, reference: Any) -> list[JsonSchema]:
        """Find what a reference may point to: every place that a validator could choose counts."""
        if not isinstance(reference, str):
            return []
        fragment = unquote(reference.partition("#")[2])
        # Many references, to many places in many schemas, would take hours to follow.
        self._count_steps(len(self._named) * (1 + fragment.count("/")))
        if not fragment.startswith("/"):
            return self._named
        targets = [follow_reference({"$ref": f"#{fragment}"}, start) for start in self._named]
        return [target for target in targets if target] or [self._root]

    def _cost_at_depth(self, number: int, costs: dict[int, int]) -> int:
        """Return the most checks for one value, where `costs` are those of its parts."""
        checks = self._checks[number]
        assert checks is not None
        sums: dict[_Place, int] = {}
        for place, targets in checks.parts.items():
            self._steps += len(targets)
            sums[place] = sum(times * costs.get(target, 1) for target, times in targets.items())
        self._count_steps()
        everywhere = {"property": sums.get(("property", None), 0), "item": sums.get(("item", None), 0)}
        totals = (total + (everywhere[place[0]] if place[1] is not None else 0) for place, total in sums.items())
        return min(max(checks.own, *totals, 0), MAX_CHECKS)

    def _count_steps(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > MAX_ESTIMATE_STEPS:
            raise _too_costly()


def _too_costly() -> SpecError:
    return SpecError(
        f"the schema is too costly to check: one value may need more than {MAX_CHECKS_PER_VALUE:,} checks, because its "
        "alternatives or references multiply"
    )


def _own_cost(schema: JsonSchema) -> int:
    dependent = [schema.get("dependentRequired"), schema.get("dependencies")]
    options = sum(
        _OPTION_CHECKS[float] if _is_long_number(option) else _OPTION_CHECKS.get(type(option), 0)
        for option in read_list_keyword("enum", schema)
    )
    names = sum(len(each) for each in dependent if isinstance(each, dict))  # each is looked up in every value
    backtracking = sum(map(_needs_backtracking, _patterns_of(schema)))
    numbers = sum(_is_long_number(schema.get(keyword)) for keyword in _NUMBER_LIMITS) * _LONG_NUMBER_CHECKS
    numbers += _FRACTION_CHECKS if isinstance(schema.get("multipleOf"), float) else 0
    return 1 + options + names + backtracking * MAX_BACKTRACKS + numbers


def _reading_cost(schema: JsonSchema) -> int:
    names = len(read_list_keyword("enum", schema)) + len(read_list_keyword("required", schema))
    return 1 + names // _NAMES_PER_CHECK


def _is_long_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and value != 0 and not 1e-18 < abs(value) < 2**64


def _needs_backtracking(pattern: str) -> bool:
    """Return whether a pattern needs the engine that goes back: for a look around, a reference to a group, or a
    possessive quantifier (`a++`).
    """
    if "(?" in pattern or any(f"\\{digit}" in pattern for digit in "123456789k"):
        return True
    is_after_quantifier = False
    for part in _PATTERN_PART.finditer(pattern) if "+" in pattern else ():
        if part["mark"] == "+" and is_after_quantifier:
            return True
        is_after_quantifier = part["least"] is not None or part["mark"] in ("*", "+", "?")
    return False


def _schemas_of_parts(schema: JsonSchema) -> Iterator[tuple[_Place, JsonSchema]]:
    by_pattern = schema.get("patternProperties")
    any_property = [*(by_pattern.values() if isinstance(by_pattern, dict) else ()), *map(schema.get, _ANY_PROPERTY)]
    places: list[tuple[_Place, Any]] = [
        *((("property", name), inner) for name, inner in properties_of(schema).items()),
        *((("property", None), inner) for inner in any_property),
        *((("item", None), schema.get(keyword)) for keyword in _ANY_ITEM),
    ]
    for keyword in ("prefixItems", "items"):
        places += ((("item", index), inner) for index, inner in enumerate(read_list_keyword(keyword, schema)))
    return ((place, inner) for place, inner in places if isinstance(inner, dict))
