"""The results of candidates, and the one result that is made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ferrule.core.call import Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import Text
from ferrule.core.spec import Tool
from ferrule.errors import EXECUTION_ERROR, VALIDATION_ERROR, NeedsApproval
from ferrule.hub.candidates import SkippedCandidate, ToolCandidate

RequestKey: TypeAlias = tuple[str | None, str | None, str | None]


@dataclass(slots=True, kw_only=True, eq=False)
class CandidateCall:
    """The call of one candidate, with the arguments under the candidate's own names."""

    candidate: ToolCandidate
    params: Any
    result: ToolExecutionResult = field(init=False)
    """Set when the call has ended."""

    @property
    def is_answer(self) -> bool:
        """Return whether the call succeeded with a result that is not empty."""
        return self.result.is_success and not is_empty(self.result)

    @property
    def is_final(self) -> bool:
        """Return whether the job is done: answered, or an effect took place, for which an empty result is enough."""
        return self.is_answer or (self.result.is_success and not self.candidate.effects.read_only)

    @property
    def needs_approval(self) -> bool:
        """Return whether the call waits for a person to agree."""
        return self.result.metadata.get("advice") == NeedsApproval.advice


@dataclass(slots=True, kw_only=True)
class HubRequest:
    """One job, from the name or tag it was requested by to its result."""

    name: str
    action: str | None = None
    tag: str | None = None
    """None when the job was requested by name."""
    params: Any
    """A dictionary, unless the caller passed something else."""
    context: ToolExecutionContext | None
    timeout: float | None = None
    on_progress: Callable[[Progress], None] | None = None
    replacing: ToolCandidate | None = None
    """The candidate that could not do the job, if others are to do it instead."""
    skipped: list[SkippedCandidate] = field(default_factory=list)
    tools_needing_approval: frozenset[Tool] = frozenset()
    """The tools for which a person must be asked first."""
    candidate_tools: frozenset[Tool] = frozenset()
    inferred: Mapping[str, str] = field(default_factory=dict)
    """What candidates do that declare nothing, by label."""
    ended_calls: list[CandidateCall] = field(default_factory=list)
    """In the order in which they ended; calls that were stopped are not among them."""

    @property
    def key(self) -> RequestKey:
        """Return what all requests for the same job have in common."""
        return self.name if self.tag is None else None, self.action, self.tag

    def skip(self, candidate: ToolCandidate, reason: str) -> None:
        self.skipped.append(SkippedCandidate(tool=candidate.tool, label=candidate.label, reason=reason))

    def finish(self, result: ToolExecutionResult, *candidates: ToolCandidate) -> ToolExecutionResult:
        """Add metadata about the candidates to the engine's result, which is the result of this request."""
        metadata = source_metadata([candidate.source for candidate in candidates], synthesized=False)
        if result.is_success:
            metadata["answered_by"] = [candidate.label for candidate in candidates]
        result.metadata = {**result.metadata, **metadata, **self._candidate_metadata()}
        return result

    def combine_answers(
        self, answers: Sequence[CandidateCall], output: dict[str, Any], synthesis: str
    ) -> ToolExecutionResult:
        """Make the result of several candidates."""
        results = [answer.result for answer in answers]
        if any(result.output.get("untrusted") for result in results):  # still so after a model has rewritten it
            output = {**output, "untrusted": True}
        return ToolExecutionResult(
            is_success=True,
            tool_name=self.name,
            output=output,
            execution_time=max(result.execution_time for result in results),
            executed_at=min(result.executed_at for result in results),
            metadata={
                **source_metadata([answer.candidate.source for answer in answers], synthesized=True),
                "answered_by": [answer.candidate.label for answer in answers],
                "synthesis": synthesis,
                "call_ids": [result.call_id for result in results],
                **self._candidate_metadata(),
            },
            content=tuple(part for result in results for part in result.content),
        )

    def failed_result(self) -> ToolExecutionResult:
        """Make the result when every candidate failed, with all their errors. A result that needs approval is returned
        alone, because a person can resolve it.
        """
        pending = next((each for each in self.ended_calls if each.needs_approval), None)
        if pending is not None:
            return self.finish(pending.result, pending.candidate)
        if len(self.ended_calls) == 1 and not self.skipped:
            return self.finish(self.ended_calls[0].result, self.ended_calls[0].candidate)
        lines = [f"{each.candidate.label}: {each.result.error}" for each in self.ended_calls]
        lines += [f"{skipped.label} was skipped: {skipped.reason}" for skipped in self.skipped]
        types = {each.result.error_type for each in self.ended_calls} or {VALIDATION_ERROR}
        result = self.make_failure(
            f"No candidate for {self.name!r} could do it.\n" + "\n".join(lines),
            types.pop() if len(types) == 1 else EXECUTION_ERROR,
        )
        if any(each.result.metadata.get("untrusted") for each in self.ended_calls):
            result.metadata["untrusted"] = True
        return result

    def make_failure(self, error: str, error_type: str | None) -> ToolExecutionResult:
        """Make a result of all candidates that were called, or of none."""
        sources = source_metadata([each.candidate.source for each in self.ended_calls], synthesized=False)
        metadata = {**sources, **self._candidate_metadata()}
        return ToolExecutionResult(
            is_success=False, tool_name=self.name, error=error, error_type=error_type, metadata=metadata
        )

    def _candidate_metadata(self) -> dict[str, Any]:
        failures = [describe_failure(c.candidate, c.result) for c in self.ended_calls if not c.result.is_success]
        metadata: dict[str, Any] = {}
        if self.skipped:
            metadata["skipped"] = [skipped.to_dict() for skipped in self.skipped]
        if failures:
            metadata["failures"] = failures
        if self.inferred:
            metadata["inferred"] = {**self.inferred}
        return metadata


def describe_failure(candidate: ToolCandidate, result: ToolExecutionResult) -> dict[str, Any]:
    return {"candidate": candidate.label, "error": result.error, "error_type": result.error_type}


def source_metadata(sources: list[str], *, synthesized: bool) -> dict[str, Any]:
    return {
        "_meta": {
            "source": ", ".join(dict.fromkeys(sources)),
            "synthesized": synthesized,
            "source_count": len(sources),
            "sources": sources,
        }
    }


def hub_result_dict(result: ToolExecutionResult) -> dict[str, Any]:
    """Return a result of the hub as `{"success", "result", "error", "_meta"}`."""
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
    """Return whether a success contains no information. Numbers and booleans always do."""
    if result.content:
        return all(isinstance(part, Text) and not part.text.strip() for part in result.content)
    return _is_empty_value(result.output)


def _is_empty_value(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, dict):
        return all(map(_is_empty_value, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_empty_value, value))
    return value is None
