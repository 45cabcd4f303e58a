"""An answer of Anthropic's, put together from the events of its stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ferrule.errors import ModelUnavailable
from ferrule.messages import Usage
from ferrule.models.anthropic_messages import Block
from ferrule.models.arguments import read_call, sent_arguments
from ferrule.models.model import FinishReason, ModelReply, TextSink

_FINISH: dict[str, FinishReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


@dataclass(slots=True)
class _DraftBlock:
    kind: str
    id: str = ""
    name: str = ""
    text: list[str] = field(default_factory=list)
    input: Any = None
    """Of a `tool_use` that came whole; usually it comes in pieces of JSON."""
    seal: str = ""
    """Of a thought: its signature; of a hidden one: all there is."""


class Draft:
    """Takes events, makes one reply."""

    def __init__(self, on_text: TextSink | None) -> None:
        self._on_text = on_text
        self._blocks: dict[int, _DraftBlock] = {}
        self._counts: dict[str, int] = {}
        self._stop_reason: str | None = None

    def add(self, event: Any) -> None:
        kind = getattr(event, "type", None)
        if kind == "content_block_delta":
            self._add_delta(event.index, event.delta)
        elif kind == "content_block_start":
            self._begin(event.index, event.content_block)
        elif kind == "message_start":
            self._count(getattr(event.message, "usage", None))
        elif kind == "message_delta":
            self._stop_reason = getattr(event.delta, "stop_reason", None) or self._stop_reason
            self._count(getattr(event, "usage", None))

    def reply(self, *, model: str) -> ModelReply:
        """The reply, if it was received to its end."""
        if self._stop_reason is None:
            raise ModelUnavailable(f"Model {model!r} broke off before its answer was finished.")
        finish = _FINISH.get(self._stop_reason, "stop")
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        cut_off = blocks[-1] if blocks and finish == "length" else None
        return ModelReply(
            text="".join("".join(block.text) for block in blocks if block.kind == "text"),
            tool_calls=tuple(
                read_call(block.name, "".join(block.text) or block.input or "", id=block.id, cut_off=block is cut_off)
                for block in blocks
                if block.kind == "tool_use"
            ),
            usage=self._usage(),
            finish_reason=finish,
            reasoning="".join("".join(block.text) for block in blocks if block.kind == "thinking"),
        )

    def content(self) -> list[Block]:
        """The blocks as they came, thoughts and all."""
        return [_sent_back(self._blocks[index]) for index in sorted(self._blocks)]

    def _begin(self, index: int, block: Any) -> None:
        draft = _DraftBlock(
            kind=block.type,
            id=getattr(block, "id", ""),
            name=getattr(block, "name", ""),
            input=getattr(block, "input", None),
            seal=getattr(block, "data", None) or getattr(block, "signature", None) or "",
        )
        self._blocks[index] = draft
        if block.type == "text" and block.text:
            self._add_text(draft, block.text)

    def _add_delta(self, index: int, delta: Any) -> None:
        block = self._blocks.setdefault(index, _DraftBlock(kind="text"))
        if delta.type == "text_delta":
            self._add_text(block, delta.text)
        elif delta.type == "input_json_delta":
            block.text.append(delta.partial_json)
        elif delta.type == "thinking_delta":
            block.text.append(delta.thinking)
        elif delta.type == "signature_delta":
            block.seal = delta.signature

    def _add_text(self, block: _DraftBlock, text: str) -> None:
        block.text.append(text)
        if self._on_text is not None and text:
            self._on_text(text)

    def _count(self, usage: Any) -> None:
        """Counts are of all so far; the last one holds, and what it leaves out stays as it was."""
        for name in ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
            if (count := getattr(usage, name, None)) is not None:
                self._counts[name] = count

    def _usage(self) -> Usage:
        count = self._counts.get
        cached = count("cache_read_input_tokens", 0)
        return Usage(
            requests=1,
            input_tokens=count("input_tokens", 0) + count("cache_creation_input_tokens", 0) + cached,
            output_tokens=count("output_tokens", 0),
            cached_tokens=cached,
        )


def _sent_back(block: _DraftBlock) -> Block:
    text = "".join(block.text)
    if block.kind == "tool_use":
        arguments = sent_arguments(text or block.input)
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": arguments}
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": text, "signature": block.seal}
    if block.kind == "redacted_thinking":
        return {"type": "redacted_thinking", "data": block.seal}
    return {"type": block.kind, "text": text}
