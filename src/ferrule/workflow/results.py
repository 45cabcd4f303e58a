"""What steps may use of earlier results, the results of tools as text, and the answer that is written from them all."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ferrule.agent.answer import NO_TOOL, Plan, PlanStep, StepResult
from ferrule.core.content import as_text
from ferrule.core.messages import Usage, user_message
from ferrule.core.model import Model, ModelRequest, can_reason
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import ModelError
from ferrule.hub.synthesis import strategy_tag_of
from ferrule.texts.answers import main_text
from ferrule.texts.error_messages import translate_error
from ferrule.texts.language import detect_language
from ferrule.texts.numbers import find_numbers
from ferrule.texts.planning_prompts import NO_ANSWER, NO_RESULT, REASONED_INSTEAD, SYNTHESIS
from ferrule.texts.shorten import shorten, single_line


@dataclass(slots=True, kw_only=True)
class StepContext:
    """The information available to a step: the question, and the results of earlier steps."""

    question: str
    run_id: str = ""
    results: dict[str, StepResult] = field(default_factory=dict)
    """By step id, as text."""
    history: str = ""
    """The conversation before the question, if the question refers to it."""
    earlier_questions: tuple[str, ...] = ()
    """What the user has written in that conversation."""

    @classmethod
    def of(cls, context: StepContext | Mapping[str, Any]) -> StepContext:
        """Return a context, which may be an object with `question`, `run_id`, `step_results` and `history`."""
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
        """Return what a step may see: the results that it needs, and of the others those that are confirmed.

        So its own result is confirmed if all results that it needs are, and a step that changes something, which never
        needs others, cannot take an argument from any other.
        """
        if step.tool_type == NO_TOOL and step.waits_for_all:
            return replace(self, results=dict(self.results))
        needed = {str(step_id) for step_id in step.dependencies}
        results = {key: r for key, r in self.results.items() if key in needed or r.is_confirmed or not r.success}
        return replace(self, results=results)

    def outputs(self) -> dict[str, Any]:
        """Return the results that parameters may refer to."""
        return {step_id: result.output for step_id, result in self.results.items() if result.success}


def text_of_evidence(question: str, history: str, results: Iterable[StepResult]) -> str:
    """Return all that a step or an answer may take numbers from.

    The descriptions of steps are the model's own words, and so is what it says in place of a tool.
    """
    certain = (r for r in results if r.success and not r.made_up_number and not r.is_reasoned_instead)
    outputs = [as_text(result.output) for result in certain]
    return "\n".join([question, history, *outputs])


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
        # It may be written out in words: `twenty`, `二十`.
        if float(number) not in rounded[digits] and all(span.value != float(number) for span in find_numbers(evidence)):
            return number
    return None


def find_made_up_operand(parameters: Mapping[str, Any], evidence: str) -> str | None:
    """Return the first made-up number in arguments that are calculations. References to results are not numbers."""
    calculations = [value for value in parameters.values() if isinstance(value, str) and _CALCULATION.fullmatch(value)]
    return next(filter(None, (find_made_up_number(text, evidence, _CONSTANTS) for text in calculations)), None)


def _read_numbers(text: str) -> Iterator[str]:
    return (match.group().replace(",", "") for match in _WRITTEN_NUMBER.finditer(text))


# Results of tools as text: the relevant part, limited in length and cut at the end of a sentence

MAX_LENGTHS: Final = {"calculate": 100, "time": 200, "search": 500, "history": 1000}
DEFAULT_MAX_LENGTH: Final = 500
MAX_HITS: Final = 3
"""How many hits of a search are kept."""
MAX_HIT_LENGTH: Final = 150
"""Of the whole content of a page, where a hit has it in place of a snippet."""
_LIST_KEYS: Final = ("results", "items", "hits", "entries")


def format_result(output: Any, *, name: str, tags: Collection[str] = ()) -> str:
    """Return the result of a tool as text."""
    kind = "history" if "history" in name else strategy_tag_of(tags) or "other"
    return shorten(_format_by_kind(output, kind), MAX_LENGTHS.get(kind, DEFAULT_MAX_LENGTH))


def _format_by_kind(output: Any, kind: str) -> str:
    if kind == "search":
        lists = [output.get(key) for key in _LIST_KEYS] if isinstance(output, Mapping) else [output]
        if (hits := next((each for each in lists if isinstance(each, list)), None)) is not None:
            return "\n".join(map(_format_hit, hits[:MAX_HITS]))
    if kind == "history" and isinstance(output, list):
        return "\n".join(map(_format_turn, output))
    if kind == "time" and isinstance(output, Mapping) and isinstance(output.get("text"), str):
        return str(output["text"])
    if isinstance(output, Mapping) and len(output) == 1:
        output = next(iter(output.values()))
    return as_text(output).strip()


def _format_turn(turn: Any) -> str:
    if not isinstance(turn, Mapping) or "question" not in turn:
        return f"- {as_text(turn)}"
    return f"- {turn['question']}" + (f" → {turn['answer']}" if turn.get("answer") else "")


def _format_hit(hit: Any) -> str:
    if not isinstance(hit, Mapping):
        return f"- {as_text(hit)}"
    title = hit.get("title") or hit.get("name")
    snippet = hit.get("snippet") or hit.get("description") or shorten(as_text(hit.get("content") or ""), MAX_HIT_LENGTH)
    url = hit.get("url") or hit.get("link")
    text = ": ".join(str(part) for part in (title, snippet) if part) or as_text(hit)
    return f"- {text}" + (f" ({url})" if url else "")


# The answer to the question, from the results of all steps


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
        # Numbers may also come from errors, and from what the model said in place of a tool.
        others = [result.result if result.is_reasoned_instead else result.error or "" for result in results]
        evidence = "\n".join([text_of_evidence(question, history, results), *others])
        if not is_complete and find_made_up_number(answer, evidence):
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
