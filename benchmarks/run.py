"""Ferrule beside its peers: `make bench`, or `python benchmarks/run.py --only call,limit --rounds 3`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.contestants import BENCHMARKS, CONTESTANTS, FERRULE, LOOP, REGISTRY, STUBBORN, Contestant
from benchmarks.effort import Effort
from benchmarks.environments import Environment, environment_for
from benchmarks.goals import MCP, REPORTS
from benchmarks.mcp_call import run_mcp
from benchmarks.processes import Failure
from benchmarks.rounds import Results, run_rounds
from benchmarks.tables import judge, table_of

ALL = (*BENCHMARKS, MCP)
QUICK = Effort(samples=2, seconds=0.05, functions=1_000)
BUSY = 0.5
"""A load per processor above which figures say little."""


def main(arguments: list[str] | None = None) -> int:
    asked = _parse(arguments)
    results: dict[str, Results] = {}
    effort = QUICK if asked.quick else Effort()
    stopped = False
    print(_machine())
    try:
        field_of = _prepare(asked.only)
        print("\n".join(_versions(field_of)), "\n", flush=True)
        for benchmark in asked.only:
            rounds = _rounds_of(benchmark, asked.rounds)
            found = results[benchmark] = Results()
            if benchmark == MCP:
                _progress(f"{benchmark}, {rounds} rounds")
                run_mcp(rounds=rounds, effort=effort, results=found)
            else:
                run_rounds(benchmark, field_of, rounds=rounds, effort=effort, results=found, progress=_progress)
            print(table_of(benchmark, found, effort), "\n", flush=True)
    except KeyboardInterrupt:
        stopped = True
        _progress("stopped")
        if results:
            unfinished = list(results)[-1]
            print(table_of(unfinished, results[unfinished], effort), "\n", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(_plain(results), indent=1), encoding="utf-8")
    if stopped:
        return 130
    return int(any("ferrule" in found.failures for found in results.values()))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=_benchmarks, default=ALL, help=f"some of {','.join(ALL)}")
    parser.add_argument("--rounds", type=int, help="how often everybody is measured (5; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="less of everything: for a look, goals are not judged")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    asked = parser.parse_args(arguments)
    asked.rounds = asked.rounds or (2 if asked.quick else 5)
    return asked


def _benchmarks(text: str) -> list[str]:
    wanted = text.split(",")
    for name in wanted:
        if name not in ALL:
            raise argparse.ArgumentTypeError(f"there is no benchmark {name!r}; write some of {','.join(ALL)}")
    return wanted


def _prepare(benchmarks: list[str]) -> dict[Contestant, Environment]:
    """Whoever is needed, and could be installed."""
    field_of = {}
    for contestant in CONTESTANTS:
        if not set(benchmarks) & {*contestant.benchmarks} and contestant is not FERRULE:
            continue
        _progress(f"environment of {contestant.name}")
        try:
            field_of[contestant] = environment_for(contestant)
        except Failure as failure:
            print(f"{contestant.name} is left out, it cannot be installed: {failure}", flush=True)
    return field_of


def _rounds_of(benchmark: str, rounds: int) -> int:
    """Registering and long runs take some peers a minute, and hardly vary; what is only counted never does."""
    if benchmark == STUBBORN:
        return 1
    return max(1, rounds // 2) if benchmark in (LOOP, REGISTRY) else rounds


def _machine() -> str:
    processors, load = os.cpu_count() or 1, os.getloadavg()[0]
    busy = " Others are at work here: trust the ratios more than the figures." if load > BUSY * processors else ""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{processors} processors, {platform.system()} {platform.machine()}, {python}, load {load:.1f}.{busy}"


def _versions(field_of: dict[Contestant, Environment]) -> list[str]:
    return [
        f"{contestant.name}: " + ", ".join(f"{name} {version}" for name, version in environment.versions.items())
        for contestant, environment in field_of.items()
    ]


def _plain(results: dict[str, Results]) -> dict[str, Any]:
    return {
        benchmark: {
            "rounds": [
                [{"contestant": name, "way": way, "samples": samples} for (name, way), samples in measured.items()]
                for measured in found.rounds
            ],
            "failures": found.failures,
            "goals": [{"goal": goal.said, "met": judge(found, goal)} for goal in REPORTS[benchmark].goals],
        }
        for benchmark, found in results.items()
    }


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
