"""The benchmark `memory`: does the failure memory of a run block calls that should be made?

All calls are legitimate, although some look like repeated failures: polling, reading what was just written, and calls
that fail until their cause is removed. A call that succeeds without a memory and has another result with it was blocked
wrongly.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from benchmarks.interface import Sample, SamplesByVariant, Workload
from ferrule import ToolEngine, ToolEngineConfig, ToolExecutionContext, ToolExecutionResult, tool
from ferrule.engine.resilience import BreakerConfig
from ferrule.errors import KNOWN_FAILURE
from ferrule.memory import RunMemory

Call: TypeAlias = tuple[str, dict[str, Any]]

WITH, WITHOUT = "with RunMemory", "without"
UNDECLARED = "with RunMemory, polling a tool that does not declare it"
CHUNK_SIZE = 250
"""Calls that one engine makes before the other continues, so that both run under the same load."""
SELECTORS = ("#buy", "a.stars", "h1", "table.prices td")


@dataclass(slots=True)
class _EngineRun:
    """An engine with the results and the cost of its calls."""

    engine: ToolEngine
    context: ToolExecutionContext
    results: list[ToolExecutionResult] = field(default_factory=list)
    cost: dict[str, float] = field(default_factory=lambda: {"cpu": 0.0, "own": 0.0, "wall": 0.0})


async def measure_memory(workload: Workload) -> SamplesByVariant:
    """Make the same calls with a memory and without; the two engines alternate."""
    calls = legitimate_calls(workload.memory_calls, Random(1))
    samples: SamplesByVariant = {WITH: [], WITHOUT: [], UNDECLARED: []}
    for _ in range(workload.samples):
        with_memory, without = await _sample(calls)
        with_memory["added"] = with_memory["own"] - without["own"]
        samples[WITH].append(with_memory)
        samples[WITHOUT].append(without)
        samples[UNDECLARED].append((await _sample(undeclared_polls(workload.memory_calls // 10)))[0])
    return samples


async def _sample(calls: Sequence[Call]) -> tuple[Sample, Sample]:
    async with AsyncExitStack() as stack:
        with_memory = await _start(stack, RunMemory())
        without = await _start(stack, None)
        for start in range(0, len(calls), CHUNK_SIZE):
            for run in (with_memory, without) if start // CHUNK_SIZE % 2 else (without, with_memory):
                await _make_calls(run, calls[start : start + CHUNK_SIZE])
    return _compare(with_memory, without), _compare(without, without)


async def _start(stack: AsyncExitStack, memory: RunMemory | None) -> _EngineRun:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
    # No circuit breaker: it would refuse calls too.
    config = ToolEngineConfig(auto_reload=False, breaker=BreakerConfig(threshold=0))
    engine = ToolEngine(config, store=f"sqlite:///{folder / 'calls.db'}")
    await stack.enter_async_context(engine)
    engine.register(*make_tools())
    return _EngineRun(engine, ToolExecutionContext(memory=memory, max_retries=0))


async def _make_calls(run: _EngineRun, calls: Sequence[Call]) -> None:
    gc.collect()
    wall, own, cpu = time.perf_counter(), time.thread_time(), time.process_time()
    for name, arguments in calls:
        run.results.append(await run.engine.execute(name, arguments, run.context))
    cost = run.cost
    cost["wall"] += time.perf_counter() - wall
    cost["own"] += time.thread_time() - own
    await run.engine.store.flush()
    cost["cpu"] += time.process_time() - cpu


def _compare(run: _EngineRun, reference: _EngineRun) -> Sample:
    results, expected = run.results, reference.results
    sample: Sample = {figure: seconds / len(results) for figure, seconds in run.cost.items()}
    return {
        **sample,
        "successes": sum(result.is_success for result in expected),
        "false_blocks": sum(_is_false_block(*pair) for pair in zip(results, expected, strict=True)),
        "refused": sum(result.error_type == KNOWN_FAILURE for result in results),
        "recalled": sum(bool(result.metadata.get("recalled")) for result in results),
    }


def _is_false_block(result: ToolExecutionResult, expected: ToolExecutionResult) -> bool:
    return expected.is_success and (result.is_success, result.output) != (True, expected.output)


class Browser:
    """A browser in which every second page lacks an element."""

    def __init__(self) -> None:
        self._pages = 0

    async def open(self, url: str) -> str:
        """Go to a page."""
        self._pages += 1
        return f"page {self._pages}"

    async def click(self, selector: str) -> str:
        """Click on an element."""
        if (SELECTORS.index(selector) + self._pages) % 2:
            raise ValueError(f"Selector {selector!r} not found")
        return "clicked"


def make_tools() -> list[Any]:
    """New tools that share some state."""
    notes: dict[str, str] = {}
    users: set[str] = set()
    polls: dict[str, int] = {}
    browser = Browser()

    def count_poll(key: str) -> int:
        polls[key] = polls.get(key, 0) + 1
        return polls[key]

    @tool(read_only=True, polling=True)
    async def await_build(build: int) -> str:
        """Get the progress of a build."""
        return f"{count_poll(f'build {build}') // 20} % done"

    @tool(read_only=True)
    async def deployment_status(name: str) -> str:
        """Get the state of a deployment, which changes rarely."""
        return "rolling out" if count_poll(name) % 50 else f"ready after {polls[name]} polls"

    @tool(read_only=True)
    async def queue_depth(queue: str) -> int:
        """Get the length of a queue. Its answer changes, but it does not declare `polling`."""
        return count_poll(queue) // 10

    @tool
    async def write_note(name: str, text: str) -> str:
        """Write a note."""
        notes[name] = text
        return f"{len(text)} characters written"

    @tool(read_only=True)
    async def read_note(name: str) -> str:
        """Read a note."""
        if name not in notes:
            raise FileNotFoundError(f"Note {name!r} not found")
        return notes[name]

    @tool(read_only=True)
    async def look_up(key: str) -> str:
        """Look up a constant."""
        return f"value of {key}"

    @tool
    async def open_page(url: str) -> str:
        """Go to a page."""
        return await browser.open(url)

    @tool
    async def click(selector: str) -> str:
        """Click on an element that not every page has."""
        return await browser.click(selector)

    @tool(read_only=True)
    async def fetch(url: str) -> str:
        """Fetch from a server that fails twice before it answers."""
        if count_poll(url) % 3:
            raise ConnectionError("503 Service Unavailable")
        return f"body of {url}"

    @tool
    async def log_in(user: str) -> str:
        """Log in."""
        users.add(user)
        return "welcome"

    @tool(read_only=True)
    async def read_mail(folder: str) -> str:
        """Read mail, which requires a login."""
        if not users:
            raise PermissionError("401 Unauthorized: log in first")
        return f"mail in {folder}"

    @tool
    async def log_out() -> str:
        """Log out."""
        users.clear()
        return "goodbye"

    return [
        *(await_build, deployment_status, queue_depth, write_note, read_note, look_up),
        *(Browser(), open_page, click, fetch, log_in, read_mail, log_out),
    ]


def legitimate_calls(number: int, random: Random) -> list[Call]:
    """At least `number` calls in episodes: half of the episodes one after the other, half of them interleaved."""
    share = max(1, number // 10)
    episodes: list[list[Call]] = [
        [("await_build", {"build": 7})] * share,
        [("deployment_status", {"name": "web"})] * share,
        *([("look_up", {"key": f"key {n}"})] for n in range(3 * share)),
        *([("look_up", {"key": f"common {n % 5}"})] * 5 for n in range(share // 5 + 1)),
        *(_note(n, random) for n in range(share // 3 + 1)),
        *(_pages("Browser__open", "Browser__click", n, random) for n in range(share // 10 + 1)),
        *(_pages("open_page", "click", n, random) for n in range(share // 10 + 1)),
        *([("fetch", {"url": f"https://example.com/{n}"})] * 3 for n in range(share // 10 + 1)),
        *(_mail(n) for n in range(share // 10 + 1)),
    ]
    random.shuffle(episodes)
    calls = [call for episode in episodes[::2] for call in episode]
    return [*calls, *_interleave(episodes[1::2], random)]


def undeclared_polls(number: int) -> list[Call]:
    """Calls that a memory cannot recognize as polling, because the tool does not declare it."""
    return [("queue_depth", {"queue": "orders"})] * number


def _note(number: int, random: Random) -> list[Call]:
    """A note that is read before it exists, then written, read several times, and written and read again."""
    name = f"note-{number}.txt"
    calls: list[Call] = [("read_note", {"name": name})]
    for version in range(2):
        calls.append(("write_note", {"name": name, "text": f"version {version} of {name}"}))
        calls += [("read_note", {"name": name})] * random.randint(1, 6)
    return calls


def _pages(open_page: str, click: str, number: int, random: Random) -> list[Call]:
    """An element that is missing on one page exists on the next."""
    calls: list[Call] = []
    for page in range(4):
        calls.append((open_page, {"url": f"https://shop.example/{number}/{page}"}))
        calls.append((click, {"selector": random.choice(SELECTORS)}))
    return calls


def _mail(number: int) -> list[Call]:
    """Reading mail fails until the user logs in."""
    mail: Call = ("read_mail", {"folder": f"folder {number}"})
    return [("log_out", {}), mail, ("log_in", {"user": f"ada{number}"}), mail, mail]


def _interleave(episodes: list[list[Call]], random: Random) -> Iterator[Call]:
    """The calls of all episodes in random order, but in their own order within an episode."""
    turns = [number for number, episode in enumerate(episodes) for _ in episode]
    random.shuffle(turns)
    iterators = [iter(episode) for episode in episodes]
    for number in turns:
        yield next(iterators[number])
