"""Claude, through Anthropic's API."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ferrule.core.content import as_text, encode_json
from ferrule.core.messages import Message, Usage, arguments_to_send, decode_tool_call, text_of_message
from ferrule.core.model import FinishReason, ModelReply, ModelRequest, TextSink
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import MissingExtra, ModelRefused, ModelUnavailable
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
from ferrule.models.reply_checks import read_count, read_field, read_text

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

# A conversation in OpenAI's format becomes a system text, and turns of user and assistant. Anthropic is strict where
# OpenAI is not: each `tool_use` must be answered in the next turn and nothing else may be answered there, ids must be
# unique, no text may be empty, and the first and the last turn are the user's.

Block: TypeAlias = dict[str, Any]
Turn: TypeAlias = dict[str, Any]

_SYSTEM_ROLES = ("system", "developer")
_CONTINUE_BLOCK = {"type": "text", "text": "Continue."}
"""The content of a user's turn that Anthropic requires and the conversation does not have."""
_INVALID_ID_CHARS = lazy_pattern(r"[^a-zA-Z0-9_-]")
_DATA_URL = lazy_pattern(r"data:([\w/+.-]+);base64,(.+)", re.DOTALL)


def to_anthropic_conversation(messages: Sequence[Message]) -> tuple[str, list[Turn]]:
    """Return the system text, and the turns."""
    first = next((i for i, m in enumerate(messages) if m.get("role") not in _SYSTEM_ROLES), len(messages))
    system = "\n\n".join(text for message in messages[:first] if (text := text_of_message(message).strip()))
    turns = _TurnBuilder()
    for message in messages[first:]:
        turns.add(message)
    return system, turns.build()


