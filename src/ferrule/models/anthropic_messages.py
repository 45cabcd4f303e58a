"""A conversation in OpenAI's format as Anthropic's: a system text, and turns of user and assistant that alternate.

Anthropic is strict where OpenAI is not: each `tool_use` must be answered in the very next turn and nothing else may be
answered there, ids must be unique, no text may be empty, and the user has the first and the last word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from ferrule.content import as_text
from ferrule.messages import Message, Schema, text_of_message
from ferrule.models.arguments import sent_arguments

Block: TypeAlias = dict[str, Any]
Turn: TypeAlias = dict[str, Any]

_SYSTEM = ("system", "developer")
_NUDGE = {"type": "text", "text": "Continue."}
"""What the user says where Anthropic wants a user's turn and there is none."""
_FORBIDDEN_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
_DATA_URL = re.compile(r"data:([\w/+.-]+);base64,(.+)", re.DOTALL)


def anthropic_conversation(messages: Sequence[Message]) -> tuple[str, list[Turn]]:
    """The system text, and the turns."""
    first = next((i for i, m in enumerate(messages) if m.get("role") not in _SYSTEM), len(messages))
    system = "\n\n".join(text for message in messages[:first] if (text := text_of_message(message).strip()))
    turns = _Turns()
    for message in messages[first:]:
        turns.add(message)
    return system, turns.finished()


def anthropic_tools(schemas: Iterable[Schema]) -> list[dict[str, Any]]:
    """Function schemas as Anthropic's tools."""
    tools = []
    for schema in schemas:
        function = schema.get("function", schema)
        parameters = {"type": "object", **(function.get("parameters") or {"properties": {}})}
        tools.append(
            {"name": function["name"], "description": function.get("description", ""), "input_schema": parameters}
        )
    return tools


class _Turns:
    """Turns in the making."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._used_ids: set[str] = set()
        self._open: list[tuple[str, str]] = []
        """Calls not answered yet: their ids as the history has them, and as Anthropic gets them."""

    def add(self, message: Message) -> None:
        role = message.get("role")
        if role == "assistant":
            self._answer_what_is_open()
            self._say("assistant", _text_blocks(message) + self._call_blocks(message.get("tool_calls") or ()))
        elif role == "tool":
            self._say("user", [self._result_block(message)])
        elif role in _SYSTEM:
            self._say("user", [_text(f"<system>\n{text_of_message(message)}\n</system>")])
        else:
            self._say("user", _content_blocks(message.get("content")))

    def finished(self) -> list[Turn]:
        self._answer_what_is_open()
        if not self._turns or self._turns[0]["role"] != "user":
            self._turns.insert(0, {"role": "user", "content": [_NUDGE]})
        if self._turns[-1]["role"] != "user":
            self._turns.append({"role": "user", "content": [_NUDGE]})
        for turn in self._turns:
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")  # results first, else it is refused
        return self._turns

    def _say(self, role: str, blocks: list[Block]) -> None:
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
            sent_id = self._unique(_FORBIDDEN_IN_IDS.sub("_", id) or "call")
            self._open.append((id, sent_id))
            arguments = sent_arguments(function.get("arguments"))
            blocks.append({"type": "tool_use", "id": sent_id, "name": function.get("name", ""), "input": arguments})
        return blocks

    def _result_block(self, message: Message) -> Block:
        id = message.get("tool_call_id") or ""
        match = next((pair for pair in self._open if pair[0] == id), None)
        if match is None:  # its call is not in the history any more
            return _text(f"Result of an earlier call of {message.get('name', 'a tool')}: {text_of_message(message)}")
        self._open.remove(match)
        content = message.get("content")
        result = content if isinstance(content, str) else _content_blocks(content)
        return {"type": "tool_result", "tool_use_id": match[1], "content": result}

    def _answer_what_is_open(self) -> None:
        for _, sent_id in self._open:
            problem = "This call was interrupted; nobody knows its result."
            result = {"type": "tool_result", "tool_use_id": sent_id, "content": problem, "is_error": True}
            self._say("user", [result])
        self._open.clear()

    def _unique(self, id: str) -> str:
        unique, n = id, 1
        while unique in self._used_ids:
            n += 1
            unique = f"{id}_{n}"
        self._used_ids.add(unique)
        return unique


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _text_blocks(message: Message) -> list[Block]:
    text = text_of_message(message)
    return [_text(text)] if text.strip() else []


def _content_blocks(content: Any) -> list[Block]:
    if not isinstance(content, list):
        return [_text(content)] if isinstance(content, str) and content.strip() else []
    return [block for part in content if (block := _block(part)) is not None]


def _block(part: Any) -> Block | None:
    if not isinstance(part, dict):
        return _text(as_text(part))
    if part.get("type") == "text":
        return _text(part["text"]) if str(part.get("text", "")).strip() else None
    image = part.get("image_url")
    if image is None:
        return _text(as_text(part))
    url = image.get("url", "") if isinstance(image, dict) else str(image)
    if data := _DATA_URL.match(url):
        return {"type": "image", "source": {"type": "base64", "media_type": data[1], "data": data[2]}}
    return {"type": "image", "source": {"type": "url", "url": url}}
