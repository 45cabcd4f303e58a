"""The HTTP API without tokens: the user of this machine may do everything."""

import json
import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.server.serving import Project, RunningServer, call, read_events
from tests.support.waiting import until_sync

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    more = '[server]\nvirtual_servers = { sums = ["add"] }\n\n[policy]\nrules = [{ verdict = "ask", tool = "wipe" }]'
    return Project(tmp_path_factory.mktemp("project"), more=more)


def test_the_server_says_that_it_is_open_to_this_machine_and_to_no_proxy(server: RunningServer, http: httpx.Client):
    assert "there are no tokens" in server.log
    names = (
        "Forwarded Via X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto CF-Connecting-IP X-Real-IP X-Forwarded "
        "True-Client-IP X-Azure-ClientIP Incap-Client-IP CDN-Loop X-Original-Host Fly-Region X-Amz-Cf-Id"
    ).split()
    assert {http.get("/v1/tools", headers={name: "elsewhere"}).status_code for name in names} == {403}
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /v1/tools HTTP/1.0\r\nHost: localhost\r\n\r\n")  # as nginx does unless told otherwise
        assert b" 403 " in connection.makefile("rb").readline()
    assert http.get("/healthz").json()["status"] == "ok"
    assert http.get("/v1/me").json()["permissions"] == ["read", "call", "approve", "administer"]


def test_a_call_returns_the_fields_of_a_result(http: httpx.Client):
    response = call(http, "add", {"a": 2, "b": 3})
    assert response.status_code == 200
    result = response.json()
    assert result["is_success"] and result["output"] == {"result": 5} and result["tool_name"] == "add"
    record = http.get(f"/v1/calls/{result['call_id']}").json()
    assert record["params"] == {"a": 2, "b": 3} and record["caller_type"] == "http"


def test_the_document_of_the_api_says_what_a_problem_is(http: httpx.Client):
    problem = http.get("/openapi.json").json()["components"]["schemas"]["Problem"]
    assert problem["title"] == "Problem" and "RFC 9457" in problem["description"]
    assert problem["required"] == ["type", "title", "status", "detail"]


def test_a_tool_that_fails_is_a_result_and_not_an_http_error(http: httpx.Client):
    response = call(http, "fail")
    assert response.status_code == 200 and not response.json()["is_success"]
    assert "no luck" in response.json()["error"]


@pytest.mark.parametrize(
    ("tool", "body", "status", "words"),
    [
        ("nothing", {"arguments": {}}, 404, "nothing"),
        ("add", {"arguments": {"a": "x"}}, 422, "b"),
        ("add", {"arguments": {"a": 1, "b": 2}, "timeout": -1}, 422, "timeout"),
        ("add", {"params": {}}, 422, "params"),
        ("add", {"arguments": [1, 2]}, 422, "arguments"),
        ("add", [], 422, "The body of a call is an object"),
    ],
)
def test_a_call_that_was_not_made_is_a_problem(http: httpx.Client, tool: str, body: object, status: int, words: str):
    response = http.post(f"/v1/tools/{tool}/call", json=body)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status and problem["title"] and words in problem["detail"]


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [(b"{", "application/json", 400), (b"a=1", "application/x-www-form-urlencoded", 415), (b"{}", "text/plain", 415)],
)
def test_only_json_is_accepted(http: httpx.Client, content: bytes, content_type: str, status: int):
    response = http.post("/v1/tools/add/call", content=content, headers={"content-type": content_type})
    assert response.status_code == status and response.json()["detail"]


def test_a_long_body_is_refused(http: httpx.Client):
    response = http.post("/v1/tools/note/call", json={"arguments": {"text": "x" * (17 * 1024 * 1024)}})
    assert response.status_code == 413


def test_a_body_of_unknown_length_is_refused_when_it_gets_too_long(http: httpx.Client):
    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 1024 * 1024

    try:
        response = http.post("/v1/tools/note/call", content=pieces(), headers={"content-type": "application/json"})
    except httpx.WriteError:  # the server has closed the connection
        return
    assert response.status_code == 413


