"""The calls of a run: made, found again after a crash, and answered by people, in the loop and in plans alike.

A call of the loop is one that the model wrote; a call of a plan is made for one of its steps. `RunCalls` makes both. A
call that a person must decide about raises NeedsPerson, and is made again with the reply.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

from ferrule.agent.answer import ASK_USER, StepResult
from ferrule.agent.budget import HumanRequest, NeedsPerson, RunBudget
from ferrule.agent.control_tools import CONTROL_TOOLS
from ferrule.agent.run import Run
from ferrule.core.call import (
    CALLER_CONVERSATION_AGENT,
    DEFAULT_TIMEOUT,
    Caller,
    Progress,
    ToolExecutionContext,
    ToolExecutionResult,
)
from ferrule.core.messages import ToolCall, decode_tool_call
from ferrule.core.model import Model
from ferrule.core.permission import CallPolicy, Principal
from ferrule.core.spec import Tool, ToolCapability
from ferrule.engine import ToolEngine
from ferrule.errors import (
    APPROVAL_REQUIRED,
    CANCELLED,
    KNOWN_FAILURE,
    PERMISSION_DENIED,
    REJECTED,
    TIMEOUT,
    VALIDATION_ERROR,
    SetupError,
    ToolNotFound,
)
from ferrule.library.meta_tools import META_TOOLS
from ferrule.memory import RunMemory
from ferrule.memory.call_identity import identify_call
from ferrule.policy.approvals import Approval, ApprovalRequest, Person, ask_person
from ferrule.policy.budgets import is_extension_request
from ferrule.policy.provenance import ProvenanceRules, RunOrigins
from ferrule.store import ToolCallRecord
from ferrule.store.record import percent
from ferrule.texts.language import detect_language

logger = logging.getLogger("ferrule.agent")

UNKNOWN_OUTCOME: Final = (
    "This call was interrupted while it ran, so its outcome is unknown. It was not repeated. "
    "Find out what it did before you repeat it."
)
TIME_IS_UP: Final = "This call was cancelled: the time limit of the run was reached. Its outcome is unknown."
INTERRUPTED: Final = "interrupted"
INTERRUPTED_STATUSES: Final = (INTERRUPTED, "cancelled", "running")
"""The process that resumes a run has its lock. A running call belongs to a process that died on another machine."""
_SECONDS_TO_END: Final = 1.0
"""For a call to end after its own timeout; then it is cancelled."""
_STOP_TIMEOUT: Final = 5.0
"""Seconds in which a process that has lost the lock of a run, but lives, ends the calls of the run."""
MAX_RECORDS: Final = 10_000
"""Of the calls that the model or the plan made: many times what they may make before they are resumed."""
CALL_TOOL: Final = "call_tool"
_NAME_MISSING: Final = "call_tool needs `name`, the name of a tool as search_tools gave it, and `arguments`, an object."


@dataclass(kw_only=True)
class RunCall:
    """A call of a run with the tool that it refers to."""

    call: ToolCall
    """The call as it is executed: without `call_tool` around it."""
    original: ToolCall
    """The call as the model wrote it."""
    target: tuple[Tool, ToolCapability] | None = None
    """None for an unknown tool."""
    candidates: Sequence[tuple[Tool, ToolCapability]] = ()
    """All tools that may be tried for this call, in order."""
    redacted: ToolCall | None = None
    """The original without secrets, once `RunCalls.redact` was asked for it."""

    @property
    def tool_id(self) -> str:
        return self.call.name if self.target is None else self.target[0].id

    @property
    def action(self) -> str | None:
        return None if self.target is None else self.target[1].name

    @property
    def model_name(self) -> str:
        """Return the name of the tool for models."""
        return self.call.name if self.target is None else self.target[0].spec.model_name(self.target[1])

    @property
    def is_repeatable(self) -> bool:
        return bool(self.candidates) and all(
            tool.spec.effects_of(action).repeatable for tool, action in self.candidates
        )

    @cached_property
    def key(self) -> Any:
        """Return what the call is compared by."""
        assert self.target is not None, "only calls of tools that are known are compared"
        return identify_call(*self.target, self.call.arguments).key


class RunCalls:
    """Makes the calls of one run."""

    def __init__(
        self,
        run_id: str,
        task: str,
        engine: ToolEngine,
        caller: Caller,
        *,
        name: str,
        principal: Principal,
        caller_type: str = CALLER_CONVERSATION_AGENT,
        policy: CallPolicy | None = None,
        memory: RunMemory | None = None,
        model: Model | None = None,
        budget: RunBudget | None = None,
        deps: Any = None,
        origins: RunOrigins | None = None,
    ) -> None:
        """`caller` makes the calls, for the agent with this `name`. They end in time for the `budget`, if there is one.

        `policy` decides instead of the engine's. `model` combines the answers where several tools do one job. Tools get
        `deps` in their context, and find the language of the `task` among its variables.
        `origins` has the texts of the run; without it, the texts of the run begin with nothing that is trusted.
        """
        rules = ProvenanceRules.of(engine.policy if policy is None else policy)
        self.origins = RunOrigins(rules) if origins is None else origins
        self.run_id, self.engine, self.caller, self.memory, self._budget = run_id, engine, caller, memory, budget
        self._context = ToolExecutionContext(
            caller_id=name,
            caller_type=caller_type,
            conversation_id=run_id or None,
            workflow_id=None if caller_type == CALLER_CONVERSATION_AGENT else run_id or None,
            variables={"language": detect_language(task)},
            principal=principal,
            memory=memory,
            policy=policy,
            model=model,
            priority=0 if budget is None else budget.limits.priority,
            deps=deps,
            origins=self.origins if self.origins.rules.are_used else None,
        )
        self._results: list[ToolExecutionResult] = []
        self._records: dict[str, ToolCallRecord] | None = None
        """The calls that were made before the run was resumed; None for a new run."""

    def context(
        self, call_id: str, *, approval_id: str | None = None, timeout: float | None = None
    ) -> ToolExecutionContext:
        """Return the context of a call, under whose id it is recorded."""
        timeout = DEFAULT_TIMEOUT if timeout is None else timeout
        return replace(self._context, tool_call_id=call_id, approval_id=approval_id, timeout=timeout)

    async def make(
        self,
        call: RunCall,
        approval: ApprovalRequest | None = None,
        *,
        request_id: str = "",
        on_progress: Callable[[Progress], None] | None = None,
        execute: Callable[..., Awaitable[ToolExecutionResult]] | None = None,
    ) -> ToolExecutionResult:
        """Make a call and return its result, whatever happens. `approval` is a request that a person has decided.

        Raises NeedsPerson if a person must decide first. The request has the `request_id`, or else the id of the call.
        A timeout does not include the wait for a slot; the time limit of the run does. `execute` replaces the caller's.
        """
        if approval is not None and approval.state == "refused":
            return ToolExecutionResult(False, call.tool_id, error=approval.refusal, error_type=PERMISSION_DENIED)
        # An approval for another tool is for a call that this one makes.
        covers_call = approval is not None and approval.state == "approved" and approval.tool_id == call.tool_id
        approval_id = approval.approval_id if approval is not None and covers_call else None
        seconds = None if self._budget is None else self._budget.seconds_left
        timeout = None
        if seconds is not None:  # no call outlasts the run; otherwise the tool's own timeout holds, with its extensions
            own = None if call.target is None else call.target[0].spec.limits_of(call.target[1]).timeout
            timeout = seconds if seconds < (own or self.engine.config.default_timeout) else None
        context = self.context(call.call.id, approval_id=approval_id, timeout=timeout)
        try:
            async with asyncio.timeout(None if seconds is None else seconds + _SECONDS_TO_END):
                result = await (execute or self.caller.execute)(
                    call.tool_id, call.call.arguments, context, action=call.action, on_progress=on_progress
                )
        except TimeoutError:
            result = ToolExecutionResult(is_success=False, tool_name=call.tool_id, error=TIME_IS_UP, error_type=TIMEOUT)
        if result.error_type == APPROVAL_REQUIRED and "approval_id" in result.metadata:
            request = await self.engine.approvals.get(result.metadata["approval_id"])
            raise NeedsPerson(replace(request, call_id=request_id or call.call.id))
        self._results.append(result)
        return result

    def redact(self, call: RunCall) -> ToolCall:
        """Return the original call without secrets, as it is stored and shown before it is made."""
        if call.redacted is None:
            inner, original = call.call, call.original
            if inner.error is not None:
                arguments = self.engine.redact_arguments(original.name, original.arguments)
            else:
                arguments = self.engine.redact_arguments(call.tool_id, inner.arguments, call.action)
                arguments = _wrap_arguments(original, arguments)
            call.redacted = replace(original, arguments=arguments)
        return call.redacted

    def redact_arguments(self, call: RunCall) -> dict[str, Any]:
        """Return the arguments of a call that was not made, without secrets."""
        return unwrap_call_tool(self.redact(call)).arguments

    async def summarize(self) -> dict[str, Any]:
        """Return how many calls were made, of which tools, and whether any failed."""
        if self._records is not None:
            return (await self.engine.get_call_summary(self.run_id)).to_brief()
        usage: dict[str, int] = {}
        good = 0
        for result in self._results:  # each candidate that the hub has called counts
            answers = len(result.metadata.get("call_ids", ("",))) if result.is_success else 0
            calls = max(1, answers + len(result.metadata.get("failures", ())))
            usage[result.tool_name] = usage.get(result.tool_name, 0) + calls
            good += answers
        total = sum(usage.values())
        return {
            "total_calls": total,
            "success_rate": percent(good, total),
            "tool_usage": usage,
            "has_errors": total > good,
        }

    # After a pause or a crash

    async def restore(self, run: Run) -> None:
        """Restore the context and the memory of a resumed run, and find the calls that it has made.

        Returns when no call runs any more, as far as can be known. If several tools were tried for a call, a success is
        preferred, then an interruption. Records of calls that only asked for approval are ignored.
        """
        self._restore_texts_and_memory(run)
        store, deadline = self.engine.store, time.monotonic() + _STOP_TIMEOUT
        while True:
            # Without the calls that tools made: there may be very many, and the run did not make them.
            records = await store.query_call_records(
                conversation_id=run.id, caller_type=self._context.caller_type, limit=MAX_RECORDS
            )
            if time.monotonic() > deadline or all(record.status != "running" for record in records):
                break
            await asyncio.sleep(0.25)
        records = [record for record in reversed(records) if record.metadata.get("advice") != "ask_approval"]
        records.sort(key=lambda record: (record.is_success, record.status in INTERRUPTED_STATUSES))
        self._records = {str(record.metadata.get("tool_call_id")): record for record in records}

    def was_made(self, call_id: str) -> bool:
        """Return whether the call was made before the run was resumed.

        The failure of an earlier attempt, after which another one asked for approval, does not count.
        """
        record = None if self._records is None else self._records.get(call_id)
        return record is not None and (record.status != "failed" or "approval_id" in record.metadata)

    def find_result(self, call: RunCall, approval: ApprovalRequest | None = None) -> ToolExecutionResult | None:
        """Return the result of a call that was made before the run was resumed; None if the call may be made.

        `approval` is a request that a person has decided: a failure before that request is not the result.
        """
        if not self._records or call.tool_id in CONTROL_TOOLS:
            return None
        record = self._records.pop(call.call.id, None)
        if record is None:
            return None
        if record.status == "failed":
            is_earlier = approval is not None and record.metadata.get("approval_id") != approval.approval_id
            if is_earlier or record.error_type == REJECTED:  # a rejected call never ran
                return None
        is_interrupted = record.status in INTERRUPTED_STATUSES
        if is_interrupted and call.is_repeatable:
            return None
        stored, is_success = record.result or record.error, record.is_success
        self.origins.add_stored_result(call.target, record.tool_name, record.params, stored, is_success=is_success)
        return ToolExecutionResult(
            is_success=record.is_success,
            tool_name=record.tool_name,
            output=record.result or {},
            error=UNKNOWN_OUTCOME if is_interrupted else record.error,
            error_type=INTERRUPTED if is_interrupted else record.error_type,
            execution_time=record.execution_time or 0.0,
            metadata={**record.metadata, "outcome": "unknown"} if is_interrupted else record.metadata,
            call_id=record.record_id,
            arguments=dict(record.params),
        )

    def _restore_texts_and_memory(self, run: Run) -> None:
        """Restore what the run knows of its texts and calls. Of the results of its steps, only the text is stored."""
        origins, registry = self.origins, self.engine.registry
        origins.add_trusted(run.task)
        origins.add_conversation(run.messages[: run.begin_length])
        if run.history:
            origins.add_untrusted(run.history, "from the conversation before")
        for step in run.steps:
            result = ToolExecutionResult(
                is_success=step.is_success,
                tool_name=step.tool_id,
                output={"result": step.text} if step.is_success else {},
                error=None if step.is_success else step.text,
                error_type=step.error_type,
            )
            run.context.record(step.tool_id, step.action, dict(step.arguments), result)
            action = None
            with suppress(ToolNotFound):
                action = registry.find(step.tool_id, step.action)
            if self.memory is not None and action is not None and _was_executed(step):
                self.memory.restore_call(*action, dict(step.arguments), result)
            if ASK_USER in (step.tool_id, step.tool_type) and step.is_success:
                origins.add_trusted(step.text)
            elif _was_executed(step) and step.tool_id not in (*CONTROL_TOOLS, *META_TOOLS):
                origins.add_stored_result(action, step.tool_type, step.arguments, step.text, is_success=step.is_success)


def _was_executed(step: StepResult) -> bool:
    """Return whether a tool was called with a known outcome: not refused, not known to fail, not interrupted."""
    if step.skipped or step.error_type in (KNOWN_FAILURE, CANCELLED, INTERRUPTED):
        return False
    return bool(step.record_id) or step.error_type not in (PERMISSION_DENIED, VALIDATION_ERROR)


# What a run asks people: an answer, the approval of a call, or more money for its model. The person at hand is asked
# first. Without a reply the run waits, and is resumed with the replies that people have given in the meantime.

HumanReply: TypeAlias = ApprovalRequest | str
"""A request with the person's decision, or the person's answer."""
Answers: TypeAlias = Mapping[str, str] | str | None
"""The user's answers to the questions of a run, by call or step id; a single text answers the first question."""
ApprovalDecisions: TypeAlias = Mapping[str, Approval | bool] | bool | None
"""Decisions by call or step id; a single value decides about all requests of a run."""
MAX_PAUSED_RUNS: Final = 1_000
MAX_REQUESTS_PER_CALL: Final = 3
"""How often the person is asked about one call or one step."""


