"""Noticing numbers that a model makes up, in a run or in a plan: they are neither in the question nor in a result.

A number counts as known where it follows from a known one without a calculation: rounded, or as the share of a
percentage. Numbers of one digit are no evidence, and a calculation may contain usual constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ferrule.core.patterns import lazy_pattern
from ferrule.texts.numbers import find_numbers

_NUMBER = lazy_pattern(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d+)?")
_CALCULATION = lazy_pattern(r"(?!\d+/\d+/\d+$)[\d\s.,()]*\d[\s)]*(?:[+*/^%×÷]|\s-\s)[\d\s.,()+\-*/^%×÷]*")
"""A text with an operator: a number alone is an argument like any other, and so is a date."""
_CONSTANTS: Final = (12.0, 24.0, 52.0, 60.0, 100.0, 180.0, 360.0, 365.0, 1000.0, 1024.0, 3600.0, math.pi, math.e)
"""Numbers that a calculation may contain whatever the question is."""


def find_made_up_number(text: str, evidence: str, constants: Sequence[float] = ()) -> str | None:
    """The first number of a text that does not come from the `evidence`: the question and the results."""
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


def is_calculation(parameters: Mapping[str, Any]) -> bool:
    """Whether an argument is a calculation: its result is not found out, but follows from what the model wrote."""
    return any(isinstance(value, str) and _CALCULATION.fullmatch(value) for value in parameters.values())


def find_made_up_operand(parameters: Mapping[str, Any], evidence: str) -> str | None:
    """The first made-up number in those arguments that are calculations. References to results are not numbers."""
    calculations = [value for value in parameters.values() if isinstance(value, str) and _CALCULATION.fullmatch(value)]
    return next(filter(None, (find_made_up_number(text, evidence, _CONSTANTS) for text in calculations)), None)


def _is_written_out(number: float, evidence: str) -> bool:
    """Whether a number is in the evidence as words: `twenty`, `二十`."""
    return any(span.value == number for span in find_numbers(evidence))


def _read_numbers(text: str) -> Iterator[str]:
    return (match.group().replace(",", "") for match in _NUMBER.finditer(text))
