"""The OpenAI Agents SDK with a model whose turns are known."""

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from ferrule import UnifiedToolLibrary
from ferrule.adapters.openai_agents import as_function_tools

__all__ = ["RunConfig", "Runner"]

QUIET = RunConfig(tracing_disabled=True)
CALLER = "openai-agents"
VARIABLES = '["context"]'
PICTURE = [
    {"type": "input_text", "text": "here"},
    {"type": "input_image", "image_url": "data:image/png;base64,aGk="},
]


class KnownTurns(Model):
    """A model whose turns are known: a call as `(name, arguments)`, or a text."""

    def __init__(self, *turns: tuple[str, Any] | str) -> None:
        self.turns = list(turns)
        self.seen: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        self.seen.append(input)
        turn = self.turns.pop(0)
        return ModelResponse(output=[_output(turn, len(self.seen))], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError

    def answers(self) -> list[Any]:
        return [item["output"] for item in self.seen[-1] if item.get("type") == "function_call_output"]


def _output(turn: tuple[str, Any] | str, number: int) -> Any:
    if isinstance(turn, str):
        text = ResponseOutputText(text=turn, type="output_text", annotations=[])
        return ResponseOutputMessage(id="1", content=[text], role="assistant", status="completed", type="message")
    name, arguments = turn
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ResponseFunctionToolCall(call_id=f"c{number}", name=name, arguments=written, type="function_call")


def agent_with(
    model: Model, library: UnifiedToolLibrary, tools: list[str] | None = None, *, memory: bool = False
) -> Agent[Any]:
    return Agent(name="tester", model=model, tools=as_function_tools(library, tools, memory=memory))


async def run(library: UnifiedToolLibrary, *turns: tuple[str, Any] | str, conversation_id: str = "c") -> list[Any]:
    """What the model is told of its calls."""
    model, config = KnownTurns(*turns), RunConfig(tracing_disabled=True, group_id=conversation_id)
    await Runner.run(agent_with(model, library), "Go.", run_config=config, context="mine")
    return model.answers()


async def tools_of(library: UnifiedToolLibrary, names: list[str] | None = None) -> list[Any]:
    return [*as_function_tools(library, tools=names)]


async def schemas_of(library: UnifiedToolLibrary) -> list[Any]:
    return [
        {
            "type": "function",
            "function": {"name": each.name, "description": each.description, "parameters": each.params_json_schema},
        }
        for each in await tools_of(library)
    ]
