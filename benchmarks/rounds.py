"""Everybody in turn, several times over, each time in another order.

A noisy machine is slow for a while and fast for a while. What is measured within one round was measured at about the
same time, so ratios are taken round by round.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.contestants import IMPORT, Contestant
from benchmarks.effort import Effort, Sample, Ways
from benchmarks.environments import Environment
from benchmarks.processes import Failure, cost, run

Row = tuple[str, str]
"""A contestant's name and what it calls its way."""


@dataclass(slots=True, kw_only=True)
class Results:
    """What was measured at one benchmark."""

    rounds: list[dict[Row, list[Sample]]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Contestants that could not be measured, and why."""

    def rows(self) -> list[Row]:
        return list(dict.fromkeys(row for measured in self.rounds for row in measured))

    def median(self, row: Row, figure: str) -> float:
        """Of the rounds' own medians."""
        return statistics.median(_median(measured[row], figure) for measured in self.rounds if row in measured)

    def least(self, row: Row, figure: str) -> float:
        return min(float(sample[figure]) for measured in self.rounds for sample in measured.get(row, ()))

    def ratio(self, row: Row, to: Row, figure: str) -> float | None:
        """The median of the ratios within rounds; None when the two were never measured in one round."""
        ratios = [
            _median(measured[row], figure) / _median(measured[to], figure)
            for measured in self.rounds
            if row in measured and to in measured
        ]
        return statistics.median(ratios) if ratios else None


def run_rounds(
    benchmark: str,
    field_of: dict[Contestant, Environment],
    *,
    rounds: int,
    effort: Effort,
    results: Results,
    progress: Callable[[str], None],
) -> None:
    """Fills in the results as they come, so that whoever stops early has something."""
    contestants = [contestant for contestant in field_of if benchmark in contestant.benchmarks]
    for number in range(rounds):
        measured: dict[Row, list[Sample]] = {}
        results.rounds.append(measured)
        turn = number % len(contestants)
        for contestant in contestants[turn:] + contestants[:turn]:
            if contestant.name in results.failures:
                continue
            progress(f"{benchmark}, round {number + 1} of {rounds}: {contestant.name}")
            try:
                ways = _measure(benchmark, contestant, field_of[contestant].python, effort)
            except Failure as failure:
                results.failures[contestant.name] = str(failure)
                progress(f"{benchmark}: {contestant.name} is left out: {failure}")
            else:
                measured.update(((contestant.name, way), samples) for way, samples in ways.items())


def _measure(benchmark: str, contestant: Contestant, python: str, effort: Effort) -> Ways:
    if benchmark == IMPORT:
        return {statement: _import_samples(python, statement, effort.samples) for statement in contestant.imports}
    command = [python, "-m", "benchmarks.measure", contestant.module, benchmark, effort.to_json()]
    ways: Ways = json.loads(run(command).splitlines()[-1])
    return ways


def _import_samples(python: str, statement: str, number: int) -> list[Sample]:
    """What a statement adds to the life of an interpreter that does nothing."""
    cost([python, "-c", statement])  # compiles, and fills the cache of the disk
    samples = []
    for _ in range(number):
        nothing, something = cost([python, "-c", "pass"]), cost([python, "-c", statement])
        samples.append({figure: max(0.0, something[figure] - nothing[figure]) for figure in nothing})
    return samples


def _median(samples: list[Sample], figure: str) -> float:
    return statistics.median(float(sample[figure]) for sample in samples)
