"""A server in operation: stopping under load, cancelling, adding tools, and what it needs to be deployed."""

import configparser
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from ferrule.server.listening import bind_internal_port
from tests.server.mcp_requests import (
    COUNTER,
    OLDER_HEADERS,
    add_stateful_servers,
    open_session,
    read_result,
    send,
)
from tests.server.serving import MCP_HEADERS, MCP_META, Project, RunningServer, mcp_call, read_events
from tests.support.waiting import until_sync

pytestmark = pytest.mark.integration

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

ROOT = Path(__file__).parents[2]
TALKING = '''
import asyncio
from ferrule import ToolExecutionContext, tool

@tool(read_only=True, timeout=600)
async def talk(reports: int, path: str, context: ToolExecutionContext) -> str:
    """Report much."""
    for number in range(reports):
        context.progress(number / reports, f"{number} " + "x" * 1_000)
        await asyncio.sleep(0)  # lets what was reported be sent
    open(path, "w").close()
    return "done"
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("project"), more="[http]\nallow_private_addresses = true\n")
    (project.folder / "tools" / "sort.yaml").write_text(
        "name: sort\ndescription: Sort lines.\nparameters: {text: {type: string}}\n"
        "entry: {type: external, command: [sort], stdin: '{text}'}\n"
    )
    (project.folder / "tools" / "talking.py").write_text(TALKING)
    return project


def call(http: httpx.Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = http.post(f"/v1/tools/{tool}/call", json={"arguments": arguments}).json()
    return result


def test_a_running_call_can_be_cancelled_by_somebody_else(project: Project, http: httpx.Client):
    path = project.folder / "never"
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(call, http, "wait_for", path=str(path))
        until_sync(Path(f"{path}.started").exists, seconds=60)
        (running,) = http.get("/v1/calls", params={"tool": "wait_for", "status": "running"}).json()["calls"]
        assert http.post(f"/v1/calls/{running['record_id']}/cancel").json()["cancelled"]
        result = pending.result(60)
    assert result["error_type"] == "cancelled" and result["call_id"] == running["record_id"]
    assert Path(f"{path}.cancelled").exists()
    assert http.post(f"/v1/calls/{running['record_id']}/cancel").status_code == 409
    assert http.post("/v1/calls/unknown/cancel").status_code == 404


def test_an_api_and_an_mcp_server_are_added(server: RunningServer, http: httpx.Client):
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Health", "version": "1"},
        "servers": [{"url": server.url}],
        "paths": {"/healthz": {"get": {"operationId": "health", "responses": {"200": {"description": "ok"}}}}},
    }
    added = http.post("/v1/tools", json={"openapi": {"name": "health", "source": document}})
    assert added.status_code == 201, added.text
    assert call(http, "health")["is_success"]
    assert http.post("/v1/tools", json={"openapi": {"name": "health", "source": document}}).status_code == 409
    assert http.post("/v1/tools", json={"mcp": {"name": "again", "url": f"{server.url}/mcp"}}).status_code == 201
    assert call(http, "again__add", a=1, b=2)["output"] == {"result": 3}
    for entry in (
        {},
        {"mcp": {"name": "x", "url": "http://h/${SECRET}"}},
        {"openapi": {"name": "x", "source": "/etc/passwd"}},
    ):
        assert http.post("/v1/tools", json=entry).status_code == 422


def test_programs_run_in_the_event_loop_of_the_server(http: httpx.Client):
    result = call(http, "sort", text="b\na\n")
    assert result["is_success"] and "a\nb" in json.dumps(result["output"]).replace("\\n", "\n"), result


@pytest.mark.parametrize("kind", ["http", "newer", "older"])
def test_progress_that_a_client_does_not_read_is_dropped_and_its_result_is_not(
    project: Project, http: httpx.Client, kind: str
):
    ended, reports = project.folder / f"talked-{kind}", 20_000
    arguments = {"reports": reports, "path": str(ended)}
    url, request = "/mcp", mcp_call("talk", arguments, progressToken=1)
    if kind == "http":
        url, request = "/v1/tools/talk/call", {"json": {"arguments": arguments, "stream": True}}
    if kind == "older":
        request["headers"] = OLDER_HEADERS | {"mcp-session-id": open_session(http)}
        del request["json"]["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"]
    with http.stream("POST", url, **request) as response:
        until_sync(ended.exists, seconds=120)  # nothing was read of more than any buffer of the system holds
        events = [data for _, data in read_events(response.read().decode().replace("\r", ""))]
    *progress, result = events
    assert 0 < len(progress) < reports
    if kind == "http":
        assert result["output"] == {"result": "done"} and progress[-1]["message"].startswith(f"{reports - 1} ")
    else:
        assert result["result"]["content"][0]["text"] == "done"
        assert progress[-1]["params"]["message"].startswith(f"{reports - 1} ")


def test_a_server_that_is_stopped_under_load_loses_nothing_and_waits_for_no_stream(tmp_path: Path):
    """Streams end only with their connection: the server would wait for them as long as for requests in progress."""
    project, number = Project(tmp_path), 8
    with project.serve() as server, ThreadPoolExecutor(number) as pool, server.client() as http:
        paths = [tmp_path / f"go-{index}" for index in range(number)]
        pending = [pool.submit(call, http, "wait_for", path=str(path)) for path in paths]
        until_sync(lambda: all(Path(f"{path}.started").exists() for path in paths), seconds=120)
        headers = OLDER_HEADERS | {"mcp-session-id": open_session(http)}
        listen = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen"}
        listen["params"] = {"notifications": {"toolsListChanged": True}, "_meta": MCP_META}
        method = {**MCP_HEADERS, "mcp-method": "subscriptions/listen"}
        with (
            server.client() as streaming,
            streaming.stream("GET", "/mcp", headers=headers) as of_session,
            streaming.stream("POST", "/mcp", json=listen, headers=method) as of_listener,
            streaming.stream("GET", "/v1/events") as of_page,
        ):
            assert [of_session.status_code, of_listener.status_code, of_page.status_code] == [200] * 3
            server.process.terminate()
            until_sync(lambda: is_refused(server))
            for path in paths:
                path.touch()
            results = [each.result(120) for each in pending]
            server.process.wait(120)
    assert "timeout graceful shutdown exceeded" not in server.log
    assert [result["output"] for result in results] == [{"result": "found"}] * number
    records = json.loads(project.ferrule("calls", "--json", "--limit", "100").stdout)
    assert {r["record_id"] for r in records if r["status"] == "success"} == {r["call_id"] for r in results}


def test_what_a_stopping_server_cuts_off_is_answered_with_a_problem(tmp_path: Path):
    """Also over MCP, and at the end of a stream that has begun."""
    project = Project(tmp_path)
    short = "from ferrule.cli import main, serve; serve.GRACE_SECONDS = 1; main()"
    with project.serve(program=["-c", short]) as server, ThreadPoolExecutor(6) as pool, server.client() as http:
        session, names = open_session(http), ("call", "batch", "stream", "newer", "older", "progress")
        paths = {name: {"path": str(tmp_path / name)} for name in names}
        older = {"name": "wait_for", "arguments": paths["older"]}
        progress = {"name": "wait_for", "arguments": paths["progress"], "_meta": {"progressToken": 1}}
        batch = {"calls": [{"tool": "wait_for", "arguments": paths["batch"]}]}
        url = "/v1/tools/wait_for/call"
        pending = [
            pool.submit(http.post, url, json={"arguments": paths["call"]}),
            pool.submit(http.post, "/v1/calls", json=batch),
            pool.submit(http.post, url, json={"arguments": paths["stream"], "stream": True}),
            pool.submit(http.post, "/mcp", **mcp_call("wait_for", paths["newer"])),
            pool.submit(send, http, "tools/call", older, session),
            pool.submit(send, http, "tools/call", progress, session),
        ]
        until_sync(lambda: all((tmp_path / f"{name}.started").exists() for name in names), seconds=120)
        server.process.terminate()
        answers = dict(zip(names, [each.result(120) for each in pending], strict=True))
        server.process.wait(120)
    for name, answer in answers.items():
        if name in ("stream", "progress"):
            ((event, problem),) = read_events(answer.text.replace("\r", ""))
            assert (event, answer.headers["content-type"].partition(";")[0]) == ("error", "text/event-stream")
        else:
            problem = answer.json()
            assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert problem["status"] == 503 and "The server was stopped before" in problem["detail"], name
    records = json.loads(project.ferrule("calls", "--json").stdout)
    assert [record["status"] for record in records] == ["cancelled"] * len(names)


def is_refused(server: RunningServer) -> bool:
    """Whether nobody listens at the server's address any more."""
    try:
        httpx.get(f"{server.url}/healthz", timeout=60, verify=False)
    except httpx.TransportError as error:
        return isinstance(error, httpx.ConnectError)
    return False


def test_a_store_is_copied_while_a_server_uses_it_and_restored(
    project: Project, server: RunningServer, http: httpx.Client, tmp_path: Path
):
    result = call(http, "add", a=20, b=22)
    copied = project.ferrule("store", "backup", str(tmp_path / "backup"), "--json")
    assert copied.returncode == 0, copied.stderr
    (tmp_path / "other").mkdir()
    other = Project(tmp_path / "other")
    assert other.ferrule("store", "restore", str(tmp_path / "backup")).returncode == 0
    checked = other.ferrule("store", "check")
    assert checked.returncode == 0 and "intact" in checked.stdout
    records = json.loads(other.ferrule("calls", "--json", "--limit", "1000").stdout)
    assert result["call_id"] in {record["record_id"] for record in records}
    again = other.ferrule("store", "restore", str(tmp_path / "backup"))
    assert again.returncode == 2 and "already a store" in again.stderr
    database = tmp_path / "other" / "calls.db"
    database.write_bytes(b"no database" * 1_000)
    assert other.ferrule("store", "check").returncode == 1


def test_doctor_covers_the_server_the_model_and_every_mcp_server(tmp_path: Path):
    project = Project(tmp_path)
    missing = {"missing": {"command": str(tmp_path / "no-program")}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": missing}))
    checks = {each["name"]: each for each in json.loads(project.ferrule("doctor", "--json").stdout)}
    assert not checks["mcp missing"]["ok"] and "no-program" in checks["mcp missing"]["finding"]
    assert "server" in checks and "offline" in checks["model"]["finding"]


def test_the_unit_for_systemd_is_valid(tmp_path: Path):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "deploy" / "ferrule.service")
    assert unit["Service"]["ExecStart"].split()[1:2] == ["--config"] and "serve" in unit["Service"]["ExecStart"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt install systemd")
    text = (ROOT / "deploy" / "ferrule.service").read_text()
    text = text.replace("/opt/ferrule/bin/ferrule", sys.executable).replace("User=ferrule\n", "")
    (tmp_path / "ferrule.service").write_text(text)
    command = ["systemd-analyze", "verify", str(tmp_path / "ferrule.service")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "ferrule.service" not in checked.stderr, checked.stderr


def test_the_container_file_is_valid():
    lines = (ROOT / "deploy" / "Containerfile").read_text().splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert instructions[0][0] == "FROM"
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions} <= known
    for name, value in instructions:
        if name == "COPY":
            assert all((ROOT / source).exists() for source in value.split()[:-1])
        if name in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(value), list)
    extras = re.search(r"\.\[(.*?)\]", str(instructions))
    project = (ROOT / "pyproject.toml").read_text()
    assert extras is not None and all(f"\n{extra} = [" in project for extra in extras[1].split(","))


@pytest.mark.long
def test_several_workers_share_the_port_and_what_one_of_them_has_opened(tmp_path: Path):
    """Sessions of MCP clients and the process of a stateful MCP server work through all; a token is revoked for all."""
    project = Project(tmp_path)
    code = '''
