import asyncio
import gzip
import itertools
import json
import socket
import ssl
import zlib
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from ferrule.core.content import Image, Output, Resource
from ferrule.errors import (
    CallError,
    ExecutionFailed,
    PermissionDenied,
    Refuse,
    Retry,
    SetupError,
    TimedOut,
    Transient,
    TransportFault,
)
from ferrule.http import retry
from ferrule.http.client import error_from_httpx
from ferrule.http.guard import AddressGuard
from ferrule.kinds.http_request import HttpRequestConfig, HttpRequestExecutor
from tests.kinds.invocations import invocation
from tests.support.http_servers import Answer, AnyAnswer, Request, answers_in_order, serve_http
from tests.support.waiting import time_out_after_start, until

pytestmark = pytest.mark.integration

OPEN = AddressGuard(allow_private=True)


@pytest.fixture(autouse=True)
def short_retry_delay(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_RETRY_DELAY", 0.001)


async def request(guard: AddressGuard = OPEN, *, max_response: int = 100_000, **params: Any) -> Output:
    executor = HttpRequestExecutor(guard, max_response=max_response)
    try:
        return await executor.execute(invocation(params))
    finally:
        await executor.aclose()


def says(body: bytes, content_type: str | None = "application/json", status: int = 200) -> Any:
    headers = {} if content_type is None else {"Content-Type": content_type}
    return lambda request: (status, headers, body)


def redirects(**steps: str) -> Any:
    """/name leads to the given address; any other path answers."""

    def answer(request: Request) -> AnyAnswer:
        location = steps.get(request.path.strip("/").partition("?")[0])
        return (302, {"Location": location}, b"") if location else (200, {"Content-Type": "text/plain"}, b"there")

    return answer


async def test_json_comes_back_parsed_and_the_url_without_credentials():
    async with serve_http(says(b'{"n": 123456789012345678901234567890}')) as server:
        output = await request(url=f"http://user:pass@127.0.0.1:{server.port}/a")
    assert output.data["status_code"] == 200
    assert output.data["body"] == {"n": 123456789012345678901234567890}
    assert output.data["headers"]["content-type"] == "application/json"
    assert output.data["url"] == f"{server.url}/a"


async def test_a_body_is_sent_as_json_with_the_given_headers():
    async with serve_http(says(b"{}")) as server:
        await request(url=server.url, method="POST", headers={"X-Key": "7"}, body={"name": "猫"}, timeout=30)
    sent = server.requests[0]
    assert (sent.method, sent.headers["x-key"], sent.headers["content-type"]) == ("POST", "7", "application/json")
    assert json.loads(sent.body) == {"name": "猫"}


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "x-http-method", "X-Method-Override "])
async def test_a_header_cannot_change_the_method_that_rules_are_about(header):
    async with serve_http(says(b"{}")) as server:
        with pytest.raises(Retry, match="use the argument `method`"):
            await request(url=server.url, method="POST", headers={header: "DELETE"})
        assert server.requests == []


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("body", "headers", "kind", "sent"),
    [
        ([1, 2], {}, "application/json", b"[1,2]"),
        ('{"a": 1}', {}, "application/json", b'{"a": 1}'),
        ("a=1", {}, "text/plain; charset=utf-8", b"a=1"),
        ("a\ud800b", {}, "text/plain; charset=utf-8", b"a?b"),
        ({"a": [1, 2], "b": "x y"}, {"content-type": FORM}, FORM, b"a=1&a=2&b=x+y"),
    ],
)
async def test_a_body_says_what_it_is(body, headers, kind, sent):
    async with serve_http(says(b"{}")) as server:
        output = await request(url=server.url, method="POST", headers=headers, body=body)
    assert server.requests[0].headers["content-type"] == kind and output.data["untrusted"] is True
    assert server.requests[0].body == sent


@pytest.mark.parametrize("status", [204, 404, 429, 500, 503])
async def test_any_status_is_a_result(status):
    async with serve_http(says(b"", None, status)) as server:
        output = await request(url=server.url)
    assert (output.data["status_code"], output.data["body"]) == (status, None)


