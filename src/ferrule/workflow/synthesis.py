"""Writing the answer to a question from the results of all steps of its plan."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.agent.answer import Plan, StepResult
from ferrule.core.messages import Usage, user_message
from ferrule.core.model import Model, ModelRequest, can_reason
from ferrule.errors import ModelError
from ferrule.texts.answers import main_text
from ferrule.texts.error_messages import translate_error
from ferrule.texts.language import detect_language
from ferrule.texts.planning_prompts import NO_ANSWER, NO_RESULT, REASONED_INSTEAD, SYNTHESIS
from ferrule.texts.shorten import shorten, single_line
from ferrule.workflow.results import find_made_up_number, text_of_evidence


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
    """Return all that an answer may take numbers from, with errors and what the model said in place of a tool."""
    texts = [result.result if result.is_reasoned_instead else result.error or "" for result in results]
    return "\n".join([text_of_evidence(question, history, results), *texts])


def _explain_failure(question: str, results: Sequence[StepResult]) -> str:
    """Return the answer if the results do not give one: what was tried, with what was found and what failed."""
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
