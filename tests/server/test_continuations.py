"""A run continues by itself when people have decided about what it waits for, whoever is there to watch."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

from ferrule import Agent, AgentState, Orchestrator, Policy, Rule, UnifiedToolLibrary, tool
from ferrule.agent.run import Run
from ferrule.policy.approvals import Approvals
from ferrule.server import runs as server_runs
from ferrule.server.tokens import AccessToken, Tokens
from ferrule.testing import ScriptedModel
from tests.server.application import serve
from tests.server.serving import Project
from tests.support.waiting import until, until_sync

pytestmark = pytest.mark.integration


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def ask(http: httpx.Client, question: str, **options: Any) -> dict[str, Any]:
    answer = http.post("/v1/ask", json={"question": question, **options}).json()
    assert answer["state"] == "waiting", answer
    return dict(answer)


def decide(http: httpx.Client, answer: dict[str, Any], **decision: Any) -> None:
    [request] = answer["approvals"]
    http.post(f"/v1/approvals/{request['approval_id']}", json={"allowed": True, **decision}).raise_for_status()


def wait_for_end(http: httpx.Client, answer: dict[str, Any]) -> dict[str, Any]:
    path = f"/v1/runs/{answer['run_id']}"
    until_sync(lambda: http.get(path).json()["state"] not in ("waiting", "running"))
    return dict(http.get(path).json())


def wiped(project: Project) -> list[str]:
    path = project.folder / "wiped.txt"
    return path.read_text().split() if path.exists() else []


def test_an_approved_run_is_finished_although_nobody_waits_for_it(project: Project):
    tokens = {role: project.create_token(role, "--role", role) for role in ("caller", "approver")}
    with (
        project.serve() as server,
        server.client(tokens["caller"]) as caller,
        server.client(tokens["approver"]) as approver,
    ):
        answer = ask(caller, "wipe path=/old", conversation_id="c1")
        decide(approver, answer)
        run = wait_for_end(approver, answer)
        assert run["state"] == "finished" and "wiped /old" in run["text"], run
        [turn] = caller.get("/v1/conversations/c1").json()["turns"]
        assert turn["state"] == "finished" and "wiped /old" in turn["answer"]
        refused = ask(caller, "wipe path=/new")
        decide(approver, refused, allowed=False, reason="Not today.")
        assert "Not today." in str(wait_for_end(approver, refused)["history"])
        records = caller.get("/v1/calls", params={"tool": "wipe", "status": "success"}).json()["calls"]
        assert [(each["principal"], each["params"]) for each in records] == [("agent:caller", {"path": "/old"})]
    assert wiped(project) == ["/old"]


def test_a_run_that_was_approved_while_no_server_ran_continues_when_one_starts(project: Project):
    token = project.create_token("caller")
    with project.serve() as server, server.client(token) as http:
        answer = ask(http, "wipe path=/old")
    approved = project.ferrule("approvals", "approve", answer["approvals"][0]["approval_id"])
    assert approved.returncode == 0, approved.stderr
    assert wiped(project) == []
    with project.serve() as server, server.client(token) as http:
        assert wait_for_end(http, answer)["state"] == "finished"
    assert wiped(project) == ["/old"]


def test_a_run_does_not_continue_after_the_token_of_its_asker_was_revoked(project: Project):
    tokens = {role: project.create_token(role, "--role", role) for role in ("caller", "admin")}
    with (
        project.serve() as server,
        server.client(tokens["caller"]) as caller,
        server.client(tokens["admin"]) as admin,
    ):
        answer = ask(caller, "wipe path=/old")
        admin.delete("/v1/tokens/caller").raise_for_status()
        decide(admin, answer)
        until_sync(lambda: "an approved run was not continued" in server.log)
        assert admin.get(f"/v1/runs/{answer['run_id']}").json()["state"] == "waiting"
    assert wiped(project) == []


def test_an_administrator_resumes_a_run_from_before_the_first_token(project: Project):
    with project.serve() as server, server.client() as local:
        answer = ask(local, "wipe path=/old")
        taken = local.post("/v1/tokens", json={"name": "orchestrator", "roles": ["caller"]})
        assert taken.status_code == 400, taken.text  # it would own what this machine's agent did
        token = local.post("/v1/tokens", json={"name": "boss", "roles": ["admin"]}).json()["token"]
        other = project.create_token("other", "--role", "caller", "--role", "approver")
        with server.client(token) as boss, server.client(other) as caller:
            path = f"/v1/runs/{answer['run_id']}/resume"
            assert caller.post(path, json={"approve": True}).status_code == 409  # it has no rights of its own there
            resumed = boss.post(path, json={"approve": True})
            assert resumed.status_code == 200 and resumed.json()["state"] == "finished", resumed.text
    assert wiped(project) == ["/old"]


def test_servers_of_one_store_continue_a_run_once(tmp_path: Path, postgres_url: str):
    project = Project(tmp_path, store=postgres_url)
    project.environment["XDG_STATE_HOME"] = str(tmp_path / "state")
    token = project.create_token("caller")
    with project.serve() as first, project.serve() as second, first.client(token) as http:
        answers = [ask(http, f"wipe path=/{n}") for n in range(5)]
        for answer in answers:  # neither of the servers is told
            approved = project.ferrule("approvals", "approve", answer["approvals"][0]["approval_id"])
            assert approved.returncode == 0, approved.stderr
        with second.client(token) as other:
            assert {wait_for_end(other, answer)["state"] for answer in answers} == {"finished"}
    assert sorted(wiped(project)) == [f"/{n}" for n in range(5)]


@tool(destructive=True)
async def wipe(path: str) -> str:
    """Wipe a file."""
    return f"wiped {path}"


async def test_whoever_wants_the_answer_of_a_continued_run_gets_it_and_leaves_it_running(tmp_path: Path):
    calls = [{"name": "wipe", "arguments": {"path": "a"}}, {"name": "wipe", "arguments": {"path": "b"}}]
    model = ScriptedModel([calls, "Both."])
    async with (
        serve(wipe, model=model) as site,
        site.lifespan(),
        site.client("worker", roles=["caller", "approver"]) as worker,
    ):
        answer = (await worker.post("/v1/ask", json={"question": "Wipe a and b"})).json()
        first, second = (each["approval_id"] for each in answer["approvals"])
        await worker.post(f"/v1/approvals/{first}", json={"allowed": True})
        run = f"/v1/runs/{answer['run_id']}"
        assert (await worker.get(run)).json()["state"] == "waiting"  # for the other call
        await worker.post(f"/v1/approvals/{second}", json={"allowed": True, "arguments": {"path": "c"}})
        resumed = (await worker.post(f"{run}/resume", json={})).json()
        assert (resumed["state"], resumed["answer"]) == ("finished", "Both.")
        steps = [each["step"] for each in (await worker.get(run)).json()["history"] if each["kind"] == "call"]
        assert [(each["arguments"]["path"], each["text"]) for each in steps] == [("a", "wiped a"), ("c", "wiped c")]


@pytest.mark.parametrize("is_signed_out", [False, True])
async def test_a_run_of_a_user_of_an_issuer_continues_while_the_user_has_a_session(
    is_signed_out: bool, caplog: pytest.LogCaptureFixture
):
    model = ScriptedModel([[{"name": "wipe", "arguments": {"path": "a"}}], "Done."])
    async with (
        serve(wipe, model=model) as site,
        site.lifespan(),
        site.client("boss", roles=["approver"]) as boss,
        site.client("any") as http,
    ):
        tokens = Tokens(site.library.engine.store)
        user = AccessToken(token_id="oauth-1", name="ann@oauth", roles=frozenset({"caller"}), is_external=True)
        http.headers["Authorization"] = f"Bearer {await tokens.create_session(user)}"
        answer = (await http.post("/v1/ask", json={"question": "Wipe a"})).json()
        if is_signed_out:
            [session] = [each for each in await tokens.list_tokens(with_external_sessions=True) if each.is_external]
            await tokens.revoke(session.token_id)
        run = f"/v1/runs/{answer['run_id']}"
        await boss.post(f"/v1/approvals/{answer['approvals'][0]['approval_id']}", json={"allowed": True})
        if is_signed_out:
            await until(lambda: "an approved run was not continued" in caplog.text)
        while not is_signed_out and (await boss.get(run)).json()["state"] != "finished":
            await asyncio.sleep(0)  # lets the server work
    assert len(model.requests) == (1 if is_signed_out else 2)


async def test_the_record_of_a_call_that_asked_says_what_was_decided():
    calls = [{"name": "wipe", "arguments": {"path": path}} for path in ("a", "b", "c")]
    async with (
        serve(wipe, model=ScriptedModel([calls, "Done."])) as site,
        site.client("worker", roles=["caller", "approver"]) as worker,
    ):
        answer = (await worker.post("/v1/ask", json={"question": "Wipe a, b and c"})).json()
        made, refused, _ = (each["approval_id"] for each in answer["approvals"])

        async def read(**query: Any) -> list[tuple[str, str | None]]:
            found = (await worker.get("/v1/calls", params=query)).json()["calls"]
            return sorted((each["error_type"] or "made", each["approval_state"]) for each in found)

        asked = "approval_required"
        assert await read() == [(asked, "pending")] * 3
        await worker.post(f"/v1/approvals/{made}", json={"allowed": True})
        await worker.post(f"/v1/approvals/{refused}", json={"allowed": False})
        assert await read(brief=True) == [(asked, "approved"), (asked, "pending"), (asked, "refused")]
        await worker.post(f"/v1/runs/{answer['run_id']}/resume", json={})
        assert await read() == [(asked, "pending"), (asked, "refused"), (asked, "used"), ("made", None)]
        [call] = (await worker.get("/v1/calls", params={"status": "success"})).json()["calls"]
        records = (await worker.get("/v1/calls", params={"error_type": asked})).json()["calls"]
        assert [each["metadata"]["used_by"] for each in records if each["approval_state"] == "used"] == [
            call["record_id"]
        ]


async def test_a_run_of_a_program_is_left_to_the_program(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    model = ScriptedModel([[{"name": "wipe", "arguments": {"path": "a"}}], "Done."])
    async with UnifiedToolLibrary(store=url) as library:
        library.register(wipe)
        async with Orchestrator(library, model) as orchestrator:  # as in a terminal, whose agent a server has too
            asked = await orchestrator.process_task("Wipe a")
        async with Agent(library, ScriptedModel([[{"name": "wipe", "arguments": {"path": "b"}}]])) as agent:
            own = await agent.run("Wipe b")
        approvals = Approvals(library.engine.store)
        for request in (*asked.approvals, *own.approvals):
            await approvals.record_decision(request.approval_id, True)
    async with serve(wipe, model=ScriptedModel(["Done."]), store=url) as site, site.lifespan():
        engine = site.library.engine
        while (await Run.load(asked.run_id, engine.store)).state is not AgentState.FINISHED:
            await asyncio.sleep(0)  # lets the server work
        assert (await Run.load(own.run_id, engine.store)).state is AgentState.WAITING


async def test_a_server_continues_no_run_of_a_program_with_other_rules(tmp_path: Path, caplog):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    model = ScriptedModel([[{"name": "wipe", "arguments": {"path": "a"}}]] * 2)
    rules = Policy(rules=[Rule(verdict="deny", tool="send_mail")])
    async with UnifiedToolLibrary(store=url) as library:
        library.register(wipe)
        async with (
            Orchestrator(library, model, policy=rules) as strict,
            Orchestrator(library, model, tools=["wipe"]) as limited,
        ):
            asked = [await each.process_task("Wipe a") for each in (strict, limited)]
        approvals = Approvals(library.engine.store)
        for answer in asked:
            await approvals.record_decision(answer.approvals[0].approval_id, True)
    async with serve(wipe, model=ScriptedModel(["Done."]), store=url) as site, site.lifespan():
        await until(lambda: caplog.text.count("was started with other rules") == 2)
        states = [(await Run.load(answer.run_id, site.library.engine.store)).state for answer in asked]
    assert states == [AgentState.WAITING] * 2


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server look at once, and not first let the process of a decision continue the run."""
    monkeypatch.setattr(server_runs, "POLL_INTERVAL", 0.01)
    monkeypatch.setattr(server_runs, "OTHERS_FIRST", 0.0)


