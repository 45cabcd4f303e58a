"""Ending a run: writing the answer from the results of all steps, and the last entry in the store."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ferrule.agent.answer import AgentState
from ferrule.agent.made_up_numbers import find_made_up_number
from ferrule.agent.run import Run
from ferrule.core.messages import Usage, user_message
from ferrule.core.model import Model, ModelRequest, can_reason
from ferrule.errors import ModelError
from ferrule.policy.approvals import ApprovalRequest, Question
from ferrule.texts.answers import main_text
from ferrule.texts.error_messages import translate_error
from ferrule.texts.language import detect_language
from ferrule.texts.planning_prompts import NO_ANSWER, NO_RESULT, REASONED_INSTEAD, SYNTHESIS
from ferrule.texts.shorten import shorten, single_line
from ferrule.workflow.history import PlanSecrets, restore_plan
from ferrule.workflow.plan import EMPTY_PLAN, Plan
from ferrule.workflow.plan_runner import PlanRunner
from ferrule.workflow.results import StepResult, WorkflowResult, text_of_evidence


class CoordinationAgent:
    """Writes the answer."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.usage = Usage()

    async def synthesize(
        self,
        question: str,
        plan: Plan,
        results: Sequence[StepResult],
        *,
        may_reason: bool = True,
        history: str = "",
    ) -> str:
        """Write the answer from all results, if the model can reason and `may_reason` is true.

        If a step failed, an answer with a number that is not in the results is replaced by what was tried.

        The result of a single step is the answer itself. Without a thinking model, the answer is the last good result
        that is not empty, or the last one of each branch of the plan.
        """
        good = [result for result in results if result.success and result.result.strip()]
        if not good:
            return _explain_failure(question, results)
        answer = ""
        if may_reason and len(results) > 1 and can_reason(self._model):
            answer = await self._write_answer(question, results)
        answer = answer or _combine_last_results(plan, good)
        is_complete = all(r.success and not r.made_up_number and not r.is_reasoned_instead for r in results)
        if not is_complete and find_made_up_number(answer, _evidence_of_answer(question, history, results)):
            return _explain_failure(question, results)  # a model fills in what is missing
        reasoned = dict.fromkeys(result.tool_type for result in results if result.is_reasoned_instead)
        note = REASONED_INSTEAD[detect_language(question)].format(tools=", ".join(reasoned)) if reasoned else ""
        return f"{answer}\n{note}".rstrip()

    async def _write_answer(self, question: str, results: Sequence[StepResult]) -> str:
        summaries = "\n".join(result.summary for result in results)
        prompt = "\n\n".join([question, summaries, SYNTHESIS[detect_language(question)]])
        try:
            reply = await self._model.generate(ModelRequest(messages=[user_message(prompt)]))
        except ModelError:
            return ""
        self.usage += reply.usage
        return reply.text.strip()


def _evidence_of_answer(question: str, history: str, results: Sequence[StepResult]) -> str:
    """All that an answer may take numbers from; errors, and what the model said in place of a tool, may be told too."""
    texts = [result.result if result.is_reasoned_instead else result.error or "" for result in results]
    return "\n".join([text_of_evidence(question, history, results), *texts])


def _explain_failure(question: str, results: Sequence[StepResult]) -> str:
    """The answer if the results do not give one: what was tried, with what was found and what failed."""
    language = detect_language(question)
    heading, line, doubt = NO_ANSWER[language]
    lines = [heading]
    for result in results:
        error = translate_error(result.error or NO_RESULT[language], language)
        outcome = shorten(single_line(result.result if result.success else error), 200)
        if result.made_up_number:
            outcome += doubt.format(number=result.made_up_number)
        lines.append(line.format(number=result.step_id, description=result.description, outcome=outcome))
    return "\n".join(lines)


def _combine_last_results(plan: Plan, good: Sequence[StepResult]) -> str:
    """Combine the results that no later successful step needed; the others were intermediate."""
    ids = {str(result.step_id) for result in good}
    needed = {str(dependency) for step in plan.steps if str(step.id) in ids for dependency in step.dependencies}
    last = [result for result in good if str(result.step_id) not in needed]
    if len(last) == 1:
        return main_text(last[0].result)
    return "\n".join(f"{result.description.rstrip('.。')}: {main_text(result.result)}" for result in last)


class StageTimer:
    """Measures how long each stage takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end_stage(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def restart(self) -> None:
        """Measure the next stage from now on."""
        self._last = time.perf_counter()


def finish_run(
    run: Run, runner: PlanRunner, answer: str, secrets: PlanSecrets, timings: dict[str, float]
) -> WorkflowResult:
    """Write the last entry, with the answer or the requests the run waits for, and return the result."""
    requests = runner.open_requests
    run.approvals = {request.call_id: request for request in requests if isinstance(request, ApprovalRequest)}
    run.questions = {request.call_id: request for request in requests if isinstance(request, Question)}
    if not runner.is_done:
        run.wait()
    else:
        is_good = runner.stop_reason is None and any(result.success for result in runner.results)
        run.end(AgentState.FINISHED if is_good else AgentState.STOPPED, answer, runner.stop_reason or "")
    plan = secrets.redact_plan(runner.plan) if runner.plan.steps else None
    return _make_result(run, plan, runner.results, timings)


def result_of_ended_run(run: Run) -> WorkflowResult:
    """Return the result of a run that is over, from the store."""
    plan, results = restore_plan(run)
    steps = () if plan is None else plan.steps
    return _make_result(run, plan, [results[str(step.id)] for step in steps if str(step.id) in results], {})


def _make_result(
    run: Run, plan: Plan | None, results: Sequence[StepResult], timings: dict[str, float]
) -> WorkflowResult:
    return WorkflowResult(
        run_id=run.id,
        question=run.task,
        state=run.state,
        answer=run.text,
        plan=plan,
        steps=tuple(results),
        approvals=tuple(run.approvals.values()),
        questions=tuple(run.questions.values()),
        errors=_collect_errors(plan or EMPTY_PLAN, results, run.reason or None),
        usage=run.usage,
        model_cost=run.costs.models,
        tool_cost=run.costs.tools,
        timings=timings,
    )


def _collect_errors(plan: Plan, results: Sequence[StepResult], stop_reason: str | None) -> tuple[str, ...]:
    """The problems of the plan, the issues of the results, and why the run stopped early."""
    issues = (
        f"Step {result.step_id}: {issue}"
        for result in results
        if result.verification is not None and not result.skipped
        for issue in result.verification.issues
    )
    return (*plan.problems, *issues, *([f"The run was stopped: {stop_reason.rstrip('.')}."] if stop_reason else ()))
