"""The columns and goals of each benchmark, and its results as a Markdown table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from benchmarks.contestants import (
    CALL,
    FAILING_CALL,
    FAST_PATH,
    FLEET,
    GATEWAY,
    IMPORT,
    LIMIT,
    LOOP,
    MCP,
    MEMORY,
    PAGE,
    PARALLEL,
    PLAN,
    PROMPT,
    RECORD,
    REGISTRY,
    SEARCH,
    SERVER,
    START,
    SYNC,
)
from benchmarks.interface import Workload
from benchmarks.rounds import Results, Row

ENGINE_CALL = ("ferrule", "ToolEngine.execute, SQLite store, one subscriber")
PYDANTIC_AI_LIVE_RUN = ("pydantic-ai", "ToolManager.handle_call in a live run")
SEMAPHORE = ("baseline", "asyncio.gather, Semaphore(100)")
BATCH = ("ferrule", "execute_batch, max_concurrent=100")
FERRULE_REGISTRY = ("ferrule", "")
ENGINE_IMPORT = ("ferrule", "from ferrule import tool, ToolEngine")
THREAD = ("baseline", "asyncio.to_thread")
STORE_RECORD = ("ferrule", "store, start and end of a call")
ONE_TRANSACTION = ("baseline", "one SQLite transaction per row")
MCP_FERRULE = ("ferrule", "UnifiedToolLibrary.execute_tool, SQLite store")
MCP_SDK = ("mcp SDK", "Client.call_tool")
AGENT_LOOP = ("ferrule", "Agent.run, SQLite store")
AGENT_PROMPT = ("ferrule", "Agent, instructions and offered tools")
AGENT_FAILING_CALL = ("ferrule", "Agent.run")
WITH_MEMORY = ("ferrule", "with RunMemory")
WITHOUT_MEMORY = ("ferrule", "without")
ORCHESTRATOR = ("ferrule", "Orchestrator.process_task, SQLite store")
SIMPLE_WORKFLOW = ("ferrule", "SimpleWorkflow.run, SQLite store")
GRAPH_WORKFLOW = ("ferrule", "GraphWorkflow.run, SQLite store")
CREATE_AGENT = ("langchain", "create_agent, SQLite checkpointer")
GATHER = ("baseline", "asyncio.gather")
HELLO = ("ferrule", "Hello!")
BARE_ROUTE = ("baseline", "a bare Starlette route")
GATEWAY_DIRECT = ("mcp SDK", "the stdio server directly")
LOCAL_LIMIT = ("ferrule", "ToolEngine.execute, local limit")
WHOLE_QUESTIONS = ("ferrule", "shared, whole, half A")
EMPTY_PAGE = ("baseline", "GET /healthz in the same browser")
FAST_QUESTIONS = (
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
    """Converts the figure, usually seconds, into the unit of the title."""
    is_count: bool = False
    """Whether it is a number of events, which is usually the same in each sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The maximum of a row's figure: absolute, or as a multiple of another row's figure."""

    row: Row
    figure: str
    limit: float
    relative_to: Row | None = None
    text: str
    """The goal as it is shown in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    title: str
    """May contain fields of the `Workload` in braces."""
    columns: tuple[Column, ...]
    """Rows are sorted and compared by the first."""
    reference: Row
    reference_title: str = ""
    """The reference's name in the heading of the ratios; by default that of the row."""
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
        reference=ENGINE_CALL,
        goals=(
            Goal(row=ENGINE_CALL, figure="wall", limit=25e-6, text="≤ 25 µs"),
            Goal(
                row=ENGINE_CALL,
                figure="wall",
                limit=0.25,
                relative_to=PYDANTIC_AI_LIVE_RUN,
                text="≤ ¼ of pydantic-ai in a live run",
            ),
        ),
    ),
    LIMIT: Report(
        title="{calls:,} calls of a tool that takes 10 ms, 100 concurrently",
        columns=(_WALL_MS, _CPU_MS, Column(figure="peak_concurrency", title="peak concurrency")),
        reference=SEMAPHORE,
        goals=(Goal(row=BATCH, figure="wall", limit=1.3, relative_to=SEMAPHORE, text="≤ 1.3 × Semaphore"),),
    ),
    REGISTRY: Report(
        title="Registering {functions:,} functions as tools",
        columns=(
            _CPU_S,
            Column(figure="megabytes", title="added MB"),
            Column(figure="first_call", title="first call ms", scale=1e3),
        ),
        reference=FERRULE_REGISTRY,
        goals=(
            Goal(row=FERRULE_REGISTRY, figure="cpu", limit=1.5, text="< 1.5 s"),
            Goal(row=FERRULE_REGISTRY, figure="megabytes", limit=60, text="< 60 MB"),
        ),
    ),
    IMPORT: Report(
        title="Import in a new process",
        columns=(_WALL_S, _CPU_S),
        reference=ENGINE_IMPORT,
        goals=(
            Goal(row=("ferrule", "import ferrule"), figure="wall", limit=0.2, text="< 0.2 s"),
            Goal(row=ENGINE_IMPORT, figure="wall", limit=0.2, text="< 0.2 s"),
        ),
    ),
    START: Report(
        title="Starting the command line",
        columns=(_CPU_S, _WALL_S),
        reference=("baseline", "python -c pass"),
        goals=(
            Goal(row=("ferrule", "ferrule --version"), figure="cpu", limit=0.12, text="≤ 0.12 s"),
            Goal(row=("ferrule", "ferrule call calculator expression=2+2"), figure="cpu", limit=0.3, text="≤ 0.3 s"),
            Goal(row=("ferrule", "ferrule ask what is 15% of 80?"), figure="cpu", limit=0.5, text="≤ 0.5 s"),
        ),
    ),
    PROMPT: Report(
        title="What tools take of a prompt: tokens of 10, 100 and 1,000 tools",
        columns=(
            Column(figure="tokens_1000", title="1,000 tools", is_count=True),
            Column(figure="tokens_100", title="100 tools", is_count=True),
            Column(figure="tokens_10", title="10 tools", is_count=True),
        ),
        reference=AGENT_PROMPT,
        goals=(),
    ),
    SYNC: Report(
        title="One call of a trivial sync tool",
        columns=(_WALL_US, _CPU_US),
        reference=THREAD,
    ),
    RECORD: Report(
        title="Recording one call",
        columns=(_CPU_US, _OWN_US, _WALL_US),
        reference=STORE_RECORD,
        goals=(
            Goal(
                row=STORE_RECORD, figure="wall", limit=1, relative_to=ONE_TRANSACTION, text="< one transaction per row"
            ),
        ),
    ),
    MCP: Report(
        title="One call of an MCP server over standard input and output",
        columns=(_WALL_US, _CPU_US),
        reference=MCP_SDK,
        goals=(Goal(row=MCP_FERRULE, figure="wall", limit=0.8, relative_to=MCP_SDK, text="≤ 0.8 × the SDK's client"),),
    ),
    SERVER: Report(
        title="One call of a trivial tool through a server: processor time of the server",
        columns=(_CPU_US, Column(figure="wall", title="wall µs, 4 connections", scale=1e6)),
        reference=BARE_ROUTE,
        goals=(
            Goal(
                row=("ferrule", "POST /v1/tools/{name}/call"),
                figure="cpu",
                limit=2,
                relative_to=BARE_ROUTE,
                text="≤ 2 × a bare route",
            ),
            *(
                Goal(
                    row=("ferrule", f"tools/call {version}"),
                    figure="cpu",
                    limit=0.2,
                    relative_to=("mcp SDK", f"tools/call {version}"),
                    text="≤ ⅕ of the SDK's server",
                )
                for version in ("2026-07-28", "2025-11-25")
            ),
        ),
    ),
    GATEWAY: Report(
        title="One call of a stdio MCP server through ferrule serve: processor time of all processes",
        columns=(_CPU_US, _WALL_US),
        reference=GATEWAY_DIRECT,
        goals=(
            Goal(
                row=("ferrule", "through /mcp"),
                figure="cpu",
                limit=1.15,
                relative_to=GATEWAY_DIRECT,
                text="≤ 1.15 × the direct call",
            ),
        ),
    ),
    FLEET: Report(
        title="One call whose limit is shared by all servers of a store",
        columns=(_OWN_US, _CPU_US, _WALL_US),
        reference=LOCAL_LIMIT,
        reference_title="local limit",
        goals=(
            Goal(
                row=("ferrule", "ToolEngine.execute, shared limit"),
                figure="own",
                limit=1.2,
                relative_to=LOCAL_LIMIT,
                text="≤ 1.2 × a local limit",
            ),
        ),
    ),
    PAGE: Report(
        title="The web page, until it shows the list of tools",
        columns=(
            _WALL_MS,
            Column(figure="cpu", title="CPU ms of the server", scale=1e3),
            Column(figure="kilobytes", title="kB transferred"),
        ),
        reference=EMPTY_PAGE,
    ),
    LOOP: Report(
        title="One turn of an agent: a model that replies without delay, one call of a trivial tool",
        columns=(
            Column(figure="cpu_20", title="CPU µs, 20 turns", scale=1e6),
            Column(figure="cpu_5", title="5 turns", scale=1e6),
            Column(figure="cpu_100", title="100 turns", scale=1e6),
            Column(figure="cpu_many", title="1,000 extra tools", scale=1e6),
            Column(figure="wall_20", title="wall µs, 20 turns", scale=1e6),
        ),
        reference=AGENT_LOOP,
        goals=(
            Goal(row=AGENT_LOOP, figure="cpu_20", limit=0.2e-3, text="≤ 200 µs"),
            Goal(row=AGENT_LOOP, figure="growth", limit=1.2, text="as much at 100 turns as at 5 (≤ 1.2 ×)"),
            Goal(row=AGENT_LOOP, figure="growth_many", limit=1.2, text="as much with 1,000 extra tools (≤ 1.2 ×)"),
        ),
    ),
    FAILING_CALL: Report(
        title="A model that repeats one failing call",
        columns=(
            Column(figure="executions", title="executions", is_count=True),
            Column(figure="model_calls", title="model calls", is_count=True),
            Column(figure="ending", title="how the run ends"),
        ),
        reference=AGENT_FAILING_CALL,
        goals=(Goal(row=AGENT_FAILING_CALL, figure="executions", limit=1, text="1"),),
    ),
    MEMORY: Report(
        title="{memory_calls:,} legitimate calls with a failure memory",
        columns=(
            Column(figure="own", title="caller's CPU µs", scale=1e6),
            Column(figure="added", title="added µs", scale=1e6),
            Column(figure="false_blocks", title="false blocks", is_count=True),
            Column(figure="successes", title="successful calls", is_count=True),
            Column(figure="recalled", title="from memory", is_count=True),
            Column(figure="refused", title="refused", is_count=True),
        ),
        reference=WITHOUT_MEMORY,
        reference_title="without",
        goals=(Goal(row=WITH_MEMORY, figure="false_blocks", limit=0, text="no false block"),),
    ),
    PLAN: Report(
        title="One step of a plan of ten: a model that replies without delay, one call of a trivial tool",
        columns=(
            Column(figure="cpu", title="CPU µs, whole run", scale=1e6),
            Column(figure="cpu_more", title="CPU µs, one more step", scale=1e6),
            Column(figure="wall", title="wall µs, whole run", scale=1e6),
            Column(figure="wall_more", title="wall µs, one more step", scale=1e6),
        ),
        reference=CREATE_AGENT,
        goals=(
            Goal(row=ORCHESTRATOR, figure="cpu", limit=1, relative_to=CREATE_AGENT, text="≤ create_agent (CPU)"),
            Goal(row=ORCHESTRATOR, figure="wall", limit=1, relative_to=CREATE_AGENT, text="≤ create_agent (wall)"),
            Goal(row=SIMPLE_WORKFLOW, figure="cpu", limit=0.3e-3, text="≤ 300 µs (CPU)"),
            Goal(row=SIMPLE_WORKFLOW, figure="wall", limit=0.3e-3, text="≤ 300 µs (wall)"),
        ),
    ),
    PARALLEL: Report(
        title="Ten parallel steps of 200 ms, without planning",
        columns=(_WALL_MS, _CPU_MS, Column(figure="peak_concurrency", title="peak concurrency", is_count=True)),
        reference=GATHER,
        goals=tuple(
            Goal(row=row, figure="wall", limit=0.35, text="< 350 ms") for row in (GRAPH_WORKFLOW, SIMPLE_WORKFLOW)
        ),
    ),
    SEARCH: Report(
        title="The share of the right tools among the first 5, 10 and 20 that a question finds",
        columns=tuple(
            Column(figure=f"{method} {depth}", title=f"{method} @{depth}", is_count=True)
            for method in ("words", "words and meaning")
            for depth in (5, 10, 20)
        ),
        reference=WHOLE_QUESTIONS,
        reference_title="whole questions, half A",
    ),
    FAST_PATH: Report(
        title="Questions answered by the fast path or the cache",
        columns=(
            _WALL_US,
            _CPU_US,
            Column(figure="wall_many", title="wall µs, 1,000 extra tools", scale=1e6),
        ),
        reference=HELLO,
        reference_title="Hello!",
        goals=tuple(Goal(row=row, figure="wall", limit=2e-3, text="< 2 ms") for row in FAST_QUESTIONS),
    ),
}


