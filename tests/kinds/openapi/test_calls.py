"""Calls of operations: what goes to the server, and what comes of its answers."""

import base64
import json
from typing import Any
from urllib.parse import parse_qsl

import pytest

from ferrule.core.call import ToolExecutionContext
from ferrule.http.guard import AddressGuard
from ferrule.kinds.openapi.executor import encode_header_argument, encode_path_argument, encode_query_argument
from ferrule.kinds.openapi.operation import Argument
from ferrule.kinds.openapi.tool import read_openapi
from tests.kinds.openapi.documents import document, document_2, engine_with, get, post
from tests.support.http_servers import AnyAnswer, Request, serve_http
from tests.support.ports import reserved_port

pytestmark = pytest.mark.integration

FORM, PARTS = "application/x-www-form-urlencoded", "multipart/form-data"


def says(body: Any, status: int = 200, **headers: str) -> Any:
    return lambda request: (status, {"Content-Type": "application/json", **headers}, json.dumps(body).encode())


async def call(source: str, params: dict[str, Any], answer: Any = None, **options: Any) -> tuple[Any, list[Request]]:
    """The result of calling the action `it`, and what the server saw."""
    async with serve_http(answer or says({"ok": True})) as server:
        tool = read_openapi(source, server=f"{server.url}/v1", **options)
        async with engine_with(tool) as engine:
            return await engine.execute(tool.id, params), server.requests


async def test_arguments_go_to_their_places():
    parameters = [{"name": name, "in": place} for name, place in [("id", "path"), ("q", "query"), ("X-Me", "header")]]
    parameters += [{"name": "s", "in": "cookie"}, {"name": "tags", "in": "query"}, {"name": "unused", "in": "query"}]
    params = {"id": "a/b ?#", "q": "ä&=", "X-Me": "me", "s": "c;d", "tags": [1, True]}
    result, (request,) = await call(document(get("/pets/{id}.json", *parameters)), params)
    assert result.output == {"ok": True}
    assert request.path == "/v1/pets/a%2Fb%20%3F%23.json?q=%C3%A4%26%3D&tags=1&tags=true"
    assert (request.headers["x-me"], request.headers["cookie"]) == ("me", "s=c%3Bd")


async def test_the_defaults_of_a_document_are_not_sent():
    parameters: list[dict[str, Any]] = [
        {"name": "limit", "in": "query", "schema": {"type": "integer", "default": 10}},
        {"name": "X-Mode", "in": "header", "schema": {"type": "string", "default": "fast"}},
        {"name": "version", "in": "query", "required": True, "schema": {"type": "string", "default": "v1"}},
    ]
    result, (request,) = await call(document(get("/pets", *parameters)), {})
    assert result.is_success and request.path == "/v1/pets?version=v1" and "x-mode" not in request.headers


def argument(place: Any, style: Any, explode: bool) -> Argument:
    return Argument(argument="a", name="a", location=place, style=style, explode=explode)


COLOURS, POINT = ["red", "b,c"], {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("style", "explode", "of_list", "of_object"),
    [
        ("form", True, "a=red&a=b%2Cc", "x=1&y=2"),
        ("form", False, "a=red,b%2Cc", "a=x,1,y,2"),
        ("space", False, "a=red%20b%2Cc", "a=x%201%20y%202"),
        ("pipe", False, "a=red%7Cb%2Cc", "a=x%7C1%7Cy%7C2"),
        ("tab", False, "a=red%09b%2Cc", "a=x%091%09y%092"),
        ("deep", True, "a=red&a=b%2Cc", "a[x]=1&a[y]=2"),
        ("json", False, "a=%5B%22red%22%2C%22b%2Cc%22%5D", "a=%7B%22x%22%3A1%2C%22y%22%3A2%7D"),
    ],
)
def test_lists_and_objects_in_a_query(style, explode, of_list, of_object):
    entries = [encode_query_argument(argument("query", style, explode), value) for value in (COLOURS, POINT)]
    assert ["&".join(each) for each in entries] == [of_list, of_object]


@pytest.mark.parametrize(
    ("style", "explode", "of_list", "of_object"),
    [
        ("simple", False, "red,b%2Cc", "x,1,y,2"),
        ("simple", True, "red,b%2Cc", "x=1,y=2"),
        ("label", False, ".red,b%2Cc", ".x,1,y,2"),
        ("label", True, ".red.b%2Cc", ".x=1.y=2"),
        ("matrix", False, ";a=red,b%2Cc", ";a=x,1,y,2"),
        ("matrix", True, ";a=red;a=b%2Cc", ";x=1;y=2"),
    ],
)
def test_lists_and_objects_in_a_path(style, explode, of_list, of_object):
    assert [encode_path_argument(argument("path", style, explode), v) for v in (COLOURS, POINT)] == [of_list, of_object]


