"""One call: who asks and under which conditions, what is on its way to the tool, and what comes back.

These are the values that travel between the rooms. They are made for every call, so those on the way are plain
slotted dataclasses rather than frozen ones, which cost five times as much to build; nobody changes them after
they were handed on. Those the engine makes for every call take their fields by position too, which takes half the
time of doing it by name; all others name them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal, Protocol

from ferrule.content import Content, Output, as_text
from ferrule.errors import SetupError
from ferrule.spec import Tool, ToolCapability


class DefaultTimeout(float):
    """The time-out of a caller who named none: the tool's own limit holds instead, if it has one."""


DEFAULT_TIMEOUT: Final = DefaultTimeout(30.0)

CALLER_WORKFLOW_NODE: Final = "workflow_node"
CALLER_CONVERSATION_AGENT: Final = "conversation_agent"


@dataclass(slots=True, kw_only=True)
class ToolExecutionContext:
    """Who calls, for which conversation or workflow, and under which conditions.

    A tool function that has a parameter of this type is given the context of its call; the parameter does not
    show in the tool's schema.
    """

    caller_id: str | None = None
    caller_type: str = "unknown"
    """`conversation_agent`, `workflow_node`, `direct` …; workflow nodes are not held back by concurrency limits."""
    conversation_id: str | None = None
    workflow_id: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    """Seconds the call may run. Waiting for a place does not count."""
    retry_count: int = 0
    max_retries: int = 3
    """How often a transient failure of an idempotent tool may be tried again."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Shared by the calls of one run; never recorded."""
    priority: int = 0
    """Higher goes first under the `priority` strategy."""
    allowed_tools: frozenset[str] | None = None
    """The only tools that tools which call others by name, such as `call_tool`, may call for it; None = all."""
    tool_call_id: str | None = None
    """The model's own id for the call, recorded with it."""
    approved: bool = False
    """A person has agreed to this very call: a tool that would raise `NeedsApproval` goes on."""
    memory: CallMemory | None = field(default=None, repr=False, compare=False)
    """What the run has lived through; asked before each call, told after it."""
    policy: CallPolicy | None = field(default=None, repr=False, compare=False)
    """What the caller lets be called; asked by tools in which a model says what is called, such as a script's."""

    @classmethod
    def for_conversation(cls, agent_id: str, conversation_id: str, **kwargs: Any) -> ToolExecutionContext:
        return cls(
            caller_id=agent_id,
            caller_type=CALLER_CONVERSATION_AGENT,
            conversation_id=conversation_id,
            **kwargs,
        )

    @classmethod
    def for_workflow(cls, workflow_id: str, node_id: str, **kwargs: Any) -> ToolExecutionContext:
        return cls(caller_id=node_id, caller_type=CALLER_WORKFLOW_NODE, workflow_id=workflow_id, **kwargs)

    def progress(self, fraction: float | None = None, message: str = "", data: Any = None) -> None:
        """Report how far the running call is."""
        report_progress(fraction, message, data)

    async def call_tool(
        self, tool_name: str, params: Mapping[str, Any] | None = None, *, action: str | None = None
    ) -> ToolExecutionResult:
        """Call another tool from inside an async tool, under the same limits and records."""
        return await running_invocation("call_tool").call_tool(tool_name, dict(params or {}), action)

    def call_tool_sync(
        self, tool_name: str, params: Mapping[str, Any] | None = None, *, action: str | None = None
    ) -> ToolExecutionResult:
        """Call another tool from inside a sync tool, which waits for the result."""
        call = running_invocation("call_tool_sync").call_tool_sync
        if call is None:
            raise SetupError(
                "call_tool_sync is for sync tools in a process or a thread. In an async tool use: "
                "await context.call_tool(…). A tool with isolation='inline' can call no other tools."
            )
        return call(tool_name, dict(params or {}), action)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running call is, or a piece of its output that is already there."""

    fraction: float | None = None
    """0 to 1, or None when nobody knows."""
    message: str = ""
    data: Any = None
    """What a generator yielded."""


class CallMemory(Protocol):
    """What a run remembers of its calls. Calls that tools make are remembered with those of the run."""

    def recall(self, tool: Tool, capability: ToolCapability, params: dict[str, Any], /) -> Output | None:
        """What the call would give, where that is known without making it; raises `KnownFailure` if it would fail."""

    def learn(
        self, tool: Tool, capability: ToolCapability, params: dict[str, Any], result: ToolExecutionResult, /
    ) -> None:
        """Take note of what came of a call; may add to the result's metadata."""


