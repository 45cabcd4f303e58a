"""Two servers on one Postgres store behind a balancer: any of them answers any request, whatever was killed."""

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import httpx2
import psycopg
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

from ferrule import UnifiedToolLibrary, tool
from ferrule.store import ToolKnowledgeStore
from ferrule.store.channel import MAX_PAYLOAD, pack_messages
from tests.server.application import serve
from tests.server.balancing import balance
from tests.server.mcp_requests import OLDER_HEADERS, add_counter, open_session, read_result, send
from tests.server.serving import MCP_HEADERS, MCP_META, Project, RunningServer
from tests.store.conftest import postgres_cluster, postgres_url
from tests.support.waiting import until, until_sync

pytestmark = pytest.mark.integration

__all__ = ["postgres_cluster", "postgres_url"]


@pytest.fixture
def project(tmp_path: Path, postgres_url: str) -> Project:
    project = Project(tmp_path, store=postgres_url)
    project.environment["XDG_STATE_HOME"] = str(tmp_path / "state")
    return project


@pytest.fixture
def servers(project: Project) -> Iterator[list[RunningServer]]:
    with project.serve() as first, project.serve() as second:
        yield [first, second]


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start something; the function that is returned waits for its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def wait() -> Any:
        thread.join(60)
        assert results, "the work has failed or takes too long"
        return results[0]

    return wait


def ask(server: RunningServer, question: str) -> dict[str, Any]:
    with server.client() as client:
        response = client.post("/v1/ask", json={"question": question})
        assert response.status_code == 200, response.text
        return dict(response.json())


def test_a_run_of_one_server_is_approved_and_resumed_on_another(servers: list[RunningServer], project: Project) -> None:
    first, second = servers
    run = ask(first, "wipe path=/data")
    assert run["state"] == "waiting", run
    with second.client() as client:
        (request,) = client.get("/v1/approvals").json()["approvals"]
        assert request["tool_id"] == "wipe"
        client.post(f"/v1/approvals/{request['approval_id']}", json={"allowed": True}).raise_for_status()
        answer = client.post(f"/v1/runs/{run['run_id']}/resume", json={}).json()
    assert answer["state"] == "finished", answer
    assert (project.folder / "wiped.txt").read_text() == "/data\n"


def test_a_server_shows_what_happens_on_another_and_stops_it(servers: list[RunningServer], project: Project) -> None:
    first, second = servers
    events: list[str] = []

    def watch() -> None:
        with suppress(httpx.TransportError), second.client() as client, client.stream("GET", "/v1/events") as response:
            for line in response.iter_lines():  # until the server ends
                events.append(line)

    threading.Thread(target=watch, daemon=True).start()
    until_sync(lambda: ": connected" in events)

    def is_told() -> bool:
        with first.client() as client:
            client.post("/v1/tools/add/call", json={"arguments": {"a": 1, "b": 2}}).raise_for_status()
        return any("execution_completed" in line for line in events)

    until_sync(is_told)
    waiting = project.folder / "never"
    with first.client() as client:
        call = in_thread(
            lambda: client.post("/v1/tools/wait_for/call", json={"arguments": {"path": str(waiting)}}).json()
        )
        until_sync(lambda: Path(f"{waiting}.started").exists())
        with second.client() as other:
            records: list[Any] = []

            def is_listed() -> bool:
                records[:] = other.get("/v1/calls", params={"status": "running"}).json()["calls"]
                return bool(records)

            until_sync(is_listed)
            other.post(f"/v1/calls/{records[0]['record_id']}/cancel").raise_for_status()
        result = call()
        assert result["error_type"] == "cancelled", result
    assert Path(f"{waiting}.cancelled").exists()


def test_a_run_in_progress_is_refused_and_stopped_on_another_server(
    servers: list[RunningServer], project: Project
) -> None:
    (first, second), waiting = servers, project.folder / "never"
    runs: list[Any] = []
    with first.client() as client, second.client() as other:

        def is_listed() -> bool:
            runs[:] = other.get("/v1/runs").json()["runs"]
            return bool(runs)

        answer = in_thread(lambda: client.post("/v1/ask", json={"question": f"wait_for path={waiting}"}))
        until_sync(lambda: Path(f"{waiting}.started").exists())
        until_sync(is_listed)
        run = f"/v1/runs/{runs[0]['run_id']}"
        assert other.post(f"{run}/resume", json={}).status_code == 409
        assert other.post(f"{run}/cancel").json()["cancelled"]
        assert Path(f"{waiting}.cancelled").exists()
        assert other.post(f"{run}/cancel").status_code == 409
        answer()


