"""What each benchmark shows, and what Ferrule wants to reach."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contestants import (
    CALL,
    DOOR,
    IMPORT,
    LIMIT,
    LOOP,
    PLAN,
    RECORD,
    REGISTRY,
    REPLAY,
    STUBBORN,
    SYNC,
    TOGETHER,
)

FULL_ENGINE = ("ferrule", "ToolEngine.execute, SQLite store, one subscriber")
LIVE_RUN = ("pydantic-ai", "ToolManager.handle_call in a live run")
SEMAPHORE = ("floor", "asyncio.gather, Semaphore(100)")
BATCH = ("ferrule", "execute_batch, max_concurrent=100")
REGISTERED = ("ferrule", "")
IMPORTED = ("ferrule", "from ferrule import tool, ToolEngine")
THREAD = ("floor", "asyncio.to_thread")
RECORDED = ("ferrule", "store, start and end of a call")
TRANSACTION = ("floor", "one SQLite transaction per row")
MCP = "mcp"
THROUGH_FERRULE = ("ferrule", "UnifiedToolLibrary.execute_tool, SQLite store")
THROUGH_SDK = ("mcp SDK", "Client.call_tool")
AGENT = ("ferrule", "Agent.run, SQLite store")
STUBBORN_AGENT = ("ferrule", "Agent.run")
REMEMBERING = ("ferrule", "with RunMemory")
FORGETFUL = ("ferrule", "without")
ORCHESTRATED = ("ferrule", "Orchestrator.process_task, SQLite checkpoints")
SIMPLE = ("ferrule", "SimpleWorkflow.run, SQLite store")
GRAPH = ("ferrule", "GraphWorkflow.run, SQLite checkpoints")
CREATE_AGENT = ("langchain", "create_agent, SQLite checkpointer")
GATHERED = ("floor", "asyncio.gather")
HELLO = ("ferrule", "Hello!")
AT_THE_DOOR = (
    HELLO,
    ("ferrule", "What can you do?"),
    ("ferrule", "What did I ask? in a long conversation"),
    ("ferrule", "a question that was answered before"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    figure: str
    title: str
    scale: float = 1.0
    """Times seconds (or whatever the figure is) gives what the title says."""
    is_count: bool = False
    """Whether it is counted, and usually the same each time."""


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
    compared_as: str = ""
    """What the heading of the ratios calls it, if not by its own name."""
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
        columns=(_WALL_US, _CPU_US, _OWN_US),
        compared_to=FULL_ENGINE,
        goals=(
            Goal(row=FULL_ENGINE, figure="wall", most=25e-6, said="≤ 25 µs"),
            Goal(row=FULL_ENGINE, figure="wall", most=0.25, times=LIVE_RUN, said="≤ ¼ of pydantic-ai in a live run"),
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
    MCP: Report(
        title="One call of an MCP server over standard input and output",
        columns=(_WALL_US, _CPU_US),
        compared_to=THROUGH_SDK,
        goals=(
            Goal(row=THROUGH_FERRULE, figure="wall", most=1.15, times=THROUGH_SDK, said="≤ 1.15 × the SDK's client"),
        ),
    ),
    LOOP: Report(
        title="One turn of an agent: a model that answers at once, one call of a trivial tool",
        columns=(
            Column(figure="cpu_20", title="CPU µs, 20 turns", scale=1e6),
            Column(figure="cpu_5", title="5 turns", scale=1e6),
            Column(figure="cpu_100", title="100 turns", scale=1e6),
            Column(figure="cpu_many", title="1,000 further tools", scale=1e6),
            Column(figure="wall_20", title="wall µs, 20 turns", scale=1e6),
        ),
        compared_to=AGENT,
        goals=(
            Goal(row=AGENT, figure="cpu_20", most=0.2e-3, said="≤ 200 µs"),
            Goal(row=AGENT, figure="growth", most=1.2, said="the same at 100 turns as at 5 (≤ 1.2 ×)"),
            Goal(row=AGENT, figure="growth_many", most=1.2, said="and with 1,000 further tools (≤ 1.2 ×)"),
        ),
    ),
    STUBBORN: Report(
        title="A model that asks for one identical failing call again and again",
        columns=(
            Column(figure="executions", title="executions", is_count=True),
            Column(figure="model_calls", title="model calls", is_count=True),
            Column(figure="ending", title="how it ends"),
        ),
        compared_to=STUBBORN_AGENT,
        goals=(Goal(row=STUBBORN_AGENT, figure="executions", most=1, said="1"),),
    ),
    REPLAY: Report(
        title="{replayed:,} good calls, with a memory of failures",
        columns=(
            Column(figure="own", title="caller's CPU µs", scale=1e6),
            Column(figure="added", title="added µs", scale=1e6),
            Column(figure="false_blocks", title="false blocks", is_count=True),
            Column(figure="good", title="good calls", is_count=True),
            Column(figure="recalled", title="from the record", is_count=True),
            Column(figure="spared", title="not made again", is_count=True),
        ),
        compared_to=FORGETFUL,
        compared_as="without",
        goals=(Goal(row=REMEMBERING, figure="false_blocks", most=0, said="no false block"),),
    ),
    PLAN: Report(
        title="One step of a plan of ten: a model that answers at once, one call of a trivial tool",
        columns=(
            Column(figure="cpu", title="CPU µs, of the whole run", scale=1e6),
            Column(figure="cpu_more", title="CPU µs, one more step", scale=1e6),
            Column(figure="wall", title="wall µs, of the whole run", scale=1e6),
            Column(figure="wall_more", title="wall µs, one more step", scale=1e6),
        ),
        compared_to=CREATE_AGENT,
        goals=(
            Goal(row=ORCHESTRATED, figure="cpu", most=1, times=CREATE_AGENT, said="≤ create_agent (CPU)"),
            Goal(row=ORCHESTRATED, figure="wall", most=1, times=CREATE_AGENT, said="≤ create_agent (wall)"),
            Goal(row=SIMPLE, figure="cpu", most=0.3e-3, said="≤ 300 µs (CPU)"),
            Goal(row=SIMPLE, figure="wall", most=0.3e-3, said="≤ 300 µs (wall)"),
        ),
    ),
    TOGETHER: Report(
        title="Ten steps of 200 ms at once, planning aside",
        columns=(_WALL_MS, _CPU_MS, Column(figure="most_at_once", title="most at once", is_count=True)),
        compared_to=GATHERED,
        goals=tuple(Goal(row=row, figure="wall", most=0.35, said="< 350 ms") for row in (GRAPH, SIMPLE)),
    ),
    DOOR: Report(
        title="Questions that need no work",
        columns=(
            _WALL_US,
            _CPU_US,
            Column(figure="wall_many", title="wall µs, 1,000 further tools", scale=1e6),
        ),
        compared_to=HELLO,
        compared_as="Hello!",
        goals=tuple(Goal(row=row, figure="wall", most=2e-3, said="< 2 ms") for row in AT_THE_DOOR),
    ),
}
