"""Tokens of an external issuer."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import jwt
import pytest

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

from ferrule import SetupError
from ferrule.server.oauth import MIN_REFRESH_INTERVAL
from ferrule.server.tokens import Tokens
from ferrule.store import ToolKnowledgeStore
from tests.server.issuer import TOKEN_LIFETIME, Issuer, run_issuer
from tests.server.serving import Project, RunningServer

pytestmark = pytest.mark.integration

AUDIENCE = "https://tools.example.com/mcp"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with run_issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def server(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    rules = '[policy]\nrules = [{ verdict = "deny", tool = "note" }, { verdict = "allow", tool = "add" }]\n'
    oauth = f'[server.oauth]\nissuer = "{issuer.url}"\naudience = "{AUDIENCE}"\ntenant_claim = "org"\n'
    project = Project(tmp_path_factory.mktemp("project"), more=rules + oauth)
    with project.serve() as server:
        yield server


def call(server: RunningServer, token: str | None, tool: str = "add") -> httpx.Response:
    with server.client(token) as http:
        return http.post(
            f"/v1/tools/{tool}/call", json={"arguments": {"a": 1, "b": 2} if tool == "add" else {"text": "x"}}
        )


def test_a_client_finds_the_issuer(server: RunningServer, issuer: Issuer):
    refused = call(server, None)
    assert refused.status_code == 401
    challenge = refused.headers["www-authenticate"]
    assert 'resource_metadata="https://tools.example.com/.well-known/oauth-protected-resource"' in challenge
    for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"):
        with server.client() as http:
            document = http.get(path).json()
        assert document["resource"] == AUDIENCE and document["authorization_servers"] == [issuer.url]
        assert "ferrule:call" in document["scopes_supported"]


def test_scopes_give_roles_and_records_name_who_called_and_the_rule(server: RunningServer, issuer: Issuer):
    token = issuer.sign(scope="openid ferrule:call", org="acme")
    result = call(server, token).json()
    assert result["output"] == {"result": 3} and "rule" not in result["metadata"]
    assert call(server, token, "note").status_code in (403, 404)
    with server.client(token) as http:
        record = http.get(f"/v1/calls/{result['call_id']}").json()
        assert record["principal"] == f"token:ada@{issuer.host}" and record["tenant"] == "acme"
        assert "add" in record["metadata"]["rule"]
        assert http.get("/v1/tokens").status_code == 403
    reader = call(server, issuer.sign(scope="ferrule:read"))
    assert reader.status_code == 403 and "insufficient_scope" in reader.headers["www-authenticate"]
    assert call(server, issuer.sign(scope="other")).status_code == 403


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "https://other.example.com"},
        {"iss": "https://other.example.com"},
        {"exp": time.time() - 3_600},
        {"exp": None},
        {"sub": None},
        {"aud": None},
    ],
)
def test_tokens_for_others_are_refused(server: RunningServer, issuer: Issuer, claims: dict[str, Any]):
    refused = call(server, issuer.sign(scope="ferrule:call", **claims))
    assert refused.status_code == 401 and "invalid_token" in refused.headers["www-authenticate"]


def test_tokens_that_the_issuer_has_not_signed_are_refused(server: RunningServer, issuer: Issuer):
    claims = jwt.decode(issuer.sign(scope="ferrule:call"), options={"verify_signature": False})
    with run_issuer() as other:
        other.url = issuer.url
        forged = other.sign(scope="ferrule:call")
    unsigned = jwt.encode(claims, "", "none", headers={"kid": "first"})
    for token in (forged, unsigned, jwt.encode(claims, "k" * 64, "HS256", headers={"kid": "first"}), "a.b.c", "x"):
        assert call(server, token).status_code == 401


def test_unknown_keys_do_not_make_the_server_ask_again_and_again(server: RunningServer, issuer: Issuer):
    assert call(server, issuer.sign(scope="ferrule:call")).status_code == 200
    requests, begun = issuer.key_requests, time.monotonic()  # how often it may ask depends on the time
    with run_issuer() as other:
        for number in range(10):
            other.add_key(f"key-{number}")
            assert call(server, other.sign(f"key-{number}", scope="ferrule:call")).status_code == 401
    intervals = (time.monotonic() - begun) / MIN_REFRESH_INTERVAL  # however long it took
    assert issuer.key_requests - requests <= 1 + intervals


@pytest.mark.parametrize("org", [None, "", "acme/eu", "a b"])
def test_a_token_without_a_usable_tenant_is_refused(server: RunningServer, issuer: Issuer, org: str | None):
    assert call(server, issuer.sign(scope="ferrule:call", org=org)).status_code == 401


def test_a_subject_that_could_imitate_another_name_is_named_by_its_digest(server: RunningServer, issuer: Issuer):
    token = issuer.sign(scope="ferrule:call", org="acme", sub="ada smith")
    with server.client(token) as http:
        record = http.get(f"/v1/calls/{call(server, token).json()['call_id']}").json()
    assert record["principal"].startswith("token:oauth-") and record["principal"].endswith(f"@{issuer.host}")


def test_a_user_is_known_by_the_issuer_and_the_subject_and_not_by_a_name_of_choice(
    server: RunningServer, issuer: Issuer
):
    ada, eve = (
        issuer.sign(scope="ferrule:call", sub=sub, name="Ada", email="ada@example.com", preferred_username="ada")
        for sub in ("ada", "eve")
    )
    call_id = call(server, ada).json()["call_id"]
    with server.client(ada) as own, server.client(eve) as other:
        users = [http.get("/v1/me").json() for http in (own, other)]
        assert [each["token"]["display_name"] for each in users] == ["Ada", "Ada"]
        assert [each["name"] for each in users] == [f"token:{sub}@{issuer.host}" for sub in ("ada", "eve")]
        assert users[0]["token"]["token_id"] != users[1]["token"]["token_id"]
        assert own.get(f"/v1/calls/{call_id}").status_code == 200
        assert other.get(f"/v1/calls/{call_id}").status_code == 404


async def test_no_token_has_the_name_of_a_user_of_the_issuer():
    with pytest.raises(SetupError, match="letters"):
        await Tokens(ToolKnowledgeStore(None)).create("ada@login.example.com")


def test_a_page_opens_a_session_with_such_a_token(server: RunningServer, issuer: Issuer):
    with server.client(issuer.sign(scope="ferrule:call", org="acme")) as http:
        opened = http.post("/v1/session")
    assert opened.status_code == 201
    with server.client(cookies={"ferrule_session": opened.cookies["ferrule_session"]}) as page:
        shown = page.get("/v1/me").json()
        assert shown["permissions"] == ["read", "call"] and shown["token"]["tenant"] == "acme"
        assert shown["token"]["expires_at"] <= time.time() + TOKEN_LIFETIME  # it ends with the token
        assert page.delete("/v1/session").status_code == 200
        assert page.get("/v1/me").status_code == 401
