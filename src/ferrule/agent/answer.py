"""The values of a run: its plan, its steps, its answer, and the events emitted while it is in progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, cast

from ferrule.core.call import Progress
from ferrule.core.content import as_text
from ferrule.core.messages import Message, ToolCall, Usage
from ferrule.core.names import did_you_mean
from ferrule.errors import SetupError
from ferrule.policy.approvals import ApprovalRequest, Question
from ferrule.texts.error_messages import translate_error
from ferrule.texts.language import detect_language
from ferrule.texts.planning_prompts import STEP_SUMMARY

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    OutputT = TypeVarWithDefault("OutputT", default=str)
else:
    OutputT = TypeVar("OutputT")

logger = logging.getLogger("ferrule.agent")

NO_TOOL: Final = "none"
"""The tool of a step that is reasoning."""
ASK_USER: Final = "ask_user"
"""The tool of a step that is a question to the user."""
StepId: TypeAlias = int | str
AttemptLevel: TypeAlias = Literal["name", "capability", "reasoning"]
"""How a step was tried: with the tool it names, with any similar tool, or by the model's own reasoning."""
AnswerStrategy: TypeAlias = Literal["fast_path", "plan", "loop", "direct"]


class ReadableFields:
    """A dataclass with slots whose fields can also be read as `value["name"]` and `value.get("name")`."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        if name not in self.__slots__:
            raise KeyError(name)
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


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


# Plans


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One step of a plan."""

    id: StepId
    description: str
    tool_type: str = NO_TOOL
    """The tool's name for models; `none` = reasoning, `ask_user` = a question."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """The arguments, possibly incomplete. They may refer to results of other steps: `${1}`, `${1.items[0].name}`."""
    dependencies: tuple[StepId, ...] = ()
    complexity: int = 1
    expected: str = ""
    """The expected type of the result: `number`, `date`, `text` …; empty = any."""
    waits_for_all: bool = False
    """The plan does not say which results it needs: reasoning waits for all earlier steps, and uses what succeeded."""
    made_up_number: str = ""
    """A number in a calculation that is neither in the question nor in a result: the result is not verified."""

    @classmethod
    def of(cls, step: PlanStep | Mapping[str, Any], number: int = 1) -> PlanStep:
        """Return the step, which may be an object as models write it. `number` is its place in the plan."""
        if isinstance(step, PlanStep):
            return step
        step_id, complexity = step.get("id", number), step.get("complexity", 1)
        needed = step.get("dependencies", step.get("depends_on"))
        parameters = step.get("parameters", step.get("arguments"))
        tool_type = str(step.get("tool_type", step.get("tool")) or NO_TOOL).strip()
        if "tool_id" in step and not step.get("tool_type"):
            tool_type = ".".join(str(step[name]) for name in ("tool_id", "action") if step.get(name))
        return cls(
            id=step_id if isinstance(step_id, (int, str)) and not isinstance(step_id, bool) else number,
            description=str(step.get("description") or step.get("task") or f"step {number}"),
            tool_type=tool_type,
            parameters=dict(parameters) if isinstance(parameters, Mapping) else {},
            dependencies=tuple(d for d in needed if isinstance(d, (int, str))) if isinstance(needed, list) else (),
            complexity=complexity if isinstance(complexity, int) else 1,
            expected=str(step.get("expected") or ""),
            waits_for_all=needed is None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values. The last two fields are left out where they say nothing."""
        fields = {name: getattr(self, name) for name in self.__slots__} | {"dependencies": list(self.dependencies)}
        optional = ("waits_for_all", "made_up_number")
        return {name: value for name, value in fields.items() if value or name not in optional}

    def find_awaited_steps(self, steps: Sequence[PlanStep]) -> list[StepId]:
        """Return the steps of a plan that must have ended before this one starts, whether they succeeded or not."""
        if not self.waits_for_all or self.tool_type != NO_TOOL:
            return []
        return [step.id for step in islice(steps, next(at for at, step in enumerate(steps) if step.id == self.id))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of a plan, each placed after the steps it depends on."""

    steps: tuple[PlanStep, ...]
    parallel_groups: tuple[tuple[StepId, ...], ...] = ()
    """Groups of steps that can run concurrently, in order."""
    total_estimated_time: float = 0.0
    problems: tuple[str, ...] = ()
    """Mistakes in the plan that were repaired."""
    revised_for: tuple[StepId, ...] = ()
    """Steps with bad results, because of which the following steps were planned again."""

    def __getitem__(self, name: StepId) -> Any:
        """Return the step with this id, or a field, as `plan["steps"]`."""
        steps = {str(step.id): step for step in self.steps}
        if (step := steps.get(str(name))) is not None:
            return step
        if name not in self.__slots__:
            raise KeyError(f"A plan has no {name!r}.{did_you_mean(str(name), [*self.__slots__, *steps])}")
        return getattr(self, str(name))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "steps": [step.to_dict() for step in self.steps],
            "parallel_groups": [list(group) for group in self.parallel_groups],
            "total_estimated_time": self.total_estimated_time,
            "problems": list(self.problems),
            "revised_for": list(self.revised_for),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_dict` wrote."""
        return cls(
            steps=tuple(PlanStep(**{**step, "dependencies": tuple(step["dependencies"])}) for step in data["steps"]),
            parallel_groups=tuple(map(tuple, data["parallel_groups"])),
            total_estimated_time=data["total_estimated_time"],
            problems=tuple(data["problems"]),
            revised_for=tuple(data["revised_for"]),
        )


EMPTY_PLAN: Final = Plan(steps=())


# Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAttempt:
    """One attempt to execute a step."""

    level: AttemptLevel
    tool: str
    success: bool
    error: str | None = None
    call_id: str = ""
    """The id of its record in the store; empty if nothing was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Whether a result is plausible."""

    verified: bool
    confidence: float
    issues: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class StepResult(ReadableFields):
    """The result of one step: of a call of the loop, or of a step of a plan. It does not change once it is stored."""

    step_id: StepId
    """The id of the step in its plan; of a call of the loop, the model's id for it."""
    description: str
    tool_type: str
    """The name of the tool for models."""
    success: bool
    action: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the call, or of the plan if no call was made. Redacted: secrets are replaced."""
    result: str = ""
    """As text for people and models. Of a step of a plan, it is formatted and shortened."""
    output: Any = None
    """The complete value, which later steps of a plan can refer to."""
    error: str | None = None
    error_type: str | None = None
    attempts: tuple[StepAttempt, ...] = ()
    skipped: bool = False
    """The step was not tried, because a step it depends on failed or a limit was reached."""
    made_up_number: str = ""
    """A number it was calculated with that is neither in the question nor in a result."""
    rests_on_reasoning: bool = False
    """It was made with the result of a step that no tool confirms."""
    seconds: float = 0.0
    cost: float | None = None
    """None for a tool without a price."""
    advice: str = ""
    """What the model is told about the result, besides its text. It is not meant for people."""
    verification: Verification | None = None

    @classmethod
    def of(cls, result: StepResult | Mapping[str, Any]) -> StepResult:
        """Return the result, which may be an object with any of the fields."""
        if isinstance(result, StepResult):
            return result
        fields = {name: value for name, value in result.items() if name in cls.__slots__}
        value = fields.get("result", "")
        fields |= {"result": as_text(value), "output": fields.get("output", value)}
        defaults = {"step_id": result.get("id", 1), "description": "", "tool_type": NO_TOOL, "success": False}
        return cls.from_dict({**defaults, **fields})

    # Other names, which suit a call of the loop

    @property
    def id(self) -> str:
        return str(self.step_id)

    @property
    def tool_id(self) -> str:
        """Return the id of the tool that was called first."""
        return self.attempts[0].tool if self.attempts else self.tool_type

    @property
    def is_success(self) -> bool:
        return self.success

    @property
    def text(self) -> str:
        """Return the result, or the error message."""
        return self.result if self.success else self.error or ""

    @property
    def text_for_model(self) -> str:
        return f"{self.text}\n{self.advice}" if self.advice else self.text

    @property
    def record_id(self) -> str:
        """Return the id of the record of the last call, empty if nothing was called."""
        return self.attempts[-1].call_id if self.attempts else ""

    # How far it can be relied on

    @property
    def answered_by(self) -> str | None:
        """Return the tools that answered instead of the one that the step names, or None if that one did, or none."""
        last = self.attempts[-1] if self.attempts else None
        return last.tool if self.success and last is not None and last.level == "capability" else None

    @property
    def is_reasoned_instead(self) -> bool:
        """Return whether the model answered by itself, because the tools that the step names failed."""
        levels = [attempt.level for attempt in self.attempts if attempt.success]
        return self.success and levels[-1:] == ["reasoning"] and len(levels) < len(self.attempts)

    @property
    def is_confirmed(self) -> bool:
        """Return whether tools or a person provided the result, and all that it was made from."""
        return not (self.rests_on_reasoning or self.is_reasoned_instead)

    @property
    def failed_or_implausible(self) -> bool:
        return not self.skipped and self.verification is not None and not self.verification.verified

    @property
    def summary(self) -> str:
        """Return the result in one line, for models."""
        language = detect_language(self.description)
        texts = STEP_SUMMARY[language]
        if not self.success:
            error = translate_error(self.error or "", language)
            return f"[{self.step_id}] {self.description}: {texts['failed'].format(error=error)}"
        notes = texts["doubtful"] if self.failed_or_implausible else ""
        if self.made_up_number:
            notes = texts["made_up"].format(number=self.made_up_number)
        if self.is_reasoned_instead:
            notes += texts["reasoned"].format(tool=self.tool_type)
        if self.answered_by is not None:
            notes += texts["answered_by"].format(other=self.answered_by, tool=self.tool_type)
        return f"[{self.step_id}] {self.description}{notes}: {self.result}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, also under the other names."""
        names = ("id", "tool_id", "is_success", "text", "record_id")
        return {**self.to_entry(only_changed=False), **{name: getattr(self, name) for name in names}}

    def to_entry(self, *, only_changed: bool = True) -> dict[str, Any]:
        """Return the fields that differ from their defaults. Values are not copied, because results do not change."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        if only_changed:
            fields = {n: value for n, value in fields.items() if value != _STEP_DEFAULTS.get(n, _NO_DEFAULT)}
        fields["attempts"] = [{name: getattr(attempt, name) for name in attempt.__slots__} for attempt in self.attempts]
        if self.verification is not None:
            fields["verification"] = asdict(self.verification)
        return fields

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepResult:
        """Return the result that `to_dict` or `to_entry` wrote."""
        fields = {name: value for name, value in data.items() if name in cls.__slots__}
        fields["attempts"] = tuple(StepAttempt(**attempt) for attempt in fields.get("attempts", ()))
        verification = fields.get("verification")
        if verification is not None:
            fields["verification"] = Verification(**{**verification, "issues": tuple(verification["issues"])})
        return cls(**fields)


_NO_DEFAULT: Final = object()
_STEP_DEFAULTS: Final = {each.name: each.default for each in fields(StepResult) if each.default is not MISSING}


# Answers

NO_OUTPUT: Final = object()
"""The answer has no value of a type."""
_OTHER_NAMES: Final = (
    *("answer", "final_answer", "task_plan", "results", "step_results", "tool_usage_summary", "current_step", "output"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAnswer(Generic[OutputT]):
    """What a run has come to: its answer, or the questions and approvals it waits for.

    The loop, plans and direct answers give the same. Fields can also be read as `answer["text"]`.
    """

    state: AgentState
    text: str = ""
    question: str = ""
    strategy: AnswerStrategy = "loop"
    run_id: str = ""
    """For resuming the run or reading its records; empty if no run was needed."""
    conversation_id: str = ""
    trace_id: str = ""
    """The id of the question in the log."""
    plan: Plan | None = None
    steps: tuple[StepResult, ...] = ()
    """The calls of the loop, or the results of the steps of the plan."""
    verification: Verification | None = None
    """The verification of all steps together; the lowest confidence counts. None if nothing was verified."""
    questions: tuple[Question, ...] = ()
    """Questions that wait for an answer."""
    approvals: tuple[ApprovalRequest, ...] = ()
    """Calls that wait for approval, and budgets that wait for an extension."""
    reason: str = ""
    """Why the run stopped, if it did."""
    has_model_failed: bool = False
    """Whether it stopped because the model gave no reply."""
    errors: tuple[str, ...] = ()
    """Problems that did not stop the run, and why it stopped."""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """What the model's replies and the calls cost; None if nothing of it has a price, 0 if it comes from the cache."""
    model_cost: float | None = None
    """The part of the replies, also of those that tools asked for."""
    tool_cost: float | None = None
    """The part of the calls, also of those that tools made."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds that each stage took, as far as they were measured."""
    summary: dict[str, Any] = field(default_factory=dict)
    """A summary of the calls: how many there were, of which tools, and whether any failed."""
    messages: list[Message] = field(default_factory=list)
    """The whole history, in OpenAI's format."""
    cached: bool = False
    """The answer comes from the cache."""
    shared: bool = False
    """The answer comes from a run that another caller started with the same question."""
    value: Any = field(default=NO_OUTPUT, repr=False)
    """The output, where the run was started with a type for it."""

    @property
    def output(self) -> OutputT:
        """Return the answer in the type that `run(…, output=…)` named; without one, its text. Raises SetupError for an
        unfinished run.
        """
        if not self.is_finished:
            reason = f": {self.reason.rstrip('.')}." if self.reason else "."
            if self.state is AgentState.STOPPED:
                raise SetupError(f"The run stopped without an output{reason}")
            why = "was interrupted before it had an output"
            if self.state is AgentState.WAITING:
                why = "has no output yet, because it waits for a person"
            raise SetupError(f"The run {why}{reason} Continue it with agent.resume({self.run_id!r}, …).")
        return cast(OutputT, self.text if self.value is NO_OUTPUT else self.value)

    @property
    def is_finished(self) -> bool:
        return self.state is AgentState.FINISHED

    @property
    def current_step(self) -> int:
        """Return how many steps have results."""
        return len(self.steps)

    # Other names of the fields, which the design documents use

    @property
    def answer(self) -> str:
        return self.text

    @property
    def task_plan(self) -> Plan | None:
        return self.plan

    @property
    def step_results(self) -> tuple[StepResult, ...]:
        return self.steps

    @property
    def tool_usage_summary(self) -> dict[str, Any]:
        return self.summary

    final_answer, results = answer, step_results

    def __getitem__(self, name: str) -> Any:
        names = [*(each.name for each in fields(self)), *_OTHER_NAMES]
        if name not in names:
            raise KeyError(f"An answer has no {name!r}.{did_you_mean(name, names)}")
        return getattr(self, name)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, for files, pipes and pages."""
        return {
            "question": self.question,
            "answer": self.text,
            "state": self.state.value,
            "strategy": self.strategy,
            "trace_id": self.trace_id,
            "run_id": self.run_id,
            "conversation_id": self.conversation_id,
            "plan": None if self.plan is None else self.plan.to_dict(),
            "steps": [step.to_dict() for step in self.steps],
            "verification": None if self.verification is None else asdict(self.verification),
            "tool_usage_summary": self.summary,
            "usage": {**asdict(self.usage), "total_tokens": self.usage.total_tokens},
            "cost": self.cost,
            "model_cost": self.model_cost,
            "tool_cost": self.tool_cost,
            "timings": self.timings,
            "cached": self.cached,
            "shared": self.shared,
            "questions": [asdict(question) for question in self.questions],
            "approvals": [asdict(request) for request in self.approvals],
            "reason": self.reason,
            "errors": list(self.errors),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run in the store, in a list of runs."""

    run_id: str
    state: AgentState
    task: str
    reason: str
    """Why it stopped or was interrupted."""
    written_at: datetime
    """When its last entry was written."""


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

    step: StepResult


@dataclass(frozen=True, slots=True)
class PlanCreated:
    """A plan was made or revised."""

    plan: Plan
    results: tuple[StepResult, ...] = ()
    """Results its steps already have, in a resumed run."""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step of a plan has a result."""

    result: StepResult


@dataclass(frozen=True, slots=True)
class RunPaused:
    """The run waits for a person; it can be resumed."""

    answer: AgentAnswer[Any]


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over."""

    answer: AgentAnswer[Any]


RunEvent: TypeAlias = (
    TurnStarted
    | TextPiece
    | CallStarted
    | CallProgress
    | CustomEvent
    | CallEnded
    | PlanCreated
    | StepEnded
    | RunPaused
    | RunEnded
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
