"""What goes wrong with a server, in our words: one table for the errors of the protocol."""

from __future__ import annotations

from typing import Any, Final

from ferrule.errors import (
    CallError,
    ExecutionFailed,
    FerruleError,
    InvalidArguments,
    NeedsApproval,
    TimedOut,
    TransportFault,
)

CONNECTION_CLOSED: Final = -32000
REQUEST_TIMEOUT: Final = -32001
INVALID_REQUEST: Final = -32600
PARSE_ERROR: Final = -32700
CUT_OFF: Final = "the way to it broke: "
UNKNOWN_HERE: Final = frozenset({-32601, -32602})
"""After these the server may have other actions than it had."""

PROTOCOL_ERRORS: Final[dict[int, type[CallError]]] = {
    PARSE_ERROR: ExecutionFailed,  # it could not read the message
    INVALID_REQUEST: ExecutionFailed,
    -32601: ExecutionFailed,  # no such method
    -32602: InvalidArguments,  # also: no such tool
    -32603: ExecutionFailed,  # something inside it
    CONNECTION_CLOSED: ExecutionFailed,  # only where the server itself says so, see `is_cut_off`
    REQUEST_TIMEOUT: TimedOut,
    -32020: ExecutionFailed,  # headers and message differ
    -32021: ExecutionFailed,  # it needs something of its client that we do not offer
    -32022: ExecutionFailed,  # no protocol version in common
    -32042: NeedsApproval,  # a person must open a page first
}


def is_cut_off(code: int, message: str) -> bool:
    """Whether the connection ended. Servers use these codes for whatever they like; the words are ours or the SDK's."""
    if code == CONNECTION_CLOSED:
        return message == "Connection closed" or message.startswith(("SSE stream ", CUT_OFF))
    return code == PARSE_ERROR and CUT_OFF in message


def protocol_failure(name: str, code: int, message: str, data: Any) -> CallError:
    """The failure an error response means for its call."""
    kind = PROTOCOL_ERRORS.get(code, ExecutionFailed)
    if kind is NeedsApproval:
        addresses = _addresses(data)
        return NeedsApproval(f"{name!r} wants a person to open {' and '.join(addresses) or 'a page'} first: {message}")
    return kind(f"{name!r} answered with an error: {message}", code=code)


def broken_call(name: str, action: str, reason: str, *, repeatable: bool) -> CallError:
    """The connection ended while a call was on its way."""
    if repeatable:
        return TransportFault(f"the connection to {name!r} ended during the call of {action!r}: {reason}")
    return ExecutionFailed(
        f"the connection to {name!r} ended during the call of {action!r}: {reason}. Its outcome is UNKNOWN: "
        "it may have been done or not. It is not repeated by itself; look at what it should have changed first.",
        outcome="unknown",
    )


def reason_of(error: BaseException | None) -> str:
    """Why a connection could not be made or ended, in a few words."""
    cause = root_of(error)
    if cause is None:
        return "the server closed it"
    if isinstance(cause, FerruleError):
        return str(cause)
    text = str(cause).strip()
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def root_of(error: BaseException | None) -> BaseException | None:
    """The exception that started it, out of the groups that task groups wrap around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def was_never_sent(error: BaseException | None) -> bool:
    """Whether the connection ended because no connection could be made at all."""
    return type(root_of(error)).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout")


def _addresses(data: Any) -> list[str]:
    wanted = data.get("elicitations") if isinstance(data, dict) else None
    return [str(each["url"]) for each in wanted or () if isinstance(each, dict) and "url" in each]
