"""Break things on purpose and see whether the promises hold: `make chaos`, or `python chaos/run.py --only kill`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from chaos.scenario import Load, Outcome, Scenario  # noqa: E402
from chaos.scenarios import SCENARIOS  # noqa: E402

REPORT = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- written by make chaos -->", "<!-- end of what make chaos writes -->"
FULL_MINUTES = sum(scenario.seconds for scenario in SCENARIOS) / 60
MAX_MINUTES = 13.0
MIN_FRACTION = 0.05
TIMEOUT = 600.0
"""Seconds beyond its own time after which a scenario hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came out of one scenario."""

    scenario: Scenario
    outcome: Outcome
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.child:
        return _run_in_this_process(options)
    fraction = min(1.0, options.minutes / FULL_MINUTES)
    machine = _machine()
    print(f"{machine}\nseed {options.seed}: repeat with --seed {options.seed}", flush=True)
    reports = run_scenarios(options.only, seconds=60 * MAX_MINUTES, fraction=fraction, seed=options.seed)
    table = format_table(reports)
    print(f"\n{table}")
    if options.only == list(SCENARIOS) and not options.no_report:
        write_report(f"{_summary(reports, machine, options)}\n\n{table}")
    return int(any(report.outcome.failures for report in reports))


def run_scenarios(scenarios: Sequence[Scenario], *, seconds: float, fraction: float, seed: int) -> list[Report]:
    """Run all of them. Where the first ones take longer than planned, the later ones do less."""
    reports: list[Report] = []
    ends_at = time.monotonic() + seconds
    for position, scenario in enumerate(scenarios):
        planned = sum(each.seconds for each in scenarios[position:])
        part = min(fraction, max(MIN_FRACTION, (ends_at - time.monotonic()) / planned))
        print(f"{scenario.name}: {scenario.title} …", file=sys.stderr, flush=True)
        reports.append(run_scenario(scenario, fraction=part, seed=seed))
        print(_line(reports[-1]), flush=True)
    return reports


def run_scenario(scenario: Scenario, *, fraction: float, seed: int) -> Report:
    """Run it in a process and a folder of its own: it may change limits, clocks and signals."""
    started = time.monotonic()
    command = [sys.executable, str(Path(__file__)), "--child", "--only", scenario.name]
    command += ["--minutes", str(fraction * FULL_MINUTES), "--seed", str(seed)]
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, tempfile.TemporaryFile("w+") as errors:
        try:
            limit = scenario.seconds + TIMEOUT
            done = subprocess.run(
                command,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=limit,
            )
            outcome = Outcome(**json.loads(done.stdout))
        except subprocess.TimeoutExpired:
            outcome = Outcome(failures=["it hangs"])
        except ValueError:
            errors.seek(0)
            outcome = Outcome(failures=[f"it ended with code {done.returncode}: {errors.read()[-2000:]}"])
    return Report(scenario=scenario, outcome=outcome, seconds=time.monotonic() - started)


def _run_in_this_process(options: argparse.Namespace) -> int:
    (scenario,) = options.only
    fraction = options.minutes / FULL_MINUTES
    load = Load(seconds=scenario.seconds * fraction, fraction=fraction, seed=options.seed, folder=Path.cwd())
    print(json.dumps(scenario.load_function()(load).to_dict()))
    return 0


def format_table(reports: list[Report]) -> str:
    rows = ["| what is broken | what was seen | seconds | result |", "| --- | --- | ---: | --- |"]
    for report in reports:
        figures = "; ".join(f"{name}: {_format(value)}" for name, value in report.outcome.figures.items())
        rows.append(f"| {report.scenario.title} | {figures} | {report.seconds:.0f} | {_result(report)} |")
    return "\n".join(rows)


def write_report(text: str) -> None:
    """Replace what stands between the two markers of the page."""
    page = REPORT.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    REPORT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ",".join(scenario.name for scenario in SCENARIOS)
    parser.add_argument("--only", type=_scenarios, default=list(SCENARIOS), help=f"some of {names}; writes no report")
    parser.add_argument("--minutes", type=float, default=FULL_MINUTES, help=f"for all scenarios ({FULL_MINUTES:.1f})")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="repeat a run with its seed")
    parser.add_argument("--no-report", action="store_true", help="do not write docs/reliability.md")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _scenarios(text: str) -> list[Scenario]:
    known = {scenario.name: scenario for scenario in SCENARIOS}
    for name in text.split(","):
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no scenario {name!r}; use some of {','.join(known)}")
    return [known[name] for name in text.split(",")]


def _line(report: Report) -> str:
    lines = [f"{report.scenario.name}: {_result(report)} after {report.seconds:.0f} s {report.outcome.figures}"]
    return "\n  ".join([*lines, *report.outcome.failures])


def _result(report: Report) -> str:
    if "skipped" in report.outcome.figures:
        return "skipped"
    return f"**{len(report.outcome.failures)} broken**" if report.outcome.failures else "held"


def _format(value: Any) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _machine() -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    processors, load = os.cpu_count() or 1, os.getloadavg()[0]
    return f"{processors} processors, {platform.system()} {platform.machine()}, {python}, load {load:.1f} at the start"


def _summary(reports: list[Report], machine: str, options: argparse.Namespace) -> str:
    minutes = sum(report.seconds for report in reports) / 60
    broken = sum(len(report.outcome.failures) for report in reports)
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {minutes:.1f} minutes, seed {options.seed}; {machine}. "
        f"Broken promises: {broken}."
    )


if __name__ == "__main__":
    sys.exit(main())
