"""An HTTP client for tools: goes only where its guard lets it, and reads no more than it may.

It stands on httpx's transport alone, without its client: no cookies from one call to the next, no proxies and
passwords from the environment, no URLs in the log, no redirect followed unread. Every step of a redirect is checked
like the first, and headers that may hold secrets do not travel to another host. Exceptions of httpx become ours in
one table.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes
from weakref import WeakKeyDictionary

from ferrule.errors import CallError, ExecutionFailed, Retry, TimedOut, TransportFault
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.checked_connections import open_transport

if TYPE_CHECKING:
    import httpx

MAX_RESPONSE = 5_000_000
MAX_REDIRECTS = 10
MAX_ENCODINGS = 2
"""Each is as much work as a whole response; nobody has a use for more than one."""
_UNREADABLE = frozenset({"br", "zstd", "compress"})
"""Nobody sends these who was not asked to. What else may stand there, a character set by mistake, is left as it is."""
CONNECT_TIMEOUT = 10.0

FAILURES: dict[str, tuple[type[CallError], str]] = {
    "InvalidURL": (Retry, "the URL is not valid"),
    "UnsupportedProtocol": (Retry, "the URL must begin with http:// or https://"),
    "LocalProtocolError": (Retry, "the request is not valid HTTP"),
    "CookieConflict": (Retry, "the request has conflicting cookies"),
    "ConnectTimeout": (TransportFault, "the server did not take the connection in time"),
    "PoolTimeout": (TransportFault, "no connection became free in time"),
    "TimeoutException": (TimedOut, "the server took too long"),
    "ConnectError": (TransportFault, "no connection could be made"),
    "ProxyError": (TransportFault, "the proxy failed"),
    "RemoteProtocolError": (TransportFault, "the server did not answer with valid HTTP"),
    "TransportError": (TransportFault, "the connection broke"),
    "DecodingError": (ExecutionFailed, "the response cannot be decoded"),
    "TooManyRedirects": (ExecutionFailed, "there were too many redirects"),
    "HTTPError": (ExecutionFailed, "the request failed"),
    "StreamError": (ExecutionFailed, "the response could not be read"),
}
"""By the name of the class; the nearest one in an exception's family decides."""

_BEFORE_SENDING = frozenset(
    {
        "ConnectError",
        "ConnectTimeout",
        "CookieConflict",
        "InvalidURL",
        "LocalProtocolError",
        "PoolTimeout",
        "ProxyError",
        "UnsupportedProtocol",
    }
)
"""Exceptions after which nobody can have read the request."""

_DEFAULT_HEADERS = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "ferrule"}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_OWN_HEADERS = frozenset({"connection", "content-length", "host", "transfer-encoding"})
TRAVELLING_HEADERS = frozenset({"accept", "accept-encoding", "accept-language", "content-type", "user-agent"})
"""What may follow a redirect to another host. Everything else could be a secret meant for the first one."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A whole response, after redirects."""

    status_code: int
    headers: dict[str, str]
    """Names in lower case."""
    content: bytes
    """Without its content encoding."""
    url: str
    """Where it came from in the end, without credentials."""


