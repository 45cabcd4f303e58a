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

from ferrule.adapters.pydantic_ai import FerruleToolset, tools_of_toolset

__all__ = [
    "Agent",
    "BinaryContent",
    "DeferredToolRequests",
    "DeferredToolResults",
    "FerruleToolset",
    "TestModel",
    "ToolCallPart",
    "tools_of_toolset",
]


def model_with(*turns: ToolCallPart | str) -> FunctionModel:
    """A model whose turns are known."""
    left = iter(turns)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = next(left)
        return ModelResponse(parts=[TextPart(turn) if isinstance(turn, str) else turn])

    return FunctionModel(answer)


def returns_of(run: Any) -> list[ToolReturnPart]:
    return [part for message in run.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)]
