"""Servers on one Postgres store behind a balancer: any of them answers any request, whatever was killed."""

import json
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import httpx2
import psycopg
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

from ferrule import ToolEngineConfig, UnifiedToolLibrary, tool
from ferrule.engine.resilience import BreakerConfig
from ferrule.store import ToolKnowledgeStore
from ferrule.store.channel import MAX_PAYLOAD, pack_messages
from tests.server.application import serve
from tests.server.balancing import balance
from tests.server.mcp_requests import (
    COUNTER,
    OLDER_HEADERS,
    WRITER,
    add_stateful_servers,
    open_session,
    read_result,
    send,
)
from tests.server.serving import Project, RunningServer, call, mcp_call
from tests.support.processes import forwarded_python
from tests.support.waiting import until, until_sync

pytestmark = pytest.mark.integration

MORE = """
[limits]
shared = true

[server.tenant_limits.acme]
concurrent = 1

[[policy.rules]]
verdict = "ask"
tool = "note"
principal = "token:asked"
"""


@dataclass(frozen=True)
class Fleet:
    """Two servers of a project, which all tests use; a test that kills a server starts another one."""

    project: Project
    database: str
    first: RunningServer
    second: RunningServer
    balancer: str
    token: str

    def client(self, server: RunningServer | str, token: str | None = None, **headers: str) -> httpx.Client:
        """A client of one server, or of the one at an address."""
        headers["Authorization"] = f"Bearer {token or self.token}"
        return httpx.Client(base_url=server if isinstance(server, str) else server.url, headers=headers, timeout=60)

    @asynccontextmanager
    async def mcp_client(self, token: str, mode: str, **options: Any) -> AsyncIterator[Client]:
        """The client of the official SDK, for each of whose requests the balancer chooses a server."""
        limits, headers = httpx2.Limits(max_keepalive_connections=0), {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(limits=limits, headers=headers, timeout=60) as http,
            Client(streamable_http_client(f"{self.balancer}/mcp", http_client=http), mode=mode, **options) as client,
        ):
            yield client


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres_cluster: str) -> Iterator[Fleet]:
    folder, database = tmp_path_factory.mktemp("fleet"), f"{postgres_cluster}&options=-csearch_path%3Dfleet"
    with psycopg.connect(postgres_cluster, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA fleet")
    project = Project(folder, store=database, more=MORE)
    project.environment["XDG_STATE_HOME"] = str(folder / "state")
    token = project.create_token("root", "--role", "admin")
    with forwarded_python() as python:
        add_stateful_servers(project, python, counter=COUNTER, far_counter=COUNTER, left=WRITER, stopped=WRITER)
        with project.serve() as first, project.serve() as second, balance([first.url, second.url]) as balancer:
            yield Fleet(project, database, first, second, balancer, token)


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start something; the function that is returned waits for its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def wait() -> Any:
        thread.join(120)
        assert results, "the work has failed or takes too long"
        return results[0]

    return wait


def ask(client: httpx.Client, question: str) -> dict[str, Any]:
    response = client.post("/v1/ask", json={"question": question})
    assert response.status_code == 200, response.text
    return dict(response.json())


def approve(client: httpx.Client, tool_id: str, arguments: dict[str, Any]) -> None:
    requests = client.get("/v1/approvals").json()["approvals"]
    (request,) = [each for each in requests if (each["tool_id"], each["arguments"]) == (tool_id, arguments)]
    client.post(f"/v1/approvals/{request['approval_id']}", json={"allowed": True}).raise_for_status()


def test_a_run_of_one_server_is_approved_and_continued_on_another(fleet: Fleet) -> None:
    with fleet.client(fleet.first) as one, fleet.client(fleet.second) as other:
        run = ask(one, "wipe path=/data")
        assert run["state"] == "waiting", run
        approve(other, "wipe", {"path": "/data"})
        answer = other.post(f"/v1/runs/{run['run_id']}/resume", json={}).json()
    assert answer["state"] == "finished", answer
    assert (fleet.project.folder / "wiped.txt").read_text().count("/data\n") == 1


def test_a_server_shows_the_calls_of_another_and_stops_them(fleet: Fleet) -> None:
    events: list[str] = []

    def watch() -> None:
        with (
            suppress(httpx.TransportError),
            fleet.client(fleet.second) as client,
            client.stream("GET", "/v1/events") as response,
        ):
            for line in response.iter_lines():  # until the server ends
                events.append(line)

    threading.Thread(target=watch, daemon=True).start()
    until_sync(lambda: ": connected" in events)
    with fleet.client(fleet.first) as one, fleet.client(fleet.second) as other:

        def is_told() -> bool:
            one.post("/v1/tools/add/call", json={"arguments": {"a": 1, "b": 2}}).raise_for_status()
            return any("execution_completed" in line for line in events)

        until_sync(is_told)
        path = fleet.project.folder / "never"
        call = in_thread(lambda: one.post("/v1/tools/wait_for/call", json={"arguments": {"path": str(path)}}).json())
        until_sync(Path(f"{path}.started").exists)
        records: list[Any] = []

        def is_listed() -> bool:
            records[:] = other.get("/v1/calls", params={"status": "running", "tool": "wait_for"}).json()["calls"]
            return bool(records)

        until_sync(is_listed)
        other.post(f"/v1/calls/{records[0]['record_id']}/cancel").raise_for_status()
        result = call()
        assert result["error_type"] == "cancelled", result
    assert Path(f"{path}.cancelled").exists()


def test_a_run_in_progress_is_refused_and_stopped_on_another_server(fleet: Fleet) -> None:
    path, runs = fleet.project.folder / "no-such-file", list[Any]()
    with fleet.client(fleet.first) as one, fleet.client(fleet.second) as other:

        def is_listed() -> bool:
            runs[:] = [run for run in other.get("/v1/runs").json()["runs"] if str(path) in run["task"]]
            return bool(runs)

        answer = in_thread(lambda: one.post("/v1/ask", json={"question": f"wait_for path={path}"}))
        until_sync(Path(f"{path}.started").exists)
        until_sync(is_listed)
        run = f"/v1/runs/{runs[0]['run_id']}"
        assert other.post(f"{run}/resume", json={}).status_code == 409
        assert other.post(f"{run}/cancel").json()["cancelled"]
        assert Path(f"{path}.cancelled").exists()
        assert other.post(f"{run}/cancel").status_code == 409
        answer()


def test_clients_of_a_balancer_lose_nothing_but_sessions_with_a_killed_server(fleet: Fleet) -> None:
    second = fleet.second
    with fleet.project.serve() as first, balance([first.url, second.url]) as url, fleet.client(second) as other:
        with fleet.client(first) as one:
            run, session = ask(one, "wipe path=/killed"), open_session(one)
            assert "tools" in read_result(send(other, "tools/list", {}, session))
        transport, headers = httpx.HTTPTransport(retries=3), {"Authorization": f"Bearer {fleet.token}"}
        with httpx.Client(base_url=url, timeout=60, transport=transport, headers=headers) as client:
            for number in range(10):
                if number == 5:
                    first.process.kill()
                    first.process.wait()
                body = {"arguments": {"text": f"note {number}"}}
                own = {"Idempotency-Key": f"note-{number}", "Connection": "close"}
                response = client.post("/v1/tools/note/call", json=body, headers=own)
                assert response.json()["is_success"], response.text
        calls = other.get("/v1/calls", params={"tool": "note", "limit": 100}).json()["calls"]
        texts = [call["params"]["text"] for call in reversed(calls) if call["status"] == "success"]
        assert texts == [f"note {number}" for number in range(10)]
        assert (fleet.project.folder / "notes.txt").read_text().splitlines() == texts
        approve(other, "wipe", {"path": "/killed"})
        answer = other.post(f"/v1/runs/{run['run_id']}/resume", json={}).json()
        assert answer["state"] == "finished", answer
        assert (fleet.project.folder / "wiped.txt").read_text().count("/killed\n") == 1
        assert send(other, "tools/list", {}, session).status_code == 404
        again = open_session(other)
        assert "tools" in read_result(send(other, "tools/list", {}, again))
        for unknown in (f"{session[:32]}-000000000000", "unknown"):
            assert send(other, "tools/list", {}, unknown).status_code == 404


async def test_a_tool_that_one_server_cannot_reach_is_not_called_by_others_whenever_they_started(
    postgres_url: str, tmp_path: Path
) -> None:
    calls: list[str] = []

    @tool(idempotent=False)
    async def far() -> str:
        """Reach far."""
        calls.append("far")
        raise ConnectionError("nobody answers")

    @asynccontextmanager
    async def start(name: str) -> AsyncIterator[UnifiedToolLibrary]:
        store = ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / name)
        config = ToolEngineConfig(breaker=BreakerConfig(recovery=600))
        async with serve(far, store=store, config=config) as site, site.lifespan():
            yield site.library

    def is_open(library: UnifiedToolLibrary) -> bool:
        return library.engine.circuit_state(library.engine.registry.find("far")[0]) == "open"

    async with start("one") as one, start("two") as two:
        for _ in range(5):
            await one.execute("far")
        await until(lambda: is_open(two))
        async with start("three") as three:
            await until(lambda: is_open(three))
            result = await three.execute("far")
            assert result.error_type == "rejected" and "rejected for a while" in str(result.error), result
    assert len(calls) == 5


