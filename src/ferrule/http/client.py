"""An HTTP client for tools: connects only where its guard allows, and reads no more than its limit.

It uses httpx's transport alone, without its client: no cookies from one call to the next, no proxies and passwords from
the environment, no URLs in the log, no redirect followed unchecked. Every step of a redirect is checked like the first,
and headers that may contain secrets are not sent to another host. One table maps exceptions of httpx to Ferrule's.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes
from weakref import WeakKeyDictionary

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallError, ExecutionFailed, Retry, TimedOut, TransportFault, iterate_causes
from ferrule.http.guard import AddressGuard, open_transport

if TYPE_CHECKING:
    import httpx

MAX_RESPONSE_BYTES = 5_000_000
MAX_REDIRECTS = 10
MAX_ENCODINGS = 2
"""Each costs as much work as a whole response, and servers use only one."""
_UNSUPPORTED_ENCODINGS = frozenset({"br", "zstd", "compress"})
"""Servers send these only on request. Anything else in this header, such as a character set by mistake, is ignored."""
CONNECT_TIMEOUT = 10.0

FAILURES: dict[str, tuple[type[CallError], str, bool]] = {
    "InvalidURL": (Retry, "the URL is not valid", False),
    "UnsupportedProtocol": (Retry, "the URL must begin with http:// or https://", False),
    "LocalProtocolError": (Retry, "the request is not valid HTTP", False),
    "CookieConflict": (Retry, "the request has conflicting cookies", False),
    "ConnectTimeout": (TransportFault, "the server did not accept the connection in time", False),
    "PoolTimeout": (TransportFault, "no connection became free in time", False),
    "TimeoutException": (TimedOut, "the server took too long", True),
    "ConnectError": (TransportFault, "no connection could be made", False),
    "ProxyError": (TransportFault, "the proxy failed", False),
    "RemoteProtocolError": (TransportFault, "the server did not send valid HTTP", True),
    "TransportError": (TransportFault, "the connection broke", True),
    "DecodingError": (ExecutionFailed, "the response cannot be decoded", True),
    "TooManyRedirects": (ExecutionFailed, "there were too many redirects", True),
    "HTTPError": (ExecutionFailed, "the request failed", True),
    "StreamError": (ExecutionFailed, "the response could not be read", True),
}
"""By the name of the exception class; the nearest base class in the table decides. With the error and its message:
whether the server can have read the request before it.
"""

_DEFAULT_HEADERS = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "ferrule"}
trace_headers: ContextVar[Mapping[str, str]] = ContextVar("ferrule_trace_headers", default={})  # noqa: B039
"""Sent with each request: `traceparent` of the running call, where traces are configured."""
_HEADER_NAME = lazy_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = lazy_pattern(r"[\t\x20-\x7e]*")
_CLIENT_HEADERS = frozenset({"connection", "content-length", "host", "transfer-encoding"})
FORWARDED_HEADERS = frozenset({"accept", "accept-encoding", "accept-language", "content-type", "user-agent"})
"""Headers that are sent on after a redirect to another host. Any other could be a secret for the first host."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A whole response, after redirects."""

    status_code: int
    headers: dict[str, str]
    """Names in lower case."""
    content: bytes
    """Without its content encoding."""
    url: str
    """The final URL, without credentials."""