class _TurnBuilder:
    """Collects messages into turns."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._used_ids: set[str] = set()
        self._open_calls: list[tuple[str, str]] = []
        """Calls without a result yet: their ids in the history, and the ids sent to Anthropic."""

    def add(self, message: Message) -> None:
        role = message.get("role")
        if role == "assistant":
            self._answer_open_calls()
            calls = self._call_blocks(message.get("tool_calls") or ())
            self._append_blocks("assistant", _convert_content(text_of_message(message)) + calls)
        elif role == "tool":
            self._append_blocks("user", [self._result_block(message)])
        elif role in _SYSTEM_ROLES:
            self._append_blocks("user", [_text_block(f"<system>\n{text_of_message(message)}\n</system>")])
        else:
            self._append_blocks("user", _convert_content(message.get("content")))

    def build(self) -> list[Turn]:
        self._answer_open_calls()
        if not self._turns or self._turns[0]["role"] != "user":
            self._turns.insert(0, {"role": "user", "content": [_CONTINUE_BLOCK]})
        if self._turns[-1]["role"] != "user":
            self._turns.append({"role": "user", "content": [_CONTINUE_BLOCK]})
        for turn in self._turns:
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")  # results must be first
        return self._turns

    def _append_blocks(self, role: str, blocks: list[Block]) -> None:
        if not blocks:
            return
        if self._turns and self._turns[-1]["role"] == role:
            self._turns[-1]["content"].extend(blocks)
        else:
            self._turns.append({"role": role, "content": blocks})

    def _call_blocks(self, calls: Iterable[dict[str, Any]]) -> list[Block]:
        blocks = []
        for call in calls:
            id, function = call.get("id") or "", call.get("function", {})
            sent_id = self._make_unique_id(_INVALID_ID_CHARS.sub("_", id) or "call")
            self._open_calls.append((id, sent_id))
            arguments = arguments_to_send(function.get("arguments"))
            blocks.append({"type": "tool_use", "id": sent_id, "name": function.get("name", ""), "input": arguments})
        return blocks

    def _result_block(self, message: Message) -> Block:
        id = message.get("tool_call_id") or ""
        match = next((pair for pair in self._open_calls if pair[0] == id), None)
        if match is None:  # its call is no longer in the history
            return _text_block(
                f"Result of an earlier call of {message.get('name', 'a tool')}: {text_of_message(message)}"
            )
        self._open_calls.remove(match)
        content = message.get("content")
        result = content if isinstance(content, str) else _convert_content(content)
        return {"type": "tool_result", "tool_use_id": match[1], "content": result}

    def _answer_open_calls(self) -> None:
        for _, sent_id in self._open_calls:
            problem = "This call was interrupted; its result is unknown."
            result = {"type": "tool_result", "tool_use_id": sent_id, "content": problem, "is_error": True}
            self._append_blocks("user", [result])
        self._open_calls.clear()

    def _make_unique_id(self, id: str) -> str:
        unique, n = id, 1
        while unique in self._used_ids:
            n += 1
            unique = f"{id}_{n}"
        self._used_ids.add(unique)
        return unique


def _text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def _convert_content(content: Any) -> list[Block]:
    if not isinstance(content, list):
        return [_text_block(content)] if isinstance(content, str) and content.strip() else []
    return [block for part in content if (block := _convert_part(part)) is not None]


def _convert_part(part: Any) -> Block | None:
    if not isinstance(part, dict):
        return _text_block(as_text(part))
    if part.get("type") == "text":
        return _text_block(part["text"]) if str(part.get("text", "")).strip() else None
    image = part.get("image_url")
    if image is None:
        return _text_block(as_text(part))
    url = image.get("url", "") if isinstance(image, dict) else str(image)
    if data := _DATA_URL.match(url):
        return {"type": "image", "source": {"type": "base64", "media_type": data[1], "data": data[2]}}
    return {"type": "image", "source": {"type": "url", "url": url}}


ANTHROPIC_ERRORS: Final[ErrorTable] = {
    **COMMON_SDK_ERRORS,
    "AnthropicError": "refused",
    "APIWebhookValidationError": "refused",
    "EnforcedSpendLimitReachedError": "refused",
    "RetryableError": "unavailable",
    "CredentialsError": "refused",
    "WorkloadIdentityError": "refused",
}
_FEATURES: Final = (
    # Claude refuses forced calls where it always thinks.
    OptionalFeature(name="choice", parameters=("tool_choice",), keywords=("tool_choice", "tool choice", "forced tool")),
    OptionalFeature(
        name="answer", parameters=("output_config",), keywords=("output_config", "json_schema", "schema", "structured")
    ),
    OptionalFeature(
        name="thinking", parameters=("messages",), keywords=("signature", "thinking block", "thinking` block")
    ),
    OptionalFeature(name="cache", parameters=("cache_control",), keywords=("cache_control", "cache control")),
)
_FINISH_REASONS: dict[str, FinishReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}
_CACHE_MARK: Final = {"cache_control": {"type": "ephemeral"}}
_TOOL_CHOICES: Final = {"required": {"type": "any"}, "none": {"type": "none"}}
_THINKING_BLOCKS: Final = ("thinking", "redacted_thinking")
_MAX_ANSWERS_WITH_THINKING: Final = 1000


class AnthropicModel(NetworkModel):
    """A model of Anthropic, or of a server that offers the same API.

    Key and base URL are read from the environment by Anthropic's SDK (`ANTHROPIC_API_KEY`, …) unless they are passed.
    If a base URL is passed, the key of the environment is not sent to it.
    `temperature` is not sent: Anthropic's API no longer has it.
    """

    ignored_settings = ("temperature",)
    features, errors = _FEATURES, ANTHROPIC_ERRORS

    def __init__(
        self, model: str, *, base_url: str | None = None, api_key: str | None = None, max_tokens: int = 16_384
    ) -> None:
        super().__init__(f"anthropic:{model}")
        self.model = model
        self.base_url = base_url
        self.max_tokens = max_tokens
        """For requests without a limit: this API requires one. Thinking counts."""
        self._api_key = api_key or ("none" if base_url else None)
        self._thinking = ThinkingHistory()

    async def _send_request(
        self, client: AsyncAnthropic, parameters: Parameters, on_text: TextSink | None
    ) -> ModelReply:
        # Always as a stream: long answers are refused otherwise, and only the stream shows that the arguments of a
        # call that was cut off are incomplete.
        builder = AnthropicReplyBuilder(on_text)
        with report_unreadable_reply(self.name):
            events = await client.messages.create(**parameters, stream=True)
        async with events as stream:
            async for event in read_events(stream, self.name):
                builder.add(event)
        reply = builder.reply(model=self.name)
        self._thinking.remember(parameters, builder.content())
        return reply

    def _build_parameters(self, request: ModelRequest, reductions: Reductions, *, stream: bool) -> Parameters:
        reduced = reductions.get
        system, turns = to_anthropic_conversation(request.messages)
        parameters: Parameters = {
            "model": self.model,
            "max_tokens": request.max_tokens or self.max_tokens,
            "messages": turns,
        }
        if request.tools and not (request.tool_choice == "none" and reduced("choice")):
            functions = [schema.get("function", schema) for schema in request.tools]
            parameters["tools"] = [
                {
                    "name": function["name"],
                    "description": function.get("description", ""),
                    "input_schema": {"type": "object", **(function.get("parameters") or {"properties": {}})},
                }
                for function in functions
            ]
            if request.tool_choice != "auto" and not reduced("choice"):
                parameters["tool_choice"] = _TOOL_CHOICES[request.tool_choice]
        if request.answer_schema is not None:
            format = None if reduced("answer") else _answer_format(request.answer_schema)
            if format is None:
                system = f"{system}\n\n{schema_instruction(request.answer_schema)}".lstrip()
            else:
                parameters["output_config"] = {"format": format}
        if system:
            parameters["system"] = [{"type": "text", "text": system}]
        if not reduced("thinking"):
            self._thinking.restore(parameters)
        if not reduced("cache"):
            # Two marks: after what every conversation shares, and after the conversation so far.
            if shared := parameters.get("system") or parameters.get("tools"):
                shared[-1] = {**shared[-1], **_CACHE_MARK}
            parameters.update(_CACHE_MARK)
        return parameters

    def _create_client(self) -> AsyncAnthropic:
        try:
            from anthropic import AnthropicError, AsyncAnthropic
        except ImportError:
            raise MissingExtra("anthropic", "anthropic") from None
        try:
            client = AsyncAnthropic(api_key=self._api_key, base_url=self.base_url, max_retries=0)
        except AnthropicError as error:  # it looks for credentials in files, too
            raise ModelRefused(f"There is no API key for {self.name!r}: {error} Or set ANTHROPIC_API_KEY.") from error
        if client.api_key is None and client.auth_token is None and client.credentials is None:
            raise ModelRefused(
                f"There is no API key for {self.name!r}. Set ANTHROPIC_API_KEY, or run: ferrule models key anthropic"
            )
        return client


def _answer_format(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the output format for a schema; None for a schema that the API does not support."""
    from anthropic import transform_schema

    try:
        return {"type": "json_schema", "schema": transform_schema(dict(schema))}
    except ValueError:
        return None