def test_pages_of_other_sites_and_other_host_names_are_refused(server: RunningServer, http: httpx.Client):
    body = {"arguments": {"a": 1, "b": 2}}
    assert http.post("/v1/tools/add/call", json=body, headers={"Origin": "https://evil.example"}).status_code == 403
    assert http.post("/v1/tools/add/call", json=body, headers={"Host": "evil.example"}).status_code == 421
    assert http.get("/v1/tools", headers={"Host": "evil.example:80"}).status_code == 421
    for path in ("/v1/tools", "/v1/events", "/mcp"):  # the specification of MCP says so of every request
        assert http.get(path, headers={"Origin": "https://evil.example"}).status_code == 403
    assert http.get("/v1/tools", headers={"Origin": server.url}).status_code == 200
    assert http.post("/v1/tools/add/call", json=body, headers={"Origin": server.url}).status_code == 200


def test_responses_have_security_headers(http: httpx.Client):
    headers = http.get("/v1/tools").headers
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_a_repeated_request_with_an_idempotency_key_is_executed_once(project: Project, http: httpx.Client):
    headers = {"Idempotency-Key": "pay-1"}
    first = http.post("/v1/tools/note/call", json={"arguments": {"text": "once"}}, headers=headers)
    second = http.post("/v1/tools/note/call", json={"arguments": {"text": "once"}}, headers=headers)
    assert first.json() == second.json() and second.headers["idempotency-replayed"] == "true"
    assert (project.folder / "notes.txt").read_text().count("once") == 1
    other = http.post("/v1/tools/note/call", json={"arguments": {"text": "other"}}, headers=headers)
    assert other.status_code == 422 and "another request" in other.json()["detail"]


def test_a_batch_returns_results_in_order(http: httpx.Client):
    calls = [{"tool": "add", "arguments": {"a": n, "b": 1}} for n in range(5)] + [{"tool": "missing"}]
    results = http.post("/v1/calls", json={"calls": calls}).json()["results"]
    assert [r["output"].get("result") for r in results[:5]] == [1, 2, 3, 4, 5]
    assert results[5]["error_type"] == "tool_not_found"


def test_a_streamed_call_reports_progress(http: httpx.Client):
    events = read_events(call(http, "count", {"to": 3}, stream=True).text)
    assert [name for name, _ in events] == ["progress"] * 3 + ["result"]
    assert events[1][1]["message"] == "number 1" and events[-1][1]["is_success"]


def test_a_streamed_call_ends_when_its_client_goes_away(project: Project, http: httpx.Client):
    path = project.folder / "never"
    with http.stream("POST", "/v1/tools/wait_for/call", json={"arguments": {"path": str(path)}, "stream": True}):
        until_sync((project.folder / "never.started").exists)
    until_sync((project.folder / "never.cancelled").exists)


def test_a_call_waits_for_approval_and_is_made_once(project: Project, http: httpx.Client):
    refused = call(http, "wipe", {"path": "a"})
    assert refused.status_code == 428 and refused.json()["error_type"] == "approval_required"
    approval_id = refused.json()["metadata"]["approval_id"]
    (request,) = [a for a in http.get("/v1/approvals").json()["approvals"] if a["approval_id"] == approval_id]
    assert request["tool_id"] == "wipe" and request["arguments"] == {"path": "a"}
    assert http.post(f"/v1/approvals/{approval_id}", json={"allowed": True}).json()["state"] == "approved"
    assert call(http, "wipe", {"path": "b"}, approval_id=approval_id).status_code == 428
    made = call(http, "wipe", {"path": "a"}, approval_id=approval_id)
    assert made.json()["output"] == {"result": "wiped a"}
    assert call(http, "wipe", {"path": "a"}, approval_id=approval_id).status_code != 200
    assert (project.folder / "wiped.txt").read_text() == "a\n"
    assert http.post(f"/v1/approvals/{approval_id}", json={"allowed": True}).status_code == 409


