"""Paths that want to get out, servers that talk, keys that must not travel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import Retry
from ferrule.http import retry
from ferrule_tools.web.api_caller import ApiCallerConfig, ApiConfig, api_tools, resolve_path
from tests.ferrule_tools.web.api_caller.server import ALL, TOKEN, api, says
from tests.support.http_servers import serve_http

pytestmark = pytest.mark.integration

BASE = "https://api.example.com/v1/tenant"


def test_a_path_is_joined_below_the_base():
    for path, address in (
        ("users/7", f"{BASE}/users/7"),
        ("/users/7/", f"{BASE}/users/7/"),
        ("", BASE),
        ("/", BASE),
        ("files/a b.txt", f"{BASE}/files/a%20b.txt"),
        ("茶", f"{BASE}/%E8%8C%B6"),
        ("group%2Fproject/x", f"{BASE}/group%2Fproject/x"),
        ("50%", f"{BASE}/50%25"),
        ("messages:batchGet", f"{BASE}/messages:batchGet"),
        ("a..b/...", f"{BASE}/a..b/..."),
        ("@evil.example/", f"{BASE}/@evil.example/"),
    ):
        assert resolve_path(BASE, path) == (address, "")


def test_a_path_that_leads_elsewhere_is_refused():
    for path in (
        "https://evil.example/",
        "HTTPS:/evil.example",
        "//evil.example/x",
        "\\\\evil.example",
        "/\\evil.example",
        "%2F%2Fevil.example",
        "https%3A%2F%2Fevil.example",
        "..",
        "../other",
        "a/../../other",
        "a/%2e%2e/%2E%2E/other",
        "%252e%252e/other",
        "%25252e%25252e/other",
        "..%2fother",
        "..%5cother",
        "..\\other",
        "..;/other",
        "..;x=1/other",
        "./x",
        "%c0%ae%c0%ae/other",
        ".. /other",
        "x\r\nHost: evil.example",
        "x\x00",
        "..%00/other",
        "..%2500/other",
        "x%0d%0aHost:%20evil.example",
        "．．/other",
        "‥/other",
        "x" * 5_000,
    ):
        with pytest.raises(Retry):
            resolve_path(BASE, path)


@given(st.text(alphabet=st.sampled_from("./\\%2eE5cCfF;:@#?abh\t\n 茶")))
def test_whatever_the_path_the_address_stays_below_the_base(path):
    try:
        address, _ = resolve_path(BASE, path)
    except Retry:
        return
    assert address.startswith(BASE) and ".." not in address.replace("...", "").split("/")


async def test_a_path_that_leads_elsewhere_never_reaches_the_server():
    async with api(says({})) as it:
        result = await it.call("../../admin")
    assert "leads away from the API" in str(result.error) and it.requests == []


async def test_the_key_is_in_no_result_no_error_and_no_record():
    async with api(says([TOKEN], Link=TOKEN), query={"key": "${SHOP_TOKEN}"}) as it:
        result = await it.call()
        [record] = await it.library.engine.query_call_records()
    assert result.output["body"] == ["[redacted]"] and TOKEN in it.requests[0].path
    assert TOKEN not in str(result.to_dict()) and TOKEN not in str(record.to_dict())


async def test_an_error_of_the_api_is_told_without_the_key():
    async with api(says({"message": f"bad token {TOKEN}"}, 403)) as it:
        result = await it.call()
    assert result.error == """the endpoint of 'shop' answered with status 403: {"message": "bad token [redacted]"}"""
    assert result.metadata["untrusted"] is True and len(it.requests) == 1


async def test_the_key_does_not_follow_a_redirect_to_another_host():
    async with serve_http(says({"here": True})) as other:
        async with api(says(b"", 302, Location=f"{other.url}/x"), headers={"X-Key": "${SHOP_TOKEN}"}) as it:
            assert (await it.call()).output["body"] == {"here": True}
        assert TOKEN not in str(other.requests[0])


async def test_a_redirect_into_the_private_network_is_refused():
    async with api(says(b"", 302, Location="http://169.254.169.254/latest")) as it:
        assert (await it.call()).error_type == "permission_denied"


async def test_an_answer_larger_than_allowed_is_not_read():
    async with api(says(b"x" * 2_000), max_bytes=1_000) as it:
        assert "larger than 1,000 bytes" in str((await it.call()).error)


@pytest.mark.parametrize("methods", [["GET"], ALL])
async def test_a_busy_api_is_asked_again_when_that_does_no_harm(methods):
    answers = iter([says({}, 503, **{"Retry-After": "0"}), says({}, 429, **{"Retry-After": "0"}), says({"ok": 1})])
    async with api(lambda request: next(answers)(request), methods=methods) as it:
        result = await it.call()
    assert result.output["body"] == {"ok": 1} and len(it.requests) == 3


async def test_what_may_have_happened_is_not_done_again():
    async with api(says({}, 503, **{"Retry-After": "0"}), methods=ALL) as it:
        result = await it.call(method="POST", body={})
    assert "status 503" in str(result.error) and len(it.requests) == 1


async def test_a_call_ends_with_its_time():
    async with api(lambda _: None, timeout=0.2) as it:
        result = await it.call()
    assert result.error_type == "timeout" and "took longer than 0.2 seconds" in str(result.error)


async def test_one_api_that_is_down_does_not_count_against_the_others(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_RETRY_DELAY", 0.001)
    async with api(says({}, 502), methods=ALL) as it:
        for number in range(10):
            await it.call(f"users/{number}")
        [tool] = it.library.engine.registry.candidates("api_caller")
        assert it.library.engine.circuit_state(tool) == "closed"
    assert len(it.requests) == 30


async def test_nothing_is_deleted_by_not_saying_how():
    async with api(says({}), methods=["POST", "DELETE"], ask_before=[]) as it:
        result = await it.call()
    assert result.error_type == "validation_error" and "method" in str(result.error) and it.requests == []


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("users/7?_method=DELETE", {}),
        ("users/7", {"query": {"_HttpMethod": "DELETE"}}),
        ("users/7", {"body": {"_method": "DELETE"}}),
        ("users/7", {"body": '{"_method": "DELETE"}'}),
        ("users/7", {"body": "a=1&_method=delete"}),
    ],
)
async def test_a_request_cannot_pass_for_one_of_another_method(path, more):
    async with api(says({}), methods=["GET", "POST"]) as it:
        result = await it.call(path, method="POST", **more)
    assert "would change the method of the request" in str(result.error) and it.requests == []


async def test_the_query_of_the_configuration_cannot_be_said_in_other_letters():
    async with api(says({}), query={"key": "${SHOP_TOKEN}"}) as it:
        await it.call("users?KEY=mine", query={"Key": "mine"})
    assert it.requests[0].path == f"/v1/users?key={TOKEN}"


@pytest.mark.parametrize("before", ["user:pass-word-1@", "not an address "])
async def test_an_address_of_the_environment_with_a_password_is_refused_unseen(before):
    async with api(lambda request: (200, {}, str(request.headers).encode())) as it:
        base = it.server.url.replace("http://", f"http://{before}")
        it.library.engine.unregister("api_caller")
        apis = ApiCallerConfig(apis={"shop": ApiConfig(base_url="${SHOP_URL}/v1")})
        it.library.register(*api_tools(apis, environ={"SHOP_URL": base}))
        result = await it.call()
    assert "without a password or a query: a person must change it" in str(result.error)
    assert before not in str(result.to_dict()) and it.requests == []


async def test_an_address_of_the_environment_may_change_from_call_to_call():
    async with api(says({})) as it, serve_http(says({"moved": True})) as other:
        it.library.engine.unregister("api_caller")
        environ = {"SHOP_URL": it.server.url}
        apis = ApiCallerConfig(apis={"shop": ApiConfig(base_url="${SHOP_URL}")})
        it.library.register(*api_tools(apis, environ=environ))
        assert (await it.call()).output["body"] == {}
        environ["SHOP_URL"] = other.url.replace("127.0.0.1", "localhost")
        assert (await it.call()).output["body"] == {"moved": True}


async def test_halves_of_characters_do_no_harm():
    async with api(says({})) as it:
        assert (await it.call("a\ud800", query={"q": "\ud800"})).is_success
    assert it.requests[0].path == "/v1/a%3F?q=%3F"