@pytest.mark.parametrize(
    ("body", "content_type", "read"),
    [
        ("网页".encode("gb2312"), "text/html; charset=gb2312", "网页"),
        ('<meta charset="gbk">网页'.encode("gbk"), "text/html", '<meta charset="gbk">网页'),
        ("\ufeffnaïve".encode(), "text/plain", "naïve"),
        (b"caf\xe9", "text/plain", "caf\ufffd"),
        (b"caf\xe9", "text/plain; charset=latin-1", "café"),
        (b"plain", "text/plain; charset=punycode", "plain"),
        (b"plain", "text/plain; charset=hex", "plain"),
        (b"{broken", "application/json", "{broken"),
        (b'{"n": NaN}', "application/json", '{"n": NaN}'),
        (b'{"a": 1}', "application/vnd.api+json", {"a": 1}),
        (b'{"a": 1}', None, {"a": 1}),
        (b"<a/>", "application/atom+xml", "<a/>"),
    ],
)
async def test_text_is_decoded_as_it_says(body, content_type, read):
    async with serve_http(says(body, content_type)) as server:
        output = await request(url=server.url)
    assert output.data["body"] == read


async def test_images_and_other_bytes_are_described_in_the_data_and_carried_beside_it():
    async with serve_http(says(b"\x89PNG\xff", "image/png")) as server:
        output = await request(url=server.url)
    assert output.data["body"] == {"type": "image", "mime_type": "image/png", "size": 5}
    assert output.parts == (Image(data=b"\x89PNG\xff", mime_type="image/png"),)
    async with serve_http(says(b"\xff\xfe\x00", None)) as server:
        output = await request(url=f"{server.url}/file")
        expected = Resource(uri=f"{server.url}/file", data=b"\xff\xfe\x00", mime_type="application/octet-stream")
    assert output.parts == (expected,)


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (gzip.compress(b'{"a": 1}', mtime=0), "gzip"),
        (zlib.compress(b'{"a": 1}'), "deflate"),
        (zlib.compress(b'{"a": 1}', wbits=-15), "deflate"),
        (gzip.compress(gzip.compress(b'{"a": 1}', mtime=0), mtime=0), "gzip, gzip"),
    ],
)
async def test_compressed_responses_are_unpacked(packed, encoding):
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with serve_http(lambda _: (200, headers, packed)) as server:
        output = await request(url=server.url)
    assert output.data["body"] == {"a": 1}


TWICE = gzip.compress(gzip.compress(b"x" * 10_000_000, mtime=0), mtime=0)


@pytest.mark.parametrize(
    ("body", "encoding", "message"),
    [
        (b"x" * 1001, "identity", "larger than 1,000 bytes"),
        (gzip.compress(b"x" * 1001, mtime=0), "gzip", "larger than 1,000 bytes"),
        (TWICE, "gzip, gzip", "larger than 1,000 bytes"),
        (gzip.compress(b"x", mtime=0), ", ".join(["gzip"] * 10_000), "compressed more than 2 times"),
        (b"no gzip", "gzip", "cannot be decompressed"),
        (gzip.compress(b"whole", mtime=0)[:-9], "gzip", "cannot be decompressed"),
        (b"\x8b\x02\x80hello\x03", "br", "compressed by br, which is not supported"),
    ],
    ids=["large", "expands", "expands twice", "packed often", "not gzip", "cut off", "other encoding"],
)
async def test_a_response_that_is_too_large_or_cannot_be_unpacked_is_refused(body, encoding, message):
    async with serve_http(lambda _: (200, {"Content-Encoding": encoding}, body)) as server:
        with pytest.raises(ExecutionFailed, match=message):
            await request(url=server.url, max_response=1000, headers={"Accept-Encoding": encoding[:20]})


async def test_a_response_without_end_is_not_read_on():
    async with serve_http(lambda _: Answer(events=itertools.repeat(b"x" * 10_000))) as server:
        with pytest.raises(ExecutionFailed, match="larger than"):
            await request(url=server.url)