def test_clients_of_a_balancer_notice_no_killed_server(project: Project) -> None:
    with project.serve() as first, project.serve() as second, balance([first.url, second.url]) as url:
        transport = httpx.HTTPTransport(retries=3)
        with httpx.Client(base_url=url, timeout=60, transport=transport) as client:
            for number in range(10):
                if number == 5:
                    first.process.kill()
                    first.process.wait()
                response = client.post(
                    "/v1/tools/note/call",
                    json={"arguments": {"text": f"note {number}"}},
                    headers={"Idempotency-Key": f"note-{number}", "Connection": "close"},
                )
                assert response.json()["is_success"], response.text
            calls = client.get("/v1/calls", params={"tool_name": "note", "limit": 100}).json()["calls"]
    assert len(calls) == 10
    assert (project.folder / "notes.txt").read_text().splitlines() == [f"note {number}" for number in range(10)]


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
        async with serve(far, store=store) as site, site.lifespan():
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


def test_a_dead_servers_run_is_taken_over(project: Project) -> None:
    with project.serve() as second:
        with project.serve() as first:
            run = ask(first, "wipe path=/data")
            first.process.kill()
            first.process.wait()
        with second.client() as client:
            (request,) = client.get("/v1/approvals").json()["approvals"]
            client.post(f"/v1/approvals/{request['approval_id']}", json={"allowed": True}).raise_for_status()
            answer = client.post(f"/v1/runs/{run['run_id']}/resume", json={}).json()
        assert answer["state"] == "finished", answer
    assert (project.folder / "wiped.txt").read_text() == "/data\n"


def test_limits_of_tokens_and_tenants_hold_on_all_servers(tmp_path: Path, postgres_url: str) -> None:
    more = "[limits]\nshared = true\n\n[server.tenant_limits.acme]\nconcurrent = 1\n"
    project = Project(tmp_path, store=postgres_url, more=more)
    project.environment["XDG_STATE_HOME"] = str(tmp_path / "state")
    few = project.create_token("few", "--rate", "4")
    colleagues = [project.create_token(name, "--tenant", "acme") for name in ("ada", "bob")]
    waiting, body = tmp_path / "end", {"arguments": {"a": 1, "b": 2}}
    with project.serve() as first, project.serve() as second:
        with first.client(few) as one, second.client(few) as other:
            responses = [client.post("/v1/tools/add/call", json=body) for client in [one, other] * 3]
            assert [each.status_code for each in responses].count(200) == 4, [each.text for each in responses]
            refused = next(each for each in responses if each.status_code == 429)
            assert "This token may make 4 calls a minute" in refused.text and int(refused.headers["retry-after"]) > 0
        with first.client(colleagues[0]) as one, second.client(colleagues[1]) as other:
            path = {"arguments": {"path": str(waiting)}}
            call = in_thread(lambda: one.post("/v1/tools/wait_for/call", json=path).json())
            until_sync(lambda: Path(f"{waiting}.started").exists())
            refused = other.post("/v1/tools/add/call", json=body)
            assert refused.status_code == 429 and "The tenant 'acme' may have 1 calls running" in refused.text
            waiting.touch()
            assert call()["is_success"]
            assert other.post("/v1/tools/add/call", json=body).json()["is_success"]


