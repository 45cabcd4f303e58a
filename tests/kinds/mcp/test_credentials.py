"""What servers elsewhere get in the name of users: logins by OAuth, and credentials by name."""

import asyncio
import json
import os
import re
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ferrule import Principal, ToolEngine, ToolEngineConfig, ToolExecutionContext
from ferrule.core.content import REDACTED
from ferrule.errors import SetupError, SpecError
from ferrule.kinds.mcp.config import read_server_config
from ferrule.store import ToolKnowledgeStore
from ferrule.store.credentials import KEY_FILE_VARIABLE, KEY_VARIABLE, read_encryption_keys
from tests.kinds.mcp.protected_server import ProtectedServer, protected_server
from tests.support.processes import PythonProcess, run_python

pytest.importorskip("cryptography", reason="pip install 'ferrule[server]'")


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture
def server() -> Iterator[ProtectedServer]:
    with protected_server() as running:
        yield running


class Browser:
    """Follows the redirects of a login immediately."""

    redirect_uri = "http://127.0.0.1:9/callback"

    async def show(self, url: str, /) -> str:
        async with httpx.AsyncClient() as client:
            return (await client.get(url)).headers["location"]


@asynccontextmanager
async def engine_with(folder: Path, entry: dict[str, Any], *, browser: bool = False) -> AsyncIterator[ToolEngine]:
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"server": entry}}))
    config = ToolEngineConfig(tools_directory="none", builtin_tools=False, mcp_file=str(folder / "mcp.json"))
    engine = ToolEngine(config, store=f"sqlite:///{folder / 'calls.db'}")
    engine.mcp.login_handler = Browser() if browser else None
    async with engine:
        await engine.wait_for_discovery()
        yield engine


def list_actions(engine: ToolEngine) -> list[Any]:
    [tool] = engine.registry
    return list(tool.spec.capabilities)


async def show_header(engine: ToolEngine, name: str, account: str = "") -> Any:
    context = ToolExecutionContext(principal=Principal(kind="token", name="any", account=account))
    return await engine.execute("server", {"name": name}, context, action="show_header")


# Logins


@pytest.mark.integration
async def test_a_login_is_stored_encrypted_and_used_by_the_next_process(tmp_path: Path, server: ProtectedServer):
    async with engine_with(tmp_path, {"url": server.url}) as engine:
        assert not list_actions(engine)  # nobody has logged in
    assert server.logins == 0
    async with engine_with(tmp_path, {"url": server.url}, browser=True) as engine:
        assert (await show_header(engine, "authorization")).is_success
    assert server.logins == 1
    content = b"".join(path.read_bytes() for path in tmp_path.glob("calls.db*") if path.is_file())
    assert b"access-" not in content and b"refresh-" not in content
    async with engine_with(tmp_path, {"url": server.url}) as engine:
        result = await show_header(engine, "authorization")
        assert result.is_success and "access-" not in result.text  # results do not show the token
    assert server.logins == 1


@pytest.mark.integration
async def test_a_token_that_has_expired_is_refreshed_once_by_several_servers(tmp_path: Path, server: ProtectedServer):
    server.lifetime = 20  # which is too short to be used
    async with engine_with(tmp_path, {"url": server.url}, browser=True) as engine:
        assert list_actions(engine)
    server.lifetime, server.refreshes = 3_600, 0
    async with engine_with(tmp_path, {"url": server.url}) as one, engine_with(tmp_path, {"url": server.url}) as other:
        results = await asyncio.gather(*(show_header(each, "accept") for each in (one, other, one, other)))
    assert [result.error for result in results] == [None] * 4
    assert server.refreshes == 1 and server.logins == 1


@pytest.mark.integration
async def test_a_token_that_is_refused_is_refreshed_and_the_request_repeated(tmp_path: Path, server: ProtectedServer):
    async with engine_with(tmp_path, {"url": server.url}, browser=True):
        pass
    async with engine_with(tmp_path, {"url": server.url}) as engine:
        assert (await show_header(engine, "accept")).is_success
        server.tokens.clear()  # the server has restarted
        assert (await show_header(engine, "accept")).is_success
        server.tokens.clear()
        server.refresh_tokens.clear()  # the user has withdrawn everything
        result = await show_header(engine, "accept")
        assert not result.is_success and "401" in result.error
    assert server.logins == 1