async def test_redirects_are_followed_and_the_final_address_is_told():
    async with serve_http(redirects(one="/two?x=1", two="/three")) as server:
        output = await request(url=f"{server.url}/one")
    assert (output.data["body"], output.data["url"]) == ("there", f"{server.url}/three")
    assert [each.path for each in server.requests] == ["/one", "/two?x=1", "/three"]


async def test_a_redirect_without_end_is_refused():
    async with serve_http(lambda _: (302, {"Location": "/again"}, b"")) as server:
        with pytest.raises(ExecutionFailed, match="redirected more than 10 times"):
            await request(url=server.url)
    assert len(server.requests) == 11


@pytest.mark.parametrize(
    ("status", "method", "body"), [(303, "GET", b""), (301, "GET", b""), (307, "POST", b'{"a":1}')]
)
async def test_a_redirected_post_goes_on_as_browsers_do_it(status, method, body):
    def answer(request: Request) -> AnyAnswer:
        return (status, {"Location": "/end"}, b"") if request.path == "/" else (200, {}, b"")

    async with serve_http(answer) as server:
        await request(url=f"{server.url}/", method="POST", body={"a": 1})
    assert (server.requests[1].method, server.requests[1].body) == (method, body)


async def test_secrets_do_not_follow_a_redirect_to_another_host():
    async with serve_http(says(b"{}")) as other, serve_http(redirects(go=f"{other.url}/x", near="/go")) as server:
        headers = {"Authorization": "Bearer 1", "Cookie": "s=1", "X-Api-Key": "k", "Accept-Language": "zh"}
        await request(url=f"{server.url}/near", headers=headers)
    assert server.requests[1].headers["x-api-key"] == "k"
    followed = other.requests[0].headers
    assert followed["accept-language"] == "zh"
    assert not {"authorization", "cookie", "x-api-key"} & set(followed)


@pytest.mark.parametrize("location", ["http://", "http://[bad"])
async def test_a_redirect_to_no_host_is_refused(location):
    async with serve_http(redirects(go=location)) as server:
        with pytest.raises(CallError, match="host|redirected more than 10 times"):
            await request(url=f"{server.url}/go")


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://example.com/", "http://a:do-as-I-say/", "http://xn--a.com/"]
)
async def test_a_redirect_to_something_else_than_http_is_refused_in_our_own_words(location):
    async with serve_http(redirects(go=location)) as server:
        with pytest.raises(ExecutionFailed) as failed:
            await request(url=f"{server.url}/go")
    assert str(failed.value) == "the server redirects to an address that is no valid http or https URL."


async def test_connections_are_used_again_without_cookies_and_closed_at_the_end():
    async with serve_http(lambda _: (200, {"Set-Cookie": "session=1"}, b"")) as server:
        executor = HttpRequestExecutor(OPEN)
        for _ in range(3):
            await executor.execute(invocation({"url": server.url}))
        assert server.connections == 1 and not any("cookie" in each.headers for each in server.requests)
        await executor.aclose()
        await until(lambda: server.connections == 0)


def test_one_executor_serves_several_event_loops():
    executor = HttpRequestExecutor(OPEN)

    async def call() -> Any:
        async with serve_http(says(b'{"a": 1}')) as server:
            output = await executor.execute(invocation({"url": server.url}))
            await executor.aclose()
        return output.data["body"]

    assert [asyncio.run(call()) for _ in range(2)] == [{"a": 1}, {"a": 1}]


async def test_proxies_of_the_environment_do_not_lead_around_the_guard(monkeypatch):
    async with serve_http(says(b"{}")) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        with pytest.raises(PermissionDenied):
            await request(AddressGuard(), url="http://10.0.0.1/")
    assert proxy.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"])
async def test_this_machine_cannot_be_reached(host):
    async with serve_http(says(b"{}")) as server:
        with pytest.raises(PermissionDenied, match="allowed_hosts"):
            await request(AddressGuard(), url=f"http://{host}:{server.port}/")
    assert server.requests == []


