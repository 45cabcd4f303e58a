"""Compare the CPU seconds of the last `make test` with the budgets of the test packages.

Prints a table. Exits with 1 if a package takes more than twice its budget.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".cache" / "cpu-seconds.json"
"""Seconds by file, with those of every process that its tests started: `make test` writes it."""
BUDGETS = {
    "adapters": 14,
    "agent": 48,
    "batch": 8,
    "catalog": 8,
    "cli": 98,
    "cluster": 2,
    "concurrency": 31,
    "core": 17,
    "engine": 45,
    "evaluation": 2,
    "ferrule_tools": 150,
    "http": 1,
    "hub": 7,
    "kinds": 86,
    "library": 4,
    "memory": 5,
    "models": 26,
    "orchestrator": 36,
    "parsing": 14,
    "policy": 36,
    "process": 12,
    "server": 165,
    "store": 51,
    "telemetry": 6,
    "testing": 5,
    "texts": 1,
    "top level": 92,
    "web": 31,
    "workflow": 42,
}
"""CPU seconds of the tests of each package on two cores of 2026, rounded up."""


def package_of(file: str) -> str:
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else "top level"


def main() -> int:
    if not RESULTS.is_file():
        print(f"{RESULTS} does not exist: run `make test` first.", file=sys.stderr)
        return 2
    seconds: defaultdict[str, float] = defaultdict(float)
    for file, used in json.loads(RESULTS.read_text(encoding="utf-8")).items():
        seconds[package_of(file)] += used
    print(f"{'package':<16}{'CPU s':>8}{'budget':>8}")
    for package in sorted(seconds.keys() | BUDGETS.keys(), key=lambda name: -seconds[name]):
        used, budget = seconds[package], BUDGETS.get(package, 0)
        print(f"{package:<16}{used:>8.0f}{budget:>8}{'  over its budget' if used > budget else ''}")
    print(f"{'all':<16}{sum(seconds.values()):>8.0f}{sum(BUDGETS.values()):>8}")
    excessive = [package for package, used in seconds.items() if used > 2 * BUDGETS.get(package, 0)]
    if excessive:
        print(f"More than twice the budget: {', '.join(sorted(excessive))}.", file=sys.stderr)
    return 1 if excessive else 0


if __name__ == "__main__":
    sys.exit(main())
