"""The trajectory of a task: everything that happened, complete in itself, without secrets and with nothing twice.

`messages` is the whole conversation. `requests` says for each request to the model how many of these messages it
contained (`context`), and has in full only what was different. `calls` has the record of every call, with arguments and
result only where the messages do not have them: calls that tools made.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import orjson

from ferrule import __version__
from ferrule.agent import AgentAnswer
from ferrule.batch.tasks import BatchTask
from ferrule.batch.waiting_model import RequestTrace, TaskTrace
from ferrule.catalog.registry import ToolRegistry
from ferrule.core.messages import Message, Schema
from ferrule.core.permission import Decision
from ferrule.core.prices import ModelPrice
from ferrule.engine import ToolEngine
from ferrule.errors import APPROVAL_REQUIRED, KNOWN_FAILURE, PERMISSION_DENIED, CallError
from ferrule.policy.policy import Permissions
from ferrule.policy.provenance import UNTRUSTED_TARGETS
from ferrule.store import ToolCallRecord, ToolKnowledgeStore

FAILED = "failed"
"""The state of a task that could not be worked on because of an error of the program or its environment."""


def build_trajectory(
    task: BatchTask,
    answer: AgentAnswer[Any],
    trace: TaskTrace,
    records: Sequence[ToolCallRecord],
    *,
    model: str,
    started_at: float,
    is_resumed: bool,
    engine: ToolEngine,
    permissions: Permissions,
) -> dict[str, Any]:
    """Build the trajectory of a task whose run has ended."""
    messages = answer.messages
    records = sorted(records, key=lambda record: (record.started_at, record.record_id))
    calls = [_describe_call(record, permissions, engine.registry) for record in records]
    definitions: dict[bytes, Schema] = {}  # each that the model was shown, once
    for entry in trace.requests:
        for schema in entry.request.tools:
            definitions.setdefault(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS), schema)
    price = engine.costs.find_model_price(model)
    model_cost = None if price is None else price.cost_of(answer.usage)
    return {
        **_describe_task(task, model=model, started_at=started_at),
        "state": answer.state.value,
        "answer": answer.text,
        "reason": answer.reason,
        "failure": _failure_class(answer, trace),
        "messages": messages,
        "tools": list(definitions.values()),
        "usage": asdict(answer.usage),
        "cost": None if model_cost is None else model_cost + sum(call["cost"] for call in calls),
        "currency": engine.costs.prices.currency,
        "run_id": answer.run_id,
        "is_resumed": is_resumed,
        "requests": [_describe_request(entry, messages, price) for entry in trace.requests],
        "calls": calls,
        "refused_by_memory": [call["tool_call_id"] for call in calls if call["error_type"] == KNOWN_FAILURE],
        "totals": {
            "turns": sum(message["role"] == "assistant" for message in messages),
            "calls": len(answer.steps),
            "failed_calls": sum(not step.is_success for step in answer.steps),
            "prevented": sum(step.error_type == KNOWN_FAILURE for step in answer.steps),
        },
    }


def build_failure(task: BatchTask, error: BaseException, *, model: str, started_at: float) -> dict[str, Any]:
    """Build the trajectory of a task without a run: the program or its environment failed several times."""
    return {
        **_describe_task(task, model=model, started_at=started_at),
        "state": FAILED,
        "answer": "",
        "reason": f"{type(error).__name__}: {error}",
        "failure": type(error).__name__,
        "messages": [],
        "tools": [],
        "usage": {},
        "cost": None,
    }


def remove_secrets(trajectory: dict[str, Any], store: ToolKnowledgeStore) -> dict[str, Any]:
    """Remove the secrets of the run, and everything that looks like a secret."""
    secrets = store.get_run_secrets(str(trajectory.get("run_id", "")))
    # The task's id is what the batch continues by, and its own name for it.
    exempt = set("id digest run_id state failure usage cost totals seconds started_at ended_at".split())
    return {name: value if name in exempt else secrets.redact(value) for name, value in trajectory.items()}


def _describe_task(task: BatchTask, *, model: str, started_at: float) -> dict[str, Any]:
    ended_at = time.time()
    return {
        "id": task.id,
        "digest": task.digest,
        "task": task.task,
        "metadata": dict(task.metadata),
        "model": model,
        "started_at": started_at,
        "ended_at": ended_at,
        "seconds": round(ended_at - started_at, 3),
        "ferrule_version": __version__,
    }


def _failure_class(answer: AgentAnswer[Any], trace: TaskTrace) -> str | None:
    if answer.is_finished:
        return None
    if answer.state.value == "waiting":
        if any(UNTRUSTED_TARGETS in request.reason for request in answer.approvals):
            return "untrusted_target"
        return "approval" if answer.approvals else "question"
    if "(limit " in answer.reason:
        return "limit"
    return trace.failure or answer.state.value


def _describe_request(entry: RequestTrace, messages: Sequence[Message], price: ModelPrice | None) -> dict[str, Any]:
    request, reply = entry.request, entry.reply
    context = 0
    for sent, message in zip(entry.messages, messages, strict=False):
        if sent is not message and sent != message:
            break
        context += 1
    described: dict[str, Any] = {
        "at": entry.at,
        "context": context,
        "messages": entry.messages[context:],
        "tools": [schema["function"]["name"] for schema in request.tools],
        "tool_choice": request.tool_choice,
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "answer_schema": request.answer_schema,
        "attempts": entry.attempts,
        "seconds": round(entry.seconds, 3),
    }
    if reply is not None:
        described["reply"] = {
            "usage": asdict(reply.usage),
            "cost": None if price is None else price.cost_of(reply.usage),
            "finish_reason": reply.finish_reason,
            "reasoning": reply.reasoning,
        }
    return {name: value for name, value in described.items() if value not in (None, [], "")}


def _describe_call(record: ToolCallRecord, permissions: Permissions, registry: ToolRegistry) -> dict[str, Any]:
    tool_call_id = record.metadata.get("tool_call_id")
    described = {
        "record_id": record.record_id,
        "tool_call_id": tool_call_id,
        "tool": record.tool_name,
        "action": record.action,
        "status": record.status,
        "error_type": record.error_type,
        "at": record.started_at,
        "wait_time": record.wait_time,
        "execution_time": record.execution_time,
        "attempts": record.attempts,
        "fingerprint": record.fingerprint,
        "source": record.source,
        "parent_id": record.parent_id,
        "artifact_id": record.artifact_id,
        "cost": record.cost or 0.0,
        "decision": _describe_decision(record, permissions, registry),
        "metadata": {name: value for name, value in record.metadata.items() if name not in ("tool_call_id", "cost")},
    }
    if tool_call_id is None or record.parent_id is not None:  # the messages do not have it
        described |= {"params": record.params, "result": record.result, "error": record.error}
    return described


def _describe_decision(record: ToolCallRecord, permissions: Permissions, registry: ToolRegistry) -> dict[str, Any]:
    """Describe what the policy decided about the call, and by which rule."""
    decision: Decision | None = None
    with suppress(CallError):  # the tool is gone
        tool, capability = registry.find(record.tool_name, record.action)
        decision = permissions.decide(tool, capability, record.params)
    verdict = {PERMISSION_DENIED: "deny", APPROVAL_REQUIRED: "ask"}.get(record.error_type or "")
    described: dict[str, Any] = {"verdict": verdict or (decision.verdict if decision is not None else "allow")}
    if decision is not None and decision.rule:
        described["rule"] = decision.rule
    if verdict is not None:
        described["reason"] = record.error
    return described
