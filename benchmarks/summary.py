"""The results in short, as `docs/benchmarks.json` has them: for each row the least, the median and the spread of its
figures, with the versions, the machine and the date. Tables and plots of the documentation are made from it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.interface import Workload
from benchmarks.reports import REPORTS, Column, Goal, Report, aligned, is_met, number_text, ratio_title
from benchmarks.rounds import Results, Row


def summarize(
    results: Mapping[str, Results], workload: Workload, *, machine: str, load: list[float], versions: dict[str, Any]
) -> dict[str, Any]:
    """`load`: the average of the last minute, before and after the measurements."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "load": load,
        "versions": versions,
        "benchmarks": {name: _summarize_benchmark(name, result, workload) for name, result in results.items()},
    }


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Add to the benchmarks that the file has: some may be measured on their own."""
    previous = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"benchmarks": {}}
    for name, benchmark in summary["benchmarks"].items():
        benchmark |= {"date": summary["date"], "load": summary["load"]}
        previous["benchmarks"][name] = benchmark
    previous |= {"machine": summary["machine"], "versions": previous.get("versions", {}) | summary["versions"]}
    path.write_text(json.dumps(previous, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _summarize_benchmark(name: str, results: Results, workload: Workload) -> dict[str, Any]:
    report = REPORTS[name]
    first = report.columns[0].figure
    rows = sorted(results.rows(), key=lambda row: results.median(row, first))
    return {
        "title": report.title.format(**asdict(workload)),
        "rounds": len(results.rounds),
        "rows": [_summarize_row(report, results, row) for row in rows],
        "failures": results.failures,
    }


def _summarize_row(report: Report, results: Results, row: Row) -> dict[str, Any]:
    ratio = results.ratio(row, report.reference, report.columns[0].figure)
    return {
        "name": ": ".join(filter(None, row)),
        "figures": {column.figure: _summarize_figure(column, results, row) for column in report.columns},
        "ratio": ratio if ratio is None else round(ratio, 3),
        "goals": [_summarize_goal(results, goal) for goal in report.goals if goal.row == row],
    }


def _summarize_goal(results: Results, goal: Goal) -> dict[str, Any]:
    return {"text": goal.text, "met": is_met(results, goal)}


def _summarize_figure(column: Column, results: Results, row: Row) -> Any:
    samples = [sample for samples in results.rounds for sample in samples.get(row, ())]
    values = [sample[column.figure] for sample in samples if column.figure in sample]
    if not values or isinstance(values[0], str):
        return "; ".join(dict.fromkeys(values))
    scaled = [value * column.scale for value in values]
    median = results.median(row, column.figure) * column.scale
    spread = statistics.stdev(scaled) / median if len(scaled) > 1 and median else 0.0
    return {"least": _round(min(scaled)), "median": _round(median), "spread": round(spread, 3)}


def _round(value: float) -> float:
    """Three digits that matter."""
    if not value or not math.isfinite(value):
        return value
    return round(value, max(0, 2 - math.floor(math.log10(abs(value)))))


def table_of_summary(name: str, benchmark: dict[str, Any]) -> str:
    """The table of one benchmark: medians, with the least value and the spread of the samples in brackets."""
    report = REPORTS[name]
    lines = [[name, *(column.title for column in report.columns), ratio_title(report), "goal", "met"]]
    for row in benchmark["rows"]:
        figures = [_cell(column, row["figures"][column.figure]) for column in report.columns]
        ratio = "" if row["ratio"] is None else f"{number_text(row['ratio'])} ×"
        met = {True: "yes", False: "NO", None: "not measured"}
        goals, marks = (goal["text"] for goal in row["goals"]), (met[goal["met"]] for goal in row["goals"])
        lines.append([row["name"], *figures, ratio, "; ".join(goals), "; ".join(marks)])
    conditions = f"{benchmark['date']}, rounds: {benchmark['rounds']}, load {' to '.join(map(str, benchmark['load']))}."
    failures = [f"\nNot measured: {name}: {reason}" for name, reason in benchmark["failures"].items()]
    return "\n".join([f"### {benchmark['title']}", "", conditions, "", *aligned(lines), *failures])


def _cell(column: Column, figure: Any) -> str:
    if isinstance(figure, str):
        return figure
    if column.is_count and figure["least"] == figure["median"]:
        return f"{figure['median']:,.0f}"
    spread = "" if figure["spread"] is None else f"; ±{figure['spread']:.0%}"  # which older results do not have
    return f"{number_text(figure['median'])} ({number_text(figure['least'])}{spread})"
