"""The values of the store: the record of a call, and the summaries and statistics of many."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

Status: TypeAlias = Literal["running", "success", "failed", "cancelled", "interrupted"]
"""`interrupted`: the process that ran the call ended before the call did."""


@dataclass(slots=True)
class ToolCallRecord:
    """One call.

    Created when the call starts and completed when it ends: the engine then sets `status`, `result` or `error`, and the
    times. What is known at the start (caller, tool, arguments) is written then and not changed later.
    """

    record_id: str
    tool_name: str
    params: dict[str, Any] = field(default_factory=dict)
    action: str | None = None
    caller_id: str | None = None
    caller_type: str = "unknown"
    conversation_id: str | None = None
    workflow_id: str | None = None
    fingerprint: str | None = None
    """The version of the tool's spec that ran."""
    source: str | None = None
    parent_id: str | None = None
    """The record of the call inside which this one was made."""
    started_at: float = field(default_factory=time.time)

    status: Status = "running"
    execution_time: float = 0.0
    """Seconds the tool ran; 0 when it never did (invalid arguments, no slot, a cached result)."""
    wait_time: float = 0.0
    attempts: int = 1
    error_type: str | None = None
    artifact_id: str | None = None
    """The whole output, where the result holds only a part of it."""
    error: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    principal: str | None = None
    """Who made the call, such as `token:ci`; None for the local user."""
    tenant: str | None = None
    cost: float | None = None
    """The price of the call, if its tool ran; None for a tool without a price."""

    encoded_head: bytes = field(default=b"", init=False, repr=False, compare=False)
    """What the store wrote when the call started; it is not encoded again when the call ends."""
    secrets: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    """Secret values of the arguments, to be removed from result and error too."""
    redacted: tuple[dict[str, Any], str | None] | None = field(default=None, init=False, repr=False, compare=False)
    """Result and error as they were stored; None if they are stored as they are."""

    @property
    def is_success(self) -> bool:
        return self.status == "success"

    @property
    def created_at(self) -> datetime:
        return datetime.fromtimestamp(self.started_at, UTC)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, for files, pipes and pages."""
        plain = {
            each.name: getattr(self, each.name) for each in fields(self) if each.init and each.name != "started_at"
        }
        approval_state, created_at = self.metadata.get("approval_state"), self.created_at.isoformat()
        return plain | {"is_success": self.is_success, "approval_state": approval_state, "created_at": created_at}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallSummary:
    """The calls of one conversation. Running calls are not counted; a cancelled call counts as failed."""

    conversation_id: str
    total_calls: int = 0
    successful_calls: int = 0
    failed_calls: int = 0
    success_rate: float = 0.0
    """Percent."""
    tool_usage: dict[str, int] = field(default_factory=dict)

    def to_brief(self) -> dict[str, Any]:
        """Return the part for the final answer of a conversation."""
        return {
            "total_calls": self.total_calls,
            "success_rate": self.success_rate,
            "tool_usage": self.tool_usage,
            "has_errors": self.failed_calls > 0,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStatistics:
    """The calls of one tool. Times are seconds of the calls in which it really ran (`execution_time` > 0)."""

    calls: int
    failures: int
    """Failed or interrupted; not cancelled."""
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    last_called: datetime
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInterval:
    """The calls that started in one part of a time. Times are seconds of the calls in which the tool really ran."""

    start: float
    calls: int
    failures: int
    """Failed or interrupted."""
    rejections: int
    wait_time: float
    """Of all calls together, in queues."""
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStatistics:
    """All ended calls, in total and by tool."""

    total: int = 0
    successful: int = 0
    failed: int = 0
    """Failed or interrupted."""
    cancelled: int = 0
    running: int = 0
    """Not part of the total."""
    success_rate: float = 0.0
    """Percent of the total."""
    tools: dict[str, ToolStatistics] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, for files, pipes and pages."""
        plain = asdict(self)
        for tool in plain["tools"].values():
            tool["last_called"] = tool["last_called"].isoformat()
        return plain


def percent(part: int, whole: int) -> float:
    return round(100.0 * part / whole, 2) if whole else 0.0
