"""Telling about calls: to the store, which keeps it, and to subscribers, who watch."""

from __future__ import annotations

import logging
from typing import Any

from ferrule.call import Progress, ToolExecutionResult
from ferrule.content import copy_json
from ferrule.engine.running import RunningCall
from ferrule.errors import CANCELLED, VALIDATION_ERROR
from ferrule.events import EventBus, ToolEngineEventType
from ferrule.store import ToolCallRecord, ToolKnowledgeStore

logger = logging.getLogger("ferrule.engine")

NOT_RECORDED = "[not recorded]"
_NO_NAMES: frozenset[str] = frozenset()

# Each call announces these: as names of a module they are found in half the time.
_BEFORE = ToolEngineEventType.BEFORE_TOOL_CALL
_STARTED = ToolEngineEventType.EXECUTION_STARTED
_PROGRESS = ToolEngineEventType.EXECUTION_PROGRESS
_COMPLETED = ToolEngineEventType.EXECUTION_COMPLETED
_AFTER = ToolEngineEventType.AFTER_TOOL_CALL


class CallLog:
    """Records and announces what happens to calls. An event nobody waits for is not made."""

    def __init__(self, store: ToolKnowledgeStore, events: EventBus) -> None:
        self._store, self._events = store, events

    def arrived(self, call: RunningCall) -> None:
        if self._events.watched:
            data = {"params": copy_json(call.params), "action": call.action, "context": call.context}
            self._events.emit_of_call(_BEFORE, call.tool_name, call.call_id, data)

    def started(self, call: RunningCall) -> None:
        """From here on the call has its record, whatever is killed."""
        assert call.prepared is not None
        call.record = _record_of(call)
        self._store.record_started(call.record, secret_names=call.prepared.secret_names)
        if self._events.watched:
            self._events.emit_of_call(_STARTED, call.tool_name, call.call_id, {"params": copy_json(call.params)})

    def progressed(self, call: RunningCall, progress: Progress) -> None:
        if call.ended is not None:  # a task the tool left behind
            return
        if call.on_progress is not None:
            try:
                call.on_progress(progress)
            except Exception:
                logger.exception("tool=<%s> | the caller's progress callback failed", call.tool_name)
        if self._events.watched:
            self._events.emit_of_call(_PROGRESS, call.tool_name, call.call_id, {"progress": progress})

    def ended(self, call: RunningCall, result: ToolExecutionResult) -> None:
        """How the call ended, before its caller is told."""
        record = call.record if call.record is not None else _record_of(call)
        if result.is_success:
            record.status = "success"
            record.result = result.output
        else:
            record.status = "cancelled" if result.error_type == CANCELLED else "failed"
            record.error, record.error_type = result.error, result.error_type
        record.execution_time = result.execution_time
        record.attempts = call.attempts
        record.metadata = result.metadata
        record.artifact_id = result.metadata.get("artifact_id")
        self._store.record_finished(record, secret_names=_secret_names(call))
        if self._events.watched:
            self._announce_end(call, result)

    def _announce_end(self, call: RunningCall, result: ToolExecutionResult) -> None:
        if result.is_success:
            ended = _COMPLETED
        elif result.error_type == VALIDATION_ERROR:
            ended = ToolEngineEventType.VALIDATION_ERROR
        else:
            ended = ToolEngineEventType.EXECUTION_FAILED
        # Subscribers watch: what they do to their copy is nobody else's business.
        shown = ToolExecutionResult(
            result.is_success,
            result.tool_name,
            copy_json(result.output),
            result.error,
            result.error_type,
            copy_json(result.validation_errors) if result.validation_errors else [],
            result.execution_time,
            result.executed_at,
            copy_json(result.metadata) if result.metadata else {},
            result.call_id,
            result.content,
        )
        for event_type in (ended, _AFTER):
            self._events.emit_of_call(
                event_type, call.tool_name, call.call_id, {"result": shown}, result.error, result.error_type
            )


def _record_of(call: RunningCall) -> ToolCallRecord:
    prepared, context = call.prepared, call.context
    record = ToolCallRecord(
        call.call_id,
        call.tool_name if prepared is None else prepared.tool.spec.tool_id,
        call.params if prepared is not None and type(call.params) is dict else _recordable(call),
        call.action if prepared is None else prepared.capability.name,
        context.caller_id,
        context.caller_type,
        context.conversation_id,
        context.workflow_id,
        None if prepared is None else prepared.fingerprint,
        None if prepared is None else prepared.tool.source,
        None if call.parent is None else call.parent.call_id,
        call.arrived_at,
    )
    record.wait_time = call.wait_time
    if context.tool_call_id is not None:  # whoever goes on after a crash must find the call by it
        record.metadata = {"tool_call_id": context.tool_call_id}
    return record


def _recordable(call: RunningCall) -> dict[str, Any]:
    """Arguments that are no dictionary, or of a tool nobody knows."""
    params = call.params
    if not isinstance(params, dict):
        return {} if params is None else {"arguments": NOT_RECORDED if call.prepared is None else params}
    if call.prepared is None:  # nobody can say which of them are secret
        return dict.fromkeys(map(str, params), NOT_RECORDED)
    return params


def _secret_names(call: RunningCall) -> frozenset[str]:
    return call.prepared.secret_names if call.prepared is not None else _NO_NAMES