import os
from ferrule import tool

@tool(read_only=True)
async def process_id() -> int:
    """The process that makes the call."""
    return os.getpid()
'''
    (tmp_path / "tools" / "process_id.py").write_text(code)
    add_stateful_servers(project, [sys.executable], counter=COUNTER)
    token = project.create_token("short-lived")

    def call(server: RunningServer) -> httpx.Response:
        with server.client(token) as http:  # each has a connection of its own
            return http.post("/v1/tools/process_id/call", json={"arguments": {}})

    with project.serve("--workers", "2") as server, ThreadPoolExecutor(16) as threads:
        processes: set[int] = set()

        def has_seen_both() -> bool:
            responses = threads.map(lambda _: call(server), range(16))
            processes.update(response.json()["output"]["result"] for response in responses)
            return len(processes) == 2

        until_sync(has_seen_both, seconds=120)
        assert "serving on" in server.log

        def open_one(_: int) -> str:
            with server.client(token) as http:
                return open_session(http)

        def find_process(session: str) -> int:
            with server.client(token) as http:
                result = read_result(send(http, "tools/call", {"name": "process_id"}, session))
                return int(result["structuredContent"]["result"])

        def count(_: int) -> str:
            with server.client(token) as http:
                response = http.post("/v1/tools/counter__increment/call", json={"arguments": {}})
                return str(response.json()["output"]["result"])

        sessions: dict[str, str] = {}
        """One of each worker, by the id of the worker at the end of the session's."""
        until_sync(lambda: sessions.update((s[-12:], s) for s in threads.map(open_one, range(8))) or len(sessions) == 2)
        found = [set(threads.map(find_process, [session] * 16)) for session in sessions.values()]
        assert all(len(each) == 1 for each in found), "a session is in one process, whichever gets the request"
        assert set.union(*found) == processes
        counts = list(threads.map(count, range(16)))
        assert sorted(counts) == sorted(f"count {number}" for number in range(1, 17))
        assert project.ferrule("tokens", "revoke", "short-lived").returncode == 0
        until_sync(lambda: all(call(server).status_code == 401 for _ in range(20)))
        token = project.create_token("second", "--role", "admin")

        def count_calls() -> int:
            with server.client(token) as http:
                lines = http.get("/metrics").text.splitlines()
            return sum(int(float(line.split()[-1])) for line in lines if 'tool_calls_total{status="success"' in line)

        counted = count_calls()
        assert counted >= 16
        answers: list[httpx.Response] = []
        for process in processes:
            os.kill(process, signal.SIGKILL)

        def is_answered() -> bool:
            with suppress(httpx.TransportError), server.client(token) as http:
                answers.append(http.post("/v1/tools/counter__increment/call", json={"arguments": {}}))
            return bool(answers)

        until_sync(is_answered)
        assert answers[0].json()["output"] == {"result": "count 1"}, "the dead workers hold nothing up"
        assert count_calls() > counted, "what the dead workers have counted stays counted"


def test_several_workers_finish_what_they_have_begun_and_take_no_new_connection(tmp_path: Path):
    project = Project(tmp_path)
    found = tmp_path / "found"
    with project.serve("--workers", "2") as server, ThreadPoolExecutor(1) as threads, server.client() as http:
        body = {"arguments": {"path": str(found)}}
        calling = threads.submit(http.post, "/v1/tools/wait_for/call", json=body)
        until_sync(found.with_name("found.started").exists)
        server.process.terminate()

        until_sync(lambda: is_refused(server))
        assert not calling.done()
        found.touch()
        assert calling.result(60).json()["output"] == {"result": "found"}
        assert server.process.wait(60) == 0


def test_each_worker_has_an_internal_port() -> None:
    with bind_internal_port("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bind_internal_port("127.0.0.1", port) as second:
            assert port < second.getsockname()[1]


def test_a_wrong_internal_url_is_explained(tmp_path: Path) -> None:
    project = Project(tmp_path, more='[server]\ninternal_url = "10.0.0.5:8321/mcp"\n')
    done = project.ferrule("serve")
    assert done.returncode != 0 and "host and port, such as http://10.0.0.5:8321" in done.stderr, done.stderr


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        busy = project.ferrule("serve", "--port", str(other.getsockname()[1]))
    missing = project.ferrule("serve", "--tls-certificate", "missing.pem")
    wrong = project.ferrule("serve", "--tls-certificate", "ferrule.toml")
    assert busy.returncode == 2 and "Address already in use. Choose another" in busy.stderr
    assert missing.returncode == 2 and "There is no file missing.pem" in missing.stderr
    assert wrong.returncode == 2 and "cannot be used as certificate" in wrong.stderr
    assert "serving on" not in busy.stderr + missing.stderr + wrong.stderr
