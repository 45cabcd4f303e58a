"""What administrators see and do: the policy with what it decided, a tester, tokens, audit, failures, figures."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from ferrule import Policy, Rule, tool
from ferrule.server.metrics import ServerMetrics
from ferrule.testing import ScriptedModel
from tests.server.application import serve

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")


@tool(read_only=True)
async def look(path: str, depth: int = 1) -> str:
    """Look at a file."""
    if path == "missing":
        raise FileNotFoundError(path)
    return path


@tool(destructive=True)
async def wipe(path: str) -> str:
    """Wipe a file."""
    return f"wiped {path}"


POLICY = Policy(
    rules=[
        Rule(verdict="deny", tool="look", arguments={"path": "/etc/*"}, reason="That is private."),
        Rule(verdict="ask", tool="wipe", reason="Wiping is checked."),
    ]
)
ADMIN: dict[str, Any] = {"roles": ["admin"]}


async def call(http: httpx.AsyncClient, name: str, **arguments: Any) -> httpx.Response:
    return await http.post(f"/v1/tools/{name}/call", json={"arguments": arguments})


async def predict(http: httpx.AsyncClient, **test: Any) -> dict[str, Any]:
    response = await http.post("/v1/policy/test", json=test)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


async def test_rules_are_shown_with_the_calls_they_decided_about():
    async with serve(look, wipe, policy=POLICY) as site, site.client("root", **ADMIN) as http:
        await call(http, "look", path="a")
        await call(http, "look", path="/etc/passwd")
        await call(http, "look", path="/etc/hosts")
        await call(http, "wipe", path="a")
        policy = (await http.get("/v1/policy")).json()
        assert [(rule["verdict"], rule["calls"], rule["is_built_in"]) for rule in policy["rules"]] == [
            ("deny", 2, False),
            ("ask", 1, False),
            ("ask", 0, True),
        ]
        assert policy["rules"][0]["last_called"] is not None and policy["warnings"] == []
        matched = (await http.get("/v1/calls", params={"rule": policy["rules"][0]["text"]})).json()["calls"]
        assert [each["params"]["path"] for each in matched] == ["/etc/hosts", "/etc/passwd"]


async def test_the_tester_says_what_would_happen_and_calls_nothing():
    async with serve(look, wipe, policy=POLICY) as site, site.client("root", **ADMIN) as http:
        async with site.client("reader", max_effect="read_only"), site.client("worker"):
            allowed = await predict(http, token="reader", tool="look", arguments={"path": "a"})
            assert (allowed["verdict"], allowed["is_listed"], allowed["problems"]) == ("allow", True, [])
            denied = await predict(http, token="reader", tool="look", arguments={"path": "/etc/passwd"})
            assert denied["verdict"] == "deny" and denied["reason"] == "That is private."
            assert denied["rule"] == str(POLICY.rules[0])
            hidden = await predict(http, token="reader", tool="wipe", arguments={"path": "a"})
            assert hidden["verdict"] == "deny" and not hidden["is_listed"] and "read_only" in hidden["reason"]
            asked = await predict(http, token="worker", tool="wipe", arguments={"path": "a"}, chosen_by_model=True)
            assert asked["verdict"] == "ask" and asked["principal"] == "agent:worker"
            wrong = await predict(http, tool="look", arguments={"depth": "deep"})
            assert len(wrong["problems"]) == 2 and wrong["principal"] == "user:local"
        for body in ({"token": "nobody", "tool": "look"}, {"tool": "nothing"}):
            assert (await http.post("/v1/policy/test", json=body)).status_code == 404
        assert (await http.get("/v1/calls")).json()["calls"] == []


@pytest.mark.parametrize("role", ["viewer", "caller", "approver"])
async def test_only_administrators_see_the_policy_and_the_audit(role: str):
    async with serve(look, policy=POLICY) as site, site.client("other", roles=[role]) as http:
        for path in ("/v1/policy", "/v1/audit", "/v1/tokens", "/v1/calls?rule=x"):
            assert (await http.get(path)).status_code == 403
        assert (await http.post("/v1/policy/test", json={"tool": "look"})).status_code == 403
        assert (await http.patch("/v1/failures/x", json={"pinned": True})).status_code == 403
        assert (await http.delete("/v1/failures")).status_code == 403


async def test_an_administrator_of_a_tenant_sees_its_own_part():
    hiding = Policy(rules=[Rule(verdict="deny", tool="wipe", principal="tenant:acme")])
    async with (
        serve(look, wipe, policy=hiding) as site,
        site.client("root", **ADMIN) as root,
        site.client("boss", **ADMIN, tenant="acme") as boss,
        site.client("other", tenant="else"),
    ):
        await root.post("/v1/tokens", json={"name": "of-root"})
        assert (await boss.post("/v1/tokens", json={"name": "of-acme", "tenant": "acme"})).status_code == 201
        own = (await boss.get("/v1/audit")).json()["entries"]
        assert [(entry["by"], entry["subject"]) for entry in own] == [("token:boss", "of-acme")]
        everything = (await root.get("/v1/audit")).json()["entries"]
        assert [entry["subject"] for entry in everything] == ["of-acme", "of-root"]
        for body in ({"token": "other", "tool": "look"}, {"token": "of-acme", "tool": "wipe"}):
            assert (await boss.post("/v1/policy/test", json=body)).status_code == 404
        assert (await boss.post("/v1/policy/test", json={"tool": "look"})).status_code == 403
        assert (await predict(boss, token="of-acme", tool="look", arguments={"path": "a"}))["verdict"] == "allow"
        assert "buckets" not in (await boss.get("/v1/limits")).json()


async def test_an_administrator_of_a_tenant_is_told_no_names_of_hidden_tools_and_of_other_tenants():
    rules = [
        Rule(verdict="deny", tool="wipe", principal="tenant:acme"),
        Rule(verdict="ask", tool="look", principal="tenant:else"),
        Rule(verdict="allow", tool="look"),
    ]
    async with (
        serve(look, wipe, policy=Policy(rules=rules)) as site,
        site.client("boss", **ADMIN, tenant="acme") as boss,
    ):
        policy = (await boss.get("/v1/policy")).json()
        own = [rule["text"] for rule in policy["rules"] if not rule["is_built_in"]]
        assert own == ["allow: tool look"]
        await boss.post("/v1/tokens", json={"name": "of-acme", "tenant": "acme"})
        asked = await boss.post("/v1/policy/test", json={"token": "of-acme", "tool": "wip"})
        assert asked.status_code == 404 and "wipe" not in asked.text


async def test_what_administrators_do_is_kept():
    async with serve(look) as site, site.client("root", **ADMIN) as http:
        await http.post("/v1/tokens", json={"name": "ci", "roles": ["caller"]})
        await http.patch("/v1/tools/look", json={"enabled": False})
        await http.delete("/v1/tokens/ci")
        await http.delete("/v1/failures")
        entries = (await http.get("/v1/audit")).json()["entries"]
        assert [(entry["action"], entry["subject"]) for entry in entries] == [
            ("forget_failures", ""),
            ("revoke_token", "ci"),
            ("disable_tool", "look"),
            ("create_token", "ci"),
        ]
        assert {entry["by"] for entry in entries} == {"token:root"}
        assert entries[-1]["details"]["roles"] == ["caller"] and "frl_" not in str(entries)


async def test_refusals_and_decisions_are_counted():
    parser = pytest.importorskip("prometheus_client.parser", reason="pip install 'ferrule[server]'")
    async with (
        serve(look, wipe, policy=POLICY) as site,
        site.client("root", **ADMIN) as root,
        site.client("slow", calls_per_minute=1) as slow,
    ):
        assert [(await call(slow, "look", path="x")).status_code for _ in range(2)] == [200, 429]
        asked = (await call(root, "wipe", path="x")).json()
        await root.post(f"/v1/approvals/{asked['metadata']['approval_id']}", json={"allowed": False})
        families = parser.text_string_to_metric_families((await root.get("/metrics")).text)
        samples = [each for family in families for each in family.samples]
        values = {(each.name, *sorted(each.labels.items())): each.value for each in samples}
        labels = ("method", "POST"), ("route", "/v1/tools/{name}/call"), ("status", "429")
        assert values["ferrule_http_request_duration_seconds_count", *labels] == 1
        assert values["ferrule_approval_requests_total", ("tool", "wipe")] == 1
        assert values["ferrule_approval_decisions_total", ("decision", "refused"), ("tool", "wipe")] == 1


async def test_a_worker_that_has_ended_keeps_its_counters_and_loses_its_gauges(tmp_path: Path):
    async with serve(look) as one, serve(look) as other:
        first = ServerMetrics(one.library.engine, "first", tmp_path, lambda: {"/mcp": 3})
        second = ServerMetrics(other.library.engine, "second", tmp_path, lambda: {"/mcp": 2})
        for site in (one, one, other):
            await site.library.execute("look", {"path": "x"})
        first.write()
        calls, sessions = (
            'ferrule_tool_calls_total{status="success",tool="look"} 3.0',
            'ferrule_mcp_sessions{server="/mcp"}',
        )
        for living, number in ((["first"], 5), ([], 2)):
            text = second.render(living).decode()
            assert calls in text and f"{sessions} {number}.0" in text, text
        await one.library.execute("look", {"path": "x"})
        assert calls in second.render(["first"]).decode(), "it has not said so yet"
        first.render([])
        assert calls.replace("3.0", "4.0") in second.render([]).decode(), "what was reported once stays"


async def test_a_token_gets_another_secret_while_the_earlier_one_is_valid_for_a_while():
    async with serve(look) as site, site.client("root", **ADMIN) as root, site.client("ci", tools=["look"]) as old:
        session = (await old.post("/v1/session")).cookies["ferrule_session"]
        own_id = (await old.get("/v1/me")).json()["token"]["token_id"]
        rotated = (await root.post("/v1/tokens/ci/rotate", json={"overlap": 60})).json()
        async with site.anonymous_client(Authorization=f"Bearer {rotated['token']}") as new:
            for http in (old, new):
                assert (await call(http, "look", path="x")).status_code == 200
            assert (await new.get("/v1/me")).json()["token"]["token_id"] == own_id == rotated["token_id"]
            assert (await old.get("/v1/me")).json()["token"]["expires_at"] is not None
            await root.post("/v1/tokens/ci/rotate", json={"overlap": 0})
            cookie = site.anonymous_client(Cookie=f"ferrule_session={session}")
            for http in (old, new, cookie):
                assert (await call(http, "look", path="x")).status_code == 401
        names = [each["name"] for each in (await root.get("/v1/tokens")).json()["tokens"]]
        assert sorted(names) == ["ci", "root"], "an earlier secret is no token of its own"
        assert (await root.post("/v1/tokens/nobody/rotate", json={})).status_code == 404
        assert (await root.post("/v1/tokens/ci/rotate", json={"overlap": False})).status_code == 422
        entries = (await root.get("/v1/audit")).json()["entries"]
        assert entries[0]["action"] == "rotate_token" and "frl_" not in str(entries)


async def test_nobody_gets_the_secret_of_a_token_that_may_do_more():
    async with (
        serve(look) as site,
        site.client("root", **ADMIN) as root,
        site.client("narrow", **ADMIN, tools=["look"]) as narrow,
        site.client("short", **ADMIN, expires_in=3600) as short,
        site.client("acme", **ADMIN, tenant="acme") as acme,
        site.client("caller") as caller,
    ):
        for http, status in ((narrow, 403), (short, 403), (acme, 404), (caller, 403)):
            refused = await http.post("/v1/tokens/root/rotate", json={"overlap": 0})
            assert refused.status_code == status and "frl_" not in refused.text, refused.text
        rotated = (await root.post("/v1/tokens/root/rotate", json={})).json()
        assert rotated["token"].startswith("frl_")
        refused = await root.post("/v1/tokens/root/rotate", json={"overlap": 0})
        assert refused.status_code == 403, "an earlier secret does not lock out the new one"


async def test_a_failure_is_pinned_counted_and_forgotten():
    turn = [{"name": "look", "arguments": {"path": "missing"}}]
    model = ScriptedModel([turn, turn, turn, "It is not there."])
    async with serve(look, model=model) as site, site.client("root", **ADMIN) as http:
        await http.post("/v1/ask", json={"question": "Where is it?"})
        (pattern,) = (await http.get("/v1/failures")).json()["failures"]
        assert (pattern["tool_id"], pattern["prevented"], pattern["pinned"]) == ("look", 2, False)
        pinned = await http.patch(f"/v1/failures/{pattern['key']}", json={"pinned": True})
        assert pinned.json()["pinned"]
        assert (await http.get("/v1/failures")).json()["failures"][0]["pinned"]
        assert (await http.patch("/v1/failures/none", json={"pinned": True})).status_code == 404
        assert (await http.delete("/v1/failures", params={"key": "none"})).json() == {"forgotten": 0}
        assert (await http.delete("/v1/failures", params={"key": pattern["key"]})).json() == {"forgotten": 1}
        assert (await http.get("/v1/failures")).json()["failures"] == []
        assert site.library.failures.patterns() == []  # the runs of this server have forgotten it too


async def test_figures_over_time_count_every_call_once():
    async with serve(look, wipe) as site, site.client("root", **ADMIN) as http, site.client("ann") as ann:
        for path in ("a", "b", "missing"):
            await call(http, "look", path=path)
        await call(ann, "look", path="c")
        series = (await http.get("/v1/stats/series", params={"parts": 7})).json()["intervals"]
        assert len(series) == 7 and sum(each["calls"] for each in series) == 4
        assert sum(each["failures"] for each in series) == 1
        assert all(each["p50"] <= each["p95"] <= each["p99"] for each in series if each["p50"] is not None)
        for filters, number in (({"principal": "token:ann"}, 1), ({"status": "failed"}, 1), ({"tool": "wipe"}, 0)):
            intervals = (await http.get("/v1/stats/series", params=filters)).json()["intervals"]
            assert sum(each["calls"] for each in intervals) == number
        assert (await http.get("/v1/stats/series", params={"since": "2999-01-01T00:00:00Z"})).status_code == 422
        limits = (await http.get("/v1/limits")).json()
        assert limits["samples"][-1]["buckets"].keys() == limits["buckets"].keys() != set()


async def test_a_question_is_answered_by_a_model_that_the_client_chooses():
    main, other = ScriptedModel(["from the usual one"]), ScriptedModel(["from the other one"], name="scripted:other")
    async with serve(look, model=main, models={"other": other}) as site, site.client("ann") as http:
        agent = (await http.get("/v1/agent")).json()
        assert agent["models"] == ["other"] and agent["model"] == main.name
        asked = await http.post("/v1/ask", json={"question": "Who answers?", "model": "other"})
        assert asked.json()["answer"] == "from the other one"
        run = (await http.get(f"/v1/runs/{asked.json()['run_id']}")).json()
        assert run["model"] == "scripted:other" == run["history"][0]["model"]
        assert run["history"][0]["tools"]["look"] > 0
        assert (await http.post("/v1/ask", json={"question": "Who?", "model": "expensive"})).status_code == 404
        assert (await http.post("/v1/ask", json={"question": "Who?"})).json()["answer"] == "from the usual one"
