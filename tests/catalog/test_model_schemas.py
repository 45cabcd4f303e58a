import json
import re
from typing import Any

import jsonschema_rs

from ferrule.catalog.descriptions import DescriptionEngine, generate_example
from ferrule.catalog.model_schemas import simplify_schema
from ferrule.catalog.registry import ToolRegistry
from tests.catalog.sample_tools import BROWSER, FORECAST
from tests.catalog.search.searchable_tools import function_docs, make_tool, mcp_servers, needs_data

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "the name of a city"},
        "days": {"type": "integer", "description": "how many, from today", "default": 3},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
    },
    "required": ["city"],
}
DESCRIPTION = "Tell the weather of the next days. Knows every town."


def test_a_tool_for_openai():
    function = {"name": "forecast", "description": DESCRIPTION, "parameters": PARAMETERS}
    assert DescriptionEngine(ToolRegistry([FORECAST])).openai_schemas() == [{"type": "function", "function": function}]


def test_a_tool_for_anthropic():
    assert DescriptionEngine(ToolRegistry([FORECAST])).anthropic_schemas() == [
        {"name": "forecast", "description": DESCRIPTION, "input_schema": PARAMETERS}
    ]


def test_a_tool_for_mcp():
    assert DescriptionEngine(ToolRegistry([FORECAST])).mcp_schemas() == [
        {
            "name": "forecast",
            "description": DESCRIPTION,
            "inputSchema": PARAMETERS,
            "outputSchema": {"type": "object", "additionalProperties": {"type": "string"}},
            "annotations": {"readOnlyHint": True},
        }
    ]


def test_schemas_are_sorted_by_name_whatever_the_order_of_registration():
    again = make_tool("forecast", "Another.", source="mcps")
    first = DescriptionEngine(ToolRegistry([FORECAST, BROWSER, again])).openai_schemas()
    second = DescriptionEngine(ToolRegistry([again, BROWSER, FORECAST])).openai_schemas()
    assert json.dumps(first) == json.dumps(second)
    names = [schema["function"]["name"] for schema in first]
    assert names == ["browser_navigator__click", "browser_navigator__navigate", "forecast"]
    assert first[2]["function"]["description"] == DESCRIPTION


def test_schemas_follow_the_registry():
    registry = ToolRegistry([FORECAST])
    engine = DescriptionEngine(registry)
    assert len(engine.mcp_schemas()) == len(engine.mcp_schemas()) == 1
    registry.add(BROWSER)
    assert len(engine.mcp_schemas()) == 3
    registry.disable("forecast")
    assert len(engine.mcp_schemas()) == 2


def test_a_description_too_long_for_openai_is_cut_at_a_sentence():
    long = make_tool("long", "It goes on and on. " * 100)
    engine = DescriptionEngine(ToolRegistry([long]))
    [schema] = engine.openai_schemas()
    assert len(schema["function"]["description"]) <= 1024 and schema["function"]["description"].endswith("on.")
    assert engine.anthropic_schemas()[0]["description"] == long.spec.description


def test_top_level_annotations_are_removed_and_definitions_are_kept():
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "args",
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "additionalProperties": False,
        "$defs": {"A": {"type": "string"}},
    }
    assert simplify_schema(schema) == {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "additionalProperties": False,
        "$defs": {"A": {"type": "string"}},
    }


