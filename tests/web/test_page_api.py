"""What the page reads from the API: changes by any server, runs in detail, conversations, approvals with their tool."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.server.serving import Project, RunningServer

pytestmark = pytest.mark.integration

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("page"), more='[policy]\nrules = [{ verdict = "ask", tool = "wipe" }]')


@pytest.fixture(scope="module")
def server(project: Project) -> Iterator[RunningServer]:
    with project.serve() as server:
        yield server


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def test_a_change_by_another_process_is_an_event(project: Project, server: RunningServer):
    with server.client() as http, http.stream("GET", "/v1/events", params={"types": "changed"}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        parts: set[str] = set()
        made = False
        for line in lines:
            if line.startswith("data: "):
                parts |= set(json.loads(line.removeprefix("data: "))["parts"])
            if not made:  # another process, whose own events this server does not see
                made = project.ferrule("call", "add", "a=1", "b=2").returncode == 0
                assert made
            if "calls" in parts:
                break
        assert "calls" in parts


def test_a_request_is_shown_with_its_tool(http: httpx.Client):
    refused = http.post("/v1/tools/wipe/call", json={"arguments": {"path": "a"}})
    approval_id = refused.json()["metadata"]["approval_id"]
    request = http.get(f"/v1/approvals/{approval_id}").json()
    assert request["tool"]["effect"] == "destructive" and request["tool"]["is_same_version"]
    assert request["tool"]["parameters"]["properties"]["path"] and request["tool"]["changes"] == ""
    assert [each["approval_id"] for each in http.get("/v1/approvals").json()["approvals"]] == [approval_id]


def test_runs_are_filtered_and_shown_with_their_history(http: httpx.Client):
    answer = http.post("/v1/ask", json={"question": "What is 6 * 7?", "conversation_id": "sums"}).json()
    assert "42" in answer["answer"]
    listed = http.get("/v1/runs", params={"state": "finished", "text": "6 * 7"}).json()["runs"]
    assert [run["run_id"] for run in listed] == [answer["run_id"]]
    assert http.get("/v1/runs", params={"state": "waiting"}).json()["runs"] == []
    run = http.get(f"/v1/runs/{answer['run_id']}").json()
    assert run["conversation_id"] == "sums" and run["started_at"] <= run["at"]
    assert run["history"][-1]["kind"] == "end" and run["history"][-1]["state"] == "finished"
    conversations = http.get("/v1/conversations").json()["conversations"]
    assert conversations[0]["conversation_id"] == "sums" and conversations[0]["question"] == "What is 6 * 7?"


def test_a_brief_list_of_calls_has_no_arguments_and_results(http: httpx.Client):
    http.post("/v1/tools/add/call", json={"arguments": {"a": 1, "b": 2}})
    call = http.get("/v1/calls", params={"brief": True}).json()["calls"][0]
    assert call["tool_name"] == "add" and "params" not in call and "result" not in call
    whole = http.get("/v1/calls").json()["calls"][0]
    assert whole["record_id"] == call["record_id"] and whole["params"] == {"a": 1, "b": 2}