async def test_an_allowed_host_can_be_reached_but_not_redirect_to_another_one():
    async with serve_http(says(b"{}")) as inner, serve_http(redirects(go=inner.url)) as server:
        guard = AddressGuard(allowed_hosts=["outside.example"], resolver=_always("127.0.0.1"))
        with pytest.raises(PermissionDenied, match=r"127\.0\.0\.1"):
            await request(guard, url=f"http://outside.example:{server.port}/go")
    assert len(server.requests) == 1
    assert inner.requests == []


async def test_the_checked_address_is_dialled_and_the_name_is_not_looked_up_again():
    looked_up: list[str] = []

    async def rebinding(host: str, port: int, /) -> Sequence[str]:
        looked_up.append(host)
        return ["127.0.0.1"] if len(looked_up) == 1 else ["10.0.0.1"]

    async with serve_http(says(b"{}")) as server:
        guard = AddressGuard(allowed_hosts=["127.0.0.1"], resolver=rebinding)
        await request(guard, url=f"http://rebinding.example:{server.port}/")
    assert looked_up == ["rebinding.example"]
    assert server.requests[0].headers["host"] == f"rebinding.example:{server.port}"


async def test_tls_asks_for_the_name_at_the_checked_address():
    server_names: list[str | None] = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.sni_callback = lambda connection, name, context: server_names.append(name)
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=tls)
    guard = AddressGuard(allowed_hosts=["127.0.0.1"], resolver=_always("127.0.0.1"))
    with pytest.raises(Transient):  # it has no certificate to show
        await request(guard, url=f"https://secure.example:{server.sockets[0].getsockname()[1]}/")
    server.close()
    await server.wait_closed()
    assert set(server_names) == {"secure.example"}


async def test_a_name_that_leads_inside_on_the_second_look_up_is_refused_then():
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])

    async def rebinding(host: str, port: int, /) -> Sequence[str]:
        return next(answers)

    async with serve_http(redirects(go="http://rebinding.example/")) as server:
        guard = AddressGuard(allowed_hosts=["127.0.0.1"], resolver=rebinding)
        with pytest.raises(PermissionDenied, match=r"resolves to 10\.0\.0\.1"):
            await request(guard, url=f"http://first.example:{server.port}/go")


async def test_the_next_address_is_tried_when_the_first_does_not_answer():
    async with serve_http(says(b"{}")) as server:
        guard = AddressGuard(allow_private=True, resolver=_always("127.0.0.2", "127.0.0.1"))
        output = await request(guard, url=f"http://two.example:{server.port}/")
    assert output.data["status_code"] == 200


async def test_a_refused_connection_may_succeed_later_and_does_not_count_against_the_tool():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(Transient, match="no connection could be made") as failed:
            await request(url=url)
    assert not failed.value.transport_fault and url in str(failed.value)


async def test_a_host_that_does_not_exist_is_a_wrong_argument():
    async def unknown(host: str, port: int, /) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(Retry, match=r"'nowhere\.example' cannot be found.*Check its name"):
        await request(AddressGuard(resolver=unknown), url="http://nowhere.example/")


def test_a_certificate_that_cannot_be_trusted_will_not_be_later():
    error = httpx.ConnectError("certificate verify failed")
    error.__cause__ = ssl.SSLCertVerificationError()
    assert type(error_from_httpx(error, "GET")) is ExecutionFailed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"SSH-2.0\r\n", r"did not send valid HTTP|connection broke"),
        (b"Do as I say\r\n\r\n", r"did not send valid HTTP \(illegal status line\)\.$"),
        (b"HTTP/1.1 200 OK\r\nDo as I say\r\n\r\n", r"did not send valid HTTP \(illegal header line\)\.$"),
    ],
)
async def test_what_a_server_says_instead_of_http_is_not_repeated(content, message):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(content)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        with pytest.raises(Transient, match=message):
            await request(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")


async def test_the_time_out_is_for_the_whole_request():
    async with serve_http(lambda _: None) as server:
        with pytest.raises(TimedOut, match=r"took longer than 0\.1 seconds"):
            await request(url=server.url, timeout=0.1)


async def test_a_cancelled_call_has_closed_its_connection():
    async with serve_http(lambda _: None) as server:
        executor = HttpRequestExecutor(OPEN)
        call = asyncio.create_task(executor.execute(invocation({"url": server.url})))
        await until(lambda: server.requests)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: server.connections == 0)
        await executor.aclose()


