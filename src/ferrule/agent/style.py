"""How a model says what it wants: by calling tools, or by deciding on a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ferrule.agent.compaction import Compaction
from ferrule.agent.decisions import AgentDecision, parse_decision
from ferrule.agent.prompts import contextual_decision_prompt, language_of
from ferrule.agent.run import Run
from ferrule.agent.toolbox import Offer
from ferrule.errors import ModelError
from ferrule.messages import ToolCall, user_message
from ferrule.models.model import ModelReply, ModelRequest
from ferrule.names import model_name
from ferrule.parsing import read_tool_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What a model wants to happen next: calls, or the end."""

    text: str = ""
    calls: Sequence[ToolCall] = ()
    remark: str | None = None
    """What it must be told before it is asked again, where it wants neither."""


class Style(Protocol):
    """Puts the state of a run to a model, and reads what it makes of it."""

    def request(self, run: Run, offer: Offer) -> ModelRequest: ...

    def read(self, run: Run, reply: ModelReply, offer: Offer) -> Move: ...

    def shorten(self) -> bool:
        """Show less from now on, since it was too much for the model; False when that cannot be done."""
        ...


class ToolCalls:
    """The model sees the history and the schemas, and calls tools: by its API, or in its text if it has none."""

    def __init__(self, window_tokens: int) -> None:
        self._history = Compaction(window_tokens)

    def request(self, run: Run, offer: Offer) -> ModelRequest:
        return ModelRequest(messages=self._history.view(run.messages, run.task), tools=offer.schemas)

    def shorten(self) -> bool:
        return self._history.halve()

    def read(self, run: Run, reply: ModelReply, offer: Offer) -> Move:
        if reply.tool_calls:
            return Move(text=reply.text, calls=reply.tool_calls)
        if reply.finish_reason == "refused":
            return Move(text=reply.text or "The model refuses to answer this.")
        reading = read_tool_calls(reply.text, offer.known)
        if reading.calls:
            return Move(text=reading.text, calls=reading.calls)
        if not reading.text:
            return Move(remark="You said nothing. Answer the user, or call a tool.")
        return Move(text=_final(reading.text))


class Decisions:
    """The model is shown where the task stands and decides: execute_tool, replan, switch_tool or complete."""

    def shorten(self) -> bool:
        return False  # what it is shown is short already

    def request(self, run: Run, offer: Offer) -> ModelRequest:
        prompt = contextual_decision_prompt(run.context, language=language_of(run.task))
        remarks = [m for m in run.messages[-1:] if m["role"] == "user" and m["content"] != run.task]
        return ModelRequest(messages=[*run.messages[:1], user_message(prompt), *remarks])

    def read(self, run: Run, reply: ModelReply, offer: Offer) -> Move:
        if reply.tool_calls:
            return Move(text=reply.text, calls=reply.tool_calls)
        try:
            decision = parse_decision(reply.text)
        except ModelError as error:
            return Move(text=reply.text, remark=str(error))
        return _move(decision, run, offer)


def _move(decision: AgentDecision, run: Run, offer: Offer) -> Move:
    if decision.action_type == "complete":
        last = run.context.current_observations[-1] if run.context.current_observations else ""
        return Move(text=decision.reasoning or last or "Done.")
    if decision.action_type == "replan":
        run.context.original_plan = [{"description": decision.reasoning}]
        return Move(text=decision.reasoning, remark="Go on by the new plan: decide on its first step.")
    if decision.action_type == "switch_tool" and not decision.parameters:
        switches = run.context.learned_patterns.get("tool_switches") or []
        others = switches[-1]["to_tools"] if switches else sorted({tool.id for tool, _ in offer.actions.values()})
        shown = ", ".join(others[:10])
        return Move(text=decision.reasoning, remark=f"Decide which tool to execute instead. There are: {shown}.")
    name = model_name(decision.tool_id or "", decision.action)
    if name not in offer.actions and decision.tool_id is not None:
        name = next((n for n in (model_name(decision.tool_id), decision.tool_id) if n in offer.actions), name)
    return Move(text=decision.reasoning, calls=[ToolCall(name=name, arguments=dict(decision.parameters or {}))])


def _final(text: str) -> str:
    """What a model that thinks aloud means as its answer."""
    _, mark, answer = text.rpartition("Final Answer:")
    return answer.strip() if mark and answer.strip() else text


def numbered(run: Run, calls: Sequence[ToolCall]) -> list[ToolCall]:
    """The calls, each with an id that no other call of the run has."""
    found: list[ToolCall] = []
    for call in calls:
        number = len(found) + 1
        while not call.id or call.id in run.ids:
            call = replace(call, id=f"call_{run.turns + 1}_{number}")
            number += 1
        run.ids.add(call.id)
        found.append(call)
    return found