def test_lists_and_objects_in_a_header():
    assert encode_header_argument(argument("header", "simple", False), COLOURS) == "red,b,c"
    assert encode_header_argument(argument("header", "simple", True), POINT) == "x=1,y=2"
    assert encode_header_argument(argument("header", "json", False), POINT) == '{"x":1,"y":2}'


@pytest.mark.parametrize(
    ("said", "query"), [("csv", "a=1,2"), ("multi", "a=1&a=2"), ("pipes", "a=1%7C2"), (None, "a=1,2")]
)
async def test_lists_of_version_2_are_written_as_their_format_says(said, query: str):
    parameter = {"name": "a", "in": "query", "type": "array", "items": {"type": "integer"}, "collectionFormat": said}
    source = document_2(get("/x", {k: v for k, v in parameter.items() if v}))
    _, (request,) = await call(source, {"a": [1, 2]})
    assert request.path == f"/v1/x?{query}"


@pytest.mark.parametrize("value", ["..", ".", "", "../x", "a/../../b", "..\\x"])
async def test_an_argument_cannot_leave_its_place_in_the_path(value: str):
    result, requests = await call(document(get("/a/{id}/b")), {"id": value})
    assert (result.is_success, requests) == (False, [])


async def test_no_argument_changes_the_host():
    params = {"id": "@evil.example/", "Host": "evil.example"}
    _, (request,) = await call(document(get("/{id}", {"name": "Host", "in": "header"})), params)
    assert request.path == "/v1/%40evil.example%2F" and request.headers["host"].startswith("127.0.0.1:")


# Bodies


async def test_a_json_body_is_sent_as_it_is():
    result, (request,) = await call(document(post({"type": "object"})), {"body": {"name": "猫", "n": [1, None]}})
    assert (result.is_success, request.method, request.headers["content-type"]) == (True, "POST", "application/json")
    assert json.loads(request.body) == {"name": "猫", "n": [1, None]}


async def test_a_form_repeats_lists_and_writes_objects_as_json():
    body = {"a": "x y", "b": [1, 2], "c": {"d": 1}, "e": None}
    _, (request,) = await call(document(post({"type": "object"}, FORM)), {"body": body})
    assert request.headers["content-type"] == FORM
    assert parse_qsl(request.body.decode()) == [("a", "x y"), ("b", "1"), ("b", "2"), ("c", '{"d":1}')]


async def test_a_form_in_parts_sends_text_and_text_files():
    schema = {
        "type": "object",
        "properties": {"note": {"type": "string"}, "file": {"type": "string", "format": "binary"}},
    }
    _, (request,) = await call(document(post(schema, PARTS)), {"body": {"note": "hi", "file": "a,b\n"}})
    kind, _, boundary = request.headers["content-type"].partition("; boundary=")
    note, file = request.body.decode().split(f"--{boundary}")[1:-1]
    assert kind == PARTS and 'name="note"\r\n' in note and note.endswith("\r\n\r\nhi\r\n")
    assert 'name="file"; filename="file"' in file and file.endswith("\r\n\r\na,b\n\r\n")


async def test_other_bodies_are_text():
    _, (request,) = await call(document(post({"type": "object"}, "application/xml")), {"body": "<a/>"})
    assert (request.body, request.headers["content-type"]) == (b"<a/>", "application/xml")


async def test_an_optional_body_that_is_not_given_is_not_sent():
    paths = {"/pets": {"post": {"operationId": "it", "requestBody": {"content": {"application/json": {}}}}}}
    _, (request,) = await call(document(paths), {})
    assert request.body == b"" and "content-type" not in request.headers


async def test_json_is_chosen_where_a_document_offers_several():
    content = {PARTS: {}, "text/xml": {}, "application/json; charset=utf-8": {"schema": {"type": "array"}}}
    paths = {"/pets": {"post": {"operationId": "it", "requestBody": {"content": content}}}}
    _, (request,) = await call(document(paths), {"body": [1]})
    assert (request.body, request.headers["content-type"]) == (b"[1]", "application/json")


# Credentials

SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "api key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "basic": {"type": "http", "scheme": "Basic"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "oauth": {"type": "oauth2", "flows": {}},
    "token": {"type": "http", "scheme": "token"},
    "tls": {"type": "mutualTLS"},
}