def table_of(benchmark: str, results: Results, workload: Workload) -> str:
    """Medians, with the minimum of all samples in brackets. Goals apply to the full workload only."""
    report = REPORTS[benchmark]
    if workload != Workload():
        report = replace(report, goals=())
    rows = sorted(results.rows(), key=lambda row: results.median(row, report.columns[0].figure))
    title = [benchmark, *(column.title for column in report.columns), ratio_title(report), "goal", "met"]
    lines = [title, *(_line(report, results, row) for row in rows)]
    failures = [f"Not measured: {name}: {reason}" for name, reason in results.failures.items()]
    return "\n".join([f"### {report.title.format(**asdict(workload))}", "", *aligned(lines), *failures])


def is_met(results: Results, goal: Goal) -> bool | None:
    """Whether the goal is met; None when its rows were not measured."""
    if goal.row not in results.rows():
        return None
    if goal.relative_to is None:
        return results.median(goal.row, goal.figure) <= goal.limit
    ratio = results.ratio(goal.row, goal.relative_to, goal.figure)
    return None if ratio is None else ratio <= goal.limit


def _line(report: Report, results: Results, row: Row) -> list[str]:
    cells = [": ".join(filter(None, row))]
    cells += [_cell(column, results, row) for column in report.columns]
    ratio = results.ratio(row, report.reference, report.columns[0].figure)
    goals = [goal for goal in report.goals if goal.row == row]
    return [
        *cells,
        "" if ratio is None else f"{number_text(ratio)} ×",
        "; ".join(goal.text for goal in goals),
        "; ".join({True: "yes", False: "NO", None: "not measured"}[is_met(results, goal)] for goal in goals),
    ]


def _cell(column: Column, results: Results, row: Row) -> str:
    values = [
        sample[column.figure]
        for samples in results.rounds
        for sample in samples.get(row, ())
        if column.figure in sample
    ]
    if not values or isinstance(values[0], str):
        return "; ".join(dict.fromkeys(values))
    if column.is_count and len(set(values)) == 1:
        return f"{values[0]:,}"
    return (
        f"{number_text(results.median(row, column.figure) * column.scale)} ({number_text(min(values) * column.scale)})"
    )


def ratio_title(report: Report) -> str:
    name, variant = report.reference
    return "× " + (report.reference_title or ("Ferrule" if name == "ferrule" else variant))


def number_text(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def aligned(lines: list[list[str]]) -> list[str]:
    """A table in Markdown."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    return [rows[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *rows[1:]]
