"""Timeouts and retries for models."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from ferrule.core.aio import backoff_delay
from ferrule.core.model import Model, ModelReply, ModelRequest, ModelWrapper, TextSink
from ferrule.errors import ModelUnavailable, SetupError

logger = logging.getLogger("ferrule.models")


async def close_model(model: Model) -> None:
    """Release what the model holds, if it has an `aclose`."""
    close = getattr(model, "aclose", None)
    if close is not None:
        await close()


def wait_after(
    failure: ModelUnavailable,
    attempt: int,
    first_wait: float,
    max_wait: float,
    jitter: Callable[[], float] = random.random,
) -> float:
    """Return the seconds until the next attempt: as the server requested, else twice as long each time, with jitter."""
    if failure.retry_after is not None:
        return max(failure.retry_after, 0.0)
    return backoff_delay(attempt, first=first_wait, longest=max_wait, jitter=jitter)


class RetryingModel(ModelWrapper):
    """A model with a timeout for each answer, and further attempts after temporary failures.

    Between attempts it waits as long as the server requested, else twice as long each time, with jitter. If a server
    requests more than `max_wait`, the failure is raised immediately. Once text was passed to `on_text` there is no
    further attempt: text that was read cannot be taken back.
    """

    def __init__(
        self,
        model: Model,
        *,
        timeout: float = 300.0,
        attempts: int = 4,
        first_wait: float = 0.5,
        max_wait: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if not (timeout > 0 and attempts >= 1):
            raise SetupError(
                f"A model needs a timeout above 0 and at least 1 attempt, not {timeout!r} and {attempts!r}."
            )
        super().__init__(model)
        self.timeout = timeout
        self.attempts = attempts
        self._first_wait, self._max_wait = first_wait, max_wait
        self._sleep, self._jitter = sleep, jitter

    async def generate(self, request: ModelRequest | str, on_text: TextSink | None = None) -> ModelReply:
        request = ModelRequest.of(request)
        sink = None if on_text is None else _TextDetector(on_text)
        attempt = 1
        while True:
            try:
                return await self._generate_once(request, sink)
            except ModelUnavailable as failure:
                wait = wait_after(failure, attempt, self._first_wait, self._max_wait, self._jitter)
                if attempt >= self.attempts or wait > self._max_wait or not (sink is None or sink.restart()):
                    raise
                logger.warning(
                    "model=<%s>, error=<%s> | trying again in %.1f s, attempt %d of %d",
                    self.name,
                    failure,
                    wait,
                    attempt + 1,
                    self.attempts,
                )
            await self._sleep(wait)
            attempt += 1

    async def _generate_once(self, request: ModelRequest, on_text: TextSink | None) -> ModelReply:
        try:
            async with asyncio.timeout(self.timeout) as limit:
                return await self.model.generate(request, on_text)
        except TimeoutError:
            if not limit.expired():  # raised by the model itself
                raise
            raise ModelUnavailable(f"Model {self.name!r} did not answer within {self.timeout:g} s.") from None


class _TextDetector:
    """Passes text on, and knows whether there was any."""

    def __init__(self, on_text: TextSink) -> None:
        self._on_text = on_text
        self._has_text = False

    def __call__(self, text: str) -> None:
        self._has_text = True
        self._on_text(text)

    def restart(self) -> bool:
        """Return whether another attempt may pass on its text: none was sent, or its receiver can take it back."""
        if self._has_text:
            restart = getattr(self._on_text, "restart", None)
            self._has_text = restart is None or not restart()
        return not self._has_text