@pytest.mark.parametrize(
    ("scheme", "header", "sent"),
    [
        ("key", "x-key", "s:3"),
        ("cookie", "cookie", "sid=s%3A3"),
        ("basic", "authorization", "Basic " + base64.b64encode(b"s:3").decode()),
        ("bearer", "authorization", "Bearer s:3"),
        ("oauth", "authorization", "Bearer s:3"),
        ("token", "authorization", "Token s:3"),
    ],
)
async def test_secrets_of_the_environment_are_sent_as_the_scheme_says(scheme, header, sent, monkeypatch):
    monkeypatch.setenv(f"FERRULE_PET_SHOP_{scheme}".upper(), "s:3")
    source = document(get("/a", security=[{scheme: []}]), components={"securitySchemes": SCHEMES})
    _, (request,) = await call(source, {})
    assert request.headers[header] == sent


async def test_a_secret_in_the_query_shows_in_no_result_and_no_message(monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret-key")
    source = document(get("/a", security=[{"query": []}]), components={"securitySchemes": SCHEMES})
    answers: dict[str, AnyAnswer] = {
        "200": (200, {"Content-Type": "application/zip"}, b"\0"),
        "404": (404, {}, b"no s3cret-key"),
    }
    for status, answer in answers.items():
        result, (request,) = await call(source, {}, lambda _, a=answer: a, credentials={"query": "MY_KEY"})
        assert request.path == "/v1/a?api%20key=s3cret-key"
        assert "s3cret" not in repr(result) and result.is_success == (status == "200")


async def test_the_first_alternative_whose_variables_are_set_is_taken(monkeypatch):
    monkeypatch.setenv("FERRULE_PET_SHOP_KEY", "k")
    monkeypatch.setenv("FERRULE_PET_SHOP_TOKEN", "t")
    alternatives: list[dict[str, list[str]]] = [{}, {"key": [], "bearer": []}, {"key": [], "token": []}]
    source = document(get("/a", security=alternatives), components={"securitySchemes": SCHEMES})
    _, (request,) = await call(source, {})
    assert (request.headers["x-key"], request.headers["authorization"]) == ("k", "Token t")


async def test_without_its_variables_a_call_is_not_made():
    source = document(
        get("/a"), security=[{"key": [], "basic": []}, {"oauth": []}], components={"securitySchemes": SCHEMES}
    )
    result, requests = await call(source, {})
    assert (result.error_type, requests) == ("permission_denied", [])
    assert (
        "set the environment variable FERRULE_PET_SHOP_KEY and FERRULE_PET_SHOP_BASIC, or FERRULE_PET_SHOP_OAUTH"
        in (result.error or "")
    )


async def test_security_that_is_optional_or_cannot_be_served_does_not_stop_a_call():
    optional: list[Any] = [[{"key": []}, {}], [], [{"tls": []}]]
    for security in optional:
        source = document(get("/a", security=security), components={"securitySchemes": SCHEMES})
        result, requests = await call(source, {})
        assert result.is_success and len(requests) == 1


# Answers


@pytest.mark.parametrize(
    ("status", "tried", "said"),
    [(404, 1, 'answered with status 404: {"why": "gone"}'), (429, 2, "status 429"), (500, 2, "status 500")],
)
async def test_a_status_of_400_or_more_is_a_failure_and_passing_ones_are_tried_again(status, tried, said):
    async with serve_http(says({"why": "gone"}, status, **{"Retry-After": "0"})) as server:
        tool = read_openapi(document(get("/a")), server=server.url)
        async with engine_with(tool) as engine:
            result = await engine.execute(tool.id, {}, ToolExecutionContext(max_retries=1))
    assert (result.error_type, len(server.requests)) == ("execution_error", tried)
    assert said in (result.error or "") and result.metadata["status_code"] == status


async def test_a_post_that_failed_is_not_made_twice():
    for status in (500, 502, 503, 504):
        result, requests = await call(document(post({})), {"body": 1}, says({}, status))
        assert (result.is_success, len(requests), result.metadata["outcome"]) == (False, 1, "unknown")
    result, _ = await call(document(post({})), {"body": 1}, says({}, 409))
    assert "outcome" not in result.metadata


async def test_head_tells_the_headers():
    paths = {"/a": {"head": {"operationId": "it"}}}
    result, _ = await call(document(paths), {}, lambda _: (200, {"X-Total": "7"}, b""))
    assert (result.output["status_code"], result.output["headers"]["x-total"]) == (200, "7")


async def test_an_empty_answer_is_nothing_and_text_is_text():
    result, _ = await call(document(get("/a")), {}, lambda _: (204, {}, b""))
    assert result.output == {"result": None}
    result, _ = await call(document(get("/a")), {}, lambda _: (200, {"Content-Type": "text/plain"}, b"hi"))
    assert result.output == {"result": "hi"}


async def test_a_private_server_must_be_allowed_also_when_the_document_names_it():
    async with serve_http(says({})) as server:
        tool = read_openapi(document(get("/a"), servers=[{"url": server.url}]))
        async with engine_with(tool, guard=AddressGuard()) as engine:
            result = await engine.execute(tool.id)
    assert (result.error_type, server.requests) == ("permission_denied", [])
    assert "allowed_hosts" in (result.error or "")


async def test_arguments_are_checked_before_anything_is_sent():
    parameter = {"name": "n", "in": "query", "required": True, "schema": {"type": "integer"}}
    result, requests = await call(document(get("/a", parameter)), {"n": "many"})
    assert (result.error_type, requests) == ("validation_error", [])


def breaks_off(request: Request) -> AnyAnswer:
    raise ConnectionError  # the server hangs up


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (breaks_off, "unknown"),
        (lambda request: (200, {"Content-Encoding": "gzip"}, b"no gzip"), "unknown"),
        (lambda request: (302, {"Location": "http://10.0.0.1/"}, b""), "unknown"),
        (says("no", 400), None),
    ],
)
async def test_what_was_sent_and_may_have_been_done_says_so(answer: Any, outcome: str | None):
    result, [_] = await call(document(post({"type": "string"})), {"body": "pay"}, answer)
    assert not result.is_success
    assert result.metadata.get("outcome") == outcome