async def test_credentials_of_a_url_are_sent_and_shown_nowhere():
    async with serve_http(lambda _: None) as server:

        async def send(timeout: float) -> str:
            with pytest.raises(TimedOut) as failed:
                await request(url=f"http://user:p%40ss@127.0.0.1:{server.port}/x?token=secret", timeout=timeout)
            return str(failed.value)

        message = await time_out_after_start(send, lambda: server.requests)
    assert server.requests[0].headers["authorization"] == "Basic dXNlcjpwQHNz"
    assert not any(secret in message for secret in ("user", "p%40ss", "p@ss", "secret"))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"url": "ftp://example.com/"}, "only http:// and https://"),
        ({"url": "example.com"}, "only http:// and https://"),
        ({"url": "http:///path"}, "no host"),
        ({"url": "http://example.com:99999/"}, "port 99999"),
        ({"url": "http://exa mple.com/"}, "has no address"),
        ({"url": "http://[::1/"}, "not valid"),
        ({"url": "http://xn--a.com/"}, "not valid"),
        ({"url": "http://example.com/\ud800"}, "not valid"),
        ({"url": "http://example.com/\n"}, "not valid"),
        ({"url": "http://example.com", "headers": {"X": "a\r\nY: b"}}, "'X' can only hold printable ASCII"),
        ({"url": "http://example.com", "headers": {"X": "猫"}}, "'X' can only hold printable ASCII"),
        ({"url": "http://example.com", "headers": {"a b": "1"}}, "cannot be the name of a header"),
        ({"url": "http://example.com", "headers": {"Host": "x"}}, "set by the client itself"),
        ({"url": "http://example.com", "headers": {"content-length": "3"}}, "set by the client itself"),
    ],
)
async def test_a_request_that_cannot_be_sent_is_explained(params, message):
    with pytest.raises((Retry, Transient), match=message):
        await request(AddressGuard(resolver=_always()), **params)


def test_every_exception_of_httpx_has_a_meaning_here():
    raised = [each for each in vars(httpx).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert {httpx.ReadTimeout, httpx.InvalidURL, httpx.StreamClosed, httpx.TooManyRedirects} <= set(raised)
    for kind in raised:
        error = kind.__new__(kind)
        Exception.__init__(error, "why")
        assert str(error_from_httpx(error, "GET http://a")).startswith("GET http://a: ")


@pytest.mark.parametrize(
    ("kind", "means"),
    [
        (httpx.ConnectError, TransportFault),
        (httpx.ConnectTimeout, TransportFault),
        (httpx.ReadTimeout, TimedOut),
        (httpx.ReadError, TransportFault),
        (httpx.RemoteProtocolError, TransportFault),
        (httpx.LocalProtocolError, Retry),
        (httpx.UnsupportedProtocol, Retry),
        (httpx.InvalidURL, Retry),
        (httpx.DecodingError, ExecutionFailed),
        (httpx.HTTPError, ExecutionFailed),
    ],
)
def test_the_nearest_meaning_holds(kind, means):
    assert type(error_from_httpx(kind("why"), "GET")) is means


def _always(*addresses: str) -> Any:
    async def resolve(host: str, port: int, /) -> Sequence[str]:
        return addresses

    return resolve


async def test_a_busy_server_is_asked_again_as_soon_as_it_allows():
    answers = answers_in_order((503, {"Retry-After": "0"}, b""), (429, {}, b""), (200, {}, b""))
    async with serve_http(answers) as server:
        output = await request(url=server.url)
    assert output.data["status_code"] == 200 and len(server.requests) == 3


@pytest.mark.parametrize(("method", "requests"), [("GET", 3), ("PUT", 3), ("DELETE", 3), ("POST", 1)])
async def test_a_busy_server_is_the_result_in_the_end_and_what_may_have_happened_is_not_sent_again(method, requests):
    async with serve_http(says(b"busy", "text/plain", 503)) as server:
        output = await request(url=server.url, method=method)
    assert (output.data["status_code"], output.data["body"]) == (503, "busy") and len(server.requests) == requests


async def test_a_server_that_wants_us_to_wait_longer_than_there_is_time_is_not_waited_for():
    async with serve_http(lambda _: (429, {"Retry-After": "3600"}, b"")) as server:
        output = await request(url=server.url, timeout=120)
    assert output.data["status_code"] == 429 and len(server.requests) == 1


async def test_a_request_that_broke_off_may_have_been_read():
    def hang_up(request: Request) -> AnyAnswer:
        raise ConnectionError

    async with serve_http(hang_up) as server:
        with pytest.raises(Transient) as failed:
            await request(url=server.url, method="POST")
    assert failed.value.details["outcome"] == "unknown"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("nan", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("٣", None),
        ("", None),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999", None),
    ],
)
def test_a_server_says_how_long_to_wait(header, seconds):
    assert retry.parse_retry_after({"retry-after": header}) == seconds
    assert retry.parse_retry_after({"retry-after": header, "retry-after-ms": "250"}) == 0.25


