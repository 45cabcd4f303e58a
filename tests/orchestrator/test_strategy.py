"""Plan, loop or direct."""

from typing import Any

import pytest

from ferrule import SetupError, UnifiedToolLibrary, tool
from ferrule.agent.budget import RunBudget
from ferrule.core.messages import ToolCall
from ferrule.errors import ModelRefused
from ferrule.models.offline import OfflineModel
from ferrule.orchestrator import Orchestrator
from ferrule.orchestrator.orchestrator import StrategyChosen, choose_strategy
from ferrule.testing import ScriptedModel
from tests.orchestrator.opening import open_orchestrator


@tool(read_only=True)
async def weather(city: str) -> str:
    """Tell the weather in a city."""
    return "sunny"


@tool(read_only=True)
async def send_mail(to: str) -> str:
    """Send an email to somebody."""
    return "sent"


@pytest.mark.parametrize(
    ("question", "tools"),
    [
        ("weather in Oslo; weather in Rome", ["weather", "weather"]),
        ("1. weather in Oslo 2. weather in Rome", ["weather", "weather"]),
        ("查一下Oslo的天气，然后查一下Rome的天气", ["weather", "weather"]),
        ("Tell me the weather in Oslo and send an email to Anna", ["weather", "send_mail"]),
        ("What is the weather in Oslo?", ["weather"]),
        ("weather in Oslo and Rome", ["weather", "weather"]),
        ("How do I get to the station?", []),
        ("Explain recursion", []),
        ("Translate into French: It rains. Then it snows. What a day!", []),
        ("Compute 3*4, then double it", ["calculator", "calculator"]),
    ],
)
async def test_the_offline_model_answers_all_parts_of_a_question_in_the_loop(question, tools):
    async with UnifiedToolLibrary() as library:
        library.register(weather, send_mail)
        for strategy in (None, "model"):
            choice = await choose_strategy(question, strategy, library, OfflineModel(), RunBudget())
            assert choice.strategy == "loop"
        async with Orchestrator(library, OfflineModel(), cache_ttl=None) as orchestrator:
            done = await orchestrator.process_task(question)
        assert [step.tool_type for step in done.steps] == tools
        assert done.is_finished == bool(tools)


@pytest.mark.parametrize(
    "question", ["please add 1 and 2 for me", "1. weather in Oslo 2. an email to Anna", "Explain recursion", "谢谢！"]
)
async def test_a_model_that_can_think_answers_in_the_loop(question):
    async with UnifiedToolLibrary() as library:
        library.register(weather, send_mail)
        assert (await choose_strategy(question, None, library, ScriptedModel([]), RunBudget())).strategy == "loop"


async def test_the_caller_may_choose_the_strategy():
    plan = '{"steps": [{"id": 1, "description": "think", "tool_type": "none"}]}'
    seen: list[Any] = []
    async with UnifiedToolLibrary() as library:
        async with Orchestrator(
            library, ScriptedModel(["a", plan, "b", "c"]), strategy="loop", workflow="simple"
        ) as orchestrator:
            done = [
                await orchestrator.process_task("One?", on_event=seen.append),
                await orchestrator.process_task("Two?", strategy="plan"),
                await orchestrator.process_task("Three?", strategy="direct"),
            ]
        assert [(one.strategy, one.answer) for one in done] == [("loop", "a"), ("plan", "b"), ("direct", "c")]
        assert seen[0] == StrategyChosen(strategy="loop", reason="it was asked for", run_id=done[0].run_id)


async def test_the_model_may_choose():
    model = ScriptedModel(['Sure: {"strategy": "direct"}', "Shakespeare."])
    async with open_orchestrator([], model, strategy="model") as orchestrator:
        done = await orchestrator.process_task("Who wrote Hamlet?")
        assert done.strategy == "direct" and done.answer == "Shakespeare." and done.usage.requests == 2
        schema = model.requests[0].answer_schema
        assert schema is not None and schema["properties"]["strategy"]["enum"] == ["plan", "loop", "direct"]


@pytest.mark.parametrize("turn", ["I would say loop", '{"strategy": "magic"}', ModelRefused("no")])
async def test_a_model_that_does_not_choose_answers_in_the_loop(turn):
    model = ScriptedModel([turn, "Recursion is recursion."])
    async with open_orchestrator([], model, strategy="model") as orchestrator:
        assert (await orchestrator.process_task("Explain recursion")).strategy == "loop"


async def test_a_model_that_cannot_think_is_not_asked_to_choose():
    async with open_orchestrator([], OfflineModel(), strategy="model") as orchestrator:
        assert (await orchestrator.process_task("What is 2 + 2?")).answer == "2 + 2 = 4"


async def test_a_misspelt_name_gets_a_suggestion():
    async with UnifiedToolLibrary() as library:
        with pytest.raises(SetupError, match="no strategy 'plann'. Did you mean 'plan'"):
            Orchestrator(library, ScriptedModel([]), strategy="plann")
        with pytest.raises(SetupError, match="no strategy 'lop'. Did you mean 'loop'"):
            await Orchestrator(library, ScriptedModel([])).process_task("Who?", strategy="lop")
        with pytest.raises(SetupError, match="no workflow 'langraph'. Did you mean 'langgraph'"):
            Orchestrator(library, ScriptedModel([]), workflow="langraph")  # type: ignore[arg-type]


@pytest.mark.parametrize("workflow", ["simple", "langgraph"])
async def test_a_model_that_writes_no_plan_answers_in_the_loop_with_tools(workflow):
    call = ToolCall(id="1", name="weather", arguments={"city": "Oslo"})
    model = ScriptedModel(["Sure!", "Here is my plan.", [call], "It is sunny in Oslo."])
    events: list[Any] = []
    async with open_orchestrator([weather], model, workflow=workflow, cache_ttl=None) as orchestrator:
        done = await orchestrator.process_task("weather in Oslo", strategy="plan", on_event=events.append)
    assert done.answer == "It is sunny in Oslo." and [step.tool_type for step in done.steps] == ["weather"]
    chosen = [event for event in events if isinstance(event, StrategyChosen)]
    assert [event.strategy for event in chosen] == ["plan", "loop"] and "no plan" in chosen[1].reason
    assert done.run_id == chosen[1].run_id != chosen[0].run_id
