"""Plan, loop or direct."""

from typing import Any

import pytest

from ferrule import SetupError, UnifiedToolLibrary, tool
from ferrule.errors import ModelRefused
from ferrule.models.offline import OfflineModel
from ferrule.orchestrator import Orchestrator
from ferrule.orchestrator.strategy import StrategyChosen, by_question
from ferrule.testing import ScriptedModel


@tool(read_only=True)
async def weather(city: str) -> str:
    """Tell the weather in a city."""
    return "sunny"


@tool(read_only=True)
async def send_mail(to: str) -> str:
    """Send an email to somebody."""
    return "sent"


@pytest.mark.parametrize(
    ("question", "strategy"),
    [
        ("Look up the weather in Oslo, then write it down.", "plan"),
        ("1. weather in Oslo 2. weather in Rome", "plan"),
        ("查一下奥斯陆的天气，然后发邮件给安娜", "plan"),
        ("Tell me the weather in Oslo and send an email to Anna", "plan"),
        ("What is the weather in Oslo?", "loop"),
        ("weather in Oslo and Rome", "loop"),
        ("How do I get to the station?", "loop"),
        ("Explain recursion", "direct"),
        ("Translate into French: It rains. Then it snows. What a day!", "direct"),
        ("谢谢！", "direct"),
        ("Write an email to Anna", "loop"),
    ],
)
async def test_the_words_of_a_question_decide(question, strategy):
    async with UnifiedToolLibrary() as library:
        library.register(weather, send_mail)
        assert by_question(question, library, thinks=True).strategy == strategy


async def test_without_tools_a_model_that_thinks_answers_alone():
    async with UnifiedToolLibrary() as library:
        for tool_id in list(library.engine.registry.snapshot().by_id):
            await library.unregister_tool(tool_id)
        assert by_question("Who wrote Hamlet?", library, thinks=True).strategy == "direct"
        assert by_question("Who wrote Hamlet?", library, thinks=False).strategy == "loop"


async def test_a_model_that_cannot_think_is_never_asked_directly():
    async with UnifiedToolLibrary() as library:
        library.register(weather)
        assert by_question("Explain recursion", library, thinks=False).strategy == "loop"
        assert by_question("weather in Oslo; weather in Rome", library, thinks=False).strategy == "plan"
        assert by_question("Compute 3*4, then double it", library, thinks=False).strategy == "loop"


async def test_who_asks_may_say_how():
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
    async with UnifiedToolLibrary() as library, Orchestrator(library, model, strategy="model") as orchestrator:
        done = await orchestrator.process_task("Who wrote Hamlet?")
        assert done.strategy == "direct" and done.answer == "Shakespeare." and done.usage.requests == 2
        schema = model.requests[0].answer_schema
        assert schema is not None and schema["properties"]["strategy"]["enum"] == ["plan", "loop", "direct"]


@pytest.mark.parametrize("turn", ["I would say loop", '{"strategy": "magic"}', ModelRefused("no")])
async def test_a_model_that_does_not_choose_leaves_it_to_the_question(turn):
    model = ScriptedModel([turn, "Recursion is recursion."])
    async with UnifiedToolLibrary() as library, Orchestrator(library, model, strategy="model") as orchestrator:
        assert (await orchestrator.process_task("Explain recursion")).strategy == "direct"


async def test_a_model_that_cannot_think_is_not_asked_to_choose():
    async with UnifiedToolLibrary() as library, Orchestrator(library, OfflineModel(), strategy="model") as orchestrator:
        assert (await orchestrator.process_task("What is 2 + 2?")).answer == "calculator: 4"


async def test_a_wrong_word_is_told_with_the_right_one():
    async with UnifiedToolLibrary() as library:
        with pytest.raises(SetupError, match="no strategy 'plann'. Did you mean 'plan'"):
            Orchestrator(library, ScriptedModel([]), strategy="plann")
        with pytest.raises(SetupError, match="no strategy 'lop'. Did you mean 'loop'"):
            await Orchestrator(library, ScriptedModel([])).process_task("Who?", strategy="lop")
        with pytest.raises(SetupError, match="no workflow 'langraph'. Did you mean 'langgraph'"):
            Orchestrator(library, ScriptedModel([]), workflow="langraph")  # type: ignore[arg-type]
