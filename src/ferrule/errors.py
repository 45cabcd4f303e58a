"""Every error Ferrule raises, sorted by who must act.

FerruleError
├── SetupError                  the developer or the configuration must change
│   ├── SpecError               the description of a tool is wrong
│   ├── LoadError               a tool file cannot be loaded (file, line, what to write instead)
│   ├── DuplicateTool           one source has two tools with the same name
│   └── MissingExtra            an optional dependency is not installed
├── StoreError                  records cannot be read or written
│   └── LockHeld                somebody else holds the lock
│       └── LockLost            the holder of a lock has lost it: somebody else has it, or may have it
├── ModelError                  a language model gave no reply
│   ├── ModelUnavailable        the model may reply later: overloaded, rate limit, timeout, connection lost
│   ├── BudgetSpent             a budget does not pay for the request
│   ├── ReplyTimeout            no reply within the time of the run
│   └── ModelRefused            the model will not reply: wrong key, unknown model, request not allowed
│       └── RequestTooLong      the request exceeds the model's context window
└── CallError                   one call cannot succeed; the engine turns it into a failed result
    ├── ToolNotFound            tool_not_found
    ├── ExecutorNotFound        executor_not_found
    ├── InvalidArguments        validation_error
    ├── Rejected                rejected: no slot, rate limit, open circuit
    ├── TimedOut                timeout
    ├── CallCancelled           cancelled: by its caller, or because the engine was closed
    ├── PermissionDenied        permission_denied
    ├── KnownFailure            known_failure: it failed before and nothing has changed since
    ├── ExecutionFailed         execution_error
    │   └── TransportFault      the tool cannot be reached (transient)
    └── ToolSignal              raised by tools on purpose
        ├── Retry               try again with other arguments
        ├── Refuse              final: no other arguments will work
        ├── NeedsApproval       a person must approve the call first
        └── Transient           the same call may succeed later
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

VALIDATION_ERROR: Final = "validation_error"
"""The arguments are invalid; `validation_errors` lists every problem.

Correct the arguments that the message names and call again.
"""
TOOL_NOT_FOUND: Final = "tool_not_found"
"""No enabled tool has this name; the message suggests similar names.

Use a suggested name. `ferrule tools list` shows every tool, and why one is not ready.
"""
EXECUTOR_NOT_FOUND: Final = "executor_not_found"
"""The tool names an executor that is not registered.

Correct `executor` in the YAML file, or install the package that provides the executor.
"""
EXECUTION_ERROR: Final = "execution_error"
"""The tool ran and failed.

Read the message: it is the tool's own. If `metadata["transient"]` is true, the same call may succeed later.
"""
TIMEOUT: Final = "timeout"
"""The tool exceeded its timeout and was ended; none of its effects appears later. With
`metadata["outcome"] == "unknown"` it did not stop when it was cancelled, or cannot tell what it did.

Ask for less, or raise the `timeout` of the tool or of the call. If the outcome is unknown, check what the call did
before you repeat it.
"""
REJECTED: Final = "rejected"
"""The call was not admitted; `metadata["reason"]` is `concurrency_limit`, `queue_full`, `queue_timeout`, `rate_limit`,
`circuit_open`, `nesting`, `abandoned_calls`, `server_unreachable`, `store` or `closed`.

Call again later, after `metadata["retry_after"]` seconds where it is given, or raise the limits in `[limits]`.
"""
CANCELLED: Final = "cancelled"
"""The caller was cancelled (then only records and events show it), or the engine was closed.

Call again if the result is still needed.
"""
PERMISSION_DENIED: Final = "permission_denied"
"""The tool itself or a rule of the policy does not allow the call.

`ferrule policy explain` says which rule decides about a call; change the rule if the call should be allowed.
"""
APPROVAL_REQUIRED: Final = "approval_required"
"""A person must approve the call first; `metadata["approval_id"]` names the request.

Decide with `ferrule approvals approve ID` or in the web page, then repeat the call.
"""
KNOWN_FAILURE: Final = "known_failure"
"""The same call has failed in this run and nothing has changed since; it was not made again.

Change the arguments or use another tool: the message says what has worked.
"""


class FerruleError(Exception):
    """Base of everything Ferrule raises."""


class SetupError(FerruleError):
    """The developer or the configuration must change before anything can run."""


class SpecError(SetupError):
    """The description of a tool is wrong."""


class LoadError(SetupError):
    """A tool file cannot be loaded."""

    def __init__(
        self, message: str, *, path: Path | None = None, line: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.path, self.line, self.hint = message, path, line, hint

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}:{self.line or 1}: "
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")


class DuplicateTool(SetupError):
    """One source has two tools with the same name; the message names both origins."""


class MissingExtra(SetupError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'{package} is not installed. Install it with: pip install "ferrule[{extra}]"')


class RunInProgress(SetupError):
    """Somebody else, in this process or another, works on the run."""


class RunInterrupted(RunInProgress):
    """The run lost its lock with the connection to the store: part of it was done, and another may continue it."""


class StoreError(FerruleError):
    """Records cannot be read or written.

    Clients and models read the text, so it names no address, user or path: those are notes (`add_note`).
    """


class LockHeld(StoreError):
    """Somebody else, in this process or another, holds the lock."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the lock {name!r} is held by another user of the store; try again when it is released")
        self.name = name


