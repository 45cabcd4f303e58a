"""Models behind OpenAI's chat API: OpenAI itself, and every server that offers the same API."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ferrule.core.content import encode_json
from ferrule.core.messages import Message, Usage, arguments_to_send, decode_tool_call, system_message, text_of_message
from ferrule.core.model import EndReply, FinishReason, ModelReply, ModelRequest, TextSink
from ferrule.errors import MissingExtra, ModelRefused, ModelUnavailable, SetupError
from ferrule.models.network_model import (
    COMMON_SDK_ERRORS,
    ErrorTable,
    NetworkModel,
    OptionalFeature,
    Parameters,
    Reductions,
    read_events,
    report_unreadable_reply,
    schema_instruction,
)
from ferrule.models.reply_checks import read_count, read_field, read_list, read_text

if TYPE_CHECKING:
    from openai import AsyncOpenAI

OPENAI_ERRORS: Final[ErrorTable] = {
    **COMMON_SDK_ERRORS,
    "OpenAIError": "refused",
    "LengthFinishReasonError": "refused",
    "ContentFilterFinishReasonError": "refused",
    "InvalidWebhookSignatureError": "refused",
    "SubjectTokenProviderError": "refused",
    "WebSocketConnectionClosedError": "unavailable",
    "WebSocketQueueFullError": "unavailable",
}
_FEATURES: Final = (
    OptionalFeature(name="usage", parameters=("stream_options",), keywords=("stream_options", "include_usage")),
    OptionalFeature(
        name="answer",
        parameters=("response_format",),
        keywords=("response_format", "json_schema", "json_object", "schema", "grammar"),
        levels=2,
    ),
    OptionalFeature(name="choice", parameters=("tool_choice",), keywords=("tool_choice", "tool choice")),
    OptionalFeature(name="temperature", parameters=("temperature",), keywords=("temperature",)),
    OptionalFeature(
        name="length",
        parameters=("max_tokens", "max_completion_tokens"),
        keywords=("max_tokens", "max_completion_tokens"),
        levels=2,
    ),
)
_FINISH_REASONS: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
}


class OpenAIModel(NetworkModel):
    """A model of OpenAI, Ollama, vLLM, llama.cpp, DeepSeek, Qwen … : whatever answers at the base URL.

    Base URL and key are read from `OPENAI_BASE_URL` and `OPENAI_API_KEY` unless they are passed. If a base URL is
    passed, the key of the environment is not sent to it: it may belong to another provider, and most local servers
    need none. The model itself makes one attempt; an agent that is given it makes more (`RetryingModel`).
    """

    features, errors = _FEATURES, OPENAI_ERRORS

    def __init__(
        self, model: str, *, base_url: str | None = None, api_key: str | None = None, provider: str = "openai"
    ) -> None:
        """Use `provider` as the prefix of the name."""
        super().__init__(f"{provider}:{model}")
        self.model = model
        if api_key is None and base_url is None:
            api_key = os.environ.get("OPENAI_API_KEY")
        if base_url is None:
            base_url = os.environ.get("OPENAI_BASE_URL")
        self.base_url = base_url or None
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise SetupError(
                f"The base URL {self.base_url!r} of {self.name} is not an address: write http://HOST:PORT/v1, or https://…"
            )
        self._api_key = api_key or None
        # OpenAI's own models accept only the new name, most other servers know only the old one.
        names = ("max_completion_tokens", "max_tokens")
        at_openai = self.base_url is None or "api.openai.com" in self.base_url
        self._length_names = names if at_openai else (names[1], names[0])
        self.can_end_reply = not at_openai
        """Models of other servers may write calls as text, and go on as if they had the results."""

    def _build_parameters(self, request: ModelRequest, reductions: Reductions, *, stream: bool) -> Parameters:
        reduced = reductions.get
        parameters: Parameters = {
            "model": self.model,
            "messages": [_encode_message_arguments(message) for message in request.messages],
        }
        if request.tools and not (request.tool_choice == "none" and reduced("choice")):
            parameters["tools"] = list(request.tools)
            if request.tool_choice != "auto" and not reduced("choice"):
                parameters["tool_choice"] = request.tool_choice
        if request.temperature is not None and not reduced("temperature"):
            parameters["temperature"] = request.temperature
        length_level = reduced("length", 0)
        if request.max_tokens is not None and length_level < 2:
            parameters[self._length_names[length_level]] = request.max_tokens
        if (schema := request.answer_schema) is not None:
            level = reduced("answer", 0)
            if level == 0:
                format = {"name": "answer", "schema": dict(schema), "strict": _fits_strict_mode(schema)}
                parameters["response_format"] = {"type": "json_schema", "json_schema": format}
            else:
                parameters["messages"] = _add_instruction(parameters["messages"], schema_instruction(schema))
            if level == 1:
                parameters["response_format"] = {"type": "json_object"}
        if stream:
            parameters["stream"] = True
            if not reduced("usage"):
                parameters["stream_options"] = {"include_usage": True}
        return parameters

    async def _send_request(self, client: AsyncOpenAI, parameters: Parameters, on_text: TextSink | None) -> ModelReply:
        builder = OpenAIReplyBuilder(on_text)
        with report_unreadable_reply(self.name):
            completion: Any = await client.chat.completions.create(**parameters)
        if on_text is None:
            _check_completion(completion, self.name)
            builder.add(completion)
            return builder.reply(model=self.name)
        async with completion as stream:
            try:
                response = getattr(stream, "response", None)  # LiteLLM's streams have none
                content_type = "" if response is None else str(response.headers.get("content-type", ""))
                if not content_type.startswith("application/json"):
                    async for chunk in read_events(stream, self.name):
                        builder.add(chunk)
                else:  # a server that does not stream
                    content = await stream.response.aread()
                    with report_unreadable_reply(self.name):
                        completion = json.loads(content)
                    _check_completion(completion, self.name)
                    builder.add(completion)
            except EndReply:
                builder.end()
        return builder.reply(model=self.name)

    def _create_client(self) -> AsyncOpenAI:
        try:
            from openai import AsyncOpenAI
        except ImportError:
            raise MissingExtra("openai", "openai") from None
        if self._api_key is None and self.base_url is None:
            raise ModelRefused(
                f"There is no API key for {self.name!r}. Set OPENAI_API_KEY, or run `ferrule models key openai`, "
                "or set OPENAI_BASE_URL for a server that needs none."
            )
        return AsyncOpenAI(
            api_key=self._api_key or "none",
            base_url=self.base_url or "https://api.openai.com/v1",
            max_retries=0,
        )


# The request


def _fits_strict_mode(schema: Any) -> bool:
    """OpenAI's strict mode accepts only objects that are closed and require all their properties."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping) or schema.get("type") == "object":
            closed = schema.get("additionalProperties") is False
            if not closed or set(schema.get("required", ())) != set(properties or ()):
                return False
        return all(_fits_strict_mode(value) for value in schema.values())
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return all(_fits_strict_mode(item) for item in schema)
    return True


