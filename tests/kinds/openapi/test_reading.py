"""What a document becomes: actions, servers, credentials; and what is wrong with one that cannot be read."""

import asyncio
import copy
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.core.spec import Tool, ToolType
from ferrule.errors import LoadError
from ferrule.http.guard import AddressGuard
from ferrule.kinds.openapi import document as document_module
from ferrule.kinds.openapi.operation import OpenApiTarget, Operation
from ferrule.kinds.openapi.tool import read_openapi
from tests.kinds.openapi.documents import SERVER, document, document_2, get, post
from tests.support.http_servers import serve_http

YAML = """\
openapi: 3.1.0
info: {title: Pet Shop, version: 2024-01-01}
servers: [{url: https://api.example/v1}]
paths:
  /pets:
    get: {operationId: list pets, responses: {200: {description: ok}}}
"""


def operation(source: str, action: str = "it", **options) -> Operation:
    api = read_openapi(source, **options).target
    assert isinstance(api, OpenApiTarget)
    return api.operations[action]


# Actions


def test_each_operation_is_an_action_of_one_tool():
    named = {"operationId": "listPets", "summary": "List pets", "description": "All of them.", "deprecated": True}
    tool = read_openapi(document({"/pets": {"get": named, "post": {}}, "/pets/{petId}/toys": {"delete": {}}}))
    assert (tool.id, tool.handler, tool.source, tool.spec.tool_type) == ("pet_shop", "openapi", "tools", ToolType.HTTP)
    assert [c.name for c in tool.spec.capabilities] == ["listPets", "post_pets", "delete_pets_by_petId_toys"]
    assert tool.spec.capabilities[0].description == "Deprecated. List pets\nAll of them."
    assert tool.spec.capabilities[1].description == "POST /pets"


def test_names_that_collide_are_numbered():
    paths = {path: {"get": {"operationId": "pets.get"}} for path in ("/a", "/b")} | {"/pets/get": {"get": {}}}
    assert [c.name for c in read_openapi(document(paths)).spec.capabilities] == [
        *("pets_get", "pets_get_2", "get_pets_get"),
    ]


def test_an_operation_id_that_is_no_text_names_nothing():
    operations = {"get": {"operationId": 404}, "post": {"operationId": True}, "put": {"operationId": ["x"]}}
    spec = read_openapi(document({"/pets": operations})).spec
    assert [c.name for c in spec.capabilities] == ["get_pets", "post_pets", "put_pets"]


def test_methods_tell_what_a_call_does_to_the_world():
    methods = ["get", "head", "put", "delete", "post", "patch"]
    spec = read_openapi(document({"/x": {method: {} for method in methods}})).spec
    effects = {c.name.partition("_")[0]: spec.effects_of(c) for c in spec.capabilities}
    assert [m for m in methods if effects[m].read_only] == ["get", "head"]
    assert [m for m in methods if effects[m].idempotent] == ["get", "head", "put", "delete"]
    assert [m for m in methods if effects[m].destructive] == ["delete"]


@pytest.mark.parametrize("wanted", ["list pets", "list_pets", "GET /pets"])
def test_only_the_operations_asked_for_are_taken(wanted: str):
    paths = {"/pets": {"get": {"operationId": "list pets"}, "post": {}}}
    assert [c.name for c in read_openapi(document(paths), operations=[wanted]).spec.capabilities] == ["list_pets"]


def test_a_changed_document_is_a_changed_tool():
    one, same = read_openapi(document(get("/a"))), read_openapi(document(get("/a")))
    assert one.spec.fingerprint == same.spec.fingerprint
    assert one.spec.fingerprint != read_openapi(document(get("/b"))).spec.fingerprint


# Where documents come from


def test_json_and_yaml_are_read_from_files_and_texts(tmp_path: Path):
    path = tmp_path / "shop.yaml"
    path.write_text(YAML)
    for tool in (read_openapi(path), read_openapi(str(path)), read_openapi(YAML)):
        assert (tool.spec.version, tool.spec.capabilities[0].name) == ("2024-01-01", "list_pets")
    assert read_openapi(path).origin == f"{path}:1"


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="names no open files")
def test_a_document_is_read_from_a_pipe_up_to_its_largest_size(monkeypatch: pytest.MonkeyPatch):
    def read_from_pipe(content: str) -> Tool:
        reading, writing = os.pipe()
        try:
            with open(writing, "w") as file:
                file.write(content)
            return read_openapi(f"/dev/fd/{reading}")
        finally:
            os.close(reading)

    assert read_from_pipe(YAML).spec.capabilities[0].name == "list_pets"
    monkeypatch.setattr(document_module, "MAX_SIZE", 100)
    with pytest.raises(LoadError, match="larger than 100 bytes"):
        read_from_pipe(YAML)


