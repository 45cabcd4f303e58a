"""Logs as lines of text or JSON. A line that is written during a run or a call names it."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from ferrule.core.call import Invocation
from ferrule.core.events import ToolEngineEvent, ToolEngineEventType
from ferrule.core.secrets import Redaction
from ferrule.engine import ToolEngine

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

logger = logging.getLogger("ferrule.calls")

_FIELDS: Final = (
    *("run_id", "call_id", "tool", "status", "seconds", "principal", "rule", "strategy"),
    *("method", "route", "http_status", "address"),
)
"""What a record of the log may have besides its message."""
_run_id: ContextVar[str | None] = ContextVar("ferrule_log_run_id", default=None)


def configure_logs(log_format: LogFormat, level: LogLevel) -> None:
    """Write the logs of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(RedactedFormatter(JsonFormatter() if log_format == "json" else text))
    handler.addFilter(_add_ids)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("ferrule", "uvicorn"):
        logging.getLogger(name).setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error"):  # through the same handler
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    # uvicorn writes an access log if this logger reaches a handler; requests are logged by `ObservedRequests`.
    logging.getLogger("uvicorn.access").handlers.clear()
    logging.getLogger("uvicorn.access").propagate = False


def log_events(engine: ToolEngine) -> None:
    """Log each call and each question of an engine when it ends, where the level is `info` or lower."""
    types = {ToolEngineEventType.AGENT_STARTED}
    if logger.isEnabledFor(logging.INFO):
        types |= {ToolEngineEventType.AFTER_TOOL_CALL, ToolEngineEventType.QUESTION_ENDED}
    engine.subscribe(_log_event, types)


class RedactedFormatter(logging.Formatter):
    """A formatter that removes secrets from the lines of another formatter."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter, self._redaction = formatter, Redaction()

    def format(self, record: logging.LogRecord) -> str:
        return self._redaction.redact_text(self._formatter.format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        values = {name: getattr(record, name, None) for name in _FIELDS}
        line |= {name: value for name, value in values.items() if value is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def json_log_line(message: str) -> str:
    """Return a line of a log in JSON that is written at every level."""
    fields = {"name": "ferrule.serve", "levelname": "INFO", "levelno": logging.INFO, "msg": message}
    return JsonFormatter().format(logging.makeLogRecord(fields))


def _add_ids(record: logging.LogRecord) -> bool:
    invocation = Invocation.current.get()
    if invocation is not None and not hasattr(record, "call_id"):
        record.call_id = invocation.call_id
    if not hasattr(record, "run_id"):
        context = None if invocation is None else invocation.context
        record.run_id = _run_id.get() or (None if context is None else context.conversation_id or context.workflow_id)
    return True


def _log_event(event: ToolEngineEvent) -> None:
    data = event.data
    match event.event_type:
        case ToolEngineEventType.AGENT_STARTED:
            _run_id.set(data["run_id"])
        case ToolEngineEventType.AFTER_TOOL_CALL:
            result, context = data["result"], data["context"]
            fields = {
                "run_id": context.conversation_id or context.workflow_id,
                "call_id": event.call_id,
                "tool": event.tool_name,
                "status": "success" if result.is_success else result.error_type,
                "seconds": round(result.execution_time, 6),
                "principal": None if event.principal is None else event.principal.label,
            }
            logger.info("tool=<%s>, status=<%s> | called", fields["tool"], fields["status"], extra=fields)
        case ToolEngineEventType.QUESTION_ENDED if "result" in data:
            answer = data["result"]
            extra = {"run_id": answer.run_id or None, "status": answer.state.value, "strategy": answer.strategy}
            logger.info("run=<%s>, state=<%s> | answered", answer.run_id, answer.state.value, extra=extra)
