"""The results of steps and workflows, their events, and the text form of a tool's result."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias

from ferrule.agent.answer import AgentState
from ferrule.core.content import as_text
from ferrule.core.messages import Usage
from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.hub.synthesis import strategy_tag_of
from ferrule.policy.approvals import ApprovalRequest, Question
from ferrule.texts.numbers import find_numbers
from ferrule.texts.shorten import shorten
from ferrule.workflow.plan import NO_TOOL, Plan, PlanStep, StepId

AttemptLevel: TypeAlias = Literal["name", "capability", "reasoning"]
"""How a step was tried: with the tool it names, with any similar tool, or by the model's own reasoning."""


# Results of steps


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAttempt:
    """One attempt to execute a step."""

    level: AttemptLevel
    tool: str
    success: bool
    error: str | None = None
    call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Whether a result is plausible."""

    verified: bool
    confidence: float
    issues: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class StepResult:
    """The result of one step. It does not change after the runner has accepted it."""

    step_id: StepId
    description: str
    tool_type: str
    success: bool
    arguments: Mapping[str, Any] | None = None
    """The arguments of the call, or of the plan if no call was made. Redacted: secrets are replaced."""
    result: str = ""
    """As text for people and models: formatted and shortened."""
    output: Any = None
    """The complete value, which later steps can refer to."""
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
    verification: Verification | None = None

    def __getitem__(self, name: str) -> Any:
        """A field, as `result["success"]`."""
        if name not in self.__slots__:
            raise KeyError(name)
        return getattr(self, name)

    @classmethod
    def of(cls, result: StepResult | Mapping[str, Any]) -> StepResult:
        """A result, which may be an object with any of the fields."""
        if isinstance(result, StepResult):
            return result
        fields = {name: value for name, value in result.items() if name in cls.__slots__}
        value = fields.get("result", "")
        fields |= {"result": as_text(value), "output": fields.get("output", value)}
        defaults = {"step_id": result.get("id", 1), "description": "", "tool_type": NO_TOOL, "success": False}
        return cls.from_dict({**defaults, **fields})

    @property
    def answered_by(self) -> str | None:
        """The tools that answered instead of the one that the step names; None if that one did, or none."""
        last = self.attempts[-1] if self.attempts else None
        return last.tool if self.success and last is not None and last.level == "capability" else None

    @property
    def is_reasoned_instead(self) -> bool:
        """Whether the model answered by itself, because the tools that the step names failed."""
        levels = [attempt.level for attempt in self.attempts if attempt.success]
        return self.success and levels[-1:] == ["reasoning"] and len(levels) < len(self.attempts)

    @property
    def is_confirmed(self) -> bool:
        """Whether tools or a person provided the result, and all it was made from: only then may it change anything."""
        return not (self.rests_on_reasoning or self.is_reasoned_instead)

    @property
    def failed_or_implausible(self) -> bool:
        """Whether the step failed or its result is not plausible."""
        return not self.skipped and self.verification is not None and not self.verification.verified

    @property
    def summary(self) -> str:
        """The result in one line, for models."""
        if not self.success:
            return f"[{self.step_id}] {self.description}: failed ({self.error})"
        notes = " (doubtful)" if self.failed_or_implausible else ""
        if self.made_up_number:
            notes = f" (doubtful: {self.made_up_number} is made up)"
        if self.is_reasoned_instead:
            notes += f" (from no tool, because {self.tool_type} failed: it may be wrong)"
        if self.answered_by is not None:
            notes += f" (answered by {self.answered_by}, because {self.tool_type} failed)"
        return f"[{self.step_id}] {self.description}{notes}: {self.result}"

    def to_dict(self) -> dict[str, Any]:
        """The fields, for the store. Values are not copied, because results do not change."""
        fields = _shallow_fields(self)
        fields["attempts"] = [_shallow_fields(attempt) for attempt in self.attempts]
        if self.verification is not None:
            fields["verification"] = _shallow_fields(self.verification)
        return fields

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepResult:
        """A result as `to_dict` wrote it."""
        fields = dict(data)
        fields["attempts"] = tuple(StepAttempt(**attempt) for attempt in fields.get("attempts", ()))
        verification = fields.get("verification")
        if verification is not None:
            fields["verification"] = Verification(**{**verification, "issues": tuple(verification["issues"])})
        return cls(**fields)


@dataclass(slots=True, kw_only=True)
class StepContext:
    """The information available to a step: the question, and the results of earlier steps."""

    question: str
    run_id: str = ""
    results: dict[str, StepResult] = field(default_factory=dict)
    """By step id, as text."""
    history: str = ""
    """The conversation before the question, if the question refers to it."""

    @classmethod
    def of(cls, context: StepContext | Mapping[str, Any]) -> StepContext:
        """A context, which may be an object with `question`, `run_id`, `step_results` and `history`."""
        if isinstance(context, StepContext):
            return context
        results = context.get("step_results") or context.get("results") or ()
        steps = [StepResult.of(result) for result in (results.values() if isinstance(results, Mapping) else results)]
        return cls(
            question=str(context.get("question") or context.get("task") or ""),
            run_id=str(context.get("run_id") or ""),
            results={str(step.step_id): step for step in steps},
            history=str(context.get("history") or ""),
        )

    def select_for(self, step: PlanStep) -> StepContext:
        """What a step may see: the results that it needs, and of the others those that are confirmed.

        So its own result is confirmed if all results that it needs are, and a step that changes something, which never
        needs others, cannot take an argument from any other.
        """
        if step.tool_type == NO_TOOL and step.waits_for_all:
            return replace(self, results=dict(self.results))
        needed = {str(step_id) for step_id in step.dependencies}
        results = {key: r for key, r in self.results.items() if key in needed or r.is_confirmed or not r.success}
        return replace(self, results=results)

    def outputs(self) -> dict[str, Any]:
        """The results that parameters may refer to."""
        return {step_id: result.output for step_id, result in self.results.items() if result.success}


def text_of_evidence(question: str, history: str, results: Iterable[StepResult]) -> str:
    """All that a step or an answer may take numbers from. The descriptions of steps are the model's own words, and so
    is what it says in place of a tool.
    """
    certain = (r for r in results if r.success and not r.made_up_number and not r.is_reasoned_instead)
    outputs = [as_text(result.output) for result in certain]
    return "\n".join([question, history, *outputs])


def _shallow_fields(value: StepAttempt | Verification | StepResult) -> dict[str, Any]:
    """Like `asdict`, but without deep copies, which took a quarter of the time of a step."""
    return {name: getattr(value, name) for name in value.__slots__}


# Numbers that a model makes up: they are neither in the question nor in a result. A number counts as known where it
# follows from a known one without a calculation: rounded, or as the share of a percentage. Numbers of one digit are not
# evidence, and a calculation may contain usual constants.

_WRITTEN_NUMBER = lazy_pattern(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d+)?")
_CALCULATION = lazy_pattern(r"(?!\d+/\d+/\d+$)[\d\s.,()]*\d[\s)]*(?:[+*/^%×÷]|\s-\s)[\d\s.,()+\-*/^%×÷]*")
"""A text with an operator: a number alone is an argument like any other, and so is a date."""
_CONSTANTS: Final = (12.0, 24.0, 52.0, 60.0, 100.0, 180.0, 360.0, 365.0, 1000.0, 1024.0, 3600.0, math.pi, math.e)
"""Numbers that a calculation may contain whatever the question is."""


def find_made_up_number(text: str, evidence: str, constants: Sequence[float] = ()) -> str | None:
    """Return the first number of a text that does not come from the `evidence`: the question and the results."""
    numbers = [number for number in _read_numbers(text) if len(number) > 1]
    if not numbers:
        return None
    values = {float(number) for number in _read_numbers(evidence)}
    evidence_values = {
        *constants,
        *(other for value in values for other in (value, value / 100, 1 + value / 100, 1 - value / 100)),
    }
    rounded: dict[int, set[float]] = {}  # a result may have very many numbers: each is rounded once
    for number in numbers:
        digits = len(number.partition(".")[2])
        if digits not in rounded:
            rounded[digits] = {round(value, digits) for value in evidence_values}
        if float(number) not in rounded[digits] and not _is_written_out(float(number), evidence):
            return number
    return None


def find_made_up_operand(parameters: Mapping[str, Any], evidence: str) -> str | None:
    """Return the first made-up number in arguments that are calculations. References to results are not numbers."""
    calculations = [value for value in parameters.values() if isinstance(value, str) and _CALCULATION.fullmatch(value)]
    return next(filter(None, (find_made_up_number(text, evidence, _CONSTANTS) for text in calculations)), None)


def _is_written_out(number: float, evidence: str) -> bool:
    """Return whether a number is in the evidence as words: `twenty`, `二十`."""
    return any(span.value == number for span in find_numbers(evidence))


def _read_numbers(text: str) -> Iterator[str]:
    return (match.group().replace(",", "") for match in _WRITTEN_NUMBER.finditer(text))


# Results of workflows


@dataclass(frozen=True, slots=True)
class PlanCreated:
    """A plan was made or revised."""

    plan: Plan
    results: tuple[StepResult, ...] = ()
    """Results its steps already have, in a resumed run."""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step has a result."""

    result: StepResult