def test_what_tells_a_model_nothing_is_left_out_of_its_schemas_and_stays_in_those_of_mcp():
    inner = {"type": "object", "properties": {"title": {"type": "string"}}, "additionalProperties": False}
    properties = {
        "start_time": {"type": "string", "title": "Start Time"},
        "branch": {"type": "string", "title": "Name of the branch"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "options": {"anyOf": [inner, {"type": "null"}], "default": {"additionalProperties": False}},
    }
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    engine = DescriptionEngine(ToolRegistry([make_tool("start", "Start.", parameters=schema)]))
    [openai], [anthropic], [mcp] = engine.openai_schemas(), engine.anthropic_schemas(), engine.mcp_schemas()
    assert (
        openai["function"]["parameters"]
        == anthropic["input_schema"]
        == {
            "type": "object",
            "properties": {
                "start_time": {"type": "string"},
                "branch": {"type": "string", "title": "Name of the branch"},
                "labels": properties["labels"],
                "options": {
                    "type": "object",
                    "properties": {"title": {"type": "string"}},
                    "default": {"additionalProperties": False},
                },
            },
        }
    )
    assert mcp["inputSchema"] == schema


def test_alternatives_at_the_top_become_one_object():
    circle = {"type": "object", "properties": {"id": {}, "radius": {"type": "number"}}, "required": ["id", "radius"]}
    square = {"type": "object", "properties": {"id": {}, "side": {"type": "number"}}, "required": ["side", "id"]}
    assert simplify_schema({"type": "object", "oneOf": [circle, {"$ref": "#/$defs/S"}], "$defs": {"S": square}}) == {
        "type": "object",
        "properties": {"id": {}, "side": {"type": "number"}, "radius": {"type": "number"}},
        "required": ["id"],
        "$defs": {"S": square},
    }


def test_parts_at_the_top_are_all_required():
    first = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    second = {"properties": {"b": {"type": "string"}}, "required": ["b"]}
    joined = simplify_schema({"type": "object", "allOf": [first, second]})
    assert (set(joined["properties"]), joined["required"], "allOf" in joined) == ({"a", "b"}, ["a", "b"], False)


def test_a_reference_at_the_top_is_followed():
    schema = {"$ref": "#/definitions/A", "definitions": {"A": {"type": "object", "properties": {"a": {}}}}}
    assert simplify_schema(schema)["properties"] == {"a": {}}


def test_arrays_always_have_items():
    schema = {
        "type": "object",
        "properties": {"any": {"type": "array"}, "pair": {"type": "array", "items": [{"type": "integer"}, {}]}},
    }
    assert simplify_schema(schema)["properties"] == {
        "any": {"type": "array", "items": {}},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {}], "items": {}},
    }


def test_a_parameter_named_like_a_keyword_stays():
    inner = {"type": "object", "properties": {"$schema": {"type": "string"}, "items": True, "type": {}}}
    outer = simplify_schema({"type": "object", "properties": {"$schema": inner}})
    assert outer["properties"]["$schema"]["properties"] == {"$schema": {"type": "string"}, "items": {}, "type": {}}


@needs_data
def test_schemas_of_real_tools_are_accepted_by_the_apis():
    engine = DescriptionEngine(ToolRegistry([*mcp_servers(), *function_docs()]))
    schemas = [schema["function"] for schema in engine.openai_schemas()]
    assert len(schemas) > 2000 and schemas == sorted(schemas, key=lambda schema: schema["name"])
    for function in schemas:
        parameters = function["parameters"]
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", function["name"]) and len(function["description"]) <= 1024
        assert parameters["type"] == "object" and isinstance(parameters["properties"], dict)
        assert not parameters.keys() & {"$schema", "$ref", "anyOf", "oneOf", "allOf", "enum", "not"}
        jsonschema_rs.validator_for(parameters, offline=True)


@needs_data
def test_the_simplified_schema_accepts_what_the_original_accepts():
    for tool in [*mcp_servers(), *function_docs()[::5]]:
        for capability in tool.spec.capabilities:
            example = generate_example(capability.schema)
            assert example is None or jsonschema_rs.is_valid(simplify_schema(capability.schema), example)


def test_a_tool_with_malformed_parameters_does_not_affect_the_others():
    odd = [
        make_tool("a", "x", parameters={"p": "string"}),
        make_tool("b", "x", parameters={"type": "object", "anyOf": 7}),
    ]
    endless = make_tool("c", "x", parameters={"type": "object", "anyOf": [{"$ref": "#"}], "required": 3})
    engine = DescriptionEngine(ToolRegistry([*odd, endless, FORECAST]))
    assert [schema["input_schema"]["properties"] for schema in engine.anthropic_schemas()[:3]] == [{}, {}, {}]
    assert engine.describe_within_budget(2000).count("Tool: ") == 4


def test_references_that_expand_to_billions_of_schemas_are_simplified():
    choice = {"type": "object", "anyOf": [{"$ref": "#/$defs/A"}] * 10}
    assert simplify_schema({"$ref": "#/$defs/A", "$defs": {"A": choice}})["properties"] == {}


def test_a_schema_that_is_nested_too_deep_is_replaced():
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(2_000):
        deep = {"type": "array", "items": deep}
    assert simplify_schema({"type": "object", "properties": {"x": deep}}) == {"type": "object", "properties": {}}
