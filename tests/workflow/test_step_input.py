"""The input of a step that has no parameters: taken from the step's words (000 §3.2)."""

from typing import Any

import pytest

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent.answer import PlanStep, StepResult
from ferrule.agent.control_tools import history_tool
from ferrule.core.messages import ToolCall
from ferrule.core.model import ModelReply
from ferrule.errors import ModelError
from ferrule.memory.conversation import ConversationMemory
from ferrule.models.offline import OfflineModel
from ferrule.testing import ScriptedModel
from ferrule.workflow import ExecutionAgent
from ferrule.workflow.results import StepContext


async def execute(library: UnifiedToolLibrary, model: Any, tool_type: str, description: str) -> StepResult:
    step = PlanStep(id=1, description=description, tool_type=tool_type)
    return await ExecutionAgent(library, model).execute_step(step, StepContext(question=description))


@pytest.mark.parametrize("description", ["time in Tokyo", "What time is it in Tokyo?", "东京现在几点"])
async def test_optional_parameters_are_filled_from_the_words_of_the_step(description: str):
    async with UnifiedToolLibrary() as library:
        result = await execute(library, OfflineModel(), "get_time", description)
    assert result.success and "Asia/Tokyo" in str(result.output)


@pytest.mark.parametrize(
    ("description", "query"),
    [("get the last question of the user", "last_question"), ("list the questions", "questions"), ("look", "all")],
)
async def test_without_a_model_the_words_of_the_step_name_the_part_of_the_history(description: str, query: str):
    async with UnifiedToolLibrary() as library:
        library.register(history_tool(ConversationMemory(library.engine.store)))
        assert (await execute(library, OfflineModel(), "get_conversation_history", description)).success
        [record] = await library.engine.query_call_records()
    assert record.params["query"] == query


@tool(read_only=True)
async def weather(city: str = "London", unit: str = "C") -> str:
    """Tell the weather."""
    return f"{city} {unit}"


@tool(read_only=True)
async def dice() -> int:
    """Roll a die."""
    return 4


@pytest.mark.parametrize(
    "reply",
    [
        ModelError("no answer"),
        ModelReply(tool_calls=(ToolCall(name="weather", arguments={"city": {"not": "a text"}}),)),
        ModelReply(text="I would call weather."),
    ],
)
async def test_a_tool_that_requires_nothing_is_called_without_arguments_if_the_model_gives_no_valid_ones(reply: Any):
    async with UnifiedToolLibrary() as library:
        library.register(weather)
        result = await execute(library, ScriptedModel([reply]), "weather", "the weather")
    assert result.success and result.output == "London C"


async def test_the_model_is_not_asked_about_a_tool_without_parameters():
    async with UnifiedToolLibrary() as library:
        library.register(dice)
        model = ScriptedModel([])
        result = await execute(library, model, "dice", "roll a die")
    assert result.output == 4 and not model.requests


@pytest.mark.parametrize(
    "reply", ['{"city": "Paris"}', 'The arguments are:\n```json\n{"city": "Paris"}\n```', '{"a": 1} {"city": "Paris"}']
)
async def test_a_reply_with_the_arguments_alone_is_read(reply: str):
    async with UnifiedToolLibrary() as library:
        library.register(weather)
        result = await execute(library, ScriptedModel([reply]), "weather", "the weather in Paris")
    assert result.success and result.output == "Paris C"
