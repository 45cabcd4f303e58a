"""Every error Ferrule raises, sorted by who must act.

FerruleError
├── SetupError                  the developer or the configuration must change
│   ├── SpecError               a tool describes itself in a way that cannot work
│   ├── LoadError               a file of tools cannot be loaded (file, line, what to write instead)
│   ├── DuplicateTool           one name twice in one source
│   └── MissingExtra            an optional dependency is not installed
├── StoreError                  the records cannot be read or written
├── ModelError                  a language model gave no answer
│   ├── ModelUnavailable        it may answer later: overloaded, rate limit, time-out, connection lost
│   └── ModelRefused            it will not: wrong key, unknown model, request not allowed
│       └── RequestTooLong      more than the model can read at once
└── CallError                   one call cannot succeed; the engine turns it into a failed result
    ├── ToolNotFound            tool_not_found
    ├── ExecutorNotFound        executor_not_found
    ├── InvalidArguments        validation_error
    ├── Rejected                rejected: no place, rate limit, open circuit
    ├── TimedOut                timeout
    ├── Stopped                 cancelled: the caller went away, or the engine was closed
    ├── PermissionDenied        permission_denied
    ├── KnownFailure            known_failure: it failed before, and nothing has changed
    ├── ExecutionFailed         execution_error
    │   └── TransportFault      the way to the tool is broken (transient)
    └── ToolSignal              raised by tools on purpose
        ├── Retry               try again with other arguments
        ├── Refuse              final: no arguments will do
        ├── NeedsApproval       a person must agree first
        └── Transient           the same call may succeed later
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

VALIDATION_ERROR: Final = "validation_error"
TOOL_NOT_FOUND: Final = "tool_not_found"
EXECUTOR_NOT_FOUND: Final = "executor_not_found"
EXECUTION_ERROR: Final = "execution_error"
TIMEOUT: Final = "timeout"
REJECTED: Final = "rejected"
CANCELLED: Final = "cancelled"
PERMISSION_DENIED: Final = "permission_denied"
KNOWN_FAILURE: Final = "known_failure"


class FerruleError(Exception):
    """Base of everything Ferrule raises."""


class SetupError(FerruleError):
    """The developer or the configuration must change before anything can run."""


class SpecError(SetupError):
    """A tool describes itself in a way that cannot work."""


class LoadError(SetupError):
    """A file of tools cannot be loaded."""

    def __init__(
        self, message: str, *, path: Path | None = None, line: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.path, self.line, self.hint = message, path, line, hint

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}:{self.line or 1}: "
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")


class DuplicateTool(SetupError):
    """One name twice in one source; names both origins."""


class MissingExtra(SetupError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'{package} is not installed. Install it with: pip install "ferrule[{extra}]"')


class StoreError(FerruleError):
    """The records cannot be read or written."""


class ModelError(FerruleError):
    """A language model gave no answer."""

    transient: ClassVar[bool] = False


class ModelUnavailable(ModelError):
    """The model may answer later: overloaded, rate limit, time-out, connection lost."""

    transient = True

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds it asked us to wait, if it did."""


class ModelRefused(ModelError):
    """The model will not answer this: wrong key, unknown model, request not allowed."""


class RequestTooLong(ModelRefused):
    """The request is more than the model can read at once: send less."""


class CallError(FerruleError):
    """One call cannot succeed. The engine turns it into a failed result; callers never see it raised."""

    error_type: ClassVar[str] = EXECUTION_ERROR
    transient: ClassVar[bool] = False
    """The same call may succeed later without any change."""
    transport_fault: ClassVar[bool] = False
    """The way to the tool is broken: counts for its circuit breaker."""
    details: Mapping[str, Any] = MappingProxyType({})
    """Facts for `ToolExecutionResult.metadata`. There even if a subclass forgets to call us."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details


class ToolNotFound(CallError):
    """No enabled tool has this name."""

    error_type = TOOL_NOT_FOUND


class ExecutorNotFound(CallError):
    """A tool names an executor that nobody registered."""

    error_type = EXECUTOR_NOT_FOUND


class InvalidArguments(CallError):
    """The arguments do not fit the tool's parameters."""

    error_type = VALIDATION_ERROR
    errors: Sequence[dict[str, Any]] = ()

    def __init__(self, message: str, errors: Sequence[dict[str, Any]] = (), **details: Any) -> None:
        super().__init__(message, **details)
        self.errors = list(errors)


class Rejected(CallError):
    """The call was not admitted: no place, a rate limit or an open circuit."""

    error_type = REJECTED
    transient = True


class TimedOut(CallError):
    """The call ran longer than it may, and was ended."""

    error_type = TIMEOUT
    transient = True


class Stopped(CallError):
    """The call was ended from outside: its caller went away, or the engine was closed."""

    error_type = CANCELLED


class PermissionDenied(CallError):
    """The call is not allowed as it stands."""

    error_type = PERMISSION_DENIED


class KnownFailure(CallError):
    """The same call failed before in this run, and nothing has changed since: it is not made again."""

    error_type = KNOWN_FAILURE


class ExecutionFailed(CallError):
    """The tool ran and failed."""


class TransportFault(ExecutionFailed):
    """The way to the tool is broken: connection lost, process died."""

    transient = True
    transport_fault = True


class ToolSignal(CallError):
    """Raised by tools on purpose, to say what the caller should do about the failure."""

    advice: ClassVar[str]

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **{"advice": self.advice, **details})


class Retry(ToolSignal):
    """The arguments were wrong in a way the schema cannot tell: try again with other ones."""

    advice = "change_arguments"


class Refuse(ToolSignal):
    """Final: no arguments will make this call succeed."""

    advice = "give_up"
    error_type = PERMISSION_DENIED


class NeedsApproval(ToolSignal):
    """A person must agree before this call may run."""

    advice = "ask_approval"
    error_type = PERMISSION_DENIED


class Transient(ToolSignal):
    """The same call may succeed later: idempotent tools are tried again by themselves."""

    advice = "try_later"
    transient = True


def text_of(error: BaseException) -> str:
    """What an exception says, even if its class cannot say it; without halves of characters, which nobody can send."""
    try:
        return str(error).strip().encode("utf-8", "replace").decode()
    except Exception:
        return "(its text cannot be shown)"
