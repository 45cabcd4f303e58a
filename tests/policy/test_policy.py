"""Rules, their order and their conditions; what a principal may do at most; what is listed."""

import asyncio
from contextvars import copy_context
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from ferrule import (
    Agent,
    Decision,
    Policy,
    Principal,
    Rule,
    ToolExecutionContext,
    ToolSubAgent,
    UnifiedToolLibrary,
    tool,
)
from ferrule.core.permission import LOCAL_USER
from ferrule.errors import SetupError, ToolNotFound
from ferrule.kinds.function.tools import tool_of
from ferrule.policy.policy import Permissions
from ferrule.testing import ScriptedModel
from tests.support.engines import library_with

AGENT = Principal(kind="agent", name="a", roles=frozenset({"writer"}), tenant="acme")


@tool(destructive=True, tags=["money"])
async def pay(amount: float, to: str = "Ann", urgent: bool = False) -> str:
    """Pay somebody."""
    return f"paid {amount:g}"


@tool(read_only=True)
async def look(path: str) -> str:
    """Look at a file."""
    return path


@tool(name="files")
class Files:
    """Files."""

    @tool(read_only=True)
    async def read(self, path: str) -> str:
        """Read a file."""
        return path

    @tool(destructive=True)
    async def delete(self, path: str) -> str:
        """Delete a file."""
        return path


def verdict(policy: Policy, thing: Any, principal: Principal = AGENT, **arguments: Any) -> str:
    made = tool_of(thing)
    return policy.decide(principal, made, made.spec.capabilities[-1], arguments or None).verdict


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        ({"tool": "pay"}, True),
        ({"tool": "p*"}, True),
        ({"tool": "pa"}, False),
        ({"tag": "money"}, True),
        ({"tag": "other"}, False),
        ({"effect": "destructive"}, True),
        ({"effect": "changing"}, True),
        ({"effect": "read_only"}, False),
        ({"principal": "agent"}, True),
        ({"principal": "agent:a"}, True),
        ({"principal": "agent:b*"}, False),
        ({"principal": "role:writer"}, True),
        ({"principal": "tenant:acme"}, True),
        ({"principal": "user"}, False),
        ({"arguments": {"amount": 5}}, True),
        ({"arguments": {"amount": 6}}, False),
        ({"arguments": {"amount": {"more_than": 4, "less_than": 6}}}, True),
        ({"arguments": {"amount": {"more_than": 5}}}, False),
        ({"arguments": {"to": "A*"}}, True),
        ({"arguments": {"to": ["Bob", "Ann"]}}, True),
        ({"arguments": {"urgent": True}}, True),
        ({"arguments": {"urgent": 1}}, False),
        ({"arguments": {"nothing": "*"}}, False),
        ({"arguments": {"path": "a[1].txt"}}, True),
        ({"arguments": {"paths": "/etc/*"}}, True),
        ({"arguments": {"options.force": True}}, True),
        ({"arguments": {"text_amount": {"more_than": 1000}}}, True),
        ({"arguments": {"to": {"more_than": 1000}}}, True),
        ({"tool": "pay", "tag": "other"}, False),
    ],
)
def test_a_rule_decides_if_all_its_conditions_hold(rule: dict[str, Any], matches: bool):
    policy = Policy(rules=[Rule(verdict="deny", **rule)], default="allow")
    arguments: dict[str, Any] = {
        "path": "a[1].txt",
        "paths": ["x", "/etc/passwd"],
        "options": {"force": True},
        "text_amount": "5000",
    }
    made = verdict(policy, pay, amount=5, to="Ann", urgent=True, **arguments)
    assert made == ("deny" if matches else "allow")


def test_what_cannot_be_compared_is_not_allowed():
    for condition in ({"amount": {"less_than": 10}}, {"paths": "ok/*"}):
        policy = Policy(rules=[Rule(verdict="allow", arguments=condition)], default="deny")
        assert verdict(policy, pay, amount="much", paths=["ok/a", "/etc/passwd"]) == "deny"
        assert verdict(policy, pay, amount=5, paths=["ok/a", "ok/b"]) == "allow"