SECRET = "secret-0123456789"


async def request_with_secret(secrets: dict[str, list[str]], **params: Any) -> Output:
    config = HttpRequestConfig(secrets=secrets)
    executor = HttpRequestExecutor(OPEN, config, environ={"API_TOKEN": SECRET})
    try:
        return await executor.execute(invocation({"headers": {"Authorization": "Bearer ${API_TOKEN}"}, **params}))
    finally:
        await executor.aclose()


async def test_a_header_may_name_a_secret_which_comes_back_nowhere():
    async with serve_http(lambda r: (200, {"Echo": SECRET}, r.headers["authorization"].encode())) as server:
        output = await request_with_secret({"API_TOKEN": [server.url]}, url=f"{server.url}/x")
    assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert output.data["body"] == "Bearer [redacted]" and SECRET not in str(output)


@pytest.mark.parametrize("places", [{}, {"API_TOKEN": ["api.example.com"]}, {"OTHER": ["http://127.0.0.1"]}])
async def test_a_secret_is_sent_nowhere_else_than_it_may(places):
    async with serve_http(says(b"{}")) as server:
        with pytest.raises(
            Retry, match=r"'API_TOKEN', which may not be sent to this host.*secrets = \{ API_TOKEN = \["
        ):
            await request_with_secret(places, url=server.url)
    assert server.requests == []


async def test_a_secret_does_not_follow_a_redirect():
    async with serve_http(says(b"{}")) as other, serve_http(redirects(go=f"{other.url}/x")) as server:
        await request_with_secret({"API_TOKEN": [server.url]}, url=f"{server.url}/go")
        with pytest.raises(Retry, match="is also sent to other hosts"):
            headers = {"User-Agent": "${API_TOKEN}"}
            await request_with_secret({"API_TOKEN": [server.url]}, url=f"{server.url}/go", headers=headers)
    assert SECRET not in str(other.requests) and len(server.requests) == 1


async def test_a_secret_that_is_not_set_is_named():
    with pytest.raises(Refuse, match="'NOT_SET' is not set"):
        await request_with_secret(
            {"NOT_SET": ["api.example.com"]}, url="https://api.example.com/", headers={"X": "${NOT_SET}"}
        )


@pytest.mark.parametrize("place", ["*", "", "https://user@a.example", "ftp://a.example", "a b", "xn--a.com"])
def test_a_place_for_a_secret_must_be_one(place):
    with pytest.raises(SetupError, match="write a host such as"):
        HttpRequestConfig(secrets={"API_TOKEN": [place]})


async def test_a_secret_does_not_come_back_in_a_file():
    async with serve_http(says(f"key={SECRET}".encode(), "application/octet-stream")) as server:
        output = await request_with_secret({"API_TOKEN": [server.url]}, url=server.url)
    [part] = output.parts
    assert isinstance(part, Resource) and part.data == b"key=[redacted]"