def _add_instruction(messages: list[Message], instruction: str) -> list[Message]:
    """Many models accept one system message only, and only at the beginning."""
    if messages and messages[0].get("role") == "system":
        return [system_message(f"{text_of_message(messages[0])}\n\n{instruction}"), *messages[1:]]
    return [system_message(instruction), *messages]


def _encode_message_arguments(message: Message) -> Message:
    """Many servers refuse a history in which the arguments of a call are not a JSON object."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        arguments = encode_json(arguments_to_send(function.get("arguments"))).decode()
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": calls} if calls else message


def _check_completion(completion: Any, model: str) -> None:
    """Refuse what some servers answer with status 200: a web page, or an error as JSON."""
    if read_list(completion, "choices"):
        return
    problem = read_field(completion, "error") or (completion if isinstance(completion, str) else "no choices in it")
    raise ModelRefused(
        f"Model {model!r} answered with something that is not a chat completion: {str(problem)[:300]!r}. "
        "Check the base URL; most end in /v1."
    )


# The reply


@dataclass(slots=True)
class _PartialCall:
    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""

    def is_complete(self) -> bool:
        try:
            json.loads(self.arguments)
        except (ValueError, RecursionError):
            return False
        return True


class OpenAIReplyBuilder:
    """Builds one reply from the chunks of a stream, or from a whole completion."""

    def __init__(self, on_text: TextSink | None = None) -> None:
        self._on_text = on_text
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_PartialCall] = []
        self._finish: str | None = None
        self._usage = Usage(requests=1)

    def add(self, chunk: Any) -> None:
        """Add a chunk of a stream, or a whole completion. Any field may be missing, whatever the SDK's types say."""
        if (usage := read_field(chunk, "usage")) is not None:
            self._usage = _read_usage(usage)
        for choice in read_list(chunk, "choices")[:1]:
            if finish := read_field(choice, "finish_reason"):
                self._finish = finish if isinstance(finish, str) else "unknown"
            if (delta := read_field(choice, "delta")) is not None:
                self._add_message(delta)
            elif (message := read_field(choice, "message")) is not None:
                self._add_message(message, is_whole=True)

    def end(self) -> None:
        """Close the reply early, keeping what has arrived."""
        self._finish = "stop"

    def reply(self, *, model: str) -> ModelReply:
        """Return the reply; `ModelUnavailable` if the stream ended before it was complete."""
        if self._finish is None:
            raise ModelUnavailable(f"Model {model!r} stopped before its answer was complete.")
        is_cut_off = _FINISH_REASONS.get(self._finish) == "length"
        calls = tuple(
            decode_tool_call(call.name, call.arguments, id=call.id, is_cut_off=is_cut_off and call is self._calls[-1])
            for call in self._calls
        )
        finish = _FINISH_REASONS.get(self._finish, "stop")
        if finish in ("stop", "tool_calls"):  # some servers say `stop` after calls, others `tool_calls` without any
            finish = "tool_calls" if calls else "stop"
        return ModelReply(
            text="".join(self._text) or "".join(self._refusal),
            tool_calls=calls,
            usage=self._usage,
            finish_reason="refused" if self._refusal and not self._text else finish,
            reasoning="".join(self._reasoning),
        )

    def _add_message(self, message: Any, *, is_whole: bool = False) -> None:
        # `reasoning_content` is the name of DeepSeek, Qwen and llama.cpp, `reasoning` that of Ollama and OpenRouter.
        self._reasoning.append(read_text(message, "reasoning_content") or read_text(message, "reasoning"))
        if text := read_text(message, "content"):
            self._text.append(text)
            if self._on_text is not None:
                self._on_text(text)
        if refusal := read_text(message, "refusal"):
            self._refusal.append(refusal)
        earlier_calls = len(self._calls)
        for part in read_list(message, "tool_calls"):
            # Calls that are sent together are different calls, whatever their ids and indexes are.
            is_new = is_whole or (len(self._calls) > earlier_calls and bool(_read_call_name(part)))
            self._add_call_part(part, is_new=is_new)

    def _add_call_part(self, part: Any, *, is_new: bool) -> None:
        arguments = read_field(read_field(part, "function"), "arguments")
        if not isinstance(arguments, str):
            arguments = encode_json(arguments).decode() if arguments else ""
        name, id, index = _read_call_name(part), read_text(part, "id"), read_count(part, "index")
        call = None if is_new else self._find_call(index, id, name, arguments)
        if call is None:
            call = _PartialCall(index)
            self._calls.append(call)
        call.id, call.name = call.id or id, call.name or name
        call.arguments += arguments

    def _find_call(self, index: int | None, id: str, name: str, arguments: str) -> _PartialCall | None:
        """Return the call a part continues, by its index. Some servers send none, or the same one for every call."""
        same = [c for c in self._calls if c.index == index] if index is not None else self._calls[-1:]
        if id and index is None:
            same = [c for c in self._calls if c.id == id]
        call = same[-1] if same else None
        if call is None or (id and call.id and id != call.id):
            return None
        # With the id repeated, some servers send the name with every part; only arguments after complete ones are new.
        is_next = bool(name and call.name) and (bool(arguments) or not id) and call.is_complete()
        return None if is_next else call


def _read_call_name(part: Any) -> str:
    return read_text(read_field(part, "function"), "name")


def _read_usage(usage: Any) -> Usage:
    input_tokens = read_count(usage, "prompt_tokens") or 0
    cached = read_count(read_field(usage, "prompt_tokens_details"), "cached_tokens")
    return Usage(
        requests=1,
        input_tokens=input_tokens,
        output_tokens=read_count(usage, "completion_tokens") or 0,
        cached_tokens=min(cached or read_count(usage, "prompt_cache_hit_tokens") or 0, input_tokens),
    )
