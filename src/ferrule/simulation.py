"""What would have happened? Recorded calls under another policy, without calling any tool.

Three results are compared: *observed* is what the records say, *baseline* replays them under the rules of now (its
difference from observed is the simulation's own error), *candidate* replays them under other rules. Records are
streamed.
"""

from __future__ import annotations

import tomllib
from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from ferrule.agent.run import RUN_PREFIX
from ferrule.catalog.registry import ToolRegistry
from ferrule.config import FerruleConfig
from ferrule.core.call import ToolExecutionResult
from ferrule.core.messages import Message
from ferrule.core.permission import LOCAL_USER, CallPolicy, Decision, Principal
from ferrule.core.spec import Tool, ToolCapability
from ferrule.errors import (
    APPROVAL_REQUIRED,
    EXECUTION_ERROR,
    KNOWN_FAILURE,
    PERMISSION_DENIED,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    CallError,
    SetupError,
)
from ferrule.policy.provenance import ProvenanceRules, RunOrigins
from ferrule.store import ToolKnowledgeStore
from ferrule.store.database import StoreDatabase
from ferrule.store.escapes import escape_text, unescape_text

if TYPE_CHECKING:
    from sqlalchemy import Connection

MAX_LISTED: Final = 20
FETCH_SIZE: Final = 5_000
PERMANENT_FAILURES: Final = frozenset({EXECUTION_ERROR, VALIDATION_ERROR, PERMISSION_DENIED, TOOL_NOT_FOUND})
"""Failures that the memory of a run does not let happen twice."""
UNKNOWN: Final = (
    "What a model would have done next when a call was refused or prevented: the calls after it are the recorded ones.",
    "Roles and restrictions of tokens: records have only their names.",
    "Instructions of agents, and results that were too long for a record: a target in them counts as not named.",
)
_RECORDS: Final = """
SELECT record_id, tool_name, action, conversation_id, principal, tenant, error_type, CAST(params AS TEXT),
    CASE WHEN principal LIKE 'agent:%' THEN CAST(result AS TEXT) END, error, started_at
FROM tool_calls WHERE started_at >= :since AND status <> 'running' AND parent_id IS NULL
ORDER BY conversation_id, started_at, record_id
"""
_BEGIN: Final = "SELECT CAST(value AS TEXT) FROM entries WHERE stream = :stream ORDER BY key LIMIT 1"


class RecordedCall(NamedTuple):
    """The part of a record that a replay needs."""

    record_id: str
    tool_name: str
    action: str | None
    conversation_id: str | None
    principal: str | None
    tenant: str | None
    error_type: str | None
    params: str | None
    result: str | None = None
    """Of a call of an agent."""
    error: str | None = None
    started_at: float = 0.0
    messages: tuple[Message, ...] = ()
    """What the run of the call began with."""

    @property
    def is_of_run(self) -> bool:
        return self.conversation_id is not None and (self.principal or "").startswith("agent:")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRules:
    """The rules of a replay."""

    policy: CallPolicy
    memory: bool = True

    @classmethod
    def of(cls, config: FerruleConfig) -> SimulationRules:
        return cls(policy=config.policy.build())

    def with_file(self, path: Path) -> SimulationRules:
        """Replace the policy by the policy of a file in the form of `ferrule.toml`."""
        config = FerruleConfig.read(path, environ={})
        if "policy" not in tomllib.loads(path.read_text(encoding="utf-8")):
            raise SetupError(f"{path} changes nothing: it needs [policy] or [[policy.rules]].")
        return replace(self, policy=config.policy.build())


@dataclass(slots=True, kw_only=True)
class CallCounts:
    """What happened to the calls: as recorded, or in a replay."""

    calls: int = 0
    refused: int = 0
    approvals: int = 0
    prevented: int = 0
    refused_calls: dict[str, str] = field(default_factory=dict, repr=False)
    """The earliest of the refused calls: what was called, and why it is refused."""
    unknown_tools: dict[str, int] = field(default_factory=dict)


