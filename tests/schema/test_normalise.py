"""Descriptions of parameters as people write them."""

import json
from pathlib import Path

import jsonschema_rs
import pytest

from ferrule.schema import normalise_schema

DESCRIPTIONS = Path(__file__).parents[3] / "shared" / "data" / "function_docs.jsonl"


@pytest.mark.parametrize(
    ("said", "meant"),
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
def test_lax_words_become_json_schema(said, meant):
    assert normalise_schema(said) == meant
    assert jsonschema_rs.meta.is_valid(normalise_schema(said))


def test_required_beside_a_parameter_goes_to_the_list():
    said = {"properties": {"a": {"type": "str", "required": True}, "b": {"required": False}}, "required": ["b", "b"]}
    assert normalise_schema(said) == {"properties": {"a": {"type": "string"}, "b": {}}, "required": ["b", "a"]}


def test_what_is_given_is_not_changed():
    said = {"type": "dict", "properties": {"a": {"type": "float", "optional": True}}}
    before = json.dumps(said)
    normalise_schema(said)
    assert json.dumps(said) == before


@pytest.mark.skipif(
    not DESCRIPTIONS.exists(), reason=f"needs the descriptions of {DESCRIPTIONS.name}, which are not here"
)
def test_thousands_of_descriptions_from_outside_become_what_they_mean():
    rows = [json.loads(line) for line in DESCRIPTIONS.read_text(encoding="utf-8").splitlines()]
    wrong = [row["source"] for row in rows if normalise_schema(row["parameters_raw"]) != row["parameters_normalised"]]
    assert len(rows) > 3000
    assert wrong == []
    assert all(jsonschema_rs.meta.is_valid(normalise_schema(row["parameters_raw"])) for row in rows)
