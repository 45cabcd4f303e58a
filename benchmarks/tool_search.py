"""The benchmark `search`: how well tools are found by the questions of people.

It needs `shared/data` beside the project:

- the *shared* questions: what people asked of 70 real MCP servers with 527 actions, the steps they took, and the
  actions that they used. A question may need several: recall is the share of them that is found, averaged over the
  questions. The labels are a lower bound: other actions may do the job too. *By step* is the union of one search for
  each step.
- our *own* questions in `tool_questions.tsv`, half of them Chinese, about 1,998 functions and 167 actions of MCP
  servers that other people have described in English. A *request* names the job in other words than the description; a
  *situation* only implies it ("Squeeze report.txt into a .gz"). A question is answered if any right tool is found.

Each set has two halves, every other question in the order of the hashes of their texts: half A is for development, half
B is looked at only to report a result. (The Chinese words of `catalog/search/terms.py`, and the weights of the
fields of a tool, are older than these halves and were chosen with most of our own requests in view.)

`python benchmarks/tool_search.py --misses` prints the questions of half A that find too little, `--times` the costs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.interface import SamplesByVariant, Workload
from benchmarks.timing import print_rounds
from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.search import ActionHit, RegistryIndex
from ferrule.catalog.search.vectors import has_encoder
from ferrule.core.spec import Tool

OWN_QUESTIONS = Path(__file__).with_name("tool_questions.tsv")
DEPTHS = (5, 10, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolQuestion:
    """A question, and the tools that answer it."""

    kind: str
    """Such as `shared, whole` or `own, requests`."""
    text: str
    tools: frozenset[str]
    needs_all: bool
    """Whether all of the tools are needed, or any of them will do."""
    queries: tuple[str, ...]
    """What is searched for: the text, or its steps."""
    half: str = ""

    @property
    def language(self) -> str:
        return "English" if self.text.isascii() else "Chinese"

    def recall(self, found: Sequence[Sequence[str]], depth: int) -> float:
        """Return the share of the tools that are among the first of the lists found for the queries."""
        first = {name for names in found for name in names[:depth]}
        return len(first & self.tools) / len(self.tools) if self.needs_all else float(bool(first & self.tools))


def read_own_questions() -> list[ToolQuestion]:
    rows = [line.split("\t") for line in OWN_QUESTIONS.read_text(encoding="utf-8").splitlines()]
    kinds = {"situation": "own, situations"}  # requests were written at several times, which the file tells
    questions = [
        ToolQuestion(
            kind=kinds.get(kind, "own, requests"),
            text=text,
            tools=frozenset(tools.split()),
            needs_all=False,
            queries=(text,),
        )
        for kind, text, tools in rows
    ]
    return [
        half
        for kind in sorted({q.kind for q in questions})
        for half in _set_halves([q for q in questions if q.kind == kind])
    ]


def read_shared_questions() -> list[ToolQuestion]:
    """Return the shared questions, and then each of them again by step."""
    from tests.catalog.search.searchable_tools import DATA

    rows = map(json.loads, (DATA / "search/questions.jsonl").read_text(encoding="utf-8").splitlines())
    whole, by_step = [], []
    for row in rows:
        question = ToolQuestion(
            kind="shared, whole",
            text=row["question"],
            tools=frozenset(row["tools"]),
            needs_all=True,
            queries=(row["question"],),
        )
        whole.append(question)
        by_step.append(replace(question, kind="shared, by step", queries=tuple(row["steps"])))
    return [*_set_halves(whole), *_set_halves(by_step)]


def _set_halves(questions: Sequence[ToolQuestion]) -> list[ToolQuestion]:
    ordered = sorted(questions, key=lambda question: sha256(question.text.encode()).digest())
    return [replace(question, half="AB"[number % 2]) for number, question in enumerate(ordered)]


async def find(
    tools: Sequence[Tool], questions: Sequence[ToolQuestion], *, by_meaning: bool
) -> dict[ToolQuestion, list[list[str]]]:
    """Return the names of the first actions that each query of each question finds."""
    index = RegistryIndex(ToolRegistry(tools))
    found: dict[ToolQuestion, list[list[str]]] = {}
    for question in questions:
        for query in question.queries:
            while by_meaning and not index.uses_vectors(query):
                await index.prepare(query)
            hits = index.search_actions(query, max(DEPTHS))
            found.setdefault(question, []).append([_action_name(hit, question) for hit in hits])
    return found


def _action_name(hit: ActionHit, question: ToolQuestion) -> str:
    if hit.tool.source != "mcps" or question.needs_all:  # people named the actions only
        return hit.action
    return f"{hit.tool.id}/{hit.action}"


def recall(found: dict[ToolQuestion, list[list[str]]], depth: int, **conditions: object) -> float:
    """Return the mean recall of the questions that meet the conditions."""
    return mean(
        question.recall(lists, depth)
        for question, lists in found.items()
        if all(getattr(question, name) == value for name, value in conditions.items())
    )


def _methods() -> dict[str, bool]:
    return {"words": False} | ({"words and meaning": True} if has_encoder() else {})


async def measure_rounds(rounds: int, workload: Workload) -> list[SamplesByVariant]:
    """Return the recall of each set and half. It does not vary, so it is measured once."""
    from tests.catalog.search.searchable_tools import function_docs, mcp_servers, shared_servers

    sets = [
        (shared_servers(), read_shared_questions()),
        ([*function_docs(), *mcp_servers()], read_own_questions()),
    ]
    rows: dict[str, dict[str, float]] = {}
    for tools, questions in sets:
        for method, by_meaning in _methods().items():
            found = await find(tools, questions, by_meaning=by_meaning)
            for kind in dict.fromkeys(question.kind for question in questions):
                for half in "AB":
                    row = rows.setdefault(f"ferrule: {kind}, half {half}", {})
                    for depth in DEPTHS:
                        row[f"{method} {depth}"] = round(recall(found, depth, kind=kind, half=half), 3)
    return [{name: [dict(row)] for name, row in rows.items()}] * rounds


async def _print_times(number: int = 10_000) -> None:
    """Print the processor time of the questions among so many tools: on a busy machine, others wait for it too."""
    from tests.catalog.search.searchable_tools import function_docs

    tools = function_docs()
    copies = [
        replace(tool, spec=replace(tool.spec, tool_id=f"{tool.id}_{copy}", name=f"{tool.spec.name} {copy}"))
        for copy in range(number // len(tools) + 1)
        for tool in tools
    ]
    index = RegistryIndex(ToolRegistry(copies[:number]))
    start = time.process_time()
    index.search("anything")
    print(f"{number:,} tools are added in {time.process_time() - start:.2f} s of processor time")
    for method, by_meaning in _methods().items():
        while by_meaning and not index.uses_vectors("anything"):
            await index.prepare("anything")
        for kind, questions in (("own", read_own_questions()), ("shared", read_shared_questions())):
            encoding, ranking = [], []
            for question in questions:
                start = time.process_time()
                if by_meaning:
                    await index.prepare(question.queries[0])
                encoded = time.process_time()
                index.search_actions(question.queries[0], DEPTHS[0])
                encoding.append((encoded - start) * 1000)
                ranking.append((time.process_time() - encoded) * 1000)
            print(f"{kind} questions, {method}: ms of encoding {_in_short(encoding)}, of ranking {_in_short(ranking)}")


def _in_short(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(values) // 2]:.1f} (95 %: {ordered[len(values) * 95 // 100]:.1f})"


async def _print_misses() -> None:
    from tests.catalog.search.searchable_tools import shared_servers

    questions = [each for each in read_shared_questions() if each.half == "A"]
    found = await find(shared_servers(), questions, by_meaning=has_encoder())
    for question, lists in found.items():
        missed = question.tools - {name for names in lists for name in names[: DEPTHS[1]]}
        if missed and question.kind == "shared, whole":
            print(f"{question.text[:1000]}\n  missed: {sorted(missed)}\n  found: {lists[0][: DEPTHS[1]]}")


if __name__ == "__main__":
    if "--misses" in sys.argv:
        asyncio.run(_print_misses())
    elif "--times" in sys.argv:
        asyncio.run(_print_times())
    else:
        print_rounds(measure_rounds)
