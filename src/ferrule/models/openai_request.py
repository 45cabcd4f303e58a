"""A request in the words of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ferrule.content import encode_json
from ferrule.messages import Message, system_message, text_of_message
from ferrule.models.answer_schema import fits_strict_mode, schema_in_words
from ferrule.models.arguments import sent_arguments
from ferrule.models.model import ModelRequest
from ferrule.models.negotiation import Concessions, Wish

WISHES: Final = (
    Wish(name="usage", parameters=("stream_options",), words=("stream_options", "include_usage")),
    Wish(
        name="answer",
        parameters=("response_format",),
        words=("response_format", "json_schema", "json_object", "schema", "grammar"),
        steps=2,
    ),
    Wish(name="choice", parameters=("tool_choice",), words=("tool_choice", "tool choice")),
    Wish(name="temperature", parameters=("temperature",), words=("temperature",)),
    Wish(
        name="length",
        parameters=("max_tokens", "max_completion_tokens"),
        words=("max_tokens", "max_completion_tokens"),
        steps=2,
    ),
)


def chat_parameters(
    request: ModelRequest, *, model: str, length_names: tuple[str, str], stream: bool, concessions: Concessions
) -> dict[str, Any]:
    """Everything for `chat.completions.create`, less what the server has refused before."""
    given_up = concessions.get
    parameters: dict[str, Any] = {"model": model, "messages": [_sent(message) for message in request.messages]}
    if request.tools and not (request.tool_choice == "none" and given_up("choice")):
        parameters["tools"] = list(request.tools)
        if request.tool_choice != "auto" and not given_up("choice"):
            parameters["tool_choice"] = request.tool_choice
    if request.temperature is not None and not given_up("temperature"):
        parameters["temperature"] = request.temperature
    length_step = given_up("length", 0)
    if request.max_tokens is not None and length_step < 2:
        parameters[length_names[length_step]] = request.max_tokens
    if request.answer_schema is not None:
        _ask_for_answer(parameters, request.answer_schema, given_up("answer", 0))
    if stream:
        parameters["stream"] = True
        if not given_up("usage"):
            parameters["stream_options"] = {"include_usage": True}
    return parameters


def _ask_for_answer(parameters: dict[str, Any], schema: Mapping[str, Any], step: int) -> None:
    if step == 0:
        format = {"name": "answer", "schema": dict(schema), "strict": fits_strict_mode(schema)}
        parameters["response_format"] = {"type": "json_schema", "json_schema": format}
        return
    parameters["messages"] = _with_instruction(parameters["messages"], schema_in_words(schema))
    if step == 1:
        parameters["response_format"] = {"type": "json_object"}


def _with_instruction(messages: list[Message], instruction: str) -> list[Message]:
    """Many models take one system message only, and only at the beginning."""
    if messages and messages[0].get("role") == "system":
        return [system_message(f"{text_of_message(messages[0])}\n\n{instruction}"), *messages[1:]]
    return [system_message(instruction), *messages]


def _sent(message: Message) -> Message:
    calls = message.get("tool_calls")
    return message if not calls else {**message, "tool_calls": [_sent_call(call) for call in calls]}


def _sent_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", {})
    arguments = encode_json(sent_arguments(function.get("arguments"))).decode()
    return {**call, "function": {**function, "arguments": arguments}}
