"""Executing the calls of one turn: each gets exactly one result, whatever happens to the others.

Read-only calls run concurrently. Calls of a tool that changes something run in the order the model wrote them.
Identical calls also run in order, so that the second can reuse the result of the first.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

from ferrule.agent.answer import (
    AgentState,
    AgentStep,
    CallEnded,
    CallProgress,
    CallStarted,
    CustomEvent,
    OnEvent,
    RunEvent,
)
from ferrule.agent.budget import RunBudget
from ferrule.agent.control_tools import ASK_USER, FINISH_TASK
from ferrule.agent.made_up_values import MadeUpValueCheck
from ferrule.agent.prompts import explain_stop
from ferrule.agent.run import Run
from ferrule.agent.toolbox import CallResolver, ResolvedCall, ToolOffer
from ferrule.catalog.registry import ToolRegistry
from ferrule.core.call import Progress, ToolExecutionResult
from ferrule.core.content import encode_json
from ferrule.core.messages import ToolCall
from ferrule.core.model import Model
from ferrule.core.patterns import lazy_pattern
from ferrule.core.permission import CallPolicy, Decision, Principal, matches_any
from ferrule.core.spec import Tool, ToolCapability
from ferrule.engine import ToolEngine
from ferrule.errors import (
    APPROVAL_REQUIRED,
    KNOWN_FAILURE,
    PERMISSION_DENIED,
    TIMEOUT,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    BudgetSpent,
    SetupError,
)
from ferrule.kinds.skill.folder import SkillFolder
from ferrule.library.subagent import ToolSubAgent
from ferrule.memory import RunMemory
from ferrule.memory.run_memory import VOLATILE_NAME
from ferrule.policy.approvals import Approval, ApprovalRequest, Person, Question, ask_for_answer, ask_for_approval
from ferrule.policy.budgets import is_extension_request
from ferrule.policy.policy import Policy
from ferrule.texts.language import detect_language
from ferrule.texts.prompts import prompt_texts

logger = logging.getLogger("ferrule.agent")

T = TypeVar("T")

REFUSED_BY_USER: Final = "The user refused this call."
TIME_IS_UP: Final = "This call was cancelled: the time limit of the run was reached. Its outcome is unknown."
_REPEATED_ON_PURPOSE = lazy_pattern(
    rf"{VOLATILE_NAME.pattern}|(^|[_\W])(again|append|click|draw|flip|increment|insert|move|press|refresh|repeat|roll"
    r"|scroll|shuffle|step|tap|toggle|undo|redo)([_\W]|$)",
    re.IGNORECASE,
)
"""Names of tools that are repeated on purpose with the same arguments; exempt from the repetition check."""
MAX_REPETITIONS: Final = 4
"""The run is stopped after this many turns in a row with only calls whose results the model has."""
MAX_REFUSED_TURNS: Final = 3
"""The run is stopped after this many turns in a row with only calls that were refused and that the model repeats."""
_SECONDS_TO_END: Final = 1.0
"""For a call to end after its own timeout; then it is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """The services a run uses, besides its own state."""

    engine: ToolEngine
    subagent: ToolSubAgent
    """Executes the run's tool calls."""
    resolver: CallResolver
    person: Person | None
    budget: RunBudget
    memory: RunMemory | None
    listener: OnEvent | None
    can_reason: bool
    """Whether the model is a language model, which reads advice."""

    def emit(self, event: RunEvent) -> None:
        if self.listener is not None:
            self.listener(event)


