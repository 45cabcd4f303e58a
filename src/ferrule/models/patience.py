"""Waiting for a model, and asking again when it may answer later."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from ferrule.errors import ModelUnavailable, SetupError
from ferrule.models.closing import close_model
from ferrule.models.model import Model, ModelReply, ModelRequest, TextSink

logger = logging.getLogger("ferrule.models")


class PatientModel:
    """A model with a time-out for each answer and further attempts after failures that may pass.

    Between attempts it waits as long as the server asked for, else twice as long each time, with jitter. A server that
    asks for more than `longest_wait` is not waited for. Once text was handed on there is no further attempt: nobody
    can take back what was read.
    """

    def __init__(
        self,
        model: Model,
        *,
        timeout: float = 300.0,
        attempts: int = 4,
        first_wait: float = 0.5,
        longest_wait: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if not (timeout > 0 and attempts >= 1):
            raise SetupError(
                f"A model needs a timeout above 0 and at least 1 attempt, not {timeout!r} and {attempts!r}"
            )
        self.model = model
        self.timeout = timeout
        self.attempts = attempts
        self._first_wait, self._longest_wait = first_wait, longest_wait
        self._sleep, self._jitter = sleep, jitter

    @property
    def name(self) -> str:
        return self.model.name

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        told = None if on_text is None else _Told(on_text)
        attempt = 1
        while True:
            try:
                return await self._in_time(request, told)
            except ModelUnavailable as failure:
                wait = self._wait_after(failure, attempt)
                if attempt >= self.attempts or wait > self._longest_wait or (told is not None and told.any):
                    raise
                logger.warning(
                    "model=<%s>, attempt=<%d>, wait=<%.2f>, error=<%s> | asking again",
                    self.name,
                    attempt,
                    wait,
                    failure,
                )
            await self._sleep(wait)
            attempt += 1

    async def aclose(self) -> None:
        await close_model(self.model)

    async def _in_time(self, request: ModelRequest, on_text: TextSink | None) -> ModelReply:
        try:
            async with asyncio.timeout(self.timeout) as limit:
                return await self.model.generate(request, on_text)
        except TimeoutError:
            if not limit.expired():  # somebody else's
                raise
            raise ModelUnavailable(f"Model {self.name!r} did not answer within {self.timeout:g} s.") from None

    def _wait_after(self, failure: ModelUnavailable, attempt: int) -> float:
        backoff = min(self._first_wait * 2.0 ** (attempt - 1), self._longest_wait) * (0.5 + self._jitter() / 2)
        return backoff if failure.retry_after is None else max(failure.retry_after, 0.0)


class _Told:
    """Hands text on, and knows whether there was any."""

    def __init__(self, on_text: TextSink) -> None:
        self._on_text = on_text
        self.any = False

    def __call__(self, text: str) -> None:
        self.any = True
        self._on_text(text)
