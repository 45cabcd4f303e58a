"""Tokens: who may do what, and that nothing is answered without one."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.serving import Project, RunningServer
from tests.support.waiting import until_sync

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def admin_token(project: Project) -> str:
    return project.create_token("admin", "--role", "admin")


@pytest.fixture(scope="module")
def server(project: Project, admin_token: str) -> Iterator[RunningServer]:
    with project.serve() as server:
        yield server


GRANTS: dict[str, dict[str, Any]] = {
    "viewer": {"roles": ["viewer"]},
    "caller": {},
    "approver": {"roles": ["approver"]},
    "adder": {"tools": ["add"]},
    "reader": {"max_effect": "read_only"},
    "limited": {"calls_per_minute": 2},
    "acme": {"tenant": "acme", "roles": ["caller", "approver"]},
    "globex": {"tenant": "globex", "roles": ["admin"]},
}


@pytest.fixture(scope="module")
def tokens(server: RunningServer, admin_token: str) -> dict[str, str]:
    with server.client(admin_token) as http:
        created = {name: http.post("/v1/tokens", json={"name": name, **grants}) for name, grants in GRANTS.items()}
    return {"admin": admin_token, **{name: response.json()["token"] for name, response in created.items()}}


def call(http: httpx.Client, tool: str, arguments: dict[str, Any] | None = None, **more: object) -> httpx.Response:
    return http.post(f"/v1/tools/{tool}/call", json={"arguments": arguments or {}, **more})


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


def test_a_rate_limit_answers_429_with_a_time(server: RunningServer, tokens: dict[str, str]):
    with server.client(tokens["limited"]) as http:
        answers = [call(http, "add", {"a": 1, "b": 2}) for _ in range(4)]
    assert [a.status_code for a in answers] == [200, 200, 429, 429]
    assert int(answers[2].headers["retry-after"]) > 0


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
    with server.client(token) as http:
        assert http.get("/v1/tools").status_code == 200
        cookie = http.post("/v1/session").headers["set-cookie"].partition(";")[0].partition("=")[2]
        with server.client(cookies={"ferrule_session": cookie}) as page:
            assert page.get("/v1/tools").status_code == 200
            assert project.ferrule("tokens", "revoke", "short").returncode == 0
            until_sync(lambda: http.get("/v1/tools").status_code == 401)
            until_sync(lambda: page.get("/v1/tools").status_code == 401)
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
