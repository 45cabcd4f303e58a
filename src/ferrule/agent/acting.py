"""Making the calls of one turn: each is answered exactly once, whatever happens to the others.

Calls that only look run at once. Calls of a tool that changes something run in the order the model wrote them, and
so do calls that are the same: the second may then be answered by what became of the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ferrule.agent.answer import AgentStep, Approval, ApprovalRequest, Question
from ferrule.agent.approval import ApprovalPolicy, Person, strictest
from ferrule.agent.events import CallEnded, CallStarted, OnEvent
from ferrule.agent.meaning import Meaning, Meant
from ferrule.agent.run import Run
from ferrule.agent.toolbox import Offer
from ferrule.call import ToolExecutionResult
from ferrule.content import encode_json
from ferrule.errors import KNOWN_FAILURE, PERMISSION_DENIED, VALIDATION_ERROR, KnownFailure
from ferrule.messages import ToolCall
from ferrule.spec import Tool, ToolType
from ferrule.subagent import ToolSubAgent
from ferrule.tools.conversation import ASK_USER, FINISH_TASK

logger = logging.getLogger("ferrule.agent")

T = TypeVar("T")

DENIED = "The user does not allow this call."


@dataclass(slots=True, kw_only=True)
class Acting:
    """Makes calls for one run."""

    run: Run
    calls: ToolSubAgent
    meaning: Meaning
    policy: ApprovalPolicy
    person: Person | None
    emit: OnEvent
    used: Callable[[Tool], None]
    """Is told of each tool before it is called."""
    heard: Callable[[], None]
    """Is told when a person has answered a question."""
    patience: Callable[[Meant], float | None]
    """Seconds a call may take; None for what it takes anyway."""
    settled: Callable[[], Awaitable[None]]
    """Waits for tools that are just being found."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A person is asked one thing at a time."""

    async def perform(self, wanted: Sequence[ToolCall], offer: Offer) -> None:
        """Make the calls and give each its answer, or the question it waits for."""
        if len(wanted) == 1:
            await self._one(wanted[0], offer)
            return
        chains = (self._in_order(chain, offer) for chain in self._chains(wanted, offer))
        # Not a TaskGroup: a fault in one place must not cut off calls that are under way in another.
        for fault in await asyncio.gather(*chains, return_exceptions=True):
            if fault is not None:
                raise fault

    async def approved(self, call: ToolCall, offer: Offer, word: Approval) -> None:
        """Make a call a person has spoken about."""
        meant = self.meaning.of(call, offer)
        if not word.allowed:
            self._answer(meant, f"{DENIED} {word.reason}".strip(), error_type=PERMISSION_DENIED)
            return
        if word.arguments is not None:
            edited = replace(meant.call, arguments=dict(word.arguments), error=None)
            meant = replace(meant, call=edited) if meant.found is not None else self.meaning.of(edited, offer)
        if meant.call.error is not None:
            self._answer(meant, meant.call.error, error_type=VALIDATION_ERROR)
            return
        await self._make(meant, approved=True)

    def told(self, call: ToolCall, text: str) -> None:
        """A question has its answer."""
        result = ToolExecutionResult(is_success=True, tool_name=call.name, output={"result": text})
        self._answer(Meant(call), text, result=result)
        self.heard()

    async def _in_order(self, chain: Sequence[ToolCall], offer: Offer) -> None:
        for call in chain:
            await self._one(call, offer)

    async def _one(self, call: ToolCall, offer: Offer) -> None:
        shown = self.meaning.shown(call, offer)
        self.emit(CallStarted(replace(shown, arguments=self.calls.shown_params(call.name, shown.arguments))))
        meant = self.meaning.of(call, offer)
        if meant.found is None and meant.call.error is None:
            await self.settled()  # what is found only now needs the same leave as what was there before
            meant = self.meaning.of(call, offer)
        if meant.call.error is not None:
            self._answer(meant, meant.call.error, error_type=VALIDATION_ERROR)
            return
        verdict = strictest(self.policy.verdict(*candidate) for candidate in meant.candidates)
        if verdict == "deny":
            self._answer(meant, DENIED, error_type=PERMISSION_DENIED)
        elif verdict == "ask" and not self._is_allowed_by_a_skill(meant, offer):
            await self._ask_leave(meant, offer, f"{call.name} may only be called when you agree.")
        else:
            await self._make(meant, offer=offer)

    def _is_allowed_by_a_skill(self, meant: Meant, offer: Offer) -> bool:
        """Whether a skill that was activated in this run brings leave for the call with it (its `allowed-tools`).

        A word of the user's policy on this very tool or its tags counts more.
        """
        if any(self.policy.particular(tool, action) is not None for tool, action in meant.candidates):
            return False
        specs = {found.id: found.spec for found, _ in offer.actions.values() if found.spec.tool_type is ToolType.SKILL}
        active = [s.tool_id for s in self.run.steps if s.is_success and s.action == "activate" and s.tool_id in specs]
        allowed = {name for tool_id in active for name in specs[tool_id].metadata.get("allowed_tools", ())}
        return not allowed.isdisjoint(
            {meant.tool_id, *(tool.spec.model_name(action) for tool, action in meant.candidates)}
        )

    async def _make(self, meant: Meant, *, offer: Offer | None = None, approved: bool = False) -> None:
        call = meant.call
        if meant.found is not None:
            self.used(meant.found[0])
        result = await self.calls.execute(
            meant.tool_id,
            call.arguments,
            self.patience(meant),
            action=meant.action,
            tool_call_id=call.id,
            approved=approved,
        )
        if result.metadata.get("advice") == "ask_approval" and meant.found is not None and offer is not None:
            await self._ask_leave(meant, offer, result.error or "")
        elif call.name == "ask_user" and result.system == ASK_USER:
            await self._ask(meant, result)
        else:
            if call.name == "finish_task" and result.system == FINISH_TASK:
                self.run.finished_with = str(result.output.get("message", ""))
            self._answer(meant, text_for_model(result), result=result)

    async def _ask(self, meant: Meant, result: ToolExecutionResult) -> None:
        question = Question(
            call_id=meant.call.id,
            text=str(result.output["question"]),
            options=tuple(map(str, result.output["options"])),
        )
        said = await self._listen(self.person.answer(question)) if self.person is not None else None
        if said is None:
            self.run.questions[meant.call.id] = question
        else:
            self.told(meant.call, said)

    async def _ask_leave(self, meant: Meant, offer: Offer, reason: str) -> None:
        if (known := self._known_failure(meant)) is not None:  # nobody is asked for leave to fail again
            self._answer(meant, str(known), error_type=KNOWN_FAILURE)
            return
        call = meant.call
        request = ApprovalRequest(
            call_id=call.id,
            tool_id=meant.tool_id,
            action=meant.action,
            arguments=self.calls.shown_params(meant.tool_id, call.arguments, meant.action),
            reason=reason,
        )
        word = await self._listen(self.person.approve(request)) if self.person is not None else None
        if word is None:
            self.run.approvals[call.id] = request
        else:
            await self.approved(call, offer, word)

    async def _listen(self, asked: Awaitable[T | None]) -> T | None:
        """What a person says; None when they cannot be asked after all, so that the run waits for them."""
        async with self.turn:
            try:
                return await asked
            except Exception:
                logger.exception("run=<%s> | the person could not be asked, so the run waits", self.run.id)
                return None

    def _known_failure(self, meant: Meant) -> KnownFailure | None:
        if self.calls.memory is None or meant.found is None:
            return None
        try:
            self.calls.memory.recall(*meant.found, dict(meant.call.arguments))
        except KnownFailure as known:
            return known
        return None

    def _answer(
        self,
        meant: Meant,
        text: str,
        *,
        result: ToolExecutionResult | None = None,
        error_type: str | None = None,
    ) -> None:
        tool_id, action = meant.tool_id, meant.action
        step = AgentStep(
            id=meant.call.id,
            tool_id=tool_id,
            action=action,
            arguments=self.calls.shown_params(tool_id, meant.call.arguments, action),
            text=text,
            is_success=error_type is None if result is None else result.is_success,
            error_type=error_type if result is None else result.error_type,
            seconds=0.0 if result is None else result.execution_time,
            record_id="" if result is None else result.call_id,
        )
        if result is not None:
            self.run.context.record(tool_id, action, step.arguments, result)
        self.run.answered(step)
        self.emit(CallEnded(step))

    def _chains(self, wanted: Sequence[ToolCall], offer: Offer) -> list[list[ToolCall]]:
        """The calls, sorted into those that must follow each other."""
        meant = [self.meaning.of(call, offer) for call in wanted]
        changing = {
            one.tool_id for one in meant if one.found and not one.found[0].spec.effects_of(one.found[1]).read_only
        }
        chains: dict[Any, list[ToolCall]] = {}
        for call, one in zip(wanted, meant, strict=True):
            same = (one.tool_id, one.action, encode_json(one.call.arguments, sort_keys=True))
            chains.setdefault(one.tool_id if one.tool_id in changing else same, []).append(call)
        return list(chains.values())


def text_for_model(result: ToolExecutionResult) -> str:
    """What a model is told about a call, with what memory has to say about it."""
    said = [result.text]
    if note := result.metadata.get("note"):
        said.append(f"[{note}]")
    if result.metadata.get("recalled"):
        said.append("[From the record: this call was made before and nothing has changed. Use what it gave.]")
    instead = result.metadata.get("instead")
    if instead and result.error_type != KNOWN_FAILURE:  # which says it itself
        said.append("Try instead: " + "; ".join(instead) + ".")
    return "\n".join(said)
