"""One call: its context, the invocation an executor gets, and the result.

Values made for every call are plain slotted dataclasses: frozen ones take five times as long to create. They are not
changed after they were passed on. `Invocation` and `ToolExecutionResult` also take their fields by position, which
takes half the time of naming them; only the engine does that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from ferrule.core.content import Content, Output, as_text
from ferrule.core.model import Model
from ferrule.core.permission import LOCAL_USER, CallPolicy, Decision, Principal
from ferrule.core.spec import Effects, Tool, ToolCapability
from ferrule.errors import CANCELLED, TIMEOUT, SetupError

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    DepsT = TypeVarWithDefault("DepsT", default=Any)
else:
    DepsT = TypeVar("DepsT")


class DefaultTimeout(float):
    """The timeout of a caller who chose none: the tool's own limit applies instead, if it has one."""


DEFAULT_TIMEOUT: Final = DefaultTimeout(30.0)

CALLER_WORKFLOW_NODE: Final = "workflow_node"
CALLER_CONVERSATION_AGENT: Final = "conversation_agent"
CALLER_PLANNER: Final = "planner"


@dataclass(slots=True, kw_only=True)
class ToolExecutionContext(Generic[DepsT]):
    """Who calls, for which conversation or workflow, and under which conditions.

    A tool function that has a parameter of this type receives the context of its call; the parameter is not part of
    the tool's schema. `RunContext[MyDeps]` is the same type, for a tool that uses the dependencies of a run.
    """

    caller_id: str | None = None
    caller_type: str = "unknown"
    """`conversation_agent`, `workflow_node`, `direct` …; concurrency limits do not apply to workflow nodes."""
    conversation_id: str | None = None
    workflow_id: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    """Seconds the call may run, not counting the wait for a slot."""
    retry_count: int = 0
    max_retries: int = 3
    """How often a transient failure of an idempotent tool may be retried."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Shared by the calls of one run; never recorded."""
    priority: int = 0
    """Higher goes first under the `priority` strategy."""
    principal: Principal = LOCAL_USER
    """Who makes the call, and the most that this caller may do; calls that tools make have the same principal."""
    tool_call_id: str | None = None
    """The model's own id for the call, recorded with it."""
    leaves_validation_to_tool: bool = False
    """Whether arguments are passed on unchanged to a tool that checks them itself, such as an MCP server."""
    approval_id: str | None = None
    """The approval that allows this call, where it was answered `approval_required` before."""
    is_approved: bool = field(default=False, init=False)
    """Set by the engine when a person has approved exactly this call: a tool need not raise `NeedsApproval` then."""
    memory: CallMemory | None = field(default=None, repr=False, compare=False)
    """The run's memory: consulted before each call, updated after it."""
    origins: CallOrigins | None = field(default=None, repr=False, compare=False)
    """Where the values of the run come from; None outside a run."""
    policy: CallPolicy | None = field(default=None, repr=False, compare=False)
    """Decides about the call, and about those that tools make; None = the engine's."""
    model: Model | None = field(default=None, repr=False, compare=False)
    """The run's model, which combines the answers of several tools; None = the hub's."""
    deps: DepsT = field(default=None, repr=False, compare=False)  # type: ignore[assignment]
    """What the caller passed to `agent.run(…, deps=…)`, for tools alone; never stored, and not shown to models."""

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
        report_progress(fraction, message, data)

    async def call_tool(
        self, tool_name: str, params: Mapping[str, Any] | None = None, *, action: str | None = None
    ) -> ToolExecutionResult:
        """Call another tool from inside an async tool, under the same limits and records."""
        return await current_invocation("call_tool").call_tool(tool_name, dict(params or {}), action)

    def call_tool_sync(
        self, tool_name: str, params: Mapping[str, Any] | None = None, *, action: str | None = None
    ) -> ToolExecutionResult:
        """Call another tool from inside a sync tool, which waits for the result."""
        call = current_invocation("call_tool_sync").call_tool_sync
        if call is None:
            raise SetupError(
                "call_tool_sync is for sync tools in a process or a thread. In an async tool use: "
                "await context.call_tool(…). A tool with isolation='inline' can call no other tools."
            )
        return call(tool_name, dict(params or {}), action)