class TurnExecutor:
    """Executes the tool calls of one run."""

    def __init__(self, run: Run, services: RunServices, model: Model) -> None:
        """The calls are those of this model."""
        self._run, self._services = run, services
        self._person_lock = asyncio.Lock()
        """A person is asked one thing at a time."""
        self._used_tools: set[Tool] = set()
        self._last_results: dict[Any, tuple[int, str]] = {}
        """By call: the turn and the text of its last result, as long as nothing was changed since."""
        self._all_results: dict[Any, str] = {}
        """By call: the text of its last result."""
        self.repetitions = 0
        """How many turns in a row have only repeated calls whose results the model has."""
        self._refused_turns = 0
        """How many turns in a row have only calls that are known to fail, or that were refused before."""
        self._rejected_calls: set[Any] = set()
        """The calls that were not allowed, or that had the wrong arguments."""
        self._made_up_values = MadeUpValueCheck(run, model)
        self._insistent_calls = 0
        """How many calls of this turn were refused, though the model knew that they would be."""

    @property
    def may_call(self) -> bool:
        """Whether the model is offered tools: not after a repeated call, or a second turn of refused ones."""
        return not self.repetitions and self._refused_turns < MAX_REFUSED_TURNS - 1

    def find_endless_repetition(self) -> str | None:
        """The reason to stop a run whose model only repeats calls; None if it may continue."""
        if self._refused_turns >= MAX_REFUSED_TURNS:
            return f"the model repeated calls that were refused, in {self._refused_turns} turns in a row"
        if self.repetitions < MAX_REPETITIONS:
            return None
        return "the model kept repeating a call whose result it already had, even after it was told to answer"

    async def execute_calls(self, calls: Sequence[ResolvedCall], offer: ToolOffer) -> None:
        """Execute the calls and record a result for each, or the question it waits for."""
        self.repetitions = self.repetitions + 1 if calls and all(map(self._find_last_result, calls)) else 0
        self._insistent_calls = 0
        await self._execute_concurrently(calls, offer)
        self._refused_turns = self._refused_turns + 1 if calls and self._insistent_calls == len(calls) else 0

    async def _execute_concurrently(self, calls: Sequence[ResolvedCall], offer: ToolOffer) -> None:
        if len(calls) == 1:
            await self._execute_call(calls[0], offer)
            return
        chains = (self._execute_chain(chain, offer) for chain in _group_into_chains(calls))
        # Not a TaskGroup: a fault in one chain must not cancel calls that are running in another.
        for fault in await asyncio.gather(*chains, return_exceptions=True):
            if fault is not None:
                raise fault

    async def apply_approvals(
        self, waiting: Mapping[str, ToolCall], offer: ToolOffer, approvals: Mapping[str, Approval | bool] | bool | None
    ) -> None:
        """Continue what waits for approval, as far as people have decided: calls by their ids, or a budget."""
        for call_id, request in list(self._run.approvals.items()):
            decision = approvals if isinstance(approvals, bool) or approvals is None else approvals.get(call_id)
            approval = Approval(allowed=decision) if isinstance(decision, bool) else decision
            if is_extension_request(request):
                await self._apply_budget_decision(request, approval)
                self._run.approvals.pop(call_id, None)  # the budget may have been raised: the model is asked again
            else:
                await self._apply_approval(self._services.resolver.resolve(waiting[call_id], offer), offer, approval)

    async def handle_spent_budget(self, spent: BudgetSpent) -> None:
        """Ask a person for more money, or let the run wait for it; else interrupt it, so that it can continue later."""
        services = self._services
        if not spent.must_ask:
            text = explain_stop(self._run.context, str(spent), language=detect_language(self._run.task))
            self._run.end(AgentState.INTERRUPTED, text, str(spent))
            return
        request = await services.engine.costs.request_extension(services.budget.payer, spent)
        asking = None if services.person is None else ask_for_approval(services.person, request)
        await self._apply_budget_decision(request, None if asking is None else await self._wait_for_person(asking))
        if self._run.is_waiting:
            self._run.wait()

    async def _apply_budget_decision(self, request: ApprovalRequest, approval: Approval | None) -> None:
        """Continue with more money, stop because a person refused it, or wait for a decision."""
        services = self._services
        try:
            refusal = await services.engine.costs.apply_decision(services.budget.payer, request, approval)
        except LookupError:
            self._run.approvals[request.call_id] = request
            return
        self._run.approvals.pop(request.call_id, None)
        if refusal is not None:
            text = explain_stop(self._run.context, refusal, language=detect_language(self._run.task))
            self._run.end(AgentState.STOPPED, text, refusal)

    async def _apply_approval(self, resolved: ResolvedCall, offer: ToolOffer, approval: Approval | None) -> None:
        """Continue a waiting call as a person decided: now (`approval`), or elsewhere in the meantime."""
        waiting = self._run.approvals[resolved.call.id]
        approvals = self._services.engine.approvals
        request = await approvals.get(waiting.approval_id) if waiting.approval_id else None
        if request is None or request.state in ("used", "expired"):  # the call has no result: the person is asked again
            await self._execute_call(resolved, offer)
        elif approval is not None and (request.state == "pending" or not approval.allowed or approval.arguments):
            await self._apply_decision(resolved, offer, await approvals.record_decision(request.approval_id, approval))
        elif request.state != "pending":
            await self._apply_decision(resolved, offer, request)

    async def _apply_decision(self, resolved: ResolvedCall, offer: ToolOffer, request: ApprovalRequest) -> None:
        """Execute a call that a person has approved, or record that the person refused it."""
        if request.state == "refused":
            text = f"{REFUSED_BY_USER} {request.decision_reason}".strip()
            self._record_answer(resolved, text, error_type=PERMISSION_DENIED)
        elif resolved.call.error is not None:
            self._record_answer(resolved, resolved.call.error, error_type=VALIDATION_ERROR)
        else:
            await self._execute(resolved, offer, approval=request)

    def record_user_answer(self, call: ToolCall, text: str) -> None:
        """Record the user's answer to a question. Calls that failed before may be tried again, now that it is known."""
        result = ToolExecutionResult(is_success=True, tool_name=call.name, output={"result": text})
        self._record_answer(ResolvedCall(call, call), text, result=result)
        if self._services.memory is not None:
            self._services.memory.clear_failures()

    def begin_tool_use(self, tool: Tool) -> None:
        """Tell a tool that this run uses it, the first time."""
        if tool not in self._used_tools:
            self._used_tools.add(tool)
            begin_run = getattr(tool.target, "begin_run", None)
            if begin_run is not None:
                begin_run(self._run.id)

    async def end_tool_use(self) -> None:
        """Let tools release what they hold for this run."""
        for tool in self._used_tools:
            end_run = getattr(tool.target, "end_run", None)
            if end_run is None:
                continue
            try:
                await end_run(self._run.id)
            except Exception:
                logger.exception("tool=<%s>, run=<%s> | could not release its resources", tool.id, self._run.id)

    async def _execute_chain(self, chain: Sequence[ResolvedCall], offer: ToolOffer) -> None:
        for call in chain:
            await self._execute_call(call, offer)

    async def _execute_call(self, resolved: ResolvedCall, offer: ToolOffer) -> None:
        services, name = self._services, resolved.original.name
        self._emit_start(resolved)
        if resolved.target is None and resolved.call.error is None:
            # A server may still be listing its tools. Tools that appear now need the same approval as the others.
            with suppress(TimeoutError):
                async with asyncio.timeout(services.budget.seconds_left):
                    await services.engine.wait_for_discovery(name)
            resolved = services.resolver.resolve(resolved.original, offer)
        if resolved.call.error is not None:
            self._reject_unreadable_call(resolved, resolved.call.error, offer)
        elif (text := self._find_last_result(resolved)) is not None:
            texts = prompt_texts(detect_language(self._run.task))
            self._record_answer(resolved, text, advice=texts.repeated)
        elif (text := self._made_up_values.question(resolved, offer)) is not None:
            self._hide_call(resolved)
            self._record_answer(resolved, text, error_type=VALIDATION_ERROR)
        else:
            await self._execute(resolved, offer)

    def _reject_unreadable_call(self, resolved: ResolvedCall, error: str, offer: ToolOffer) -> None:
        """Tell the model what is wrong with its call; if it has another call inside, that this one comes first."""
        run, name = self._run, resolved.original.name
        source = run.call_sources.get(resolved.call.id, "") if len(run.open_calls) == 1 else ""
        others = [other for other in offer.actions if other != name and re.search(rf"\b{re.escape(other)}\b", source)]
        texts = prompt_texts(detect_language(run.task))
        if others:
            error = texts.nested_call.format(other=others[0], tool=name)
        if source:
            self._hide_call(resolved)
        self._record_answer(resolved, error, error_type=VALIDATION_ERROR)

    def _hide_call(self, resolved: ResolvedCall) -> None:
        """Show only the result of a call that was written as text, and of those written like it.

        A small model that sees its call again writes it again, even where the tool is no longer offered.
        """
        sources = self._run.call_sources
        if source := sources.get(resolved.call.id):
            sources |= {call_id: "" for call_id, text in sources.items() if text == source}

    def _find_last_result(self, resolved: ResolvedCall) -> str | None:
        """The result that the model already has from the same call in an earlier turn.

        Tools that are called repeatedly on purpose are exempt: by their effects, or by their names. So is a model that
        cannot reason: it repeats a call only if the question does.
        """
        if (
            not self._services.can_reason
            or resolved.target is None
            or resolved.call.error is not None
            or not self._last_results
        ):
            return None
        tool, capability = resolved.target
        if tool.spec.effects_of(capability).polling or _is_repeated_on_purpose(tool.id, capability.name):
            return None
        turn, text = self._last_results.get(resolved.key, (self._run.turns, ""))
        return text if turn < self._run.turns else None

    def _remember_result(self, resolved: ResolvedCall, text: str) -> None:
        if resolved.target is None or self._services.memory is None:
            return
        tool, capability = resolved.target
        key = resolved.key
        # Two calls that alternate change nothing: each time they have the results they had before.
        if not tool.spec.effects_of(capability).read_only and self._all_results.get(key) != text:
            self._last_results.clear()
        self._last_results[key] = self._run.turns, text
        self._all_results[key] = text

    async def _execute(
        self, resolved: ResolvedCall, offer: ToolOffer, *, approval: ApprovalRequest | None = None
    ) -> None:
        call = resolved.call
        covers_call = (
            approval is not None and approval.tool_id == resolved.tool_id
        )  # or else a call that the tool makes
        if resolved.target is not None:
            self.begin_tool_use(resolved.target[0])
        edited = approval.edited_arguments if approval is not None and covers_call else None
        if edited is not None:
            self._emit_start(resolved, edited)
        approval_id = approval.approval_id if approval is not None and covers_call else None
        result = await self._call_tool(resolved, approval_id)
        if edited is not None:
            resolved = replace(resolved, call=replace(call, arguments=edited))
        if result.error_type == APPROVAL_REQUIRED and "approval_id" in result.metadata:
            await self._request_approval(resolved, offer, result.metadata["approval_id"])
        elif call.name == "ask_user" and result.system == ASK_USER:
            await self._ask_question(resolved, result)
        else:
            if call.name == "finish_task" and result.system == FINISH_TASK:
                self._run.finish_message = str(result.output.get("message", ""))
            if result.is_success:
                self._remember_result(resolved, result.text)
            self._record_answer(resolved, result.text, result=result, advice=advice_for_model(result))

    def _emit_start(self, resolved: ResolvedCall, edited: Mapping[str, Any] | None = None) -> None:
        """Say with which arguments a call is made: those of the model, or those that a person wants instead."""
        services = self._services
        if services.listener is not None:
            redacted = services.resolver.redact(resolved)
            arguments = services.subagent.redact_arguments(resolved.original.name, redacted.arguments)
            services.emit(CallStarted(replace(redacted, arguments=arguments if edited is None else dict(edited))))

    async def _call_tool(self, resolved: ResolvedCall, approval_id: str | None) -> ToolExecutionResult:
        """The result of a call. Its timeout does not include the wait for a slot; the time limit of the run does."""
        seconds = self._services.budget.seconds_left
        try:
            async with asyncio.timeout(None if seconds is None else seconds + _SECONDS_TO_END):
                return await self._services.subagent.execute(
                    resolved.tool_id,
                    resolved.call.arguments,
                    self._timeout_for(resolved),
                    action=resolved.action,
                    tool_call_id=resolved.call.id,
                    approval_id=approval_id,
                    on_progress=None if self._services.listener is None else partial(self._emit_progress, resolved),
                )
        except TimeoutError:
            return ToolExecutionResult(
                is_success=False, tool_name=resolved.tool_id, error=TIME_IS_UP, error_type=TIMEOUT
            )

    def _emit_progress(self, resolved: ResolvedCall, progress: Progress) -> None:
        call, secrets = (
            self._services.resolver.redact(resolved),
            self._services.engine.store.get_run_secrets(self._run.id),
        )
        if len(secrets):
            progress = replace(progress, message=secrets.redact(progress.message), data=secrets.redact(progress.data))
        event = CustomEvent(call, progress.event, progress.data) if progress.event else CallProgress(call, progress)
        self._services.emit(event)

    def _timeout_for(self, resolved: ResolvedCall) -> float | None:
        """The timeout of a call in seconds, so that no call outlasts the run; None means the tool's own timeout."""
        seconds, engine = self._services.budget.seconds_left, self._services.engine
        if seconds is None:
            return None
        timeout = None if resolved.target is None else resolved.target[0].spec.limits_of(resolved.target[1]).timeout
        return min(seconds, timeout or engine.config.default_timeout)

    async def _ask_question(self, resolved: ResolvedCall, result: ToolExecutionResult) -> None:
        question = Question(
            call_id=resolved.call.id,
            text=str(result.output["question"]),
            options=tuple(map(str, result.output["options"])),
        )
        person = self._services.person
        answer = await self._wait_for_person(ask_for_answer(person, question)) if person is not None else None
        if answer is None:
            self._run.questions[resolved.call.id] = question
        else:
            self.record_user_answer(resolved.call, answer)

    async def _request_approval(self, resolved: ResolvedCall, offer: ToolOffer, approval_id: str) -> None:
        approvals, person = self._services.engine.approvals, self._services.person
        request = replace(await approvals.get(approval_id), call_id=resolved.call.id)
        approval = await self._wait_for_person(ask_for_approval(person, request)) if person is not None else None
        if approval is None:
            self._run.approvals[resolved.call.id] = request
        else:
            await self._apply_decision(resolved, offer, await approvals.record_decision(approval_id, approval))

    async def _wait_for_person(self, reply: Awaitable[T | None]) -> T | None:
        """The person's reply, or None if asking failed: the run then waits for a reply."""
        async with self._person_lock:
            try:
                return await reply
            except SetupError:
                raise
            except Exception:
                logger.exception("run=<%s> | the person could not be asked, so the run waits", self._run.id)
                return None

    def _record_answer(
        self,
        resolved: ResolvedCall,
        text: str,
        *,
        result: ToolExecutionResult | None = None,
        error_type: str | None = None,
        advice: str = "",
    ) -> None:
        tool_id, action = resolved.tool_id, resolved.action
        step = AgentStep(
            id=resolved.call.id,
            tool_id=tool_id,
            action=action,
            arguments=self._services.subagent.redact_arguments(tool_id, resolved.call.arguments, action),
            text=text,
            is_success=error_type is None if result is None else result.is_success,
            error_type=error_type if result is None else result.error_type,
            seconds=0.0 if result is None else result.execution_time,
            cost=None if result is None else result.metadata.get("cost"),
            record_id="" if result is None else result.call_id,
            advice=advice if self._services.can_reason else "",
        )
        if step.error_type == KNOWN_FAILURE:
            self._run.refused_names.add(resolved.original.name)
            self._hide_call(resolved)
            self._insistent_calls += 1
        elif step.error_type in (PERMISSION_DENIED, TOOL_NOT_FOUND, VALIDATION_ERROR):
            call = tool_id, action, encode_json(step.arguments), text
            self._insistent_calls += call in self._rejected_calls
            self._rejected_calls.add(call)
        if result is not None:
            self._run.context.record(tool_id, action, step.arguments, result)
        self._run.add_answer(step)
        self._services.emit(CallEnded(step))


