import json
import re
from typing import Any

import jsonschema_rs
import pytest

from ferrule.describe import DescriptionEngine
from ferrule.describe.example import example_of
from ferrule.describe.model_schema import for_models
from ferrule.registry import ToolRegistry
from tests.describe.tools import BROWSER, FORECAST
from tests.search.making import function_docs, made, mcp_servers, needs_data

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


def test_schemas_come_by_name_one_for_each_whatever_the_order_of_registration():
    again = made("forecast", "Another.", source="mcps")
    one = DescriptionEngine(ToolRegistry([FORECAST, BROWSER, again])).openai_schemas()
    other = DescriptionEngine(ToolRegistry([again, BROWSER, FORECAST])).openai_schemas()
    assert json.dumps(one) == json.dumps(other)
    names = [schema["function"]["name"] for schema in one]
    assert names == ["browser_navigator__click", "browser_navigator__navigate", "forecast"]
    assert one[2]["function"]["description"] == DESCRIPTION


def test_schemas_follow_the_registry():
    registry = ToolRegistry([FORECAST])
    engine = DescriptionEngine(registry)
    assert len(engine.mcp_schemas()) == len(engine.mcp_schemas()) == 1
    registry.add(BROWSER)
    assert len(engine.mcp_schemas()) == 3
    registry.disable("forecast")
    assert len(engine.mcp_schemas()) == 2


def test_a_description_too_long_for_openai_is_cut_at_a_sentence():
    long = made("long", "It goes on and on. " * 100)
    engine = DescriptionEngine(ToolRegistry([long]))
    [schema] = engine.openai_schemas()
    assert len(schema["function"]["description"]) <= 1024 and schema["function"]["description"].endswith("on.")
    assert engine.anthropic_schemas()[0]["description"] == long.spec.description


def test_noise_at_the_top_is_left_out_and_definitions_are_kept():
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "args",
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "additionalProperties": False,
        "$defs": {"A": {"type": "string"}},
    }
    assert for_models(schema) == {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "additionalProperties": False,
        "$defs": {"A": {"type": "string"}},
    }


def test_a_choice_at_the_top_becomes_one_object_that_allows_each():
    circle = {"type": "object", "properties": {"id": {}, "radius": {"type": "number"}}, "required": ["id", "radius"]}
    square = {"type": "object", "properties": {"id": {}, "side": {"type": "number"}}, "required": ["side", "id"]}
    assert for_models({"type": "object", "oneOf": [circle, {"$ref": "#/$defs/S"}], "$defs": {"S": square}}) == {
        "type": "object",
        "properties": {"id": {}, "side": {"type": "number"}, "radius": {"type": "number"}},
        "required": ["id"],
        "$defs": {"S": square},
    }


def test_parts_at_the_top_are_all_required():
    one = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    other = {"properties": {"b": {"type": "string"}}, "required": ["b"]}
    joined = for_models({"type": "object", "allOf": [one, other]})
    assert (set(joined["properties"]), joined["required"], "allOf" in joined) == ({"a", "b"}, ["a", "b"], False)


def test_a_reference_at_the_top_is_followed():
    schema = {"$ref": "#/definitions/A", "definitions": {"A": {"type": "object", "properties": {"a": {}}}}}
    assert for_models(schema)["properties"] == {"a": {}}


def test_arrays_say_what_is_in_them():
    schema = {
        "type": "object",
        "properties": {"any": {"type": "array"}, "pair": {"type": "array", "items": [{"type": "integer"}, {}]}},
    }
    assert for_models(schema)["properties"] == {
        "any": {"type": "array", "items": {}},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {}], "items": {}},
    }


def test_a_parameter_called_like_a_word_of_json_schema_stays():
    inner = {"type": "object", "properties": {"$schema": {"type": "string"}, "items": True, "type": {}}}
    outer = for_models({"type": "object", "properties": {"$schema": inner}})
    assert outer["properties"]["$schema"]["properties"] == {"$schema": {"type": "string"}, "items": {}, "type": {}}


@needs_data
def test_real_tools_have_schemas_that_the_apis_take():
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
def test_what_a_real_tool_takes_its_looser_schema_takes_too():
    for tool in [*mcp_servers(), *function_docs()[::5]]:
        for capability in tool.spec.capabilities:
            example = example_of(capability.schema)
            assert example is None or jsonschema_rs.is_valid(for_models(capability.schema), example)


def test_a_tool_whose_parameters_make_no_sense_does_not_spoil_the_others():
    odd = [made("a", "x", parameters={"p": "string"}), made("b", "x", parameters={"type": "object", "anyOf": 7})]
    endless = made("c", "x", parameters={"type": "object", "anyOf": [{"$ref": "#"}], "required": 3})
    engine = DescriptionEngine(ToolRegistry([*odd, endless, FORECAST]))
    assert [schema["input_schema"]["properties"] for schema in engine.anthropic_schemas()[:3]] == [{}, {}, {}]
    assert engine.describe_within(2000).count("Tool: ") == 4


@pytest.mark.timeout(10)
def test_a_few_references_that_stand_for_billions_of_schemas_are_said_loosely():
    choice = {"type": "object", "anyOf": [{"$ref": "#/$defs/A"}] * 10}
    assert for_models({"$ref": "#/$defs/A", "$defs": {"A": choice}})["properties"] == {}


def test_what_is_nested_deeper_than_can_be_read_spoils_nothing():
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(2_000):
        deep = {"type": "array", "items": deep}
    assert for_models({"type": "object", "properties": {"x": deep}}) == {"type": "object", "properties": {}}