@pytest.mark.integration
async def test_a_document_is_fetched_and_relative_servers_start_where_it_was():
    said = document(get("/pets"), servers=[{"url": "../v2/"}]).encode()
    guard = AddressGuard(allowed_hosts=["127.0.0.1"])
    async with serve_http(lambda request: (200, {}, said)) as server:
        tool = await asyncio.to_thread(read_openapi, f"{server.url}/docs/api.json?token=x", guard=guard)
    assert tool.target.operations["it"].server == f"{server.url}/v2"
    assert server.requests[0].path == "/docs/api.json?token=x" and "token" not in tool.origin


@pytest.mark.integration
async def test_a_document_at_a_private_address_is_not_fetched_unless_allowed():
    async with serve_http(lambda request: (200, {}, b"{}")) as server:
        with pytest.raises(LoadError, match="connecting to '127.0.0.1' is not allowed"):
            read_openapi(f"{server.url}/api.json")
    assert server.requests == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no/such/file.json", "no/such/file.json:1: the file cannot be read"),
        ('{"openapi": ', "<text>:1: not JSON"),
        ("openapi: [\n", "<text>:1: not YAML"),
        ("- a\n- b\n", "it is not a mapping"),
        ('{"info": {}}', "not an OpenAPI document of version 2 or 3"),
        ('{"swagger": "1.2"}', "not an OpenAPI document of version 2 or 3"),
        (document({}), "describes no operations"),
        (document(get("/a"), servers=[{"url": "/v1"}]), "the server '/v1' has no host (name one: server='https://"),
        (document(get("/a"), servers=[{"url": "https://me:pw@a.example"}]), "contains a password"),
        (document(get("/a"), servers=[{"url": "https://{x}.example"}]), "variable 'x' has no value"),
        (document({"/a": {"get": {"parameters": [{"$ref": "other.yaml#/x"}]}}}), "'other.yaml#/x' refers to another"),
        ('{"openapi": "3.0.0", "a": ' + "[" * 100_000, "not JSON"),
    ],
)
def test_what_cannot_be_read_says_why(source: str, message: str):
    with pytest.raises(LoadError) as failed:
        read_openapi(source)
    assert message in str(failed.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": ["itt"]}, "there is no operation 'itt'. Did you mean 'it'?"),
        ({"credentials": {"keey": "X"}}, "there is no security scheme 'keey' (Did you mean 'key'?)"),
        ({"server": "staging"}, f"there is no server 'staging' (give a URL, or one of: '{SERVER}')"),
    ],
)
def test_an_option_that_names_nothing_says_what_there_is(options, message: str):
    schemes = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
    with pytest.raises(LoadError) as failed:
        read_openapi(document(get("/a"), components=schemes), **options)
    assert message in str(failed.value)


# Servers

SERVERS = [
    {"url": "https://{region}.example/{base}", "variables": {"region": {"enum": ["eu", "us"]}, "base": {"default": 1}}},
    {"url": "http://localhost:8000/", "description": "Local"},
]


@pytest.mark.parametrize(
    ("options", "server"),
    [
        ({}, "https://eu.example/1"),
        ({"variables": {"region": "us", "base": "v2"}}, "https://us.example/v2"),
        ({"server": "Local"}, "http://localhost:8000"),
        ({"server": "https://other.example/api/"}, "https://other.example/api"),
    ],
)
def test_the_first_server_is_used_unless_another_is_named(options, server: str):
    assert operation(document(get("/a"), servers=SERVERS), **options).server == server


def test_a_server_variable_must_be_one_of_its_values():
    with pytest.raises(LoadError, match="'region' cannot be 'mars' \\(use eu, us\\)"):
        read_openapi(document(get("/a"), servers=SERVERS), variables={"region": "mars"})


def test_an_operation_may_have_a_server_of_its_own_but_the_user_decides():
    paths = get("/a", servers=[{"url": "https://own.example"}])
    assert operation(document(paths)).server == "https://own.example"
    assert operation(document(paths), server="https://mine.example").server == "https://mine.example"


