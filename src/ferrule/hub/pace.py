"""How long candidates take when all goes well.

The engine's statistics count a tool of one id together whatever its source and action, and with the calls that
failed or lost a race. Here only successes of the very candidate count: first those in the records, which are asked
for once and only if the answer matters, then those the hub sees itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from math import ceil

from ferrule.call import ToolExecutionResult
from ferrule.engine import ToolEngine
from ferrule.errors import StoreError
from ferrule.hub.candidate import CandidateKey, ToolCandidate
from ferrule.hub.runners import to_the_end
from ferrule.store import ToolCallRecord

logger = logging.getLogger("ferrule.hub")

REMEMBERED = 100
ASKED_FOR = 50
SHORTEST = 0.005
"""Seconds; a shorter pause says more about the event loop than about the tool."""


class Pace:
    """The p95 of each candidate's time."""

    def __init__(self, engine: ToolEngine, *, unknown: float) -> None:
        self._engine, self._unknown = engine, unknown
        self._times: dict[CandidateKey, deque[float]] = {}
        self._asked: set[CandidateKey] = set()

    def note(self, candidate: ToolCandidate, result: ToolExecutionResult) -> None:
        """Learn from a call that succeeded."""
        if result.execution_time > 0:  # else it was remembered, not run
            self._times.setdefault(candidate.key, deque(maxlen=REMEMBERED)).append(result.execution_time)

    async def pause(self, candidate: ToolCandidate) -> None:
        """Wait as long as this candidate usually takes."""
        p95 = self._p95(candidate)
        if p95 is not None:
            await asyncio.sleep(p95)
            return
        # Most tools are done within the default: their records need not be read.
        await asyncio.sleep(self._unknown)
        await self._learn(candidate)
        await asyncio.sleep((self._p95(candidate) or 0.0) - self._unknown)

    def _p95(self, candidate: ToolCandidate) -> float | None:
        times = sorted(self._times.get(candidate.key, ()))
        return max(times[ceil(0.95 * len(times)) - 1], SHORTEST) if times else None

    async def _learn(self, candidate: ToolCandidate) -> None:
        if candidate.key in self._asked:
            return
        self._asked.add(candidate.key)
        records = await self._recorded(candidate)
        times = [r.execution_time for r in records if r.source == candidate.source and r.execution_time > 0]
        if times:
            seen = self._times.get(candidate.key, ())
            self._times[candidate.key] = deque((*reversed(times), *seen), maxlen=REMEMBERED)

    async def _recorded(self, candidate: ToolCandidate) -> Sequence[ToolCallRecord]:
        question = self._engine.query_call_records(
            tool_name=candidate.name, action=candidate.capability.name, status="success", limit=ASKED_FOR
        )
        try:
            return await to_the_end(question)  # else its thread could outlive the race, and even the store
        except StoreError as error:
            logger.warning("candidate=<%s> | its records cannot be read: %s", candidate.label, error)
            return ()
