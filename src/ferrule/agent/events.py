"""What happens in a run, for faces to show while it happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ferrule.agent.answer import AgentAnswer, AgentStep
from ferrule.messages import ToolCall


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The model is asked."""

    number: int


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of what the model writes."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A tool is called."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallEnded:
    """What came of it."""

    step: AgentStep


@dataclass(frozen=True, slots=True)
class RunPaused:
    """A person is asked; the run can be gone on with."""

    answer: AgentAnswer


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over."""

    answer: AgentAnswer


RunEvent: TypeAlias = TurnStarted | TextPiece | CallStarted | CallEnded | RunPaused | RunEnded
OnEvent: TypeAlias = Callable[[RunEvent], None]