RunContext = ToolExecutionContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running call is, or a part of its output that is already available."""

    fraction: float | None = None
    """0 to 1, or None when it is not known."""
    message: str = ""
    data: Any = None
    """A value yielded by a generator, or the data of an event."""
    event: str = ""
    """The name of an event of the tool's own (`emit_event`); empty for progress."""
    amount: float | None = None
    """What an MCP server reported, in units of its own, and of how many in total, where it said so."""
    total: float | None = None


class CallMemory(Protocol):
    """What a run remembers of its calls, including those that tools make."""

    def find_result(self, tool: Tool, capability: ToolCapability, params: dict[str, Any], /) -> Output | None:
        """Return the result of the call where it is known without making it; raises `KnownFailure` if it would fail."""

    def record_result(
        self, tool: Tool, capability: ToolCapability, params: dict[str, Any], result: ToolExecutionResult, /
    ) -> None:
        """Store the result of a call; may add to its metadata."""


class CallOrigins(Protocol):
    """What a run knows of where values come from (see `ferrule.policy.provenance`)."""

    @property
    def has_untrusted(self) -> bool: ...

    def add_result(
        self,
        tool: Tool,
        capability: ToolCapability,
        arguments: Any,
        result: ToolExecutionResult,
        /,
        *,
        was_run: bool,
        is_of_model: bool,
    ) -> None:
        """Add what a call has returned; `is_of_model` is false for a call that a tool has made."""

    def decide(
        self, decision: Decision, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any], /
    ) -> Decision:
        """Return the decision of a policy, or a stricter one if the call has a target that the user did not name."""

    def mark(self, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Return the arguments for a policy; these say whether the call has a target that the user did not name."""

    def describe(self, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any], /) -> dict[str, str]:
        """Return where each argument comes from, for people."""


@dataclass(slots=True)
class Invocation:
    """One admitted call with valid arguments: everything an executor gets."""

    call_id: str
    tool: Tool
    capability: ToolCapability
    params: dict[str, Any]
    context: ToolExecutionContext
    report: Callable[[Progress], None]
    call_tool: Callable[[str, dict[str, Any], str | None], Awaitable[ToolExecutionResult]]
    """Calls another tool: its name, its arguments and its action."""
    call_tool_sync: Callable[[str, dict[str, Any], str | None], ToolExecutionResult] | None = None
    """Does the same for code that cannot await. Set by executors that run sync code."""

    current: ClassVar[ContextVar[Invocation | None]] = ContextVar("ferrule_invocation", default=None)


class ToolExecutor(Protocol):
    """How a kind of tool is run. What `execute` returns is the tool's result; what it raises, the failure.

    An executor may have four more methods and an attribute, for what its kind of tool needs and others do not:

    - `prepare(tool, capability)`: return an awaitable of the tool to call instead, or None to call this one at once.
      Runs before the policy decides about the call.
    - `validates_itself(capability)`: return whether the tool checks its arguments itself. A caller that leaves
      validation to the tool then gets the tool's own words for what is wrong.
    - `unwrap(output)`: return the result that an `Output` reports, or raise the failure that it reports.
    - `ping(tool)`: return the seconds that the tool's server takes to answer.
    - `runs_code_of_users = True`: code that its author can change. A call of it that blocks the event loop is logged.
    """

    async def execute(self, invocation: Invocation, /) -> Any: ...


def current_invocation(function: str) -> Invocation:
    """Return the call that is being executed; `function` is named in the error when there is none."""
    invocation = Invocation.current.get()
    if invocation is None:
        raise SetupError(f"{function} works only inside a tool that the engine is running")
    return invocation


def report_progress(fraction: float | None = None, message: str = "", data: Any = None) -> None:
    """Report how far the running call is; does nothing outside a call, so that tools stay plain functions."""
    invocation = Invocation.current.get()
    if invocation is not None:
        invocation.report(Progress(fraction=fraction, message=message, data=data))


def emit_event(name: str, data: Any = None) -> None:
    """Report something of the tool's own to whoever watches the call; does nothing outside a call."""
    invocation = Invocation.current.get()
    if invocation is not None:
        invocation.report(Progress(event=name, data=data))


@dataclass(slots=True)
class ToolExecutionResult:
    """The result of a call. A failed call has one too; nothing is raised."""

    is_success: bool
    tool_name: str
    output: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    error_type: str | None = None
    validation_errors: list[dict[str, Any]] = field(default_factory=list)
    execution_time: float = 0.0
    """Seconds the tool ran, without the wait for a slot."""
    executed_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    metadata: dict[str, Any] = field(default_factory=dict)
    call_id: str = ""
    """The id of the call's record."""
    content: tuple[Content, ...] = ()
    """Images, audio and resources the tool returned."""
    original: Any = field(default=None, repr=False, compare=False)
    """The result as an MCP server returned it, complete and unchanged except for secrets; None for other tools."""
    arguments: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    """The arguments as they were recorded: valid, and without secrets. None for a result that is not of one call."""

    # Names that results are known by in the design documents.

    def __getitem__(self, name: str) -> Any:
        """Return a field, as `result["success"]`."""
        if name not in self.__slots__ and name not in ("success", "error_message", "text"):
            raise KeyError(name)
        return getattr(self, name)

    @property
    def name(self) -> str:
        return self.tool_name

    @property
    def tool_call_id(self) -> str | None:
        """Return the model's own id for the call, if the caller passed it in the context."""
        return self.metadata.get("tool_call_id")

    @property
    def success(self) -> bool:
        return self.is_success

    @property
    def error_message(self) -> str | None:
        return self.error

    @property
    def system(self) -> str | None:
        """Return the signal of a tool that controls the run: `FINISH_TASK` or `ASK_USER`."""
        signal = self.output.get("system")
        return signal if isinstance(signal, str) else None

    @property
    def value(self) -> Any:
        """Return what the tool returned, as JSON: `3`, where `output` is `{"result": 3}`."""
        is_wrapped = set(self.output) == {"result"} or self.output.get("truncated")
        return self.output["result"] if is_wrapped else self.output

    @property
    def text(self) -> str:
        """Return the result, or the error, as a model should read it."""
        return as_text(self.value) if self.is_success else self.error or self.error_type or "failed"

    def may_have_taken_effect(self, *effects: Effects) -> bool:
        """Return whether this failed call may have had a side effect, so that nothing else may be tried in its place.

        `effects` are those of all tools that may have been called for it. A call that was stopped counts too: what it
        did until then is not known.
        """
        if self.is_success or all(each.repeatable for each in effects):
            return False
        return self.metadata.get("outcome") == "unknown" or self.error_type in (TIMEOUT, CANCELLED)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, for files, pipes and pages."""
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
    """One problem with the arguments of a call, explained so that a model can fix it."""

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


@dataclass(slots=True)
class ValidationResult:
    """Whether the arguments of a call are valid, and what they are after defaults and coercion."""

    is_valid: bool
    errors: list[ValidationError] = field(default_factory=list)
    validated_params: dict[str, Any] = field(default_factory=dict)
    """With defaults filled in and, in lenient mode, values coerced."""
    ignored: tuple[str, ...] = ()
    """Unknown parameters that lenient mode dropped."""


class Caller(Protocol):
    """Calls tools by name: the library, the hub and the engine, each of which adds something to the next one.

    Whatever goes wrong with a call is in its result; only cancellation and misuse raise.
    """

    async def execute(
        self,
        tool_name: str,
        params: Mapping[str, Any] | None = None,
        context: ToolExecutionContext | None = None,
        *,
        action: str | None = None,
        timeout: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ToolExecutionResult: ...
