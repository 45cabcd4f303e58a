"""What a language model is to Ferrule: a request in, a reply out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ferrule.messages import Message, Schema, ToolCall, Usage

ToolChoice: TypeAlias = Literal["auto", "required", "none"]
FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "refused"]
TextSink: TypeAlias = Callable[[str], None]
"""Gets the pieces of a text while it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Everything a model is given for one turn."""

    messages: Sequence[Message]
    tools: Sequence[Schema] = ()
    tool_choice: ToolChoice = "auto"
    answer_schema: Mapping[str, Any] | None = None
    """A JSON Schema the text must follow; models that can are held to it while they write."""
    temperature: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """What a model made of it."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls it asked for by its API; calls written into the text are read by `ferrule.parsing`."""
    usage: Usage = field(default_factory=Usage)
    finish_reason: FinishReason = "stop"
    reasoning: str = ""
    """What it thought before it spoke, where its API tells; never sent back."""


class Model(Protocol):
    """A language model. Anything with a name and this one method is one."""

    @property
    def name(self) -> str: ...

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        """Answer a request. With `on_text` the text is also handed on piece by piece as it comes.

        Raises `ModelError` (or one of its kinds) when there is no answer; cancelling the task stops the model.
        """
        ...


def can_think(model: Model) -> bool:
    """Whether a model can answer out of itself. One that only knows how to use tools says `thinks = False`."""
    return bool(getattr(model, "thinks", True))
