"""Why a call got no place, and what its caller can do about it."""

from __future__ import annotations

from typing import Final

from ferrule.concurrency.config import ConcurrencyConfig
from ferrule.errors import Rejected

CONCURRENCY_LIMIT: Final = "concurrency_limit"
QUEUE_FULL: Final = "queue_full"
QUEUE_TIMEOUT: Final = "queue_timeout"
RATE_LIMIT: Final = "rate_limit"
CLOSED: Final = "closed"


def refusal(reason: str, bucket: str, config: ConcurrencyConfig, timeout: float) -> Rejected:
    no_place = f"No place for a call in bucket {bucket!r} ({_limits(bucket, config)})"
    messages = {
        CONCURRENCY_LIMIT: f"{no_place}, and nobody may wait for one. Call again when another call has ended.",
        QUEUE_FULL: f"{no_place}, and the queue of {config.queue_size} is full. Call again later.",
        QUEUE_TIMEOUT: f"{no_place} within {timeout:g} s. Call again later, with fewer calls at once.",
        CLOSED: f"{no_place} before closing: no more calls are started here. Call again after a restart.",
    }
    return Rejected(messages[reason], reason=reason, bucket=bucket)


def rate_limited(bucket: str, per_minute: int, retry_after: float) -> Rejected:
    return Rejected(
        f"Bucket {bucket!r} is limited to {_calls(per_minute)} per minute. Call again in {retry_after:.1f} s.",
        reason=RATE_LIMIT,
        bucket=bucket,
        retry_after=retry_after,
    )


def _limits(bucket: str, config: ConcurrencyConfig) -> str:
    own = config.bucket_limits.get(bucket)
    if own is None:
        return f"{_calls(config.max_concurrent)} at once"
    return f"{_calls(own)} at once in this bucket, {config.max_concurrent} in all"


def _calls(number: int) -> str:
    return "1 call" if number == 1 else f"{number} calls"