class RunRequests:
    """The requests of one run to people, and their replies."""

    def __init__(self, run: Run, engine: ToolEngine, budget: RunBudget, person: Person | None) -> None:
        self._run, self._engine, self._budget, self._person = run, engine, budget, person
        self._counts: Counter[str] = Counter()
        """How often the person was asked about a call or a budget."""
        self._decided: dict[str, ApprovalRequest] = {}
        """By approval id: calls with the same arguments have one request, which is decided once."""

    async def ask_person(self) -> tuple[dict[str, HumanReply], str | None]:
        """Ask the person at hand for all that the run waits for. Return the replies as `match_replies` does.

        A request without a reply is not repeated. A call that needs another approval asks again, up to a limit. Equal
        calls have one request, which the person is asked once. The time that the person takes does not count.
        """
        started, replies = time.monotonic(), dict[str, Any]()
        requests: dict[str, HumanRequest] = {**self._run.questions, **self._run.approvals}
        approval_ids = set[str]()
        for key, request in requests.items():
            subject = key
            if isinstance(request, ApprovalRequest):
                if request.approval_id in approval_ids:
                    continue
                approval_ids.add(request.approval_id)
                # A budget may be exceeded often in a long run, and each time the request is another one.
                subject = request.approval_id if is_extension_request(request) else key
            if self._counts[subject] < MAX_REQUESTS_PER_CALL:
                reply = await self._ask(request)
                self._counts[subject] += 1 if reply is not None else MAX_REQUESTS_PER_CALL
                replies |= {} if reply is None else {key: reply}
        self._budget.exclude_time(time.monotonic() - started)
        return await self._apply(replies)

    async def match_replies(
        self, answer: Answers, decisions: ApprovalDecisions
    ) -> tuple[dict[str, HumanReply], str | None]:
        """Return the replies to what the run waits for, by call id, and why the run must stop if a person wants that.

        Budgets are extended. A budget that is still spent is asked about again when the model is needed.
        """
        run = self._run
        answers = dict.fromkeys([*run.questions][:1], answer) if isinstance(answer, str) else answer or {}
        approvals = decisions if isinstance(decisions, Mapping) else dict.fromkeys(run.approvals, decisions)
        for key, value in {**answers, **approvals}.items():
            if key in run.approvals and not isinstance(value, (bool, Approval, type(None))):
                raise SetupError(
                    f"The run waits for a decision about {key!r}, not for {value!r}: resume it with "
                    f"approvals={{{key!r}: True}}, False, or an Approval."
                )
        replies = await self._apply({**answers, **approvals})
        run.approvals = {key: each for key, each in run.approvals.items() if not is_extension_request(each)}
        return replies

    async def _apply(self, values: Mapping[str, Any]) -> tuple[dict[str, HumanReply], str | None]:
        """Record decisions, and return the replies to what the run waits for: these, or given elsewhere before."""
        run, refusal = self._run, None
        replies: dict[str, HumanReply] = {key: values[key] for key in run.questions if isinstance(values.get(key), str)}
        for key, request in list(run.approvals.items()):
            if is_extension_request(request):
                decision = values.get(key)
                approval = Approval(allowed=decision) if isinstance(decision, bool) else decision
                with suppress(LookupError):  # it is pending
                    costs, payer = self._engine.costs, self._budget.payer
                    refusal = await costs.apply_decision(payer, request, approval) or refusal
                    del run.approvals[key]
            elif (decided := await self._decide(request, values.get(key))).state != "pending":
                replies[key] = decided
        return replies, refusal

    async def _ask(self, request: HumanRequest) -> Any:
        """Return the reply of the person, or None without a person or a reply, or if asking fails."""
        if self._person is None:
            return None
        try:
            return await ask_person(self._person, request)
        except SetupError:
            raise
        except Exception:
            logger.exception("run=<%s> | the person could not be asked, so the run waits", self._run.id)
            return None

    async def _decide(self, request: ApprovalRequest, decision: Approval | bool | None) -> ApprovalRequest:
        """Record a decision about a call, and return the request as it was decided: now, or elsewhere before."""
        approval_id = request.approval_id
        decision = Approval(allowed=decision) if isinstance(decision, bool) else decision
        decided = self._decided.get(approval_id)
        if decided is not None and decided.state == "approved" and decision is not None and not decision.allowed:
            return replace(decided, state="refused", decision_reason=decision.reason)  # for an equal call
        if decided is not None:
            return decided
        approvals = self._engine.approvals
        current = await approvals.get(approval_id)
        is_plain = decision is not None and decision.allowed and not decision.arguments
        if decision is not None and (current.state == "pending" or (current.state == "approved" and not is_plain)):
            current = self._decided[approval_id] = await approvals.record_decision(approval_id, decision)
        return current