def test_limits_of_tokens_and_tenants_hold_on_all_servers(fleet: Fleet) -> None:
    few = fleet.project.create_token("few", "--rate", "2")
    colleagues = [fleet.project.create_token(name, "--tenant", "acme") for name in ("ada", "bob")]
    path, body = fleet.project.folder / "end", {"arguments": {"a": 1, "b": 2}}
    with fleet.client(fleet.first, few) as one, fleet.client(fleet.second, few) as other:
        call_until_allowed(one)
        call_until_allowed(other)
        refused = one.post("/v1/tools/add/call", json=body)
        assert refused.status_code == other.post("/v1/tools/add/call", json=body).status_code == 429
        assert "This token may make 2 calls a minute" in refused.text and int(refused.headers["retry-after"]) > 0
    with fleet.client(fleet.first, colleagues[0]) as one, fleet.client(fleet.second, colleagues[1]) as other:
        call = in_thread(lambda: one.post("/v1/tools/wait_for/call", json={"arguments": {"path": str(path)}}).json())
        until_sync(Path(f"{path}.started").exists)
        refused = other.post("/v1/tools/add/call", json=body)
        assert refused.status_code == 429 and "The tenant 'acme' may have 1 calls running" in refused.text
        path.touch()
        assert call()["is_success"]
        call_until_allowed(other)


