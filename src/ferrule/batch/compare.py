"""Two batches with the same tasks, compared task by task by their indexes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import comb, erfc, sqrt
from typing import Any, Final

from ferrule.batch.directory import INDEX, PERCENTILES, BatchDirectory
from ferrule.errors import SetupError

MAX_LISTED: Final = 20
_SUMS: Final = ("turns", "calls", "failed_calls", "prevented", "input_tokens", "output_tokens", "cost")
_BOTH: Final = "tasks a JOIN other.tasks b ON a.id = b.id AND a.offset IS NOT NULL AND b.offset IS NOT NULL"


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
        seconds={name: _percentiles(index, tasks, rank) for name, rank in PERCENTILES.items() if tasks},
    )


def _percentiles(index: BatchDirectory, tasks: int, rank: float) -> tuple[float, float]:
    position = int(rank * (tasks - 1))
    values = [
        index.query(f"SELECT {side}.seconds FROM {_BOTH} ORDER BY 1 LIMIT 1 OFFSET ?", [position]).fetchone()[0]
        for side in ("a", "b")
    ]
    return values[0] or 0.0, values[1] or 0.0


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
