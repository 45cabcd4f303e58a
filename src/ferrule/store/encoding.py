"""The lines of the journal: call records and entries, one line of JSON each.

The line of a record is all that a call has to produce before it returns. It is an array, whose items have the order of
the columns of the table (see `tables.py`), so that SQL can pick them by index. What is known when a call starts is
the head; what is known when it ends is the tail:

    ["id", started_at, "tool", …, {params}]                                     the call started
    ["id", started_at, "tool", …, {params}, "success", 0.02, …, {result}, {}, …]   the call ended

The line of an ended call repeats everything in the line of its start. So a line may be inserted more than once, and of
two lines of one record the later one is enough. The lines of entries (see `entry_streams.py`) are told apart by their
first item:

    ["!entry", "stream", "key", written_at, value]
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import orjson

from ferrule.core.content import SCALAR_TYPES, check_depth, safe_str
from ferrule.core.secrets import Redaction, merge_secrets
from ferrule.errors import StoreError
from ferrule.store.escapes import ESCAPE_MARK, escape_text, map_texts, unescape_text
from ferrule.store.record import ToolCallRecord

NOT_ENCODABLE = (TypeError, ValueError, RecursionError)
MARK_IN_JSON = ESCAPE_MARK.encode()
"""A text that has the mark of an escape without being one must be escaped itself."""
_NUL_IN_JSON = b"\\u0000"


def encode_call_start(record: ToolCallRecord, redaction: Redaction, secret_names: frozenset[str]) -> bytes:
    record.encoded_head = head = _encode_head(record, redaction, secret_names)
    has_tail = record.metadata or record.principal is not None
    return head + b"," + _encode_tail(record, redaction) if has_tail else head + b"]\n"


def encode_call_end(record: ToolCallRecord, redaction: Redaction, secret_names: frozenset[str]) -> bytes:
    return (
        (record.encoded_head or _encode_head(record, redaction, secret_names)) + b"," + _encode_tail(record, redaction)
    )


def last_line_per_record(lines: Sequence[bytes]) -> list[bytes]:
    by_id = {line.partition(b'",')[0]: line for line in lines}
    if b"\\" in b"".join(by_id):  # an id that contains a quotation mark, where `partition` may have cut it
        # Such an id is too rare to parse: its line is not merged with others.
        by_id = {start if not (start := line.partition(b'",')[0]).endswith(b"\\") else line: line for line in lines}
    return list(by_id.values())


# These two are most of what recording costs. They try the fast encoder first; values that it cannot encode, or that may
# contain a secret, take the slow way: walk the value, redact it, encode it with `json`. A search for one byte, or for
# bytes that are not ASCII, takes a tenth of the time of a search for several, so it comes first.


def _encode_head(record: ToolCallRecord, redaction: Redaction, secret_names: frozenset[str]) -> bytes:
    """Encode what is known when a call starts. The record keeps its arguments without secrets."""
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
        for value in identity[4:8]:  # the caller's: any objects
            if type(value) not in SCALAR_TYPES:
                check_depth(value)
        encoded = orjson.dumps(identity)
        check_depth(record.params)
        params = orjson.dumps(record.params)
    except NOT_ENCODABLE:
        pass
    else:
        if (
            not secret_names
            and not record.secrets
            and (b"\\" not in encoded or _NUL_IN_JSON not in encoded)  # a text column accepts none, JSON does
            and (encoded.isascii() or MARK_IN_JSON not in encoded)
            and (params.isascii() or MARK_IN_JSON not in params)
            and not redaction.may_contain_secret(params.decode())
        ):
            return encoded[:-1] + b"," + params
    record.secrets = merge_secrets(record.secrets, redaction.find_secrets(record.params, secret_names))
    record.params = redaction.redact_params(record.params, secret_names, record.secrets)
    return encode_escaped([*map(_to_storable, identity), record.params])[:-1]


def _encode_tail(record: ToolCallRecord, redaction: Redaction) -> bytes:
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
        record.principal,
        record.tenant,
        record.cost,
    ]
    if not record.secrets:
        try:
            check_depth(record.result)
            if record.metadata:
                check_depth(record.metadata)
            encoded = orjson.dumps(outcome, option=orjson.OPT_APPEND_NEWLINE)
        except NOT_ENCODABLE:
            pass
        else:
            if (
                not (record.error and "\0" in record.error)
                and (encoded.isascii() or MARK_IN_JSON not in encoded)
                and not redaction.may_contain_secret(encoded.decode())
            ):
                return encoded[1:]
    redacted = [redaction.redact(value, record.secrets) for value in outcome[6:9]]  # error, result, metadata
    record.redacted = redacted[1], redacted[0]
    return encode_escaped([*map(_to_storable, outcome[:6]), *redacted, *map(_to_storable, outcome[9:])])[1:] + b"\n"


def _to_storable(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, int) else safe_str(value)


def encode_escaped(plain: Any) -> bytes:
    """Encode JSON without what a database rejects."""
    return json.dumps(map_texts(escape_text, plain), ensure_ascii=False, separators=(",", ":")).encode()


def decode_json_column(text: str | None) -> dict[str, Any]:
    """Decode a JSON column with `json`, not orjson, because integers may be of any size."""
    value = parse_stored_json(text) if text else {}
    return cast(dict[str, Any], map_texts(unescape_text, value) if text and ESCAPE_MARK in text else value)


def parse_stored_json(text: str) -> Any:
    """Parse JSON that was stored. Raises StoreError if it is damaged."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise StoreError(f"the database is damaged: a stored value is not JSON: {error}. Restore a backup.") from error


# Entries.

_ENTRY_START: Final = b'["!entry",'


def encode_entry(stream: str, key: str, value: Any, redaction: Redaction) -> bytes:
    """Return the line of one entry. `value` is any JSON value, in which secrets are redacted."""
    head = orjson.dumps(["!entry", escape_text(stream), escape_text(key), time.time()])[:-1]
    try:
        check_depth(value)
        encoded = orjson.dumps(value)
        if MARK_IN_JSON in encoded or redaction.may_contain_secret(encoded.decode()):
            encoded = encode_escaped(redaction.redact(value))
    except NOT_ENCODABLE:
        encoded = encode_escaped(redaction.redact(value))
    return head + b"," + encoded + b"]\n"


def split_entries_from_calls(lines: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    entries: list[bytes] = []
    records: list[bytes] = []
    for line in lines:
        (entries if line.startswith(_ENTRY_START) else records).append(line)
    return entries, records


def last_line_per_entry(lines: Sequence[bytes]) -> list[bytes]:
    """Return the last line of each key. A line that cannot be parsed stays: the database rejects and reports it."""
    newest: dict[Any, bytes] = {}
    for line in lines:
        try:
            _, stream, key, *_ = orjson.loads(line)
        except (orjson.JSONDecodeError, ValueError):
            stream = key = line
        newest[stream, key] = line
    return list(newest.values())
