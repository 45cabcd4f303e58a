"""What comes of a run: its answer, its steps, and what it waits for if it is not over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ferrule.messages import Message, Usage


class AgentState(StrEnum):
    """Where a run is."""

    RUNNING = "running"
    WAITING = "waiting"
    """For a person's word: an answer, or leave to make a call."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """It came to a limit, or the model failed; the answer says what was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStep:
    """One call of a run and what came of it."""

    id: str
    """The model's id for the call."""
    tool_id: str
    action: str | None
    arguments: dict[str, Any]
    """As they may be shown: secrets are blanked."""
    text: str
    """What the model was told."""
    is_success: bool
    error_type: str | None = None
    seconds: float = 0.0
    record_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Something a run wants to know from a person before it goes on."""

    call_id: str
    text: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A call that a person must agree to."""

    call_id: str
    tool_id: str
    action: str | None
    arguments: dict[str, Any]
    """As they may be shown: secrets are blanked."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A person's word on a call: as it is, with other arguments, or not at all."""

    allowed: bool
    arguments: Mapping[str, Any] | None = None
    """What to call it with instead."""
    reason: str = ""
    """What the model is told when it is not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAnswer:
    """What came of a run."""

    run_id: str
    state: AgentState
    text: str = ""
    steps: list[AgentStep] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    messages: list[Message] = field(default_factory=list)
    """The whole history, in OpenAI's format."""
    questions: list[Question] = field(default_factory=list)
    approvals: list[ApprovalRequest] = field(default_factory=list)
    reason: str = ""
    """Why it stopped, if it did."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Its calls in short: how many, of which tools, whether any failed."""

    @property
    def is_finished(self) -> bool:
        return self.state is AgentState.FINISHED

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, for files, pipes and pages."""
        return {
            "run_id": self.run_id,
            "state": self.state.value,
            "text": self.text,
            "steps": [asdict(step) for step in self.steps],
            "usage": {**asdict(self.usage), "total_tokens": self.usage.total_tokens},
            "questions": [asdict(question) for question in self.questions],
            "approvals": [asdict(request) for request in self.approvals],
            "reason": self.reason,
            "summary": self.summary,
        }
