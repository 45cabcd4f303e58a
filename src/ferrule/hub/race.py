"""Several candidates running concurrently: to take the first good answer, or all of them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from math import ceil
from typing import Any, TypeAlias

from ferrule.core.aio import TaskScope, finish_despite_cancellation
from ferrule.core.call import ToolExecutionResult
from ferrule.engine import ToolEngine
from ferrule.errors import StoreError
from ferrule.hub.candidates import CandidateCall, CandidateKey, ToolCandidate

CallCandidate: TypeAlias = Callable[[CandidateCall], Coroutine[Any, Any, CandidateCall]]
"""Makes a call, and returns it with its result."""

logger = logging.getLogger("ferrule.hub")

GATHER_FACTOR = 2.0
"""When answers are combined, the others have at least this many times as long as the first answer took."""
MAX_LATENCIES = 100
MAX_RECORDS_READ = 50
MIN_LATENCY = 0.005
"""Seconds; a shorter pause says more about the event loop than about the tool."""


class ExtraCallBudget:
    """A budget for calls that would not be needed if the first candidate were fast.

    Every race earns a share of such a call, up to a small stock. A tool that becomes slow thus makes the load grow by
    that share, and not by the number of its candidates. It is a token bucket that is filled by races, not by time.
    """

    __slots__ = ("_max", "_share", "_stock")

    def __init__(self, *, share: float, burst: int) -> None:
        self._share, self._max = share, float(burst)
        self._stock = float(burst)

    def add_allowance(self) -> None:
        self._stock = min(self._stock + self._share, self._max)

    def try_use(self) -> bool:
        """Return whether one more extra call may be made, and count it."""
        if self._stock < 1 - 1e-9:  # five times 0.2 is one
            return False
        self._stock -= 1
        return True


class LatencyTracker:
    """The p95 of each candidate's time when it succeeds.

    The engine's statistics count a tool of one id together whatever its source and action, and with the calls that
    failed or lost a race. Here only successes of the very candidate count: first those in the records, which are read
    once and only if they matter, then successes of calls that the hub makes itself.
    """

    def __init__(self, engine: ToolEngine, *, default: float) -> None:
        self._engine, self._default = engine, default
        self._times: dict[CandidateKey, deque[float]] = {}
        self._loaded: set[CandidateKey] = set()

    def add(self, candidate: ToolCandidate, result: ToolExecutionResult) -> None:
        """Learn from a call that succeeded."""
        if result.execution_time > 0:  # else it came from the cache
            self._times.setdefault(candidate.key, deque(maxlen=MAX_LATENCIES)).append(result.execution_time)

    async def wait_usual_time(self, candidate: ToolCandidate) -> None:
        """Wait as long as this candidate usually takes."""
        p95 = self._p95(candidate)
        if p95 is not None:
            await asyncio.sleep(p95)
            return
        # Most tools are done within the default: their records need not be read.
        await asyncio.sleep(self._default)
        await self._load_recorded_times(candidate)
        await asyncio.sleep((self._p95(candidate) or 0.0) - self._default)

    def _p95(self, candidate: ToolCandidate) -> float | None:
        times = sorted(self._times.get(candidate.key, ()))
        return max(times[ceil(0.95 * len(times)) - 1], MIN_LATENCY) if times else None

    async def _load_recorded_times(self, candidate: ToolCandidate) -> None:
        if candidate.key in self._loaded:
            return
        self._loaded.add(candidate.key)
        query = self._engine.query_call_records(
            tool_name=candidate.name, action=candidate.capability.name, status="success", limit=MAX_RECORDS_READ
        )
        try:  # to its end, or else its thread could outlive the race, and even the store
            records = await finish_despite_cancellation(query)
        except StoreError as error:
            logger.warning("candidate=<%s> | its records cannot be read: %s", candidate.label, error)
            return
        times = [r.execution_time for r in records if r.source == candidate.source and r.execution_time > 0]
        if times:
            observed = self._times.get(candidate.key, ())
            self._times[candidate.key] = deque((*reversed(times), *observed), maxlen=MAX_LATENCIES)


async def race(
    calls: Sequence[CandidateCall],
    call: CallCandidate,
    latencies: LatencyTracker,
    budget: ExtraCallBudget,
    *,
    together: bool,
) -> CandidateCall | None:
    """Return the first result that ends the job, or None. All other calls have ended by then.

    All start `together`, or the next candidate starts when one has failed or, as far as the budget goes, when the first
    takes longer than it usually does.
    """
    waiting = deque(calls)
    async with TaskScope() as tasks:
        racers = [tasks.start(call(waiting.popleft())) for _ in range(len(calls) if together else 1)]
        pause: asyncio.Task[None] | None = None
        if not together:
            budget.add_allowance()
            pause = tasks.start(latencies.wait_usual_time(calls[0].candidate))
        while racers:
            await asyncio.wait([*racers, pause] if pause else racers, return_when=asyncio.FIRST_COMPLETED)
            ended = [racer for racer in racers if racer.done()]
            for racer in ended:
                if racer.result().is_final:
                    return racer.result()
            racers = [racer for racer in racers if racer not in ended]
            racers += [tasks.start(call(waiting.popleft())) for _ in range(min(len(ended), len(waiting)))]
            if pause is not None and pause.done():
                pause = None
                if waiting and budget.try_use():
                    racers.append(tasks.start(call(waiting.popleft())))
                    pause = tasks.start(latencies.wait_usual_time(calls[0].candidate))
    return None


async def gather_results(
    calls: Sequence[CandidateCall], call: CallCandidate, timeout: float
) -> tuple[list[CandidateCall], list[CandidateCall]]:
    """Return the results of all calls that ended, in the order of the calls, and the calls that were stopped.

    After the first answer the others have `timeout` seconds, or twice as long as the first one took if that is more.
    """
    clock = asyncio.get_running_loop().time
    start, until = clock(), None
    async with TaskScope() as scope:
        tasks = [scope.start(call(each)) for each in calls]
        while running := [task for task in tasks if not task.done()]:
            if until is None and any(task.done() and task.result().is_answer for task in tasks):
                until = clock() + max(timeout, GATHER_FACTOR * (clock() - start))
            remaining = None if until is None else until - clock()
            if remaining is not None and remaining <= 0:
                break
            await asyncio.wait(running, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        results = [task.result() for task in tasks if task.done()]
        stopped = [each for each, task in zip(calls, tasks, strict=True) if not task.done()]
    return results, stopped