class GuardedClient:
    """One for all calls. Each event loop has connections of its own, which `aclose` ends."""

    def __init__(self, guard: AddressGuard, *, max_response: int = MAX_RESPONSE) -> None:
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
    ) -> Response:
        """Send a request and read its response to the end.

        `what` names the request in messages, where nothing secret may stand; `timeout` is for everything together.
        `only_once`: twice would do harm, so a failure after it was sent says that its outcome is not known.
        `on_redirect` is told where a redirect leads, and raises where that must not be followed.
        """
        import httpx

        journey = _Journey()
        try:
            async with asyncio.timeout(timeout):
                return await self._follow(_request(method, url, headers, content), what, journey, on_redirect)
        except TimeoutError:
            raise TimedOut(f"{what} took longer than {timeout} seconds.") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, httpx.StreamError) as error:
            was_sent = journey.was_answered or type(error).__name__ not in _BEFORE_SENDING
            raise _told(failure_of(error, what), was_sent and only_once) from error
        except CallError as error:
            _told(error, journey.was_answered and only_once)
            raise

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The client can be used again."""
        transport = self._transports.pop(asyncio.get_running_loop(), None)
        if transport is not None:
            await transport.aclose()

    async def _follow(
        self,
        request: httpx.Request,
        what: str,
        journey: _Journey,
        on_redirect: Callable[[str], Awaitable[None]] | None,
    ) -> Response:
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._transport().handle_async_request(request)
            journey.was_answered = True
            try:
                if response.status_code not in _REDIRECTS or "location" not in response.headers:
                    return await self._read(response, request.url)
            finally:
                await response.aclose()
            request = _redirected(request, response)
            if on_redirect is not None:
                await on_redirect(str(request.url))
        raise ExecutionFailed(f"{what} was redirected more than {MAX_REDIRECTS} times. Use the address it leads to.")

    async def _read(self, response: httpx.Response, url: httpx.URL) -> Response:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            _refuse_larger(body, self._max_response)
        return Response(
            status_code=response.status_code,
            headers=dict(response.headers),
            content=_decoded(bytes(body), response.headers.get("content-encoding", ""), self._max_response),
            url=str(url),
        )

    def _transport(self) -> httpx.AsyncHTTPTransport:
        loop = asyncio.get_running_loop()
        transport = self._transports.get(loop)
        if transport is None:
            transport = self._transports[loop] = open_transport(self._guard)
        return transport


class _Journey:
    """How far a request has come."""

    __slots__ = ("was_answered",)

    def __init__(self) -> None:
        self.was_answered = False
        """At least by a redirect: somebody has read it."""


def _told(failure: CallError, may_have_happened: bool) -> CallError:
    if may_have_happened:
        failure.details = {**failure.details, "outcome": "unknown"}
    return failure


def failure_of(error: Exception, what: str) -> CallError:
    """Our error for one of httpx."""
    kind, words = next(FAILURES[cls.__name__] for cls in type(error).__mro__ if cls.__name__ in FAILURES)
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error)):
        kind, words = ExecutionFailed, "the server's certificate cannot be trusted"
    reason = str(error).strip()
    if type(error).__name__ == "RemoteProtocolError":
        reason = reason.partition(": ")[0]  # behind it stands what the server sent: words of a stranger, or a secret
    return kind(f"{what}: {words}" + (f" ({reason})." if reason else "."))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def shown_url(url: str) -> str:
    """A URL for messages: without credentials and query, both of which may hold secrets."""
    shown = re.sub(r"//[^/?#]*@", "//", url.split("?")[0])
    return shown if len(shown) <= 200 else f"{shown[:200]}…"


def _request(method: str, url: str, headers: Mapping[str, str], content: bytes | None) -> httpx.Request:
    import httpx

    target = _address(url)
    _check(target)
    said = httpx.Headers({**_DEFAULT_HEADERS, **_authorization(target)})
    for name, value in headers.items():
        _check_header(name, value)
        said[name] = value.strip()
    return _stripped_request(method, target, said, content)


def _redirected(request: httpx.Request, response: httpx.Response) -> httpx.Request:
    """The next step, as browsers take it: 303 and, for what was posted, 301 and 302 go on as GET."""
    import httpx

    try:
        url = _address(request.url.join(response.headers["location"]))
        _check(url)
    except (httpx.InvalidURL, Retry) as error:
        # Not in words of the server, which the address is; and no other arguments would help.
        raise ExecutionFailed("the server redirects to an address that is not valid, or not of the web.") from error
    becomes_get = request.method != "HEAD" and (
        response.status_code in (302, 303) or (response.status_code == 301 and request.method == "POST")
    )
    dropped = _OWN_HEADERS | ({"content-type"} if becomes_get else set())
    kept = {name: value for name, value in request.headers.items() if name not in dropped}
    if not _is_same_place(request.url, url):
        kept = {name: value for name, value in kept.items() if name in TRAVELLING_HEADERS}
    method, content = ("GET", None) if becomes_get else (request.method, request.content or None)
    return _stripped_request(method, url, httpx.Headers(kept), content)


def _stripped_request(method: str, url: httpx.URL, headers: httpx.Headers, content: bytes | None) -> httpx.Request:
    import httpx

    timeouts = {"timeout": {"connect": CONNECT_TIMEOUT}}
    return httpx.Request(method, url.copy_with(userinfo=b""), headers=headers, content=content, extensions=timeouts)


def fault_of_header(name: str) -> str:
    """Why a header of this name cannot be sent, in words; nothing if it can."""
    if not _HEADER_NAME.fullmatch(name):
        return f"{name!r} cannot be the name of a header: use letters, digits and dashes"
    if name.lower() in _OWN_HEADERS:
        return f"the header {name!r} is set by the client itself: leave it out"
    return ""


def _check_header(name: str, value: str) -> None:
    if fault := fault_of_header(name):
        raise Retry(f"{fault}.")
    # The value may be a secret: messages do not show it.
    if not _HEADER_VALUE.fullmatch(value.strip()):
        raise Retry(f"the header {name!r} can only hold printable ASCII characters on one line.")


def _authorization(url: httpx.URL) -> dict[str, str]:
    if not url.userinfo:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(unquote_to_bytes(url.userinfo)).decode()}


def _address(url: httpx.URL | str) -> httpx.URL:
    import httpx

    try:
        target = httpx.URL(url)
        target.host  # noqa: B018  it is decoded only now, and may be no name at all
    except UnicodeError as error:
        raise httpx.InvalidURL(str(error)) from error
    return target


def _check(url: httpx.URL) -> None:
    if url.scheme not in ("http", "https"):
        raise Retry(f"only http:// and https:// can be requested, not {url.scheme or 'nothing'!r}.")
    if not url.host:
        raise Retry("the URL has no host. Write it like https://example.com/path.")
    if url.port is not None and not 0 < url.port < 65536:
        raise Retry(f"the URL has the port {url.port}, which does not exist. Use 1 to 65535.")


def _is_same_place(first: httpx.URL, second: httpx.URL) -> bool:
    """The same server; also its encrypted form at the usual port."""
    if first.host != second.host:
        return False
    is_upgrade = (first.scheme, first.port, second.scheme, second.port) == ("http", None, "https", None)
    return is_upgrade or (first.scheme, first.port) == (second.scheme, second.port)


def _decoded(content: bytes, encodings: str, limit: int) -> bytes:
    """The content as it was before the server compressed it, unpacked no further than allowed."""
    applied = [name for each in encodings.lower().split(",") if (name := each.strip()) not in ("", "identity")]
    if len(applied) > MAX_ENCODINGS:
        raise ExecutionFailed(f"the response says it is compressed more than {MAX_ENCODINGS} times, and is not read.")
    for encoding in reversed(applied):
        if content and encoding in _UNREADABLE:
            raise ExecutionFailed(f"the response is compressed by {encoding}, which cannot be read. Do not ask for it.")
        if content and encoding in ("gzip", "x-gzip", "deflate"):
            content = _unpacked(content, limit)
    return content


def _unpacked(content: bytes, limit: int) -> bytes:
    # gzip and zlib tell by their first byte. Some servers send deflate without any header.
    for window in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
        unpacking = zlib.decompressobj(window)
        try:
            unpacked = unpacking.decompress(content, limit + 1)
        except zlib.error:
            continue
        _refuse_larger(unpacked, limit)
        if unpacking.eof:
            return unpacked
    raise ExecutionFailed("the response says it is compressed, but cannot be decompressed.")


def _refuse_larger(body: bytes | bytearray, limit: int) -> None:
    if len(body) > limit:
        raise ExecutionFailed(
            f"the response is larger than {limit:,} bytes. Ask for less of it: a page, a range, a filter."
        )