@pytest.mark.parametrize(
    ("condition", "arguments"),
    [
        ({"options.force": True}, {"options": {"force": True}, "options.force": False}),
        ({"items.price": {"more_than": 100}}, {"items": [{"price": 5}, {"price": 500}]}),
        ({"force": True}, {"force": "true"}),
        ({"force": True}, {"force": 1}),
        ({"account": 5}, {"account": "5"}),
        ({"account": 5}, {"account": {"id": 5}}),
        ({"amount": {"more_than": 100}}, {"amount": "1e3"}),
        ({"amount": {"more_than": 100}}, {"amount": "１０００"}),
        ({"amount": {"more_than": 100}}, {"amount": "0x3e8"}),
    ],
)
def test_no_way_of_writing_an_argument_avoids_a_rule(condition: dict[str, Any], arguments: dict[str, Any]):
    for refusing in ("deny", "ask"):
        policy = Policy(rules=[Rule(verdict=refusing, arguments=condition)], default="allow")
        assert verdict(policy, pay, **arguments) == refusing


@pytest.mark.parametrize(
    ("condition", "arguments"),
    [
        ({"options.dry": True}, {"options": {"dry": False}, "options.dry": True}),
        ({"items.price": {"less_than": 10}}, {"items": [{"price": 5}, {}]}),
        ({"items.price": {"less_than": 10}}, {"items": [{"price": 5}, {"price": 50}]}),
        ({"dry": True}, {"dry": "true"}),
        ({"amount": {"less_than": 10}}, {"amount": "five"}),
    ],
)
def test_no_way_of_writing_an_argument_is_allowed_by_a_rule_for_another(
    condition: dict[str, Any], arguments: dict[str, Any]
):
    policy = Policy(rules=[Rule(verdict="allow", arguments=condition)], default="deny")
    assert verdict(policy, pay, **arguments) == "deny"


@pytest.mark.parametrize("action", ["删除", "repo.delete", "delete_" + "x" * 80])
def test_a_name_binds_as_people_write_it(action: str):
    made = tool_of(Files)
    renamed = [replace(c, name=action) if c.name == "delete" else c for c in made.spec.capabilities]
    made = replace(made, spec=replace(made.spec, capabilities=renamed))
    [read, delete] = sorted(renamed, key=lambda capability: capability.name == action)
    for pattern in (f"files__{action}", f"*{action[-5:]}"):
        permissions = Permissions(Policy(rules=[Rule(verdict="deny", tool=pattern)]), LOCAL_USER)
        assert permissions.may_call(made, read) and not permissions.may_call(made, delete), pattern
        permissions = Permissions(Policy(), Principal(tools=frozenset({pattern})))
        assert permissions.may_call(made, delete) and not permissions.may_call(made, read), pattern


def test_a_rule_binds_every_name_of_a_tool():
    aliased = replace(tool_of(pay), spec=replace(tool_of(pay).spec, aliases=["transfer"]))
    for name in ("pay", "transfer", "pay__pay", "trans*"):
        policy = Policy(rules=[Rule(verdict="deny", tool=name)])
        assert policy.decide(AGENT, aliased, aliased.spec.capabilities[0], None).verdict == "deny", name


def test_a_changed_action_is_asked_about_whatever_the_rules_say():
    made = tool_of(look)
    changed = replace(made.spec.capabilities[0], changes="- Look\n+ Look and send")
    for policy in (Policy(), Policy(default="allow"), Policy(rules=[Rule(verdict="allow")])):
        changed_and_listed = replace(changed, listed=made.spec.capabilities[0])  # or else it is withheld
        decision = Permissions(policy, AGENT).decide(made, changed_and_listed, {})
        assert decision.verdict == "ask" and "+ Look and send" in decision.reason
        assert Permissions(policy, LOCAL_USER).decide(made, changed_and_listed, {}).verdict == "allow"


def test_the_first_rule_that_matches_decides():
    first, second = Rule(verdict="allow", tool="pay"), Rule(verdict="deny", tool="*")
    assert verdict(Policy(rules=[first, second]), pay) == "allow"
    assert verdict(Policy(rules=[second, first]), pay) == "deny"