def test_tools_are_listed_searched_and_described(http: httpx.Client):
    tools = {tool["tool_id"]: tool for tool in http.get("/v1/tools").json()["tools"]}
    sources = [tool["source"] for tool in tools.values()]
    assert sources.index("builtin") == sources.count("tools") > 0  # the user's own tools come first
    assert tools["wipe"]["actions"][0]["effect"] == "destructive" and tools["wipe"]["actions"][0]["needs_approval"]
    assert tools["search_web"]["needs"]
    hits = http.get("/v1/tools", params={"query": "add two numbers", "limit": 3}).json()["tools"]
    assert hits[0]["tool_id"] == "add" and len(hits) <= 3
    assert http.get("/v1/tools/add").json()["actions"][0]["parameters"]["required"] == ["a", "b"]
    assert http.get("/v1/tools/add/schema").json()["schemas"][0]["function"]["name"] == "add"
    assert http.get("/v1/tools/nothing").status_code == 404


def test_a_tool_can_be_disabled(http: httpx.Client):
    assert http.patch("/v1/tools/fail", json={"enabled": False}).status_code == 200
    assert call(http, "fail").status_code == 404
    assert http.patch("/v1/tools/fail", json={"enabled": True}).status_code == 200
    assert call(http, "fail").status_code == 200


def test_records_statistics_and_limits(http: httpx.Client):
    for a in (39, 40):
        call(http, "add", {"a": a, "b": 2})
    page = http.get("/v1/calls", params={"tool": "add", "limit": 1}).json()["calls"]
    assert len(page) == 1 and page[0]["tool_name"] == "add"
    following = http.get("/v1/calls", params={"tool": "add", "limit": 1, "after": page[0]["record_id"]}).json()["calls"]
    assert following[0]["record_id"] != page[0]["record_id"]
    assert http.get("/v1/stats").json()["tools"]["add"]["calls"] >= 2
    assert http.get("/v1/limits").json()["current_concurrent"] >= 0
    assert http.get("/v1/calls", params={"status": "wrong"}).status_code == 422


def test_a_question_is_answered_and_its_run_is_listed(http: httpx.Client):
    answer = http.post("/v1/ask", json={"question": "what is 17 * 3?"}).json()
    assert answer["state"] == "finished" and "51" in answer["answer"]
    runs = http.get("/v1/runs").json()["runs"]
    assert answer["run_id"] in [run["run_id"] for run in runs]
    shown = http.get(f"/v1/runs/{answer['run_id']}").json()
    assert shown["messages"][-1]["content"] and shown["state"] == "finished"
    conversation = http.get(f"/v1/conversations/{answer['conversation_id']}").json()
    assert conversation["turns"][0]["question"] == "what is 17 * 3?"
    assert http.get("/v1/runs/none").status_code == 404


def test_a_streamed_question_reports_what_happens(http: httpx.Client):
    events = read_events(http.post("/v1/ask", json={"question": "what is 18 * 3?", "stream": True}).text)
    names = [name for name, _ in events]
    assert names[0] == "strategy" and "call" in names and "call_ended" in names and names[-1] == "answer"
    assert "54" in events[-1][1]["answer"]


def test_wrong_questions_are_problems(http: httpx.Client):
    for body in (
        {"question": ""},
        {},
        {"question": "x", "strategy": "guess"},
        {"question": "x", "conversation_id": "a/b"},
    ):
        response = http.post("/v1/ask", json=body)
        assert response.status_code in (400, 422) and response.json()["detail"]