def test_a_session_is_used_through_every_server(project: Project) -> None:
    tokens = [project.create_token(name, "--role", "caller") for name in ("one", "two")]
    with project.serve() as first, project.serve() as second, balance([first.url, second.url]) as url:
        mine, others = (
            httpx.Client(base_url=url, timeout=60, headers={"Authorization": f"Bearer {token}"}) for token in tokens
        )
        with mine, others:
            session = open_session(mine)
            for number in range(6):
                call = {"name": "add", "arguments": {"a": number, "b": 1}}
                result = read_result(send(mine, "tools/call", call, session))
                assert result["structuredContent"] == {"result": number + 1}, result
            statuses = {send(others, "tools/list", {}, session).status_code for _ in range(2)}
            assert statuses == {404}, "a session belongs to the token that opened it"
            stranger = httpx.post(f"{second.url}/mcp", json={}, headers={**OLDER_HEADERS, "mcp-session-id": session})
            assert stranger.status_code == 401
            assert mine.delete("/mcp", headers=OLDER_HEADERS | {"mcp-session-id": session}).status_code == 200
            assert [send(mine, "tools/list", {}, session).status_code for _ in range(2)] == [404, 404]


def test_the_stream_of_a_session_is_forwarded(project: Project) -> None:
    """What a server sends of itself arrives, and the stream ends at both when its client leaves."""
    with project.serve() as first, project.serve() as second, first.client() as one, second.client() as other:
        session = open_session(one)
        headers = OLDER_HEADERS | {"mcp-session-id": session}
        lines: list[str] = []

        def listen() -> None:
            with suppress(httpx.TransportError), other.stream("GET", "/mcp", headers=headers) as response:
                lines.append(str(response.status_code))
                for line in response.iter_lines():
                    lines.append(line)

        threading.Thread(target=listen, daemon=True).start()
        until_sync(lambda: lines)
        assert lines == ["200"]
        (project.folder / "tools" / "more.py").write_text(
            'from ferrule import tool\n\n@tool\ndef more() -> str:\n    """More."""\n    return "more"\n'
        )
        until_sync(lambda: any("list_changed" in line for line in lines))


def test_a_session_of_a_dead_server_is_not_found(project: Project) -> None:
    with project.serve() as second, second.client() as other:
        with project.serve() as first, first.client() as one:
            session = open_session(one)
            assert "tools" in read_result(send(other, "tools/list", {}, session))
            first.process.kill()
            first.process.wait()
        assert send(other, "tools/list", {}, session).status_code == 404
        again = open_session(other)
        assert "tools" in read_result(send(other, "tools/list", {}, again))
        assert send(other, "tools/list", {}, f"{session[:32]}-000000000000").status_code == 404
        assert send(other, "tools/list", {}, "unknown").status_code == 404


def test_a_request_is_forwarded_once(servers: list[RunningServer]) -> None:
    first, second = servers
    with first.client() as one, second.client(headers={"ferrule-forwarded": "1"}) as other:
        session = open_session(one)
        assert send(other, "tools/list", {}, session).status_code == 404
        assert "tools" in read_result(send(one, "tools/list", {}, session))


async def test_a_client_with_the_official_sdk_notices_nothing(project: Project) -> None:
    with project.serve() as first, project.serve() as second, balance([first.url, second.url]) as url:
        limits = httpx2.Limits(max_keepalive_connections=0)  # so that the balancer chooses a server for each request
        async with (
            httpx2.AsyncClient(limits=limits, timeout=60) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http), mode="legacy") as client,
        ):
            results = [await client.call_tool("add", {"a": number, "b": 1}) for number in range(6)]
    assert [result.structured_content for result in results] == [{"result": number + 1} for number in range(6)]


async def test_answers_of_a_client_reach_the_server_on_which_its_call_waits(project: Project) -> None:
    rule = '\n[[policy.rules]]\nverdict = "ask"\ntool = "note"\n'
    with (project.folder / "ferrule.toml").open("a") as file:
        file.write(rule)

    async def allow(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"allow": True})

    with project.serve() as first, project.serve() as second, balance([first.url, second.url]) as url:
        limits = httpx2.Limits(max_keepalive_connections=0)  # so that another server gets the answer
        async with (
            httpx2.AsyncClient(limits=limits, timeout=60) as http,
            Client(
                streamable_http_client(f"{url}/mcp", http_client=http), mode="2026-07-28", elicitation_callback=allow
            ) as client,
        ):
            results = [await client.call_tool("note", {"text": str(number)}) for number in range(3)]
    assert not any(result.is_error for result in results), results
    assert (project.folder / "notes.txt").read_text().split() == ["0", "1", "2"]


