"""What a tool raised, in our words: one table for the exceptions of other libraries.

The libraries need not be installed: exceptions are known by the names of their classes and of their bases.
"""

from __future__ import annotations

from ferrule.errors import CallError, ExecutionFailed, Transient, TransportFault, text_of

FOREIGN: dict[str, type[CallError]] = {
    "builtins.ConnectionError": TransportFault,
    "builtins.BrokenPipeError": TransportFault,
    "builtins.TimeoutError": Transient,
    "builtins.InterruptedError": Transient,
    "builtins.BlockingIOError": Transient,
    "socket.gaierror": TransportFault,
    "httpx.TimeoutException": Transient,
    "httpx.TransportError": TransportFault,
    "httpx.ConnectTimeout": TransportFault,
    "httpcore.TimeoutException": Transient,
    "httpcore.NetworkError": TransportFault,
    "requests.exceptions.ConnectionError": TransportFault,
    "requests.exceptions.Timeout": Transient,
    "urllib.error.URLError": TransportFault,
    "urllib.error.HTTPError": ExecutionFailed,
    "aiohttp.client_exceptions.ClientConnectionError": TransportFault,
    "anyio.BrokenResourceError": TransportFault,
    "anyio.ClosedResourceError": TransportFault,
    "sqlite3.OperationalError": ExecutionFailed,
}
"""The nearest class of an exception's family decides: `httpx.ConnectTimeout` before `httpx.TimeoutException`."""


_BROKEN_OFF = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
"""The other side was reached, and may have done what it was asked."""


def failure_of(error: BaseException) -> CallError:
    """The failure a raised exception means for its call."""
    if isinstance(error, CallError):
        return error
    kind = next((FOREIGN[name] for name in _family(error) if name in FOREIGN), ExecutionFailed)
    text = text_of(error)
    failure = kind(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    if isinstance(error, _BROKEN_OFF):
        failure.details = {"outcome": "unknown"}
    failure.__cause__ = error
    return failure


def _family(error: BaseException) -> list[str]:
    # httpx and httpcore say their public module; most others keep the defining one.
    return [f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__]