class LockLost(LockHeld):
    """The holder of a lock has lost it with the connection to the database: somebody else has it, or may have it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.args = (f"the lock {name!r} was lost with the connection to the database; another process may have it",)


class ModelError(FerruleError):
    """A language model gave no reply."""

    transient: ClassVar[bool] = False


class BudgetSpent(ModelError):
    """A budget does not pay for a request to a model. The run can continue when there is money again."""

    def __init__(self, message: str, *, charge: Any, must_ask: bool) -> None:
        super().__init__(message)
        self.charge = charge
        """The budget, with its scope and period."""
        self.must_ask = must_ask
        """Whether a person is asked for more."""


class ReplyTimeout(ModelError):
    """A model did not reply within the time of the run."""


class ModelUnavailable(ModelError):
    """The model may reply later: overloaded, rate limit, timeout, connection lost."""

    transient = True

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds to wait, where the server said so."""


class ModelRefused(ModelError):
    """The model will not reply to this request: wrong key, unknown model, request not allowed."""


class RequestTooLong(ModelRefused):
    """The request exceeds the model's context window: send less."""


class CallError(FerruleError):
    """One call cannot succeed. The engine turns it into a failed result; callers never see it raised."""

    error_type: ClassVar[str] = EXECUTION_ERROR
    transient: ClassVar[bool] = False
    """The same call may succeed later without any change."""
    transport_fault: ClassVar[bool] = False
    """The tool could not be reached: counts for its circuit breaker."""
    details: Mapping[str, Any] = MappingProxyType({})
    """Added to `ToolExecutionResult.metadata`. A class attribute, so a subclass need not call our `__init__`."""
    original: Any = None
    """The failure as another system returned it, for interfaces that pass it on unchanged."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details


class ToolNotFound(CallError):
    """No enabled tool has this name."""

    error_type = TOOL_NOT_FOUND


class ExecutorNotFound(CallError):
    """A tool names an executor that is not registered."""

    error_type = EXECUTOR_NOT_FOUND


class InvalidArguments(CallError):
    """The arguments do not match the tool's parameters."""

    error_type = VALIDATION_ERROR
    errors: Sequence[dict[str, Any]] = ()

    def __init__(self, message: str, errors: Sequence[dict[str, Any]] = (), **details: Any) -> None:
        super().__init__(message, **details)
        self.errors = list(errors)


class Rejected(CallError):
    """The call was not admitted: no slot, a rate limit or an open circuit."""

    error_type = REJECTED
    transient = True


class TimedOut(CallError):
    """The call exceeded its timeout and was ended."""

    error_type = TIMEOUT
    transient = True


class CallCancelled(CallError):
    """The call was cancelled by its caller, or because the engine was closed."""

    error_type = CANCELLED


class PermissionDenied(CallError):
    """The call is not allowed."""

    error_type = PERMISSION_DENIED


class KnownFailure(CallError):
    """The same call failed before in this run and nothing has changed since: it is not executed again."""

    error_type = KNOWN_FAILURE


class ExecutionFailed(CallError):
    """The tool ran and failed."""


class TransportFault(ExecutionFailed):
    """The tool cannot be reached: connection lost, process died."""

    transient = True
    transport_fault = True


class ToolSignal(CallError):
    """Raised by tools on purpose, to tell the caller what to do about the failure."""

    advice: ClassVar[str]

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **{"advice": self.advice, **details})


class Retry(ToolSignal):
    """The arguments are wrong in a way the schema cannot express: try again with other ones."""

    advice = "change_arguments"


class Refuse(ToolSignal):
    """Final: no arguments will make this call succeed."""

    advice = "give_up"
    error_type = PERMISSION_DENIED


class NeedsApproval(ToolSignal):
    """A person must approve this call before it may run."""

    advice = "ask_approval"
    error_type = APPROVAL_REQUIRED


class Transient(ToolSignal):
    """The same call may succeed later: idempotent tools are retried automatically."""

    advice = "try_later"
    transient = True


def iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def text_with_notes(error: BaseException) -> str:
    """Return the message of an exception with its notes, for logs and for users of a command."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{error_text(error)} ({notes})" if notes else error_text(error)


def error_text(error: BaseException) -> str:
    """Return the message of an exception, even if its `__str__` fails, without lone surrogates."""
    try:
        return str(error).strip().encode("utf-8", "replace").decode()
    except KeyboardInterrupt:
        raise
    except BaseException:
        return "(its text cannot be shown)"
