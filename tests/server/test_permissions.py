"""What a client of the HTTP API is shown is what it may call; decisions have the name of who made them."""

import sqlite3
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest

from ferrule import Orchestrator, Policy, Rule, Secret, Tool, UnifiedToolLibrary, tool
from ferrule.core.content import encode_json
from ferrule.errors import StoreError
from ferrule.kinds.function.tools import tool_of
from ferrule.models.offline import OfflineModel
from ferrule.store import client_requests
from ferrule.testing import ScriptedModel
from tests.server.application import Site, serve
from tests.server.serving import MCP_HEADERS, mcp_call

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")


@tool
class Disk:
    """A disk."""

    @tool(read_only=True)
    async def read(self) -> str:
        """Read it."""
        return "data"

    @tool(destructive=True)
    async def format(self) -> str:
        """Shred all of it."""
        return "formatted"


@tool(name="pay", destructive=True)
async def really_pay(amount: float) -> str:
    """Pay with real money."""
    return f"paid {amount:g}"


@tool(destructive=True)
async def delete_account(name: str) -> str:
    """Delete an account."""
    return f"deleted {name}"


@tool(name="pay", read_only=True)
async def simulate_payment(value: float) -> str:
    """Simulate a payment."""
    return f"simulated {value:g}"


def of_source(thing: Any, source: str) -> Tool:
    return replace(tool_of(thing), source=source)


async def test_hidden_actions_are_neither_shown_nor_found():
    async with serve(Disk) as site, site.client("reader", max_effect="read_only") as http:
        shown = [(await http.get(path)).text for path in ("/v1/tools", "/v1/tools/Disk", "/v1/tools/Disk/schema")]
        found = (await http.get("/v1/tools", params={"query": "shred format"})).json()["tools"]
    assert all("read" in text and "Shred" not in text and "format" not in text for text in shown), shown
    assert "Disk" not in [each["tool_id"] for each in found]


VOLATILE = {"call_id", "record_id", "execution_time", "executed_at", "started_at", "created_at", "wait_time"}
HIDDEN_AND_MISSING = [
    ("delete_account", "delete_accounts", None),
    ("Disk__format", "Disk__formats", None),
    ("Disk", "Disk", "format"),
]


def without_name(response: httpx.Response, *names: str) -> tuple[int, dict[str, str], str]:
    """What a client could tell two responses apart by."""

    def reduce(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reduce(each) for key, each in value.items() if key not in VOLATILE}
        return [reduce(each) for each in value] if isinstance(value, list) else value

    text = encode_json(reduce(response.json())).decode()
    for name in names:
        text = text.replace(f"'{name}'", "'NAME'").replace(f'"{name}"', '"NAME"')
    headers = {key: each for key, each in response.headers.items() if key not in ("content-length", "x-request-id")}
    return response.status_code, headers, text


@pytest.mark.parametrize(("hidden", "missing", "action"), HIDDEN_AND_MISSING)
async def test_a_hidden_tool_cannot_be_told_apart_from_a_missing_one(hidden: str, missing: str, action: str | None):
    other_action = None if action is None else f"{action}s"

    async def ask(http: httpx.AsyncClient, name: str, action: str | None) -> list[Any]:
        call = {"arguments": {"name": "Ann"}} if action is None else {"arguments": {}, "action": action}
        model_name = name if action is None else f"{name}__{action}"
        responses = [
            await http.post(f"/v1/tools/{name}/call", json=call),
            await http.post("/v1/calls", json={"calls": [{"tool": name, **call}]}),
            await http.post("/mcp", **mcp_call(model_name, {})),
        ]
        if action is None:
            responses += [await http.get(f"/v1/tools/{name}"), await http.get(f"/v1/tools/{name}/schema")]
        [record, *_] = (await http.get("/v1/calls")).json()["calls"]
        responses.append(await http.get(f"/v1/calls/{record['record_id']}"))
        return [without_name(each, model_name, name, action or "none") for each in responses]

    async with serve(Disk, delete_account, simulate_payment) as site, site.lifespan():
        async with site.client("reader", max_effect="read_only") as http:
            expected = await ask(http, missing, other_action)
            assert await ask(http, hidden, action) == expected
        async with site.client("narrow", tools=["pay", "Disk__read"]) as http:
            assert (await ask(http, hidden, action))[0] == (await ask(http, missing, other_action))[0]
    assert expected[0][0] == 404


async def test_of_two_tools_with_one_name_a_client_is_shown_and_calls_the_one_it_may_use():
    tools = [of_source(really_pay, "tools"), of_source(simulate_payment, "mcps")]
    async with serve(*tools) as site, site.client("reader", max_effect="read_only") as http:
        paths = ("/v1/tools", "/v1/tools?query=payment", "/v1/tools/pay", "/v1/tools/pay/schema")
        shown = [(await http.get(path)).text for path in paths]
        called = await http.post("/v1/tools/pay/call", json={"arguments": {"value": 5}})
    assert all("Simulate" in text and "real money" not in text for text in shown), shown
    assert called.json()["output"] == {"result": "simulated 5"}


