"""How the files of the web page are served, with a page of three files in place of the built one."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

from starlette.testclient import TestClient

from ferrule import UnifiedToolLibrary
from ferrule.server.app import create_app
from ferrule.web import page_routes

SCRIPT = b"console.log(1)" * 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>Ferrule</title>")
    (tmp_path / "assets" / "index-abc.js").write_bytes(SCRIPT)
    (tmp_path / "assets" / "index-abc.js.gz").write_bytes(gzip.compress(SCRIPT))
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path


@pytest.fixture
def http(folder: Path) -> Iterator[TestClient]:
    app = create_app(UnifiedToolLibrary(), is_local=False, is_open=False, page=page_routes(folder))
    with TestClient(app) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/approvals", "/runs/abc", "/ask/a/b"])
def test_the_page_is_public_and_answers_its_own_paths(http: TestClient, path: str):
    response = http.get(path)
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy
    assert response.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/v1/tools", "/v1/me", "/other", "/runsx", "/mcp", "/v1/events"])
def test_everything_else_still_needs_a_token(http: TestClient, path: str):
    assert http.get(path).status_code == 401


def test_assets_are_cached_for_ever_and_sent_compressed(http: TestClient):
    response = http.get("/assets/index-abc.js")
    assert response.content == SCRIPT and response.headers["content-encoding"] == "gzip"
    assert "immutable" in response.headers["cache-control"]
    assert response.headers["content-type"].startswith("text/javascript")
    plain = http.get("/assets/index-abc.js", headers={"accept-encoding": "identity"})
    assert plain.content == SCRIPT and "content-encoding" not in plain.headers


@pytest.mark.parametrize("path", ["/assets/..%2fsecret.txt", "/assets/%2e%2e/secret.txt", "/assets/nothing.js"])
def test_no_other_file_is_sent(http: TestClient, path: str):
    assert "secret" not in http.get(path).text.replace("..%2fsecret.txt", "").replace("'../secret.txt'", "")
    assert http.get(path).status_code in (401, 404)


def test_a_server_without_the_page_says_how_to_build_it(tmp_path: Path):
    app = create_app(UnifiedToolLibrary(), is_local=False, is_open=True, page=page_routes(tmp_path))
    with TestClient(app) as http:
        response = http.get("/")
        assert response.status_code == 200 and "make web" in response.text
        assert http.get("/runs").status_code == 404
