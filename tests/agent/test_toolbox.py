"""Which of many tools a model is shown."""

from typing import Any

import pytest

from ferrule import Policy, Principal, Rule, UnifiedToolLibrary
from ferrule.agent import Agent
from ferrule.agent.toolbox import MAX_SCHEMA_TOKENS
from ferrule.catalog.search import index as registry_index
from ferrule.core.content import encode_json
from ferrule.core.messages import Schema
from ferrule.core.spec import Tool
from ferrule.orchestrator import Orchestrator
from ferrule.testing import ScriptedModel
from ferrule.texts.shorten import estimate_tokens
from tests.catalog.search.searchable_tools import (
    function_docs,
    make_tool,
    mcp_servers,
    needs_data,
    needs_encoder,
    office_tools,
)


@pytest.fixture(autouse=True)
def by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding a thousand tools takes seconds, and most tests are not about it."""
    monkeypatch.setattr(registry_index, "has_encoder", lambda: False)


def many_tools() -> list[Tool]:
    parameters = {"type": "object", "properties": {"text": {"type": "string", "description": "What to work on. " * 5}}}
    numbered = [make_tool(f"job_{n}", f"Do the job with the number {n}.", parameters=parameters) for n in range(1_000)]
    return [*numbered, *office_tools()]


def names(schemas: Any) -> list[str]:
    return [schema["function"]["name"] for schema in schemas]


def count_tokens(schemas: Any) -> int:
    return sum(estimate_tokens(encode_json(schema).decode()) for schema in schemas)


async def first_request(registered: list[Tool], task: str, **options: Any) -> list[Schema]:
    """The schemas that a model is shown first."""
    async with UnifiedToolLibrary() as library:
        library.engine.registry.add(*registered)
        model = ScriptedModel(["done"])
        await Agent(library, model, **options).run(task)
        return list(model.requests[0].tools)


async def test_of_a_thousand_tools_the_best_are_shown_in_few_tokens():
    task = "Reserve a seat on a plane, then do the job 77."
    schemas = await first_request(many_tools(), task, control_tools=["finish_task"])
    assert {"book_flight", "job_77", "search_tools", "call_tool", "finish_task"} <= {*names(schemas)}
    assert count_tokens(schemas) < 2_000 and names(schemas)[:-2] == sorted(names(schemas)[:-2])


@needs_data
@pytest.mark.parametrize("task", ["What is the weather in Rome?", "Merge my pull request on GitHub."])
async def test_the_first_prompt_with_real_tools_stays_short(task: str):
    schemas = await first_request([*function_docs(), *mcp_servers()], task)
    assert count_tokens(schemas) < 2_000 and len(schemas) > 5


@needs_encoder
async def test_a_question_in_another_language_is_shown_the_right_tool(monkeypatch):
    monkeypatch.setattr(registry_index, "has_encoder", lambda: True)
    monkeypatch.setattr(registry_index, "PREPARATION_TIMEOUT", 120)
    schemas = await first_request(office_tools(), "明天会下雨吗？", schema_tokens=1)
    assert "tell_weather" in names(schemas) and "send_mail" not in names(schemas)


async def test_a_few_tools_are_all_shown_and_nothing_is_encoded(monkeypatch):
    monkeypatch.setattr(registry_index, "has_encoder", lambda: True)
    monkeypatch.setattr(registry_index, "shared_encoder", lambda: pytest.fail("the encoder was loaded"))
    schemas = await first_request(office_tools(), "明天会下雨吗？", tools=[tool.id for tool in office_tools()])
    assert {tool.id for tool in office_tools()} <= {*names(schemas)} and "search_tools" not in names(schemas)


async def test_a_tool_with_a_long_schema_is_shown_without_its_details():
    fields = {f"field_{n}": {"type": "string", "description": "What it is for. " * 20} for n in range(20)}
    long = make_tool("plant_tree", "Plant a tree. " * 50, parameters={"type": "object", "properties": fields})
    schemas = await first_request([*many_tools(), long], "plant a tree")
    (schema,) = [s for s in schemas if s["function"]["name"] == "plant_tree"]
    assert schema["function"]["description"] == "Plant a tree." and count_tokens(schemas) < 2_000
    assert schema["function"]["parameters"]["properties"]["field_7"] == {"type": "string"}


async def test_what_the_run_has_used_is_shown_again():
    async with UnifiedToolLibrary() as library:
        library.engine.registry.add(*many_tools())
        found = {"name": "call_tool", "arguments": {"name": "send_mail", "arguments": {}}}
        model = ScriptedModel([found, "done", "again"])
        agent = Agent(library, model)
        answer = await agent.run("Do the job 5.")
        assert "send_mail" not in names(model.requests[0].tools) and "send_mail" in names(model.requests[1].tools)
        await agent.run("And once more.", history=answer.messages)
        assert "send_mail" in names(model.requests[2].tools)


async def test_what_may_not_be_called_is_neither_shown_nor_in_the_way_of_what_may():
    hidden = Policy(rules=[Rule(verdict="deny", tool="job_*")])
    schemas = await first_request(many_tools() + [make_tool("jobs", "Do it.")], "do the job 7", policy=hidden)
    assert "jobs" in names(schemas) and not [name for name in names(schemas) if name.startswith("job_")]
    principal = Principal(kind="agent", name="demo", tools=frozenset({"job_999"}))
    async with UnifiedToolLibrary() as library:
        library.engine.registry.add(*many_tools())
        found = await library.search_tools("do the job with the number", principal=principal)
        assert [spec.tool_id for spec in found] == ["job_999"]


async def test_of_the_bundled_tools_only_those_that_can_matter_are_sent():
    async with UnifiedToolLibrary() as library:
        library.engine.registry.add(*many_tools())
        model = ScriptedModel(["4", "Noted."])
        orchestrator = Orchestrator(library, model, cache_ttl=None)
        await orchestrator.process_task("what is 2+2?")
        assert "calculator" in names(model.requests[0].tools) and count_tokens(model.requests[0].tools) < 1_200
        await orchestrator.process_task("send a mail to Ann about the flight")
        assert {"send_mail", "book_flight"} <= {*names(model.requests[1].tools)}


async def test_tools_that_the_caller_named_are_all_sent():
    tools = many_tools()[:60]
    schemas = await first_request(tools, "what is 2+2?", tools=[tool.id for tool in tools])
    assert len(schemas) == 60 and count_tokens(schemas) > MAX_SCHEMA_TOKENS


async def test_a_model_that_selects_tools_itself_is_offered_all():
    async with UnifiedToolLibrary() as library:
        library.engine.registry.add(*many_tools()[:60])
        model = ScriptedModel(["done"])
        model.selects_tools = True  # type: ignore[attr-defined]
        await Agent(library, model).run("what is 2+2?")
        assert len(model.requests[0].tools) > 60


async def test_a_follow_up_is_shown_the_tools_of_the_question_before_it():
    async with UnifiedToolLibrary() as library:
        library.engine.registry.add(*many_tools())
        model = ScriptedModel(["It rains.", "It does not."])
        orchestrator = Orchestrator(library, model, cache_ttl=None)
        await orchestrator.process_task("What will the weather be in Rome?", conversation_id="one")
        await orchestrator.process_task("And in Paris?", conversation_id="one")
        assert "tell_weather" in names(model.requests[1].tools)


async def test_a_few_tools_of_the_project_are_always_shown_beside_the_bundled_ones():
    schemas = await first_request(office_tools(), "what is 2+2?")
    assert {tool.id for tool in office_tools()} | {"calculator", "search_tools"} <= {*names(schemas)}
    assert count_tokens(schemas) < MAX_SCHEMA_TOKENS and "browser_navigator__click" not in names(schemas)


async def test_a_question_that_words_can_answer_loads_no_encoder(monkeypatch):
    monkeypatch.setattr(registry_index, "has_encoder", lambda: True)
    monkeypatch.setattr(registry_index, "shared_encoder", lambda: pytest.fail("the encoder was loaded"))
    schemas = await first_request(many_tools()[:60], "what is 2+2?")
    assert "search_tools" in names(schemas)


def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return "done"


QUESTION = "refund order A-1 amount 5"


async def ask_for_refund(strategy: str | None = None, question: str = QUESTION, **rule: Any) -> str:
    policy = Policy(rules=[Rule(verdict="deny", tool="refund", **rule)])
    async with UnifiedToolLibrary(policy=policy) as library:
        library.register(refund)
        async with Orchestrator(library, "offline", strategy=strategy) as orchestrator:
            return str(await orchestrator.process_task(question))


async def test_a_question_that_the_policy_forbids_is_refused_with_the_reason_of_the_rule():
    assert await ask_for_refund() == f"I may not do “{QUESTION}”: the policy here forbids refund."
    assert await ask_for_refund(reason="Refunds are made by hand.") == (
        f"I may not do “{QUESTION}”: the policy here forbids refund. Refunds are made by hand."
    )
    assert "the policy here forbids refund" in await ask_for_refund("plan")
    assert "这里的策略禁止使用 refund" in await ask_for_refund(question="refund 订单 A-1，金额 5")
    assert "forbids" not in await ask_for_refund(question="write a poem about spring")


@pytest.mark.parametrize(
    "principal", [Principal(kind="token", name="ci"), Principal(kind="agent", name="ci", account="token:/ci")]
)
async def test_a_client_of_a_server_is_told_nothing_of_tools_that_the_policy_hides(principal: Principal):
    policy = Policy(rules=[Rule(verdict="deny", tool="refund")])
    async with UnifiedToolLibrary(policy=policy) as library:
        library.register(refund)
        answer = await Agent(library, model="offline", principal=principal).run(QUESTION)
    assert "no tool that is set up here fits" in str(answer) and "polic" not in str(answer)


async def test_a_tool_that_an_agent_was_not_given_is_not_forbidden_by_the_policy():
    async with UnifiedToolLibrary() as library:
        library.register(refund)
        answer = await Agent(library, model="offline", tools=["calculator"]).run(QUESTION)
    assert "polic" not in str(answer)
