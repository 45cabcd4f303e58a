"""What is known of a run that is gone on with: its plan and results, what it has used, what people have said."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrule.agent.answer import Approval
from ferrule.agent.limits import RunLimits
from ferrule.messages import Usage
from ferrule.workflow.budget import Budget
from ferrule.workflow.conductor import Conductor
from ferrule.workflow.execution import Word
from ferrule.workflow.plan import ASK_USER, NO_TOOL, Plan
from ferrule.workflow.results import StepResult
from ferrule.workflow.team import Team
from ferrule.workflow.workflow import Answers, Approvals


def plan_in(entries: Sequence[Mapping[str, Any]]) -> Plan | None:
    """The plan as it was last written down."""
    return next((Plan.from_dict(entry["plan"]) for entry in reversed(entries) if entry["kind"] == "plan"), None)


def results_in(entries: Sequence[Mapping[str, Any]]) -> dict[str, StepResult]:
    """By the ids of the steps. One whose checkpoint was lost in a crash is written down twice."""
    found = (StepResult.from_dict(entry["result"]) for entry in entries if entry["kind"] == "step")
    return {str(result.step_id): result for result in found}


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used in its earlier lives."""

    calls: int = 0
    seconds: float = 0.0
    usage: Usage = Usage()

    def budget(self, limits: RunLimits | None, team: Team) -> Budget:
        """What is left of the limits for the team that goes on."""
        return Budget(limits, lambda: self.usage + team.usage, calls=self.calls, seconds=self.seconds)


def spent_in(entries: Sequence[Mapping[str, Any]]) -> Spent:
    calls = sum(one.tool_type not in (NO_TOOL, ASK_USER) and not one.skipped for one in results_in(entries).values())
    ends = [entry for entry in entries if entry["kind"] == "end"]
    used = sum((Usage(**entry.get("used", {})) for entry in ends), start=Usage())
    return Spent(calls, sum(float(entry.get("seconds", 0)) for entry in ends), used)


def words_for(waits: Mapping[str, Any], answer: Answers, approvals: Approvals) -> dict[str, Word]:
    """What people have said about each step that waits: `approvals` and `questions` have their `call_id`s."""
    found: dict[str, Word] = {}
    for request in waits.get("approvals", ()):
        step_id = str(request["call_id"])
        word = approvals if isinstance(approvals, bool) or approvals is None else approvals.get(step_id)
        if word is not None:
            word = Approval(allowed=word) if isinstance(word, bool) else word
            # What was shown is what was agreed to: a model that is asked again may say something else.
            found[step_id] = replace(word, arguments=request["arguments"]) if word.arguments is None else word
    questions = [str(one["call_id"]) for one in waits.get("questions", ())]
    if isinstance(answer, str):
        answer = {step_id: answer for step_id in questions[:1]}
    return found | {step_id: text for step_id, text in (answer or {}).items() if step_id in questions}


class WaitingRuns:
    """The plans and results of runs that wait, with the secrets in them: as they are written down they have none."""

    MOST: Final = 1_000

    def __init__(self) -> None:
        self._runs: OrderedDict[str, tuple[Plan, dict[str, StepResult]]] = OrderedDict()

    def keep(self, run_id: str, conductor: Conductor) -> None:
        self._runs[run_id] = (conductor.plan, conductor.context.results)
        if len(self._runs) > self.MOST:
            self._runs.popitem(last=False)

    def take(self, run_id: str) -> tuple[Plan, dict[str, StepResult]] | None:
        return self._runs.pop(run_id, None)
