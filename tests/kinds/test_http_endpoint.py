import json
from typing import Any

import pytest

from ferrule.errors import CallError, ExecutionFailed, PermissionDenied, Retry, SetupError, Transient, TransportFault
from ferrule.kinds.http_request import EndpointRequest, HttpEndpointExecutor, build_endpoint_request
from tests.kinds.invocations import invocation
from tests.support.http_servers import AnyAnswer, Request, serve_http
from tests.support.waiting import time_out_after_start

pytestmark = pytest.mark.integration


async def call(config: dict[str, Any], **params: Any) -> Any:
    executor = HttpEndpointExecutor()
    try:
        return await executor.execute(invocation(params, config))
    finally:
        await executor.aclose()


def fill(config: dict[str, Any], environ: dict[str, str] | None = None, **params: Any) -> EndpointRequest:
    return build_endpoint_request({"url": "https://api.example/x", **config}, params, environ or {})


def says(body: bytes, status: int = 200, **headers: str) -> Any:
    return lambda request: (status, {"Content-Type": "application/json", **headers}, body)


async def test_the_configured_host_may_be_this_machine():
    async with serve_http(says(b'{"temperature": 21}')) as server:
        result = await call({"url": f"{server.url}/weather/{{city}}"}, city="北京/东", units="c")
    assert result == {"temperature": 21}
    assert server.requests[0].path == "/weather/%E5%8C%97%E4%BA%AC%2F%E4%B8%9C?units=c"


async def test_a_redirect_to_another_private_host_is_refused():
    async with serve_http(says(b"{}")) as inner:

        def answer(request: Request) -> AnyAnswer:
            return 302, {"Location": f"http://localhost:{inner.port}/"}, b""

        async with serve_http(answer) as server:
            with pytest.raises(PermissionDenied, match="localhost"):
                await call({"url": server.url})
    assert inner.requests == []


async def test_a_connection_one_tool_may_make_does_not_serve_the_redirect_of_another():
    leads: dict[str, str] = {}
    elsewhere = serve_http(lambda _: (302, {"Location": leads["to"]}, b""))
    async with serve_http(says(b"{}")) as inner, elsewhere as server:
        leads["to"] = inner.url
        executor = HttpEndpointExecutor()
        await executor.execute(invocation({}, {"url": inner.url}))
        with pytest.raises(PermissionDenied):
            await executor.execute(invocation({}, {"url": f"http://localhost:{server.port}/"}))
        await executor.aclose()
    assert len(inner.requests) == 1


async def test_secrets_of_the_environment_go_into_headers_when_the_call_is_made(monkeypatch):
    monkeypatch.setenv("TEST_API_KEY", "s3cret")
    async with serve_http(says(b"{}")) as server:
        await call({"url": server.url, "headers": {"Authorization": "Bearer ${TEST_API_KEY}"}})
    assert server.requests[0].headers["authorization"] == "Bearer s3cret"


async def test_messages_show_the_url_as_written_without_secrets(monkeypatch):
    monkeypatch.setenv("TEST_API_KEY", "s3cret")
    async with serve_http(lambda _: None) as server:

        async def send(timeout: float) -> str:
            url = f"{server.url}/bot${{TEST_API_KEY}}/send?key=${{TEST_API_KEY}}"
            with pytest.raises(CallError, match=r"/bot\$\{TEST_API_KEY\}/send took longer") as failed:
                await call({"url": url, "timeout": timeout})
            return str(failed.value)

        message = await time_out_after_start(send, lambda: server.requests)
    assert "s3cret" in server.requests[0].path and "s3cret" not in message


async def test_a_secret_the_server_repeats_does_not_come_back(monkeypatch):
    monkeypatch.setenv("TEST_API_KEY", "s3cret/k3y")
    monkeypatch.setenv("TEST_API_PIN", "1234")
    headers = {"Authorization": "Bearer ${TEST_API_KEY}", "X-Pin": "${TEST_API_PIN}"}

    def repeat(request: Request) -> AnyAnswer:
        texts = [*request.headers.values(), "s3cret%2Fk3y"]
        return 200, {"Content-Type": "application/json"}, json.dumps({"texts": texts}).replace("/", "\\/").encode()

    async with serve_http(repeat) as server:
        result = await call({"url": server.url, "headers": headers})
    assert {"Bearer [redacted]", "[redacted]", "1234"} <= set(result["texts"])
    assert "s3cret" not in str(result)