async def test_a_name_that_does_not_exist_is_answered_without_hidden_names():
    async with serve(Disk, really_pay) as site, site.client("payer", tools=["pay"]) as http:
        missing = await http.get("/v1/tools/Dis")
        similar = await http.get("/v1/tools/pai")
    assert missing.status_code == similar.status_code == 404
    assert "Disk" not in missing.text and "'pay'" in similar.text


async def test_a_tool_that_is_not_set_up_is_named_to_those_who_may_use_it_only():
    question = {"question": "search the web for the history of Ferrara"}
    async with (
        serve(really_pay, model=OfflineModel()) as site,
        site.client("payer", tools=["pay"]) as payer,
        site.client("searcher", tools=["search_web", "advanced_web_search"]) as searcher,
    ):
        restricted, permitted = [await http.post("/v1/ask", json=question) for http in (payer, searcher)]
    assert "search_web" in permitted.text or "advanced_web_search" in permitted.text
    assert "web_search" not in restricted.text and "search_web" not in restricted.text


@pytest.mark.parametrize("strategy", ["loop", "plan"])
async def test_an_approval_by_resuming_has_the_name_of_the_client(strategy: str):
    plan = '{"steps": [{"id": "1", "tool": "pay", "description": "pay", "parameters": {"amount": 5}}]}'
    replies: dict[str, list[Any]] = {
        "loop": [[{"name": "pay", "arguments": {"amount": 5}}], "Paid."],
        "plan": [plan, "Paid.", "Paid."],
    }
    model = ScriptedModel(replies[strategy])
    async with (
        serve(really_pay, model=model, strategy=strategy) as site,
        site.client("worker") as worker,
        site.client("boss", roles=["approver", "caller"]) as boss,
    ):
        run_id = (await worker.post("/v1/ask", json={"question": "Pay 5 to Ann"})).json()["run_id"]
        [waiting] = (await boss.get(f"/v1/runs/{run_id}")).json()["approvals"]
        assert (await worker.post(f"/v1/runs/{run_id}/resume", json={"approve": True})).status_code == 403
        resumed = await boss.post(f"/v1/runs/{run_id}/resume", json={"approve": True})
        decided = (await boss.get(f"/v1/approvals/{waiting['approval_id']}")).json()
    assert resumed.status_code == 200, resumed.text
    assert (decided["decided_by"], decided["state"]) == ("token:boss", "used"), resumed.text


async def test_a_run_has_the_rights_of_the_token_that_started_it_whoever_resumes_it():
    calls = [{"name": "ask_user", "arguments": {"question": "How much?"}}], [{"name": "Disk__format", "arguments": {}}]
    model = ScriptedModel([*calls, "Done.", *calls[:1]])
    async with (
        serve(Disk, policy=Policy(rules=[Rule(verdict="allow", tool="Disk")]), model=model) as site,
        site.client("worker", max_effect="read_only") as worker,
        site.client("boss", roles=["admin"]) as boss,
    ):
        run_id = (await worker.post("/v1/ask", json={"question": "Format the disk"})).json()["run_id"]
        resumed = await boss.post(f"/v1/runs/{run_id}/resume", json={"answer": "All"})
        assert "finished" in resumed.text, resumed.text
        records = await site.library.engine.query_call_records(tool_name="Disk")
        assert [(record.principal, record.error_type) for record in records] == [("agent:worker", "permission_denied")]
        again = (await worker.post("/v1/ask", json={"question": "Format another disk"})).json()["run_id"]
        await boss.delete("/v1/tokens/worker")
        async with site.client("worker", tenant="other"):  # the same name, of somebody else
            refused = await boss.post(f"/v1/runs/{again}/resume", json={"answer": "All"})
    assert refused.status_code == 409 and "agent:worker" in refused.text


@pytest.mark.integration
async def test_a_client_does_not_read_the_conversation_of_the_local_user():
    model = ScriptedModel(["It is 42."])
    async with serve(model=model) as site:
        await Orchestrator(site.library, model).process_task("What is the secret number?")
        assert "secret number" in (await site.library.execute_tool("get_conversation_history", {})).text
        for number, tenant in enumerate(("", "acme")):
            async with site.client(f"client-{number}", tenant=tenant) as http:
                one = await http.post("/v1/tools/get_conversation_history/call", json={})
                batch = await http.post("/v1/calls", json={"calls": [{"tool": "get_conversation_history"}]})
                script = {"code": "get_conversation_history()"}
                nested = await http.post("/v1/tools/python_executor/call", json={"arguments": script})
            assert not [r.text for r in (one, batch, nested) if "secret number" in r.text]


