"""Measures all contestants in several rounds, in a different order each time.

A busy machine is slow for a while and fast for a while. Figures of one round were measured at about the same time, so
ratios are computed within a round.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.contestants import IMPORT, MODULES, START, Contestant
from benchmarks.interface import Sample, SamplesByVariant, Workload
from benchmarks.processes import Environment, ProcessError, cost, run

Row = tuple[str, str]
"""The names of a contestant and of its variant."""


@dataclass(slots=True, kw_only=True)
class Results:
    """The samples of one benchmark."""

    rounds: list[dict[Row, list[Sample]]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """The reasons why contestants could not be measured."""

    def rows(self) -> list[Row]:
        return list(dict.fromkeys(row for samples in self.rounds for row in samples))

    def median(self, row: Row, figure: str) -> float:
        """The median of the medians of the rounds."""
        return statistics.median(_median(samples[row], figure) for samples in self.rounds if row in samples)

    def ratio(self, row: Row, reference: Row, figure: str) -> float | None:
        """The median of the ratios within rounds; None when no round has both rows."""
        ratios = [
            _median(samples[row], figure) / _median(samples[reference], figure)
            for samples in self.rounds
            if row in samples and reference in samples
        ]
        return statistics.median(ratios) if ratios else None


def run_rounds(
    benchmark: str,
    environments: dict[Contestant, Environment],
    *,
    rounds: int,
    workload: Workload,
    results: Results,
    progress: Callable[[str], None],
) -> None:
    """Add to the results after each measurement, so that they can be shown when the user stops early."""
    contestants = [contestant for contestant in environments if benchmark in contestant.benchmarks]
    for number in range(rounds if contestants else 0):
        samples: dict[Row, list[Sample]] = {}
        results.rounds.append(samples)
        first = number % len(contestants)
        for contestant in contestants[first:] + contestants[:first]:
            if contestant.name in results.failures:
                continue
            progress(f"{benchmark}, round {number + 1} of {rounds}: {contestant.name}")
            try:
                by_variant = _measure(benchmark, contestant, environments[contestant].python, workload)
            except ProcessError as error:
                results.failures[contestant.name] = str(error)
                progress(f"{benchmark}: {contestant.name} could not be measured: {error}")
            else:
                samples.update({(contestant.name, variant): rows for variant, rows in by_variant.items()})


def run_module(benchmark: str, *, rounds: int, workload: Workload, results: Results) -> None:
    """Run a benchmark that measures all its rows in one process, and add to the results."""
    try:
        output = run([sys.executable, "-m", MODULES[benchmark], str(rounds), workload.to_json()])
    except ProcessError as error:
        results.failures["ferrule"] = str(error)
        return
    for samples_by_label in json.loads(output.splitlines()[-1]):
        results.rounds.append({_split_label(label): samples for label, samples in samples_by_label.items()})


def _split_label(label: str) -> Row:
    name, _, variant = label.partition(": ")
    return name, variant


def _measure(benchmark: str, contestant: Contestant, python: str, workload: Workload) -> SamplesByVariant:
    if benchmark == IMPORT:
        return {statement: _import_samples(python, statement, workload.samples) for statement in contestant.imports}
    if benchmark == START:
        return {name: _start_samples([python, *words], workload.samples) for name, *words in contestant.commands}
    command = [python, "-m", "benchmarks.measure", contestant.module, benchmark, workload.to_json()]
    samples: SamplesByVariant = json.loads(run(command).splitlines()[-1])
    return samples


def _import_samples(python: str, statement: str, number: int) -> list[Sample]:
    """The cost of an interpreter that executes the statement, minus that of one that does nothing."""
    cost([python, "-c", statement])  # writes bytecode and fills the disk cache
    samples = []
    for _ in range(number):
        empty, full = cost([python, "-c", "pass"]), cost([python, "-c", statement])
        samples.append({figure: max(0.0, full[figure] - empty[figure]) for figure in empty})
    return samples


def _start_samples(command: list[str], number: int) -> list[Sample]:
    """The cost of a command with the interpreter's own, in a folder without a project and with records of its own."""
    with tempfile.TemporaryDirectory(prefix="ferrule-bench-") as folder:
        variables = {"HOME": folder, "XDG_STATE_HOME": f"{folder}/state", "XDG_CACHE_HOME": f"{folder}/cache"}
        cost(command, folder, variables)
        return [dict(cost(command, folder, variables)) for _ in range(max(5, number))]


def _median(samples: list[Sample], figure: str) -> float:
    return statistics.median(float(sample[figure]) for sample in samples)