def call_until_allowed(client: httpx.Client) -> None:
    """What another server gives back may come later than a call waits for it."""
    body = {"arguments": {"a": 1, "b": 2}}
    until_sync(lambda: client.post("/v1/tools/add/call", json=body).status_code == 200)


def test_a_session_is_used_by_its_token_through_every_server_and_forwarded_once(fleet: Fleet) -> None:
    tokens = [fleet.project.create_token(name, "--role", "caller") for name in ("one", "two")]
    with fleet.client(fleet.balancer, tokens[0]) as mine, fleet.client(fleet.balancer, tokens[1]) as others:
        session = open_session(mine)
        for number in range(6):
            call = {"name": "add", "arguments": {"a": number, "b": 1}}
            result = read_result(send(mine, "tools/call", call, session))
            assert result["structuredContent"] == {"result": number + 1}, result
        statuses = {send(others, "tools/list", {}, session).status_code for _ in range(2)}
        assert statuses == {404}, "a session belongs to the token that opened it"
        headers = OLDER_HEADERS | {"mcp-session-id": session}
        for server in (fleet.first, fleet.second):
            assert httpx.post(f"{server.url}/mcp", json={}, headers=headers, timeout=60).status_code == 401
        assert mine.delete("/mcp", headers=headers).status_code == 200
        assert [send(mine, "tools/list", {}, session).status_code for _ in range(2)] == [404, 404]
    forwarded = {"ferrule-forwarded": "1"}
    with fleet.client(fleet.first) as one, fleet.client(fleet.second, **forwarded) as other:
        session = open_session(one)
        assert send(other, "tools/list", {}, session).status_code == 404
        assert "tools" in read_result(send(one, "tools/list", {}, session))


