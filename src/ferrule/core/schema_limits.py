"""How costly it is to check values against a schema, and schemas compiled so that a check always ends soon.

Schemas come from other people's servers and documents. A few lines of references can expand to billions of checks for
one value, and a pattern may backtrack for years. Neither can be stopped once it runs, so the cost is estimated when the
schema is compiled: the number of subschemas that can apply to one value, at each depth of the value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from ferrule.core.content import is_nested_deeper
from ferrule.core.json_schema import JsonSchema, follow_reference
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
_NEED_ESTIMATE: Final = (
    _REFERENCES | _UNEVALUATED | {"pattern", "patternProperties", "enum", "dependentRequired", *_NUMBER_LIMITS}
)
_FEW_ALTERNATIVES: Final = 1_000
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
_LONG_FLOAT: Final = 2.0**64
_LONG_NUMBER_CHECKS: Final = 5_000
"""What it costs to compare with a number of very many digits, or to divide by a very small one."""
_FRACTION_CHECKS: Final = 25
"""What it costs to divide by a number that is not an integer."""

_Place: TypeAlias = "tuple[str, str | int | None]"
"""A property by its name, an item by its index; None for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaCost:
    """What checking values against a schema costs."""

    checks: int = 1
    """Subschemas that may be checked for one value; one with a pattern that may backtrack counts as many."""
    subschemas: int = 1
    """The same, where each counts as one."""
    required: int = 0
    """Names that may be missing."""
    max_depth: int | None = None
    """Levels of a value for which that holds; deeper values may cost more. None: any depth."""

    def permits(self, values: int) -> bool:
        return (_VALUE_CHECKS + self.checks) * values <= MAX_CHECKS

    def permits_coercion(self, value: Any) -> bool:
        """Whether values can be looked at one by one for another reading."""
        return self.subschemas * count_values(value) <= MAX_COERCED_CHECKS

    def permits_explanation(self, value: Any) -> bool:
        """Whether all errors of a value can be collected: each has a copy of the part of the value that it is about."""
        checks = self.subschemas * count_values(value)
        characters = (checks + self.required) * _count_characters(value)
        return checks <= MAX_EXPLAINED_CHECKS and characters <= MAX_EXPLAINED_CHARACTERS


def estimate_cost(schema: JsonSchema) -> SchemaCost:
    """The cost of a schema; SpecError says why it is too costly to be used."""
    structure = _analyze_structure(schema)
    if structure.needs_estimate or structure.alternatives > _FEW_ALTERNATIVES:
        try:
            cost = _CostEstimate(schema, _own_cost).compute()
            return replace(
                cost, subschemas=_CostEstimate(schema, lambda _: 1).compute().checks, required=structure.required
            )
        except RecursionError:
            raise SpecError("the schema is too costly to check: a reference leads to too many others") from None
    subschemas = 1 + structure.alternatives
    return SchemaCost(checks=subschemas, subschemas=subschemas, required=structure.required)


def compile_schema(schema: Any) -> Any:
    """A validator of jsonschema-rs whose patterns cannot run for long, and that fetches nothing.

    The schema must have passed `estimate_cost` if it comes from elsewhere.
    """
    import jsonschema_rs  # 30 ms to import: only when something is checked

    options = jsonschema_rs.FancyRegexOptions(backtrack_limit=MAX_BACKTRACKS, size_limit=MAX_PATTERN_SIZE)
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=options)


class BoundedValidator:
    """A compiled schema that accepts only values that can be checked at once. SpecError: no value can."""

    def __init__(self, schema: JsonSchema) -> None:
        self.cost, self._patterns, self.validator = estimate_cost(schema), PatternCost(schema), compile_schema(schema)

    def permits(self, value: Any) -> bool:
        """Whether the check of a value cannot take long."""
        depth = self.cost.max_depth
        is_deep = depth is not None and is_nested_deeper(value, depth)
        return not is_deep and self.cost.permits(count_values(value)) and self._patterns.permits(value)

    def is_valid(self, value: Any) -> bool:
        return self.permits(value) and bool(self.validator.is_valid(value))