async def test_a_secret_in_an_error_of_the_server_does_not_come_back(monkeypatch):
    monkeypatch.setenv("TEST_API_KEY", "s3cret/k3y")
    long = "x" * 493

    def repeat(request: Request) -> AnyAnswer:
        return 403, {}, f"{long} {request.path}".encode()

    async with serve_http(repeat) as server:
        with pytest.raises(ExecutionFailed) as failed:
            await call({"url": f"{server.url}/${{TEST_API_KEY}}"})
    assert "s3c" not in str(failed.value)


async def test_links_of_a_server_to_itself_are_no_secrets(monkeypatch):
    async with serve_http(lambda request: (200, {}, f"see {server.url}/2".encode())) as server:
        monkeypatch.setenv("TEST_API_URL", server.url)
        assert await call({"url": "${TEST_API_URL}/1"}) == f"see {server.url}/2"


@pytest.mark.parametrize(
    ("status", "means", "transport_fault"),
    [
        (400, ExecutionFailed, False),
        (404, ExecutionFailed, False),
        (429, Transient, False),
        (500, Transient, False),
        (502, TransportFault, True),
        (503, TransportFault, True),
    ],
)
async def test_a_status_of_400_or_more_is_a_failure_that_shows_the_body(status, means, transport_fault):
    async with serve_http(says(b'{"detail":\n "no such city"}', status)) as server:
        with pytest.raises(means, match=rf"'it' answered with status {status}: .*no such city") as failed:
            await call({"url": server.url})
    assert type(failed.value) is means
    assert failed.value.transport_fault is transport_fault
    assert failed.value.details["status_code"] == status


async def test_how_long_to_wait_is_handed_on():
    async with serve_http(says(b"", 429, **{"Retry-After": "7"})) as server:
        with pytest.raises(Transient) as failed:
            await call({"url": server.url})
    assert failed.value.details["retry_after"] == 7.0


async def test_an_empty_answer_is_nothing_and_a_text_is_text():
    async with serve_http(lambda _: (204, {}, b"")) as empty:
        assert await call({"url": empty.url}) is None
    async with serve_http(lambda _: (200, {"Content-Type": "text/plain"}, b"fine")) as text:
        assert await call({"url": text.url}) == "fine"


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_parameters_not_named_go_into_the_query_where_there_is_no_body(method):
    filled = fill({"method": method}, q="a b&c", many=[1, 2], on=True, nothing=None)
    assert filled.url == "https://api.example/x?q=a+b%26c&many=1&many=2&on=true"
    assert (filled.method, filled.content) == (method, None)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_parameters_not_named_go_into_the_json_body_otherwise(method):
    filled = fill({"method": method, "url": "https://api.example/{id}"}, id=7, name="猫", nothing=None)
    assert filled.url == "https://api.example/7"
    assert json.loads(filled.content or b"") == {"name": "猫"}
    assert filled.headers == {"Content-Type": "application/json"}


def test_a_body_keeps_the_types_of_what_is_filled_in_and_drops_what_is_not_given():
    body = {"n": "{n}", "text": "no. {n}", "gone": "{m}", "deep": [{"tags": "{tags}"}, "{m}"], "none": None}
    filled = fill({"body": body}, n=3, tags=["a"], other=1)
    assert json.loads(filled.content or b"") == {
        "n": 3,
        "text": "no. 3",
        "deep": [{"tags": ["a"]}],
        "none": None,
        "other": 1,
    }
    assert filled.method == "POST"


def test_a_body_that_is_one_text_is_sent_as_it_is():
    filled = fill({"body": "<q>{q}</q>", "headers": {"content-type": "text/xml"}}, q="x", page=2)
    assert (filled.content, filled.headers) == (b"<q>x</q>", {"content-type": "text/xml"})
    assert filled.url == "https://api.example/x?page=2"


