from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.catalog.validation import ParameterCheck, ToolParameterValidator
from ferrule.catalog.validation.coercion import WholeFloats
from ferrule.core.spec import JsonSchema, ToolCapability, ToolSpec
from ferrule.errors import SpecError


def check(parameters, params, *, strict=False):
    return ParameterCheck(ToolCapability(name="t", description="", parameters=parameters), strict=strict).check(params)


HTTP = {
    "url": {"type": "string", "required": True, "pattern": "^https?://"},
    "method": {"type": "string", "enum": ["GET", "POST"], "default": "GET"},
    "timeout": {"type": "number", "minimum": 1, "maximum": 300, "default": 30},
}


def test_valid_arguments_pass_and_defaults_are_filled():
    result = check(HTTP, {"url": "https://a.b"})
    assert result.is_valid
    assert result.validated_params == {"url": "https://a.b", "method": "GET", "timeout": 30}


def test_all_errors_are_reported_with_path_and_expectation():
    result = check(HTTP, {"url": "ftp://x", "method": "FETCH", "timeout": 0})
    errors = {e.path: (e.code, e.message) for e in result.errors}
    assert errors == {
        "url": ("pattern", "must match the pattern ^https?://, not 'ftp://x'."),
        "method": ("enum", "must be one of GET, POST, not 'FETCH'."),
        "timeout": ("minimum", "must be at least 1, not 0."),
    }


def test_a_missing_parameter_is_reported_with_the_similar_one_that_was_passed():
    [error] = check(HTTP, {"urll": "https://a.b"}).errors
    assert str(error) == "url: is required. You passed 'urll': did you mean 'url'?"
    assert error.expected == "text matching ^https?://"


def test_a_wrong_enum_value_gets_the_most_similar_one_as_a_hint():
    [error] = check(HTTP, {"url": "https://a.b", "method": "POTS"}).errors
    assert error.hint == "Did you mean 'POST'?"


def test_nested_errors_have_a_path():
    items = {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}}
    [error] = check({"items": items}, {"items": [{"id": 1}, {"id": "x"}]}).errors
    assert error.path == "items[1].id"


def test_defaults_are_filled_at_every_depth_without_changing_the_arguments():
    nested = {
        "type": "object",
        "properties": {
            "retries": {"type": "integer", "default": 3},
            "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"default": 1}}}},
        },
    }
    given_params = {"options": {"list": [{}, {"n": 2}]}}
    result = check({"options": nested}, given_params)
    assert result.validated_params == {"options": {"retries": 3, "list": [{"n": 1}, {"n": 2}]}}
    assert given_params == {"options": {"list": [{}, {"n": 2}]}}


def test_a_default_that_is_a_list_is_not_shared_between_calls():
    parameters = {"tags": {"type": "array", "default": []}}
    first = check(parameters, {}).validated_params
    first["tags"].append("x")
    assert check(parameters, {}).validated_params == {"tags": []}


def test_defaults_behind_references_and_in_recursive_schemas_are_filled():
    schema = {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/Node"}},
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "kind": {"type": "string", "default": "leaf"},
                    "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
                },
            }
        },
    }
    assert check(schema, {"node": {}}).validated_params == {"node": {"kind": "leaf"}}


def test_lenient_mode_coerces_what_has_one_reading():
    for schema, came, becomes in (
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, " -7 ", -7),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, 5.0, 5),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "boolean"}, "True", True),
        ({"type": "string"}, 12, "12"),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array"}, {1}, [1]),
        ({"enum": ["GET", "POST"]}, "get", "GET"),
        ({"type": ["integer", "null"]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, "true", True),
        ({"type": "array", "items": {"type": "integer"}}, '["1", 2]', [1, 2]),
    ):
        assert check({"x": schema}, {"x": came}).validated_params == {"x": becomes}, (schema, came)


def test_lenient_mode_does_not_guess():
    for schema, came in (
        ({"type": "integer"}, "5.5"),
        ({"type": "integer"}, "five"),
        ({"type": "integer"}, True),
        ({"type": "boolean"}, "yes"),
        ({"type": "boolean"}, 1),
        ({"type": "string"}, True),
        ({"type": "array"}, "1,2"),
        ({"type": "object"}, "[1]"),
        ({"enum": ["a", "A"]}, "á"),
        ({"type": "integer"}, "１２"),
    ):
        assert not check({"x": schema}, {"x": came}).is_valid, (schema, came)


def test_strict_mode_coerces_nothing():
    [error] = check({"x": {"type": "integer"}}, {"x": "5"}, strict=True).errors
    assert str(error) == "x: must be a whole number, not '5'."