class GuardedClient:
    """One client for all calls. Each event loop has its own connections, which `aclose` closes."""

    def __init__(self, guard: AddressGuard, *, max_response: int = MAX_RESPONSE_BYTES) -> None:
        self._guard, self._max_response = guard, max_response
        self._transports: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncHTTPTransport] = WeakKeyDictionary()

    async def send(
        self,
        method: str,
        url: str,
        *,
        what: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        timeout: float | None = None,
        only_once: bool = False,
        on_redirect: Callable[[str], Awaitable[None]] | None = None,
        private_headers: Collection[str] = (),
        private_body: bool = False,
    ) -> HttpResponse:
        """Send a request and read its response to the end.

        `what` names the request in messages and must contain no secret; `timeout` covers everything together.
        `only_once`: a repetition would do harm, so a failure after sending has `outcome: unknown` in its details.
        `on_redirect` gets the target of a redirect, and raises if it must not be followed. `private_headers` and a
        `private_body` contain secrets of this server: another one that it redirects to does not get them.
        """
        import httpx

        state = _RequestState(frozenset(map(str.lower, private_headers)), private_body)
        try:
            async with asyncio.timeout(timeout):
                return await self._follow_redirects(
                    _make_first_request(method, url, headers, content), what, state, on_redirect
                )
        except TimeoutError:
            failure = TimedOut(f"{what} took longer than {timeout} seconds.")
            raise _mark_outcome_unknown(failure, only_once) from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, httpx.StreamError) as error:
            was_sent = state.has_response or _describe_failure(error)[2]
            raise _mark_outcome_unknown(error_from_httpx(error, what), was_sent and only_once) from error
        except CallError as error:
            _mark_outcome_unknown(error, state.has_response and only_once)
            raise

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The client can be used again."""
        transport = self._transports.pop(asyncio.get_running_loop(), None)
        if transport is not None:
            await transport.aclose()

    async def _follow_redirects(
        self,
        request: httpx.Request,
        what: str,
        state: _RequestState,
        on_redirect: Callable[[str], Awaitable[None]] | None,
    ) -> HttpResponse:
        for _ in range(MAX_REDIRECTS + 1):
            loop = asyncio.get_running_loop()
            transport = self._transports.get(loop)
            if transport is None:
                transport = self._transports[loop] = open_transport(self._guard)
            response = await transport.handle_async_request(request)
            state.has_response = True
            try:
                if response.status_code not in _REDIRECTS or "location" not in response.headers:
                    return await self._read_response(response, request.url)
            finally:
                await response.aclose()
            request = _make_redirected_request(request, response, state)
            if on_redirect is not None:
                await on_redirect(str(request.url))
        raise ExecutionFailed(f"{what} was redirected more than {MAX_REDIRECTS} times. Use the final address.")

    async def _read_response(self, response: httpx.Response, url: httpx.URL) -> HttpResponse:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            _check_size(body, self._max_response)
        return HttpResponse(
            status_code=response.status_code,
            headers=dict(response.headers),
            content=_decompress(bytes(body), response.headers.get("content-encoding", ""), self._max_response),
            url=str(url),
        )


@dataclass(slots=True)
class _RequestState:
    """How far a request has come, and what of it only the first server may get."""

    private_headers: frozenset[str]
    private_body: bool
    has_response: bool = False
    """The server has read the request and sent a response, perhaps only a redirect."""


def _mark_outcome_unknown(failure: CallError, may_have_taken_effect: bool) -> CallError:
    if may_have_taken_effect:
        failure.details = {**failure.details, "outcome": "unknown"}
    return failure


def _describe_failure(error: Exception) -> tuple[type[CallError], str, bool]:
    return next(FAILURES[cls.__name__] for cls in type(error).__mro__ if cls.__name__ in FAILURES)


def error_from_httpx(error: Exception, what: str) -> CallError:
    """Return Ferrule's error for an exception of httpx."""
    error_class, message, _ = _describe_failure(error)
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in iterate_causes(error)):
        error_class, message = ExecutionFailed, "the server's certificate cannot be trusted"
    reason = str(error).strip()
    if type(error).__name__ == "RemoteProtocolError":
        reason = reason.partition(": ")[0]  # the rest is what the server sent: untrusted text, or a secret
    return error_class(f"{what}: {message}" + (f" ({reason})." if reason else "."))


def format_url(url: str) -> str:
    """Return a URL for messages: without credentials and query, both of which may contain secrets."""
    text = re.sub(r"//[^/?#]*@", "//", url.split("?")[0])
    return text if len(text) <= 200 else f"{text[:200]}…"


def _make_first_request(method: str, url: str, headers: Mapping[str, str], content: bytes | None) -> httpx.Request:
    import httpx

    target = _read_url(url)
    all_headers = httpx.Headers({**_DEFAULT_HEADERS, **trace_headers.get()})
    if target.userinfo:
        all_headers["Authorization"] = "Basic " + base64.b64encode(unquote_to_bytes(target.userinfo)).decode()
    for name, value in headers.items():
        if problem := describe_header_problem(name):
            raise Retry(f"{problem}.")
        # The value may be a secret and is not part of the message.
        if not _HEADER_VALUE.fullmatch(value.strip()):
            raise Retry(f"the header {name!r} can only hold printable ASCII characters on one line.")
        all_headers[name] = value.strip()
    return _build_request(method, target, all_headers, content)