def test_messages_are_packed_into_notifications_that_postgres_accepts() -> None:
    messages: list[dict[str, Any]] = [{"text": "长" * 100, "number": number} for number in range(50)]
    too_long = {"text": "x" * 10_000}
    payloads = pack_messages("me", [*messages, too_long])
    assert all(len(payload.encode()) <= MAX_PAYLOAD for payload in payloads)
    assert len(payloads) < 10


def test_calls_of_a_stateful_mcp_server_go_to_the_server_that_has_its_process(project: Project) -> None:
    add_counter(project)
    with project.serve() as second:
        with project.serve() as first:

            def call(server: RunningServer, path: str = "counter__increment") -> str:
                with server.client() as client:
                    response = client.post(f"/v1/tools/{path}/call", json={"arguments": {}})
                    assert response.status_code == 200 and response.json()["is_success"], response.text
                    return str(response.json()["output"]["result"])

            def call_mcp(server: RunningServer) -> str:
                params = {"name": "counter__increment", "arguments": {}, "_meta": MCP_META}
                headers = {**MCP_HEADERS, "mcp-method": "tools/call", "mcp-name": "counter__increment"}
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                with server.client() as client:
                    response = client.post("/mcp", json=body, headers=headers)
                    assert response.status_code == 200, response.text
                    return str(response.json()["result"]["content"][0]["text"])

            until_sync(lambda: knows_counter(first) and knows_counter(second))
            counts = [call(first), call(second), call_mcp(second), call_mcp(first), call(second, "counter")]
            assert counts == [f"count {number}" for number in range(1, 6)]
            with second.client() as client:
                session = open_session(client)
                called = read_result(send(client, "tools/call", {"name": "counter__increment"}, session))
                assert called["content"][0]["text"] == "count 6", called
            run = ask(second, "call counter__increment")  # which a person must approve, on any server
            with first.client() as one, second.client() as other:
                (request,) = one.get("/v1/approvals").json()["approvals"]
                one.post(f"/v1/approvals/{request['approval_id']}", json={"allowed": True}).raise_for_status()
                answer = other.post(f"/v1/runs/{run['run_id']}/resume", json={}).json()
            assert "count 7" in answer["answer"], answer
        assert call(second) == "count 1"  # the other server has ended, and its process with it
        assert call_mcp(second) == "count 2"


def test_a_stateful_mcp_server_on_a_server_out_of_reach_is_neither_started_again_nor_taken(
    project: Project, postgres_url: str
) -> None:
    add_counter(project)
    with project.serve() as server, psycopg.connect(postgres_url, autocommit=True) as database:
        until_sync(lambda: knows_counter(server))
        values = "'far', 'http://127.0.0.1:9', 'another machine', extract(epoch FROM now()) + 600"
        database.execute(f"INSERT INTO servers (server_id, url, machine, expires_at) VALUES ({values})")
        database.execute("INSERT INTO mcp_owners (name, server_id) VALUES ('counter', 'far')")
        with server.client() as client:
            response = client.post("/v1/tools/counter__increment/call", json={"arguments": {}})
            calls = [{"tool": "counter", "action": "increment"}]
            (failed,) = client.post("/v1/calls", json={"calls": calls}).json()["results"]
        assert response.status_code == 503 and "Set internal_url" in response.json()["detail"], response.text
        assert failed["error_type"] == "rejected" and "was not made" in failed["error"], failed
        assert database.execute("SELECT server_id FROM mcp_owners").fetchall() == [("far",)]
        # Nobody listens at the address of a server that lives: the address is wrong, until the server is silent too.
        database.execute("UPDATE servers SET machine = %s WHERE server_id = 'far'", [socket.gethostname()])
        with server.client() as client:

            def call() -> httpx.Response:
                return client.post("/v1/tools/counter__increment/call", json={"arguments": {}})

            until_sync(lambda: "nobody listens" in call().text)
            assert call().status_code == 503
            database.execute("UPDATE servers SET expires_at = extract(epoch FROM now()) + 15 WHERE server_id = 'far'")
            assert call().json()["output"] == {"result": "count 1"}


def knows_counter(server: RunningServer) -> bool:
    with server.client() as client:
        return (
            "counter__increment" in client.get("/v1/tools").text or "increment" in client.get("/v1/tools/counter").text
        )