def test_the_stream_of_a_session_is_forwarded(fleet: Fleet) -> None:
    """What a server sends of itself arrives at a client of another server."""
    with fleet.client(fleet.first) as one, fleet.client(fleet.second) as other:
        headers = OLDER_HEADERS | {"mcp-session-id": open_session(one)}
        lines: list[str] = []

        def listen() -> None:
            with suppress(httpx.TransportError), other.stream("GET", "/mcp", headers=headers) as response:
                lines.append(str(response.status_code))
                for line in response.iter_lines():
                    lines.append(line)

        threading.Thread(target=listen, daemon=True).start()
        until_sync(lambda: lines)
        assert lines[0] == "200"
        (fleet.project.folder / "tools" / "more.py").write_text(
            'from ferrule import tool\n\n@tool\ndef more() -> str:\n    """More."""\n    return "more"\n'
        )
        until_sync(lambda: any("list_changed" in line for line in lines))


async def test_a_client_with_the_official_sdk_notices_nothing(fleet: Fleet) -> None:
    async with fleet.mcp_client(fleet.token, "legacy") as client:
        results = [await client.call_tool("add", {"a": number, "b": 1}) for number in range(6)]
    assert [result.structured_content for result in results] == [{"result": number + 1} for number in range(6)]


async def test_answers_of_a_client_reach_the_server_on_which_its_call_waits(fleet: Fleet) -> None:
    async def allow(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"allow": True})

    token = fleet.project.create_token("asked", "--role", "caller", "--role", "approver")
    async with fleet.mcp_client(token, "2026-07-28", elicitation_callback=allow) as client:
        results = [await client.call_tool("note", {"text": f"allowed {number}"}) for number in range(3)]
    assert not any(result.is_error for result in results), results
    notes = (fleet.project.folder / "notes.txt").read_text().splitlines()
    assert [note for note in notes if note.startswith("allowed")] == ["allowed 0", "allowed 1", "allowed 2"]


def test_messages_are_packed_into_notifications_that_postgres_accepts() -> None:
    messages: list[dict[str, Any]] = [{"text": "长" * 100, "number": number} for number in range(50)]
    too_long = {"text": "x" * 10_000}
    payloads = pack_messages("me", [*messages, too_long])
    assert all(len(payload.encode()) <= MAX_PAYLOAD for payload in payloads)
    assert len(payloads) < 10


def test_calls_of_a_stateful_mcp_server_go_to_the_server_that_has_its_process(fleet: Fleet) -> None:
    with fleet.client(fleet.second) as other:
        with fleet.project.serve() as first, fleet.client(first) as one:

            def call(client: httpx.Client, path: str = "counter__increment") -> str:
                response = client.post(f"/v1/tools/{path}/call", json={"arguments": {}})
                assert response.status_code == 200 and response.json()["is_success"], response.text
                return str(response.json()["output"]["result"])

            def call_mcp(client: httpx.Client) -> str:
                response = client.post("/mcp", **mcp_call("counter__increment", {}))
                assert response.status_code == 200, response.text
                return str(response.json()["result"]["content"][0]["text"])

            until_sync(lambda: knows(one, "counter") and knows(other, "counter"))
            counts = [call(one), call(other), call_mcp(other), call_mcp(one), call(other, "counter")]
            assert counts == [f"count {number}" for number in range(1, 6)]
            session = open_session(other)
            called = read_result(send(other, "tools/call", {"name": "counter__increment"}, session))
            assert called["content"][0]["text"] == "count 6", called
            run = ask(other, "call counter__increment")  # which a person must approve, on any server
            approve(one, "counter", {})
            until_sync(lambda: "count 7" in other.get(f"/v1/runs/{run['run_id']}").json()["text"])
        assert call(other) == "count 1"  # the other server has ended, and its process with it
        assert call_mcp(other) == "count 2"


