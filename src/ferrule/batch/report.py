"""How a batch went: compared with another one, task by task, and as one HTML file with plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from math import comb, erfc, floor, log10, sqrt
from typing import Any, Final

from ferrule.batch.directory import (
    INDEX,
    PERCENTILES,
    TASK_COLUMNS,
    BatchDirectory,
    format_task_value,
    summarize,
)
from ferrule.errors import SetupError

MAX_LISTED: Final = 20
_SUMS: Final = ("turns", "calls", "failed_calls", "prevented", "input_tokens", "output_tokens", "cost")
_BOTH: Final = "tasks a JOIN other.tasks b ON a.id = b.id AND a.offset IS NOT NULL AND b.offset IS NOT NULL"
BARS: Final = 24
MAX_ROWS: Final = 50
_WIDTH, _HEIGHT, _MARGIN = 560, 200, 34
_STYLE: Final = """
body { font: 15px/1.5 system-ui, "Noto Sans SC", sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
       color: #1c1e21; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
th { font-weight: 600; border-bottom: 1px solid #ccc; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
.plots { display: flex; flex-wrap: wrap; gap: 1.5rem; } figure { margin: 0; } figcaption { font-weight: 600; }
rect { fill: #3b6ea5; } rect.other { fill: #c06a2b; opacity: .75; } text { font-size: 11px; fill: #555; }
line { stroke: #bbb; }
@media (prefers-color-scheme: dark) { body { background: #16181b; color: #e4e6ea; } text { fill: #aaa; } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchComparison:
    """What differs between two batches, over the tasks that both have finished."""

    tasks: int
    only_first: int
    only_second: int
    solved: tuple[int, int]
    gained: list[str]
    """Tasks that only the second solved; the first of them."""
    lost: list[str]
    number_gained: int
    number_lost: int
    p_value: float
    """How likely a difference this large is by chance, if both were equally good (exact sign test)."""
    sums: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sentences(self) -> list[str]:
        lines = [f"{self.tasks:,} tasks are in both (only in A: {self.only_first:,}, only in B: {self.only_second:,})."]
        if not self.tasks:
            return lines
        first, second = self.solved
        lines.append(
            f"Solved: {first:,} ({first / self.tasks:.1%}) → {second:,} ({second / self.tasks:.1%}); "
            f"B gains {self.number_gained:,} and loses {self.number_lost:,} (p = {self.p_value:.2g})."
        )
        labels = {
            "turns": "Steps",
            "calls": "Calls",
            "failed_calls": "Failed calls",
            "prevented": "Repeated failures prevented",
            "cost": "Cost",
        }
        lines += [f"{label}: {_format_change(*self.sums[name])}" for name, label in labels.items()]
        lines += [f"Seconds per task, {name}: {_format_change(*pair)}" for name, pair in self.seconds.items()]
        for label, ids, number in (
            ("Only B solved", self.gained, self.number_gained),
            ("Only A solved", self.lost, self.number_lost),
        ):
            if ids:
                more = f" and {number - len(ids):,} more" if number > len(ids) else ""
                lines.append(f"{label}: {', '.join(ids)}{more}")
        return lines


def compare_directories(first: BatchDirectory, second: BatchDirectory) -> BatchComparison:
    """Compare by task id. Neither batch is held in memory."""
    first.query("ATTACH DATABASE ? AS other", [str(second.path / INDEX)])
    try:
        return _compare(first)
    finally:
        first.query("DETACH DATABASE other")


def _compare(index: BatchDirectory) -> BatchComparison:
    conflict = index.query(f"SELECT a.id FROM {_BOTH} WHERE a.digest != b.digest LIMIT 1").fetchone()
    if conflict is not None:
        raise SetupError(f"The task {conflict[0]!r} is not the same in both batches, so they cannot be compared.")
    a_solved, b_solved = "a.state = 'finished'", "b.state = 'finished'"
    sums = ", ".join(f"SUM(a.{name}), SUM(b.{name})" for name in _SUMS)
    tasks, first, second, gained, lost, *totals = index.query(
        f"SELECT COUNT(*), SUM({a_solved}), SUM({b_solved}), SUM(NOT ({a_solved}) AND {b_solved}), "
        f"SUM({a_solved} AND NOT ({b_solved})), {sums} FROM {_BOTH}"
    ).fetchone()
    missing = "SELECT COUNT(*) FROM {} x WHERE offset IS NOT NULL AND id NOT IN (SELECT a.id FROM {})"

    def ids(where: str) -> list[str]:
        return [row[0] for row in index.query(f"SELECT a.id FROM {_BOTH} WHERE {where} LIMIT {MAX_LISTED}")]

    def seconds(side: str, position: int) -> float:
        row = index.query(f"SELECT {side}.seconds FROM {_BOTH} ORDER BY 1 LIMIT 1 OFFSET ?", [position]).fetchone()
        return float(row[0] or 0.0)

    return BatchComparison(
        tasks=tasks,
        only_first=index.query(missing.format("main.tasks", _BOTH)).fetchone()[0],
        only_second=index.query(missing.format("other.tasks", _BOTH)).fetchone()[0],
        solved=(first or 0, second or 0),
        gained=ids(f"NOT ({a_solved}) AND {b_solved}"),
        lost=ids(f"{a_solved} AND NOT ({b_solved})"),
        number_gained=gained or 0,
        number_lost=lost or 0,
        p_value=sign_test(gained or 0, lost or 0),
        sums={name: (totals[2 * n], totals[2 * n + 1]) for n, name in enumerate(_SUMS)},
        seconds={
            name: (seconds("a", int(rank * (tasks - 1))), seconds("b", int(rank * (tasks - 1))))
            for name, rank in PERCENTILES.items()
            if tasks
        },
    )


def sign_test(gained: int, lost: int) -> float:
    """Return the two-sided probability that tasks with different outcomes are split so unevenly."""
    number, smaller = gained + lost, min(gained, lost)
    if not number:
        return 1.0
    if number > 500:  # the normal approximation, with continuity correction
        return float(erfc(max(0.0, abs(gained - lost) - 1) / sqrt(2 * number)))
    return float(min(1.0, 2 * sum(comb(number, k) for k in range(smaller + 1)) / 2**number))


def _format_change(first: float | None, second: float | None) -> str:
    if first is None or second is None:
        return "not known for both"
    change = f" ({(second - first) / first:+.1%})" if first else ""
    return f"{_format_number(first)} → {_format_number(second)}{change}"


def _format_number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


# The page


def build_report(directory: BatchDirectory, other: BatchDirectory | None = None) -> str:
    """Build the page. With another batch, compare the two task by task."""
    summary, name = summarize(directory), escape(directory.path.name)
    solved = summary["states"].get("finished", 0)
    share = f" ({solved / summary['tasks']:.1%})" if summary["tasks"] else ""
    comparison = []
    if other is not None:
        items = "".join(f"<li>{escape(each)}</li>" for each in compare_directories(directory, other).sentences())
        names = f"A is {name}, B is {escape(other.path.name)} (orange in the plots)."
        comparison = [f"<h2>Comparison</h2>\n<p>{names}</p>\n<ul>{items}</ul>"]
    sections = [
        f"<h1>Batch {name}</h1>\n<p>{solved:,} of {summary['tasks']:,} tasks have an answer{share}.</p>",
        _summary_table(summary),
        *comparison,
        "<h2>Distributions</h2>",
        '<div class="plots">',
        *(_histogram(directory, other, column, title) for column, title in _PLOTS.items()),
        _progress_plot(directory),
        "</div>",
        _counts("Tasks by state", summary["states"]),
        _counts("Tasks without an answer, by reason", summary["failures"]),
        _task_table(directory, "Tasks without an answer", "state != 'finished'", "offset"),
        _task_table(directory, "Slowest tasks", "seconds IS NOT NULL", "seconds DESC"),
    ]
    body = "\n".join(filter(None, sections))
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>Batch {name}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


_PLOTS: Final = {
    "seconds": "Seconds per task",
    "turns": "Turns per task",
    "calls": "Calls per task",
    "output_tokens": "Output tokens per task",
    "cost": "Cost per task",
}


def _summary_table(summary: Mapping[str, Any]) -> str:
    usage, seconds = summary["usage"], summary["seconds"]
    cost = "no prices" if summary["cost"] is None else f"{summary['cost']:.6g}"
    facts = {
        "turns": f"{summary['turns']:,}",
        "calls": f"{summary['calls']:,}",
        "failed calls": f"{summary['failed_calls']:,}",
        "repeated failures prevented": f"{summary['repeated_failures_prevented']:,}",
        "input tokens": f"{usage['input_tokens']:,}",
        "output tokens": f"{usage['output_tokens']:,}",
        "cost": cost,
        **{f"seconds {name}": f"{value:.3g}" for name, value in seconds.items() if value is not None},
    }
    return _table(("", ""), facts.items())


def _counts(title: str, counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    return f"<h2>{title}</h2>\n" + _table(("", "tasks"), ((name, f"{n:,}") for name, n in counts.items()))


def _task_table(directory: BatchDirectory, title: str, where: str, order: str) -> str:
    rows = directory.list_tasks(where, order, MAX_ROWS)
    if not rows:
        return ""
    return f"<h2>{title}</h2>\n" + _table(TASK_COLUMNS, [map(format_task_value, row.values()) for row in rows])


def _table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns) if any(columns) else ""
    lines = [f"<table>{f'<tr>{head}</tr>' if head else ''}"]
    for row in rows:
        kinds = ((str(value), ' class="n"' if str(value)[:1].isdigit() else "") for value in row)
        lines.append(f"<tr>{''.join(f'<td{kind}>{escape(text)}</td>' for text, kind in kinds)}</tr>")
    return "\n".join([*lines, "</table>"])


# Plots


def _histogram(directory: BatchDirectory, other: BatchDirectory | None, column: str, title: str) -> str:
    batches = [directory, *([other] if other is not None else [])]
    ranges = [_range(batch, column) for batch in batches]
    spans = [pair for pair in ranges if pair is not None]
    if not spans or max(high for _, high in spans) == 0:
        return ""
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    step = _round_step((high - low) / BARS or 1.0)
    start = floor(low / step) * step
    series = [_count_bars(batch, column, start, step) for batch in batches]
    return _bar_plot(title, series, [(start + step * n) for n in range(max(map(len, series)) + 1)])


def _range(batch: BatchDirectory, column: str) -> tuple[float, float] | None:
    low, high = batch.query(f"SELECT MIN({column}), MAX({column}) FROM tasks WHERE offset IS NOT NULL").fetchone()
    return None if low is None else (float(low), float(high))


def _round_step(step: float) -> float:
    """Round up to one of 1, 2, 5, 10 … so that bars begin at round numbers."""
    power = 10 ** floor(log10(step))
    return float(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999))


def _count_bars(batch: BatchDirectory, column: str, start: float, step: float) -> list[int]:
    rows = batch.query(
        f"SELECT CAST(({column} - ?) / ? AS INTEGER), COUNT(*) FROM tasks WHERE offset IS NOT NULL "
        f"AND {column} IS NOT NULL GROUP BY 1",
        [start, step],
    ).fetchall()
    bars = [0] * (max((row[0] for row in rows), default=0) + 1)
    for number, count in rows:
        bars[number] = count
    return bars


def _progress_plot(directory: BatchDirectory) -> str:
    """Plot how many tasks ended in each part of the time that the batch took."""
    ends = _range(directory, "ended_at")
    if ends is None or ends[1] <= ends[0]:
        return ""
    step = (ends[1] - ends[0]) / BARS
    bars = _count_bars(directory, "ended_at", ends[0], step)
    return _bar_plot("Tasks ended, by seconds since the first", [bars], [step * n for n in range(len(bars) + 1)])


def _bar_plot(title: str, series: Sequence[Sequence[int]], ticks: Sequence[float]) -> str:
    number = max(map(len, series))
    largest = max(max(bars, default=0) for bars in series) or 1
    width = (_WIDTH - 2 * _MARGIN) / number
    bottom = _HEIGHT - _MARGIN
    shapes = []
    for place, bars in enumerate(series):
        inset = width * (0.1 if len(series) == 1 else 0.05 + 0.45 * place)
        bar_width = width * (0.8 if len(series) == 1 else 0.42)
        for n, count in enumerate(bars):
            height = (bottom - 16) * count / largest
            shapes.append(
                f'<rect{" class=other" if place else ""} x="{_MARGIN + n * width + inset:.1f}" '
                f'y="{bottom - height:.1f}" width="{bar_width:.1f}" height="{height:.1f}">'
                f"<title>{ticks[n]:.4g} to {ticks[n + 1]:.4g}: {count:,} tasks</title></rect>"
            )
    every = max(1, number // 6)
    shapes += [
        f'<text x="{_MARGIN + n * width:.1f}" y="{bottom + 14}" text-anchor="middle">{ticks[n]:.3g}</text>'
        for n in range(0, number + 1, every)
    ]
    shapes.append(f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{bottom}" y2="{bottom}"/>')
    shapes.append(f'<text x="{_MARGIN - 4}" y="22" text-anchor="end">{largest:,}</text>')
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg role="img" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(shapes)}</svg></figure>'
    )
