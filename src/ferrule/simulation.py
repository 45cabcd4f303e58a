"""What would have happened? Recorded calls under other rules, without calling any tool.

Three results are compared: *observed* is what the records say, *baseline* replays them under the rules of now (its
difference from observed is the simulation's own error), *candidate* replays them under other rules: policy, limits,
timeouts, memory, prices, the order of a hub's candidates. Records are streamed; a replay holds a few numbers of each
call at most.
"""

from __future__ import annotations

import heapq
import math
import tomllib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from ferrule.catalog.registry import ToolRegistry
from ferrule.concurrency import ConcurrencyConfig
from ferrule.config import FerruleConfig
from ferrule.core.messages import Usage
from ferrule.core.permission import LOCAL_USER, CallPolicy, Decision, Principal
from ferrule.core.prices import PriceList
from ferrule.core.spec import Tool, ToolCapability
from ferrule.errors import (
    APPROVAL_REQUIRED,
    EXECUTION_ERROR,
    KNOWN_FAILURE,
    PERMISSION_DENIED,
    REJECTED,
    TIMEOUT,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    CallError,
    SetupError,
)
from ferrule.store import ToolKnowledgeStore
from ferrule.store.database import StoreDatabase
from ferrule.store.redaction import unescape_text
from ferrule.store.spending import USAGE_PREFIX

MAX_LISTED: Final = 20
FETCH_SIZE: Final = 5_000
PERMANENT_FAILURES: Final = frozenset({EXECUTION_ERROR, VALIDATION_ERROR, PERMISSION_DENIED, TOOL_NOT_FOUND})
"""Failures that the memory of a run does not let happen twice."""
UNKNOWN: Final = (
    "What a model would have done next when a call was refused or prevented: the calls after it are those of history.",
    "The results of calls that were not made then: those count as neither success nor failure.",
    "Roles and restrictions of tokens: records have only their names.",
    "What candidates of a hub would have answered that were not called: another order only drops calls that were made.",
    "What models would have cost with other calls: their replies are those of history, at the prices of each lane.",
)


class RecordedCall(NamedTuple):
    """The part of a record that a replay needs."""

    record_id: str
    tool_name: str
    action: str | None
    conversation_id: str | None
    principal: str | None
    tenant: str | None
    status: str
    error_type: str | None
    started_at: float
    execution_time: float | None
    wait_time: float | None
    params: str | None
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRules:
    """The rules of a replay."""

    policy: CallPolicy
    limits: ConcurrencyConfig
    default_timeout: float
    prices: PriceList
    memory: bool = True
    hub_order: tuple[str, ...] = ()
    """Tools or sources in the order in which candidates for one job are tried; empty: as they were."""

    @classmethod
    def of(cls, config: FerruleConfig) -> SimulationRules:
        return cls(
            policy=config.policy.build(),
            limits=config.limits,
            default_timeout=config.engine_config.default_timeout,
            prices=config.price_list,
        )

    def with_file(self, path: Path) -> SimulationRules:
        """These rules with the sections that a file in the form of `ferrule.toml` has."""
        rules = SimulationRules.of(FerruleConfig.read(path, environ={}))
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
        changes: dict[str, Any] = {}
        for section, name in (("policy", "policy"), ("limits", "limits"), ("prices", "prices")):
            if section in sections:
                changes[name] = getattr(rules, name)
        if "default_timeout" in sections.get("engine", {}):
            changes["default_timeout"] = rules.default_timeout
        if not changes:
            raise SetupError(f"{path} changes nothing: it needs [policy], [limits], [prices] or default_timeout.")
        return replace(self, **changes)


@dataclass(slots=True, kw_only=True)
class CallCounts:
    """What happened to the calls: as recorded, or in a replay."""

    calls: int = 0
    executed: int = 0
    refused: int = 0
    approvals: int = 0
    prevented: int = 0
    timeouts: int = 0
    rejected: int = 0
    skipped: int = 0
    """Calls of candidates that another one made unnecessary, because it was tried first."""
    cost: float = 0.0
    """Of tools."""
    model_cost: float = 0.0
    busy_seconds: float = 0.0
    waits: array[float] = field(default_factory=lambda: array("d"), repr=False)
    refused_calls: dict[str, str] = field(default_factory=dict, repr=False)
    """The first of the refused calls: what was called, and why it is refused."""
    unknown_tools: Counter[str] = field(default_factory=Counter)

    @property
    def wait_p95(self) -> float:
        ordered = sorted(self.waits)
        return ordered[int(0.95 * (len(ordered) - 1))] if ordered else 0.0

    def to_dict(self) -> dict[str, Any]:
        names = (
            "calls",
            "executed",
            "refused",
            "approvals",
            "prevented",
            "timeouts",
            "rejected",
            "skipped",
            "cost",
            "model_cost",
            "busy_seconds",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "wait_p95": self.wait_p95,
            "refused_calls": self.refused_calls,
            "unknown_tools": dict(self.unknown_tools),
        }


