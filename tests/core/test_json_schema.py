"""Descriptions of parameters as people write them."""

import json
from pathlib import Path

import jsonschema_rs
import pytest

from ferrule.core.json_schema import normalize_schema

DESCRIPTIONS = Path(__file__).parents[3] / "shared" / "data" / "function_docs.jsonl"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"type": "dict"}, {"type": "object"}),
        ({"type": "float"}, {"type": "number"}),
        ({"type": "tuple", "items": {"type": "int"}}, {"type": "array", "items": {"type": "integer"}}),
        ({"type": "any", "description": "x"}, {"description": "x"}),
        ({"type": "HashMap"}, {}),
        ({"type": ["str", "None"]}, {"type": ["string", "null"]}),
        ({"type": ["str", "any"]}, {}),
        ({"type": {"odd": 1}}, {}),
        ({"items": "str"}, {"items": {"type": "string"}}),
        ({"items": [{"type": "int"}, "str"]}, {"prefixItems": [{"type": "integer"}, {"type": "string"}]}),
        ({"enum": "one"}, {"enum": ["one"]}),
        ({"anyOf": [{"type": "int"}, {"type": "null"}]}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ({"additionalProperties": False}, {"additionalProperties": False}),
        ({"properties": {"a": "integer", "b": None}}, {"properties": {"a": {"type": "integer"}, "b": {}}}),
        ({"properties": {"type": {"type": "str"}}}, {"properties": {"type": {"type": "string"}}}),
        ({"required": True, "optional": []}, {}),
    ],
)
def test_python_type_names_become_json_schema(raw, expected):
    assert normalize_schema(raw) == expected
    assert jsonschema_rs.meta.is_valid(normalize_schema(raw))


def test_required_beside_a_parameter_goes_to_the_list():
    raw = {"properties": {"a": {"type": "str", "required": True}, "b": {"required": False}}, "required": ["b", "b"]}
    assert normalize_schema(raw) == {"properties": {"a": {"type": "string"}, "b": {}}, "required": ["b", "a"]}


def test_the_original_is_not_changed():
    raw = {"type": "dict", "properties": {"a": {"type": "float", "optional": True}}}
    before = json.dumps(raw)
    normalize_schema(raw)
    assert json.dumps(raw) == before


@pytest.mark.skipif(
    not DESCRIPTIONS.exists(), reason=f"needs the descriptions of {DESCRIPTIONS.name}, which are not here"
)
def test_thousands_of_real_descriptions_become_valid_schemas():
    rows = [json.loads(line) for line in DESCRIPTIONS.read_text(encoding="utf-8").splitlines()]
    wrong = [row["source"] for row in rows if normalize_schema(row["parameters_raw"]) != row["parameters_normalised"]]
    assert len(rows) > 3000
    assert wrong == []
    assert all(jsonschema_rs.meta.is_valid(normalize_schema(row["parameters_raw"])) for row in rows)