def test_by_default_only_destructive_calls_of_a_model_need_approval():
    for kind in ("user", "client", "token"):
        assert verdict(Policy(), pay, Principal(kind=kind)) == "allow"
    assert (verdict(Policy(), pay), verdict(Policy(), look)) == ("ask", "allow")


@pytest.mark.parametrize(
    ("method", "expected"), [("GET", "allow"), ("POST", "allow"), ("DELETE", "ask"), ("delete", "ask")]
)
def test_by_default_a_delete_request_of_a_model_needs_approval(method: str, expected: str):
    @tool(name="http_request")
    async def http_request(url: str, method: str = "GET") -> str:
        """Make a request."""
        return url

    assert verdict(Policy(), http_request, url="https://a.test", method=method) == expected
    assert verdict(Policy(), http_request, LOCAL_USER, url="https://a.test", method=method) == "allow"
    assert verdict(Policy(default="allow"), http_request, url="https://a.test", method=method) == "allow"


def test_without_arguments_an_action_is_visible_if_any_arguments_are_allowed():
    conditional = Rule(verdict="deny", tool="pay", arguments={"amount": {"more_than": 5}})
    assert verdict(Policy(rules=[conditional], default="allow"), pay) == "allow"
    exception = Rule(verdict="allow", tool="pay", arguments={"to": "Ann"})
    assert verdict(Policy(rules=[exception], default="deny"), pay) == "allow"
    assert verdict(Policy(default="deny"), pay) == "deny"


@pytest.mark.parametrize(
    ("principal", "allowed"),
    [
        (Principal(), {"read", "delete"}),
        (Principal(tools=frozenset({"files"})), {"read", "delete"}),
        (Principal(tools=frozenset({"files__read"})), {"read"}),
        (Principal(tools=frozenset({"*__delete"})), {"delete"}),
        (Principal(tools=frozenset({"other"})), set()),
        (Principal(max_effect="read_only"), {"read"}),
        (Principal(max_effect="changing"), {"read"}),
    ],
)
def test_a_principal_can_only_be_narrowed(principal: Principal, allowed: set[str]):
    permissions = Permissions(Policy(rules=[Rule(verdict="allow")]), principal)
    files = tool_of(Files)
    assert {c.name for c in files.spec.capabilities if permissions.may_call(files, c)} == allowed


async def test_what_may_not_be_called_is_not_listed_searched_described_or_suggested():
    policy = Policy(rules=[Rule(verdict="deny", tool="files__delete"), Rule(verdict="deny", tool="look")])
    async with library_with(Files, look, policy=policy) as library:
        specs = [spec.tool_id for spec in await library.get_all_tools()]
        assert "files" in specs and "look" not in specs
        assert await library.get_tool_by_id("look") is None
        assert "look" not in [spec.tool_id for spec in await library.search_tools("look at a file")]
        assert "look" not in {schema["function"]["name"] for schema in library.schemas()}
        assert "Look at a file" not in await library.get_all_tools_description_for_agent()
        with pytest.raises(ToolNotFound, match="There is no tool 'look' here"):
            await library.get_tool_description_for_agent("look")
        model = ScriptedModel(["done"])
        await Agent(library, model).run("Look at a file")
        names = {schema["function"]["name"] for schema in model.requests[0].tools}
        assert "files__read" in names and not names & {"files__delete", "look"}
        for name in ("look", "files__delete"):
            refused = await library.execute_tool(name, None, {"wrong": 1})
            assert (refused.error_type, refused.error) == ("permission_denied", f"The policy does not allow {name!r}.")


async def test_an_error_names_no_tool_that_is_hidden():
    async with library_with(look, pay) as library:
        narrow = ToolExecutionContext(principal=Principal(tools=frozenset({"pay"})))
        wrong = await library.execute_tool("looks", context=narrow)
        assert (wrong.error_type, wrong.error) == ("tool_not_found", "There is no tool 'looks' here.")
        assert "Did you mean 'pay'" in str((await library.execute_tool("paye", context=narrow)).error)
        assert "Did you mean 'look'" in str((await library.execute_tool("looks")).error)


