"""Converts a conversation from OpenAI's format to Anthropic's: a system text, and turns of user and assistant.

Anthropic is strict where OpenAI is not: each `tool_use` must be answered in the next turn and nothing else may be
answered there, ids must be unique, no text may be empty, and the first and the last turn are the user's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from ferrule.core.content import as_text
from ferrule.core.messages import Message, Schema, arguments_to_send, text_of_message
from ferrule.core.patterns import lazy_pattern

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


def to_anthropic_tools(schemas: Iterable[Schema]) -> list[dict[str, Any]]:
    """Return function schemas in Anthropic's format."""
    tools = []
    for schema in schemas:
        function = schema.get("function", schema)
        parameters = {"type": "object", **(function.get("parameters") or {"properties": {}})}
        tools.append(
            {"name": function["name"], "description": function.get("description", ""), "input_schema": parameters}
        )
    return tools


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
