"""The server while its store fails: Postgres is stopped, the disk is full."""

import asyncio
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ferrule import tool
from ferrule.server.tokens import Tokens
from tests.server.application import serve
from tests.server.serving import Project, RunningServer, call, mcp_call, read_events
from tests.support.postgres import PostgresServer, run_postgres
from tests.support.waiting import until_sync

pytestmark = pytest.mark.integration

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")


@pytest.fixture
def postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with run_postgres() as server:
        yield server


@contextmanager
def stopped(postgres: PostgresServer) -> Iterator[None]:
    postgres.stop()
    try:
        yield
    finally:
        postgres.start()


@contextmanager
def hanging(postgres: PostgresServer) -> Iterator[None]:
    """Postgres answers nothing, as behind a network that is cut."""
    processes = find_processes(postgres._process.pid)
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def find_processes(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [parent, *(process for child in children for process in find_processes(int(child)))]


@contextmanager
def full_disk(server: RunningServer) -> Iterator[None]:
    """No file of the server may grow."""
    soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (5_000, hard))
    try:
        yield
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (soft, hard))


def is_ready(server: RunningServer) -> bool:
    return httpx.get(f"{server.url}/readyz", timeout=60).status_code == 200


def check_problem(response: httpx.Response, *secrets: str) -> str:
    """The text of a problem that says that the store is not available, and not where it is."""
    problem: dict[str, Any] = response.json()
    assert (response.status_code, problem["status"]) == (503, 503), response.text
    assert response.headers["content-type"] == "application/problem+json" and "retry-after" in response.headers
    for secret in (*secrets, "postgresql", 'user "'):
        assert secret not in response.text
    return str(problem["detail"])


def list_calls(client: httpx.Client) -> list[dict[str, Any]]:
    """All calls on record, page by page."""
    records: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while page := client.get("/v1/calls", params={"limit": 1000, **after}).json()["calls"]:
        records += page
        after = {"after": page[-1]["record_id"]}
    return records


def test_calls_go_on_while_postgres_is_stopped(tmp_path: Path, postgres: PostgresServer):
    project = Project(tmp_path, store=postgres.url)
    secret = postgres.url.partition("host=")[2]
    caller, admin, unused = (
        project.create_token(name, "--role", role) for name, role in (("c", "caller"), ("a", "admin"), ("u", "caller"))
    )
    with project.serve() as server, server.client(caller) as http, server.client(admin) as operator:
        assert call(http, "add", {"a": 1, "b": 2}).status_code == 200
        assert operator.get("/metrics").status_code == 200
        made = 1
        with stopped(postgres):
            while "tokens cannot be looked up" not in server.log:  # until what it knows about a token is to be checked
                answer = call(http, "add", {"a": made, "b": 2})
                assert answer.json()["output"] == {"result": made + 2}, answer.text
                made += 1
            streamed = read_events(call(http, "count", {"to": 2}, stream=True).text)
            assert [name for name, _ in streamed] == ["progress", "progress", "result"]
            assert http.post("/mcp", **mcp_call("add", {"a": 1, "b": 2})).json()["result"]["isError"] is False
            assert call(http, "wipe", {"path": "/x"}).json()["output"] == {"result": "wiped /x"}
            made += 3
            metrics = operator.get("/metrics")
            assert f'ferrule_tool_calls_total{{status="success",tool="add"}} {made - 2}' in metrics.text, metrics.text
            with server.client(unused) as stranger:
                check_problem(call(stranger, "add", {"a": 1, "b": 2}), secret)
            for path in ("/v1/calls", "/v1/tokens"):
                check_problem(operator.get(path), secret)
            assert "the database cannot be reached" in check_problem(httpx.get(f"{server.url}/readyz"), secret)
            assert httpx.get(f"{server.url}/healthz").status_code == 200
            assert secret in server.log  # whoever runs the server is told which database it is
        until_sync(lambda: is_ready(server))
        records = list_calls(operator)
        assert [each["status"] for each in records] == ["success"] * made
        assert operator.delete("/v1/tokens/c").json()["revoked"]
        assert call(http, "add", {"a": 1, "b": 2}).status_code == 401


async def test_a_token_is_accepted_without_the_store_for_a_limited_time_and_never_after_it_was_refused(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    @tool(read_only=True)
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    monkeypatch.setattr("ferrule.server.authentication.CHECK_INTERVAL", 0.0)
    async with serve(add, store=postgres.url) as site, site.client("kept") as kept, site.client("gone") as gone:

        async def statuses() -> list[int]:
            path, body = "/v1/tools/add/call", {"arguments": {"a": 1, "b": 2}}
            return [(await each.post(path, json=body)).status_code for each in (kept, gone)]

        assert await statuses() == [200, 200]
        await Tokens(site.library.engine.store).revoke("gone")
        assert await statuses() == [200, 401]
        with stopped(postgres):
            assert await statuses() == [200, 503]
            with monkeypatch.context() as patch:
                patch.setattr("ferrule.server.authentication.MAX_ANSWER_AGE", 0.0)
                assert await statuses() == [503, 503]
            assert await statuses() == [200, 503]
        assert await statuses() == [200, 401]


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_calls_that_are_not_destructive_go_on_while_the_disk_is_full(tmp_path: Path):
    project = Project(tmp_path)
    known, unused = (project.create_token(name, "--role", "admin") for name in ("known", "unused"))
    with project.serve() as server, server.client(known) as http, server.client(unused) as other:
        assert call(http, "note", {"text": "x"}).status_code == 200
        until_sync(lambda: is_ready(server))
        with full_disk(server):
            for _ in range(6):  # until the space that the journal has reserved is used
                for client in (http, other):
                    assert call(client, "note", {"text": "x" * 400_000}).json()["output"] == {"result": "noted"}
                    assert client.get("/metrics").status_code == 200
            refused = call(http, "wipe", {"path": "/x"})
            assert "its record cannot be stored safely: File too large" in check_problem(refused, str(tmp_path))
            assert refused.json()["metadata"]["reason"] == "store" and not os.path.exists(tmp_path / "wiped.txt")
            check_problem(httpx.get(f"{server.url}/readyz"), str(tmp_path))
        until_sync(lambda: call(http, "wipe", {"path": "/x"}).status_code == 200)
        until_sync(lambda: is_ready(server))
        notes = http.get("/v1/calls", params={"tool": "note"}).json()["calls"]
        assert [each["status"] for each in notes] == ["success"] * 13


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
async def test_calls_do_not_wait_for_a_database_that_hangs(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    @tool(read_only=True)
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    monkeypatch.setattr("ferrule.server.authentication.CHECK_INTERVAL", 0.0)
    async with serve(add, store=postgres.url) as site, site.client("c") as http:

        async def get_status() -> int:
            body = {"arguments": {"a": 1, "b": 2}}
            return (await http.post("/v1/tools/add/call", json=body)).status_code

        assert await get_status() == 200
        with monkeypatch.context() as patch, hanging(postgres):
            patch.setattr("ferrule.server.authentication.LOOKUP_TIMEOUT", 0.01)
            assert [await get_status() for _ in range(20)] == [200] * 20
        await Tokens(site.library.engine.store).revoke("c")
        while await get_status() != 401:  # when the look-up that hung has been answered
            await asyncio.sleep(0.01)  # looks again
