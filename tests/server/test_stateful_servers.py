"""Stateful MCP servers: two applications on one store in this process, which reach each other by private sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent
from pydantic import FileUrl

from ferrule import UnifiedToolLibrary
from ferrule.core.aio import cancel_all
from ferrule.core.call import Progress
from ferrule.engine.config import ToolEngineConfig
from ferrule.kinds.mcp.relay import ask_client
from ferrule.server.app import create_app
from ferrule.server.listening import InternalListener
from ferrule.server.mcp.http import VirtualServer
from ferrule.server.tokens import Tokens
from ferrule.store.servers import list_servers
from tests.server.mcp_requests import OLDER_HEADERS, OPENING
from tests.support.processes import forwarded_python
from tests.support.waiting import time_out_after_start, until

pytestmark = pytest.mark.integration

SERVER = '''
import asyncio
from pathlib import Path
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, SamplingMessage, TextContent
from pydantic import BaseModel

server = MCPServer("counter", log_level="ERROR")
count = 0

class Name(BaseModel):
    name: str

@server.tool(structured_output=False)
async def increment() -> str:
    """Count one more."""
    global count
    count += 1
    return f"count {count}"

@server.tool()
async def work(path: str, context: Context) -> str:
    """Report, and wait for a file."""
    global count
    count += 1
    await context.report_progress(1, 4, "一半")
    Path(path + ".started").touch()
    try:
        while not Path(path).exists():
            await asyncio.sleep(0.01)  # looks again
    except asyncio.CancelledError:
        Path(path + ".cancelled").touch()
        raise
    return "found"

@server.tool()
async def greet(context: Context) -> str:
    """Ask for a name, the model and the folders."""
    await context.info("asking")
    answer = await context.elicit("Who are you?", Name)
    message = SamplingMessage(role="user", content=TextContent(type="text", text="Greet."))
    said = await context.session.create_message([message], max_tokens=9, related_request_id=context.request_id)
    roots = (await context.session.list_roots()).roots
    return f"{said.content.text} {answer.data.name} in {roots[0].uri}"

@server.tool()
async def fail() -> CallToolResult:
    """Fail."""
    content = [TextContent(type="text", text="no luck")]
    return CallToolResult(content=content, structured_content={"reason": 2**70}, is_error=True, _meta={"a/b": None})

@server.resource("memo://count")
async def memo() -> str:
    """The count."""
    return f"memo {count}"

server.run("stdio")
'''


class Site:
    """One server: an application with its library, and where it is served."""

    def __init__(self, folder: Path, name: str, store: str, secrets: Sequence[str]) -> None:
        config = ToolEngineConfig(tools_directory=str(folder / "tools"), mcp_file=str(folder / "mcp.json"))
        self.library = UnifiedToolLibrary(config, store=f"sqlite:///{folder}/{store}.db", on_elicit=ask_client)
        self.socket = folder / f"{name}.sock"
        app = create_app(
            self.library,
            is_open=True,
            private_socket=self.socket,
            virtual_servers={"plain": VirtualServer(tools=["counter"], plain_names=True)},
            internal_secrets=secrets,
        )
        self._app = InternalListener(app, self.socket, grace_seconds=5)

    @asynccontextmanager
    async def run(self) -> AsyncIterator["Site"]:
        messages: asyncio.Queue[Any] = asyncio.Queue()
        replies: asyncio.Queue[Any] = asyncio.Queue()
        task = asyncio.create_task(self._app({"type": "lifespan", "state": {}}, messages.get, replies.put))
        messages.put_nowait({"type": "lifespan.startup"})
        assert (await replies.get())["type"] == "lifespan.startup.complete"
        try:
            yield self
        finally:
            messages.put_nowait({"type": "lifespan.shutdown"})
            await task

    def http(self, *, is_internal: bool = True) -> httpx.AsyncClient:
        """A client of the internal listener, or of the public one."""
        transport: Any = httpx.AsyncHTTPTransport(uds=str(self.socket))
        transport = transport if is_internal else httpx.ASGITransport(self._app)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)

    @asynccontextmanager
    async def mcp(self, mode: Any, path: str = "/mcp", **options: Any) -> AsyncIterator[Client]:
        transport = httpx2.AsyncHTTPTransport(uds=str(self.socket))
        async with (
            httpx2.AsyncClient(transport=transport, timeout=60) as http,
            Client(streamable_http_client(f"http://localhost{path}", http_client=http), mode=mode, **options) as client,
        ):
            yield client

    async def count(self) -> str:
        return str((await self.library.execute("counter", {}, action="increment")).output["result"])

    def die(self) -> None:
        """Stop answering, in the middle of everything, as a killed process does."""
        for server in self._app._server.servers:
            server.close()
        for connection in list(self._app._server.server_state.connections):
            connection.transport.abort()
        self.library.engine.store.leases.close_files()  # closes the locked files, as the kernel does


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("stateful")
    (folder / "tools").mkdir()
    (folder / "server.py").write_text(SERVER)
    with forwarded_python() as python:
        command = {"command": python[0], "args": [*python[1:], str(folder / "server.py")]}
        entry = {**command, "stateful": True, "trusted": True}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"counter": entry}}))
        yield folder


@asynccontextmanager
async def serve(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    store: str = "calls",
    secrets: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> AsyncIterator[tuple[Site, Site]]:
    """Two servers, of which the first has the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    sites = [Site(folder, name, store, own) for name, own in zip(("first", "second"), secrets, strict=True)]
    async with sites[0].run() as first, sites[1].run() as second:
        for site in (first, second):
            await site.library.engine.wait_for_discovery("counter")
        yield first, second