class SimulatedSlots:
    """When calls would have started: the time at which each slot is free, in total and per bucket."""

    def __init__(self, limits: ConcurrencyConfig) -> None:
        self._total = [0.0] * limits.max_concurrent
        self._buckets = {name: [0.0] * limit for name, limit in limits.bucket_limits.items()}

    def start(self, bucket: str, arrival: float, seconds: float, max_wait: float = math.inf) -> float | None:
        """When the call starts; it then occupies its slots for so many seconds. None: it would wait too long."""
        total, slots = self._total, self._buckets.get(bucket)
        begin = max(arrival, total[0]) if slots is None else max(arrival, total[0], slots[0])
        if begin - arrival > max_wait:
            return None
        heapq.heapreplace(total, begin + seconds)
        if slots is not None:
            heapq.heapreplace(slots, begin + seconds)
        return begin


class ReplayedAction(NamedTuple):
    """What a replay needs to know of an action."""

    tool: tuple[Tool, ToolCapability] | None
    """None if it does not exist any more."""
    timeout: float
    bucket: str
    price: float


class HistoryReplay:
    """Replays calls under rules."""

    def __init__(
        self, rules: SimulationRules, registry: ToolRegistry, skipped_calls: frozenset[str] = frozenset()
    ) -> None:
        self._rules, self._registry, self._skipped_calls = rules, registry, skipped_calls
        self._slots = SimulatedSlots(rules.limits)
        self._actions: dict[tuple[str, str | None], ReplayedAction] = {}
        self._decisions: dict[tuple[Any, ...], tuple[Principal, Decision]] = {}
        self._failures: set[int] = set()
        self.result = CallCounts()

    @property
    def prices(self) -> PriceList:
        return self._rules.prices

    def replay(self, call: RecordedCall) -> None:
        result = self.result
        result.calls += 1
        if call.record_id in self._skipped_calls:
            result.skipped += 1
            return
        action = self._actions.get((call.tool_name, call.action)) or self._find_action(call)
        if action.tool is None:
            result.unknown_tools[call.tool_name] += 1
        elif (verdict := self._decide(call, *action.tool)) != "allow":
            if verdict == "deny":
                result.refused += 1
                return
            result.approvals += 1
        if self._rules.memory and call.conversation_id is not None and _is_agent_call(call):
            key = hash((call.conversation_id, call.tool_name, call.action, call.params))
            if key in self._failures:
                result.prevented += 1
                return
            if call.error_type in PERMANENT_FAILURES:
                self._failures.add(key)
        if call.execution_time:
            self._execute(call, action)

    def _execute(self, call: RecordedCall, action: ReplayedAction) -> None:
        seconds, result = call.execution_time or 0.0, self.result
        if seconds > action.timeout:
            result.timeouts += 1
            seconds = action.timeout
        begin = self._slots.start(action.bucket, call.started_at, seconds, self._rules.limits.default_timeout)
        if begin is None:
            result.rejected += 1
            return
        result.executed += 1
        result.waits.append(begin - call.started_at)
        result.busy_seconds += seconds
        result.cost += action.price

    def _find_action(self, call: RecordedCall) -> ReplayedAction:
        rules, timeout = self._rules, self._rules.default_timeout
        try:
            tool, capability = self._registry.find(call.tool_name, call.action)
        except CallError:
            price = rules.prices.find_tool_price(f"{call.tool_name}__{call.action}", call.tool_name)
            action = ReplayedAction(tool=None, timeout=timeout, bucket="", price=price or 0.0)
        else:
            action = ReplayedAction(
                tool=(tool, capability),
                timeout=tool.spec.limits_of(capability).timeout or timeout,
                bucket=tool.spec.bucket_of(capability),
                price=rules.prices.price_of_call(tool.spec, capability),
            )
        self._actions[call.tool_name, call.action] = action
        return action

    def _decide(self, call: RecordedCall, tool: Tool, capability: ToolCapability) -> str:
        key = (call.principal, call.tenant, call.tool_name, call.action)
        if key not in self._decisions:
            principal = _restore_principal(call)
            self._decisions[key] = principal, self._rules.policy.decide(principal, tool, capability, None)
        principal, decision = self._decisions[key]
        if decision.depends_on_arguments:
            arguments = orjson.loads(call.params) if call.params else {}
            decision = self._rules.policy.decide(principal, tool, capability, arguments)
        if decision.verdict == "deny" and len(self.result.refused_calls) < MAX_LISTED:
            name = tool.spec.model_name(capability)
            self.result.refused_calls[call.record_id] = f"{name} by {call.principal or 'user:local'}: {decision.reason}"
        return decision.verdict


