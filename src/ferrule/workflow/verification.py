"""Checking whether the result of a step is plausible, by itself and compared with earlier results.

No model is asked: the checks are cheap and deterministic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import date, time
from functools import lru_cache
from typing import Any, Final

from ferrule.agent.answer import AgentAnswer, StepResult, Verification
from ferrule.catalog.search.terms import extract_terms
from ferrule.core.content import as_text
from ferrule.core.patterns import lazy_pattern
from ferrule.texts.shorten import shorten
from ferrule.workflow.results import StepContext

MAX_DESCRIPTION_LENGTH: Final = 200

MIN_SUBJECT_SIMILARITY: Final = 0.5
"""Two steps have the same subject if their words are this similar and one has all words of the other: "the time in
Oslo" and "the time in Rome" each have a word that the other lacks.
"""
MIN_AGREEMENT: Final = 0.2
"""Two results on the same subject must be at least this similar."""
_CONFIDENCE_LOSS: Final = {
    "empty": 0.8,
    "made_up": 0.8,
    "error": 0.7,
    "type": 0.6,
    "range": 0.6,
    "date": 0.6,
    "reasoned": 0.5,
    "consistency": 0.3,
}

_ERROR = lazy_pattern(
    r"^\s*(error|exception|traceback|failed|failure|fatal)\b|\b(an error (has )?occurred|request failed|access denied"
    r"|internal server error|404 not found|service unavailable)\b|^\s*(错误|失败|异常)|(发生错误|请求失败|访问被拒绝)",
    re.IGNORECASE,
)
_NUMBER = lazy_pattern(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NOT_FINITE = lazy_pattern(r"(?:\{\W*\w+\W*:)?\s*[\"']?(nan|[-+]?inf(?:inity)?)[\"']?\s*\}?", re.IGNORECASE)
_PERCENT = lazy_pattern(r"(-?\d[\d,]*(?:\.\d+)?)\s*[%％]")
_DATE = lazy_pattern(r"\b(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})\b|(\d{4})年(\d{1,2})月(\d{1,2})日")
_TIME = lazy_pattern(r"(?:(?<=\dT)|(?<![A-Za-z0-9_:]))(\d{1,2}):(\d{2})(?::(\d{2}))?(?![\d:])")
"""A whole time of day: neither a part of a longer row of numbers, nor the minutes of a time after a date."""
_SHARES = lazy_pattern(
    r"\b(probability|share|proportion|percentage of|chance|概率|占比|比例)\b|概率|占比|比例", re.IGNORECASE
)
_NEVER_NEGATIVE = lazy_pattern(
    r"\b(count|how many|number of|age|length|distance|population|price|size|weight|duration)\b"
    r"|多少个|人口|年龄|长度|距离|价格|数量",
    re.IGNORECASE,
)
_CHANGE = lazy_pattern(r"\b(change|changes|changed|difference|delta|growth|balance)\b|变化|差|增长", re.IGNORECASE)
_TIME_TYPES: Final = ("time", "时间")
_ABOUT_TIME = lazy_pattern(r"(^|_)time(_|$)|时间", re.IGNORECASE)
"""Names of tools that tell the time."""
_NUMERIC_TYPES: Final = ("number", "integer", "float", "int", "数字", "数值")


class VerificationAgent:
    """Checks results."""

    async def verify_result(
        self, result: StepResult | Mapping[str, Any], context: StepContext | Mapping[str, Any], expected: str = ""
    ) -> Verification:
        """Check whether a result is plausible, with which confidence, and what is wrong with it."""
        result, context = StepResult.of(result), StepContext.of(context)
        if not result.success:
            return Verification(verified=False, confidence=0.0, issues=(result.error or "The step failed.",))
        issues = [*self._check_logic(result, expected), *self._check_consistency(result, context)]
        confidence = math.prod(1 - _CONFIDENCE_LOSS[kind] for kind, _ in issues)
        return Verification(
            verified=confidence >= 0.5, confidence=round(confidence, 3), issues=tuple(issue for _, issue in issues)
        )

    def _check_logic(self, result: StepResult, expected: str) -> Iterable[tuple[str, str]]:
        text = as_text(result.output) if result.output is not None else result.result
        if _is_empty(result.output) and not result.result.strip():
            yield "empty", "The result is empty."
            return
        if result.made_up_number:
            yield (
                "made_up",
                f"It was calculated with {result.made_up_number}, which is neither in the question nor in a result.",
            )
        if result.is_reasoned_instead:
            yield "reasoned", f"It is from the model and no tool, because {result.tool_type} failed."
        if _ERROR.search(result.result[:500]):
            yield "error", "The step succeeded, but its result reports an error."
        yield from _check_type(result, expected.strip().casefold())
        yield from _check_numbers(result, text)
        is_about_time = expected.strip().casefold() in _TIME_TYPES or bool(_ABOUT_TIME.search(result.tool_type))
        yield from _check_dates(text, is_about_time=is_about_time)

    def _check_consistency(self, result: StepResult, context: StepContext) -> Iterable[tuple[str, str]]:
        """Results on the same subject should have something in common."""
        subject = _extract_terms(result.description)
        for other in context.results.values():
            if not other.success or str(other.step_id) == str(result.step_id) or other.tool_type == "none":
                continue
            terms = _extract_terms(other.description)
            has_all_words = subject <= terms or terms <= subject
            if not has_all_words or jaccard_similarity(subject, terms) < MIN_SUBJECT_SIMILARITY:
                continue
            if jaccard_similarity(_extract_terms(result.result), _extract_terms(other.result)) < MIN_AGREEMENT:
                yield (
                    "consistency",
                    f"The result has little in common with that of step {other.step_id} on the same subject.",
                )


def combine_verifications(steps: Sequence[StepResult]) -> Verification | None:
    """Combine the verifications of all steps; None if there are none."""
    verifications = [step.verification for step in steps if step.verification is not None and not step.skipped]
    if not verifications:
        return None
    return Verification(
        verified=all(v.verified for v in verifications),
        confidence=min(v.confidence for v in verifications),
        issues=tuple(issue for v in verifications for issue in v.issues),
    )


async def verify_calls(answer: AgentAnswer[Any]) -> AgentAnswer[Any]:
    """Return an answer of the loop with its calls described and verified like the steps of a plan.

    Unlike steps of a plan, two calls of one tool have the same subject but need not agree: each is verified by itself.
    """
    steps = []
    for step in answer.steps:
        description = shorten(f"{step.tool_type} {as_text(step.arguments)}", MAX_DESCRIPTION_LENGTH)
        step = replace(step, description=description, output=step.result if step.success else None)
        step.verification = await VerificationAgent().verify_result(step, StepContext(question=answer.question))
        steps.append(step)
    return replace(answer, steps=tuple(steps), verification=combine_verifications(steps))


@lru_cache(maxsize=1_000)
def _extract_terms(text: str) -> frozenset[str]:
    """Return the words of a text. Cached: each description and result is compared with every later one."""
    return frozenset(extract_terms(text))


def jaccard_similarity(terms: Set[str], other: Set[str]) -> float:
    """Return the similarity of two sets, from 0 (nothing in common) to 1 (equal)."""
    return len(terms & other) / len(terms | other) if terms or other else 1.0


def _is_empty(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_empty(inner) for inner in value.values())
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def _check_type(result: StepResult, expected: str) -> Iterable[tuple[str, str]]:
    if expected in _NUMERIC_TYPES and not _NUMBER.search(result.result):
        yield "type", f"A number was expected, and there is none in {result.result[:80]!r}."
    if expected in ("date", "日期") and not _DATE.search(result.result):
        yield "type", f"A date was expected, and there is none in {result.result[:80]!r}."
    if expected in _TIME_TYPES and not (_TIME.search(result.result) or _DATE.search(result.result)):
        yield "type", f"A time was expected, and there is none in {result.result[:80]!r}."


def _check_numbers(result: StepResult, text: str) -> Iterable[tuple[str, str]]:
    if _NOT_FINITE.fullmatch(text.strip()):
        yield "range", "The result is not a finite number."
    numbers = [float(number.replace(",", "")) for number in _NUMBER.findall(result.result)[:20]]
    is_change = _CHANGE.search(result.description)
    if not is_change and _NEVER_NEGATIVE.search(result.description) and len(numbers) == 1 and numbers[0] < 0:
        yield "range", f"{numbers[0]:g} is not possible: the quantity is never negative."
    if _SHARES.search(result.description):
        for percent in _PERCENT.findall(result.result)[:20]:
            if not 0 <= float(percent.replace(",", "")) <= 100:
                yield "range", f"{percent} % is not a share of a whole."


def _check_dates(text: str, *, is_about_time: bool) -> Iterable[tuple[str, str]]:
    for match in list(_DATE.finditer(text))[:50]:
        year, month, day = (int(part) for part in match.groups() if part is not None)
        try:
            date(year, month, day)
        except ValueError:
            yield "date", f"The date {match.group()} does not exist."
            return
    for match in list(_TIME.finditer(text))[:50]:
        hour, minute, second = (int(part or 0) for part in match.groups())
        if (hour > 24 or (hour == 24 and (minute or second))) and not is_about_time:
            continue  # a duration or a score, not a time of day
        try:
            time(0 if hour == 24 else hour, minute, second)
        except ValueError:
            yield "date", f"The time {match.group()} does not exist."
            return
