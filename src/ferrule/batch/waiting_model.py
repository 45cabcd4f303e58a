"""A model for batches: it waits for a server that is down or overloaded, and traces the requests of each task.

A rate limit, a server error, a timeout or a server that is gone never costs a task: the request is sent again after a
wait that all tasks share, and the wait does not count as time of the task. Only when there was no reply at all for
`patience` seconds, the whole batch stops; its tasks continue next time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ClassVar, Final

from ferrule.agent.budget import RunBudget
from ferrule.core.messages import Message
from ferrule.core.model import Model, ModelReply, ModelRequest, ModelWrapper, TextSink
from ferrule.core.prices import ModelPrice
from ferrule.errors import FerruleError, ModelError, ModelRefused, ModelUnavailable, RequestTooLong, error_text
from ferrule.models.retry import RetryingModel, close_model, wait_after

logger = logging.getLogger("ferrule.batch")

DEFAULT_PATIENCE: Final = 3600.0
FIRST_WAIT: Final = 0.5
MAX_WAIT: Final = 30.0
_NO_ACCESS: Final = frozenset({401, 402, 429})
"""Refused for good: the key is wrong or has no credit left. (429 only where it is not a rate limit.)"""
_NOT_AVAILABLE: Final = frozenset({403, 404})


@dataclass(slots=True, kw_only=True)
class RequestTrace:
    """One request of a task to the model, and the reply."""

    request: ModelRequest
    messages: list[Message]
    """The messages at that time: the list of the caller grows."""
    reply: ModelReply | None = None
    at: float = 0.0
    seconds: float = 0.0
    attempts: int = 1


@dataclass(slots=True)
class TaskTrace:
    """What the model was asked for one task, and how that failed."""

    requests: list[RequestTrace] = field(default_factory=list)
    failure: str | None = None
    """The class of the error that ended the task."""

    current: ClassVar[ContextVar[TaskTrace | None]] = ContextVar("ferrule_task_trace", default=None)


class BatchInterrupted(FerruleError):
    """The batch must stop, and its tasks continue later: the model cannot be used now, or the budget is spent.

    Not a `ModelError`: that would end the run of the task for good.
    """


class WaitingModel(ModelWrapper):
    """Wraps the model of a batch; one object for all its tasks."""

    def __init__(
        self,
        model: Model,
        *,
        patience: float = DEFAULT_PATIENCE,
        price: ModelPrice | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        # Its own attempts would wait inside the time of a task.
        if isinstance(model, RetryingModel):
            model = RetryingModel(model.model, timeout=model.timeout, attempts=1)
        super().__init__(model)
        self._patience, self._sleep = patience, sleep
        self._price = price
        self._resume_at = 0.0
        self._failures, self._failed_at = 0, 0.0
        self._last_reply, self._has_replied = time.monotonic(), False
        self.retries: Counter[str] = Counter()
        """Requests that were sent again, by class of error."""
        self.cost: float = 0.0
        """The cost of all replies."""
        self.on_interrupt: Callable[[str], None] | None = None
        """Called when the batch cannot go on."""
        self.max_cost: float | None = None

    async def generate(self, request: ModelRequest | str, on_text: TextSink | None = None) -> ModelReply:
        request = ModelRequest.of(request)
        trace = TaskTrace.current.get()
        entry = RequestTrace(request=request, messages=list(request.messages), at=time.time())
        if trace is not None:
            trace.requests.append(entry)
        try:
            entry.reply = await self._generate_with_retries(request, on_text, entry)
        except ModelError as error:
            status = getattr(error.__cause__, "status_code", None)
            if status in _NO_ACCESS or (status in _NOT_AVAILABLE and not self._has_replied):
                self._interrupt(error_text(error))  # no other task would fare better
            if trace is not None:
                trace.failure = classify_failure(error)
            raise
        if self._price is not None:
            self.cost += self._price.cost_of(entry.reply.usage)
        return entry.reply

    async def aclose(self) -> None:
        await close_model(self.model)

    async def _generate_with_retries(
        self, request: ModelRequest, on_text: TextSink | None, entry: RequestTrace
    ) -> ModelReply:
        while True:
            if self.max_cost is not None and self.cost >= self.max_cost:
                self._interrupt("the budget is spent")
            while (wait := self._resume_at - time.monotonic()) > 0:
                self._exclude_time(wait)
                await self._sleep(wait)
            started = time.monotonic()
            try:
                reply = await self.model.generate(request, on_text)
            except ModelUnavailable as failure:
                self._schedule_retry(failure, started)
                self._exclude_time(time.monotonic() - started)
                entry.attempts += 1
                continue
            self._failures, self._last_reply, self._has_replied = 0, time.monotonic(), True
            entry.seconds = time.monotonic() - started
            return reply

    def _schedule_retry(self, failure: ModelUnavailable, started: float) -> None:
        """Let all tasks wait. Requests that failed together count as one failure."""
        kind = classify_failure(failure)
        self.retries[kind] += 1
        now = time.monotonic()
        if started >= self._failed_at:
            self._failures, self._failed_at = self._failures + 1, now
        if now - self._last_reply > self._patience:
            minutes = (now - self._last_reply) / 60
            self._interrupt(f"no reply for {minutes:.0f} min ({kind}: {error_text(failure)})")
        wait = wait_after(failure, self._failures, FIRST_WAIT, MAX_WAIT)
        self._resume_at = max(self._resume_at, now + wait)
        logger.info("model=<%s>, class=<%s>, wait=<%.2f> | sent again: %s", self.name, kind, wait, error_text(failure))

    def _interrupt(self, reason: str) -> None:
        if self.on_interrupt is not None:
            self.on_interrupt(reason)
        raise BatchInterrupted(reason)

    @staticmethod
    def _exclude_time(seconds: float) -> None:
        budget = RunBudget.current.get()
        if budget is not None:
            budget.exclude_time(seconds)


def classify_failure(error: BaseException) -> str:
    """Name the class of an error, so that failures of the same kind can be counted."""
    if isinstance(error, ModelUnavailable):
        status = getattr(error.__cause__, "status_code", None)
        if status == 429:
            return "rate_limit"
        if isinstance(status, int) and status >= 500:
            return "server_error"
        is_timeout = "did not answer within" in str(error) or "timed out" in str(error).casefold()
        return "timeout" if is_timeout else "unreachable"
    if isinstance(error, RequestTooLong):
        return "request_too_long"
    if isinstance(error, ModelRefused):
        return "model_refused"
    return "model_error" if isinstance(error, ModelError) else type(error).__name__