def _is_agent_call(call: RecordedCall) -> bool:
    return (call.principal or "").startswith("agent:")


def _restore_principal(call: RecordedCall) -> Principal:
    if call.principal is None:
        return LOCAL_USER
    kind, _, name = call.principal.partition(":")
    try:
        return Principal(kind=kind, name=name, tenant=call.tenant or "")  # type: ignore[arg-type]
    except SetupError:
        return Principal(kind="client", name=call.principal, tenant=call.tenant or "")


def count_recorded_call(result: CallCounts, call: RecordedCall) -> None:
    """Count what the record of a call says."""
    result.calls += 1
    result.refused += call.error_type == PERMISSION_DENIED
    result.approvals += call.error_type == APPROVAL_REQUIRED
    result.prevented += call.error_type == KNOWN_FAILURE
    result.timeouts += call.error_type == TIMEOUT
    result.rejected += call.error_type == REJECTED
    if call.execution_time:
        result.executed += 1
        result.waits.append(call.wait_time or 0.0)
        result.busy_seconds += call.execution_time
        result.cost += call.cost or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The recorded history and its two replays."""

    observed: CallCounts
    baseline: CallCounts
    candidate: CallCounts

    def to_dict(self) -> dict[str, Any]:
        results = {name: getattr(self, name).to_dict() for name in ("observed", "baseline", "candidate")}
        return {**results, "cannot_know": list(UNKNOWN)}

    def sentences(self) -> list[str]:
        base, new, facts = self.baseline, self.candidate, self.observed
        lines = [f"{facts.calls:,} recorded calls were replayed; no tool was called."]
        lines.append(
            f"Refused: {new.refused:,} of {new.calls:,} calls ({new.refused - base.refused:+,} by the new rules)."
        )
        new_refusals = {k: v for k, v in new.refused_calls.items() if k not in base.refused_calls}
        lines += [f"  {record_id}  {what}" for record_id, what in new_refusals.items()]
        for label, name in (
            ("Would need approval", "approvals"),
            ("Repeated failures prevented", "prevented"),
            ("Ended by a timeout", "timeouts"),
            ("Rejected for want of a slot", "rejected"),
            ("Not needed, because another candidate was tried first", "skipped"),
        ):
            lines.append(f"{label}: {getattr(base, name):,} → {getattr(new, name):,}.")
        lines.append(f"Queue p95: {base.wait_p95:.3g} s → {new.wait_p95:.3g} s.")
        for label, before, after in (("tools", base.cost, new.cost), ("models", base.model_cost, new.model_cost)):
            change = f" ({(after - before) / before:+.0%})" if before else ""
            lines.append(f"Cost of {label}: {before:.4g} → {after:.4g}{change}.")
        lines.append(
            "The simulation's own error, observed against baseline: "
            f"refused {facts.refused:,} / {base.refused:,}, prevented {facts.prevented:,} / {base.prevented:,}, "
            f"timeouts {facts.timeouts:,} / {base.timeouts:,}, "
            f"queue p95 {facts.wait_p95:.3g} s / {base.wait_p95:.3g} s, "
            f"cost {facts.cost + facts.model_cost:.4g} / {base.cost + base.model_cost:.4g}."
        )
        lines.append("What it cannot know:")
        lines += [f"  {sentence}" for sentence in UNKNOWN]
        if new.unknown_tools:
            names = ", ".join(f"{name} ({number:,})" for name, number in new.unknown_tools.most_common(5))
            lines.append(f"  Calls of tools that do not exist any more pass unchecked: {names}.")
        return lines


async def simulate(
    store: ToolKnowledgeStore,
    registry: ToolRegistry,
    baseline: SimulationRules,
    candidate: SimulationRules,
    *,
    since: datetime | None = None,
) -> SimulationResult:
    """Replay the records since a time under both sets of rules."""
    observed, start = CallCounts(), 0.0 if since is None else since.timestamp()

    def replay_all(database: StoreDatabase) -> tuple[CallCounts, CallCounts]:
        replays = [
            HistoryReplay(rules, registry, _find_skipped_calls(database, start, rules.hub_order))
            for rules in (baseline, candidate)
        ]
        for call in _read_calls(database, start):
            count_recorded_call(observed, call)
            for each in replays:
                each.replay(call)
        _add_model_costs(database, start, observed, [(each.result, each.prices) for each in replays])
        return replays[0].result, replays[1].result

    first, second = await store.query(replay_all)
    return SimulationResult(observed=observed, baseline=first, candidate=second)


def _find_skipped_calls(database: StoreDatabase, since: float, order: Sequence[str]) -> frozenset[str]:
    """The calls that another order makes unnecessary: of several candidates for one call of a model, those that are now
    tried after the one that succeeded."""
    import sqlalchemy as sa

    if not order:
        return frozenset()
    key = "metadata->>'tool_call_id'"
    where = f"started_at >= :since AND parent_id IS NULL AND conversation_id IS NOT NULL AND {key} IS NOT NULL"
    query = sa.text(
        f"SELECT conversation_id, {key}, record_id, tool_name, source, status FROM tool_calls WHERE {where} AND "
        f"(conversation_id, {key}) IN (SELECT conversation_id, {key} FROM tool_calls WHERE {where} "
        "GROUP BY 1, 2 HAVING COUNT(*) > 1) ORDER BY started_at, record_id"
    )
    jobs: dict[tuple[str, str], list[Any]] = {}
    with database.read() as connection:
        for row in connection.execute(query, {"since": since}):
            jobs.setdefault((row[0], row[1]), []).append(row)
    skipped: set[str] = set()
    for rows in jobs.values():
        ordered = sorted(rows, key=lambda row: _rank(row.tool_name, row.source, order))  # equals stay as they were
        success = next((n for n, row in enumerate(ordered) if row.status == "success"), len(ordered))
        skipped |= {row.record_id for row in ordered[success + 1 :]}
    return frozenset(skipped)


def _rank(tool_name: str, source: str | None, order: Sequence[str]) -> int:
    return min((order.index(name) for name in (tool_name, source) if name in order), default=len(order))


def _add_model_costs(
    database: StoreDatabase, since: float, observed: CallCounts, lanes: Sequence[tuple[CallCounts, PriceList]]
) -> None:
    """What the recorded replies of models cost: as recorded, and at the prices of each lane."""
    import sqlalchemy as sa

    totals = ", ".join(
        f"SUM(CAST(value->>'{name}' AS DOUBLE PRECISION))"
        for name in ("input_tokens", "output_tokens", "cached_tokens", "cost")
    )
    query = sa.text(
        f"SELECT value->>'model', {totals} FROM entries WHERE written_at >= :since "
        f"AND substr(stream, 1, {len(USAGE_PREFIX)}) = '{USAGE_PREFIX}' GROUP BY 1"
    )
    with database.read() as connection:
        rows = connection.execute(query, {"since": since}).all()
    for model, *numbers in rows:
        inputs, outputs, cached, cost = (float(number or 0) for number in numbers)
        observed.model_cost += cost
        usage = Usage(input_tokens=int(inputs), output_tokens=int(outputs), cached_tokens=int(cached))
        for result, prices in lanes:
            price = prices.find_model_price(unescape_text(model))
            result.model_cost += 0.0 if price is None else price.cost_of(usage)


def _read_calls(database: StoreDatabase, since: float) -> Iterator[RecordedCall]:
    import sqlalchemy as sa

    columns = ", ".join("CAST(params AS TEXT)" if name == "params" else name for name in RecordedCall._fields)
    query = sa.text(
        f"SELECT {columns} FROM tool_calls WHERE started_at >= :since AND status <> 'running' "
        "AND parent_id IS NULL ORDER BY started_at, record_id"
    )
    with database.read() as connection:
        rows = connection.execution_options(stream_results=True).execute(query, {"since": since})
        for chunk in rows.partitions(FETCH_SIZE):
            for row in chunk:
                call = RecordedCall._make(row)
                yield call._replace(tool_name=unescape_text(call.tool_name)) if "\ufdd0" in call.tool_name else call