@pytest.mark.parametrize("function", ["claim_request", "complete_request"])
async def test_a_call_is_answered_and_not_repeated_when_the_database_restarts_during_it(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """While its key is stored (which may have happened although the answer was lost), or its response."""
    payments: list[int] = []

    @tool(idempotent=False)
    async def pay(order: int) -> str:
        """Pay for an order."""
        payments.append(order)
        return "paid"

    real, failures = getattr(client_requests, function), iter([StoreError("the server was shut down")])

    def fail_once(*arguments: Any, **options: Any) -> Any:
        result = real(*arguments, **options) if function == "claim_request" else None
        if (error := next(failures, None)) is not None:
            raise error
        return result if function == "claim_request" else real(*arguments, **options)

    monkeypatch.setattr(client_requests, function, fail_once)
    request: dict[str, Any] = {"json": {"arguments": {"order": 1}}, "headers": {"Idempotency-Key": "order 1"}}
    async with serve(pay, store=f"sqlite:///{tmp_path}/calls.db") as site, site.client("worker") as http:
        responses = [await http.post("/v1/tools/pay/call", **request) for _ in range(2)]
    assert [response.json()["is_success"] for response in responses] == [True, True]
    assert "idempotency-replayed" in responses[1].headers and payments == [1]


async def test_a_response_that_is_stored_for_its_repetition_has_no_secrets(tmp_path: Path):
    @tool
    async def login(pin: Annotated[str, Secret]) -> dict[str, str]:
        """Log in."""
        return {"password": "swordfish-77", "note": f"the number was {pin}"}

    async with serve(login, store=f"sqlite:///{tmp_path}/calls.db") as site, site.client("worker") as http:
        one: dict[str, Any] = {"json": {"arguments": {"pin": "zx81zx81"}}, "headers": {"Idempotency-Key": "1"}}
        several: dict[str, Any] = {
            "json": {"calls": [{"tool": "login", **one["json"]}]},
            "headers": {"Idempotency-Key": "2"},
        }
        for path, options in (("/v1/tools/login/call", one), ("/v1/calls", several)):
            first = await http.post(path, **options)
            again = await http.post(path, **options)
            assert "swordfish" in first.text and "zx81zx81" in first.text
            assert again.headers["idempotency-replayed"] == "true" and "the number was" in again.text
            assert "swordfish" not in again.text and "zx81zx81" not in again.text
        await site.library.engine.store.flush()
        stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"swordfish" not in stored and b"zx81zx81" not in stored


async def test_the_stored_response_of_a_tool_that_is_not_known_yet_has_no_secrets(monkeypatch: pytest.MonkeyPatch):
    @tool
    async def login(password: str) -> str:
        """Log in."""
        return f"logged in with {password}"

    request: dict[str, Any] = {
        "json": {"arguments": {"password": "swordfish-77"}},
        "headers": {"Idempotency-Key": "1"},
    }
    async with serve() as site, site.client("worker") as http:
        engine = site.library.engine

        async def list_late(name: str | None = None) -> None:
            if "login" not in engine.registry:
                engine.register(login)

        monkeypatch.setattr(engine, "wait_for_discovery", list_late)  # as for a server that is still starting
        first = await http.post("/v1/tools/login/call", **request)
        again = await http.post("/v1/tools/login/call", **request)
    assert first.json()["output"] == {"result": "logged in with swordfish-77"}
    assert again.headers["idempotency-replayed"] == "true" and "logged in with" in again.text
    assert "swordfish" not in again.text


async def test_the_digest_of_a_request_does_not_give_away_its_secrets(tmp_path: Path):
    @tool
    async def unlock(pin: Annotated[int, Secret]) -> str:
        """Unlock a door."""
        return "open"

    from ferrule.server.call_routes import CallRequest

    path = "/v1/tools/unlock/call"
    async with serve(unlock, store=f"sqlite:///{tmp_path}/calls.db") as site, site.client("worker") as http:
        for key, pin, status in (("1", 2580, 200), ("1", 2580, 200), ("1", 2581, 422), ("2", 2580, 200)):
            body = {"arguments": {"pin": pin}}
            response = await http.post(path, json=body, headers={"Idempotency-Key": key})
            assert response.status_code == status
        await site.library.engine.store.flush()
        with closing(sqlite3.connect(tmp_path / "calls.db")) as connection:
            digests = [row[0] for row in connection.execute("SELECT digest FROM requests")]
    plain = sha256(encode_json([path, ["unlock", CallRequest(arguments={"pin": 2580}).model_dump()]])).hexdigest()
    assert len(set(digests)) == 2 and plain not in digests  # a fast digest is found by trying all numbers


async def test_requests_for_approval_are_shown_to_the_caller_and_to_approvers():
    policy = Policy(rules=[Rule(verdict="ask", tool="*")])
    grants: dict[str, Any] = {"tenant": "acme"}
    async with serve(really_pay, delete_account, policy=policy) as site, AsyncExitStack() as stack:
        caller, viewer, narrow, approver = [
            await stack.enter_async_context(site.client(name, **grants, **own))
            for name, own in {
                "caller": {"roles": ["caller"]},
                "viewer": {"roles": ["viewer"], "tools": ["pay"]},
                "narrow": {"roles": ["caller"], "tools": ["pay"]},
                "approver": {"roles": ["approver"], "tools": ["pay"]},
            }.items()
        ]
        ids = []
        for name, arguments in (("pay", {"amount": 1}), ("delete_account", {"name": "Ann"})):
            answer = await caller.post(f"/v1/tools/{name}/call", json={"arguments": arguments})
            assert answer.status_code == 428, answer.text
            ids.append(answer.json()["metadata"]["approval_id"])

        async def read_ids(http: httpx.AsyncClient, **query: Any) -> list[str]:
            answer = await http.get("/v1/approvals", params=query)
            return [each["approval_id"] for each in answer.json()["approvals"]]

        assert await read_ids(caller) == await read_ids(approver) == ids[::-1]
        own = (await narrow.post("/v1/tools/pay/call", json={"arguments": {"amount": 1}})).json()["metadata"]
        assert await read_ids(narrow) == [own["approval_id"]] and await read_ids(viewer) == []
        assert await read_ids(caller, limit=1) == ids[1:]  # although a newer one is hidden
        for http in (viewer, narrow):
            assert [(await http.get(f"/v1/approvals/{each}")).status_code for each in ids] == [404, 404]


async def test_a_policy_of_the_server_decides_instead_of_that_of_the_library():
    of_library = Policy(rules=[Rule(verdict="deny", tool="pay")])
    of_server = Policy(rules=[Rule(verdict="deny", tool="delete_account")])
    site = serve(really_pay, delete_account, policy=of_library, server_policy=of_server)
    async with site as it, it.client("worker", roles=["caller", "viewer"]) as http:
        listed = {each["tool_id"] for each in (await http.get("/v1/tools")).json()["tools"]}
        assert "pay" in listed and "delete_account" not in listed
        assert (await http.get("/v1/tools/delete_account")).status_code == 404
        deleted = await http.post("/v1/tools/delete_account/call", json={"arguments": {"name": "Ann"}})
        assert deleted.status_code == 404
        paid = await http.post("/v1/tools/pay/call", json={"arguments": {"amount": 3}})
        assert paid.json()["is_success"], paid.text
        over_mcp = (await http.post("/mcp", **mcp_call("pay", {"amount": 4}))).json()["result"]
        assert not over_mcp["isError"] and over_mcp["content"][0]["text"] == "paid 4"


@pytest.mark.parametrize("is_given", [True, False])
async def test_orchestrators_of_a_server_with_a_policy_have_the_same(is_given: bool):
    from ferrule.server.app import create_app

    of_server = Policy(rules=[Rule(verdict="deny", tool="pay")])
    library = UnifiedToolLibrary(store="sqlite://")

    def make_orchestrator(principal: Any) -> Orchestrator:
        own = of_server if is_given else None
        return Orchestrator(library, ScriptedModel(["Hello."]), principal=principal, policy=own)

    app = create_app(library, make_orchestrator, policy=of_server)
    async with library, Site(library, app).client("worker", roles=["caller"]) as http:
        answer = await http.post("/v1/ask", json={"question": "Hi"})
    assert is_given is (answer.status_code == 200), answer.text
    assert is_given or "Orchestrator(policy" in answer.text


@pytest.mark.parametrize("path", ["/v1/tools/clear/call", "/mcp"])
async def test_a_request_whose_client_disconnects_before_its_end_makes_no_call(path: str):
    from ferrule.server.app import create_app

    cleared: list[str] = []

    @tool(destructive=True)
    async def clear(path: str = "everything") -> str:
        """Clear a folder."""
        cleared.append(path)
        return "cleared"

    arriving: list[dict[str, Any]] = [
        {"type": "http.request", "body": b'{"arguments": {"path": ', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return arriving.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    library = UnifiedToolLibrary()
    site = Site(library, create_app(library, is_open=True))
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"80")]
    headers += [(name.encode(), value.encode()) for name, value in MCP_HEADERS.items()]
    headers += [(b"mcp-method", b"tools/call"), (b"mcp-name", b"clear")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    async with site.lifespan():
        library.register(clear)
        await site.ask(scope, receive, send)
    assert not cleared and sent[0]["status"] == 400
