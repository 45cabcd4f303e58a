"""Several candidates at once: to take the first good answer, or all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from ferrule.hub.answer import Attempt, Ending
from ferrule.hub.extra_calls import ExtraCalls
from ferrule.hub.pace import Pace
from ferrule.hub.runners import Runners

Run: TypeAlias = Callable[[Attempt], Coroutine[Any, Any, Ending]]

TIMES_AS_LONG = 2.0


async def race(attempts: Sequence[Attempt], run: Run, pace: Pace, extra: ExtraCalls) -> Ending | None:
    """The first that settles the job; None when nobody does. The others have ended by then.

    The next racer starts when one has failed, or, as far as the budget goes, when the first takes longer than it
    usually does.
    """
    extra.earn()
    waiting = deque(attempts)
    async with Runners() as runners:
        racers = [runners.start(run(waiting.popleft()))]
        pause: asyncio.Task[None] | None = runners.start(pace.pause(attempts[0].candidate))
        while racers:
            await asyncio.wait([*racers, pause] if pause else racers, return_when=asyncio.FIRST_COMPLETED)
            ended = [racer for racer in racers if racer.done()]
            for racer in ended:
                if racer.result().settles_it:
                    return racer.result()
            racers = [racer for racer in racers if racer not in ended]
            racers += [runners.start(run(waiting.popleft())) for _ in range(min(len(ended), len(waiting)))]
            if pause is not None and pause.done():
                pause = None
                if waiting and extra.take():
                    racers.append(runners.start(run(waiting.popleft())))
                    pause = runners.start(pace.pause(attempts[0].candidate))
    return None


async def gather(attempts: Sequence[Attempt], run: Run, patience: float) -> tuple[list[Ending], list[Attempt]]:
    """What all of them answered, in their order, and those that were stopped because the others had waited enough."""
    clock = asyncio.get_running_loop().time
    began, until = clock(), None
    async with Runners() as runners:
        tasks = [runners.start(run(attempt)) for attempt in attempts]
        while running := [task for task in tasks if not task.done()]:
            if until is None and any(task.done() and task.result().is_answer for task in tasks):
                until = clock() + max(patience, TIMES_AS_LONG * (clock() - began))
            left = None if until is None else until - clock()
            if left is not None and left <= 0:
                break
            await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        endings = [task.result() for task in tasks if task.done()]
        stopped = [attempt for attempt, task in zip(attempts, tasks, strict=True) if not task.done()]
    return endings, stopped
