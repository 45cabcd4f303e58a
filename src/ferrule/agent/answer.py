"""The answer of a run, its steps, and the events emitted while it is in progress."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, cast

from ferrule.core.call import Progress
from ferrule.core.messages import Message, ToolCall, Usage
from ferrule.errors import SetupError
from ferrule.policy.approvals import ApprovalRequest, Question

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    OutputT = TypeVarWithDefault("OutputT", default=str)
else:
    OutputT = TypeVar("OutputT")

logger = logging.getLogger("ferrule.agent")


class AgentState(StrEnum):
    """The state of a run."""

    RUNNING = "running"
    WAITING = "waiting"
    """The run needs a person's answer, or approval of a call."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """The run reached a limit, or the model failed. The answer says what was tried."""
    INTERRUPTED = "interrupted"
    """The run was cancelled, ended by an error, or its process is gone. It can be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStep:
    """One call of a run and its result."""

    id: str
    """The model's id for the call."""
    tool_id: str
    action: str | None
    arguments: dict[str, Any]
    """Redacted: secrets are replaced."""
    text: str
    """The result, or the error message."""
    is_success: bool
    error_type: str | None = None
    seconds: float = 0.0
    cost: float | None = None
    """None for a tool without a price."""
    record_id: str = ""
    advice: str = ""
    """What the model is told about the result, besides its text. It is not meant for people."""

    @property
    def text_for_model(self) -> str:
        return f"{self.text}\n{self.advice}" if self.advice else self.text


NO_OUTPUT: Final = object()
"""The answer has no value of a type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAnswer(Generic[OutputT]):
    """The answer of a run, or the questions and approvals it waits for."""

    run_id: str
    state: AgentState
    text: str = ""
    steps: list[AgentStep] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """What the model's replies and the calls cost; None if nothing of it has a price."""
    model_cost: float | None = None
    """The part of the replies, also of those that tools asked for."""
    tool_cost: float | None = None
    """The part of the calls, also of those that tools made."""
    messages: list[Message] = field(default_factory=list)
    """The whole history, in OpenAI's format."""
    questions: list[Question] = field(default_factory=list)
    approvals: list[ApprovalRequest] = field(default_factory=list)
    reason: str = ""
    """Why the run stopped, if its state is `stopped`."""
    summary: dict[str, Any] = field(default_factory=dict)
    """A summary of the calls: how many there were, of which tools, and whether any failed."""
    value: Any = field(default=NO_OUTPUT, repr=False)
    """The output, where the run was started with a type for it."""

    @property
    def output(self) -> OutputT:
        """The answer in the type that `run(…, output=…)` named; without one, its text. SetupError if there is none."""
        if not self.is_finished:
            why = f": {self.reason.rstrip('.')}" if self.reason else ""
            next_step = " Continue it with agent.resume(…)." if self.state is AgentState.WAITING else ""
            raise SetupError(f"The run {self.run_id!r} has no output: it is {self.state.value}{why}.{next_step}")
        return cast(OutputT, self.text if self.value is NO_OUTPUT else self.value)

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
            "cost": self.cost,
            "model_cost": self.model_cost,
            "tool_cost": self.tool_cost,
            "questions": [asdict(question) for question in self.questions],
            "approvals": [asdict(request) for request in self.approvals],
            "reason": self.reason,
            "summary": self.summary,
        }


# Events that an interface can show while a run is in progress


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A turn starts: the model is asked for a reply."""

    number: int


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of the text the model writes."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A tool is called."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallProgress:
    """A tool reports how far its call is (`report_progress`), or yields a part of its output."""

    call: ToolCall
    progress: Progress


@dataclass(frozen=True, slots=True)
class CustomEvent:
    """A tool reports something of its own (`emit_event`)."""

    call: ToolCall
    name: str
    data: Any


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call has a result."""

    step: AgentStep


@dataclass(frozen=True, slots=True)
class RunPaused:
    """The run waits for a person; it can be resumed."""

    answer: AgentAnswer[Any]


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over."""

    answer: AgentAnswer[Any]


RunEvent: TypeAlias = (
    TurnStarted | TextPiece | CallStarted | CallProgress | CustomEvent | CallEnded | RunPaused | RunEnded
)
OnEvent: TypeAlias = Callable[[RunEvent], None]


def log_listener_errors(listener: Callable[[Any], None] | None) -> Callable[[Any], None] | None:
    """Wrap a listener so that its exceptions are logged: a failing interface must not end the run. None stays None."""
    if listener is None:
        return None

    def guarded(event: Any) -> None:
        try:
            listener(event)
        except Exception:
            logger.exception("event=<%s> | the listener of the run failed", type(event).__name__)

    return guarded