class CallPolicy(Protocol):
    """What a caller lets be called."""

    def verdict(self, tool: Tool, capability: ToolCapability, /) -> Literal["allow", "ask", "deny"]:
        """Whether a call may be made; `ask` means that a person must agree first."""


class CallTool(Protocol):
    """Makes a call of another tool on behalf of a running one."""

    def __call__(
        self, tool_name: str, params: dict[str, Any], action: str | None, /
    ) -> Awaitable[ToolExecutionResult]: ...


class CallToolSync(Protocol):
    """The same for code that cannot await."""

    def __call__(self, tool_name: str, params: dict[str, Any], action: str | None, /) -> ToolExecutionResult: ...


@dataclass(slots=True)
class Invocation:
    """One admitted call with valid arguments: all an executor gets to know."""

    call_id: str
    tool: Tool
    capability: ToolCapability
    params: dict[str, Any]
    context: ToolExecutionContext
    report: Callable[[Progress], None]
    call_tool: CallTool
    call_tool_sync: CallToolSync | None = None
    """Set by executors that run sync code."""

    current: ClassVar[ContextVar[Invocation | None]] = ContextVar("ferrule_invocation", default=None)


class ToolExecutor(Protocol):
    """How a kind of tool is really run. What it returns is the tool's result; what it raises, the failure."""

    async def execute(self, invocation: Invocation, /) -> Any: ...


def running_invocation(asker: str) -> Invocation:
    invocation = Invocation.current.get()
    if invocation is None:
        raise SetupError(f"{asker} works only inside a tool that the engine is running")
    return invocation


def report_progress(fraction: float | None = None, message: str = "", data: Any = None) -> None:
    """Report how far the running call is; outside a call it does nothing, so tools stay plain functions."""
    invocation = Invocation.current.get()
    if invocation is not None:
        invocation.report(Progress(fraction=fraction, message=message, data=data))


@dataclass(slots=True)
class ToolExecutionResult:
    """What came of a call. A failed call is a result too; nothing is raised."""

    is_success: bool
    tool_name: str
    output: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    error_type: str | None = None
    validation_errors: list[dict[str, Any]] = field(default_factory=list)
    execution_time: float = 0.0
    """Seconds the tool ran, without waiting for a place."""
    executed_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    metadata: dict[str, Any] = field(default_factory=dict)
    call_id: str = ""
    """The id of the call's record."""
    content: tuple[Content, ...] = ()
    """Images, audio and resources the tool returned."""

    @property
    def success(self) -> bool:
        return self.is_success

    @property
    def error_message(self) -> str | None:
        return self.error

    @property
    def system(self) -> str | None:
        """What the run is told by a tool that steers it: `FINISH_TASK` or `ASK_USER`."""
        said = self.output.get("system")
        return said if isinstance(said, str) else None

    @property
    def text(self) -> str:
        """The result, or the error, as a model should read it."""
        if not self.is_success:
            return self.error or self.error_type or "failed"
        if set(self.output) == {"result"} or self.output.get("truncated"):
            return as_text(self.output["result"])
        return as_text(self.output)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, for files, pipes and pages."""
        return {
            "is_success": self.is_success,
            "tool_name": self.tool_name,
            "output": self.output,
            "error": self.error,
            "error_type": self.error_type,
            "validation_errors": self.validation_errors,
            "execution_time": self.execution_time,
            "executed_at": self.executed_at.isoformat(),
            "metadata": self.metadata,
            "call_id": self.call_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationError:
    """One thing wrong with the arguments of a call, said so that a model can mend it."""

    path: str
    """Where: `headers.accept`, `items[2]`; empty for the arguments as a whole."""
    message: str
    expected: str
    received: Any
    hint: str = ""
    code: str = "invalid"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message}" + (f" {self.hint}" if self.hint else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """What became of the arguments of a call."""

    is_valid: bool
    errors: list[ValidationError] = field(default_factory=list)
    validated_params: dict[str, Any] = field(default_factory=dict)
    """With defaults filled in and, in lenient mode, values coerced."""
    ignored: tuple[str, ...] = ()
    """Unknown parameters that lenient mode left out."""
