"""What came of the steps of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ferrule.workflow.plan import StepId

Level: TypeAlias = Literal["name", "capability", "reasoning"]
"""How a step was tried: the tool by its name, any tool that can do the same, or thinking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One way a step was tried."""

    level: Level
    tool: str
    success: bool
    error: str | None = None
    call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Whether a result can be believed."""

    verified: bool
    confidence: float
    issues: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What came of one step. Once it is settled nobody changes it."""

    step_id: StepId
    description: str
    tool_type: str
    success: bool
    result: str = ""
    """For reading: formatted and cut."""
    output: Any = None
    """Whole, as later steps refer to it."""
    error: str | None = None
    error_type: str | None = None
    attempts: tuple[Attempt, ...] = ()
    skipped: bool = False
    """It was not tried, because something it needs failed."""
    seconds: float = 0.0
    verification: Verification | None = None

    @property
    def is_doubtful(self) -> bool:
        """Whether it failed, or cannot be believed."""
        return not self.skipped and self.verification is not None and not self.verification.verified

    @property
    def told(self) -> str:
        """In a line, for models."""
        if not self.success:
            return f"[{self.step_id}] {self.description}: failed ({self.error})"
        doubts = " (doubtful)" if self.is_doubtful else ""
        return f"[{self.step_id}] {self.description}{doubts}: {self.result}"

    def to_dict(self) -> dict[str, Any]:
        """For notes and checkpoints. Nothing is copied: nobody changes a result."""
        said = _said(self)
        said["attempts"] = [_said(one) for one in self.attempts]
        if self.verification is not None:
            said["verification"] = _said(self.verification)
        return said

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> StepResult:
        """A result as `to_dict` wrote it."""
        known = dict(said)
        known["attempts"] = tuple(Attempt(**one) for one in known.get("attempts", ()))
        verified = known.get("verification")
        if verified is not None:
            known["verification"] = Verification(**{**verified, "issues": tuple(verified["issues"])})
        return cls(**known)


@dataclass(slots=True, kw_only=True)
class StepContext:
    """What a step may know: the question, and what came of the steps before it."""

    question: str
    run_id: str = ""
    results: dict[str, StepResult] = field(default_factory=dict)
    """By the ids of the steps, as text."""
    history: str = ""
    """What was said before the question, if it matters."""

    def outputs(self) -> dict[str, Any]:
        """What references in parameters may refer to."""
        return {step_id: result.output for step_id, result in self.results.items() if result.success}


def _said(value: Attempt | Verification | StepResult) -> dict[str, Any]:
    """Its fields. `asdict` would copy all there is in them, and that took a quarter of a step."""
    return {name: getattr(value, name) for name in value.__slots__}