class PatternCost:
    """How long texts may be matched with the patterns of a schema. A match cannot be interrupted, and takes as long as
    the text has characters and the pattern has states.
    """

    def __init__(self, schema: JsonSchema) -> None:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        total, references = _count_pattern_states(schema)
        self._states = {name: _count_pattern_states(part)[0] for name, part in properties.items()} if total else {}
        self._other_states = total - sum(self._states.values())
        """Of patterns that may be for any part of the value: those outside its properties, and what is referred to."""
        if references and total:  # a reference may be to any part of the schema
            self._states, self._other_states = {}, min(total * (1 + references), MAX_PATTERN_STEPS)

    @property
    def has_patterns(self) -> bool:
        return bool(self._other_states or self._states)

    def permits(self, value: Any) -> bool:
        """Whether all texts of a value can be matched at once; otherwise this is to be done in another process."""
        steps = self._other_states * _count_characters(value) if self._other_states else 0
        if isinstance(value, Mapping):
            used = ((states, value[name]) for name, states in self._states.items() if states and name in value)
            steps += sum(states * _count_characters(part) for states, part in used)
        return steps <= MAX_PATTERN_STEPS


def _count_pattern_states(schema: Any) -> tuple[int, int]:
    """The states of all patterns in a schema, and how many references it has."""
    states, references, pending = 0, 0, [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            pending += part.values()
            references += not _REFERENCES.isdisjoint(part)
            names = part.get("patternProperties")
            patterns = [part.get("pattern"), *(names if isinstance(names, dict) else ())]
            states += sum(count_states(pattern) for pattern in patterns if isinstance(pattern, str))
        elif isinstance(part, list):
            pending += part
    return min(states, MAX_PATTERN_STEPS), references


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
    """How many values there are in a JSON value. Very long numbers count as many."""
    count, pending = 0, [value]
    while pending and count <= MAX_CHECKS:  # more are too many for any schema; the value may contain itself
        part = pending.pop()
        count += 1
        if isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part
        elif isinstance(part, int):  # comparing one takes as long as the square of its digits
            count += part.bit_length() ** 2 // 10_000
        elif isinstance(part, float) and abs(part) > _LONG_FLOAT:
            count += 400
    return count


@dataclass(slots=True)
class _SchemaStructure:
    """What a walk over a schema shows, without following references."""

    alternatives: int = 0
    """Subschemas that apply to the same value as the schema they are in."""
    required: int = 0
    """Names that objects must have."""
    needs_estimate: bool = False
    """References may multiply its subschemas, or some of them are costly."""

    def add(self, part: dict[str, Any]) -> None:
        for keyword in _SAME_VALUE_LISTS:
            options = part.get(keyword)
            self.alternatives += len(options) if isinstance(options, list) else 0
        self.alternatives += sum(keyword in part for keyword in _SAME_VALUE_SCHEMAS)
        required, dependent = part.get("required"), part.get("dependentRequired")
        lists = [required, *(dependent.values() if isinstance(dependent, dict) else ())]
        self.required += sum(len(names) for names in lists if isinstance(names, list))
        self.needs_estimate = (
            self.needs_estimate
            or not _NEED_ESTIMATE.isdisjoint(part)
            and (not (_REFERENCES | _UNEVALUATED).isdisjoint(part) or _own_cost(part) > 1)
        )


def _analyze_structure(schema: Any) -> _SchemaStructure:
    """SpecError for a schema that is too large or nested too deep."""
    if _count_pattern_states(schema)[0] > MAX_SCHEMA_STATES:
        raise SpecError(
            f"the patterns of the schema are too large: together they have over {MAX_SCHEMA_STATES:,} states"
        )
    result, count = _SchemaStructure(), 0
    level: list[Any] = [schema]
    for _ in range(2 * MAX_SCHEMA_DEPTH):  # between two subschemas there is often a list or a map of them
        count += len(level)
        if count > MAX_SCHEMA_VALUES:
            raise SpecError(f"the schema is too large: it has more than {MAX_SCHEMA_VALUES:,} values")
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                result.add(part)
                inner += part.values()
            elif isinstance(part, list):
                inner += part
        if not inner:
            return result
        level = inner
    raise SpecError(f"the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep")


@dataclass(slots=True)
class _SubschemaCounts:
    """The subschemas that apply to the same value as a schema, and those that apply to its parts."""

    own: int
    parts: dict[_Place, Counter[int]]


class _SchemaReferences:
    """What the references in a schema may point to: every place that a validator could choose counts."""

    def __init__(self, root: JsonSchema, count_steps: Callable[[int], None]) -> None:
        self._root, self._count_steps = root, count_steps
        self._resources: list[JsonSchema] = [root]
        """The schemas with an address (`$id`); a reference with a path starts in one of them."""
        self._named: dict[str, list[JsonSchema]] = {}
        """By the names that references use instead of paths."""
        pending: list[Any] = [root]
        while pending:
            part = pending.pop()
            if isinstance(part, dict):
                self._add_names(part)
                pending += part.values()
            elif isinstance(part, list):
                pending += part

    def find_targets(self, schema: JsonSchema) -> list[JsonSchema]:
        """The schemas that the references of a schema apply to the same value."""
        targets = [target for key in ("$ref", "$dynamicRef") for target in self._follow(schema.get(key))]
        return [*targets, *(self._resources if "$recursiveRef" in schema else ())]

    def _add_names(self, part: JsonSchema) -> None:
        for address in (part.get("$id"), part.get("id")):
            before, _, name = address.partition("#") if isinstance(address, str) else ("", "", "")
            if before and part is not self._root:
                self._resources.append(part)
            if name:  # before `$anchor` there was `"$id": "#name"`
                self._named.setdefault(name, []).append(part)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(part.get(key), str):
                self._named.setdefault(part[key], []).append(part)

    def _follow(self, reference: Any) -> list[JsonSchema]:
        if not isinstance(reference, str):
            return []
        fragment = unquote(reference.partition("#")[2])
        # Many references, to many places in many resources, would take hours to follow.
        self._count_steps(len(self._resources) * (1 + fragment.count("/")))
        if fragment and not fragment.startswith("/"):
            return self._named.get(fragment) or [self._root]
        targets = [follow_reference({"$ref": f"#{fragment}"}, resource) for resource in self._resources]
        return [target for target in targets if target] or [self._root]


class _CostEstimate:
    def __init__(self, root: JsonSchema, own_cost: Callable[[JsonSchema], int]) -> None:
        self._root, self._own_cost = root, own_cost
        self._steps = 0
        self._references = _SchemaReferences(root, self._count_steps)
        self._schemas: dict[int, JsonSchema] = {}
        self._checks: dict[int, _SubschemaCounts | None] = {}
        """By the id of a schema; None while it is being computed."""

    def compute(self) -> SchemaCost:
        first = self._add(self._root)
        for number in self._iterate_schemas():
            self._count_subschemas_of(number)
        costs: dict[int, int] = dict.fromkeys(self._checks, 1)
        previous = 1
        for depth in range(1, MAX_VALUE_DEPTH + 1):
            costs, before = {number: self._cost_at_depth(number, costs) for number in self._checks}, costs
            if costs[first] > MAX_CHECKS_PER_VALUE:
                if depth <= MIN_VALUE_DEPTH:
                    raise _too_costly()
                return SchemaCost(checks=previous, max_depth=depth - 1)
            if costs == before:
                return SchemaCost(checks=costs[first])
            previous = costs[first]
        return SchemaCost(checks=previous, max_depth=MAX_VALUE_DEPTH)

    def _iterate_schemas(self) -> Iterator[int]:
        """All schemas that are added while this is iterated."""
        done = 0
        while done < len(self._schemas):
            numbers = list(self._schemas)[done:]
            done += len(numbers)
            yield from numbers

    def _add(self, schema: JsonSchema) -> int:
        self._schemas[id(schema)] = schema
        return id(schema)

    def _count_subschemas_of(self, number: int) -> _SubschemaCounts:
        if number in self._checks:
            return self._checks[number] or _SubschemaCounts(
                1, {}
            )  # a schema that applies itself to the same value again
        self._checks[number] = None
        schema = self._schemas[number]
        checks = _SubschemaCounts(self._own_cost(schema), {})
        for place, part in _schemas_of_parts(schema):
            self._count_steps()
            checks.parts.setdefault(place, Counter())[self._add(part)] += 1
        for inner in self._schemas_of_same_value(schema):
            self._count_steps()
            other = self._count_subschemas_of(self._add(inner))
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
            options = schema.get(keyword)
            candidates += options if isinstance(options, list) else []
        for keyword in ("dependentSchemas", "dependencies"):  # which of them counts depends on the draft
            dependent = schema.get(keyword)
            candidates += dependent.values() if isinstance(dependent, dict) else []
        candidates += self._references.find_targets(schema)
        return (candidate for candidate in candidates if isinstance(candidate, dict))

    def _cost_at_depth(self, number: int, costs: dict[int, int]) -> int:
        """The most checks for one value, where `costs` are those of its parts."""
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
    enum, dependent = schema.get("enum"), [schema.get("dependentRequired"), schema.get("dependencies")]
    options = sum(map(_count_option_checks, enum)) if isinstance(enum, list) else 0
    names = sum(len(each) for each in dependent if isinstance(each, dict))  # each is looked up in every value
    by_name = schema.get("patternProperties")
    patterns = [schema.get("pattern"), *(by_name if isinstance(by_name, dict) else ())]
    backtracking = sum(isinstance(text, str) and _needs_backtracking(text) for text in patterns)
    numbers = sum(_is_long_number(schema.get(keyword)) for keyword in _NUMBER_LIMITS) * _LONG_NUMBER_CHECKS
    numbers += _FRACTION_CHECKS if isinstance(schema.get("multipleOf"), float) else 0
    return 1 + options + names + backtracking * MAX_BACKTRACKS + numbers


def _count_option_checks(option: Any) -> int:
    return _OPTION_CHECKS[float] if _is_long_number(option) else _OPTION_CHECKS.get(type(option), 0)


def _is_long_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and value != 0 and not 1e-18 < abs(value) < 2**64


def _needs_backtracking(pattern: str) -> bool:
    """Return whether a pattern needs the engine that goes back: for a look around, a reference to a group, or a
    possessive quantifier (`a++`)."""
    if "(?" in pattern or any(f"\\{digit}" in pattern for digit in "123456789k"):
        return True
    is_after_quantifier = False
    for part in _PATTERN_PART.finditer(pattern) if "+" in pattern else ():
        if part["mark"] == "+" and is_after_quantifier:
            return True
        is_after_quantifier = part["least"] is not None or part["mark"] in ("*", "+", "?")
    return False


def _schemas_of_parts(schema: JsonSchema) -> Iterator[tuple[_Place, JsonSchema]]:
    properties = schema.get("properties")
    for name, inner in (properties if isinstance(properties, dict) else {}).items():
        if isinstance(inner, dict):
            yield ("property", name), inner
    by_pattern = schema.get("patternProperties")
    others = [*(by_pattern.values() if isinstance(by_pattern, dict) else ()), *map(schema.get, _ANY_PROPERTY)]
    for inner in others:
        if isinstance(inner, dict):
            yield ("property", None), inner
    for keyword in ("prefixItems", "items"):
        items = schema.get(keyword)
        for index, inner in enumerate(items if isinstance(items, list) else ()):
            if isinstance(inner, dict):
                yield ("item", index), inner
    for keyword in _ANY_ITEM:
        inner = schema.get(keyword)
        if isinstance(inner, dict):
            yield ("item", None), inner