def test_strict_mode_refuses_unknown_parameters_with_the_near_name():
    [error] = check({"limit": {"type": "integer"}}, {"limt": 5}, strict=True).errors
    assert str(error) == "limt: there is no parameter 'limt'. Did you mean 'limit'?"


def test_lenient_mode_leaves_unknown_parameters_out_and_says_so():
    result = check({"limit": {"type": "integer"}}, {"limit": 5, "colour": "red"})
    assert (result.validated_params, result.ignored) == ({"limit": 5}, ("colour",))


def test_a_schema_that_forbids_or_allows_more_parameters_takes_precedence():
    shut = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    open_ = {"type": "object", "properties": {"a": {}}, "additionalProperties": True}
    assert not check(shut, {"b": 1}).is_valid
    assert check(open_, {"b": 1}, strict=True).validated_params == {"b": 1}


def test_null_for_an_optional_parameter_means_absent():
    parameters = {"limit": {"type": "integer", "default": 10}, "q": {"type": ["string", "null"]}}
    assert check(parameters, {"limit": None, "q": None}).validated_params == {"limit": 10, "q": None}


def test_a_secret_never_shows_in_an_error():
    [error] = check({"token": {"type": "string", "maxLength": 3, "writeOnly": True}}, {"token": "hunter2"}).errors
    assert "hunter2" not in str(error.to_dict())


def test_arguments_that_are_not_an_object_are_explained():
    [error] = check(HTTP, ["x"]).errors
    assert "must be an object" in error.message


def test_python_objects_become_json_or_in_strict_mode_an_error():
    parameters = {"when": {"type": "string"}, "where": {"type": "string"}}
    params = {"when": date(2026, 1, 2), "where": Path("a/b")}
    assert check(parameters, params).validated_params == {"when": "2026-01-02", "where": "a/b"}
    [error] = check(parameters, params, strict=True).errors
    assert str(error) == "when: must be a JSON value, not a Python date."


def test_integers_beyond_64_bits_pass():
    assert check({"n": {"type": "integer"}}, {"n": 2**100}).validated_params == {"n": 2**100}


def test_the_error_for_an_invalid_schema_names_the_tool():
    with pytest.raises(SpecError, match="'t' are not a valid JSON Schema"):
        check({"type": "object", "properties": {"a": {"type": "nonsense"}}}, {})


def test_a_remote_reference_is_not_fetched():
    with pytest.raises(SpecError):
        check({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}, {"a": 1})


def test_the_validator_needs_an_action_of_several():
    spec = ToolSpec(tool_id="t", capabilities=[ToolCapability(name=n, description="") for n in "ab"])
    with pytest.raises(SpecError, match="a, b"):
        ToolParameterValidator().validate(spec, {})
    assert ToolParameterValidator().validate(spec, {}, action="a").is_valid


def test_recursive_and_exponential_schemas_are_validated():
    def ref(number: int) -> dict[str, str]:
        return {"$ref": f"#/$defs/S{number}"}

    tree = {"type": "object", "properties": {"child": ref(0), "size": {"type": "integer", "default": 1}}}
    union = {"anyOf": [ref(1), {"type": "string"}]}
    twice = {f"S{n}": {"type": "object", "properties": {"a": ref(n + 1), "b": ref(n + 1)}} for n in range(2, 60)}
    parameters = {
        "type": "object",
        "properties": {"tree": ref(0), "union": ref(1), "twice": ref(2)},
        "$defs": {"S0": tree, "S1": union, **twice, "S60": {"type": "object"}},
    }
    result = check(parameters, {"tree": {"child": {}}, "union": "x", "twice": {"a": {"b": {}}}})
    assert result.is_valid
    assert result.validated_params["tree"] == {"child": {"size": 1}, "size": 1}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])


@given(TYPES, JSON)
def test_accepted_values_have_the_declared_type(kind, value):
    result = check({"x": {"type": kind, "required": True}}, {"x": value})
    if result.is_valid:
        assert check({"x": {"type": kind, "required": True}}, result.validated_params, strict=True).is_valid
    else:
        assert result.errors


def test_a_schema_is_read_once_for_all_items_of_a_list():
    """Thousands of items with hundreds of alternatives would take seconds, which no timeout could end."""

    class Alternatives(list[JsonSchema]):
        reads = 0

        def __iter__(self) -> Iterator[JsonSchema]:
            self.reads += 1
            return super().__iter__()

    alternatives = Alternatives({"type": "integer", "maximum": maximum} for maximum in range(3))
    schema: JsonSchema = {"type": "array", "items": {"anyOf": alternatives}}
    assert WholeFloats(schema).convert([1.0, 2.0, "3", 4.5], schema) == [1, 2, "3", 4.5]
    assert alternatives.reads == 1
