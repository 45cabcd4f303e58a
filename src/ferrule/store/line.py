"""A record as one line of JSON, which is all the hot path has to make.

A line is an array. Its members stand in the order of the columns of the table (see `schema.py`), so that SQL can pick
them by their number. What is known when a call starts is the head; what is known when it ends is the tail:

    ["id", started_at, "tool", …, {params}]                                     the call started
    ["id", started_at, "tool", …, {params}, "success", 0.02, …, {result}, {}]   the call ended

The line of an ended call says everything the line of its start did. So lines can be put into SQL in any number and
any number of times, and of two lines of one record the later one is enough.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, cast

import orjson

from ferrule.redaction import Redaction, storable_text
from ferrule.store.record import ToolCallRecord

_UNENCODABLE = (TypeError, ValueError, RecursionError)


def started_line(record: ToolCallRecord, redaction: Redaction, secret_names: frozenset[str]) -> bytes:
    record.written = head = _head(record, redaction, secret_names)
    return head + b"," + _tail(record, redaction) if record.metadata else head + b"]\n"


def finished_line(record: ToolCallRecord, redaction: Redaction, secret_names: frozenset[str]) -> bytes:
    return (record.written or _head(record, redaction, secret_names)) + b"," + _tail(record, redaction)


def newest(lines: Sequence[bytes]) -> list[bytes]:
    """The last line of each record."""
    lines_of = {line.partition(b'",')[0]: line for line in lines}
    if b"\\" in b"".join(lines_of):  # an id with a quotation mark in it, which may not be where it ends
        lines_of = {_id_of(line): line for line in lines}
    return list(lines_of.values())


def is_whole(line: bytes) -> bool:
    """Whether the line was written to its end; the database finds those this test cannot."""
    return line[:2] == b'["' and line[-1:] == b"]" and b"\0" not in line


def _id_of(line: bytes) -> bytes:
    end = line.find(b'",')
    # An id with a quotation mark in it is not worth parsing: such a line stands for itself.
    return line if line[end - 1 : end] == b"\\" else line[:end]


# These two are most of what recording costs. They try the cheap way first, and give up as soon as it does not do.


def _head(record: ToolCallRecord, redaction: Redaction, secret_names: frozenset[str]) -> bytes:
    identity = [
        record.record_id,
        record.started_at,
        record.tool_name,
        record.action,
        record.caller_id,
        record.caller_type,
        record.conversation_id,
        record.workflow_id,
        record.fingerprint,
        record.source,
        record.parent_id,
    ]
    try:
        encoded = orjson.dumps(identity)
        params = orjson.dumps(record.params)
    except _UNENCODABLE:
        pass
    else:
        if not secret_names and not redaction.suspects(params.decode()):
            return encoded[:-1] + b"," + params
    record.secrets = redaction.secrets_of(record.params, secret_names)
    cleaned = redaction.clean_params(record.params, secret_names, record.secrets)
    return _encode([*map(_storable, identity), cleaned])[:-1]


def _tail(record: ToolCallRecord, redaction: Redaction) -> bytes:
    outcome = [
        record.status,
        record.execution_time,
        record.wait_time,
        record.attempts,
        record.error_type,
        record.artifact_id,
        record.error,
        record.result,
        record.metadata,
    ]
    if not record.secrets:
        try:
            encoded = orjson.dumps(outcome, option=orjson.OPT_APPEND_NEWLINE)
        except _UNENCODABLE:
            pass
        else:
            if not redaction.suspects(encoded.decode()):
                return encoded[1:]
    said = [redaction.clean(each, record.secrets) for each in outcome[6:]]  # the error, the result, the metadata
    return _encode([*map(_storable, outcome[:6]), *said])[1:] + b"\n"


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, int) else storable_text(str(value))


def _encode(plain: Any) -> bytes:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def decoded(text: str | None) -> dict[str, Any]:
    """A JSON column read back; integers of any size stay what they were."""
    return cast(dict[str, Any], json.loads(text)) if text else {}