def wiping_model(count: int) -> ScriptedModel:
    """Asks to wipe a file in each of some runs, and finishes each of them."""
    calls: list[Any] = [[{"name": "wipe", "arguments": {"path": str(number)}}] for number in range(count)]
    return ScriptedModel([*calls, *["Done."] * count])


async def ask_for_runs(worker: httpx.AsyncClient, count: int) -> list[dict[str, Any]]:
    return [(await worker.post("/v1/ask", json={"question": f"Wipe {number}"})).json() for number in range(count)]


async def count_finished(http: httpx.AsyncClient, answers: list[dict[str, Any]]) -> int:
    states = [(await http.get(f"/v1/runs/{answer['run_id']}")).json()["state"] for answer in answers]
    return states.count("finished")


@pytest.mark.parametrize("limit", ["server", "token"])
async def test_runs_continue_within_the_limits_of_the_server_and_of_their_asker(
    limit: str, no_delay: None, monkeypatch: pytest.MonkeyPatch
):
    running, most, may_end = 0, 0, asyncio.Event()

    @tool(name="wipe", destructive=True)
    async def wait_and_wipe(path: str) -> str:
        """Wipe a file."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await may_end.wait()
        running -= 1
        return f"wiped {path}"

    monkeypatch.setattr(server_runs, "MAX_CONTINUED_RUNS", 2 if limit == "server" else 8)
    async with (
        serve(wait_and_wipe, model=wiping_model(4)) as site,
        site.lifespan(),
        site.client("boss", roles=["approver"]) as boss,
        site.client("worker", max_concurrent=None if limit == "server" else 2) as worker,
    ):
        answers = await ask_for_runs(worker, 4)
        approvals = Approvals(site.library.engine.store)  # as in another process
        for answer in answers:
            await approvals.record_decision(answer["approvals"][0]["approval_id"], True)
        await until(lambda: running == 2)
        if limit == "token":  # which the runs take from
            refused = await worker.post("/v1/ask", json={"question": "Another"})
            assert refused.status_code == 429, refused.text
        await asyncio.sleep(0.1)  # a moment in which further runs would begin
        assert most == 2
        may_end.set()
        while await count_finished(boss, answers) < 4:
            await asyncio.sleep(0.01)  # looks again
    assert most == 2


async def test_runs_continue_after_a_decision_by_a_fast_clock(no_delay: None):
    async with (
        serve(wipe, model=wiping_model(2)) as site,
        site.lifespan(),
        site.client("boss", roles=["approver"]) as boss,
        site.client("worker") as worker,
    ):
        answers, store = await ask_for_runs(worker, 2), site.library.engine.store
        for number, clock in enumerate((lambda: time.time() + 2 * 86_400, time.time)):
            approval_id = answers[number]["approvals"][0]["approval_id"]
            await Approvals(store, clock=clock).record_decision(approval_id, True)
            while await count_finished(boss, answers) <= number:
                await asyncio.sleep(0.01)  # looks again


async def test_a_run_belongs_to_the_tenant_of_its_asker_whatever_its_conversation_is_called(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    async with (
        UnifiedToolLibrary(store=url) as library,
        Orchestrator(library, ScriptedModel(["Mine."])) as orchestrator,
    ):
        own = await orchestrator.process_task("Whose is it?", conversation_id="acme/one")
    async with (
        serve(model=ScriptedModel(["Theirs."]), store=url) as site,
        site.client("boss", roles=["admin"]) as boss,
        site.client("theirs", roles=["admin"], tenant="acme") as theirs,
    ):
        asked = (await theirs.post("/v1/ask", json={"question": "And this?"})).json()
        shown = {each["run_id"] for each in (await theirs.get("/v1/runs")).json()["runs"]}
        assert shown == {asked["run_id"]}
        assert (await theirs.get(f"/v1/runs/{own.run_id}")).status_code == 404
        assert (await boss.get(f"/v1/runs/{own.run_id}")).status_code == 200


async def test_a_run_belongs_to_the_token_that_started_it_whatever_the_clocks_say(no_delay: None):
    async with (
        serve(wipe, model=wiping_model(1)) as site,
        site.lifespan(),
        site.client("boss", roles=["approver"]) as boss,
        site.anonymous_client() as worker,
    ):
        store = site.library.engine.store
        _, text = await Tokens(store, clock=lambda: time.time() + 3_600).create("worker")  # by a server that is fast
        worker.headers["Authorization"] = f"Bearer {text}"
        answers = await ask_for_runs(worker, 1)
        await Approvals(store).record_decision(answers[0]["approvals"][0]["approval_id"], True)
        while not await count_finished(boss, answers):
            await asyncio.sleep(0.01)  # looks again


def test_a_token_with_the_name_of_a_revoked_one_does_not_take_over_its_runs(project: Project):
    admin, stolen = project.create_token("root", "--role", "admin"), project.create_token("ci")
    with project.serve() as server, server.client(admin) as http, server.client(stolen) as thief:
        answer = ask(thief, "wipe path=/old")
        assert http.delete("/v1/tokens/ci").status_code == 200
        successor = http.post("/v1/tokens", json={"name": "ci"}).raise_for_status().json()["token"]
        with server.client(successor) as other:
            assert other.post(f"/v1/runs/{answer['run_id']}/resume", json={}).status_code == 409
        decide(http, answer)
        until_sync(lambda: "whose token is not valid now" in server.log)
        assert http.get(f"/v1/runs/{answer['run_id']}").json()["state"] == "waiting"
    assert wiped(project) == []
