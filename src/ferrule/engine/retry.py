"""When a failed call is tried again by itself, and after how long."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ferrule.call import ToolExecutionContext
from ferrule.errors import CallError, TimedOut
from ferrule.spec import Effects


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Back-off that doubles, with jitter so that many callers do not come back at once."""

    first_delay: float = 0.2
    max_delay: float = 10.0
    jitter: Callable[[], float] = random.random

    def may_retry(self, failure: CallError, effects: Effects, context: ToolExecutionContext, attempts: int) -> bool:
        """Only what may pass by itself, and only where twice does no harm."""
        return (
            failure.transient
            and effects.repeatable
            and not isinstance(failure, TimedOut)  # the call's whole time is used up
            and attempts + context.retry_count <= context.max_retries
        )

    def delay(self, failure: CallError, attempts: int) -> float:
        """Seconds to wait after so many attempts; a failure may say itself how long."""
        asked = failure.details.get("retry_after")
        if isinstance(asked, (int, float)):
            return max(float(asked), self.first_delay)
        backoff = min(self.first_delay * 2.0 ** (attempts - 1), self.max_delay)
        return backoff * (0.5 + self.jitter() / 2)
