"""Making the calls of one turn: each is answered exactly once, whatever happens to the others.

Calls that only look run at once. Calls of a tool that changes something run in the order the model wrote them, and
so do calls that are the same: the second may then be answered by what became of the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ferrule.agent.answer import AgentStep, Approval, ApprovalRequest, Question
from ferrule.agent.approval import ApprovalPolicy, Person
from ferrule.agent.control import ASK_USER, FINISH_TASK
from ferrule.agent.events import CallEnded, CallStarted, OnEvent
from ferrule.agent.run import Run
from ferrule.agent.toolbox import Offer
from ferrule.call import ToolExecutionResult
from ferrule.content import encode_json
from ferrule.errors import KNOWN_FAILURE, VALIDATION_ERROR
from ferrule.messages import ToolCall
from ferrule.spec import Tool, ToolCapability, ToolType
from ferrule.subagent import ToolSubAgent

DENIED = "The user does not allow this call."


@dataclass(slots=True, kw_only=True)
class Acting:
    """Makes calls for one run."""

    run: Run
    calls: ToolSubAgent
    policy: ApprovalPolicy
    person: Person | None
    emit: OnEvent
    used: Callable[[Tool], None]
    """Is told of each tool before it is called."""

    async def perform(self, wanted: Sequence[ToolCall], offer: Offer) -> None:
        """Make the calls and give each its answer, or the question it waits for."""
        if len(wanted) == 1:
            await self._one(wanted[0], offer)
            return
        async with asyncio.TaskGroup() as group:
            for chain in _chains(wanted, offer):
                group.create_task(self._in_order(chain, offer))

    async def approved(self, call: ToolCall, offer: Offer, word: Approval) -> None:
        """Make a call a person has spoken about."""
        if not word.allowed:
            self._answer(call, None, f"{DENIED} {word.reason}".strip(), error_type="permission_denied")
            return
        if word.arguments is not None:
            call = ToolCall(name=call.name, arguments=dict(word.arguments), id=call.id)
        await self._make(call, offer.actions.get(call.name), approved=True)

    def told(self, call: ToolCall, text: str) -> None:
        """A question has its answer."""
        self._answer(call, None, text)

    async def _in_order(self, chain: Sequence[ToolCall], offer: Offer) -> None:
        for call in chain:
            await self._one(call, offer)

    async def _one(self, call: ToolCall, offer: Offer) -> None:
        self.emit(CallStarted(call))
        if call.error is not None:
            self._answer(call, None, call.error, error_type=VALIDATION_ERROR)
            return
        found = offer.actions.get(call.name)
        verdict = "allow" if found is None else self.policy.verdict(*found)
        if verdict == "deny":
            self._answer(call, found, DENIED, error_type="permission_denied")
        elif verdict == "ask" and found is not None and not self._is_allowed_by_a_skill(call, found[0], offer):
            await self._ask_leave(call, found, offer, f"{call.name} may only be called when you agree.")
        else:
            await self._make(call, found, offer=offer)

    def _is_allowed_by_a_skill(self, call: ToolCall, tool: Tool, offer: Offer) -> bool:
        """Whether a skill that was activated in this run brings leave for the call with it (its `allowed-tools`)."""
        specs = {found.id: found.spec for found, _ in offer.actions.values() if found.spec.tool_type is ToolType.SKILL}
        active = [s.tool_id for s in self.run.steps if s.is_success and s.action == "activate" and s.tool_id in specs]
        allowed = {name for tool_id in active for name in specs[tool_id].metadata.get("allowed_tools", ())}
        return call.name in allowed or tool.id in allowed

    async def _make(
        self,
        call: ToolCall,
        found: tuple[Tool, ToolCapability] | None,
        *,
        offer: Offer | None = None,
        approved: bool = False,
    ) -> None:
        if found is not None:
            self.used(found[0])
        name, action = (call.name, None) if found is None else (found[0].id, found[1].name)
        result = await self.calls.execute(name, call.arguments, action=action, tool_call_id=call.id, approved=approved)
        if result.metadata.get("advice") == "ask_approval" and found is not None and offer is not None:
            await self._ask_leave(call, found, offer, result.error or "")
        elif call.name == "ask_user" and result.system == ASK_USER:
            await self._ask(call, result)
        else:
            if call.name == "finish_task" and result.system == FINISH_TASK:
                self.run.finished_with = str(result.output.get("message", ""))
            self._answer(call, found, text_for_model(result), result=result)

    async def _ask(self, call: ToolCall, result: ToolExecutionResult) -> None:
        question = Question(
            call_id=call.id, text=str(result.output["question"]), options=tuple(map(str, result.output["options"]))
        )
        said = await self.person.answer(question) if self.person is not None else None
        if said is None:
            self.run.questions[call.id] = question
        else:
            self._answer(call, None, said, result=result)

    async def _ask_leave(self, call: ToolCall, found: tuple[Tool, ToolCapability], offer: Offer, reason: str) -> None:
        request = ApprovalRequest(
            call_id=call.id,
            tool_id=found[0].id,
            action=found[1].name,
            arguments=self.calls.shown_params(found[0].id, call.arguments, found[1].name),
            reason=reason,
        )
        word = await self.person.approve(request) if self.person is not None else None
        if word is None:
            self.run.approvals[call.id] = request
        else:
            await self.approved(call, offer, word)

    def _answer(
        self,
        call: ToolCall,
        found: tuple[Tool, ToolCapability] | None,
        text: str,
        *,
        result: ToolExecutionResult | None = None,
        error_type: str | None = None,
    ) -> None:
        tool_id, action = (call.name, None) if found is None else (found[0].id, found[1].name)
        step = AgentStep(
            id=call.id,
            tool_id=tool_id,
            action=action,
            arguments=self.calls.shown_params(tool_id, call.arguments, action),
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


def _chains(wanted: Sequence[ToolCall], offer: Offer) -> list[list[ToolCall]]:
    """The calls, sorted into those that must follow each other."""
    changing = {
        found[0].id
        for call in wanted
        if (found := offer.actions.get(call.name)) and not found[0].spec.effects_of(found[1]).read_only
    }
    chains: dict[Any, list[ToolCall]] = {}
    for call in wanted:
        found = offer.actions.get(call.name)
        in_order = found is not None and found[0].id in changing
        key = found[0].id if in_order and found else (call.name, encode_json(call.arguments, sort_keys=True))
        chains.setdefault(key, []).append(call)
    return list(chains.values())
