"""Executing the calls of one turn: each gets exactly one result, whatever happens to the others.

Read-only calls run concurrently. Calls of a tool that changes something run in the order the model wrote them.
Identical calls also run in order, so that the second can reuse the result of the first.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

from ferrule.agent.answer import (
    AgentAnswer,
    AgentState,
    CallEnded,
    CallProgress,
    CallStarted,
    CustomEvent,
    OnEvent,
    RunEnded,
    RunEvent,
    RunPaused,
    StepAttempt,
    StepResult,
)
from ferrule.agent.budget import NeedsPerson, RunBudget
from ferrule.agent.calls import HumanReply, PausedRuns, RunCall, RunCalls, RunRequests
from ferrule.agent.control_tools import ASK_USER, FINISH_TASK
from ferrule.agent.formats import MAX_OUTPUT_ATTEMPTS, OutputType, ReplyFormat
from ferrule.agent.prompts import explain_stop, short_failure_summary
from ferrule.agent.run import Run
from ferrule.agent.toolbox import Toolbox, ToolOffer
from ferrule.core.call import Progress, ToolExecutionResult
from ferrule.core.content import encode_json
from ferrule.core.events import RunEvents
from ferrule.core.messages import note_message, text_of_message
from ferrule.core.model import Model, can_reason
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import Tool
from ferrule.errors import KNOWN_FAILURE, PERMISSION_DENIED, TOOL_NOT_FOUND, VALIDATION_ERROR, SetupError
from ferrule.memory.run_memory import VOLATILE_NAME
from ferrule.policy.approvals import ApprovalRequest, Question
from ferrule.texts.language import detect_language
from ferrule.texts.prompts import prompt_texts

logger = logging.getLogger("ferrule.agent")

T = TypeVar("T")

_REPEATED_ON_PURPOSE = lazy_pattern(
    rf"{VOLATILE_NAME.pattern}|(^|[_\W])(again|append|click|draw|flip|increment|insert|move|press|refresh|repeat|roll"
    r"|scroll|shuffle|step|tap|toggle|undo|redo)([_\W]|$)",
    re.IGNORECASE,
)
"""Names of tools that are repeated on purpose with the same arguments; exempt from the repetition check."""
FAILED_TURNS_BEFORE_BRIEFING: Final = 3
"""The model gets a summary of the failures after this many turns in a row in which every call failed."""
MAX_EMPTY_REPLIES: Final = 3
"""The run is stopped after this many replies in a row without a call or an answer."""
MAX_REPETITIONS: Final = 4
"""The run is stopped after this many turns in a row with only calls whose results the model has."""
MAX_REFUSED_TURNS: Final = 3
"""The run is stopped after this many turns in a row with only calls that were refused and that the model repeats."""


class ActiveRun:
    """A run of the loop in progress in this process: executes the calls of its model, and ends the run."""

    def __init__(
        self,
        run: Run,
        *,
        model: Model,
        calls: RunCalls,
        toolbox: Toolbox,
        requests: RunRequests,
        paused: PausedRuns,
        budget: RunBudget,
        listener: OnEvent | None,
        events: RunEvents,
        reply_format: ReplyFormat,
        output: OutputType | None,
    ) -> None:
        """`model` is the model as this run uses it."""
        self.run, self.calls, self.toolbox, self.budget, self.paused = run, calls, toolbox, budget, paused
        self.model, self.requests, self.listener, self.events = model, requests, listener, events
        self.format, self.output = reply_format, output
        self.rejected_outputs = self.empty_replies = self._failed_turns = 0
        self.engine, self.memory, self._can_reason = calls.engine, calls.memory, can_reason(model)
        self._used_tools: set[Tool] = set()
        self._last_results: dict[Any, tuple[int, str]] = {}
        """By call: the turn and the text of its last result, as long as nothing was changed since."""
        self._all_results: dict[Any, str] = {}
        """By call: the text of its last result."""
        self._repetitions = 0
        """How many turns in a row have only repeated calls whose results the model has."""
        self._refused_turns = 0
        """How many turns in a row have only calls that are known to fail, or that were refused before."""
        self._rejected_calls: set[Any] = set()
        """The calls that were not allowed, or that had the wrong arguments."""
        self._insistent_calls = 0
        """How many calls of this turn were refused, though the model knew that they would be."""

    def emit(self, event: RunEvent) -> None:
        if self.listener is not None:
            self.listener(event)

    # How the run ends

    def end_if_finished(self) -> bool:
        """End the run if its model has called `finish_task`. The answer may be in the text beside the call."""
        run = self.run
        if run.finish_message is None:
            return False
        replies = (text_of_message(message) for message in reversed(run.messages) if message["role"] == "assistant")
        text = run.finish_message if run.finish_message.strip() else next(replies, "")
        if text.strip():
            self.finish(text)
        else:
            run.finish_message = None
            self.send_correction(prompt_texts(detect_language(run.task)).no_answer)
        return True

    def finish(self, text: str) -> None:
        """End the run with this answer; if it is not of the type of the run's output, tell the model why."""
        run, output = self.run, self.output
        if output is None:
            run.end(AgentState.FINISHED, text)
            return
        try:
            run.value = output.parse(text)
        except ValueError as error:
            self.rejected_outputs += 1
            if self.rejected_outputs >= MAX_OUTPUT_ATTEMPTS:
                self.stop(f"the model's answer was not of type {output.name} ({error})")
            else:
                run.add(note_message(f"This is not an answer of the required form: {error}.\n\n{output.instruction}"))
        else:
            run.end(AgentState.FINISHED, output.format(run.value))

    def restore_value(self) -> None:
        """Read the output of a finished run in its stored text. Raises SetupError if it is of another type."""
        run, output = self.run, self.output
        if output is not None and run.state is AgentState.FINISHED:
            try:
                run.value = output.parse(run.text)
            except ValueError as error:
                problem = f"The answer of the run {run.id!r} is not of the type {output.name}: {error}."
                raise SetupError(f"{problem} Resume it with the `output` that the run was given.") from None

    def send_correction(self, text: str) -> None:
        self.empty_replies += 1
        if self.empty_replies >= MAX_EMPTY_REPLIES:
            self.stop(f"the model gave {self.empty_replies} replies in a row without a call or an answer")
        else:
            self.run.add(note_message(text))

    def stop(self, reason: str) -> None:
        """End the run without an answer; its text says what was tried."""
        run = self.run
        logger.info("run=<%s>, turns=<%d> | stopped: %s", run.id, run.turns, run.secrets.redact(reason))
        run.end(AgentState.STOPPED, explain_stop(run.context, reason, language=detect_language(run.task)), reason)

    async def emit_answer(self) -> AgentAnswer[Any]:
        answer = self.run.answer(await self.calls.summarize())
        self.emit(RunPaused(answer) if answer.state is AgentState.WAITING else RunEnded(answer))
        return answer

    # The calls of a turn

    @property
    def may_call(self) -> bool:
        """Return whether the model is offered tools: not after a repeated call, or a second turn of refused ones."""
        return not self._repetitions and self._refused_turns < MAX_REFUSED_TURNS - 1

    def find_endless_repetition(self) -> str | None:
        """Return the reason to stop a run whose model only repeats calls, or None if it may continue."""
        if self._refused_turns >= MAX_REFUSED_TURNS:
            return f"the model repeated calls that were refused, in {self._refused_turns} turns in a row"
        if self._repetitions < MAX_REPETITIONS:
            return None
        return "the model kept repeating a call whose result it already had, even after it was told to answer"

    async def execute_turn(self, calls: Sequence[RunCall], offer: ToolOffer) -> None:
        """Execute the calls, with the person at hand, and tell the model what went wrong if nothing works any more."""
        run, self.empty_replies, before = self.run, 0, len(self.run.steps)
        await self.execute_calls(calls, offer)
        await self.ask_person(offer)
        if run.state is AgentState.RUNNING and not self.end_if_finished():
            has_success = any(step.is_success for step in run.steps[before:])
            self._failed_turns = 0 if has_success else self._failed_turns + 1
            is_due = self._failed_turns > 0 and self._failed_turns % FAILED_TURNS_BEFORE_BRIEFING == 0
            if is_due and run.context.failed_attempts:
                run.add(note_message(short_failure_summary(run.context, language=detect_language(run.task))))

    async def execute_calls(self, calls: Sequence[RunCall], offer: ToolOffer) -> None:
        """Execute the calls and record a result for each, or the question it waits for."""
        self._repetitions = self._repetitions + 1 if calls and all(map(self._find_last_result, calls)) else 0
        self._insistent_calls = 0

        async def execute_chain(chain: Sequence[RunCall]) -> None:
            for call in chain:
                await self._execute_call(call, offer)

        if len(calls) == 1:
            await self._execute_call(calls[0], offer)
        else:
            # Not a TaskGroup: a fault in one chain must not cancel calls that are running in another.
            chains = map(execute_chain, _group_into_chains(calls))
            for fault in await asyncio.gather(*chains, return_exceptions=True):
                if fault is not None:
                    raise fault
        self._refused_turns = self._refused_turns + 1 if calls and self._insistent_calls == len(calls) else 0

    async def ask_person(self, offer: ToolOffer) -> None:
        """Ask the person at hand for what the run waits for, and continue; the run waits for what has no reply."""
        run = self.run
        while run.state is AgentState.RUNNING and run.is_waiting:
            before = run.open_requests
            await self.apply_replies(*await self.requests.ask_person(), offer)
            if run.open_requests == before:
                run.wait()
                self.paused.add(run, run.open_calls)

    async def apply_replies(self, replies: Mapping[str, HumanReply], refusal: str | None, offer: ToolOffer) -> None:
        """Continue the calls that people have replied to, by call id; stop the run if they refuse it more money."""
        if refusal is not None:
            self.stop(refusal)
            return
        waiting = {call.id: call for call in self.run.open_calls if call.id not in self.run.answers}
        for call_id, reply in replies.items():
            resolved = self.toolbox.resolve(waiting[call_id], offer)
            if isinstance(reply, str):
                result = ToolExecutionResult(is_success=True, tool_name=resolved.tool_id, output={"result": reply})
                self._record_answer(resolved, reply, result=result)
                self.calls.origins.add_trusted(reply)
                if self.memory is not None:  # calls that failed before may succeed, now that the answer is there
                    self.memory.clear_failures()
            elif reply.state in ("used", "expired"):  # the call has no result: the person is asked again
                await self._execute_call(resolved, offer)
            elif resolved.call.error is not None and reply.state == "approved":
                self._record_answer(resolved, resolved.call.error, error_type=VALIDATION_ERROR)
            else:
                await self._execute(resolved, reply)

    def begin_tool_use(self, tool: Tool) -> None:
        """Tell a tool that this run uses it, the first time."""
        if tool not in self._used_tools:
            self._used_tools.add(tool)
            begin_run = getattr(tool.target, "begin_run", None)
            if begin_run is not None:
                begin_run(self.run.id)

    async def end_tool_use(self) -> None:
        """Let tools release what they hold for this run."""
        for tool in self._used_tools:
            end_run = getattr(tool.target, "end_run", None)
            if end_run is None:
                continue
            try:
                await end_run(self.run.id)
            except Exception:
                logger.exception("tool=<%s>, run=<%s> | could not release its resources", tool.id, self.run.id)

    async def _execute_call(self, resolved: RunCall, offer: ToolOffer) -> None:
        name = resolved.original.name
        self._emit_start(resolved)
        if resolved.target is None and resolved.call.error is None:
            # A server may still be listing its tools. Tools that appear now need the same approval as the others.
            with suppress(TimeoutError):
                async with asyncio.timeout(self.budget.seconds_left):
                    await self.engine.wait_for_discovery(name)
            resolved = self.toolbox.resolve(resolved.original, offer)
        if resolved.call.error is not None:
            self._reject_unreadable_call(resolved, resolved.call.error, offer)
        elif (text := self._find_last_result(resolved)) is not None:
            texts = prompt_texts(detect_language(self.run.task))
            self._record_answer(resolved, text, advice=texts.repeated)
        else:
            await self._execute(resolved)

    def _reject_unreadable_call(self, resolved: RunCall, error: str, offer: ToolOffer) -> None:
        """Tell the model what is wrong with its call; if it has another call inside, that this one comes first."""
        run, name = self.run, resolved.original.name
        source = run.call_sources.get(resolved.call.id, "") if len(run.open_calls) == 1 else ""
        others = [other for other in offer.actions if other != name and re.search(rf"\b{re.escape(other)}\b", source)]
        texts = prompt_texts(detect_language(run.task))
        if others:
            error = texts.nested_call.format(other=others[0], tool=name)
        if source:
            self._hide_call(resolved)
        self._record_answer(resolved, error, error_type=VALIDATION_ERROR)

    def _hide_call(self, resolved: RunCall) -> None:
        """Show only the result of a call that was written as text, and of those written like it.

        A small model that sees its call again writes it again, even where the tool is no longer offered.
        """
        sources = self.run.call_sources
        if source := sources.get(resolved.call.id):
            sources |= {call_id: "" for call_id, text in sources.items() if text == source}

    def _find_last_result(self, resolved: RunCall) -> str | None:
        """Return the result that the model already has from the same call in an earlier turn.

        Tools that are called repeatedly on purpose are exempt: by their effects, or by their names. So is a model that
        cannot reason: it repeats a call only if the question does.
        """
        if not self._can_reason or resolved.target is None or resolved.call.error is not None or not self._last_results:
            return None
        tool, capability = resolved.target
        if tool.spec.effects_of(capability).polling or _is_repeated_on_purpose(tool.id, capability.name):
            return None
        turn, text = self._last_results.get(resolved.key, (self.run.turns, ""))
        return text if turn < self.run.turns else None

    def _remember_result(self, resolved: RunCall, text: str) -> None:
        if resolved.target is None or self.memory is None:
            return
        tool, capability = resolved.target
        key = resolved.key
        # Two calls that alternate change nothing: each time they have the results they had before.
        if not tool.spec.effects_of(capability).read_only and self._all_results.get(key) != text:
            self._last_results.clear()
        self._last_results[key] = self.run.turns, text
        self._all_results[key] = text

    async def _execute(self, resolved: RunCall, approval: ApprovalRequest | None = None) -> None:
        """Make a call and record its result, or what the run must ask a person for it."""
        call, run = resolved.call, self.run
        if resolved.target is not None:
            self.begin_tool_use(resolved.target[0])
        is_for_call = approval is not None and approval.tool_id == resolved.tool_id  # or else for one that it makes
        edited = approval.edited_arguments if approval is not None and is_for_call else None
        if edited is not None:
            self._emit_start(resolved, edited)
        try:
            on_progress = None if self.listener is None else partial(self._emit_progress, resolved)
            result = self.calls.find_result(resolved, approval) or await self.calls.make(
                resolved, approval, on_progress=on_progress
            )
        except NeedsPerson as needs:
            run.wait_for(needs.request)
            return
        if edited is not None:
            resolved = replace(resolved, call=replace(call, arguments=edited), redacted=None)
        if call.name == "ask_user" and result.system == ASK_USER:
            question, options = str(result.output["question"]), tuple(map(str, result.output["options"]))
            run.wait_for(Question(call_id=call.id, text=question, options=options))
            return
        if call.name == "finish_task" and result.system == FINISH_TASK:
            run.finish_message = str(result.output.get("message", ""))
        if result.is_success:
            self._remember_result(resolved, result.text)
        self._record_answer(resolved, result.text, result=result, advice=advice_for_model(result))

    def _emit_start(self, resolved: RunCall, edited: Mapping[str, Any] | None = None) -> None:
        """Say with which arguments a call is made: those of the model, or those that a person wants instead."""
        if self.listener is not None:
            call = self.calls.redact(resolved)
            self.emit(CallStarted(call if edited is None else replace(call, arguments=dict(edited))))

    def _emit_progress(self, resolved: RunCall, progress: Progress) -> None:
        call, secrets = self.calls.redact(resolved), self.run.secrets
        if len(secrets):
            progress = replace(progress, message=secrets.redact(progress.message), data=secrets.redact(progress.data))
        event = CustomEvent(call, progress.event, progress.data) if progress.event else CallProgress(call, progress)
        self.emit(event)

    def _record_answer(
        self,
        resolved: RunCall,
        text: str,
        *,
        result: ToolExecutionResult | None = None,
        error_type: str | None = None,
        advice: str = "",
    ) -> None:
        tool_id, action = resolved.tool_id, resolved.action
        is_success = error_type is None if result is None else result.is_success
        error = None if is_success else text
        arguments = None if result is None else result.arguments
        step = StepResult(
            step_id=resolved.call.id,
            description="",
            tool_type=resolved.model_name,
            success=is_success,
            result=text if is_success else "",
            error=error,
            error_type=error_type if result is None else result.error_type,
            action=action,
            arguments=self.calls.redact_arguments(resolved) if arguments is None else arguments,
            attempts=(
                StepAttempt(
                    level="name",
                    tool=tool_id,
                    success=is_success,
                    error=error,
                    call_id="" if result is None else result.call_id,
                ),
            ),
            seconds=0.0 if result is None else result.execution_time,
            cost=None if result is None else result.metadata.get("cost"),
            advice=advice if self._can_reason else "",
        )
        if step.error_type == KNOWN_FAILURE:
            self.run.refused_names.add(resolved.original.name)
            self._hide_call(resolved)
            self._insistent_calls += 1
        elif step.error_type in (PERMISSION_DENIED, TOOL_NOT_FOUND, VALIDATION_ERROR):
            call = tool_id, action, encode_json(step.arguments), text
            self._insistent_calls += call in self._rejected_calls
            self._rejected_calls.add(call)
        if result is not None:
            self.run.context.record(tool_id, action, dict(step.arguments), result)
        self.run.add_step(step)
        self.emit(CallEnded(step))


@lru_cache(maxsize=4096)
def _is_repeated_on_purpose(tool_id: str, action: str) -> bool:
    return _REPEATED_ON_PURPOSE.search(f"{tool_id} {action}") is not None


def _group_into_chains(calls: Sequence[RunCall]) -> list[list[RunCall]]:
    """Group the calls: those in one group must run one after the other."""
    changing = {
        resolved.tool_id
        for resolved in calls
        if resolved.target and not resolved.target[0].spec.effects_of(resolved.target[1]).read_only
    }
    chains: dict[Any, list[RunCall]] = {}
    for resolved in calls:
        identity = (resolved.tool_id, resolved.action, encode_json(resolved.call.arguments, sort_keys=True))
        chains.setdefault(resolved.tool_id if resolved.tool_id in changing else identity, []).append(resolved)
    return list(chains.values())


def advice_for_model(result: ToolExecutionResult) -> str:
    """Return what the model is told about a result, besides its text."""
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