def _make_redirected_request(request: httpx.Request, response: httpx.Response, state: _RequestState) -> httpx.Request:
    """Return the next request, as browsers make it: after 302 and 303, and for POST after 301, it becomes a GET."""
    import httpx

    try:
        url = _read_url(request.url.join(response.headers["location"]))
    except (httpx.InvalidURL, Retry) as error:
        # Not a Retry: other arguments would not help. The address is text of the server and not repeated.
        raise ExecutionFailed("the server redirects to an address that is no valid http or https URL.") from error
    becomes_get = request.method != "HEAD" and (
        response.status_code in (302, 303) or (response.status_code == 301 and request.method == "POST")
    )
    dropped = _CLIENT_HEADERS | ({"content-type"} if becomes_get else set())
    headers = {name: value for name, value in request.headers.items() if name not in dropped}
    if not _is_same_server(request.url, url):
        forwarded = FORWARDED_HEADERS - state.private_headers
        headers = {name: value for name, value in headers.items() if name in forwarded}
        if state.private_body and not becomes_get and request.content:
            raise ExecutionFailed(
                "the server redirects the request to another server, which must not get the secret in its body. "
                "If that server is right, change the address of the tool."
            )
    method, content = ("GET", None) if becomes_get else (request.method, request.content or None)
    return _build_request(method, url, httpx.Headers(headers), content)


def _build_request(method: str, url: httpx.URL, headers: httpx.Headers, content: bytes | None) -> httpx.Request:
    import httpx

    timeouts = {"timeout": {"connect": CONNECT_TIMEOUT}}
    return httpx.Request(method, url.copy_with(userinfo=b""), headers=headers, content=content, extensions=timeouts)


def describe_header_problem(name: str) -> str:
    """Return why a header of this name cannot be sent; empty if it can."""
    if not _HEADER_NAME.fullmatch(name):
        return f"{name!r} cannot be the name of a header: use letters, digits and dashes"
    if name.lower() in _CLIENT_HEADERS:
        return f"the header {name!r} is set by the client itself: leave it out"
    return ""


def _read_url(text: httpx.URL | str) -> httpx.URL:
    """Return a URL that can be requested. Raises Retry, or InvalidURL of httpx, for any other."""
    import httpx

    try:
        url = httpx.URL(text)
        url.host  # noqa: B018  decoded only now, which fails for an invalid name
    except UnicodeError as error:
        raise httpx.InvalidURL(str(error)) from error
    if url.scheme not in ("http", "https"):
        raise Retry(f"only http:// and https:// can be requested, not {url.scheme or 'nothing'!r}.")
    if not url.host:
        raise Retry("the URL has no host. Write it like https://example.com/path.")
    if url.port is not None and not 0 < url.port < 65536:
        raise Retry(f"the URL has the port {url.port}, which does not exist. Use 1 to 65535.")
    return url


def _is_same_server(first: httpx.URL, second: httpx.URL) -> bool:
    """Return whether the second is the same server as the first, or its https form at the default port."""
    if first.host != second.host:
        return False
    is_upgrade = (first.scheme, first.port, second.scheme, second.port) == ("http", None, "https", None)
    return is_upgrade or (first.scheme, first.port) == (second.scheme, second.port)


def _decompress(content: bytes, encodings: str, limit: int) -> bytes:
    """Return the content without its content encodings, decompressed no further than the limit."""
    applied = [name for each in encodings.lower().split(",") if (name := each.strip()) not in ("", "identity")]
    if len(applied) > MAX_ENCODINGS:
        raise ExecutionFailed(f"the response is compressed more than {MAX_ENCODINGS} times, and is not read.")
    for encoding in reversed(applied):
        if content and encoding in _UNSUPPORTED_ENCODINGS:
            raise ExecutionFailed(f"the response is compressed by {encoding}, which is not supported.")
        if content and encoding in ("gzip", "x-gzip", "deflate"):
            content = _inflate(content, limit)
    return content


def _inflate(content: bytes, limit: int) -> bytes:
    # zlib recognises gzip and zlib by their first byte. Some servers send deflate without any header.
    for window in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
        decompressor = zlib.decompressobj(window)
        try:
            data = decompressor.decompress(content, limit + 1)
        except zlib.error:
            continue
        _check_size(data, limit)
        if decompressor.eof:
            return data
    raise ExecutionFailed("the response is declared as compressed, but cannot be decompressed.")


def _check_size(body: bytes | bytearray, limit: int) -> None:
    if len(body) > limit:
        raise ExecutionFailed(
            f"the response is larger than {limit:,} bytes. Request less of it: a page, a range, a filter."
        )
