"""An OpenAI-compatible answer, put together from pieces; a whole one is one piece."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ferrule.errors import ModelUnavailable
from ferrule.messages import Usage
from ferrule.models.arguments import read_call
from ferrule.models.model import FinishReason, ModelReply, TextSink

_FINISH: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
}


@dataclass(slots=True)
class _DraftCall:
    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""

    def is_whole(self) -> bool:
        try:
            json.loads(self.arguments)
        except ValueError:
            return False
        return True


class Draft:
    """Takes what a server sends, in whatever pieces, and makes one reply of it."""

    def __init__(self, on_text: TextSink | None = None) -> None:
        self._on_text = on_text
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_DraftCall] = []
        self._finish: str | None = None
        self._usage = Usage(requests=1)

    def add(self, answer: Any) -> None:
        """A chunk of a stream, or a whole completion. Any field may be missing, whatever the SDK's types say."""
        if (usage := getattr(answer, "usage", None)) is not None:
            self._usage = _usage(usage)
        for choice in (getattr(answer, "choices", None) or ())[:1]:
            self._finish = getattr(choice, "finish_reason", None) or self._finish
            piece = getattr(choice, "delta", None) or getattr(choice, "message", None)
            if piece is not None:
                self._add_piece(piece)

    def reply(self, *, model: str) -> ModelReply:
        """The reply, if it was received to its end."""
        if self._finish is None:
            raise ModelUnavailable(f"Model {model!r} broke off before its answer was finished.")
        cut_off = _FINISH.get(self._finish) == "length"
        calls = tuple(
            read_call(call.name, call.arguments, id=call.id, cut_off=cut_off and call is self._calls[-1])
            for call in self._calls
        )
        finish = _FINISH.get(self._finish, "stop")
        if finish in ("stop", "tool_calls"):  # some servers say `stop` after calls, others `tool_calls` without any
            finish = "tool_calls" if calls else "stop"
        return ModelReply(
            text="".join(self._text) or "".join(self._refusal),
            tool_calls=calls,
            usage=self._usage,
            finish_reason="refused" if self._refusal and not self._text else finish,
            reasoning="".join(self._reasoning),
        )

    def _add_piece(self, piece: Any) -> None:
        # `reasoning_content` is DeepSeek's, Qwen's and llama.cpp's name, `reasoning` Ollama's and OpenRouter's.
        thought = getattr(piece, "reasoning_content", None) or getattr(piece, "reasoning", None)
        if isinstance(thought, str):
            self._reasoning.append(thought)
        text = getattr(piece, "content", None)
        if isinstance(text, str) and text:
            self._text.append(text)
            if self._on_text is not None:
                self._on_text(text)
        if refusal := getattr(piece, "refusal", None):
            self._refusal.append(refusal)
        for part in getattr(piece, "tool_calls", None) or ():
            self._add_call(part)

    def _add_call(self, part: Any) -> None:
        function = getattr(part, "function", None)
        name, id = getattr(function, "name", None) or "", getattr(part, "id", None) or ""
        call = self._call_of(getattr(part, "index", None), id, name)
        call.id, call.name = call.id or id, call.name or name
        arguments = getattr(function, "arguments", None)
        call.arguments += arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments else ""

    def _call_of(self, index: int | None, id: str, name: str) -> _DraftCall:
        """The call a piece belongs to: by its index, but some servers send none, or the same for every call."""
        same = [c for c in self._calls if c.index == index] if index is not None else self._calls[-1:]
        if id and index is None:
            same = [c for c in self._calls if c.id == id]
        if same and not _begins_another(same[-1], id, name):
            return same[-1]
        self._calls.append(_DraftCall(index))
        return self._calls[-1]


def _begins_another(call: _DraftCall, id: str, name: str) -> bool:
    if id and call.id:
        return id != call.id
    return bool(name and call.name) and call.is_whole()


def _usage(usage: Any) -> Usage:
    details = getattr(usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or getattr(usage, "prompt_cache_hit_tokens", None)
    return Usage(
        requests=1,
        input_tokens=getattr(usage, "prompt_tokens", None) or 0,
        output_tokens=getattr(usage, "completion_tokens", None) or 0,
        cached_tokens=cached or 0,
    )
