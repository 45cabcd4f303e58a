"""The protocol of a language model: a request in, a reply out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, cast

from ferrule.core.messages import Message, Schema, ToolCall, Usage, user_message
from ferrule.core.names import did_you_mean
from ferrule.errors import SetupError

logger = logging.getLogger("ferrule.models")

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


class ModelSettings(TypedDict, total=False):
    """How a model generates its replies."""

    temperature: float
    """From 0 (the most likely words) to 2."""
    max_tokens: int
    """The most tokens of one reply."""


def check_settings(settings: Mapping[str, Any] | None) -> ModelSettings:
    """Return the settings. Raises SetupError for a setting that does not exist, and for an impossible value."""
    for name, value in (settings or {}).items():
        names = list(ModelSettings.__annotations__)
        if name not in names:
            hint = did_you_mean(name, names) or f" The settings are: {', '.join(names)}."
            raise SetupError(f"There is no model setting {name!r}.{hint}")
        low, high, kind = (0, 2, (int, float)) if name == "temperature" else (1, math.inf, int)
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
            what = "a number from 0 to 2" if name == "temperature" else "a whole number above 0"
            raise SetupError(f"The model setting {name} must be {what}, not {value!r}.")
    return cast(ModelSettings, dict(settings or {}))


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


def ignored_settings(model: Model) -> Collection[str]:
    """Return the settings that a model ignores, as its attribute `ignored_settings` names them."""
    return getattr(model, "ignored_settings", ())


class ModelWrapper:
    """A model that asks another one, whose name, abilities and methods it has. Subclasses add `generate`."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        return self.model.name

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # it is being copied or unpickled
            raise AttributeError(name)
        return getattr(self.model, name)


class ModelWithSettings(ModelWrapper):
    """A model whose requests have these settings, unless a request has its own."""

    def __init__(self, model: Model, settings: ModelSettings) -> None:
        super().__init__(model)
        self._settings = settings
        for name in ignored_settings(model):
            if name in settings:
                logger.warning("model=<%s>, setting=<%s> | has no such setting: it has no effect", model.name, name)

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        missing = {name: value for name, value in self._settings.items() if getattr(request, name) is None}
        return await self.model.generate(replace(request, **missing), on_text)  # type: ignore[arg-type]
