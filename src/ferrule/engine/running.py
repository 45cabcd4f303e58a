"""What the engine knows about a tool before a call, and about a call while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ferrule.call import Progress, ToolExecutionContext, ToolExecutor
from ferrule.concurrency import Place
from ferrule.engine.breaker import CircuitBreaker
from ferrule.engine.deadline import Deadline
from ferrule.spec import Effects, Tool, ToolCapability
from ferrule.store import ToolCallRecord
from ferrule.validation import ParameterCheck


@dataclass(slots=True, kw_only=True)
class Prepared:
    """Everything about one action that does not change from call to call."""

    tool: Tool
    capability: ToolCapability
    fingerprint: str
    check: ParameterCheck
    executor: ToolExecutor | None
    """None when nobody registered the executor the tool names."""
    breaker: CircuitBreaker
    effects: Effects
    bucket: str
    timeout: float | None
    max_output: int
    secret_names: frozenset[str]


class RunningCall:
    """The working notes of one call, from its arrival to its result."""

    __slots__ = (
        "action",
        "arrived_at",
        "asked",
        "attempts",
        "cache_key",
        "call_id",
        "context",
        "deadline",
        "depth",
        "ended",
        "metadata",
        "on_progress",
        "params",
        "parent",
        "place",
        "prepared",
        "record",
        "started",
        "tool_name",
        "wait_time",
    )

    def __init__(
        self,
        call_id: str,
        tool_name: str,
        action: str | None,
        params: Mapping[str, Any] | None,
        context: ToolExecutionContext,
        on_progress: Callable[[Progress], None] | None,
        parent: RunningCall | None,
    ) -> None:
        self.call_id = call_id
        self.tool_name = tool_name
        self.action = action
        self.params: Any = params
        """As given; once they were checked, as the tool gets them."""
        self.asked: dict[str, Any] | None = None
        """The same for a memory: tools may spoil theirs."""
        self.context = context
        self.on_progress = on_progress
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.arrived_at = time.time()
        self.started: float | None = None
        """On the clock of `time.perf_counter`; None until the tool runs."""
        self.ended: float | None = None
        self.cache_key: bytes | None = None
        self.wait_time = 0.0
        self.attempts = 0
        self.metadata: dict[str, Any] | None = None
        self.prepared: Prepared | None = None
        self.place: Place | None = None
        self.deadline: Deadline | None = None
        self.record: ToolCallRecord | None = None

    def note(self, **facts: Any) -> None:
        """Facts for the result's metadata."""
        if self.metadata is None:
            self.metadata = facts
        else:
            self.metadata.update(facts)

    def facts(self) -> dict[str, Any]:
        """The result's metadata."""
        if self.attempts > 1:
            self.note(attempts=self.attempts)
        return self.metadata if self.metadata is not None else {}

    def took(self) -> float:
        if self.started is None:
            return 0.0
        return (self.ended if self.ended is not None else time.perf_counter()) - self.started

    @contextmanager
    def outer_clocks_stopped(self) -> Iterator[None]:
        """Waiting is nobody's own work: the clocks of all calls this one belongs to stand still."""
        deadlines = []
        outer = self.parent
        while outer is not None:
            if outer.deadline is not None:
                deadlines.append(outer.deadline)
            outer = outer.parent
        for deadline in deadlines:
            deadline.pause()
        try:
            yield
        finally:
            for deadline in deadlines:
                deadline.resume()
