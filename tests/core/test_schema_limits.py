"""How costly a schema is, and which one is too costly."""

from typing import Any

import pytest

from ferrule.core.schema_limits import MAX_CHECKS_PER_VALUE, SchemaCost, compile_schema, count_values, estimate_cost
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


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {"$ref": "#/no/where"}])
def test_a_schema_that_refers_to_itself_ends(schema):
    assert estimate_cost(schema).checks < 10


@pytest.mark.parametrize(
    ("schema", "message"),
    [({"enum": list(range(60_000))}, "too large"), ({"enum": [[[]] * 60_000]}, "too large")],
)
def test_a_schema_has_a_largest_size(schema, message):
    with pytest.raises(SpecError, match=message):
        estimate_cost(schema)


def test_a_schema_has_a_largest_depth():
    schema: dict[str, Any] = {}
    for _ in range(100_000):
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
