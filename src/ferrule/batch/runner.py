"""Running a batch: tasks in, trajectories out, each task exactly once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from ferrule.batch.backends import BatchBackend
from ferrule.batch.directory import BatchDirectory
from ferrule.batch.tasks import BatchTask
from ferrule.batch.waiting_model import BatchInterrupted, WaitingModel
from ferrule.errors import SetupError

READ_SIZE: Final = 128
"""Tasks that are read at a time."""
RATE_SAMPLES: Final = 60
DEFAULT_CONCURRENCY: Final = 8


@dataclass(slots=True, kw_only=True)
class BatchProgress:
    """How far a batch is."""

    total: int | None = None
    """None while it is not known: the tasks come from a pipe."""
    finished_before: int = 0
    """Tasks that an earlier process had finished."""
    finished: int = 0
    """By this process."""
    duplicates: int = 0
    running: int = 0
    states: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """Tasks without an answer, by class of the reason."""
    retries: Counter[str] = field(default_factory=Counter)
    """Requests to the model that were sent again, by class of error."""
    cost: float = 0.0
    """Of all tasks of the batch, as far as prices are known."""
    started: float = field(default_factory=time.monotonic)
    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_SAMPLES), repr=False)

    @property
    def done(self) -> int:
        return self.finished_before + self.finished + self.duplicates

    @property
    def rate(self) -> float:
        """Return the tasks per second of the last minute."""
        first_time, first = self.samples[0] if self.samples else (self.started, 0)
        seconds = time.monotonic() - first_time
        return (self.finished - first) / seconds if seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        if self.total is None or not self.rate:
            return None
        return max(0.0, self.total - self.done) / self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """How a run of a batch ended."""

    progress: BatchProgress
    summary: dict[str, Any]
    stopped: str = ""
    """Why it stopped before all tasks were done; empty: they are done."""


class Batch:
    """Works through tasks with a back end, and writes their trajectories into a folder."""

    def __init__(
        self,
        directory: BatchDirectory,
        backend: BatchBackend,
        *,
        model: WaitingModel | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        budget: float | None = None,
        on_progress: Callable[[BatchProgress], None] | None = None,
    ) -> None:
        """`directory` is open. `budget` is the most that all tasks of the batch may cost; `model` is asked for it."""
        if concurrency < 1:
            raise SetupError(f"The concurrency must be at least 1, not {concurrency!r}.")
        self._directory, self._backend, self._model = directory, backend, model
        self._concurrency, self._on_progress = concurrency, on_progress
        self._budget = budget
        self._running: set[asyncio.Task[None]] = set()
        self._stop_reason = ""
        self._wake = asyncio.Event()
        self._error: BaseException | None = None
        self.progress = BatchProgress()

    def stop(self, reason: str) -> None:
        """Take no further task. Tasks in progress are finished."""
        self._stop_reason = self._stop_reason or reason
        self._wake.set()

    def interrupt(self, reason: str) -> None:
        """Stop now: tasks in progress continue when the batch is run again."""
        self.stop(reason)
        for task in self._running:
            if task is not asyncio.current_task():
                task.cancel()

    async def run(self, tasks: Iterable[BatchTask], *, total: int | None = None) -> BatchResult:
        """Work through the tasks that are not finished yet."""
        self.progress.total = total
        self.progress.cost = self._directory.total_cost
        if self._model is not None:
            self._model.on_interrupt = self.interrupt
            self._model.cost = self.progress.cost
            self._model.max_cost = self._budget
        self._stop_without_budget()
        watcher = asyncio.create_task(self._report_regularly())
        try:
            async for task, may_exist in self._take_tasks(tasks):
                while len(self._running) >= self._concurrency and not self._stop_reason:
                    self._wake.clear()
                    await self._wake.wait()
                if self._stop_reason:
                    break
                name = f"ferrule-batch-{task.id}"
                running = asyncio.create_task(self._run_task(task, may_exist=may_exist), name=name)
                self._running.add(running)
                running.add_done_callback(self._on_task_done)
            await self._wait_for_running()
        except BaseException:
            self.interrupt("stopped by an error")
            await self._wait_for_running()
            raise
        finally:
            watcher.cancel()
        if self._error is not None:
            raise self._error
        self._report()
        settings = {name: value for name, value in self._directory.settings.items() if name != "created_at"}
        summary = self._directory.write_summary(
            {**settings, "is_complete": not self._stop_reason, "stopped": self._stop_reason or None}
        )
        return BatchResult(progress=self.progress, summary=summary, stopped=self._stop_reason)

    # Steps

    def _stop_without_budget(self) -> None:
        if self._budget is not None and self.progress.cost >= self._budget:
            self.interrupt(f"the budget of {self._budget:g} is spent")

    async def _take_tasks(self, tasks: Iterable[BatchTask]) -> AsyncIterator[tuple[BatchTask, bool]]:
        """Yield unfinished tasks, each with whether an earlier process may have started it."""
        source = iter(tasks)
        while not self._stop_reason:
            chunk = await asyncio.to_thread(lambda: list(islice(source, READ_SIZE)))
            if not chunk:
                return
            open_tasks, finished, duplicates = self._directory.claim_tasks(chunk)
            self.progress.finished_before += finished
            self.progress.duplicates += duplicates
            for entry in open_tasks:
                yield entry

    def _on_task_done(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self._wake.set()
        if not running.cancelled() and (error := running.exception()) is not None:
            self._error = self._error or error
            self.interrupt(f"stopped by an error: {error}")

    async def _run_task(self, task: BatchTask, *, may_exist: bool) -> None:
        run_id = f"{self._directory.settings['batch_id']}-{task.id}"
        try:
            trajectory = await self._backend.run_task(task, run_id, may_exist=may_exist)
        except BatchInterrupted as error:
            self.interrupt(str(error))
            return
        self._directory.append(trajectory)
        progress = self.progress
        progress.finished += 1
        progress.states[trajectory["state"]] += 1
        if trajectory.get("failure"):
            progress.failures[trajectory["failure"]] += 1
        progress.cost += trajectory.get("cost") or 0.0
        self._stop_without_budget()

    async def _wait_for_running(self) -> None:
        while self._running:
            await asyncio.wait(set(self._running))

    async def _report_regularly(self) -> None:
        while True:
            self._report()
            await asyncio.sleep(1.0)
            await asyncio.to_thread(self._directory.sync)
            self.progress.samples.append((time.monotonic(), self.progress.finished))

    def _report(self) -> None:
        self.progress.running = len(self._running)
        if self._model is not None:
            self.progress.retries = self._model.retries
        if self._on_progress is not None:
            self._on_progress(self.progress)