def test_a_query_is_filled_and_entries_without_a_value_are_left_out():
    config = {
        "url": "https://api.example/x?v=1&from={start}&to={end}",
        "query": {"ids": "{ids}", "k": "${K}", "z": "{z}"},
    }
    filled = fill(config, {"K": "key"}, start="a&b", ids=[1, 2])
    assert filled.url == "https://api.example/x?v=1&from=a%26b&ids=1&ids=2&k=key"


def test_a_header_without_a_value_is_left_out():
    filled = fill({"headers": {"X-A": "{a}", "X-B": "b{b}"}}, a=1)
    assert filled.headers == {"X-A": "1"}


def test_an_argument_that_looks_like_a_template_is_left_alone():
    filled = fill({"url": "https://api.example/{a}", "headers": {"X": "{a}"}}, {"SECRET": "s"}, a="${SECRET}{b}")
    assert filled.url == "https://api.example/%24%7BSECRET%7D%7Bb%7D"
    assert filled.headers == {"X": "${SECRET}{b}"}


@pytest.mark.parametrize("value", [".", "..", "../private/secret.txt", "a/../../b", "..\\b", "a\\.", "./a"])
def test_a_path_cannot_be_left(value):
    with pytest.raises(Retry, match="change it to another one"):
        fill({"url": "https://api.example/users/{id}/files"}, id=value)


@pytest.mark.parametrize("params", [{}, {"id": ""}, {"id": None}])
def test_a_path_needs_all_its_values(params):
    with pytest.raises(Retry, match="'id' is part of the address"):
        fill({"url": "https://api.example/users/{id}"}, **params)


@pytest.mark.parametrize(
    "url",
    ["https://{host}/x", "https://api.example{suffix}/x", "{scheme}://api.example/", "${BASE}{path}", "https://{u}@a/"],
)
def test_a_parameter_can_never_be_part_of_the_host(url):
    with pytest.raises(SetupError, match="must name its host"):
        fill(
            {"url": url}, {"BASE": "https://api.example"}, host="evil", suffix=".evil", scheme="http", path=".e", u="x"
        )


@pytest.mark.parametrize("value", ["//evil.example", "@evil.example/", "?a=1#b", "\\evil", "a\nb", "%2e%2e"])
def test_a_value_stays_inside_its_segment_of_the_path(value):
    filled = fill({"url": "${BASE}/{path}"}, {"BASE": "https://api.example"}, path=value)
    assert filled.url.startswith("https://api.example/")
    assert not set("/?#@\\\n") & set(filled.url.removeprefix("https://api.example/"))


async def test_a_variable_that_is_not_set_is_named():
    with pytest.raises(SetupError, match="FERRULE_TEST_NOT_SET"):
        await call({"url": "https://api.example/", "headers": {"K": "${FERRULE_TEST_NOT_SET}"}})


@pytest.mark.parametrize("status", [307, 308])
async def test_a_body_with_a_secret_does_not_follow_a_redirect_to_another_origin(monkeypatch, status: int):
    monkeypatch.setenv("SHOP_KEY", "hunter2-hunter2")
    async with serve_http(says(b"{}")) as other:

        def answer(request: Request) -> AnyAnswer:
            target = "/near" if request.path == "/" else f"{other.url}/x"
            return status, {"Location": target}, b""

        async with serve_http(answer) as server:
            body = {"key": "${SHOP_KEY}", "what": "{what}"}
            with pytest.raises(ExecutionFailed, match="another server"):
                await call({"url": f"{server.url}/", "method": "POST", "body": body}, what="tea")
            assert b"hunter2" in server.requests[1].body  # the same origin gets it
            await call({"url": f"{server.url}/", "method": "POST", "body": {"what": "{what}"}}, what="tea")
    assert [request.body for request in other.requests] == [b'{"what":"tea"}']


async def test_no_header_with_a_secret_follows_a_redirect_whatever_its_name(monkeypatch):
    monkeypatch.setenv("SHOP_KEY", "hunter2-hunter2")
    elsewhere = serve_http(says(b"{}"))
    async with elsewhere as other, serve_http(lambda _: (302, {"Location": f"{other.url}/x"}, b"")) as server:
        await call({"url": server.url, "headers": {"User-Agent": "${SHOP_KEY}", "Accept": "text/plain"}})
    headers = other.requests[0].headers
    assert headers["accept"] == "text/plain" and "hunter2" not in str(headers)
