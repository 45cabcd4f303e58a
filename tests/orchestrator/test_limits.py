"""The limits of a run bind everything it does, from the first moment, whatever the strategy is."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent import Agent, AgentAnswer, AgentState, RunLimits
from ferrule.concurrency import ConcurrencyConfig
from ferrule.core.messages import Usage
from ferrule.core.model import ModelReply, ModelRequest, TextSink
from ferrule.errors import ModelUnavailable
from ferrule.models.retry import RetryingModel
from tests.orchestrator.opening import open_orchestrator
from tests.support.virtual_time import loop_time, virtual_time
from tests.workflow.plans import add, plan, shout, step

anyio_backend = virtual_time
STEPS = plan(step(1, "add", a=1, b=2), step(2, "shout", [1], text="${1}"))
INCOMPLETE = plan(step(1, "shout"))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.agent.budget.time", SimpleNamespace(monotonic=loop_time))


class HangingModel:
    """Replies from a list, then never."""

    name = "hanging"

    def __init__(self, *replies: str | ModelReply) -> None:
        self._replies = list(replies)
        self.requests: list[ModelRequest] = []

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        self.requests.append(request)
        if not self._replies:
            await asyncio.Event().wait()
        reply = self._replies.pop(0)
        return reply if isinstance(reply, ModelReply) else ModelReply(text=reply, usage=Usage(requests=1))


async def ask(model: Any, limits: RunLimits, **options: Any) -> AgentAnswer:
    async with open_orchestrator([add, shout], model, limits=limits, **options) as orchestrator:
        return await orchestrator.process_task("Shout the sum of one and two")


@pytest.mark.parametrize("replies", [(), (INCOMPLETE,), (STEPS,)], ids=["planning", "filling in", "answering"])
async def test_seconds_bind_every_stage_of_a_plan(workflow, replies):
    model = HangingModel(*replies)
    done = await ask(model, RunLimits(seconds=2), strategy="plan", workflow=workflow)
    assert len(model.requests) == len(replies) + 1
    if replies == (STEPS,):  # only the model's words for the answer are missing
        assert done.state is AgentState.FINISHED and done.answer == "3"
    else:
        assert "limit 2 s" in str(done.errors) or "time limit" in str(done.errors)


@pytest.mark.parametrize("strategy", ["loop", "direct", "model"])
async def test_seconds_bind_every_other_strategy_and_its_choice(strategy):
    model = HangingModel()
    done = await ask(model, RunLimits(seconds=0.2), strategy=strategy)
    assert done.state is AgentState.STOPPED and len(model.requests) == 1
    assert "limit" in str(done.errors)


@pytest.mark.parametrize("strategy", ["plan", "loop", "direct"])
async def test_seconds_bind_the_waits_between_attempts(strategy):
    class Busy:
        name = "busy"

        async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
            raise ModelUnavailable("busy", retry_after=3_000)

    done = await ask(RetryingModel(Busy(), max_wait=10_000), RunLimits(seconds=0.2), strategy=strategy)
    assert done.state is AgentState.STOPPED and "limit" in str(done.errors)


def used(text: str, tokens: int) -> ModelReply:
    return ModelReply(text=text, usage=Usage(requests=1, input_tokens=tokens))


async def test_tokens_and_cost_bind_choosing_planning_and_direct_answers():
    choice = json.dumps({"strategy": "direct"})
    model = HangingModel(used(choice, 500))
    done = await ask(model, RunLimits(tokens=400), strategy="model")
    assert done.state is AgentState.STOPPED and "500 tokens (limit 400)" in str(done.errors)
    limits = RunLimits(cost=1.0, price=lambda usage: usage.total_tokens / 100)
    model = HangingModel(used("no plan", 500))  # it would be asked once more
    done = await ask(model, limits, strategy="plan")
    assert done.state is AgentState.STOPPED and "it cost 5" in str(done.errors) and len(model.requests) == 1


async def test_seconds_bind_a_call_that_waits_for_a_slot():
    started, release = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> str:
        """Keep the only slot."""
        started.set()
        await release.wait()
        return "released"

    class Caller(HangingModel):
        async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
            return ModelReply(text='<tool_call>{"name": "shout", "arguments": {"text": "a"}}</tool_call>')

    slots = ConcurrencyConfig(max_concurrent=1, default_timeout=3_000)
    async with UnifiedToolLibrary(concurrency=slots) as library:
        library.register(shout, hold)
        holding = asyncio.create_task(library.execute_tool("hold"))
        await started.wait()
        answer = await Agent(library, Caller(), limits=RunLimits(seconds=2)).run("Go")
        assert answer.state is AgentState.STOPPED and "limit 2 s" in answer.reason
        assert {s.error_type for s in answer.steps} == {"timeout"}
        release.set()
        await holding