@pytest.mark.integration
async def test_a_refusal_after_a_new_token_is_the_answer_to_the_call(tmp_path: Path, server: ProtectedServer):
    async with engine_with(tmp_path, {"url": server.url}, browser=True) as engine:
        assert (await show_header(engine, "accept")).is_success
        server.tokens.clear()  # the next request is refused, and repeated with a new token
        server.refusal = {"code": -32602, "message": "no such header"}
        result = await show_header(engine, "accept")
    assert "no such header" in (result.error or "") and "outcome" not in result.metadata


@pytest.mark.integration
async def test_a_token_is_not_sent_to_another_address(tmp_path: Path, server: ProtectedServer):
    async with engine_with(tmp_path, {"url": server.url}, browser=True):
        pass
    with protected_server() as other:
        async with engine_with(tmp_path, {"url": other.url}) as engine:
            assert not list_actions(engine)
        assert all("authorization" not in headers for headers in other.seen_headers)


@pytest.mark.integration
def test_a_person_logs_in_with_the_command(tmp_path: Path, server: ProtectedServer):
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n')
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"server": {"url": server.url}}}))
    command = ["-m", "ferrule", "--config", str(tmp_path / "ferrule.toml"), "mcp"]
    environment = {**os.environ, "BROWSER": "true"}  # a program that does nothing
    reading, writing = os.pipe()
    with open(reading) as messages, (tmp_path / "output").open("w+") as output, open(os.devnull) as nothing:
        with open(writing, "wb") as errors:
            process = PythonProcess(
                *command, "login", "server", cwd=tmp_path, env=environment, stdin=nothing, stdout=output, stderr=errors
            )
        try:
            address = next(match[1] for line in messages if (match := re.search(r"log in here: (\S+)", line)))
            redirect = address.partition("redirect_uri=")[2].partition("&")[0]
            callback = httpx.URL("?u=" + redirect).params["u"]
            assert httpx.get(callback, params={"code": "stolen", "state": "guessed"}).status_code == 400
            assert httpx.get(address, follow_redirects=True, timeout=60).status_code == 200
            assert process.wait(120) == 0, messages.read()
        finally:
            process.kill()
        output.seek(0)
        assert "1 actions" in output.read()
    assert [run_python(*command, "logout", "server", cwd=tmp_path).returncode for _ in range(2)] == [0, 3]


# Credentials of callers


@pytest.mark.integration
async def test_each_caller_has_a_connection_with_its_own_credential(tmp_path: Path, server: ProtectedServer):
    server.needs_token = False
    entry = {"url": server.url, "headers": {"X-Api-Key": "key ${credential:api}"}}
    async with ToolKnowledgeStore(f"sqlite:///{tmp_path / 'calls.db'}") as store:
        for account, secret in (("", "of-the-owner"), ("token:/ada", "adas-secret"), ("token:/bob", "bobs-secret")):
            await store.credentials.set(account, "api", secret)
    async with engine_with(tmp_path, entry) as engine:
        results = await asyncio.gather(
            *(show_header(engine, "x-api-key", account) for account in ("token:/ada", "token:/bob", ""))
        )
        assert [result.text for result in results] == [REDACTED] * 3  # which nobody is shown
        sent = {headers["x-api-key"] for headers in server.seen_headers}
        assert sent == {"key of-the-owner", "key adas-secret", "key bobs-secret"}
        missing = await show_header(engine, "x-api-key", "token:acme/ada")  # another tenant
        assert not missing.is_success and "ferrule credentials set api" in missing.error
        assert {headers["x-api-key"] for headers in server.seen_headers} == sent


