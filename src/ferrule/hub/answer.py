"""What came of candidates, and the one result made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ferrule.call import ToolExecutionContext, ToolExecutionResult
from ferrule.content import Text
from ferrule.errors import CANCELLED, EXECUTION_ERROR, TIMEOUT, TOOL_NOT_FOUND, VALIDATION_ERROR, NeedsApproval
from ferrule.hub.candidate import Skipped, ToolCandidate

JobKey: TypeAlias = tuple[str | None, str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attempt:
    """A candidate with the arguments in its own words."""

    candidate: ToolCandidate
    params: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the call of one candidate ended."""

    candidate: ToolCandidate
    result: ToolExecutionResult

    @property
    def is_answer(self) -> bool:
        """Whether it succeeded and has something to say."""
        return self.result.is_success and not is_empty(self.result)

    @property
    def settles_it(self) -> bool:
        """Whether the job is done: answered, or done by one that changes the world and has no word to say about it."""
        return self.is_answer or (self.result.is_success and not self.candidate.effects.read_only)

    @property
    def needs_approval(self) -> bool:
        """Whether it waits for a person to agree."""
        return self.result.metadata.get("advice") == NeedsApproval.advice

    def leaves_room_for(self, other: ToolCandidate) -> bool:
        """Whether another may be asked after this success with nothing to say.

        What changes the world has done so without a word; it must not be done twice.
        """
        return self.candidate.effects.read_only and other.effects.repeatable

    @property
    def may_have_happened(self) -> bool:
        """Whether a failure may have changed the world: then nobody must do it again."""
        if self.result.is_success or self.candidate.effects.repeatable:
            return False
        return self.result.metadata.get("outcome") == "unknown" or self.result.error_type in (TIMEOUT, CANCELLED)


@dataclass(slots=True, kw_only=True)
class Job:
    """The working notes of one job, from what is wanted to its result."""

    wanted: str
    action: str | None = None
    tag: str | None = None
    """None when the job was asked for by name."""
    params: Any
    """A dictionary, unless the caller gave something else."""
    context: ToolExecutionContext | None
    skipped: list[Skipped] = field(default_factory=list)
    ended: list[Ending] = field(default_factory=list)
    """In the order of their ends; those that were stopped are not among them."""

    @property
    def empty(self) -> Ending | None:
        """The first success that had nothing to say."""
        return next((ending for ending in self.ended if ending.result.is_success), None)

    @property
    def key(self) -> JobKey:
        """The same for all jobs that want the same done."""
        return self.wanted if self.tag is None else None, self.action, self.tag

    def done_before(self, candidate: ToolCandidate) -> Ending | None:
        """The silent success after which this candidate must not be asked."""
        silent = (ending for ending in self.ended if ending.result.is_success)
        return next((ending for ending in silent if not ending.leaves_room_for(candidate)), None)

    def skip(self, candidate: ToolCandidate, reason: str) -> None:
        self.skipped.append(Skipped(label=candidate.label, reason=reason))

    def answer(self, result: ToolExecutionResult, *candidates: ToolCandidate) -> ToolExecutionResult:
        """A result of the engine as that of the job."""
        facts = _meta([candidate.source for candidate in candidates], synthesized=False)
        result.metadata = {**result.metadata, **facts, **self._notes()}
        return result

    def combined(self, endings: Sequence[Ending], output: dict[str, Any], synthesis: str) -> ToolExecutionResult:
        """The result of several candidates."""
        results = [ending.result for ending in endings]
        facts = _meta([ending.candidate.source for ending in endings], synthesized=True)
        called = {"synthesis": synthesis, "call_ids": [result.call_id for result in results]}
        if any(result.output.get("untrusted") for result in results):  # a stranger's words, whoever writes them anew
            output = {**output, "untrusted": True}
        return ToolExecutionResult(
            is_success=True,
            tool_name=self.wanted,
            output=output,
            execution_time=max(result.execution_time for result in results),
            executed_at=min(result.executed_at for result in results),
            metadata={**facts, **called, **self._notes()},
            content=tuple(part for result in results for part in result.content),
        )

    def failure(self) -> ToolExecutionResult:
        """All candidates that were called failed; each with its error. Where a person may help, that is asked for."""
        if (waiting := next((ending for ending in self.ended if ending.needs_approval), None)) is not None:
            return self.answer(waiting.result, waiting.candidate)
        if len(self.ended) == 1 and not self.skipped:
            return self.answer(self.ended[0].result, self.ended[0].candidate)
        lines = [f"{ending.candidate.label}: {ending.result.error}" for ending in self.ended]
        lines += [f"{skipped.label} was skipped: {skipped.reason}" for skipped in self.skipped]
        types = {ending.result.error_type for ending in self.ended} or {VALIDATION_ERROR}
        is_untrusted = any(ending.result.metadata.get("untrusted") for ending in self.ended)
        return ToolExecutionResult(
            is_success=False,
            tool_name=self.wanted,
            error=f"No candidate for {self.wanted!r} could do it.\n" + "\n".join(lines),
            error_type=types.pop() if len(types) == 1 else EXECUTION_ERROR,
            metadata={
                **_meta([e.candidate.source for e in self.ended], synthesized=False),
                **self._notes(),
                **({"untrusted": True} if is_untrusted else {}),
            },
        )

    def not_found(self, error: str) -> ToolExecutionResult:
        return ToolExecutionResult(
            is_success=False,
            tool_name=self.wanted,
            error=error,
            error_type=TOOL_NOT_FOUND,
            metadata={**_meta([], synthesized=False), **self._notes()},
        )

    def _notes(self) -> dict[str, Any]:
        failed = [ending for ending in self.ended if not ending.result.is_success]
        notes: dict[str, Any] = {}
        if self.skipped:
            notes["skipped"] = [skipped.to_dict() for skipped in self.skipped]
        if failed:
            notes["failures"] = [
                {"candidate": e.candidate.label, "error": e.result.error, "error_type": e.result.error_type}
                for e in failed
            ]
        return notes


def hub_result_dict(result: ToolExecutionResult) -> dict[str, Any]:
    """A result of the hub as `{"success", "result", "error", "_meta"}`."""
    output: Any = result.output
    if set(result.output) == {"result"}:
        output = result.output["result"]
    return {
        "success": result.is_success,
        "result": output if result.is_success else None,
        "error": result.error,
        "_meta": result.metadata["_meta"],
    }


def is_empty(result: ToolExecutionResult) -> bool:
    """Whether a success has nothing to say. Numbers and truth values always say something."""
    if result.content:
        return all(isinstance(part, Text) and not part.text.strip() for part in result.content)
    return _says_nothing(result.output)


def _says_nothing(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, dict):
        return all(map(_says_nothing, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_says_nothing, value))
    return value is None


def _meta(sources: list[str], *, synthesized: bool) -> dict[str, Any]:
    return {
        "_meta": {
            "source": ", ".join(dict.fromkeys(sources)),
            "synthesized": synthesized,
            "source_count": len(sources),
            "sources": sources,
        }
    }
