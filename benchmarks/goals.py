"""What each benchmark shows, and what Ferrule wants to reach."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contestants import CALL, IMPORT, LIMIT, RECORD, REGISTRY, SYNC

FULL_ENGINE = ("ferrule", "ToolEngine.execute, SQLite store, one subscriber")
LIVE_RUN = ("pydantic-ai", "ToolManager.handle_call in a live run")
SEMAPHORE = ("floor", "asyncio.gather, Semaphore(100)")
BATCH = ("ferrule", "execute_batch, max_concurrent=100")
REGISTERED = ("ferrule", "")
IMPORTED = ("ferrule", "from ferrule import tool, ToolEngine")
THREAD = ("floor", "asyncio.to_thread")
RECORDED = ("ferrule", "store, start and end of a call")
TRANSACTION = ("floor", "one SQLite transaction per row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    figure: str
    title: str
    scale: float = 1.0
    """Times seconds (or whatever the figure is) gives what the title says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A row's figure is to be at most so much, or at most so many times that of another row."""

    row: tuple[str, str]
    figure: str
    most: float
    times: tuple[str, str] | None = None
    said: str
    """The goal as the table shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    title: str
    """May name fields of the `Effort`."""
    columns: tuple[Column, ...]
    """Rows are ordered, and compared, by the first."""
    compared_to: tuple[str, str]
    goals: tuple[Goal, ...] = ()


def _time(unit: str, scale: float) -> tuple[Column, Column]:
    return Column(figure="cpu", title=f"CPU {unit}", scale=scale), Column(
        figure="wall", title=f"wall {unit}", scale=scale
    )


_CPU_US, _WALL_US = _time("µs", 1e6)
_CPU_MS, _WALL_MS = _time("ms", 1e3)
_CPU_S, _WALL_S = _time("s", 1.0)
_OWN_US = Column(figure="own", title="caller's CPU µs", scale=1e6)

REPORTS = {
    CALL: Report(
        title="One call of a trivial async tool",
        columns=(_CPU_US, _OWN_US, _WALL_US),
        compared_to=FULL_ENGINE,
        goals=(
            Goal(row=FULL_ENGINE, figure="cpu", most=25e-6, said="≤ 25 µs"),
            Goal(row=FULL_ENGINE, figure="cpu", most=0.25, times=LIVE_RUN, said="≤ ¼ of pydantic-ai in a live run"),
        ),
    ),
    LIMIT: Report(
        title="{calls:,} calls of a tool that takes 10 ms, 100 at once",
        columns=(_WALL_MS, _CPU_MS, Column(figure="most_at_once", title="most at once")),
        compared_to=SEMAPHORE,
        goals=(Goal(row=BATCH, figure="wall", most=1.3, times=SEMAPHORE, said="≤ 1.3 × Semaphore"),),
    ),
    REGISTRY: Report(
        title="{functions:,} functions become tools",
        columns=(
            _CPU_S,
            Column(figure="megabytes", title="MB more"),
            Column(figure="first_call", title="first call ms", scale=1e3),
        ),
        compared_to=REGISTERED,
        goals=(
            Goal(row=REGISTERED, figure="cpu", most=1.5, said="< 1.5 s"),
            Goal(row=REGISTERED, figure="megabytes", most=60, said="< 60 MB"),
        ),
    ),
    IMPORT: Report(
        title="Import in a fresh process",
        columns=(_WALL_S, _CPU_S),
        compared_to=IMPORTED,
        goals=(
            Goal(row=("ferrule", "import ferrule"), figure="wall", most=0.2, said="< 0.2 s"),
            Goal(row=IMPORTED, figure="wall", most=0.2, said="< 0.2 s"),
        ),
    ),
    SYNC: Report(
        title="A sync tool, there and back",
        columns=(_WALL_US, _CPU_US),
        compared_to=THREAD,
    ),
    RECORD: Report(
        title="One call recorded",
        columns=(_CPU_US, _OWN_US, _WALL_US),
        compared_to=RECORDED,
        goals=(Goal(row=RECORDED, figure="wall", most=1, times=TRANSACTION, said="< one transaction per row"),),
    ),
}