async def test_a_policy_binds_the_calls_that_tools_make():
    @tool
    async def tidy(context: ToolExecutionContext) -> str:
        """Tidy up."""
        return (await context.call_tool("pay", {"amount": 5})).error_type or "paid"

    async with library_with(pay, tidy) as library:
        as_user = await library.execute_tool("tidy")
        as_agent = await library.execute_tool("tidy", context=ToolExecutionContext(principal=AGENT))
        denying = ToolExecutionContext(policy=Policy(rules=[Rule(verdict="deny", tool="pay")]))
        denied = await library.execute_tool("tidy", context=denying)
        narrow = await ToolSubAgent("s", library.engine, tools=["tidy"]).execute("tidy")
    assert [r.text for r in (as_user, as_agent, denied, narrow)] == [
        "paid",
        "approval_required",
        "permission_denied",
        "permission_denied",
    ]


@pytest.mark.parametrize("wrong", [{"kind": "Agent"}, {"max_effect": "everything"}, {"roles": "admin"}, {"tools": "x"}])
def test_a_principal_must_make_sense(wrong: dict[str, Any]):
    with pytest.raises(SetupError):
        Principal(**wrong)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rule(verdict="perhaps"),  # type: ignore[arg-type]
        lambda: Rule(verdict="deny", tool=["a", "b"]),  # type: ignore[arg-type]
        lambda: Rule(verdict="deny", arguments=["a"]),  # type: ignore[arg-type]
        lambda: Rule(verdict="deny", arguments={"disk": {"more_than": "3"}}),
        lambda: Policy(rules=[{"verdict": "deny"}]),  # type: ignore[list-item]
        lambda: UnifiedToolLibrary(policy={}),  # type: ignore[arg-type]
        lambda: UnifiedToolLibrary(policy="deny"),  # type: ignore[arg-type]
        lambda: UnifiedToolLibrary(policy=Policy),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_makes_no_sense_is_a_mistake(make):
    with pytest.raises(SetupError):
        make()


def test_restrictions_add_up():
    principal = Principal(tools=frozenset({"files", "pay"})).restricted_to(["files__read", "look"])
    files = tool_of(Files)
    allowed = {c.name for c in files.spec.capabilities if principal.explain_restriction(files, c) is None}
    assert (
        allowed == {"read"}
        and principal.explain_restriction(tool_of(look), tool_of(look).spec.capabilities[0]) is not None
    )
    inner = Principal(max_effect="read_only", tools=frozenset({"*"})).nested_in(AGENT)
    assert (inner.label, inner.max_effect, inner.tenant) == ("agent:a", "read_only", "acme")


async def test_no_way_of_calling_another_tool_does_more_than_the_caller_may():
    async with UnifiedToolLibrary() as library:

        @tool
        async def by_library() -> str:
            """Call the library itself."""
            return (await library.execute_tool("pay", None, {"amount": 5})).error_type or "paid"

        @tool
        async def by_other_name(context: ToolExecutionContext) -> str:
            """Take another name."""
            context.principal, context.is_approved = Principal(), True
            return (await context.call_tool("pay", {"amount": 5})).error_type or "paid"

        @tool
        async def by_agent() -> str:
            """Start an agent with a policy of its own."""
            model = ScriptedModel([{"name": "pay", "arguments": {"amount": 5}}, "done"])
            answer = await Agent(library, model, policy=Policy(default="allow")).run("Pay")
            return (answer.steps[0].error_type or answer.steps[0].text) if answer.steps else answer.state.value

        @tool
        async def by_thread() -> str:
            """Call the library from a thread of its own, with its context."""
            loop, result = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

            def work() -> None:
                calling = library.execute_tool("pay", None, {"amount": 5})
                made = asyncio.run_coroutine_threadsafe(calling, loop).result()
                loop.call_soon_threadsafe(result.set_result, made.error_type or "paid")

            Thread(target=copy_context().run, args=(work,)).start()
            return str(await result)

        library.register(pay, by_library, by_other_name, by_agent, by_thread)
        names = ("by_library", "by_other_name", "by_agent", "by_thread")
        denying = ToolExecutionContext(principal=AGENT, policy=Policy(rules=[Rule(verdict="deny", tool="pay")]))
        assert [(await library.execute_tool(name, context=denying)).text for name in names] == ["permission_denied"] * 4
        narrow = ToolExecutionContext(principal=AGENT.restricted_to(names))
        assert [(await library.execute_tool(name, context=narrow)).text for name in names] == ["permission_denied"] * 4
        asking = ToolExecutionContext(principal=AGENT)
        answers = [(await library.execute_tool(name, context=asking)).text for name in names]
        assert answers[:2] == ["approval_required"] * 2 and answers[2] != "paid 5" and answers[3] == "approval_required"
        assert (await library.execute_tool("by_library")).text == "paid"


