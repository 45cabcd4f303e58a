"""A page about a batch, as one HTML file with its plots: nothing is loaded from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any, Final

from ferrule.batch.compare import compare_directories
from ferrule.batch.directory import TASK_COLUMNS, BatchDirectory, format_task_value, summarize

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


def build_report(directory: BatchDirectory, other: BatchDirectory | None = None) -> str:
    """Build the page. With another batch, compare the two task by task."""
    summary = summarize(directory)
    sections = [
        _heading(directory, summary),
        _summary_table(summary),
        *([_comparison(directory, other)] if other is not None else []),
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
    title = escape(f"Batch {directory.path.name}")
    body = "\n".join(filter(None, sections))
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


_PLOTS: Final = {
    "seconds": "Seconds per task",
    "turns": "Turns per task",
    "calls": "Calls per task",
    "output_tokens": "Output tokens per task",
    "cost": "Cost per task",
}


def _heading(directory: BatchDirectory, summary: Mapping[str, Any]) -> str:
    solved = summary["states"].get("finished", 0)
    share = f" ({solved / summary['tasks']:.1%})" if summary["tasks"] else ""
    return (
        f"<h1>Batch {escape(directory.path.name)}</h1>\n<p>{solved:,} of {summary['tasks']:,} tasks have an answer"
        f"{share}.</p>"
    )


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


def _comparison(directory: BatchDirectory, other: BatchDirectory) -> str:
    sentences = compare_directories(directory, other).sentences()
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    names = f"A is {escape(directory.path.name)}, B is {escape(other.path.name)} (orange in the plots)."
    return f"<h2>Comparison</h2>\n<p>{names}</p>\n<ul>{items}</ul>"


def _counts(title: str, counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    return f"<h2>{title}</h2>\n" + _table(("", "tasks"), ((name, f"{n:,}") for name, n in counts.items()))


def _task_table(directory: BatchDirectory, title: str, where: str, order: str) -> str:
    rows = directory.list_tasks(where, order, MAX_ROWS)
    if not rows:
        return ""
    return f"<h2>{title}</h2>\n" + _table(TASK_COLUMNS, [[format_task_value(value) for value in row] for row in rows])


def _table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns) if any(columns) else ""
    body = "".join("<tr>" + "".join(_cell(str(value)) for value in row) + "</tr>\n" for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}\n{body}</table>"


def _cell(text: str) -> str:
    return f'<td class="n">{escape(text)}</td>' if text[:1].isdigit() else f"<td>{escape(text)}</td>"


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