# Thinking


class ThinkingHistory:
    """Answers that contain thinking, by the request they answered.

    Between its calls Claude continues from what it thought before them, and needs those blocks back unchanged. Messages
    have no field for them, so the model keeps them here. A thinking block is accepted only after exactly the content it
    followed: if the system text, the tools or an earlier message has changed, it is left out, which the API allows.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, list[Block]] = OrderedDict()

    def remember(self, parameters: dict[str, Any], answer: list[Block]) -> None:
        """Store the answer to this request."""
        if not any(block["type"] in _THINKING_BLOCKS for block in answer):
            return
        digest = _start_digest(parameters)
        for turn in parameters["messages"]:
            digest.update(encode_json(turn))
        self._answers[digest.digest()] = answer
        if len(self._answers) > _MAX_ANSWERS_WITH_THINKING:
            self._answers.popitem(last=False)

    def restore(self, parameters: dict[str, Any]) -> None:
        """Put thinking back into the assistant's turns, as far as nothing before it has changed."""
        if not self._answers:
            return
        turns: list[Turn] = parameters["messages"]
        digest = _start_digest(parameters)
        for i, turn in enumerate(turns):
            if turn["role"] == "assistant":
                answer = self._answers.get(digest.digest())
                if answer is not None and _visible_content(answer) == _visible_content(turn["content"]):
                    turns[i] = {**turn, "content": answer}
            digest.update(encode_json(turns[i]))


def _start_digest(parameters: dict[str, Any]) -> Any:
    """Return a hash of the system text and the tools, to be continued with the turns."""
    unmarked = [
        [
            {name: value for name, value in block.items() if name != "cache_control"}
            for block in parameters.get(part, ())
        ]
        for part in ("system", "tools")
    ]
    return sha256(encode_json(unmarked))


def _visible_content(blocks: Sequence[Block]) -> tuple[str, list[Block]]:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return text.strip(), [block for block in blocks if block["type"] == "tool_use"]


# The reply


