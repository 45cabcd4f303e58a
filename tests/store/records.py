"""Helpers that record calls as the engine does."""

from typing import Any

from ferrule.store import ToolCallRecord, ToolKnowledgeStore


def start_record(store: ToolKnowledgeStore, tool_name: str = "echo", **fields: Any) -> ToolCallRecord:
    record = ToolCallRecord(record_id=store.new_record_id(), tool_name=tool_name, **fields)
    store.record_started(record)
    return record


def finish_record(store: ToolKnowledgeStore, tool_name: str = "echo", **fields: Any) -> ToolCallRecord:
    record = ToolCallRecord(record_id=store.new_record_id(), tool_name=tool_name, **{"status": "success", **fields})
    store.record_finished(record)
    return record
