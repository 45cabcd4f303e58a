"""Recorded history under other rules: no tool is called, and the results say what would have been different."""

from dataclasses import replace

import pytest

from ferrule import Agent, Policy, Principal, Rule, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.concurrency import ConcurrencyConfig
from ferrule.config import FerruleConfig
from ferrule.core.messages import Usage
from ferrule.core.model import ModelReply
from ferrule.core.prices import ModelPrice, PriceList
from ferrule.engine import ToolEngineConfig
from ferrule.errors import SetupError
from ferrule.simulation import SimulatedSlots, SimulationRules, simulate
from ferrule.testing import ScriptedModel

RULES = SimulationRules(policy=Policy(), limits=ConcurrencyConfig(), default_timeout=30.0, prices=PriceList())


@pytest.fixture
async def history():
    """A library with records of an agent: two calls of `read`, three of `write`, of which two fail in the same way."""
    executed = []

    @tool(isolation="inline")
    def read(path: str) -> str:
        """Read a file."""
        executed.append(path)
        return "text"

    @tool(isolation="inline")
    def write(path: str) -> str:
        """Write a file."""
        executed.append(path)
        if path == "/etc/x":
            raise PermissionError("not allowed")
        return "ok"

    calls = [("read", "a"), ("read", "b"), ("write", "c"), ("write", "/etc/x"), ("write", "/etc/x")]
    turns = [{"name": name, "arguments": {"path": path}} for name, path in calls]
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        library.register(read, write)
        await Agent(library, ScriptedModel([*turns, "done"]), memory=False).run("do it")
        before = len(executed)
        yield library
        assert len(executed) == before  # a simulation calls no tool


async def run(library, candidate, baseline=RULES):
    return await simulate(library.engine.store, library.engine.registry, baseline, candidate)


async def test_a_policy_is_tried_on_what_was_called(history):
    policy = Policy(
        rules=[
            Rule(verdict="deny", tool="write", arguments={"path": "/etc/*"}, reason="not there"),
            Rule(verdict="ask", tool="read"),
        ]
    )
    result = await run(
        history, SimulationRules(policy=policy, limits=RULES.limits, default_timeout=30, prices=PriceList())
    )
    assert (result.observed.calls, result.baseline.refused) == (5, 0)
    assert (result.candidate.refused, result.candidate.approvals) == (2, 2)
    assert all("write by agent:agent: not there" in reason for reason in result.candidate.refused_calls.values())
    assert "Refused: 2 of 5 calls (+2 by the new rules)." in result.sentences()


async def test_the_memory_would_have_prevented_the_repeated_failure(history):
    without = SimulationRules(
        policy=Policy(), limits=RULES.limits, default_timeout=30.0, prices=PriceList(), memory=False
    )
    result = await run(history, RULES, baseline=without)
    assert (result.observed.prevented, result.baseline.prevented, result.candidate.prevented) == (0, 0, 1)
    assert "Repeated failures prevented: 0 → 1." in result.sentences()


async def test_prices_and_unknown_tools(history):
    priced = SimulationRules(
        policy=Policy(), limits=RULES.limits, default_timeout=30.0, prices=PriceList(tools={"read": 0.5})
    )
    result = await run(history, priced)
    assert (result.baseline.cost, result.candidate.cost) == (0.0, 1.0)
    sentences = "\n".join(result.sentences())
    assert "What it cannot know:" in sentences and "what a model would have done" in sentences.lower()


async def test_another_order_of_candidates_saves_the_calls_that_failed():
    """Two tools have one tag: the first fails, the second answers. Tried first, the second makes the first needless."""

    @tool(isolation="inline", read_only=True, price=1.0)
    def slow_search(query: str) -> str:
        """Search the web."""
        raise RuntimeError("down")

    @tool(isolation="inline", read_only=True, price=2.0)
    def good_search(query: str) -> str:
        """Search the web."""
        return "found"

    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        library.register(slow_search, good_search)
        engine = library.engine
        for number in range(3):
            principal = Principal(kind="agent", name="a")
            context = ToolExecutionContext(principal=principal, conversation_id="r", tool_call_id=f"call{number}")
            for name in ("slow_search", "good_search"):
                await engine.execute(name, {"query": "a"}, context)
        rules = SimulationRules.of(FerruleConfig())
        result = await simulate(
            engine.store, engine.registry, rules, replace(rules, memory=False, hub_order=("good_search",))
        )
        kept = await simulate(engine.store, engine.registry, rules, replace(rules, hub_order=("slow_search",)))
    assert (result.observed.cost, result.candidate.skipped, result.candidate.cost) == (9.0, 3, 6.0)
    assert kept.candidate.skipped == 0
    assert "Not needed, because another candidate was tried first: 0 → 3." in result.sentences()


async def test_replies_of_models_are_priced_anew():
    usage = Usage(requests=1, input_tokens=1_000_000, output_tokens=0)
    prices = PriceList(models={"scripted": ModelPrice(input=2.0)})
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False), prices=prices) as library:
        await Agent(library, ScriptedModel([ModelReply(text="done", usage=usage)])).run("do it")
        cheap = PriceList(models={"scripted": ModelPrice(input=1.5)})
        before = replace(RULES, prices=prices)
        result = await simulate(library.engine.store, library.engine.registry, before, replace(RULES, prices=cheap))
    assert (result.observed.model_cost, result.baseline.model_cost, result.candidate.model_cost) == (2.0, 2.0, 1.5)
    assert "Cost of models: 2 → 1.5 (-25%)." in result.sentences()


def test_slots_queue_calls_as_the_limits_say():
    slots = SimulatedSlots(ConcurrencyConfig(max_concurrent=2, bucket_limits={"web": 1}))
    starts = [
        slots.start("", 0.0, 10.0),
        slots.start("", 0.0, 4.0),
        slots.start("", 1.0, 1.0),
        slots.start("", 1.0, 1.0),
    ]
    assert starts == [0.0, 0.0, 4.0, 5.0]
    assert slots.start("web", 20.0, 5.0) == 20.0
    assert slots.start("web", 21.0, 5.0) == 25.0  # the bucket has one slot
    assert slots.start("", 22.0, 1.0) == 25.0  # a slot is reserved for the call that waits for its bucket
    assert slots.start("web", 22.0, 1.0, max_wait=1.0) is None


def test_a_file_must_change_something(tmp_path):
    path = tmp_path / "new.toml"
    path.write_text('[agent]\nmodel = "offline"\n')
    with pytest.raises(SetupError, match="changes nothing"):
        RULES.with_file(path)
    path.write_text('[[policy.rules]]\ntool = "write"\nverdict = "deny"\n[engine]\ndefault_timeout = 5.0\n')
    rules = RULES.with_file(path)
    assert rules.default_timeout == 5.0 and rules.limits is RULES.limits and rules.policy != RULES.policy
