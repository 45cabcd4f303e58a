"""Reads the messages of a server, and converts results and errors to outputs and failures of calls."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ferrule.core.content import Audio, Content, Image, Output, Resource, Text, as_text
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import (
    CallError,
    ExecutionFailed,
    FerruleError,
    InvalidArguments,
    NeedsApproval,
    TimedOut,
    TransportFault,
)

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock, JSONRPCMessage

CONNECTION_CLOSED: Final = -32000
REQUEST_TIMEOUT: Final = -32001
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
PARSE_ERROR: Final = -32700
CONNECTION_LOST: Final = "the connection broke: "
"""How messages begin that say that the connection of one call was lost."""
UNREADABLE_ANSWERS: Final = (
    "Failed to parse JSON response",
    "Failed to parse SSE message",
    "Unexpected content type",
    "server answered a request with 202",
)
"""How the SDK's messages begin when a server accepted a call and its answer cannot be read."""
UNKNOWN_ACTION_CODES: Final = frozenset({METHOD_NOT_FOUND, -32602})
"""After these errors the actions are listed again: the server may have changed them."""

PROTOCOL_ERRORS: Final[dict[int, type[CallError]]] = {
    PARSE_ERROR: ExecutionFailed,  # it could not read the message
    INVALID_REQUEST: ExecutionFailed,
    METHOD_NOT_FOUND: ExecutionFailed,
    -32602: InvalidArguments,  # also: no such tool
    -32603: ExecutionFailed,  # an internal error
    CONNECTION_CLOSED: ExecutionFailed,  # only where the server itself sends it, see `is_connection_lost`
    REQUEST_TIMEOUT: TimedOut,
    -32020: ExecutionFailed,  # headers and message differ
    -32021: ExecutionFailed,  # it needs a client capability that we do not offer
    -32022: ExecutionFailed,  # no protocol version in common
    -32042: NeedsApproval,  # a person must open a page first
}

_ESCAPE: Final = lazy_pattern(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape of JSON: two halves of a character, a half alone, or any other."""


# Messages


def read_json(data: bytes | str) -> Any:
    """Parse JSON that a server has sent. Raises ValueError for anything else."""
    data = replace_lone_surrogates(data if isinstance(data, bytes) else data.encode("utf-8", "replace"))
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_message(value: Any) -> JSONRPCMessage:
    """Convert JSON to a message of the protocol. Raises ValueError for anything else.

    Pydantic does not read the JSON itself: it would do that once for each kind of message.
    """
    from mcp.types import jsonrpc_message_adapter

    return jsonrpc_message_adapter.validate_python(value, by_name=False)


def replace_lone_surrogates(data: bytes) -> bytes:
    """Replace each half of a character in JSON.

    JavaScript writes half of a character that was cut as an escape, which pydantic refuses: with it the whole message
    would be lost, and the call that it answers would wait without end.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return _ESCAPE.sub(lambda match: b"\\ufffd" if match["lone"] else match[0], data)


# Results


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolError:
    """The error with which a server answered a call, for interfaces that pass it on unchanged."""

    code: int
    message: str
    data: Any = None


def convert_result(result: CallToolResult) -> Output:
    """Convert the result of an action. Raises ExecutionFailed when the server says that the action failed.

    Structured content is the data. The protocol asks servers to repeat it as text: such text is left out, everything
    else becomes parts.
    """
    parts = [_convert_block(block) for block in result.content]
    structured = result.structured_content
    if result.is_error:
        message = _join_texts(parts) or as_text(structured or "")
        raise ExecutionFailed(message or "the server reported a failure without a message.")
    if structured is not None:
        data = structured if isinstance(structured, dict) else {"result": structured}
        other_parts = tuple(
            p for p in parts if not (isinstance(p, Text) and _repeats_structured_content(p.text, structured))
        )
        return Output(data=data, parts=other_parts)
    if all(isinstance(part, Text) for part in parts):
        return Output(data={"result": _join_texts(parts)})
    return Output.of(parts)


def _join_texts(parts: list[Content]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def _repeats_structured_content(text: str, structured: Any) -> bool:
    """Return whether a text is the structured content, its only value, or an item of that value."""
    values = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        [value] = structured.values()
        # A list is often repeated as one text per item.
        values += [value, *value] if isinstance(value, list) else [value]
    if any(text == as_text(value) for value in values):
        return True
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return parsed in values


def _convert_block(block: ContentBlock) -> Content:
    if block.type == "text":
        return Text(text=block.text)
    if block.type == "image":
        return Image(data=_decode_base64(block.data), mime_type=block.mime_type)
    if block.type == "audio":
        return Audio(data=_decode_base64(block.data), mime_type=block.mime_type)
    if block.type == "resource_link":
        return Resource(uri=str(block.uri), mime_type=block.mime_type)
    resource = block.resource
    data = _decode_base64(resource.blob) if hasattr(resource, "blob") else None
    return Resource(
        uri=str(resource.uri), text=getattr(resource, "text", None), data=data, mime_type=resource.mime_type
    )


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ExecutionFailed("the server sent an image, a sound or a file that is not valid base64.") from None


# Failures


class SessionExpired(Exception):
    """The server does not know the session any more and did not execute the call: repeat it in a new session."""


class CallNotSent(TransportFault):
    """No connection to the server could be made for a call."""


class CallRefused(ExecutionFailed):
    """The server does not accept this client."""


def is_connection_lost(code: int, message: str) -> bool:
    """Return whether the connection ended. The texts, from us or the SDK, decide: servers use these codes freely."""
    if code == CONNECTION_CLOSED:
        return message == "Connection closed" or message.startswith(("SSE stream ", CONNECTION_LOST))
    return code == PARSE_ERROR and CONNECTION_LOST in message


def make_protocol_error(name: str, code: int, message: str, data: Any) -> CallError:
    failure = PROTOCOL_ERRORS.get(code, ExecutionFailed)
    if failure is NeedsApproval:
        elicitations = data.get("elicitations") if isinstance(data, dict) else None
        urls = [str(each["url"]) for each in elicitations or () if isinstance(each, dict) and "url" in each]
        pages = " and ".join(urls) or "a page"
        return NeedsApproval(f"{name!r} requires a person to open {pages} first: {message}")
    error = failure(f"{name!r} answered with an error: {message}", code=code)
    error.original = ProtocolError(code=code, message=message, data=data)
    return error


def make_unknown_outcome(message: str, *, repeatable: bool) -> CallError:
    """Make the failure of a call that may have been executed or not."""
    if repeatable:
        return TransportFault(message)
    return ExecutionFailed(
        f"{message}. Its outcome is UNKNOWN: it may have been executed or not. It is not repeated automatically; "
        "check what it should have changed first.",
        outcome="unknown",
    )


def describe_cause(error: BaseException | None) -> str:
    """Return why a connection could not be made, or why it ended."""
    cause = root_cause(error)
    if cause is None:
        return "the server closed the connection"
    if isinstance(cause, FerruleError):
        return str(cause)
    text = str(cause).strip()
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def root_cause(error: BaseException | None) -> BaseException | None:
    """Return the first exception inside the exception groups that task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def is_connect_error(error: BaseException | None) -> bool:
    return type(root_cause(error)).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout")