async def test_a_call_has_its_outcome_on_every_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(folder, monkeypatch) as (first, second):
        assert [await first.count(), await second.count(), await first.count()] == ["count 1", "count 2", "count 3"]
        for site in (first, second):
            await site.library.engine.store.flush()
        assert len(await first.library.engine.query_call_records()) == 3, "a forwarded call is recorded once"
        async with second.http() as http:  # several calls in one request
            calls = [{"tool": "counter", "action": "increment"}] * 2
            results = (await http.post("/v1/calls", json={"calls": calls})).json()["results"]
            assert {each["output"]["result"] for each in results} == {"count 4", "count 5"}
        for mode in ("legacy", "auto"):
            async with first.mcp(mode) as here, second.mcp(mode) as there, second.mcp(mode, "/mcp/plain") as plain:
                failures = [await client.call_tool("counter__fail", {}) for client in (here, there)]
                assert failures[0] == failures[1] and failures[0].is_error, failures
                assert failures[1].structured_content == {"reason": 2**70}, failures[1]
                uri = (await here.list_resources()).resources[0].uri
                memo: Any = (await there.read_resource(uri)).contents[0]
                assert memo.text == {"legacy": "memo 5", "auto": "memo 6"}[mode], memo
                result: Any = await plain.call_tool("increment", {})
                assert result.content[0].text == {"legacy": "count 6", "auto": "count 7"}[mode], result


async def test_progress_questions_and_cancellation_pass_until_the_server_with_the_process_dies(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = list[Any]()

    async def say_name(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def say_hello(context: Any, params: Any) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="hello"), model="test")

    async def list_roots(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///ada"))])

    async def log(params: Any) -> None:
        logs.append(params.data)

    options: dict[str, Any] = {
        "elicitation_callback": say_name,
        "sampling_callback": say_hello,
        "list_roots_callback": list_roots,
        "logging_callback": log,
    }

    async with serve(folder, monkeypatch) as (first, second):
        await first.count()
        for mode in ("legacy", "auto"):
            level = {"log_level": "info"} if mode == "auto" else {}
            async with second.mcp(mode, **options, **level) as client:
                greeting: Any = await client.call_tool("counter__greet", {})
                assert greeting.content[0].text == "hello Ada in file:///ada", greeting
        assert logs == ["asking"] * 2
        path, reports = folder / "found", list[Progress]()
        call = asyncio.create_task(
            second.library.execute("counter", {"path": str(path)}, action="work", on_progress=reports.append)
        )
        await until(lambda: reports and path.with_name("found.started").exists())
        assert (reports[0].fraction, reports[0].message, reports[0].total) == (0.25, "一半", 4), reports
        call.cancel()
        await until(path.with_name("found.cancelled").exists)
        await check_timeout(folder, second)
        await check_death(folder / "lost", first, second)


async def check_timeout(folder: Path, site: Site) -> None:
    path = folder / "late"
    result = await time_out_after_start(
        lambda timeout: site.library.execute("counter", {"path": str(path)}, action="work", timeout=timeout),
        path.with_name("late.started").exists,
    )
    assert result.error_type == "timeout", result
    await until(path.with_name("late.cancelled").exists)


async def check_death(path: Path, first: Site, second: Site) -> None:
    call = asyncio.create_task(second.library.execute("counter", {"path": str(path)}, action="work"))
    await until(path.with_name("lost.started").exists)
    first.die()
    result = await call
    assert not result.is_success and "UNKNOWN" in str(result.error), result
    assert result.metadata["outcome"] == "unknown"
    assert await second.count() == "count 1", "the next call has a process of its own, and the lost one is not repeated"


async def test_a_worker_shows_the_calls_of_another_and_stops_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lines = folder / "elsewhere", list[str]()
    async with serve(folder, monkeypatch, store="workers") as (first, second), second.http(is_internal=False) as http:

        async def watch() -> None:
            async with second.http() as client, client.stream("GET", "/v1/events") as response:
                async for line in response.aiter_lines():
                    lines.append(line)

        watching = asyncio.create_task(watch())
        await until(lambda: ": connected" in lines)

        while not any("execution_completed" in line for line in lines):  # the first worker learns of the listener
            await first.count()
        call = asyncio.create_task(first.library.execute("counter", {"path": str(path)}, action="work"))
        await until(path.with_name("elsewhere.started").exists)
        running: list[str] = []
        while not running:  # the records of the counts may be written later
            records = (await http.get("/v1/calls", params={"status": "running"})).json()["calls"]
            running = [each["record_id"] for each in records if each["action"] == "work"]
        response = await http.post(f"/v1/calls/{running[0]}/cancel")
        assert response.json()["cancelled"] is True, response.text
        assert (await call).error_type == "cancelled"
        await until(path.with_name("elsewhere.cancelled").exists)
        await cancel_all([watching])


async def test_metrics_of_one_worker_are_those_of_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="pip install 'ferrule[server]'")

    async def read(site: Site, name: str) -> dict[tuple[str, ...], float]:
        async with site.http(is_internal=False) as http:
            text = (await http.get("/metrics")).text
        families = parser.text_string_to_metric_families(text)
        samples = [each for family in families for each in family.samples if each.name == name]
        return {tuple(value for _, value in sorted(each.labels.items())): each.value for each in samples}

    for file in folder.glob("*.metrics"):  # of workers of other tests, which stay counted
        file.unlink()
    monkeypatch.setattr("ferrule.server.fleet.ADDRESS_LIFETIME", 0.0)
    monkeypatch.setattr("ferrule.server.fleet.SEND_TIMEOUT", 600.0)  # also on a busy machine
    async with serve(folder, monkeypatch, store="metrics") as (first, second):
        for site in (first, second, second):
            await site.count()
        path = folder / "counted"
        call = asyncio.create_task(first.library.execute("counter", {"path": str(path)}, action="work"))
        await until(path.with_name("counted.started").exists)
        for site in (first, second):
            calls = await read(site, "ferrule_tool_calls_total")
            assert calls == {("success", "counter"): 3}, calls
            assert sum((await read(site, "ferrule_slots_in_use")).values()) > 0
        requests = await read(second, "ferrule_http_request_duration_seconds_count")
        assert requests["GET", "/metrics", "200"] >= 3 and set(requests) == {("GET", "/metrics", "200")}, requests
        await cancel_all([call])