WorkflowEvent: TypeAlias = PlanCreated | StepEnded
OnWorkflowEvent: TypeAlias = Callable[[WorkflowEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowResult:
    """The answer to a question, with the plan and the results that led to it."""

    run_id: str
    question: str
    state: AgentState
    answer: str = ""
    plan: Plan | None = None
    steps: tuple[StepResult, ...] = ()
    """The results of the steps of a plan, or of the calls of the loop."""
    approvals: tuple[ApprovalRequest, ...] = ()
    questions: tuple[Question, ...] = ()
    """Questions that wait for an answer; `approvals` are calls that wait for approval."""
    errors: tuple[str, ...] = ()
    """Problems that did not stop the run, and why the run stopped early."""
    usage: Usage = field(default_factory=Usage)
    model_cost: float | None = None
    """What the replies of models have cost since the run began, also replies to tools; None if none has a price."""
    tool_cost: float | None = None
    """What the calls have cost, also those that tools made; None if none has a price."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds that each stage took."""

    # Other names of the fields, which the design documents use; also as `result["final_answer"]`.

    @property
    def final_answer(self) -> str:
        return self.answer

    @property
    def task_plan(self) -> Plan | None:
        return self.plan

    @property
    def results(self) -> tuple[StepResult, ...]:
        return self.steps

    @property
    def step_results(self) -> tuple[StepResult, ...]:
        return self.steps

    @property
    def current_step(self) -> int:
        """How many steps have results."""
        return len(self.steps)

    def __getitem__(self, name: str) -> Any:
        names = [*(f.name for f in fields(self)), *_OTHER_NAMES]
        if name not in names:
            raise KeyError(f"A result has no {name!r}.{did_you_mean(name, names)}")
        return getattr(self, name)


_OTHER_NAMES: Final = ("final_answer", "task_plan", "results", "step_results", "current_step")


# Results of tools as text: the relevant part, limited in length and cut at the end of a sentence

MAX_LENGTHS: Final = {"calculate": 100, "time": 200, "search": 500, "history": 1000}
DEFAULT_MAX_LENGTH: Final = 500
MAX_HITS: Final = 3
"""How many hits of a search are kept."""
_LIST_KEYS: Final = ("results", "items", "hits", "entries")


def format_result(output: Any, *, name: str, tags: Collection[str] = ()) -> str:
    """The result of a tool as text."""
    kind = "history" if "history" in name else strategy_tag_of(tags) or "other"
    return shorten(_format_by_kind(output, kind), MAX_LENGTHS.get(kind, DEFAULT_MAX_LENGTH))


def _format_by_kind(output: Any, kind: str) -> str:
    if kind == "search" and (hits := _find_hits(output)) is not None:
        return "\n".join(_format_hit(hit) for hit in hits[:MAX_HITS])
    if kind == "history" and isinstance(output, list):
        return "\n".join(_format_turn(turn) for turn in output)
    if kind == "time" and isinstance(output, Mapping) and isinstance(output.get("text"), str):
        return str(output["text"])
    if isinstance(output, Mapping) and len(output) == 1:
        output = next(iter(output.values()))
    return as_text(output).strip()


def _format_turn(turn: Any) -> str:
    if not isinstance(turn, Mapping) or "question" not in turn:
        return f"- {as_text(turn)}"
    return f"- {turn['question']}" + (f" → {turn['answer']}" if turn.get("answer") else "")


def _find_hits(output: Any) -> list[Any] | None:
    if isinstance(output, list):
        return output
    if isinstance(output, Mapping):
        return next((output[key] for key in _LIST_KEYS if isinstance(output.get(key), list)), None)
    return None


def _format_hit(hit: Any) -> str:
    if not isinstance(hit, Mapping):
        return f"- {as_text(hit)}"
    title, snippet = hit.get("title") or hit.get("name"), hit.get("snippet") or hit.get("description")
    url = hit.get("url") or hit.get("link")
    text = ": ".join(str(part) for part in (title, snippet) if part) or as_text(hit)
    return f"- {text}" + (f" ({url})" if url else "")
