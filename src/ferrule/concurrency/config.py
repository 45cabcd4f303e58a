"""What a user sets about places and queues, and the figures that come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from ferrule.errors import SetupError
from ferrule.names import did_you_mean

Strategy: TypeAlias = Literal["fifo", "priority", "reject"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyConfig:
    """How many calls may run at once, and what happens to the others."""

    max_concurrent: int = 10
    queue_size: int = 100
    """How many calls may wait for a place; one more is refused."""
    default_timeout: float = 30.0
    """Seconds a call may wait for a place, unless it says otherwise; `math.inf` for as long as it takes."""
    strategy: Strategy = "fifo"
    """`fifo`: in order of arrival. `priority`: the important first. `reject`: nobody waits."""
    bucket_limits: Mapping[str, int] = field(default_factory=dict)
    """Calls that may run at once, per bucket; other buckets are only bound by `max_concurrent`."""
    rate_limits: Mapping[str, int] = field(default_factory=dict)
    """Calls that may start within any 60 seconds, per bucket."""
    ageing: float = 1.0
    """Under `priority`: each step of priority counts as much as having waited this many seconds longer."""

    def __post_init__(self) -> None:
        _check_whole_number("max_concurrent", self.max_concurrent, least=1)
        _check_whole_number("queue_size", self.queue_size, least=0)
        _check_seconds("default_timeout", self.default_timeout)
        _check_seconds("ageing", self.ageing)
        if self.ageing == 0:
            raise SetupError("ageing must be more than 0 seconds: without it, calls of low priority might never run")
        if self.strategy not in get_args(Strategy):
            raise SetupError(
                f"strategy {self.strategy!r} does not exist: use 'fifo', 'priority' or 'reject'."
                + did_you_mean(str(self.strategy), get_args(Strategy))
            )
        # Copies, so that nobody changes the limits of a running controller by changing a dict of theirs.
        object.__setattr__(self, "bucket_limits", _checked_buckets("bucket_limits", self.bucket_limits))
        object.__setattr__(self, "rate_limits", _checked_buckets("rate_limits", self.rate_limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyMetrics:
    """What a controller has done so far, and what it is doing now."""

    current_concurrent: int
    """Calls that run now; a call that waits for a nested one does not count."""
    queue_length: int
    total_acquired: int
    total_rejected: int
    """Calls refused without waiting in vain: no place, full queue, rate limit."""
    total_timeout: int
    """Calls that waited for a place until their time was up."""
    avg_execution_time: float
    """Seconds from getting a place to giving it back, over all calls that have ended."""


def _checked_buckets(name: str, limits: Any) -> dict[str, int]:
    if not isinstance(limits, Mapping):
        raise SetupError(f"{name} must map bucket names to whole numbers, such as {{'http': 5}}, not {limits!r}")
    for bucket, limit in limits.items():
        _check_whole_number(f"{name}[{bucket!r}]", limit, least=1)
    return dict(limits)


def _check_whole_number(name: str, value: Any, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SetupError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _check_seconds(name: str, value: Any) -> None:
    # `not value >= 0` also catches NaN.
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise SetupError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