async def test_only_servers_that_know_the_secret_reach_the_endpoint_and_only_at_the_internal_listener(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(folder, monkeypatch, store="closed") as (first, second):
        token = (await Tokens(first.library.engine.store).create("root", roles=["admin"]))[1]
        addresses = await first.library.engine.store.query_leases(list_servers)
        by_socket = {Path(address.socket).name: address for address in addresses.values()}
        own, other = by_socket["first.sock"], by_socket["second.sock"]
        assert own.secret not in repr(own)

        async def post(client: httpx.AsyncClient, secret: str) -> int:
            message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": OPENING}
            headers = {**OLDER_HEADERS, "authorization": f"Bearer {secret}"}
            return (await client.post("/internal/mcp/counter", json=message, headers=headers)).status_code

        async with first.http() as http:
            statuses = [await post(http, secret) for secret in ("-", token, other.secret, own.secret)]
            assert statuses == [401, 401, 401, 200]
            document = await http.get("/openapi.json", headers={"authorization": f"Bearer {token}"})
            assert document.status_code == 200 and "internal" not in document.text
        async with first.http(is_internal=False) as http:
            assert [await post(http, secret) for secret in (own.secret, token)] == [401, 404]
        message = [{"kind": "cancel_call", "call_id": "x"}]
        for secret, is_internal, status in ((token, True, 401), (own.secret, True, 200), (token, False, 404)):
            async with first.http(is_internal=is_internal) as http:
                headers = {"authorization": f"Bearer {secret}"}
                response = await http.post("/internal/messages", json=message, headers=headers)
                assert response.status_code == status, response.text


async def test_the_secret_of_a_fleet_is_changed_on_one_server_after_the_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = "o" * 32, "n" * 32
    async with serve(folder, monkeypatch, store="rotated", secrets=((old, new), (new, old))) as (first, second):
        assert [await first.count(), await second.count()] == ["count 1", "count 2"]
        assert not any(each.secret for each in (await first.library.engine.store.query_leases(list_servers)).values())
    async with serve(folder, monkeypatch, store="rotated", secrets=((new,), (old,))) as (first, second):
        await first.count()
        result = await second.library.execute("counter", {}, action="increment")
        assert result.error_type == "rejected" and "was not made" in str(result.error), result


async def test_a_call_has_one_record_and_one_slot_whichever_server_runs_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "once"
    async with serve(folder, monkeypatch, store="once") as (first, second):
        await first.count()
        call = asyncio.create_task(second.library.execute("counter", {"path": str(path)}, action="work"))
        await until(path.with_name("once.started").exists)
        running = [site.library.engine.concurrency.get_metrics().current_concurrent for site in (first, second)]
        assert running == [0, 1]
        path.touch()
        assert (await call).is_success
        for site in (first, second):
            await site.library.engine.store.flush()
        assert len(await first.library.engine.query_call_records()) == 2
