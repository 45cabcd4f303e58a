"""What a client must not reach: anything without a token, data of other tenants, and more than its token allows."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ferrule import ToolEngineConfig, UnifiedToolLibrary
from tests.server.serving import Project, RunningServer, call, mcp_call, read_events
from tests.support.waiting import until_sync

pytestmark = pytest.mark.integration

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    more = '[policy]\nrules = [{ verdict = "ask", tool = "wipe" }]'
    return Project(tmp_path_factory.mktemp("project"), more=more)


@pytest.fixture(scope="module")
def admin_token(project: Project) -> str:
    return project.create_token("admin", "--role", "admin")


@pytest.fixture(scope="module")
def server(project: Project, admin_token: str) -> Iterator[RunningServer]:
    with project.serve() as server:
        yield server


@pytest.fixture
def admin(server: RunningServer, admin_token: str) -> Iterator[httpx.Client]:
    with server.client(admin_token) as http:
        yield http


def create(admin: httpx.Client, name: str, **grants: object) -> str:
    created = admin.post("/v1/tokens", json={"name": name, **grants})
    assert created.status_code == 201, created.text
    return str(created.json()["token"])


def add(http: httpx.Client) -> int:
    return call(http, "add", {"a": 1, "b": 2}).status_code


def open_session(server: RunningServer, token: str | None = None, session: str | None = None) -> str:
    with server.client(token, cookies=None if session is None else {"ferrule_session": session}) as http:
        return str(http.post("/v1/session").cookies["ferrule_session"])


def test_a_call_cannot_name_a_conversation_or_run_of_others(server: RunningServer, admin: httpx.Client):
    acme, globex, nobody = (server.client(create(admin, f"talk-{t or 'none'}", tenant=t)) for t in ("a", "g", ""))
    with acme, globex, nobody:
        answer = acme.post("/v1/ask", json={"question": "what is 31 * 3?", "conversation_id": "talk"}).json()
        own = call(acme, "get_conversation_history", conversation_id="talk")
        assert "31 * 3" in own.text
        for http in (globex, nobody):
            for name in ("talk", "a/talk", answer["run_id"]):
                assert "31 * 3" not in call(http, "get_conversation_history", conversation_id=name).text
        assert call(nobody, "add", {"a": 1, "b": 2}, conversation_id=answer["run_id"]).status_code == 422


def test_a_streamed_answer_names_the_conversation_as_the_client_does(server: RunningServer, admin: httpx.Client):
    with server.client(create(admin, "streamer", tenant="streaming")) as http:
        body = {"question": "what is 32 * 3?", "conversation_id": "talk", "stream": True}
        assert read_events(http.post("/v1/ask", json=body).text)[-1][1]["conversation_id"] == "talk"


def test_ending_a_session_does_not_end_its_token(server: RunningServer, admin: httpx.Client):
    token = create(admin, "survivor")
    session = open_session(server, token)
    with server.client(token, cookies={"ferrule_session": "stale"}) as http:
        assert http.delete("/v1/session").status_code == 404
    with server.client(token, cookies={"ferrule_session": session}) as http:
        assert http.delete("/v1/session").status_code == 200
        assert http.get("/v1/me").status_code == 200
    with server.client(cookies={"ferrule_session": session}) as page:
        assert page.get("/v1/me").status_code == 401


def test_sessions_share_the_limits_of_their_token(server: RunningServer, admin: httpx.Client):
    token = create(admin, "paged", calls_per_minute=2)
    answers = []
    for _ in range(3):
        with server.client(cookies={"ferrule_session": open_session(server, token)}) as page:
            answers.append(call(page, "add", {"a": 1, "b": 2}))
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[2].headers["retry-after"]) > 0


def test_each_call_of_a_batch_counts(server: RunningServer, admin: httpx.Client):
    calls = [{"tool": "add", "arguments": {"a": n, "b": 1}} for n in range(3)]
    with server.client(create(admin, "batcher", calls_per_minute=4, max_concurrent=2)) as http:
        results = http.post("/v1/calls", json={"calls": calls}).json()["results"]
        assert [result["output"] for result in results] == [{"result": n + 1} for n in range(3)]
        refused = http.post("/v1/calls", json={"calls": calls})
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
        assert add(http) == 200
        assert http.post("/v1/calls", json={"calls": calls * 2}).status_code == 429


def test_calls_over_mcp_count(server: RunningServer, admin: httpx.Client):
    request = mcp_call("add", {"a": 1, "b": 2})
    with server.client(create(admin, "mcp-limited", calls_per_minute=1)) as http:
        results = [http.post("/mcp", **request).json()["result"] for _ in range(2)]
    assert not results[0]["isError"]
    assert results[1]["isError"] and "1 calls a minute" in results[1]["content"][0]["text"]


def test_a_call_over_mcp_that_was_approved_is_made_once_by_any_server(
    project: Project, server: RunningServer, admin: httpx.Client
):
    request = mcp_call("wipe", {"path": "elsewhere"})

    def wipe(http: httpx.Client) -> str:
        return str(http.post("/mcp", **request).json()["result"]["content"][0]["text"])

    token = create(admin, "mcp-wiper")
    with server.client(token) as http, project.serve() as second, second.client(token) as other:
        assert "a person must approve it" in wipe(http)
        requests = admin.get("/v1/approvals").json()["approvals"]
        [waiting] = [each for each in requests if each["arguments"] == {"path": "elsewhere"}]
        assert admin.post(f"/v1/approvals/{waiting['approval_id']}", json={"allowed": True}).status_code == 200
        assert wipe(other) == "wiped elsewhere"
        assert "a person must approve it" in wipe(http)


def test_an_admin_of_a_tenant_does_not_change_tools_of_all(server: RunningServer, admin: httpx.Client):
    with server.client(create(admin, "local-admin", roles=["admin"], tenant="t")) as http:
        assert http.patch("/v1/tools/fail", json={"enabled": False}).status_code == 403
    assert call(admin, "fail").status_code == 200


def test_a_token_does_not_create_one_that_may_do_more(server: RunningServer, admin: httpx.Client):
    limits = {"roles": ["admin"], "tools": ["add", "note"], "max_effect": "changing"}
    with server.client(create(admin, "small-admin", **limits)) as http:
        for grants in ({}, {"tools": ["add"]}, {"max_effect": "read_only"}, {"tools": ["*"], "max_effect": "changing"}):
            assert http.post("/v1/tokens", json={"name": "more", **grants}).status_code == 403
        fitting = {"name": "less", "tools": ["add"], "max_effect": "read_only"}
        assert http.post("/v1/tokens", json=fitting).status_code == 201


@pytest.mark.parametrize(("limit", "value"), [("calls_per_minute", 30), ("max_concurrent", 2)])
def test_a_token_does_not_create_one_without_its_own_limit(limit, value, server: RunningServer, admin: httpx.Client):
    with server.client(create(admin, f"admin-{limit}", roles=["admin"], **{limit: value})) as http:
        for grants in ({}, {limit: value + 1}):
            refusal = http.post("/v1/tokens", json={"name": "more", **grants})
            assert refusal.status_code == 403 and f"set {limit} to at most" in refusal.json()["detail"]
        assert http.post("/v1/tokens", json={"name": f"less-{limit}", limit: value // 2}).status_code == 201


def test_a_token_does_not_create_one_that_lives_longer(server: RunningServer, admin: httpx.Client):
    made = admin.post("/v1/tokens", json={"name": "admin-for-an-hour", "roles": ["admin"], "expires_in": 3600}).json()
    with server.client(made["token"]) as http:
        refusal = http.post("/v1/tokens", json={"name": "lasting"})
        assert refusal.status_code == 403 and "set expires_in" in refusal.json()["detail"]
        for name, seconds in {"equal": 3600, "longer": 1e9, "shorter": 600}.items():
            created = http.post("/v1/tokens", json={"name": f"{name}-expiring", "expires_in": seconds})
            assert created.status_code == 201 and created.json()["expires_at"] < made["expires_at"]


def test_a_session_creates_a_token_that_lives_as_long_as_its_own_may(server: RunningServer, admin_token: str):
    with server.client(admin_token) as http:
        cookie = http.post("/v1/session").headers["set-cookie"].partition(";")[0]
    with server.client(headers={"Cookie": cookie}) as http:
        created = http.post("/v1/tokens", json={"name": "lasting"}, headers={"Origin": server.url})
    assert created.status_code == 201 and created.json()["expires_at"] is None


def test_a_stream_ends_with_its_token(server: RunningServer, admin: httpx.Client):
    with (
        server.client(create(admin, "listener", roles=["viewer"])) as http,
        http.stream("GET", "/v1/events") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        assert admin.delete("/v1/tokens/listener").status_code == 200
        until_sync(lambda: http.get("/v1/me").status_code == 401)
        with server.client(create(admin, "worker")) as other:
            assert add(other) == 200
        assert not [line for line in lines if line.startswith("data: ") and "token:worker" in line]


def test_a_client_is_not_told_of_changes_of_tools_that_it_may_not_use(
    project: Project, server: RunningServer, admin: httpx.Client
):
    path = project.folder / "tools" / "later.py"
    names = ("a_hidden", "later_tool")
    code = "".join(f'@tool\ndef {name}() -> str:\n    """Do it."""\n    return ""\n' for name in names)
    with (
        server.client(create(admin, "watcher", roles=["viewer"], tools=["later_*"])) as http,
        http.stream("GET", "/v1/events") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        path.write_text(f"from ferrule import tool\n{code}")
        received = [next(line for line in lines if '"tool_added"' in line)]
        path.unlink()
        received.append(next(line for line in lines if '"tool_removed"' in line))
    assert all("later_tool" in line for line in received), received


def test_a_client_gets_no_events_of_calls_of_others(server: RunningServer, admin: httpx.Client):
    with (
        server.client(create(admin, "onlooker")) as http,
        server.client(create(admin, "busy")) as busy,
        http.stream("GET", "/v1/events") as stream,
    ):
        lines = stream.iter_lines()
        received: list[str] = []
        assert next(lines) == ": connected"
        assert call(busy, "wipe", {"path": "hidden"}).status_code == 428
        assert add(busy) == add(http) == 200
        while not received or "after_tool_call" not in received[-1]:
            received.append(next(lines))
        while not received[-1].startswith("data"):
            received.append(next(lines))
    assert '"token:onlooker"' in received[-1] and not [line for line in received if "wipe" in line or "busy" in line]


@pytest.mark.parametrize("headers", [{"Host": "["}, {"Origin": "http://["}, {"Host": "[::1"}, {"Origin": "null"}])
def test_addresses_that_are_not_valid_are_refused(admin: httpx.Client, headers: dict[str, str]):
    assert admin.post("/v1/tools/add/call", json={}, headers=headers).status_code in (400, 403, 421)


def test_a_page_after_an_unknown_record_is_not_found(admin: httpx.Client):
    assert admin.get("/v1/calls", params={"after": "none"}).status_code == 404


def test_a_result_with_a_large_number_is_sent(admin: httpx.Client):
    headers = {"Idempotency-Key": "large"}
    for _ in range(2):
        body = {"arguments": {"a": 1e30, "b": 1}}
        response = admin.post("/v1/tools/add/call", json=body, headers=headers)
        assert response.json()["output"] == {"result": int(1e30) + 1}
    exact = admin.post("/v1/tools/add/call", json={"arguments": {"a": 10**30 + 7, "b": 1}})
    assert exact.json()["output"] == {"result": 10**30 + 8}


def test_a_call_that_was_not_made_can_be_repeated_with_its_key(project: Project, admin: httpx.Client):
    headers = {"Idempotency-Key": "approved-later"}
    body: dict[str, Any] = {"arguments": {"path": "kept"}}
    refused = admin.post("/v1/tools/wipe/call", json=body, headers=headers)
    assert refused.status_code == 428
    approval_id = refused.json()["metadata"]["approval_id"]
    assert admin.post(f"/v1/approvals/{approval_id}", json={"allowed": True}).status_code == 200
    made = admin.post("/v1/tools/wipe/call", json={**body, "approval_id": approval_id}, headers=headers)
    assert made.status_code == 200 and made.json()["output"] == {"result": "wiped kept"}


def test_a_streamed_request_with_a_key_is_refused(admin: httpx.Client):
    for path, body in (
        ("/v1/tools/add/call", {"arguments": {"a": 1, "b": 2}}),
        ("/v1/ask", {"question": "what is 1 + 1?"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "what is 1 + 1?"}]}),
        ("/v1/responses", {"input": "what is 1 + 1?"}),
    ):
        refused = admin.post(path, json={**body, "stream": True}, headers={"Idempotency-Key": "streamed"})
        assert refused.status_code == 400 and "Idempotency-Key" in refused.json()["detail"]


def test_requests_of_others_do_not_hide_those_of_a_tenant(server: RunningServer, admin: httpx.Client):
    with server.client(create(admin, "early", tenant="early")) as early:
        approval_id = call(early, "wipe", {"path": "early"}).json()["metadata"]["approval_id"]
        assert call(admin, "wipe", {"path": "late"}).status_code == 428
        (request,) = early.get("/v1/approvals", params={"limit": 1}).json()["approvals"]
        assert request["approval_id"] == approval_id


def test_a_server_whose_tokens_have_ended_is_not_open(tmp_path: Path):
    project = Project(tmp_path)
    project.create_token("only")
    assert project.ferrule("tokens", "revoke", "only").returncode == 0
    with project.serve() as server, server.client() as http:
        assert http.get("/v1/tools").status_code == 401


async def test_a_second_request_for_a_run_in_progress_does_not_hide_the_first():
    from ferrule.server.call_limits import CallLimits
    from ferrule.server.services import Services
    from ferrule.server.tokens import Tokens

    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False, tools_directory="none")) as library:
        store = library.engine.store
        services = Services(library, Tokens(store), CallLimits(store, library.engine.concurrency.config))
        first = asyncio.ensure_future(asyncio.Event().wait())
        services.track_run("run", first)
        second = asyncio.ensure_future(asyncio.sleep(0))
        services.track_run("run", second)
        await second
        assert services.cancel_run("run")
        await asyncio.wait({first})
        assert first.cancelled() and not services.cancel_run("run")


# Tokens and roles


GRANTS: dict[str, dict[str, Any]] = {
    "viewer": {"roles": ["viewer"]},
    "caller": {},
    "approver": {"roles": ["approver"]},
    "adder": {"tools": ["add"]},
    "reader": {"max_effect": "read_only"},
    "acme": {"tenant": "acme", "roles": ["caller", "approver"]},
    "globex": {"tenant": "globex", "roles": ["admin"]},
}


@pytest.fixture(scope="module")
def tokens(server: RunningServer, admin_token: str) -> dict[str, str]:
    with server.client(admin_token) as http:
        created = {name: http.post("/v1/tokens", json={"name": name, **grants}) for name, grants in GRANTS.items()}
    return {"admin": admin_token, **{name: response.json()["token"] for name, response in created.items()}}


ROUTES = [
    ("GET", "/v1/tools"),
    ("GET", "/v1/tools/add"),
    ("POST", "/v1/tools/add/call"),
    ("POST", "/v1/calls"),
    ("GET", "/v1/calls"),
    ("POST", "/v1/ask"),
    ("GET", "/v1/runs"),
    ("GET", "/v1/approvals"),
    ("POST", "/v1/approvals/x"),
    ("GET", "/v1/stats"),
    ("GET", "/v1/events"),
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("POST", "/v1/session"),
    ("POST", "/mcp"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
]


def test_nothing_but_health_is_answered_without_a_valid_token(server: RunningServer):
    answered = []
    with server.client() as http:
        assert http.get("/healthz").status_code == 200
        for method, path in ROUTES:
            for header in (None, "Bearer frl_wrong", "Basic YTpi", "Bearer"):
                headers = {} if header is None else {"Authorization": header}
                response = http.request(method, path, headers=headers, json={} if method == "POST" else None)
                expected = 'Bearer error="invalid_token"' if header == "Bearer frl_wrong" else "Bearer"
                if (response.status_code, response.headers.get("www-authenticate")) != (401, expected):
                    answered.append((method, path, header, response.text))
    assert answered == []


def test_the_store_has_no_token_in_clear(project: Project, tokens: dict[str, str]):
    content = b"".join(path.read_bytes() for path in project.folder.glob("calls.db*") if path.is_file())
    assert not any(token.encode() in content for token in tokens.values()) and b"approver" in content


def test_roles_decide_what_a_token_may_do(server: RunningServer, tokens: dict[str, str]):
    allowed = {}
    for name in ("viewer", "caller", "approver", "admin"):
        with server.client(tokens[name]) as http:
            allowed[name] = (
                http.get("/v1/tools").status_code == 200,
                call(http, "add", {"a": 1, "b": 2}).status_code == 200,
                http.post("/v1/approvals/none", json={"allowed": True}).status_code == 404,
                http.get("/v1/tokens").status_code == 200,
            )
    assert allowed == {
        "viewer": (True, False, False, False),
        "caller": (True, True, False, False),
        "approver": (True, False, True, False),
        "admin": (True, True, True, True),
    }


def test_a_token_sees_and_calls_only_its_tools(server: RunningServer, tokens: dict[str, str]):
    with server.client(tokens["adder"]) as http:
        assert [tool["tool_id"] for tool in http.get("/v1/tools").json()["tools"]] == ["add"]
        assert http.get("/v1/tools/note").status_code == 404
        refused = call(http, "note", {"text": "x"})
        assert refused.status_code in (403, 404)
        assert call(http, "add", {"a": 1, "b": 2}).json()["output"] == {"result": 3}
        assert "note" not in http.post("/v1/ask", json={"question": "which tools do you have?"}).json()["answer"]


def test_a_token_cannot_do_more_than_its_tier(server: RunningServer, tokens: dict[str, str], project: Project):
    with server.client(tokens["reader"]) as http:
        assert call(http, "wipe", {"path": "tier"}).status_code in (403, 404)
        assert call(http, "note", {"text": "tier"}).status_code in (403, 404)
        assert call(http, "add", {"a": 1, "b": 2}).status_code == 200
    assert not (project.folder / "notes.txt").exists() or "tier" not in (project.folder / "notes.txt").read_text()


def test_tenants_do_not_see_each_other(server: RunningServer, tokens: dict[str, str]):
    with server.client(tokens["acme"]) as acme, server.client(tokens["globex"]) as globex:
        made = call(acme, "add", {"a": 1, "b": 1}).json()
        answer = acme.post("/v1/ask", json={"question": "what is 3 * 3?", "conversation_id": "talk"}).json()
        assert acme.get(f"/v1/calls/{made['call_id']}").status_code == 200
        assert globex.get(f"/v1/calls/{made['call_id']}").status_code == 404
        assert made["call_id"] not in globex.get("/v1/calls").text
        assert globex.get(f"/v1/runs/{answer['run_id']}").status_code == 404
        assert globex.post(f"/v1/runs/{answer['run_id']}/resume", json={}).status_code == 404
        assert globex.get("/v1/runs").json() == {"runs": []}
        assert [run["run_id"] for run in acme.get("/v1/runs").json()["runs"]] == [answer["run_id"]]
        assert acme.get("/v1/conversations/talk").json()["turns"]
        assert globex.get("/v1/conversations/talk").json()["turns"] == []
        assert globex.get("/v1/stats").json()["total"] == 0
        assert globex.post("/v1/tokens", json={"name": "thief", "tenant": "acme"}).status_code == 403
        assert [t["name"] for t in globex.get("/v1/tokens").json()["tokens"]] == ["globex"]
    with server.client(tokens["admin"]) as admin:
        record = admin.get(f"/v1/calls/{made['call_id']}").json()
        assert record["principal"] == "token:acme" and record["tenant"] == "acme"


def test_a_session_has_the_rights_of_its_token_until_it_ends(server: RunningServer, tokens: dict[str, str]):
    with server.client(tokens["viewer"]) as http:
        cookie = http.post("/v1/session").headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    session = cookie.partition(";")[0].partition("=")[2]
    with server.client(cookies={"ferrule_session": session}) as page:
        assert page.get("/v1/tools").status_code == 200
        assert call(page, "add", {"a": 1, "b": 2}).status_code == 403
        evil = {"Origin": "https://evil.example"}
        assert page.delete("/v1/session", headers=evil).status_code == 403
        assert page.delete("/v1/session").status_code == 200
        assert page.get("/v1/tools").status_code == 401


def test_a_revoked_token_and_its_sessions_are_refused(server: RunningServer, project: Project):
    token = project.create_token("short")
    first = open_session(server, token)
    sessions = [{"ferrule_session": each} for each in (first, open_session(server, session=first))]
    with (
        server.client(token) as http,
        server.client(cookies=sessions[0]) as page,
        server.client(cookies=sessions[1]) as page_of_page,
    ):
        clients = (http, page, page_of_page)
        assert [client.get("/v1/me").status_code for client in clients] == [200] * 3
        assert project.ferrule("tokens", "revoke", "short").returncode == 0
        until_sync(lambda: all(client.get("/v1/me").status_code == 401 for client in clients))
    assert project.ferrule("tokens", "revoke", "short").returncode == 2


def test_an_admin_creates_and_revokes_tokens(server: RunningServer, tokens: dict[str, str]):
    with server.client(tokens["admin"]) as http:
        created = http.post("/v1/tokens", json={"name": "made", "roles": ["viewer"], "expires_in": 3600})
        assert created.status_code == 201
        with server.client(created.json()["token"]) as viewer:
            assert viewer.get("/v1/me").json()["permissions"] == ["read"]
        assert http.post("/v1/tokens", json={"name": "made"}).status_code == 409
        assert http.post("/v1/tokens", json={"name": "x", "roles": ["king"]}).status_code == 422
        assert created.json()["token"] not in http.get("/v1/tokens").text
        assert http.delete("/v1/tokens/made").status_code == 200
        assert http.delete("/v1/tokens/made").status_code == 404


async def test_mcp_sessions_belong_to_their_token(server: RunningServer, tokens: dict[str, str]):
    from mcp.client import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    headers = {"Authorization": f"Bearer {tokens['adder']}"}
    async with (
        create_mcp_http_client(headers=headers) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http)) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["add"]
        assert (await client.call_tool("note", {"text": "x"})).is_error


def test_a_token_as_json_comes_without_words_for_a_person(tmp_path: Path):
    project = Project(tmp_path)
    for command in ("new", "rotate"):
        said = project.ferrule("tokens", command, "a", "--json")
        assert (json.loads(said.stdout)["name"], said.stderr) == ("a", "")
    assert "not shown again" in project.ferrule("tokens", "rotate", "a").stderr


def test_the_tokens_command(project: Project, tokens: dict[str, str]):
    project.create_token("slow", "--rate", "7.5", "--concurrent", "3", "--tenant", "acme", "--tool", "add")
    listed = project.ferrule("tokens", "list")
    assert "approver" in listed.stdout and "frl_" not in listed.stdout
    (row,) = [line.split("\t") for line in listed.stdout.splitlines() if line.startswith("slow\t")]
    assert row[1:7] == ["caller", "add", "destructive", "acme", "7.5", "3"], row
    wrong = project.ferrule("tokens", "new", "a b")
    assert wrong.returncode == 2 and "letters" in wrong.stderr
    assert project.ferrule("tokens", "new", "x", "--role", "king").returncode == 2
    assert project.ferrule("tokens", "new", "x", "--expires", "soon").returncode == 2
    assert project.ferrule("tokens", "new", "admin").returncode == 2


def test_another_address_needs_a_token(tmp_path):
    (tmp_path / "open").mkdir()
    served = Project(tmp_path / "open").ferrule("serve", "--host", "0.0.0.0")
    assert served.returncode == 2 and "ferrule tokens new" in served.stderr