@dataclass(slots=True)
class _PartialBlock:
    kind: str
    id: str = ""
    name: str = ""
    text: list[str] = field(default_factory=list)
    input: Any = None
    """Of a `tool_use` that arrived in one piece; usually it arrives as parts of a JSON text."""
    signature: str = ""
    """Of thinking: its signature; of redacted thinking: its data."""


class AnthropicReplyBuilder:
    """Builds one reply from the events of a stream."""

    def __init__(self, on_text: TextSink | None) -> None:
        self._on_text = on_text
        self._blocks: list[_PartialBlock] = []
        self._last_block: dict[int, _PartialBlock] = {}
        """By index: some servers give several blocks the same one."""
        self._counts: dict[str, int] = {}
        self._stop_reason: str | None = None

    def add(self, event: Any) -> None:
        kind, index = read_field(event, "type"), read_count(event, "index") or 0
        if kind == "content_block_delta":
            self._add_delta(index, read_field(event, "delta"))
        elif kind == "content_block_start":
            self._start_block(index, read_field(event, "content_block"))
        elif kind == "message_start":
            self._update_counts(read_field(read_field(event, "message"), "usage"))
        elif kind == "message_delta":
            if stop_reason := read_field(read_field(event, "delta"), "stop_reason"):
                self._stop_reason = stop_reason if isinstance(stop_reason, str) else "unknown"
            self._update_counts(read_field(event, "usage"))

    def reply(self, *, model: str) -> ModelReply:
        """Return the reply; `ModelUnavailable` if the stream ended before it was complete."""
        if self._stop_reason is None:
            raise ModelUnavailable(f"Model {model!r} stopped before its answer was complete.")
        finish = _FINISH_REASONS.get(self._stop_reason, "stop")
        blocks = self._blocks
        cut_off = blocks[-1] if blocks and finish == "length" else None
        return ModelReply(
            text="".join("".join(block.text) for block in blocks if block.kind == "text"),
            tool_calls=tuple(
                decode_tool_call(
                    block.name, "".join(block.text) or block.input or "", id=block.id, is_cut_off=block is cut_off
                )
                for block in blocks
                if block.kind == "tool_use"
            ),
            usage=self._build_usage(),
            finish_reason=finish,
            reasoning="".join("".join(block.text) for block in blocks if block.kind == "thinking"),
        )

    def content(self) -> list[Block]:
        """Return the blocks as they arrived, thinking included."""
        return [_to_request_block(block) for block in self._blocks]

    def _start_block(self, index: int, content: Any) -> None:
        block = _PartialBlock(
            kind=read_text(content, "type") or "text",
            id=read_text(content, "id"),
            name=read_text(content, "name"),
            input=read_field(content, "input"),
            signature=read_text(content, "data") or read_text(content, "signature"),
        )
        self._blocks.append(block)
        self._last_block[index] = block
        if block.kind == "text":
            self._add_text(block, read_text(content, "text"))

    def _add_delta(self, index: int, delta: Any) -> None:
        if index not in self._last_block:
            self._start_block(index, None)
        block, kind = self._last_block[index], read_field(delta, "type")
        if kind == "text_delta":
            self._add_text(block, read_text(delta, "text"))
        elif kind == "input_json_delta":
            block.text.append(read_text(delta, "partial_json"))
        elif kind == "thinking_delta":
            block.text.append(read_text(delta, "thinking"))
        elif kind == "signature_delta":
            block.signature = read_text(delta, "signature")

    def _add_text(self, block: _PartialBlock, text: str) -> None:
        block.text.append(text)
        if self._on_text is not None and text:
            self._on_text(text)

    def _update_counts(self, usage: Any) -> None:
        """Take counts, which are totals so far. A field that they omit keeps its value."""
        for name in ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
            if (count := read_count(usage, name)) is not None:
                self._counts[name] = count

    def _build_usage(self) -> Usage:
        count = self._counts.get
        cached = count("cache_read_input_tokens", 0)
        return Usage(
            requests=1,
            input_tokens=count("input_tokens", 0) + count("cache_creation_input_tokens", 0) + cached,
            output_tokens=count("output_tokens", 0),
            cached_tokens=cached,
        )


def _to_request_block(block: _PartialBlock) -> Block:
    text = "".join(block.text)
    if block.kind == "tool_use":
        arguments = arguments_to_send(text or block.input)
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": arguments}
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": text, "signature": block.signature}
    if block.kind == "redacted_thinking":
        return {"type": "redacted_thinking", "data": block.signature}
    return {"type": block.kind, "text": text}
