"""Limits that follow what a service can bear, by the rule of `LimitState`.

Without a fleet each report changes the limit here. With one, reports are collected for the next renewal of the leases:
the store has the limit, and all processes change it together.
"""

from __future__ import annotations

from ferrule.store.shared_limits import BucketLoad, LimitState


class AdaptiveLimit:
    """The slots of one bucket, between a minimum and its configured limit."""

    __slots__ = ("_good_calls", "_is_overload", "_state", "max_latency", "maximum", "minimum")

    def __init__(self, maximum: int, minimum: int, max_latency: float) -> None:
        self.maximum, self.minimum, self.max_latency = maximum, min(minimum, maximum), max_latency
        self._state = LimitState(slots=maximum)
        self._good_calls, self._is_overload = 0, False

    @property
    def slots(self) -> int:
        return int(self._state.slots)

    def report(self, now: float, *, seconds: float, is_overload: bool) -> None:
        """Change the limit by how a call has gone: its duration, and whether the service was overloaded."""
        self.collect(seconds=seconds, is_overload=is_overload)
        self._state = self._state.after(self.take_report(), self.maximum, now)

    def collect(self, *, seconds: float, is_overload: bool) -> None:
        """Keep how a call has gone for the next report to the fleet."""
        if is_overload or seconds > self.max_latency:
            self._is_overload = True
        else:
            self._good_calls += 1

    def take_report(self) -> BucketLoad:
        """Return what was collected since the last report."""
        report = BucketLoad(minimum=self.minimum, good_calls=self._good_calls, is_overload=self._is_overload)
        self._good_calls, self._is_overload = 0, False
        return report

    def return_report(self, report: BucketLoad) -> None:
        """Add a report that may not have arrived to the next one."""
        self._good_calls += report.good_calls
        self._is_overload = self._is_overload or report.is_overload

    def follow(self, slots: int) -> None:
        """Set the limit that the fleet has found."""
        self._state = LimitState(slots=slots)
