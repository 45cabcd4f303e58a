"""What a step may use: the results of earlier steps, their numbers, and the results of tools as text."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ferrule.agent.answer import NO_TOOL, PlanStep, StepResult
from ferrule.core.content import as_text
from ferrule.core.patterns import lazy_pattern
from ferrule.hub.synthesis import strategy_tag_of
from ferrule.texts.numbers import find_numbers
from ferrule.texts.shorten import shorten


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
    title = hit.get("title") or hit.get("name")
    snippet = hit.get("snippet") or hit.get("description") or shorten(as_text(hit.get("content") or ""), MAX_HIT_LENGTH)
    url = hit.get("url") or hit.get("link")
    text = ": ".join(str(part) for part in (title, snippet) if part) or as_text(hit)
    return f"- {text}" + (f" ({url})" if url else "")