def require_question(run: Run, answer: Answers) -> None:
    """Raise SetupError for an answer to a run that has no question."""
    if answer is not None and not run.questions:
        raise SetupError(f"The run {run.id!r} has no open question. Resume it without an answer.")


class PausedRuns:
    """What waiting runs of this process have in memory: with the secrets that the store does not have."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, tuple[int, Any]] = OrderedDict()

    def add(self, run: Run, value: Any) -> None:
        self._runs[run.id] = (run.entry_count, value)
        if len(self._runs) > MAX_PAUSED_RUNS:
            self._runs.popitem(last=False)

    def pop(self, run: Run) -> Any:
        """Return the value of the run; None if another process has continued the run since."""
        number, value = self._runs.pop(run.id, (0, None))
        return value if number == run.entry_count else None


# A call inside `call_tool`, which is executed instead


def unwrap_call_tool(call: ToolCall) -> ToolCall:
    """Return the call inside `call_tool`; any other call unchanged."""
    while call.name == CALL_TOOL and call.error is None:
        name = call.arguments.get("name")
        if not isinstance(name, str) or not name:
            return replace(call, error=_NAME_MISSING)
        call = decode_tool_call(name, call.arguments.get("arguments") or {}, id=call.id)
    return call


def _wrap_arguments(call: ToolCall, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `call`, in which the innermost call has these arguments."""
    if call.name != CALL_TOOL:
        return arguments
    inner = decode_tool_call(str(call.arguments["name"]), call.arguments.get("arguments") or {})
    return {**call.arguments, "arguments": _wrap_arguments(inner, arguments)}