async def test_what_may_be_repeated_or_was_never_sent_is_not_of_unknown_outcome():
    lookup, requests = await call(document(get("/pets")), {}, breaks_off)
    with reserved_port() as port:
        tool = read_openapi(document(post({"type": "string"})), server=f"http://127.0.0.1:{port}")
        async with engine_with(tool) as engine:
            unsent = await engine.execute(tool.id, {"body": "pay"})
    assert len(requests) > 1 and "outcome" not in lookup.metadata
    assert not unsent.is_success and "outcome" not in unsent.metadata


async def test_a_password_is_hidden_in_the_form_it_is_sent_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FERRULE_PET_SHOP_LOGIN", "wang:tea-with-milk")
    schemes = {"securitySchemes": {"login": {"type": "http", "scheme": "basic"}}}
    source = document(get("/pets", security=[{"login": []}]), components=schemes)
    result, [request] = await call(
        source,
        {},
        lambda request: says({"you sent": request.headers["authorization"], "and": "tea-with-milk"})(request),
    )
    assert base64.b64decode(request.headers["authorization"].removeprefix("Basic ")) == b"wang:tea-with-milk"
    assert result.output == {"you sent": "Basic [redacted]", "and": "[redacted]"}


async def test_an_operation_at_another_origin_does_not_get_the_credentials(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PET_KEY", "hunter2-hunter2")
    scheme = {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}}
    async with serve_http(says({})) as own, serve_http(says({})) as other:
        paths = {
            "/near": {"get": {"operationId": "near"}},
            "/far": {"get": {"operationId": "far", "servers": [{"url": other.url}]}},
            "/open": {"get": {"operationId": "open", "servers": [{"url": other.url}], "security": [{"key": []}, {}]}},
        }
        source = document(paths, servers=[{"url": own.url}], security=[{"key": []}], components=scheme)
        careful = read_openapi(source, name="careful", credentials={"key": "PET_KEY"})
        allowed = read_openapi(source, name="allowed", credentials={"key": "PET_KEY"}, origins=[other.url])
        async with engine_with(careful, allowed) as engine:
            near = await engine.execute("careful", action="near")
            far = await engine.execute("careful", action="far")
            without = await engine.execute("careful", action="open")
            assert (near.is_success, without.is_success) == (True, True)
            assert far.error_type == "permission_denied" and f'origins = ["{other.url}"]' in (far.error or "")
            assert own.requests[0].headers["x-key"] == "hunter2-hunter2"
            assert [request.headers.get("x-key") for request in other.requests] == [None]
            assert (await engine.execute("allowed", action="far")).is_success
            assert other.requests[-1].headers["x-key"] == "hunter2-hunter2"


def test_a_document_whose_operations_have_the_only_servers_is_bound_to_the_one_they_share():
    def read(*urls: str) -> list[bool]:
        operations = {f"/{n}": {"get": {"servers": [{"url": url}]}} for n, url in enumerate(urls)}
        tool = read_openapi(document(operations, servers=[]))
        return [each.may_get_credentials for each in tool.target.operations.values()]

    assert read("https://a.example/1", "https://a.example/2") == [True, True]
    assert read("https://a.example", "https://b.example") == [False, False]