def test_servers_of_version_2_are_put_together_from_their_parts():
    assert operation(document_2(get("/a"), schemes=["http", "https"])).server == "https://api.example/v1"
    assert operation(document_2(get("/a"), schemes=["http"], basePath="v1/")).server == "http://api.example/v1"


# Credentials


def test_credentials_name_variables_and_are_in_no_schema():
    scheme = {"key": {"type": "apiKey", "in": "query", "name": "api_key"}}
    key = {"name": "API_KEY", "in": "query", "required": True, "schema": {"type": "string"}}
    source = document(get("/a", key), components={"securitySchemes": scheme}, security=[{"key": []}])
    tool = read_openapi(source)
    assert tool.spec.capabilities[0].schema["properties"] == {}
    assert operation(source).security[0][0].variable == "FERRULE_PET_SHOP_KEY"
    assert operation(source, credentials={"key": "MY_KEY"}).security[0][0].variable == "MY_KEY"
    assert operation(source, name="我的-api").security[0][0].variable == "FERRULE_API_KEY"


def test_an_authorization_header_among_the_parameters_becomes_a_credential():
    header = {"name": "authorization", "in": "header", "required": True, "schema": {"type": "string"}}
    tool = read_openapi(document(get("/a", header)))
    assert tool.spec.capabilities[0].schema["properties"] == {}
    assert tool.target.operations["it"].security[0][0].variable == "FERRULE_PET_SHOP_AUTHORIZATION"
    assert tool.target.operations["it"].security[1] == ()


def test_nothing_of_the_document_beyond_its_operations_is_kept():
    said = json.loads(document(get("/a"), **{"x-internal": "s3cret"}))
    assert "s3cret" not in repr(read_openapi(json.dumps(said)))


JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, math.inf, 10**400, "", "//[", "{", [], [[]], [1], {}, {"$ref": 5}, {"a": 1}]
)
WHOLE = {
    **json.loads(document(get("/pets/{id}", {"name": "q", "in": "query", "content": {"application/json": {}}}))),
    "security": [{"key": []}],
    "components": {
        "schemas": {"Pet": {"type": "string", "maxLength": 3, "enum": ["a"], "minimum": 1, "required": ["a"]}},
        "securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "key"}},
    },
}
WHOLE["servers"][0]["variables"] = {"a": {"enum": ["b"], "default": "b"}}
WHOLE["paths"] |= post({"$ref": "#/components/schemas/Pet"})
WHOLE_2 = {
    **json.loads(document_2({"/a": {"post": {"parameters": [{"in": "formData", "name": "f", "type": "file"}]}}}))
}
WHOLE_2 |= {"schemes": ["https"], "consumes": ["text/plain"]}


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value, with each of its keys or positions."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places_in(value[key])


@given(st.sampled_from([WHOLE, WHOLE_2]), st.data())
def test_whatever_a_document_holds_it_is_read_or_refused(whole: dict[str, Any], data: st.DataObject):
    spoilt = copy.deepcopy(whole)
    container, key = data.draw(st.sampled_from(list(places_in(spoilt))))
    container[key] = data.draw(JUNK)
    try:
        assert read_openapi(json.dumps(spoilt)).spec.capabilities
    except LoadError as error:
        assert str(error)


def test_one_address_with_different_variables_is_different_servers():
    paths = get("/a", servers=[{"url": "https://{at}.example", "variables": {"at": {"default": "one"}}}])
    paths |= {"/b": {"get": {"servers": [{"url": "https://{at}.example", "variables": {"at": {"default": "two"}}}]}}}
    assert read_openapi(document(paths)).spec.metadata["servers"] == ["https://one.example", "https://two.example"]


def test_very_many_operations_of_one_name_are_numbered():
    tool = read_openapi(document({f"/{n}": {"get": {"operationId": "it"}} for n in range(2_000)}))
    assert [c.name for c in tool.spec.capabilities[::1_999]] == ["it", "it_2000"]


def test_an_operation_with_a_schema_that_is_too_costly_is_unavailable():
    schemas: dict[str, Any] = {"S0": {"type": "string"}}
    for level in range(1, 13):
        schemas[f"S{level}"] = {"anyOf": [{"$ref": f"#/components/schemas/S{level - 1}"}] * 10}
    paths = {**post({"$ref": "#/components/schemas/S12"}), "/other": {"get": {"operationId": "other"}}}
    spec = read_openapi(document(paths, components={"schemas": schemas})).spec
    assert [capability.name for capability in spec.capabilities] == ["other"]
    assert "too costly to check" in spec.unavailable_actions["it"]