def policy_of_run(run: Run, policy: CallPolicy, registry: ToolRegistry) -> CallPolicy:
    """The policy, with the tools that trusted skills of the run bring."""
    if isinstance(policy, Policy) and policy.trusted_skills:
        return SkillPolicy(policy, run, registry)
    return policy


class SkillPolicy:
    """The policy of a run in which the tools of trusted, active skills (`allowed-tools`) need no approval.

    Only the default of the policy is changed: a rule of the user comes first.
    """

    def __init__(self, policy: Policy, run: Run, registry: ToolRegistry) -> None:
        self._policy, self._run, self._registry = policy, run, registry

    def decide(
        self, principal: Principal, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any] | None, /
    ) -> Decision:
        decision = self._policy.decide(principal, tool, capability, arguments)
        if decision.verdict != "ask" or decision.rule or capability.changes:
            return decision
        is_granted = matches_any(self._granted_tools(), tool, capability)
        return replace(decision, verdict="allow" if is_granted else "ask", depends_on_arguments=True)

    def _granted_tools(self) -> frozenset[str]:
        activations = {step.tool_id for step in self._run.steps if step.is_success and step.action == "activate"}
        trusted = self._policy.trusted_skills
        skills = [tool for tool in map(self._registry.get, activations & trusted.keys()) if tool is not None]
        return frozenset(
            name
            for tool in skills
            if isinstance(tool.target, SkillFolder) and tool.target.digest == trusted[tool.id]
            for name in tool.spec.metadata.get("allowed_tools", ())
        )


