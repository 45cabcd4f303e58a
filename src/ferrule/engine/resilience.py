"""How the engine copes with tools that fail: a result cache, a circuit breaker, retries, and a table that translates
the exceptions of other libraries.
"""

from __future__ import annotations

import copy
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ferrule.core.aio import backoff_delay
from ferrule.core.call import ToolExecutionContext
from ferrule.core.content import Output, encode_json, plain_json
from ferrule.core.permission import Principal
from ferrule.core.spec import Effects, Tool, ToolCapability
from ferrule.errors import (
    CallError,
    ExecutionFailed,
    Rejected,
    SetupError,
    TimedOut,
    Transient,
    TransportFault,
    error_text,
)

# Cache

CacheKey: TypeAlias = Hashable


class ResultCache:
    """The newest results of tools that declare themselves cacheable, by tool, action and arguments.

    Every caller gets its own copy.
    """

    def __init__(self, max_entries: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self._max, self._clock = max_entries, clock
        self._entries: OrderedDict[CacheKey, tuple[float, Any, Output]] = OrderedDict()

    def key(
        self, tool: Tool, capability: ToolCapability, params: dict[str, Any], principal: Principal, policy: object
    ) -> CacheKey | None:
        """Return the key of a result; None for arguments that JSON cannot represent exactly (NaN, say).

        Results are not shared between principals or policies: a tool may return what its caller may see.
        """
        if plain_json(params) != params:
            return None
        arguments = encode_json(params, sort_keys=True)
        return tool.source, tool.spec.fingerprint, capability.name, arguments, principal, id(policy)

    def get(self, key: CacheKey, tool: Tool) -> Output | None:
        """Return the result, unless it has expired or is of another function with the same spec."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        expires, target, output = entry
        if expires < self._clock() or target is not tool.target:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return replace(output, data=copy.deepcopy(output.data))

    def add(self, key: CacheKey, tool: Tool, output: Output, ttl: float) -> None:
        copied = replace(output, data=copy.deepcopy(output.data))
        self._entries[key] = (self._clock() + ttl, tool.target, copied)
        self._entries.move_to_end(key)
        if len(self._entries) > self._max:
            self._entries.popitem(last=False)


# Circuit breaker


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerConfig:
    threshold: int = 5
    """Transport faults in a row that open the circuit; 0 = never."""
    recovery: float = 30.0
    """Seconds it stays open before one call may try again."""

    def __post_init__(self) -> None:
        if self.threshold < 0 or not self.recovery > 0:
            raise SetupError(f"threshold must be 0 or more and recovery more than 0 seconds, not {self!r}")


class CircuitBreaker:
    """Rejects calls of one tool for a while after it could not be reached several times in a row.

    Only transport faults count. A tool that answers, even with an error, is reachable.
    """

    def __init__(
        self,
        config: BreakerConfig,
        clock: Callable[[], float] = time.monotonic,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self._config, self._clock, self._on_open = config, clock, on_open
        self.faults = 0
        """Transport faults since the last success. With 0 there is nothing to check and nothing to report."""
        self._opened_at: float | None = None
        self._is_probing = False
        """Whether one call was let through to find out if the tool can be reached again."""
        self._opened_elsewhere = False
        self._trusts_others = True
        """False after a tool was reached here that another process could not reach: the fault is there, not here."""

    @property
    def state(self) -> Literal["closed", "open", "half_open"]:
        if self._opened_at is None:
            return "closed"
        return "open" if self._clock() - self._opened_at < self._config.recovery else "half_open"

    def check(self, tool_name: str) -> None:
        """Reject a call that could not be let through now."""
        if self._opened_at is None:
            return
        wait = self._config.recovery - (self._clock() - self._opened_at)
        if wait > 0 or self._is_probing:
            wait = max(wait, 1.0)
            raise Rejected(
                f"Tool {tool_name!r} could not be reached {self.faults} times in a row; its calls are rejected for a "
                f"while. Try again in {wait:.0f} s, or use another tool.",
                reason="circuit_open",
                retry_after=wait,
            )

    def begin_call(self, tool_name: str) -> None:
        """Let a call through, or reject it. A call that enters must report how it went."""
        self.check(tool_name)
        self._is_probing = self._opened_at is not None

    def record_success(self) -> None:
        """Note that the tool was reached."""
        self.faults = 0
        self._opened_at = None
        self._is_probing = False
        if self._opened_elsewhere:
            self._opened_elsewhere = self._trusts_others = False

    def record_fault(self) -> None:
        """Note that the tool was not reached."""
        self.faults += 1
        self._is_probing = self._opened_elsewhere = False
        self._trusts_others = True
        if self._config.threshold and self.faults >= self._config.threshold:
            self._opened_at = self._clock()
            self._on_open()

    def open(self, age: float = 0.0) -> None:
        """Note that another process could not reach the tool, some seconds ago."""
        opened_at = self._clock() - age
        is_newer = age < self._config.recovery and (self._opened_at is None or opened_at > self._opened_at)
        if self._config.threshold and self._trusts_others and is_newer:
            self.faults = max(self.faults, self._config.threshold)
            self._opened_at, self._is_probing, self._opened_elsewhere = opened_at, False, True

    def record_abandoned(self) -> None:
        """Note that the call ended without showing whether the tool can be reached."""
        self._is_probing = False


def is_overload(error: CallError) -> bool:
    """Return whether the service of a tool has said that it gets too many calls, or did not answer in time."""
    if isinstance(error, TimedOut) or not _TIMEOUTS.isdisjoint(_class_names(error.__cause__)):
        return True
    return error.details.get("status_code") == 429 or ("retry_after" in error.details and not error.transport_fault)


# Retries


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed call is repeated, and after how long: the delay doubles, with jitter so that the retries of many
    callers spread.
    """

    first_delay: float = 0.2
    max_delay: float = 10.0
    jitter: Callable[[], float] = random.random

    def may_retry(self, failure: CallError, effects: Effects, context: ToolExecutionContext, attempts: int) -> bool:
        """Return whether to repeat a call: the failure may pass by itself, and repeating does no harm."""
        return (
            failure.transient
            and effects.repeatable
            and not isinstance(failure, TimedOut)  # the call's whole time is used up
            and attempts + context.retry_count <= context.max_retries
        )

    def delay(self, failure: CallError, attempts: int) -> float:
        """Return the seconds to wait after `attempts` attempts. A failure may state its own delay."""
        retry_after = failure.details.get("retry_after")
        if isinstance(retry_after, (int, float)):
            return max(float(retry_after), self.first_delay)
        return backoff_delay(attempts, first=self.first_delay, longest=self.max_delay, jitter=self.jitter)


# Exceptions of other libraries

FOREIGN_ERRORS: dict[str, type[CallError]] = {
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
"""By the name of the class, so that the libraries need not be installed. The nearest class of an exception's bases
decides: `httpx.ConnectTimeout` before `httpx.TimeoutException`.
"""

_TIMEOUTS = frozenset(name for name, kind in FOREIGN_ERRORS.items() if "Timeout" in name and kind is Transient)

_INTERRUPTED_CONNECTIONS = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
"""The other side was reached, and may have done what was requested."""


def to_call_error(error: BaseException) -> CallError:
    """Convert any exception of a tool to a `CallError`."""
    if isinstance(error, CallError):
        return error
    kind = next((FOREIGN_ERRORS[name] for name in _class_names(error) if name in FOREIGN_ERRORS), ExecutionFailed)
    text = error_text(error)
    failure = kind(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    if isinstance(error, _INTERRUPTED_CONNECTIONS):
        failure.details = {"outcome": "unknown"}
    failure.__cause__ = error
    return failure


def _class_names(error: BaseException | None) -> Iterator[str]:
    """Yield the names of the class and its bases. httpx and httpcore have the name of their public module."""
    return (f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__)
