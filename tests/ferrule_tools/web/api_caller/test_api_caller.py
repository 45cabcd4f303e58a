"""Calling APIs by their names."""

import pytest

from ferrule import Image, ToolEngine
from ferrule.errors import SetupError
from ferrule_tools.web.api_caller import ApiCallerConfig, ApiConfig, api_tools
from tests.ferrule_tools.web.api_caller.server import ALL, TOKEN, api, says


@pytest.mark.integration
async def test_an_api_is_called_below_its_address_with_its_key():
    async with api(says({"name": "Ann"})) as it:
        result = await it.call("/users/7", query={"fields": ["name", "age"], "limit": 3, "none": None})
    assert result.output == {"api": "shop", "status_code": 200, "body": {"name": "Ann"}, "untrusted": True}
    [request] = it.requests
    assert (request.method, request.path) == ("GET", "/v1/users/7?fields=name&fields=age&limit=3")
    assert request.headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.integration
async def test_what_is_needed_to_go_on_is_told():
    link = '<https://shop.example/v1/users?page=2>; rel="next"'
    async with api(says([], Link=link, Server="x")) as it:
        assert (await it.call("users")).output["headers"] == {"link": link}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("body", "content_type", "sent"),
    [
        ({"name": "猫"}, "application/json", '{"name":"猫"}'),
        ([1, 2], "application/json", "[1,2]"),
        ('{"name": "Ann"}', "application/json", '{"name": "Ann"}'),
        ("plain words", "text/plain; charset=utf-8", "plain words"),
    ],
)
async def test_a_body_is_sent_as_what_it_is(body, content_type, sent):
    async with api(says({}), methods=ALL) as it:
        assert (await it.call(method="POST", body=body)).is_success
    assert (it.requests[0].headers["content-type"], it.requests[0].body.decode()) == (content_type, sent)


@pytest.mark.integration
async def test_the_query_of_the_configuration_cannot_be_said_otherwise():
    async with api(says({}), query={"key": "${SHOP_TOKEN}", "v": "2"}) as it:
        await it.call("users?%6bey=mine&a=1", query={"key": "mine", "v": "9"})
    assert it.requests[0].path == f"/v1/users?a=1&key={TOKEN}&v=2"


async def test_only_the_allowed_methods_may_be_used():
    async with api(says({})) as it:
        result = await it.call(method="DELETE")
    assert not result.is_success and it.requests == []


async def test_methods_are_allowed_for_each_api_by_itself():
    one, other = (
        ApiConfig(base_url="https://a.example", methods=["get"]),
        ApiConfig(base_url="https://b.example", methods=["post"]),
    )
    async with ToolEngine() as engine:
        engine.register(*api_tools(ApiCallerConfig(apis={"one": one, "other": other})))
        result = await engine.execute("api_caller", {"api": "one", "path": "x", "method": "POST"})
    assert "may not be called with 'POST', only with GET" in str(result.error)


@pytest.mark.integration
async def test_a_person_must_agree_before_something_is_deleted():
    async with api(says({}), methods=ALL) as it:
        asked = await it.call(method="DELETE")
        assert asked.metadata["advice"] == "ask_approval" and it.requests == []
        assert (await it.call(method="DELETE", approved=True)).is_success
    assert it.requests[0].method == "DELETE"


@pytest.mark.integration
async def test_a_picture_is_carried_beside_the_answer():
    async with api(lambda _: (200, {"Content-Type": "image/png"}, b"\x89PNG")) as it:
        result = await it.call()
    assert result.output["body"] == {"type": "image", "mime_type": "image/png", "size": 4}
    assert result.content == (Image(data=b"\x89PNG"),)


def test_the_tool_names_its_apis_and_promises_what_their_methods_do():
    shop = ApiConfig(base_url="https://shop.example", description="Orders of the shop.", methods=["GET"])
    [reading] = api_tools(ApiCallerConfig(apis={"shop": shop}))
    assert "- shop (GET): Orders of the shop." in reading.spec.description and reading.spec.effects.read_only
    assert reading.spec.capabilities[0].schema["properties"]["api"]["enum"] == ["shop"]
    [writing] = api_tools(ApiCallerConfig(apis={"shop": ApiConfig(base_url="https://shop.example", methods=["POST"])}))
    assert not writing.spec.effects.repeatable and writing.spec.limits.timeout == 35.0


async def test_without_an_api_the_tool_says_what_it_needs():
    async with ToolEngine() as engine:
        engine.register(*api_tools())
        result = await engine.execute("api_caller", {"api": "x", "path": "y"})
    assert 'it needs an API: set [tools.api_caller.apis.NAME] base_url = "https://…"' in str(result.error)


async def test_variables_that_are_not_set_are_named():
    without, ready = (
        ApiConfig(base_url="https://a.example", query={"key": "${A_KEY}"}),
        ApiConfig(base_url="https://b.example"),
    )
    [tool] = api_tools(ApiCallerConfig(apis={"a": without}), environ={})
    assert tool.needs == "the environment variable A_KEY"
    async with ToolEngine() as engine:
        engine.register(*api_tools(ApiCallerConfig(apis={"a": without, "b": ready}), environ={}))
        result = await engine.execute("api_caller", {"api": "a", "path": "x"})
    assert "the API 'a' needs the environment variable A_KEY" in str(result.error)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "base_url must be an address"),
        ({"base_url": "api.example.com"}, "base_url must be an address"),
        ({"base_url": "https://user:pass@api.example.com"}, "base_url must be an address"),
        ({"base_url": "https://api.example.com?key=1"}, "cannot have a query"),
        ({"base_url": "https://a.example", "methods": ["FETCH"]}, "methods cannot contain 'FETCH'"),
        ({"base_url": "https://a.example", "methods": []}, "methods is empty"),
        ({"base_url": "https://a.example", "timeout": 0}, "must be more than 0"),
        ({"base_url": "https://a.example", "headers": {"X Key": "1"}}, "headers: 'X Key' cannot be the name of a"),
        ({"base_url": "https://a.example", "headers": {"Host": "b"}}, "'Host' is set by the client itself"),
    ],
)
def test_an_api_that_cannot_be_is_refused(config, message):
    with pytest.raises(SetupError, match=message):
        ApiConfig(**config)


@pytest.mark.integration
async def test_an_address_may_come_from_the_environment():
    async with api(says({"ok": True})) as it:
        apis = ApiCallerConfig(apis={"other": ApiConfig(base_url="${OTHER_URL}/v2", headers={"X": "${NONE:-default}"})})
        it.library.engine.unregister("api_caller")
        it.library.register(*api_tools(apis, environ={"OTHER_URL": it.server.url}))
        result = await it.library.execute_tool("api_caller", parameters={"api": "other", "path": "x"})
    assert result.output["body"] == {"ok": True} and it.requests[0].path == "/v2/x"
    assert it.requests[0].headers["x"] == "default"
