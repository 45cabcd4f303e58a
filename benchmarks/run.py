"""Measure Ferrule and its peers: `make bench`, or `python benchmarks/run.py --only call,limit --rounds 3`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.contestants import BENCHMARKS, CONTESTANTS, FAILING_CALL, LOOP, MODULES, PROMPT, REGISTRY, Contestant
from benchmarks.interface import Workload
from benchmarks.processes import Environment, ProcessError, environment_of
from benchmarks.reports import REPORTS, is_met, table_of
from benchmarks.rounds import Results, run_module, run_rounds
from benchmarks.summary import summarize, write_summary

ALL_BENCHMARKS = (*BENCHMARKS, *MODULES)
CONTESTANT_NAMES = tuple(contestant.name for contestant in CONTESTANTS)
QUICK = Workload(samples=2, seconds=0.05, functions=1_000)
MAX_QUIET_LOAD = 0.5
"""Load per processor above which absolute figures are unreliable."""


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    workload = QUICK if options.quick else Workload()
    results: dict[str, Results] = {}
    was_interrupted = False
    load = os.getloadavg()[0]
    environments: dict[Contestant, Environment] = {}
    print(_machine())
    try:
        environments = _prepare(options.only, options.contestants)
        print("\n".join(_versions(environments)), "\n", flush=True)
        for benchmark in options.only:
            results[benchmark] = Results()
            _run(benchmark, environments, options.rounds, workload, results[benchmark])
            print(table_of(benchmark, results[benchmark], workload), "\n", flush=True)
    except KeyboardInterrupt:
        was_interrupted = True
        _print_progress("interrupted")
        if results:
            benchmark = list(results)[-1]
            print(table_of(benchmark, results[benchmark], workload), "\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(_to_json(results), indent=1), encoding="utf-8")
    if options.summary:
        loads = [round(load, 1), round(os.getloadavg()[0], 1)]
        versions = {name: version for each in environments.values() for name, version in each.versions.items()}
        summary = summarize(results, workload, machine=_hardware(), load=loads, versions=versions)
        write_summary(options.summary, summary)
    if was_interrupted:
        return 130
    return int(any("ferrule" in result.failures for result in results.values()))


def _run(
    benchmark: str, environments: dict[Contestant, Environment], rounds: int, workload: Workload, results: Results
) -> None:
    rounds = _rounds_of(benchmark, rounds)
    if benchmark in MODULES:
        _print_progress(f"{benchmark}, {rounds} rounds")
        run_module(benchmark, rounds=rounds, workload=workload, results=results)
    else:
        run_rounds(benchmark, environments, rounds=rounds, workload=workload, results=results, progress=_print_progress)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    benchmarks, contestants = ",".join(ALL_BENCHMARKS), ",".join(CONTESTANT_NAMES)
    parser.add_argument("--only", type=_benchmarks, default=ALL_BENCHMARKS, help=f"some of {benchmarks}")
    parser.add_argument("--contestants", type=_contestants, default=CONTESTANT_NAMES, help=f"some of {contestants}")
    parser.add_argument("--rounds", type=int, help="number of rounds (3; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="measure less of everything, without checking goals")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write least, median and spread to this file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to this file")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 3)
    return options


def _benchmarks(text: str) -> list[str]:
    return _choices(text, "benchmark", ALL_BENCHMARKS)


def _contestants(text: str) -> list[str]:
    return _choices(text, "contestant", CONTESTANT_NAMES)


def _choices(text: str, kind: str, choices: Iterable[str]) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in choices:
            raise argparse.ArgumentTypeError(f"there is no {kind} {name!r}; use some of {','.join(choices)}")
    return names


def _prepare(benchmarks: list[str], names: list[str]) -> dict[Contestant, Environment]:
    """The environments of the contestants that take part and could be installed."""
    environments = {}
    for contestant in CONTESTANTS:
        if contestant.name not in names or not set(benchmarks) & {*contestant.benchmarks}:
            continue
        _print_progress(f"preparing the environment of {contestant.name}")
        try:
            environments[contestant] = environment_of(contestant)
        except ProcessError as error:
            print(f"{contestant.name} is not measured because its installation failed: {error}", flush=True)
    return environments


def _rounds_of(benchmark: str, rounds: int) -> int:
    """Registration and long runs take some peers a minute and vary little; counted results do not vary at all."""
    if benchmark in (FAILING_CALL, PROMPT):
        return 1
    return max(1, rounds // 3) if benchmark in (LOOP, REGISTRY) else rounds


def _machine() -> str:
    processors, load = os.cpu_count() or 1, os.getloadavg()[0]
    is_busy = load > MAX_QUIET_LOAD * processors
    warning = " The machine is busy: rely on the ratios, not on the figures." if is_busy else ""
    return f"{_hardware()}, load {load:.1f}.{warning}"


def _hardware() -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{os.cpu_count() or 1} processors, {platform.system()} {platform.machine()}, {python}"


def _versions(environments: dict[Contestant, Environment]) -> list[str]:
    return [
        f"{contestant.name}: " + ", ".join(f"{name} {version}" for name, version in environment.versions.items())
        for contestant, environment in environments.items()
    ]


def _to_json(results: dict[str, Results]) -> dict[str, Any]:
    return {
        benchmark: {
            "rounds": [
                [{"contestant": name, "variant": variant, "samples": rows} for (name, variant), rows in samples.items()]
                for samples in result.rounds
            ],
            "failures": result.failures,
            "goals": [{"goal": goal.text, "met": is_met(result, goal)} for goal in REPORTS[benchmark].goals],
        }
        for benchmark, result in results.items()
    }


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