class HistoryReplay:
    """Replays calls under rules. The calls of one run come after each other."""

    def __init__(self, rules: SimulationRules, registry: ToolRegistry) -> None:
        self._rules, self._registry = rules, registry
        self._decisions: dict[tuple[Any, ...], tuple[Principal, Decision]] = {}
        self._failures: set[int] = set()
        self._refusals: list[tuple[float, str, str]] = []
        self._run_id: str | None = None
        self._provenance = ProvenanceRules.of(rules.policy)
        self._origins = RunOrigins(self._provenance)
        self.result = CallCounts()

    def replay(self, call: RecordedCall) -> None:
        result = self.result
        result.calls += 1
        if call.conversation_id != self._run_id:
            self._run_id, self._origins = call.conversation_id, RunOrigins(self._provenance)
            self._origins.add_conversation(call.messages)
            self._failures.clear()
        arguments = orjson.loads(call.params) if call.params else {}
        try:
            tool, capability = self._registry.find(call.tool_name, call.action)
        except CallError:
            result.unknown_tools[call.tool_name] = result.unknown_tools.get(call.tool_name, 0) + 1
        else:
            verdict = self._decide(call, tool, capability, arguments)
            result.refused += verdict == "deny"
            result.approvals += verdict == "ask"
            if verdict == "deny":
                return
            if call.is_of_run and self._provenance.are_used:
                self._add_result(call, tool, capability, arguments)
        if self._rules.memory and call.is_of_run:
            key = hash((call.tool_name, call.action, call.params))
            result.prevented += key in self._failures
            if call.error_type in PERMANENT_FAILURES:
                self._failures.add(key)

    def _add_result(self, call: RecordedCall, tool: Tool, capability: ToolCapability, arguments: Any) -> None:
        output = orjson.loads(call.result) if call.result else {}
        result = ToolExecutionResult(
            is_success=call.error_type is None, tool_name=call.tool_name, output=output, error=call.error
        )
        was_run = call.error_type not in (APPROVAL_REQUIRED, KNOWN_FAILURE, PERMISSION_DENIED, VALIDATION_ERROR)
        self._origins.add_result(tool, capability, arguments, result, was_run=was_run, is_of_model=True)

    def _decide(self, call: RecordedCall, tool: Tool, capability: ToolCapability, arguments: dict[str, Any]) -> str:
        if call.is_of_run and self._origins.has_untrusted:
            principal = _restore_principal(call)
            marked = self._origins.mark(tool, capability, arguments)
            decision = self._rules.policy.decide(principal, tool, capability, marked)
            return self._count_refusal(call, tool, capability, self._origins.decide(decision, tool, capability, marked))
        key = (call.principal, call.tenant, call.tool_name, call.action)
        if key not in self._decisions:
            principal = _restore_principal(call)
            self._decisions[key] = principal, self._rules.policy.decide(principal, tool, capability, None)
        principal, decision = self._decisions[key]
        if decision.depends_on_arguments:
            decision = self._rules.policy.decide(principal, tool, capability, arguments)
        return self._count_refusal(call, tool, capability, decision)

    def _count_refusal(self, call: RecordedCall, tool: Tool, capability: ToolCapability, decision: Decision) -> str:
        earliest = self._refusals  # calls come by run, not by time
        is_listed = len(earliest) < MAX_LISTED or call.started_at < earliest[-1][0]
        if decision.verdict == "deny" and is_listed:
            what = f"{tool.spec.model_name(capability)} by {call.principal or 'user:local'}: {decision.reason}"
            insort(earliest, (call.started_at, call.record_id, what))
            del earliest[MAX_LISTED:]
            self.result.refused_calls = {record_id: what for _, record_id, what in earliest}
        return decision.verdict


def _restore_principal(call: RecordedCall) -> Principal:
    if call.principal is None:
        return LOCAL_USER
    kind, _, name = call.principal.partition(":")
    try:
        return Principal(kind=kind, name=name, tenant=call.tenant or "")  # type: ignore[arg-type]
    except SetupError:
        return Principal(kind="client", name=call.principal, tenant=call.tenant or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The recorded history and its two replays."""

    observed: CallCounts
    baseline: CallCounts
    candidate: CallCounts

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cannot_know": list(UNKNOWN)}

    def sentences(self) -> list[str]:
        base, new, facts = self.baseline, self.candidate, self.observed
        new_refusals = {k: v for k, v in new.refused_calls.items() if k not in base.refused_calls}
        lines = [
            f"{facts.calls:,} recorded calls were replayed; no tool was called.",
            f"Refused: {new.refused:,} of {new.calls:,} calls ({new.refused - base.refused:+,} by the new rules).",
            *(f"  {record_id}  {what}" for record_id, what in new_refusals.items()),
            f"Would need approval: {base.approvals:,} → {new.approvals:,}.",
            f"Repeated failures prevented: {base.prevented:,} → {new.prevented:,}.",
            "The simulation's own error, observed against baseline: "
            f"refused {facts.refused:,} / {base.refused:,}, prevented {facts.prevented:,} / {base.prevented:,}.",
            "What it cannot know:",
            *(f"  {sentence}" for sentence in UNKNOWN),
        ]
        if new.unknown_tools:
            most_called = Counter(new.unknown_tools).most_common(5)
            names = ", ".join(f"{name} ({number:,})" for name, number in most_called)
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
    observed = CallCounts()
    replays = [HistoryReplay(rules, registry) for rules in (baseline, candidate)]

    def replay_all(database: StoreDatabase) -> None:
        for call in _read_calls(database, 0.0 if since is None else since.timestamp()):
            observed.calls += 1
            observed.refused += call.error_type == PERMISSION_DENIED
            observed.approvals += call.error_type == APPROVAL_REQUIRED
            observed.prevented += call.error_type == KNOWN_FAILURE
            for each in replays:
                each.replay(call)

    await store.query(replay_all)
    return SimulationResult(observed=observed, baseline=replays[0].result, candidate=replays[1].result)


def _read_calls(database: StoreDatabase, since: float) -> Iterator[RecordedCall]:
    import sqlalchemy as sa

    run_id: str | None = None
    messages: tuple[Message, ...] = ()
    with database.read() as connection:
        rows = connection.execution_options(stream_results=True).execute(sa.text(_RECORDS), {"since": since})
        for chunk in rows.partitions(FETCH_SIZE):
            for row in chunk:
                call = RecordedCall(*row)
                if call.is_of_run and call.conversation_id != run_id:
                    run_id, messages = call.conversation_id, _read_messages(connection, str(call.conversation_id))
                if "\ufdd0" in call.tool_name:
                    call = call._replace(tool_name=unescape_text(call.tool_name))
                yield call._replace(messages=messages) if call.conversation_id == run_id else call


def _read_messages(connection: Connection, run_id: str) -> tuple[Message, ...]:
    """Return the messages that a run began with; none if its entries are no longer in the store."""
    import sqlalchemy as sa

    text = connection.execute(sa.text(_BEGIN), {"stream": escape_text(RUN_PREFIX + run_id)}).scalar()
    begin = orjson.loads(text) if text else {}
    return tuple(begin.get("messages", ()))