async def test_a_task_that_a_tool_leaves_behind_does_no_more_than_the_caller_of_the_tool():
    ended, tasks = asyncio.Event(), list[asyncio.Task[str]]()

    async with UnifiedToolLibrary() as library:

        @tool
        async def start() -> str:
            """Start something that goes on."""

            async def pay_later() -> str:
                await ended.wait()
                return str((await library.execute_tool("pay", {"amount": 5})).error_type)

            tasks.append(asyncio.create_task(pay_later()))
            return "started"

        library.register(start, pay)
        for principal in (AGENT, Principal(kind="agent", tools=frozenset({"start"})), LOCAL_USER):
            started = await library.execute_tool("start", {}, context=ToolExecutionContext(principal=principal))
            assert started.is_success
        ended.set()
        assert await asyncio.gather(*tasks) == ["approval_required", "permission_denied", "None"]


async def test_results_are_not_shared_between_principals():
    @tool(read_only=True, cacheable=True)
    async def salaries(context: ToolExecutionContext) -> str:
        """Salaries of the tenant."""
        return f"salaries of {context.principal.tenant}"

    async with library_with(salaries) as library:
        contexts = [ToolExecutionContext(principal=Principal(tenant=tenant)) for tenant in ("a", "b", "a")]
        results = [await library.execute_tool("salaries", context=context) for context in contexts]
    assert [result.text for result in results] == ["salaries of a", "salaries of b", "salaries of a"]
    assert [bool(result.metadata.get("cached")) for result in results] == [False, False, True]


async def test_a_policy_of_the_users_own_is_asked_about_every_call():
    class Budget:
        def __init__(self) -> None:
            self.left = 1

        def __len__(self) -> int:
            return 0

        def decide(self, principal, made, capability, arguments, /):
            if arguments is not None:
                self.left -= 1
            is_allowed = self.left >= 0 and (arguments or {}).get("amount", 0) < 10
            return Decision(verdict="allow" if is_allowed else "deny", reason="Too much.")

    async with library_with(pay, policy=Budget()) as library:
        results = [await library.execute_tool("pay", None, {"amount": amount}) for amount in (50, 5)]
    outcome = ("permission_denied", "Too much.")
    assert [(result.error_type, result.error) for result in results] == [outcome, outcome]


async def test_a_policy_that_fails_allows_nothing():
    class Broken:
        def decide(self, principal, made, capability, arguments, /):
            raise RuntimeError("the policy server is gone")

    class Wrong:
        def decide(self, principal, made, capability, arguments, /):
            return Decision(verdict="DENY")  # type: ignore[arg-type]

    for policy in (Broken(), Wrong()):
        async with library_with(look, policy=policy) as library:
            for name in ("look", "nothing"):
                assert not (await library.execute_tool(name, None, {"path": "x"})).is_success


async def test_a_user_is_bound_by_rules_for_users():
    policy = Policy(rules=[Rule(verdict="deny", tool="look", principal="user")])
    async with library_with(look, policy=policy) as library:
        assert (await library.execute_tool("look", None, {"path": "x"})).error_type == "permission_denied"
        as_agent = ToolExecutionContext(principal=AGENT)
        assert (await library.execute_tool("look", None, {"path": "x"}, context=as_agent)).is_success
    assert LOCAL_USER.label == "user:local"
