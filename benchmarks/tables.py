"""Results as tables of Markdown, which a terminal shows as well."""

from __future__ import annotations

from dataclasses import asdict, replace

from benchmarks.effort import Effort
from benchmarks.goals import REPORTS, Column, Goal, Report
from benchmarks.rounds import Results, Row


def table_of(benchmark: str, results: Results, effort: Effort) -> str:
    """Medians, with the least that was ever measured in brackets. Goals are for the full effort."""
    report = REPORTS[benchmark]
    if effort != Effort():
        report = replace(report, goals=())
    rows = sorted(results.rows(), key=lambda row: results.median(row, report.columns[0].figure))
    title = [benchmark, *(column.title for column in report.columns), _ratio_title(report), "goal", "met"]
    lines = [title, *(_line(report, results, row) for row in rows)]
    left_out = [f"Left out: {name}: {reason}" for name, reason in results.failures.items()]
    return "\n".join([f"### {report.title.format(**asdict(effort))}", "", *_aligned(lines), *left_out])


def judge(results: Results, goal: Goal) -> bool | None:
    """Whether a goal is met; None when what it is about was not measured."""
    if goal.row not in results.rows():
        return None
    if goal.times is None:
        return results.median(goal.row, goal.figure) <= goal.most
    ratio = results.ratio(goal.row, goal.times, goal.figure)
    return None if ratio is None else ratio <= goal.most


def _line(report: Report, results: Results, row: Row) -> list[str]:
    cells = [": ".join(filter(None, row))]
    cells += [_cell(column, results, row) for column in report.columns]
    ratio = results.ratio(row, report.compared_to, report.columns[0].figure)
    goals = [goal for goal in report.goals if goal.row == row]
    return [
        *cells,
        "" if ratio is None else f"{_number(ratio)} ×",
        "; ".join(goal.said for goal in goals),
        "; ".join({True: "yes", False: "NO", None: "not measured"}[judge(results, goal)] for goal in goals),
    ]


def _cell(column: Column, results: Results, row: Row) -> str:
    values = [
        sample[column.figure]
        for measured in results.rounds
        for sample in measured.get(row, ())
        if column.figure in sample
    ]
    if not values or isinstance(values[0], str):
        return "; ".join(dict.fromkeys(values))
    if column.is_count and len(set(values)) == 1:
        return f"{values[0]:,}"
    return f"{_number(results.median(row, column.figure) * column.scale)} ({_number(min(values) * column.scale)})"


def _ratio_title(report: Report) -> str:
    name, way = report.compared_to
    return "× " + (report.compared_as or ("Ferrule" if name == "ferrule" else way))


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    return [shown[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *shown[1:]]
