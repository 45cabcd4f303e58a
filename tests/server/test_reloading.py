"""A server follows its `ferrule.toml` without losing a request."""

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.serving import CONFIG, Project, RunningServer
from tests.support.waiting import until, until_sync

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

from starlette.types import Receive, Scope, Send

from ferrule.server.reloading import ReloadableApp, RunningApp

pytestmark = pytest.mark.integration

WATCH = "watch_for_changes = true\n"
DENY = '[[policy.rules]]\nverdict = "deny"\ntool = "add"\narguments = {a = 1}\nreason = "Not today."\n'


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("reloading"))
    write_config(project)
    return project


def write_config(project: Project, more: str = "") -> None:
    text = CONFIG.format(store="sqlite:///calls.db", more=more)
    (project.folder / "ferrule.toml").write_text(text.replace("[engine]\n", f"[engine]\n{WATCH}"))


def call(http: httpx.Client, name: str, **arguments: Any) -> httpx.Response:
    return http.post(f"/v1/tools/{name}/call", json={"arguments": arguments})


def test_new_rules_hold_for_new_calls_and_running_ones_finish(project: Project, http: httpx.Client):
    path = project.folder / "flag"
    results: list[httpx.Response] = []
    running = threading.Thread(target=lambda: results.append(call(http, "wait_for", path=str(path))))
    running.start()
    until_sync(Path(f"{path}.started").exists)
    with http.stream("GET", "/v1/events") as events:
        lines = events.iter_lines()
        assert next(lines) == ": connected"
        write_config(project, DENY)
        until_sync(lambda: call(http, "add", a=1, b=2).status_code == 403)
        assert "Not today." in call(http, "add", a=1, b=2).text
        list(lines)  # the stream of the earlier application ends
    assert not results
    path.touch()
    running.join(60)
    assert results[0].json()["output"] == {"result": "found"}
    write_config(project)
    until_sync(lambda: call(http, "add", a=1, b=2).status_code == 200)


def test_a_configuration_that_cannot_be_used_changes_nothing(
    project: Project, server: RunningServer, http: httpx.Client
):
    write_config(project, "[server]\nno_such_key = 1\n")
    until_sync(lambda: "no_such_key" in server.log)
    assert call(http, "add", a=1, b=2).json()["output"] == {"result": 3}
    write_config(project, '[server.virtual_servers]\nsums = ["add"]\n')
    until_sync(lambda: http.get("/mcp/sums").status_code == 400)  # it exists: only the session is missing
    write_config(project)
    until_sync(lambda: http.get("/mcp/sums").status_code == 404)


def test_a_signal_reloads(project: Project, server: RunningServer, http: httpx.Client):
    before = server.log.count("was read again")
    server.process.send_signal(signal.SIGHUP)
    until_sync(lambda: server.log.count("was read again") > before)
    assert call(http, "add", a=1, b=2).json()["output"] == {"result": 3}


async def cancelled(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    raise asyncio.CancelledError


async def test_an_application_that_is_cancelled_while_it_starts_is_not_used():
    app = ReloadableApp(lambda: cancelled, None)
    assert not await app.reload()
    assert not await app.reload()  # the first one has not kept the lock


async def test_an_application_that_fails_between_its_start_and_its_end_says_why(caplog: pytest.LogCaptureFixture):
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        raise RuntimeError("the disk is full")

    app = RunningApp(fail)
    await app.start()
    await until(lambda: "the disk is full" in caplog.text)
    await app.stop()
