"""What MCP servers behind `ferrule serve` get of its clients: permitted headers and credentials, but no tokens."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from ferrule.errors import SpecError
from ferrule.kinds.mcp.config import read_server_config
from tests.kinds.mcp.protected_server import ProtectedServer, protected_server
from tests.server.serving import Project, RunningServer, mcp_call

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def upstream() -> Iterator[ProtectedServer]:
    with protected_server() as running:
        running.needs_token = False
        yield running


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, upstream: ProtectedServer) -> Project:
    folder = tmp_path_factory.mktemp("upstream")
    project = Project(folder)
    project.environment = {"FERRULE_CONFIG_HOME": str(folder / "settings"), "XDG_CACHE_HOME": str(folder / "cache")}
    entry = {
        "url": upstream.url,
        "headers": {"X-Api-Key": "${credential:api}"},
        "passHeaders": ["X-Request-Id"],
    }
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"far": entry}}))
    return project


@pytest.fixture(scope="module")
def tokens(project: Project) -> dict[str, str]:
    stored = project.ferrule("credentials", "set", "api", stdin="of-the-owner\n", env=environment_of(project))
    assert stored.returncode == 0, stored.stderr
    names = {"ada": ("--role", "caller"), "bob": ("--role", "caller"), "eve": ("--role", "viewer")}
    return {name: project.create_token(name, *options) for name, options in names.items()}


def environment_of(project: Project) -> dict[str, str]:
    return {**os.environ, **project.environment}


@pytest.fixture(scope="module")
def server(project: Project, tokens: dict[str, str]) -> Iterator[RunningServer]:
    with project.serve() as running:
        yield running


def call_over_mcp(server: RunningServer, token: str, **headers: str) -> Any:
    request = mcp_call("far__show_header", {"name": "accept"})
    with server.client(token) as http:
        return http.post("/mcp", json=request["json"], headers={**request["headers"], **headers}).json()["result"]


def test_each_client_uses_its_own_credential(server: RunningServer, tokens: dict[str, str], upstream: ProtectedServer):
    missing = call_over_mcp(server, tokens["ada"])
    assert missing["isError"] and "/v1/credentials/api" in missing["content"][0]["text"]
    for name in ("ada", "bob"):
        with server.client(tokens[name]) as http:
            assert http.put("/v1/credentials/api", json={"value": f"secret-of-{name}"}).status_code == 200
            [stored] = http.get("/v1/credentials").json()["credentials"]
            assert stored.keys() == {"name", "updated_at"}
    upstream.seen_headers.clear()
    for name in ("ada", "bob"):
        assert not call_over_mcp(server, tokens[name]).get("isError")
        assert upstream.seen_headers[-1]["x-api-key"] == f"secret-of-{name}"
        with server.client(tokens[name]) as http:
            called = http.post("/v1/tools/far/call", json={"arguments": {"name": "accept"}}).json()
            assert called["is_success"]
            assert upstream.seen_headers[-1]["x-api-key"] == f"secret-of-{name}"


async def test_resources_are_read_with_the_credential_of_the_reader(
    server: RunningServer, tokens: dict[str, str], upstream: ProtectedServer
):
    with server.client(tokens["bob"]) as http:
        assert http.put("/v1/credentials/api", json={"value": "secret-of-bob"}).status_code == 200
    headers = {"Authorization": f"Bearer {tokens['bob']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http_client,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http_client), mode="2026-07-28") as client,
    ):
        read = await client.read_resource("header://x-api-key")
    assert upstream.seen_headers[-1]["x-api-key"] == "secret-of-bob"
    assert "secret-of-bob" not in str(read)


def test_only_permitted_headers_are_passed_on(server: RunningServer, tokens: dict[str, str], upstream: ProtectedServer):
    with server.client(tokens["ada"]) as http:
        assert http.put("/v1/credentials/api", json={"value": "secret-of-ada"}).status_code == 200
    upstream.seen_headers.clear()
    result = call_over_mcp(server, tokens["ada"], **{"X-Request-Id": "r-1", "X-Other": "o", "Cookie": "a=b"})
    assert not result.get("isError")
    last = upstream.seen_headers[-1]
    assert last["x-request-id"] == "r-1"
    for headers in upstream.seen_headers:
        assert not {"authorization", "cookie", "x-other"} & headers.keys()
        assert tokens["ada"] not in str(headers)


@pytest.mark.parametrize("name", ["Authorization", "cookie", "Mcp-Session-Id", "X-Forwarded-For", "Host", "a b"])
def test_headers_that_prove_who_a_client_is_cannot_be_passed_on(name: str):
    with pytest.raises(SpecError, match="passHeaders"):
        read_server_config({"url": "https://example.com/mcp", "passHeaders": [name]})


def test_credentials_are_private_and_need_the_right_to_call(server: RunningServer, tokens: dict[str, str]):
    with server.client(tokens["eve"]) as http:
        assert http.get("/v1/credentials").status_code == 403
        assert http.put("/v1/credentials/api", json={"value": "x"}).status_code == 403
    with server.client(tokens["ada"]) as http:
        assert http.put("/v1/credentials/mine", json={"value": "secret"}).status_code == 200
        for body in (
            {"value": ""},
            {"value": "two\r\nlines"},
            {"value": 1},
            {},
            {"value": "x", "account": "token:/bob"},
        ):
            assert http.put("/v1/credentials/mine", json=body).status_code == 422
        for name in ("mcp-login:far", "..", "%00"):
            assert http.put(f"/v1/credentials/{name}", json={"value": "x"}).status_code in (404, 405, 422)
    with server.client(tokens["bob"]) as http:
        assert http.delete("/v1/credentials/mine").status_code == 404
        assert "mine" not in http.get("/v1/credentials").text
    with server.client(tokens["ada"]) as http:
        assert http.delete("/v1/credentials/mine").status_code == 200


def test_the_store_has_no_credential_in_clear(project: Project, server: RunningServer, tokens: dict[str, str]):
    with server.client(tokens["ada"]) as http:
        assert http.put("/v1/credentials/other", json={"value": "a-very-secret-text"}).status_code == 200
    for path in project.folder.glob("calls.db*"):
        if path.is_file():
            assert b"a-very-secret-text" not in path.read_bytes()
    assert "a-very-secret-text" not in server.log
    listed = project.ferrule("credentials", "list", "--json", env=environment_of(project))
    assert {"token:/ada"} <= {each["account"] for each in json.loads(listed.stdout)}
    assert Path(project.folder / "settings" / "encryption.key").stat().st_mode & 0o777 == 0o600