@pytest.mark.integration
async def test_a_changed_credential_is_used_and_a_deleted_one_is_not(
    tmp_path: Path, server: ProtectedServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ferrule.kinds.mcp.executor.CREDENTIALS_INTERVAL", 0.0)
    server.needs_token = False
    entry = {"url": server.url, "headers": {"X-Api-Key": "${credential:api}"}}
    async with ToolKnowledgeStore(f"sqlite:///{tmp_path / 'calls.db'}") as store:
        await store.credentials.set("", "api", "of-the-owner")
        await store.credentials.set("token:/ada", "api", "first-secret")
        async with engine_with(tmp_path, entry) as engine:
            assert (await show_header(engine, "x-api-key", "token:/ada")).is_success
            await store.credentials.set("token:/ada", "api", "second-secret")  # by another process
            assert (await show_header(engine, "x-api-key", "token:/ada")).is_success
            assert server.seen_headers[-1]["x-api-key"] == "second-secret"
            await store.credentials.delete("token:/ada", "api")
            assert not (await show_header(engine, "x-api-key", "token:/ada")).is_success


@pytest.mark.integration
async def test_a_credential_reads_no_variables(
    tmp_path: Path, server: ProtectedServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DEPLOY_KEY", "secret-of-the-server")
    server.needs_token = False
    entry = {"url": server.url, "headers": {"X-Api-Key": "${credential:api}"}}
    async with ToolKnowledgeStore(f"sqlite:///{tmp_path / 'calls.db'}") as store:
        await store.credentials.set("", "api", "${DEPLOY_KEY} ${credential:api}")
    async with engine_with(tmp_path, entry) as engine:
        assert (await show_header(engine, "x-api-key")).is_success
    assert server.seen_headers[-1]["x-api-key"] == "${DEPLOY_KEY} ${credential:api}"


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "${credential:program}"},
        {"command": "sh", "args": ["-c", "${credential:program}"]},
        {"url": "https://${credential:host}/mcp"},
        {"url": "https://example.com", "oauth": {"clientId": "x", "issuer": "https://${credential:host}"}},
    ],
)
def test_a_caller_does_not_choose_programs_or_addresses(entry: dict[str, Any]):
    with pytest.raises(SpecError, match="headers and variables"):
        read_server_config(entry)


# Encryption


async def test_a_secret_cannot_be_moved_to_another_account(tmp_path: Path):
    path = tmp_path / "calls.db"
    async with ToolKnowledgeStore(f"sqlite:///{path}") as store:
        await store.credentials.set("token:/ada", "api", "adas-secret")
        assert await store.credentials.get("token:/ada", "api") == "adas-secret"
        assert await store.credentials.get("token:/bob", "api") is None
    with sqlite3.connect(path) as database:
        database.execute("UPDATE credentials SET account = 'token:/bob'")
    async with ToolKnowledgeStore(f"sqlite:///{path}") as store:
        with pytest.raises(SetupError, match="changed in the database"):
            await store.credentials.get("token:/bob", "api")


async def test_keys_are_replaced_by_naming_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "calls.db"
    first, second = "A" * 43 + "=", "B" * 42 + "A="
    monkeypatch.setenv(KEY_VARIABLE, first)
    async with ToolKnowledgeStore(f"sqlite:///{path}") as store:
        await store.credentials.set("", "api", "secret")
    monkeypatch.setenv(KEY_VARIABLE, second)
    async with ToolKnowledgeStore(f"sqlite:///{path}") as store:
        with pytest.raises(SetupError, match="another key"):
            await store.credentials.get("", "api")
    monkeypatch.setenv(KEY_VARIABLE, f"{second},{first}")
    async with ToolKnowledgeStore(f"sqlite:///{path}") as store:
        assert await store.credentials.get("", "api") == "secret"
        await store.credentials.set("", "api", "secret")
    monkeypatch.setenv(KEY_VARIABLE, second)
    async with ToolKnowledgeStore(f"sqlite:///{path}") as store:
        assert await store.credentials.get("", "api") == "secret"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path):
    path = tmp_path / "key"
    path.write_text("A" * 43 + "=")
    path.chmod(0o644)
    with pytest.raises(SetupError, match="chmod 600"):
        read_encryption_keys({KEY_FILE_VARIABLE: str(path)})
    path.chmod(0o600)
    assert read_encryption_keys({KEY_FILE_VARIABLE: str(path)})


def test_the_key_file_is_created_for_its_user_alone(tmp_path: Path):
    environ = {"FERRULE_CONFIG_HOME": str(tmp_path)}
    with pytest.raises(SetupError, match="There is no key"):
        read_encryption_keys(environ)
    token = read_encryption_keys(environ, may_create=True).encrypt(b"secret")
    assert (tmp_path / "encryption.key").stat().st_mode & 0o777 == 0o600
    assert read_encryption_keys(environ).decrypt(token) == b"secret"


@pytest.mark.parametrize("key", ["short", "", "no base64 at all, really: ??????????????????????????????????????????"])
def test_a_key_that_is_none_is_refused(key: str, tmp_path: Path):
    with pytest.raises(SetupError, match="openssl rand -base64 32"):
        read_encryption_keys({KEY_VARIABLE: key, "FERRULE_CONFIG_HOME": str(tmp_path)})
