"""Compare the CPU seconds of the last `make test` with the budgets of the test packages.

Prints a table. Exits with 1 if a package takes more than twice its budget. The seconds are those of a machine where a
fixed loop takes a certain time (`measure_loop` in tests/support/cpu_time.py), so that every machine has the same table.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".cache" / "cpu-seconds.json"
"""Seconds by file, with those of every process that its tests started, and of the loop: `make test` writes it."""
BUDGETS = {
    "adapters": 9,
    "agent": 27,
    "batch": 5,
    "catalog": 5,
    "cli": 52,
    "cluster": 2,
    "concurrency": 14,
    "core": 8,
    "engine": 34,
    "evaluation": 2,
    "ferrule_tools": 87,
    "http": 2,
    "hub": 5,
    "kinds": 47,
    "library": 2,
    "memory": 3,
    "models": 13,
    "orchestrator": 20,
    "parsing": 6,
    "policy": 21,
    "process": 8,
    "server": 88,
    "store": 26,
    "telemetry": 4,
    "testing": 2,
    "texts": 2,
    "top level": 45,
    "web": 16,
    "workflow": 22,
}
"""CPU seconds of the tests of each package where the loop takes REFERENCE seconds: a third more than was measured."""
REFERENCE = 0.041


def package_of(file: str) -> str:
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else "top level"


def main() -> int:
    if not RESULTS.is_file():
        print(f"{RESULTS} does not exist: run `make test` first.", file=sys.stderr)
        return 2
    seconds: defaultdict[str, float] = defaultdict(float)
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    factor = REFERENCE / results["loop"]
    for file, used in results["files"].items():
        seconds[package_of(file)] += used * factor
    print(f"The loop takes {results['loop']:.3f} s here: all seconds are multiplied by {factor:.2f}.")
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
