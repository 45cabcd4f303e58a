"""The parameters of an action: merged from all places, valid JSON Schema whatever the document says."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.kinds.openapi.tool import read_openapi
from tests.kinds.openapi.documents import document, document_2, get, post, schema_of


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def body_of(schema: Any, components: dict[str, Any] | None = None, version: str = "3.0.3") -> Any:
    more = {"components": {"schemas": components or {}}, "openapi": version}
    body = schema_of(document(post(schema), **more))["properties"]["body"]
    return {word: said for word, said in body.items() if word != "description"}


# Parameters


def test_parameters_of_all_places_are_one_object():
    parameters: list[dict[str, Any]] = [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
        {"name": "limit", "in": "query", "schema": {"type": "integer", "default": 10, "maximum": 50}},
        {"name": "X-Trace", "in": "header", "description": "For logs.", "schema": {"type": "string"}},
        {"name": "lang", "in": "cookie", "deprecated": True, "schema": {"enum": ["en", "zh"]}},
    ]
    assert schema_of(document(get("/pets/{id}", *parameters))) == {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "limit": {"type": "integer", "default": 10, "maximum": 50},
            "X-Trace": {"type": "string", "description": "For logs."},
            "lang": {"enum": ["en", "zh"], "description": "Deprecated."},
        },
        "required": ["id"],
    }


def test_names_that_clash_get_their_place_as_a_suffix_and_odd_names_are_made_plain():
    parameters = [{"name": "id", "in": place} for place in ("path", "query", "header")]
    parameters += [{"name": name, "in": "query"} for name in ("filter[name]", "filter.name", "filter_name", "$top")]
    tool = read_openapi(document(get("/pets/{id}", *parameters)))
    arguments = {each.argument: each.name for each in tool.target.operations["it"].arguments}
    assert list(arguments) == [
        *("id", "id_query", "id_header", "filter_name", "filter.name", "filter_name_query", "top"),
    ]
    assert arguments["filter_name"] == "filter[name]" and arguments["top"] == "$top"


def test_the_body_is_one_parameter_and_gives_way_to_a_parameter_of_its_name():
    parameters = [{"name": "body", "in": "query", "schema": {"type": "string"}}]
    schema = schema_of(document(post({"type": "object"}, parameters=parameters)))
    assert list(schema["properties"]) == ["body", "request_body"]
    assert schema["required"] == ["request_body"]


def test_an_operation_overrides_the_parameters_of_its_path_and_references_are_followed():
    shared = {"components": {"parameters": {"P": {"name": "page", "in": "query", "schema": {"type": "integer"}}}}}
    listed = {"$ref": "#/components/parameters/P"}
    own = {"name": "page", "in": "query", "schema": {"type": "string"}}
    paths = {"/a": {"parameters": [listed], "get": {"operationId": "it"}, "post": {"parameters": [own]}}}
    source = document(paths, **shared)
    assert schema_of(source)["properties"]["page"] == {"type": "integer"}
    assert schema_of(source, "post_a")["properties"]["page"] == {"type": "string"}


def test_what_a_path_names_but_nobody_describes_is_required_text():
    schema = schema_of(document(get("/pets/{id}/{id}?key={key}")))
    assert schema["properties"] == {"id": {"type": "string"}, "key": {"type": "string"}}
    assert schema["required"] == ["id", "key"]


def test_headers_the_client_sets_itself_are_not_asked_for():
    names = ["Content-Type", "Authorization", "Host", "Content-Length", "Accept", "X-Own"]
    parameters = [{"name": name, "in": "header", "schema": {"type": "string"}} for name in names]
    assert list(schema_of(document(get("/a", *parameters)))["properties"]) == ["Accept", "X-Own"]


def test_a_default_that_does_not_fit_is_left_out():
    parameters = [
        {"name": "a", "in": "query", "schema": {"type": "integer", "default": "ten"}},
        {"name": "b", "in": "query", "schema": {"type": "string", "enum": ["x"], "default": ""}},
    ]
    assert ["default" in p for p in schema_of(document(get("/a", *parameters)))["properties"].values()] == [False] * 2


def test_version_2_says_types_beside_names_and_forms_as_parameters():
    parameters = [
        {"name": "limit", "in": "query", "type": "integer", "default": 5, "required": True},
        {"name": "note", "in": "formData", "type": "string", "required": True},
        {"name": "photo", "in": "formData", "type": "file"},
    ]
    schema = schema_of(document_2({"/pets": {"post": {"operationId": "it", "parameters": parameters}}}))
    assert schema["properties"]["limit"] == {"type": "integer", "default": 5}
    body = schema["properties"]["body"]
    assert body["required"] == ["note"] and set(body["properties"]) == {"note", "photo"}
    assert body["description"].endswith("Sent as multipart/form-data. Only text can be sent as a file: photo.")


# Schemas


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        (
            {"allOf": [{"type": "object"}], "nullable": True},
            {"anyOf": [{"allOf": [{"type": "object"}]}, {"type": "null"}]},
        ),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"type": "file"}, {"type": "string"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "integer", "enum": ["1", "2"]}, {"enum": ["1", "2"]}),
        ({"type": "string", "example": "x", "xml": {}, "x-y": 1, "title": "T"}, {"type": "string", "examples": ["x"]}),
        ({"type": "string", "format": "password"}, {"type": "string", "format": "password", "writeOnly": True}),
        ({"type": "dict", "required": True, "enum": "x", "pattern": "(?<", "minLength": -1, "maximum": "9"}, {}),
        ({"required": ["a", "a", 1], "multipleOf": 0, "anyOf": []}, {"required": ["a"]}),
    ],
)
def test_what_openapi_says_in_its_own_way_becomes_json_schema(said, becomes):
    assert body_of(said) == becomes


def test_members_only_answers_have_are_left_out_and_defaults_are_only_told():
    said = {
        "type": "object",
        "required": ["id", "name"],
        "properties": {"id": ref("Id"), "name": {"type": "string"}, "on": {"type": "boolean", "default": True}},
    }
    body = body_of(said, {"Id": {"type": "integer", "readOnly": True}})
    assert body["required"] == ["name"]
    assert body["properties"] == {
        "name": {"type": "string"},
        "on": {"type": "boolean", "description": "Default: true."},
    }


def test_references_become_definitions_also_when_schemas_contain_themselves():
    node = {"type": "object", "properties": {"next": ref("Node"), "odd name": ref("A%20b~1c")}}
    source = document(post(ref("Node")), components={"schemas": {"Node": node, "A b/c": {"type": "string"}}})
    schema = schema_of(source)
    assert schema["properties"]["body"]["$ref"] == "#/$defs/Node"
    assert schema["$defs"]["Node"]["properties"]["next"] == {"$ref": "#/$defs/Node"}
    check = jsonschema_rs.validator_for(schema, offline=True)
    assert check.is_valid({"body": {"next": {"next": {}}, "odd name": "x"}})
    assert not check.is_valid({"body": {"next": {"next": {"odd name": 1}}}})


@pytest.mark.parametrize(
    "components",
    [
        {"A": ref("B"), "B": ref("A")},
        {"A": {"allOf": [ref("A")]}},
        {"A": ref("Gone")},
        {"A": {"properties": {f"p{n}": ref(f"S{n}") for n in range(3)}}, "S0": ref("A"), "S1": {}, "S2": "odd"},
        {"A": {"properties": {"n": ref("S0")}}} | {f"S{n}": {"items": ref(f"S{n + 1}")} for n in range(2000)},
    ],
)
def test_strange_references_do_no_harm(components):
    schema = schema_of(document(post(ref("A")), components={"schemas": components}))
    assert jsonschema_rs.validator_for(schema, offline=True).is_valid({"body": {}})


def test_two_actions_share_what_was_converted_once():
    paths = {f"/{n}": post(ref("A"))["/pets"] for n in range(2)}
    first, second = read_openapi(document(paths, components={"schemas": {"A": {"type": "object"}}})).spec.capabilities
    assert first.schema["$defs"]["A"] is second.schema["$defs"]["A"]


WORDS = st.sampled_from(
    """
    type $ref properties required items enum default nullable minimum pattern const exclusiveMinimum allOf anyOf not
    additionalProperties readOnly description format maxLength multipleOf example uniqueItems
    """.split()
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["object", "string", "#/components/schemas/A", "("]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(WORDS, JSON, max_size=5), st.dictionaries(WORDS, JSON, max_size=5))
def test_whatever_a_document_says_its_schema_compiles(said, component):
    source = json.dumps(json.loads(document(post(said), components={"schemas": {"A": component}})))
    try:
        schema = schema_of(source)
    except Exception as error:
        assert "refers to another file" in str(error)
    else:
        jsonschema_rs.validator_for(schema, offline=True)
