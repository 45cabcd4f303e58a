"""The settings of slots and queues, and the metrics of a controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from ferrule.core.names import did_you_mean
from ferrule.errors import SetupError

Strategy: TypeAlias = Literal["fifo", "priority", "reject"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyConfig:
    """How many calls may run concurrently, and what happens to the others."""

    max_concurrent: int = 10
    queue_size: int = 100
    """How many calls may wait for a slot; one more is rejected."""
    default_timeout: float = 30.0
    """Seconds a call may wait for a slot unless it brings its own timeout; `math.inf` for no limit."""
    strategy: Strategy = "fifo"
    """`fifo`: in order of arrival. `priority`: higher priority first. `reject`: no call waits."""
    bucket_limits: Mapping[str, int] = field(default_factory=dict)
    """Calls that may run concurrently, per bucket; other buckets are only limited by `max_concurrent`."""
    rate_limits: Mapping[str, int] = field(default_factory=dict)
    """Calls that may start within any 60 seconds, per bucket."""
    adaptive_limits: Mapping[str, int] = field(default_factory=dict)
    """Buckets whose limit goes down while their service is overloaded, each with the least number of slots."""
    adaptive_latency: Mapping[str, float] = field(default_factory=dict)
    """Seconds per adaptive bucket: a call that takes longer counts as overload, as a timeout or an answer 429 does."""
    shared: bool = False
    """Whether `bucket_limits` and `rate_limits` hold for all processes of the store together."""
    lease_seconds: float = 10.0
    """With `shared`: after how many seconds the slots of a process that was killed are free for others."""
    ageing: float = 1.0
    """Under `priority`: each step of priority counts as much as having waited this many seconds longer."""

    def __post_init__(self) -> None:
        _check_whole_number("max_concurrent", self.max_concurrent, minimum=1)
        _check_whole_number("queue_size", self.queue_size, minimum=0)
        _check_seconds("default_timeout", self.default_timeout)
        _check_seconds("ageing", self.ageing)
        _check_seconds("lease_seconds", self.lease_seconds)
        if not 1 <= self.lease_seconds <= 600:
            raise SetupError(f"lease_seconds must be between 1 and 600, not {self.lease_seconds:g}")
        if self.ageing == 0:
            raise SetupError("ageing must be more than 0 seconds: without it, calls of low priority might never run")
        if self.strategy not in get_args(Strategy):
            raise SetupError(
                f"strategy {self.strategy!r} does not exist: use 'fifo', 'priority' or 'reject'."
                + did_you_mean(str(self.strategy), get_args(Strategy))
            )
        # Copies, so that a later change to the caller's dict does not change the limits of a running controller.
        object.__setattr__(self, "bucket_limits", _check_buckets("bucket_limits", self.bucket_limits))
        object.__setattr__(self, "rate_limits", _check_buckets("rate_limits", self.rate_limits))
        object.__setattr__(self, "adaptive_limits", _check_buckets("adaptive_limits", self.adaptive_limits))
        for bucket in (*self.adaptive_limits, *self.adaptive_latency):
            if bucket not in self.bucket_limits or bucket not in self.adaptive_limits:
                raise SetupError(
                    f"the adaptive bucket {bucket!r} needs both a highest number of slots, in bucket_limits, and a "
                    "least one, in adaptive_limits"
                )
            _check_seconds(f"adaptive_latency[{bucket!r}]", self.adaptive_latency.get(bucket, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyMetrics:
    """What a controller has done so far, and what it is doing now."""

    current_concurrent: int
    """Calls that run now; a call that waits for a nested call is not counted."""
    queue_length: int
    total_acquired: int
    total_rejected: int
    """Calls rejected without waiting until their timeout: no slot, full queue, rate limit."""
    total_timeout: int
    """Calls that waited for a slot until their timeout."""
    avg_execution_time: float
    """Seconds from getting a slot to giving it back, over all calls that have ended."""


def _check_buckets(name: str, limits: Any) -> dict[str, int]:
    if not isinstance(limits, Mapping):
        raise SetupError(f"{name} must map bucket names to whole numbers, such as {{'http': 5}}, not {limits!r}")
    for bucket, limit in limits.items():
        _check_whole_number(f"{name}[{bucket!r}]", limit, minimum=1)
    return dict(limits)


def _check_whole_number(name: str, value: Any, *, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise SetupError(f"{name} must be a whole number of at least {minimum}, not {value!r}")


def _check_seconds(name: str, value: Any) -> None:
    # `not value >= 0` also catches NaN.
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise SetupError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
