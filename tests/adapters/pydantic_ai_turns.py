"""pydantic-ai with a model whose turns are known."""

from typing import Any

from pydantic_ai import (
    Agent,
    BinaryContent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from ferrule import UnifiedToolLibrary
from ferrule.adapters.pydantic_ai import FerruleToolset, tools_of_toolset

__all__ = [
    "Agent",
    "DeferredToolRequests",
    "DeferredToolResults",
    "FerruleToolset",
    "ToolCallPart",
]
CALLER = "pydantic-ai"
VARIABLES = ["deps"]
PICTURE = ["here", BinaryContent(b"hi", media_type="image/png")]


def model_with(*turns: ToolCallPart | str) -> FunctionModel:
    """A model whose turns are known."""
    left = iter(turns)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = next(left)
        return ModelResponse(parts=[TextPart(turn) if isinstance(turn, str) else turn])

    return FunctionModel(answer)


def returns_of(run: Any) -> list[ToolReturnPart]:
    return [part for message in run.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)]


async def run(library: UnifiedToolLibrary, *turns: tuple[str, Any] | str, conversation_id: str = "c") -> list[Any]:
    """What the model is told of its calls."""
    model = model_with(*(turn if isinstance(turn, str) else ToolCallPart(*turn) for turn in turns))
    agent = Agent(model, toolsets=[FerruleToolset(library)])
    return [part.content for part in returns_of(await agent.run("Go.", conversation_id=conversation_id))]


async def tools_of(library: UnifiedToolLibrary, names: list[str] | None = None) -> list[Any]:
    return await tools_of_toolset(FerruleToolset(library, tools=names))


async def schemas_of(library: UnifiedToolLibrary) -> list[Any]:
    await Agent(model := TestModel(call_tools=[]), toolsets=[FerruleToolset(library)]).run("Go.")
    assert model.last_model_request_parameters is not None
    return [
        {
            "type": "function",
            "function": {"name": each.name, "description": each.description, "parameters": each.parameters_json_schema},
        }
        for each in model.last_model_request_parameters.function_tools
    ]