@lru_cache(maxsize=4096)
def _is_repeated_on_purpose(tool_id: str, action: str) -> bool:
    return _REPEATED_ON_PURPOSE.search(f"{tool_id} {action}") is not None


def _group_into_chains(calls: Sequence[ResolvedCall]) -> list[list[ResolvedCall]]:
    """Group the calls: those in one group must run one after the other."""
    changing = {
        resolved.tool_id
        for resolved in calls
        if resolved.target and not resolved.target[0].spec.effects_of(resolved.target[1]).read_only
    }
    chains: dict[Any, list[ResolvedCall]] = {}
    for resolved in calls:
        identity = (resolved.tool_id, resolved.action, encode_json(resolved.call.arguments, sort_keys=True))
        chains.setdefault(resolved.tool_id if resolved.tool_id in changing else identity, []).append(resolved)
    return list(chains.values())


def advice_for_model(result: ToolExecutionResult) -> str:
    """What the model is told about a result, besides its text."""
    lines = []
    if result.metadata.get("arguments_edited"):
        lines.append("[A person has changed the arguments of this call: the result is for the changed ones.]")
    if note := result.metadata.get("note"):
        lines.append(f"[{note}]")
    if result.metadata.get("recalled"):
        lines.append(
            "[Repeated call: this is the result of the same call made earlier, and nothing has changed since. Use it.]"
        )
    instead = result.metadata.get("instead")
    if instead and result.error_type != KNOWN_FAILURE:  # whose message already includes the advice
        lines.append("Try instead: " + "; ".join(instead) + ".")
    return "\n".join(lines)
