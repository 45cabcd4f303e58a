"""Writes what docs/benchmarks.json says into docs/benchmarks.md and README.md, and draws its plots.

    python -m scripts.benchmarks_page [--check]

`--check` only reports whether the texts are up to date. In a text, the tables are between `<!-- results -->` and
`<!-- end results -->`, and a number of FIGURES or of CHAOS_FIGURES between `<!-- figure NAME -->` and
`<!-- end figure -->`. The latter come from the table that `make chaos` writes into docs/reliability.md.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.reports import number_text
from benchmarks.summary import table_of_summary

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs/benchmarks.json"
PAGE = ROOT / "docs/benchmarks.md"
README = ROOT / "README.md"
CHAOS = ROOT / "docs/reliability.md"
IMAGES = ROOT / "docs/images"
FIGURES = {
    "call": ("call", "ferrule: ToolEngine.execute, SQLite store, no subscriber", "own", "µs"),
    "call-pydantic-ai": ("call", "pydantic-ai: ToolManager.handle_call in a live run", "own", "µs"),
    "call-langchain": ("call", "langchain: StructuredTool.ainvoke", "own", "µs"),
    "turn": ("loop", "ferrule: Agent.run, SQLite store", "cpu_20", "µs"),
    "turn-pydantic-ai": ("loop", "pydantic-ai: Agent.run", "cpu_20", "µs"),
    "failing-call": ("failing_call", "ferrule: Agent.run", "executions", ""),
    "prompt": ("prompt", "ferrule: Agent, instructions and offered tools", "tokens_1000", "tokens"),
    "prompt-pydantic-ai": ("prompt", "pydantic-ai: Agent, all tools", "tokens_1000", "tokens"),
}
"""Numbers that texts name: the benchmark, the row, the figure and the unit. They are the least values, and
those of time are of CPU time, because these depend little on what else the machine does."""
_KILLS = ("kill -9, four processes on one SQLite store", "kill -9, four processes on one Postgres store")
_CONCURRENT = ("10,000 concurrent calls",)
_BALANCER = ("a server is killed every second, behind a balancer",)
CHAOS_FIGURES = {
    "kills": (_KILLS, "kill -9"),
    "acknowledged-calls": (_KILLS, "acknowledged calls"),
    "lost-calls": (_KILLS, "lost"),
    "payments": (_KILLS, "payments"),
    "concurrent-calls": (_CONCURRENT, "calls"),
    "most-concurrent": (_CONCURRENT, "most concurrent"),
    "killed-servers": (_BALANCER, "kills"),
    "shared-limit": (_BALANCER, "limit"),
    "most-in-fleet": (_BALANCER, "most at the same time"),
}
"""The same for scenarios of `make chaos`: what is broken, and the figure, which is the sum of all these."""
PLOTS = {"call": "own", "loop": "cpu_20", "prompt": "tokens_1000", "import": "cpu"}
"""The benchmarks that are drawn, by their figures."""


def fill(text: str, data: dict[str, Any], chaos: str) -> str:
    """The text with its tables and numbers from the data and from the report of `make chaos`."""

    def figure(match: re.Match[str]) -> str:
        value = chaos_figure(match[2], chaos) if match[2] in CHAOS_FIGURES else figure_text(match[2], data)
        return f"{match[1]}{value}{match[3]}"

    tables = "\n\n".join(_section(name, benchmark) for name, benchmark in data["benchmarks"].items())
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    results = f"{data['machine']}. Versions: {versions}.\n\n{tables}"
    results_pattern = r"(?s)(<!-- results -->\n).*?(<!-- end results -->)"
    text = re.sub(results_pattern, lambda match: f"{match[1]}\n{results}\n\n{match[2]}", text)
    return re.sub(r"(?s)(<!-- figure ([\w-]+) -->).*?(<!-- end figure -->)", figure, text)


def figure_text(name: str, data: dict[str, Any]) -> str:
    benchmark, row, figure, unit = FIGURES[name]
    rows = {each["name"]: each for each in data["benchmarks"][benchmark]["rows"]}
    least = rows[row]["figures"][figure]["least"]
    text = number_text(least) if unit == "µs" else f"{least:,.0f}"
    return f"{text} {unit}".strip()


def chaos_figure(name: str, report: str) -> str:
    scenarios, figure = CHAOS_FIGURES[name]
    total = 0
    for scenario in scenarios:
        (seen,) = re.findall(rf"(?m)^\| {re.escape(scenario)} \| (.*?) \|", report)
        total += int(dict(item.split(": ") for item in seen.split("; "))[figure].replace(",", ""))
    return f"{total:,}"


def _section(name: str, benchmark: dict[str, Any]) -> str:
    image = f"\n\n![{benchmark['title']}](images/benchmark-{name}.svg)" if name in PLOTS else ""
    return table_of_summary(name, benchmark) + image


def draw(name: str, benchmark: dict[str, Any], figure: str) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "ferrule", "svg.fonttype": "none"}  # the same data gives the same file
    from matplotlib import pyplot

    rows = [row for row in benchmark["rows"] if not isinstance(row["figures"][figure], str)]
    names = [row["name"] for row in rows]
    values = [row["figures"][figure]["median"] for row in rows]
    colours = ["#2563eb" if name.startswith("ferrule") else "#9ca3af" for name in names]
    chart, axes = pyplot.subplots(figsize=(9, 0.6 + 0.32 * len(rows)), layout="constrained")
    bars = axes.barh(names, values, color=colours)
    axes.bar_label(bars, labels=[number_text(value) for value in values], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.tick_params(labelsize=8)
    axes.set_title(benchmark["title"], fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    chart.savefig(IMAGES / f"benchmark-{name}.svg", metadata={"Date": None})
    pyplot.close(chart)


def main() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    chaos = CHAOS.read_text(encoding="utf-8")
    is_check = "--check" in sys.argv[1:]
    for path in (PAGE, README):
        text = path.read_text(encoding="utf-8")
        filled = fill(text, data, chaos)
        if is_check and filled != text:
            sys.exit(f"{path.name} does not agree with {DATA.name} and {CHAOS.name}: run `make docs`.")
        path.write_text(filled, encoding="utf-8")
    if not is_check:
        for name, figure in PLOTS.items():
            if name in data["benchmarks"]:
                draw(name, data["benchmarks"][name], figure)


if __name__ == "__main__":
    main()