def test_a_stateful_mcp_server_on_a_server_out_of_reach_is_neither_started_again_nor_taken(fleet: Fleet) -> None:
    with fleet.client(fleet.second) as client, psycopg.connect(fleet.database, autocommit=True) as database:

        def call() -> httpx.Response:
            return client.post("/v1/tools/far_counter__increment/call", json={"arguments": {}})

        until_sync(lambda: knows(client, "far_counter"))
        address = {"server_id": "far", "url": "http://127.0.0.1:9", "machine": "another machine"}

        def lease(key: str, details: str) -> None:
            database.execute(
                "INSERT INTO leases (key, owner, details, taken_at, expires_at) "
                "VALUES (%s, 'far:1:1', %s, 0, extract(epoch FROM now()) + 600) "
                "ON CONFLICT (key, part) DO UPDATE SET details = excluded.details",
                [key, details],
            )

        lease("server:far", json.dumps(address))
        lease("mcp:far_counter", "far")
        response = call()
        calls = [{"tool": "far_counter", "action": "increment"}]
        (failed,) = client.post("/v1/calls", json={"calls": calls}).json()["results"]
        assert response.status_code == 503 and "Set internal_url" in response.json()["detail"], response.text
        assert failed["error_type"] == "rejected" and "was not made" in failed["error"], failed
        owners = "SELECT details FROM leases WHERE key = 'mcp:far_counter'"
        assert database.execute(owners).fetchall() == [("far",)]
        # A server with a lease lives, although nobody listens at its address: the address may be wrong.
        lease("server:far", json.dumps({**address, "machine": socket.gethostname()}))
        until_sync(lambda: "ConnectError" in call().text)
        assert call().status_code == 503
        database.execute("UPDATE leases SET expires_at = 1 WHERE owner = 'far:1:1'")
        assert call().json()["output"] == {"result": "count 1"}


def test_a_call_ends_on_the_server_with_the_process_when_the_server_that_took_it_is_killed(fleet: Fleet) -> None:
    path = fleet.project.folder / "left"
    with fleet.project.serve() as third, fleet.client(third) as other, fleet.client(fleet.first) as one:
        arguments = {"path": str(path.with_name("left.txt")), "text": "here"}
        until_sync(lambda: knows(one, "left", "write") and knows(other, "left", "write"))
        assert call(one, "left__write", arguments).json()["is_success"]

        def wait() -> None:
            with suppress(httpx.TransportError):
                call(other, "left__wait_for", {"path": str(path)})

        waiting = in_thread(wait)
        until_sync(Path(f"{path}.started").exists)
        third.process.kill()
        until_sync(Path(f"{path}.cancelled").exists)
        waiting()


def test_a_server_that_was_stopped_beyond_its_lease_makes_no_call_when_it_goes_on(fleet: Fleet) -> None:
    lines = fleet.project.folder / "lines.txt"
    with fleet.project.serve() as third, fleet.client(third) as owner, fleet.client(fleet.second) as other:

        def write(client: httpx.Client, text: str, **options: float) -> dict[str, Any]:
            arguments = {"path": str(lines), "text": text}
            return dict(call(client, "stopped__write", arguments, **options).json())

        until_sync(lambda: knows(owner, "stopped", "write") and knows(other, "stopped", "write"))
        assert write(owner, "by the owner")["is_success"]
        assert write(other, "by the owner for another")["is_success"]
        third.process.send_signal(signal.SIGSTOP)
        try:
            assert write(other, "while it is stopped", timeout=1)["error_type"] == "timeout"
            until_sync(lambda: write(other, "by the next owner", timeout=2).get("is_success"))
        finally:
            third.process.send_signal(signal.SIGCONT)
        assert write(owner, "by the next owner for it")["is_success"]
    # The second was tried again until it answered in time, which may have been later than it wrote.
    assert list(dict.fromkeys(lines.read_text().splitlines())) == [
        "by the owner",
        "by the owner for another",
        "by the next owner",
        "by the next owner for it",
    ]


def knows(client: httpx.Client, server: str, action: str = "increment") -> bool:
    listed, shown = client.get("/v1/tools").text, client.get(f"/v1/tools/{server}").text
    return f"{server}__{action}" in listed or action in shown
