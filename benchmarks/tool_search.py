"""Measure how well tools are found: `python benchmarks/tool_search.py`.

It needs the descriptions of 1,998 functions and 167 actions of MCP servers in `shared/data` beside the project. The
questions in `tool_questions.tsv` are ours, half of them Chinese, all about tools that are described in English:

- a *request* names the job in other words than the description: "Compress a file with gzip"
- a *fresh request* is the same, and was written when everything else was finished
- a *new request* is the same, written later about other tools drawn at random, and never used to improve the search
- a *situation* only implies it, often without a word of the description: "Squeeze report.txt into a .gz"

The functions were drawn at random before any search was made, without those that nobody can ask for. Where a search
that missed brought up another tool that does the job as well, this one is right too. The weights were chosen on every
other pair of questions (`tuned`); but misses of the others (`held out`) were looked at too, and the Chinese words of
`catalog/search/translation.py` were chosen with all questions but fresh and new ones in mind. So these tell most.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.search import ActionHit, RegistryIndex
from ferrule.catalog.search.vectors import has_encoder
from ferrule.core.spec import Tool

QUESTIONS = Path(__file__).with_name("tool_questions.tsv")
TOP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolQuestion:
    """A question and the tools that answer it."""

    kind: str
    text: str
    tools: frozenset[str]
    is_held_out: bool

    @property
    def language(self) -> str:
        return "English" if self.text.isascii() else "Chinese"


def read_questions() -> list[ToolQuestion]:
    rows = [line.split("\t") for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    return [
        ToolQuestion(kind=kind, text=text, tools=frozenset(tools.split()), is_held_out=number // 2 % 2 == 1)
        for number, (kind, text, tools) in enumerate(rows)
    ]


async def measure_hits(tools: Sequence[Tool], *, by_meaning: bool) -> dict[ToolQuestion, bool]:
    """For each question, whether a right tool is among the first five."""
    index = RegistryIndex(ToolRegistry(tools))
    hits = {}
    for question in read_questions():
        while by_meaning and not index.uses_vectors(question.text):
            await index.prepare(question.text)
        best = {_action_name(hit) for hit in index.search_actions(question.text, TOP)}
        hits[question] = bool(best & question.tools)
    return hits


def _action_name(hit: ActionHit) -> str:
    return f"{hit.tool.id}/{hit.action}" if hit.tool.source == "mcps" else hit.tool.id


def share(hits: dict[ToolQuestion, bool], kind: str, **conditions: object) -> float:
    """The share of the questions of a kind that were answered."""
    outcomes = [
        hit
        for question, hit in hits.items()
        if question.kind == kind and all(getattr(question, name) == value for name, value in conditions.items())
    ]
    return sum(outcomes) / len(outcomes)


async def measure_times(tools: Sequence[Tool], number: int, *, by_meaning: bool) -> list[float]:
    """Milliseconds of each query among so many tools, with the encoding of the question."""
    from dataclasses import replace

    copies = [
        replace(tool, spec=replace(tool.spec, tool_id=f"{tool.id}_{copy}", name=f"{tool.spec.name} {copy}"))
        for copy in range(number // len(tools) + 1)
        for tool in tools
    ]
    index = RegistryIndex(ToolRegistry(copies[:number]))
    texts = [question.text for question in read_questions()]
    index.search(texts[0])
    while by_meaning and not index.uses_vectors(texts[0]):
        await index.prepare(texts[0])
    times = []
    for text in texts[1:]:
        start = time.perf_counter()
        if by_meaning:
            await index.prepare(text)
        index.search_actions(text, TOP)
        times.append((time.perf_counter() - start) * 1000)
    return sorted(times)


async def main() -> None:
    from tests.catalog.search.searchable_tools import function_docs, mcp_servers

    functions = function_docs()
    tools = [*functions, *mcp_servers()]
    for by_meaning in (False, True) if has_encoder() else (False,):
        hits = await measure_hits(tools, by_meaning=by_meaning)
        print(f"{'words and meaning' if by_meaning else 'words alone'}: a right tool is among the first {TOP}")
        for kind in ("request", "fresh request", "new request", "situation"):
            parts: dict[str, dict[str, object]] = {
                "tuned": {"is_held_out": False},
                "held out": {"is_held_out": True},
                "English": {"language": "English"},
                "Chinese": {"language": "Chinese"},
                "all": {},
            }
            print(f"  {kind}s: " + ", ".join(f"{name} {share(hits, kind, **c):.1%}" for name, c in parts.items()))
        if "--times" in sys.argv:
            times = await measure_times(functions, 10_000, by_meaning=by_meaning)
            p95 = times[len(times) * 95 // 100]
            print(f"  10,000 tools: {times[len(times) // 2]:.1f} ms per query, 95th percentile {p95:.1f} ms")
        if "--misses" in sys.argv:
            for question in (question for question, hit in hits.items() if not hit and not question.is_held_out):
                print(f"    {question.text} -> {' '.join(question.tools)}")


if __name__ == "__main__":
    asyncio.run(main())
