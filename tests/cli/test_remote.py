"""`ferrule --server URL`: the commands with a server elsewhere."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Project, RunningServer
from tests.support.http_servers import Answer, Request, serve_http_in_thread
from tests.support.ports import reserved_port
from tests.support.processes import run_python

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    more = '[policy]\nrules = [{ verdict = "ask", tool = "wipe" }]'
    return Project(tmp_path_factory.mktemp("project"), more=more)


@pytest.fixture(scope="module")
def token(project: Project) -> str:
    return project.create_token("cli", "--role", "caller", "--role", "approver")


@pytest.fixture(scope="module")
def server(project: Project, token: str) -> Iterator[RunningServer]:
    with project.serve() as server:
        yield server


class Elsewhere:
    """The command line of another machine: an empty folder, the address and a token."""

    def __init__(self, folder: Path, url: str, token: str | None) -> None:
        self._folder, self._url, self._token = folder, url, token

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {} if self._token is None else {"FERRULE_TOKEN": self._token}
        return run_python("-m", "ferrule", "--server", self._url, *arguments, cwd=self._folder, env=environment)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def elsewhere(tmp_path: Path, server: RunningServer, token: str) -> Elsewhere:
    return Elsewhere(tmp_path, server.url, token)


def test_calls_and_questions(elsewhere: Elsewhere):
    called = elsewhere.run("call", "add", "a:=2", "b:=3")
    assert (called.returncode, called.stdout.strip()) == (0, "5")
    asked = elsewhere.run("ask", "what is 6 * 7?")
    assert asked.returncode == 0 and "42" in asked.stdout
    assert "add\tsuccess" in elsewhere.run("calls").stdout
    assert "add\tsuccess" in elsewhere.run("calls", "--principal", "token:cli").stdout
    assert elsewhere.json("calls", "--principal", "token:other") == []
    (run, *_) = elsewhere.json("runs", "list")
    assert run["task"] == "what is 6 * 7?"
    assert elsewhere.run("runs", "show", run["run_id"]).stdout.endswith("run: finished\n")


def test_tools(elsewhere: Elsewhere):
    assert "wipe" in elsewhere.run("tools", "list").stdout
    assert elsewhere.run("tools", "search", "add", "two", "numbers").stdout.splitlines()[1].startswith("add")
    assert json.loads(elsewhere.run("tools", "show", "add").stdout)["tool_id"] == "add"


def test_an_approval(elsewhere: Elsewhere):
    refused = elsewhere.run("call", "wipe", "path=x")
    assert refused.returncode == 8
    (request,) = elsewhere.json("approvals", "list")
    assert "wipe" in elsewhere.run("approvals", "show", request["approval_id"]).stdout
    assert "approved" in elsewhere.run("approvals", "approve", request["approval_id"]).stdout
    made = elsewhere.run("call", "wipe", "path=x", "--approval", request["approval_id"])
    assert (made.returncode, made.stdout.strip()) == (0, "wiped x")


def test_mistakes_are_explained(tmp_path: Path, server: RunningServer, elsewhere: Elsewhere):
    assert elsewhere.run("call", "nothing").returncode == 3
    assert elsewhere.run("call", "add", "a=x").returncode == 2
    without = Elsewhere(tmp_path, server.url, None).run("tools", "list")
    assert without.returncode == 2 and "FERRULE_TOKEN" in without.stderr
    with reserved_port() as port:
        nobody = Elsewhere(tmp_path, f"http://127.0.0.1:{port}", None).run("tools", "list")
    assert nobody.returncode == 10 and "cannot be reached" in nobody.stderr
    incomplete = Elsewhere(tmp_path, "localhost:8321", None).run("tools", "list")
    assert incomplete.returncode == 2 and "write it as http://localhost:8321" in incomplete.stderr
    assert "Traceback" not in without.stderr + nobody.stderr
    wrong = elsewhere.run("call", "add", '{"a": 1}')
    assert wrong.returncode == 2 and wrong.stderr.startswith("ferrule: An argument is written name=value")
    assert "use --params" in wrong.stderr
    local = elsewhere.run("doctor")
    assert local.returncode == 2 and "'doctor' works without --server only" in local.stderr
    refused = elsewhere.run("ask", "Why?", "--model", "offline")
    assert refused.returncode == 2 and "--model works without --server only" in refused.stderr
    exported = elsewhere.run("runs", "export")
    assert exported.returncode == 2 and "without --server only" in exported.stderr
    unknown = elsewhere.run("dance")
    assert unknown.returncode == 2 and "No such command 'dance'" in unknown.stderr
    strange = Elsewhere(tmp_path, server.url, "ключ").run("tools", "list")
    assert strange.returncode == 2 and strange.stderr.startswith("ferrule: FERRULE_TOKEN is not a token")


def test_a_token_with_a_line_end_is_accepted(tmp_path: Path, server: RunningServer, token: str):
    assert Elsewhere(tmp_path, server.url, token + "\n").run("tools", "list").returncode == 0


def test_another_program_at_the_address_is_named(tmp_path: Path):
    def answer(request: Request) -> Answer:
        return Answer(body=b"[]" if request.method == "GET" else b"event: text\ndata: {}\n\n")

    with serve_http_in_thread(answer) as other:
        elsewhere = Elsewhere(tmp_path, other.url, None)
        listed, asked = elsewhere.run("tools", "list"), elsewhere.run("ask", "Why?")
    assert listed.returncode == 10 and "is not a Ferrule server" in listed.stderr
    assert asked.returncode == 9 and "before the answer" in asked.stderr  # as when a token is revoked meanwhile
