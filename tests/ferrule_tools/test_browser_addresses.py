"""Where a browser may go, whoever sends it there."""

import asyncio
import socket

import pytest

from ferrule.http.guard import AddressGuard
from ferrule_tools.browser import BrowserNavigator
from tests.ferrule_tools.sites import site as serve
from tests.support.waiting import until

pytestmark = pytest.mark.integration

NAMES = {"open.example": ["127.0.0.1"], "secret.example": ["127.0.0.1"]}
answers: dict[str, list[list[str]]] = {"rebinding.example": [["93.184.216.34"], ["127.0.0.1"]]}


async def resolver(host, port):
    """Names as a test has them; `rebinding.example` is public when it is checked and private when it is dialled."""
    if answers.get(host):
        return answers[host].pop(0)
    if host in NAMES:
        return NAMES[host]
    return [host.strip("[]")]


def elsewhere(path):
    return lambda request: (
        302,
        {"Location": f"http://secret.example:{request.headers['host'].split(':')[1]}{path}"},
        b"",
    )


WAYS_OUT = """<title>Ways out</title><script>
const there = "http://secret.example:" + location.port;
for (const tag of ["img", "iframe", "script", "embed", "video"])
  { const one = document.createElement(tag); one.src = `${there}/secret?${tag}`; document.documentElement.append(one) }
for (const rel of ["stylesheet", "prefetch", "preload", "preconnect", "prerender", "modulepreload", "icon"])
  { const one = document.createElement("link"); one.rel = rel; one.as = "script"; one.href = `${there}/secret?${rel}`;
    document.head.append(one) }
fetch(`${there}/secret?fetch`, {mode: "no-cors"}).catch(() => {});
fetch("/to-secret", {mode: "no-cors"}).catch(() => {});
navigator.sendBeacon(`${there}/secret?beacon`);
new EventSource(`${there}/secret?events`);
new WebSocket(`ws://secret.example:${location.port}/secret?socket`);
new Worker(URL.createObjectURL(new Blob([`fetch("${there}/secret?worker", {mode: "no-cors"})`])));
window.open(`${there}/secret?window`);
</script>"""

PAGES = {
    "/": "<title>Open</title><a href='/to-secret'>On</a>",
    "/to-secret": elsewhere("/secret?redirect"),
    "/ways-out": WAYS_OUT,
    "/call": "<title>Call</title><script>const peer = new RTCPeerConnection({iceServers: [{urls: "
    "`stun:127.0.0.1:${new URLSearchParams(location.search).get('port')}`}]}); peer.createDataChannel('x'); "
    "peer.createOffer().then((offer) => peer.setLocalDescription(offer))</script>",
    "/secret": "<title>The secret</title>",
}


@pytest.fixture(scope="module")
def web(runner):
    guard = AddressGuard(allowed_hosts=["open.example"], resolver=resolver)
    with serve(runner, PAGES, BrowserNavigator(guard=guard, element_timeout=60)) as opened:
        opened.server.requests.clear()
        yield opened


def here(web, path, host="open.example"):
    return f"http://{host}:{web.server.port}{path}"


def secrets_told(web):
    return [request.path for request in web.server.requests if request.path.startswith("/secret")]


async def test_only_pages_of_the_web_are_opened(runner, web):
    for url in (
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        "chrome://version",
        "view-source:x:",
        "x",
    ):
        assert "must begin with http:// or https://" in str((await web.do("navigate", url=url)).error)
    for url in ("http://", "http:///path", "http://[::1", "http://a:99999/"):
        assert "Write it like https://example.com/path" in str((await web.do("navigate", url=url)).error)


async def test_private_addresses_are_refused(runner, web):
    for host in ("127.0.0.1", "localhost", "[::1]", "10.0.0.1", "169.254.169.254", "secret.example"):
        result = await web.do("navigate", url=here(web, "/secret", host))
        assert result.error_type == "permission_denied" and "is not allowed" in str(result.error)
    assert secrets_told(web) == []


async def test_what_is_allowed_is_opened(runner, web):
    assert (await web.do("navigate", url=here(web, "/"))).output["title"] == "Open"


async def test_a_redirect_to_a_private_address_is_refused(runner, web):
    result = await web.do("navigate", url=here(web, "/to-secret"))
    assert result.error_type == "permission_denied" and "'secret.example' is not allowed" in str(result.error)
    assert secrets_told(web) == []


async def test_a_click_that_leads_to_a_private_address_is_refused(runner, web):
    await web.do("navigate", url=here(web, "/"))
    result = await web.do("click", selector="a")
    assert result.error_type == "permission_denied" and "'secret.example' is not allowed" in str(result.error)
    assert secrets_told(web) == []


async def test_nothing_on_a_page_reaches_a_private_address(runner, web):
    assert (await web.do("navigate", url=here(web, "/ways-out"))).is_success
    await until(lambda: web.asked("/to-secret"))
    await web.do("wait", seconds=1)
    assert secrets_told(web) == []


async def test_a_name_that_changes_its_address_after_the_check_is_refused(runner, web):
    result = await web.do("navigate", url=here(web, "/secret?rebound", "rebinding.example"))
    assert answers["rebinding.example"] == [] and result.error_type == "permission_denied"
    assert secrets_told(web) == []


async def test_calls_between_browsers_send_nothing_past_the_guard(runner, web):
    told = []

    class Listening(asyncio.DatagramProtocol):
        def datagram_received(self, data, address):
            told.append(data)

    udp, _ = await asyncio.get_running_loop().create_datagram_endpoint(Listening, local_addr=("127.0.0.1", 0))
    await web.do("navigate", url=here(web, f"/call?port={udp.get_extra_info('sockname')[1]}"))
    await web.do("wait", seconds=1)
    udp.close()
    assert told == []


async def test_a_host_that_is_not_there_is_no_fault_of_the_tool(runner, web):
    result = await web.do("navigate", url="http://open.example:1/")
    assert "browsers do not connect to this port" in str(result.error)
    with socket.socket() as bound:  # it does not listen
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        result = await web.do("navigate", url=f"http://open.example:{port}/")
    assert f"open.example:{port} cannot be connected to (Connection refused)" in str(result.error)
    assert result.metadata["advice"] == "try_later" and result.metadata["attempts"] == 4