def test_events_are_streamed(http: httpx.Client):
    with http.stream("GET", "/v1/events", params={"types": "after_tool_call"}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        call(http, "add", {"a": 1, "b": 1})
        for line in lines:
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                break
    assert event["tool_name"] == "add" and event["is_success"]


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


def test_the_openapi_document_has_every_route(http: httpx.Client):
    document = http.get("/openapi.json").json()
    for path in ("/v1/tools/{name}/call", "/v1/ask", "/v1/runs", "/v1/approvals", "/v1/chat/completions", "/healthz"):
        assert path in document["paths"]


def test_every_success_response_has_a_schema(http: httpx.Client):
    document = http.get("/openapi.json").json()
    responses = [
        (f"{method} {path}", media_type, each.get("schema"))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for status, response in operation["responses"].items()
        if status.startswith("2")
        for media_type, each in response.get("content", {"nothing": {}}).items()
    ]
    assert len(responses) > 50 and all(schema for _, _, schema in responses), responses
    plain = [name for name, media_type, schema in responses if "json" in media_type and schema == {"type": "string"}]
    assert plain == [], "api_document does not have these"
    references = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert references <= document["components"]["schemas"].keys()


def test_metrics_are_in_the_format_of_prometheus(http: httpx.Client):
    parser = pytest.importorskip("prometheus_client.parser", reason="pip install 'ferrule[server]'")
    call(http, "add", {"a": 1, "b": 1})
    call(http, "an-invented-name")
    families = {family.name: family for family in parser.text_string_to_metric_families(http.get("/metrics").text)}
    calls = {(s.labels["tool"], s.labels["status"]): s.value for s in families["ferrule_tool_calls"].samples}
    assert calls["add", "success"] >= 1 and calls["other", "tool_not_found"] >= 1
    durations = families["ferrule_tool_call_duration_seconds"].samples
    counts = [s.value for s in durations if s.labels.get("tool") == "add" and s.name.endswith("_bucket")]
    assert counts == sorted(counts) and counts[-1] >= 1
    assert "ferrule_queue_depth" in families
    http.get("/invented/path")
    durations = families["ferrule_http_request_duration_seconds"].samples
    routes = {(s.labels["route"], s.labels["status"]) for s in durations}
    assert ("/v1/tools/{name}/call", "200") in routes and not any("invented" in route for route, _ in routes)
    assert "ferrule_mcp_sessions" in families and families["ferrule_store_failures"].samples[0].value == 0


def test_unknown_paths_and_methods_are_problems(http: httpx.Client):
    unknown = http.get("/v1/nothing")
    assert unknown.status_code == 404 and unknown.headers["content-type"] == "application/problem+json"
    assert "'/v1/nothing'" in unknown.json()["detail"]
    wrong = http.delete("/v1/tools")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "GET, POST"
    assert wrong.json()["detail"] == "'/v1/tools' cannot be used with DELETE, only with GET, POST."


async def test_mcp_clients_see_and_call_tools(server: RunningServer):
    from mcp.client import Client

    async with Client(f"{server.url}/mcp") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"add", "note", "wipe"} <= names
        result = await client.call_tool("add", {"a": 4, "b": 5})
        assert not result.is_error and "9" in str(result.content[0])


async def test_a_virtual_server_offers_its_selection(server: RunningServer):
    from mcp.client import Client

    async with Client(f"{server.url}/mcp/sums") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["add"]
        refused = await client.call_tool("note", {"text": "x"})
        assert refused.is_error


def test_the_openai_client_works(server: RunningServer):
    openai = pytest.importorskip("openai", reason="pip install 'ferrule[openai]'")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        assert "ferrule" in [model.id for model in client.models.list()]
        messages = [{"role": "user", "content": "what is 6 * 7?"}]
        completion = client.chat.completions.create(model="ferrule", messages=messages)
        assert "42" in completion.choices[0].message.content and completion.usage.total_tokens >= 0
        chunks = list(client.chat.completions.create(model="ferrule", messages=messages, stream=True))
        assert "42" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        response = client.responses.create(model="ferrule", input="what is 6 * 8?")
        assert "48" in response.output_text
        events = list(client.responses.create(model="ferrule", input="what is 6 * 9?", stream=True))
        assert events[-1].type == "response.completed" and "54" in events[-1].response.output_text
        with pytest.raises(openai.NotFoundError, match="no model") as missing:
            client.chat.completions.create(model="gpt-9", messages=messages)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.UnprocessableEntityError, match=r"body\.messages"):
            client.chat.completions.create(model="ferrule", messages=[])
        with pytest.raises(openai.PermissionDeniedError, match="origin"):
            client.responses.create(model="ferrule", input="what is 6 * 8?", extra_headers={"Origin": "http://x"})
