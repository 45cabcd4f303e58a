"""Telling about calls: to the store, which keeps it, and to subscribers, who watch."""

from __future__ import annotations

import logging
from typing import Any

from ferrule.call import Progress, ToolExecutionResult
from ferrule.content import copy_json
from ferrule.engine.running import RunningCall
from ferrule.errors import CANCELLED, VALIDATION_ERROR
from ferrule.events import EventBus, ToolEngineEvent, ToolEngineEventType
from ferrule.store import ToolCallRecord, ToolKnowledgeStore

logger = logging.getLogger("ferrule.engine")

NOT_RECORDED = "[not recorded]"
_NO_NAMES: frozenset[str] = frozenset()


class CallLog:
    """Records and announces what happens to calls. An event nobody waits for is not made."""

    def __init__(self, store: ToolKnowledgeStore, events: EventBus) -> None:
        self._store, self._events = store, events

    def arrived(self, call: RunningCall) -> None:
        if self._events.watched:
            self._announce(
                call,
                ToolEngineEventType.BEFORE_TOOL_CALL,
                params=copy_json(call.params),
                action=call.action,
                context=call.context,
            )

    def started(self, call: RunningCall) -> None:
        """From here on the call has its record, whatever is killed."""
        call.record = _record_of(call)
        self._store.record_started(call.record, secret_names=_secret_names(call))
        if self._events.watched:
            self._announce(call, ToolEngineEventType.EXECUTION_STARTED, params=copy_json(call.params))

    def progressed(self, call: RunningCall, progress: Progress) -> None:
        if call.ended is not None:  # a task the tool left behind
            return
        if call.on_progress is not None:
            try:
                call.on_progress(progress)
            except Exception:
                logger.exception("tool=<%s> | the caller's progress callback failed", call.tool_name)
        if self._events.watched:
            self._announce(call, ToolEngineEventType.EXECUTION_PROGRESS, progress=progress)

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

    def _announce(self, call: RunningCall, event_type: ToolEngineEventType, **data: Any) -> None:
        self._events.emit(
            ToolEngineEvent(event_type=event_type, tool_name=call.tool_name, call_id=call.call_id, data=data)
        )

    def _announce_end(self, call: RunningCall, result: ToolExecutionResult) -> None:
        if result.is_success:
            ended = ToolEngineEventType.EXECUTION_COMPLETED
        elif result.error_type == VALIDATION_ERROR:
            ended = ToolEngineEventType.VALIDATION_ERROR
        else:
            ended = ToolEngineEventType.EXECUTION_FAILED
        # Subscribers watch: what they do to their copy is nobody else's business.
        shown = ToolExecutionResult(
            is_success=result.is_success,
            tool_name=result.tool_name,
            output=copy_json(result.output),
            error=result.error,
            error_type=result.error_type,
            validation_errors=copy_json(result.validation_errors) if result.validation_errors else [],
            execution_time=result.execution_time,
            executed_at=result.executed_at,
            metadata=copy_json(result.metadata) if result.metadata else {},
            call_id=result.call_id,
            content=result.content,
        )
        for event_type in (ended, ToolEngineEventType.AFTER_TOOL_CALL):
            self._events.emit(
                ToolEngineEvent(
                    event_type=event_type,
                    tool_name=call.tool_name,
                    call_id=call.call_id,
                    error=result.error,
                    error_type=result.error_type,
                    data={"result": shown},
                )
            )


def _record_of(call: RunningCall) -> ToolCallRecord:
    prepared, context = call.prepared, call.context
    record = ToolCallRecord(
        record_id=call.call_id,
        tool_name=call.tool_name,
        action=call.action,
        params=_recordable(call),
        caller_id=context.caller_id,
        caller_type=context.caller_type,
        conversation_id=context.conversation_id,
        workflow_id=context.workflow_id,
        started_at=call.arrived_at,
        wait_time=call.wait_time,
        parent_id=call.parent.call_id if call.parent is not None else None,
    )
    if prepared is not None:
        record.tool_name, record.action = prepared.tool.spec.tool_id, prepared.capability.name
        record.fingerprint, record.source = prepared.fingerprint, prepared.tool.source
    return record


def _recordable(call: RunningCall) -> dict[str, Any]:
    params = call.params
    if not isinstance(params, dict):
        return {} if params is None else {"arguments": NOT_RECORDED if call.prepared is None else params}
    if call.prepared is None:  # nobody can say which of them are secret
        return dict.fromkeys(map(str, params), NOT_RECORDED)
    return params


def _secret_names(call: RunningCall) -> frozenset[str]:
    return call.prepared.secret_names if call.prepared is not None else _NO_NAMES
