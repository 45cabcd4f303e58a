"""How costly a schema is, and which one is too costly."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.core.schema_limits import (
    MAX_CHECKS_PER_VALUE,
    BoundedValidator,
    SchemaCost,
    compile_schema,
    count_states,
    count_values,
    estimate_cost,
)
from ferrule.errors import SpecError


def unions(width: int, depth: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {"0": {"type": "string"}}
    for level in range(1, depth + 1):
        definitions[str(level)] = {"anyOf": [{"$ref": f"#/$defs/{level - 1}"}] * width}
    return {"type": "object", "properties": {"x": {"$ref": f"#/$defs/{depth}"}}, "$defs": definitions}


TREE = {"anyOf": [{"properties": {"op": {"const": name}, "left": {"$ref": "#/$defs/t"}}} for name in "abcdefghij"]}
JSON = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#"}}, {"additionalProperties": {"$ref": "#"}}]
}


def test_an_ordinary_schema_costs_little_at_any_depth():
    plain = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {}}}}
    assert estimate_cost(plain) == SchemaCost()
    assert estimate_cost(JSON).max_depth is None and estimate_cost(JSON).checks < 10


def test_references_multiply_the_cost():
    assert estimate_cost(unions(10, 2)).checks > 100
    assert estimate_cost(unions(10, 4)).checks <= MAX_CHECKS_PER_VALUE
    for keyword in ("anyOf", "oneOf", "allOf"):
        with pytest.raises(SpecError, match="too costly"):
            schema = unions(10, 12)
            schema["$defs"] = {name: {keyword: inner.get("anyOf", [])} for name, inner in schema["$defs"].items()}
            estimate_cost(schema)


def test_a_schema_that_multiplies_with_the_depth_of_a_value_limits_that_depth():
    cost = estimate_cost({"$ref": "#/$defs/t", "$defs": {"t": TREE}})
    assert cost.max_depth is not None and 3 <= cost.max_depth <= 10
    assert cost.checks <= MAX_CHECKS_PER_VALUE


def doubling(reference: dict[str, str], names: dict[str, str], place: str = "$defs") -> dict[str, Any]:
    """Each level of a value is checked twice as often as the one before it."""
    inner = {**names, "anyOf": [{"type": "array", "items": reference}] * 2}
    return {"type": "object", "properties": {"x": reference}, place: {"n": inner}}


REFERENCES = {
    "path": doubling({"$ref": "#/$defs/n"}, {}),
    "escaped path": doubling({"$ref": "#/%24defs/n"}, {}),
    "path in a list": {"properties": {"x": {"$ref": "#/y/0"}}, "y": [{"items": {"anyOf": [{"$ref": "#/y/0"}] * 2}}]},
    "anchor": doubling({"$ref": "#a"}, {"$anchor": "a"}),
    "dynamic anchor": doubling({"$dynamicRef": "#a"}, {"$dynamicAnchor": "a"}),
    "dynamic anchor by name": doubling({"$ref": "#a"}, {"$dynamicAnchor": "a"}),
    "address": doubling({"$ref": "https://example.com/a"}, {"$id": "https://example.com/a"}),
    "relative address": {**doubling({"$ref": "a"}, {"$id": "a"}), "$id": "https://example.com/"},
    "name of draft 7": doubling({"$ref": "#a"}, {"$id": "#a"}, "definitions"),
    "name of draft 4": doubling({"$ref": "#a"}, {"id": "#a"}, "definitions"),
    "path in an address": {
        "properties": {"x": {"$ref": "https://example.com/a"}},
        "$defs": {
            "b": {"type": "integer"},
            "a": {**doubling({"$ref": "#/$defs/b"}, {}), "$id": "https://example.com/a", "$ref": "#/$defs/b"}
            | {"$defs": {"b": {"items": {"anyOf": [{"$ref": "#/$defs/b"}] * 2}}}},
        },
    },
    "recursive reference": {
        "$id": "https://example.com/",
        "properties": {"x": {"$ref": "a"}},
        "$defs": {"a": {"$id": "a", "items": {"anyOf": [{"$recursiveRef": "#"}] * 2}}},
    },
}


@pytest.mark.parametrize("schema", REFERENCES.values(), ids=REFERENCES)
def test_every_way_to_refer_to_a_schema_counts(schema):
    cost = estimate_cost(schema)
    assert cost.max_depth is not None and cost.max_depth < 25 and cost.checks > 1_000


def test_dependencies_of_both_drafts_count():
    levels = {
        str(level): {"dependencies": {name: {"$ref": f"#/$defs/{level + 1}"} for name in "abcd"}} for level in range(9)
    }
    schema: dict[str, Any] = {"$ref": "#/$defs/0", "$defs": {**levels, "9": {}}, "dependentSchemas": {"a": {}}}
    schema["$defs"] = {name: {**inner, "dependentSchemas": {"a": {}}} for name, inner in schema["$defs"].items()}
    with pytest.raises(SpecError, match="too costly"):
        estimate_cost(schema)


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {"$ref": "#/no/where"}])
def test_a_schema_that_refers_to_itself_ends(schema):
    assert estimate_cost(schema).checks < 10


@pytest.mark.parametrize("make_values", [lambda: list(range(60_000)), lambda: [[[]] * 60_000]])
def test_a_schema_has_a_largest_size(make_values):
    with pytest.raises(SpecError, match="too large"):
        estimate_cost({"enum": make_values()})


def test_a_schema_has_a_largest_depth():
    schema: dict[str, Any] = {}
    for _ in range(20_000):
        schema = {"not": schema}
    with pytest.raises(SpecError, match="nested"):
        estimate_cost(schema)
    while schema:  # a value so deep cannot be freed by recursion
        schema = schema.pop("not")


def test_a_pattern_gives_up():
    validator = compile_schema({"pattern": "^((?!x)a|(?!y)a)*b$"})
    assert validator.is_valid("aaab") and not validator.is_valid("a" * 60 + "!")
    assert estimate_cost({"properties": {"a": {"pattern": "^(?=a)"}}}).checks > 1000
    assert estimate_cost({"properties": {"a": {"pattern": "^[a-z]+$"}}}).checks == 1


def test_values_are_counted():
    assert count_values({"a": [1, 2, {"b": None}]}) == 6


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        (r"(\w{1,100}){1,100}b", 10_001),
        (r"^[a-z0-9_]+$", 1),
        (r"^\d{4}-\d{2}-\d{2}$", 10),
        (r"(a{10}){10}{10}", 1_000),
        (r"(?:\w{1,40}\s?){1,50}x", 2_051),
        (r"[^]{}()]{2,}\{3}", 5),
        (r"\p{L}{5}\\{2}", 7),
        (r"^(?=a)b", 500),
        (r"(\w*)*+\d", 500),
        (r"a{2,3}+", 500),
        (r"[*+?]+\++", 2),
        ("(a{99}", 99),
        (")){3}", 1),
        ("[", 1),
        ("\\", 1),
    ],
)
def test_the_states_of_a_pattern_are_counted_as_often_as_they_are_repeated(pattern: str, states: int):
    assert count_states(pattern) == states


@given(st.text(alphabet=r"ab(){}[]\,|?*+^$0123456789:<=!", max_size=40))
def test_the_states_of_any_text_can_be_counted(pattern: str):
    assert count_states(pattern) >= 1


def test_only_the_texts_that_a_pattern_is_for_count():
    costly = {"pattern": r"(\w{1,100}){1,100}b"}
    cost = estimate_cost({"properties": {"code": costly, "text": {"type": "string"}}})
    assert cost.permits_texts({"code": "a" * 50, "text": "a" * 10_000_000})
    assert not cost.permits_texts({"code": "a" * 110}) and not cost.permits_texts({"code": [{"x": "a" * 110}]})
    schemas: list[dict[str, Any]] = [
        {"properties": {"text": {"$ref": "#/$defs/code"}}, "$defs": {"code": costly}},
        {"additionalProperties": costly},
        {"patternProperties": {costly["pattern"]: {}}},
        {"propertyNames": costly},
        {"allOf": [{"properties": {"text": costly}}]},
    ]
    for schema in schemas:
        assert estimate_cost(schema).permits_texts({"text": "a" * 5}), schema
        assert not estimate_cost(schema).permits_texts({"text": "a" * 110}), schema
        assert not estimate_cost(schema).permits_texts({"a" * 110: 1}), schema


def test_a_value_that_contains_itself_is_too_long_for_any_pattern():
    endless: list[Any] = []
    endless.append(endless)
    assert not estimate_cost({"additionalProperties": {"pattern": "a"}}).permits_texts({"x": endless})


def test_a_pattern_counts_wherever_a_reference_may_apply_it():
    pattern = {"pattern": "a[ab]{800}[^ab]"}
    by_property = {"properties": {"a": pattern, "b": {"$ref": "#/properties/a"}}}
    assert not estimate_cost(by_property).permits_texts({"b": "a" * 200_000})
    often = {"allOf": [{"additionalProperties": {"$ref": "#/$defs/x"}}] * 200, "$defs": {"x": pattern}}
    assert not estimate_cost(often).permits_texts({"b": "a" * 100})
    assert not estimate_cost({"items": pattern}).permits_texts([10**4000] * 50), "numbers may be taken for texts"
    assert not estimate_cost({"items": {"pattern": "abc"}}).permits_texts([""] * 100_000), "each text costs something"


@pytest.mark.parametrize("keyword", ["unevaluatedProperties", "unevaluatedItems"])
def test_what_is_checked_once_more_at_each_level_is_too_costly_when_it_is_nested(keyword: str):
    schema: dict[str, Any] = {"properties": {"q": {"type": "integer"}}}
    for _ in range(18):
        schema = {"anyOf": [schema], keyword: False}
    with pytest.raises(SpecError, match="too costly"):
        estimate_cost(schema)
    estimate_cost({"anyOf": [{"anyOf": [{}], keyword: False}], keyword: False})


def test_counting_the_states_of_a_strange_pattern_ends():
    assert count_states("(?x)a#" + "{999999999}" * 50_000) >= 1
    assert count_states(r"a[ab]{ 800 }") == 801


def test_many_values_that_take_long_to_compare_are_not_checked_at_once():
    slow: list[tuple[dict[str, Any], Any]] = [
        ({"enum": [n + 0.5 for n in range(3_000)]}, 0.5),
        ({"enum": [10**30 + n for n in range(3_000)]}, 10**30),
        ({"enum": list(range(40_000))}, 1),
        ({"dependentRequired": {f"n{n}": ["a"] for n in range(16_000)}}, {"a": 1}),
        ({"dependencies": {f"n{n}": ["a"] for n in range(16_000)}}, {"a": 1}),
        ({"multipleOf": 1e-300}, 1e300),
        ({"multipleOf": 0.01}, 1e300),
        ({"multipleOf": 0.1}, 0.3),
        ({"minimum": 0}, 10**4000),
        ({}, [[], []]),
    ]
    checks = [(BoundedValidator({"items": schema}), value) for schema, value in slow]
    wrong = [str(slow[n])[:80] for n, (check, value) in enumerate(checks) if not check.is_valid([value])]
    wrong += [str(slow[n])[:80] for n, (check, value) in enumerate(checks) if check.permits([value] * 600_000)]
    assert wrong == []


def test_patterns_that_take_long_to_compile_are_refused():
    large = {f"n{n}": {"pattern": r"[\w\W]{500}" + str(n)} for n in range(2_000)}
    with pytest.raises(SpecError, match="the patterns of the schema are too large"):
        estimate_cost({"properties": large})


def test_a_long_chain_of_references_is_refused():
    chain = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(10_000)}
    with pytest.raises(SpecError, match="too many others"):
        estimate_cost({"$ref": "#/$defs/a0", "$defs": {**chain, "a10000": {}}})


def test_errors_that_would_have_a_long_text_many_times_are_not_collected():
    cost = estimate_cost({"required": [f"n{n}" for n in range(10_000)]})
    assert cost.permits_explanation({"text": "x" * 100}) and not cost.permits_explanation({"text": "x" * 1_000_000})
