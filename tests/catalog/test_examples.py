import jsonschema_rs

from ferrule.catalog.descriptions import generate_example
from ferrule.core.spec import parse_parameters
from tests.catalog.search.searchable_tools import function_docs, mcp_servers, needs_data


def argument(**schema):
    """The value made for one required parameter."""
    name = schema.pop("name", "x")
    example = generate_example({"type": "object", "properties": {name: schema}, "required": [name]})
    return None if example is None else example[name]


def test_values_from_the_schema_come_first():
    assert argument(const=5) == 5
    assert argument(type="string", enum=["b", "a"], default="a") == "b"
    assert argument(type="string", default="d", examples=["e"]) == "d"
    assert argument(type="string", examples=["e"]) == "e"


def test_a_value_is_typical_of_its_type_format_and_name():
    values = [argument(type=t) for t in ("string", "integer", "number", "boolean", "array", "object", "null")]
    assert values == ["example", 1, 1, True, ["example"], {}, None]
    assert argument(type="string", format="date") == "2025-01-31"
    assert argument(type="string", name="image_url") == "https://example.com"


def test_a_value_keeps_within_its_bounds():
    for schema in (
        {"type": "integer", "minimum": 5},
        {"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 101},
        {"type": "integer", "maximum": -3},
        {"type": "integer", "minimum": 11, "multipleOf": 7},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "number", "multipleOf": 0.25, "maximum": 0.5, "minimum": 0.25},
        {"type": "string", "minLength": 20},
        {"type": "string", "maxLength": 2},
        {"type": "string", "pattern": "^[A-Z]{3}$"},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2},
        {"type": ["null", "integer"]},
        {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 4}]},
        {"allOf": [{"type": "integer"}, {"minimum": 4}]},
        {"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"]}, {"type": "null"}]},
    ):
        assert jsonschema_rs.is_valid(schema, argument(**schema)), schema


def test_references_are_followed_and_endless_ones_have_no_example():
    tree = {
        "type": "object",
        "properties": {"leaf": {"type": "integer"}, "under": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
        "required": ["leaf", "under"],
    }
    whole = {"type": "object", "properties": {"tree": {"$ref": "#/$defs/Tree"}}, "required": ["tree"]}
    example = generate_example({**whole, "$defs": {"Tree": tree}})
    assert example is not None and example["tree"]["leaf"] == 1
    assert (
        generate_example({"$ref": "#/$defs/A", "$defs": {"A": {"required": ["a"], "properties": {"a": {"$ref": "#"}}}}})
        is None
    )


def test_the_first_alternative_is_used():
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "url": {"type": "string"}},
        "anyOf": [{"required": ["url"]}, {"required": ["path"]}],
    }
    assert generate_example(schema) == {"url": "https://example.com"}


def test_the_first_parameter_is_used_where_none_is_required():
    assert generate_example({"type": "object", "properties": {"limit": {"type": "integer", "default": 5}}}) == {
        "limit": 5
    }
    assert generate_example({"type": "object", "properties": {}}) == {}


def test_there_is_no_example_rather_than_a_wrong_one():
    assert argument(type="string", pattern="^q{17}$") is None
    assert argument(type="integer", enum=["one"]) is None
    assert argument(type="wrong") is None


@needs_data
def test_examples_for_real_tools_are_valid():
    without = []
    for tool in [*mcp_servers(), *function_docs()]:
        for capability in tool.spec.capabilities:
            example = generate_example(capability.schema)
            if example is None:
                without.append(capability.name)
            else:
                assert jsonschema_rs.is_valid(capability.schema, example)
                assert example or not parse_parameters(capability.schema)
    # Their choices contradict their types: no value would do.
    assert len(without) <= 3


LOOP = {"A": {"allOf": [{"$ref": "#/$defs/A"}] * 10}}


def test_a_hostile_schema_has_no_example():
    for hostile in (
        {"$ref": "#/$defs/A"},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 10**9},
        {"type": "string", "pattern": r"^(\w*-?)*!$"},
        {"type": "number", "multipleOf": 1e-308, "minimum": 1e308},
    ):
        schema = {"type": "object", "properties": {"x": hostile}, "required": ["x"], "$defs": LOOP}
        assert generate_example(schema) is None, hostile


def test_counts_may_be_written_as_decimals():
    schema = {"type": "object", "properties": {"x": {"type": "string", "minLength": 9.0}}, "required": ["x"]}
    assert generate_example(schema) == {"x": "examplexx"}
