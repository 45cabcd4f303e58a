"""Whether the result of a step can be believed: against what is logical, and against what was found out before.

Nothing here asks a model: these are checks that cost nothing and are always the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Set
from datetime import date, time
from functools import lru_cache
from typing import Any, Final

from ferrule.content import as_text
from ferrule.search.words import terms_of
from ferrule.workflow.results import StepContext, StepResult, Verification

SAME_SUBJECT: Final = 0.5
"""Two steps speak of the same thing if their words are as similar as this, and only one says more than the other: of
the time in Oslo and the time in Rome, each has a word that the other has not.
"""
AGREE: Final = 0.2
"""Two results of one subject should share at least so much."""
_COST: Final = {"empty": 0.8, "error": 0.7, "type": 0.6, "range": 0.6, "date": 0.6, "consistency": 0.3}

_ERROR = re.compile(
    r"^\s*(error|exception|traceback|failed|failure|fatal)\b|\b(an error (has )?occurred|request failed|access denied"
    r"|internal server error|404 not found|service unavailable)\b|^\s*(错误|失败|异常)|(发生错误|请求失败|访问被拒绝)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NO_NUMBER = re.compile(r"(?:\{\W*\w+\W*:)?\s*[\"']?(nan|[-+]?inf(?:inity)?)[\"']?\s*\}?", re.IGNORECASE)
_PERCENT = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)\s*[%％]")
_DATE = re.compile(r"\b(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})\b|(\d{4})年(\d{1,2})月(\d{1,2})日")
_TIME = re.compile(r"\b(\d{1,2}):(\d{2})(?::(\d{2}))?\b")
_SHARES = re.compile(
    r"\b(probability|share|proportion|percentage of|chance|概率|占比|比例)\b|概率|占比|比例", re.IGNORECASE
)
_NEVER_NEGATIVE = re.compile(
    r"\b(count|how many|number of|age|length|distance|population|price|size|weight|duration)\b"
    r"|多少个|人口|年龄|长度|距离|价格|数量",
    re.IGNORECASE,
)
_CHANGE = re.compile(r"\b(change|changes|changed|difference|delta|growth|balance)\b|变化|差|增长", re.IGNORECASE)
_NUMERIC: Final = ("number", "integer", "float", "int", "数字", "数值")


class VerificationAgent:
    """Checks results."""

    async def verify_result(self, result: StepResult, context: StepContext, expected: str = "") -> Verification:
        """Whether a result can be believed, how sure that is, and what speaks against it."""
        if not result.success:
            return Verification(verified=False, confidence=0.0, issues=(result.error or "The step failed.",))
        issues = [*self._check_logic(result, expected), *self._check_consistency(result, context)]
        confidence = math.prod(1 - _COST[kind] for kind, _ in issues)
        return Verification(
            verified=confidence >= 0.5, confidence=round(confidence, 3), issues=tuple(said for _, said in issues)
        )

    def _check_logic(self, result: StepResult, expected: str) -> Iterable[tuple[str, str]]:
        text = as_text(result.output) if result.output is not None else result.result
        if _is_empty(result.output) and not result.result.strip():
            yield "empty", "The result is empty."
            return
        if _ERROR.search(result.result[:500]):
            yield "error", "The step succeeded, but its result speaks of an error."
        yield from _check_type(result, expected.strip().casefold())
        yield from _check_numbers(result, text)
        yield from _check_moments(text)

    def _check_consistency(self, result: StepResult, context: StepContext) -> Iterable[tuple[str, str]]:
        """Results of the same subject should not have nothing in common."""
        subject = _terms(result.description)
        for other in context.results.values():
            if not other.success or str(other.step_id) == str(result.step_id) or other.tool_type == "none":
                continue
            if not _is_one_subject(subject, _terms(other.description)):
                continue
            if jaccard(_terms(result.result), _terms(other.result)) < AGREE:
                yield (
                    "consistency",
                    f"It has little in common with the result of step {other.step_id} on the same subject.",
                )


@lru_cache(maxsize=1_000)
def _terms(text: str) -> frozenset[str]:
    """Of descriptions and results, which are held against each later one."""
    return frozenset(terms_of(text))


def _is_one_subject(one: Set[str], other: Set[str]) -> bool:
    return (one <= other or other <= one) and jaccard(one, other) >= SAME_SUBJECT


def jaccard(one: Set[str], other: Set[str]) -> float:
    """How much two sets of words have in common: 0 nothing, 1 everything."""
    return len(one & other) / len(one | other) if one or other else 1.0


def _is_empty(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_empty(inner) for inner in value.values())
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def _check_type(result: StepResult, expected: str) -> Iterable[tuple[str, str]]:
    if expected in _NUMERIC and not _NUMBER.search(result.result):
        yield "type", f"A number was expected, and there is none in {result.result[:80]!r}."
    if expected in ("date", "日期") and not _DATE.search(result.result):
        yield "type", f"A date was expected, and there is none in {result.result[:80]!r}."
    if expected in ("time", "时间") and not (_TIME.search(result.result) or _DATE.search(result.result)):
        yield "type", f"A time was expected, and there is none in {result.result[:80]!r}."


def _check_numbers(result: StepResult, text: str) -> Iterable[tuple[str, str]]:
    if _NO_NUMBER.fullmatch(text.strip()):
        yield "range", "The result is not a finite number."
    numbers = [float(found.replace(",", "")) for found in _NUMBER.findall(result.result)[:20]]
    is_change = _CHANGE.search(result.description)
    if not is_change and _NEVER_NEGATIVE.search(result.description) and len(numbers) == 1 and numbers[0] < 0:
        yield "range", f"{numbers[0]:g} cannot be: what was asked for is never less than nothing."
    if _SHARES.search(result.description):
        for found in _PERCENT.findall(result.result)[:20]:
            if not 0 <= float(found.replace(",", "")) <= 100:
                yield "range", f"{found} % is no share of a whole."


def _check_moments(text: str) -> Iterable[tuple[str, str]]:
    for match in list(_DATE.finditer(text))[:50]:
        year, month, day = (int(part) for part in match.groups() if part is not None)
        try:
            date(year, month, day)
        except ValueError:
            yield "date", f"There is no date {match.group()}."
            return
    for match in list(_TIME.finditer(text))[:50]:
        hour, minute, second = (int(part or 0) for part in match.groups())
        if hour > 24 or (hour == 24 and (minute or second)):
            continue  # a duration or a score, not a time of day
        try:
            time(hour % 24, minute, second)
        except ValueError:
            yield "date", f"There is no time {match.group()}."
            return
