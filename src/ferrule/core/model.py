"""The protocol of a language model: a request in, a reply out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ferrule.core.messages import Message, Schema, ToolCall, Usage, user_message

ToolChoice: TypeAlias = Literal["auto", "required", "none"]
FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "refused"]
TextSink: TypeAlias = Callable[[str], None]
"""Receives the pieces of a text while it is being generated. It may raise `EndReply`, if the model `can_end_reply`."""


class EndReply(Exception):
    """Raised by a `TextSink`: the rest of the reply is not needed, and the model should stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The input of a model for one turn."""

    messages: Sequence[Message]
    tools: Sequence[Schema] = ()
    tool_choice: ToolChoice = "auto"
    answer_schema: Mapping[str, Any] | None = None
    """A JSON Schema the text must follow; enforced during generation by models that support it."""
    temperature: float | None = None
    max_tokens: int | None = None
    failed_calls: frozenset[str] | None = None
    """The ids of the calls in the messages that failed; None if that is not known. A result does not always say it."""

    @classmethod
    def of(cls, request: ModelRequest | str) -> ModelRequest:
        """Return a request; a text is a request with this text as the user's message."""
        return cls(messages=[user_message(request)]) if isinstance(request, str) else request


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """The output of a model for one turn."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls requested through its API; calls written into the text are read by `ferrule.parsing`."""
    usage: Usage = field(default_factory=Usage)
    finish_reason: FinishReason = "stop"
    is_verbatim: bool = False
    """Whether the text is the answer as it is, and no calls are read from it: it may repeat a file or a page."""
    reasoning: str = ""
    """The model's reasoning before its reply, where the API returns it; never sent back."""


class Model(Protocol):
    """A language model. Anything with a name and this one method is one."""

    @property
    def name(self) -> str: ...

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        """Reply to a request. With `on_text`, the text is also streamed to it in pieces. All models of Ferrule take a
        text instead of a request too.

        Raises `ModelError` (or a subclass) when there is no reply; cancelling the task stops the model.
        """
        ...


def can_end_reply(model: Model) -> bool:
    """Return whether a model stops when its text sink raises `EndReply`; such a model has `can_end_reply = True`."""
    return bool(getattr(model, "can_end_reply", False))


def can_reason(model: Model) -> bool:
    """Return whether a model can reply without tools. A model that can only use tools has `can_reason = False`."""
    return bool(getattr(model, "can_reason", True))


def selects_tools(model: Model) -> bool:
    """Return whether a model picks the fitting tools of a request itself, so that schemas cost it no tokens."""
    return bool(getattr(model, "selects_tools", False))


class ModelWrapper:
    """A model that asks another one, whose name and abilities it has. Subclasses add `generate`."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def can_reason(self) -> bool:
        return can_reason(self.model)

    @property
    def can_end_reply(self) -> bool:
        return can_end_reply(self.model)

    @property
    def selects_tools(self) -> bool:
        return selects_tools(self.model)
