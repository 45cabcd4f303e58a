"""What a run asks people: an answer, the approval of a call, or more money for its model.

The person at hand is asked first, one request at a time. Without a reply the run waits, and is resumed with the replies
that people have given in the meantime.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from ferrule.agent.budget import HumanRequest, RunBudget
from ferrule.agent.run import Run
from ferrule.engine import ToolEngine
from ferrule.errors import SetupError
from ferrule.policy.approvals import Approval, ApprovalRequest, Person, Question, ask_for_answer, ask_for_approval
from ferrule.policy.budgets import is_extension_request

logger = logging.getLogger("ferrule.agent")

HumanReply: TypeAlias = ApprovalRequest | str
"""A request with the person's decision, or the person's answer."""
Answers: TypeAlias = Mapping[str, str] | str | None
"""The user's answers to the questions of a run, by call or step id; a single text answers the first question."""
ApprovalDecisions: TypeAlias = Mapping[str, Approval | bool] | bool | None
"""Decisions by call or step id; a single value decides about all requests of a run."""
MAX_PAUSED_RUNS: Final = 1_000


class RunRequests:
    """The requests of one run to people, and their replies."""

    def __init__(self, run: Run, engine: ToolEngine, budget: RunBudget, person: Person | None) -> None:
        self._run, self._engine, self._budget, self._person = run, engine, budget, person
        self._lock = asyncio.Lock()
        self._decided: dict[str, ApprovalRequest] = {}
        """By approval id: calls with the same arguments have one request, which is decided once."""

    async def ask(self, request: HumanRequest) -> HumanReply | None:
        """Ask the person, and record a decision. Return None without a reply: the run then waits."""
        reply = await self._ask_person(request)
        if isinstance(request, ApprovalRequest) and isinstance(reply, Approval):
            return await self.decide(request, reply)
        return reply if isinstance(reply, str) else None

    async def ask_for_more(self, request: ApprovalRequest) -> str | None:
        """Ask the person for more money. Return why the run must stop, if the person refuses it.

        Raises LookupError while nobody has decided.
        """
        return await self.decide_extension(request, await self._ask_person(request))

    async def _ask_person(self, request: HumanRequest) -> Any:
        """Return the reply of the person, or None without a person or a reply, or if asking fails."""
        if self._person is None:
            return None
        async with self._lock:
            try:
                if isinstance(request, Question):
                    return await ask_for_answer(self._person, request)
                return await ask_for_approval(self._person, request)
            except SetupError:
                raise
            except Exception:
                logger.exception("run=<%s> | the person could not be asked, so the run waits", self._run.id)
                return None

    async def decide(self, request: ApprovalRequest, decision: Approval | bool | None) -> ApprovalRequest:
        """Record a decision about a call, and return the request as it was decided: now, or elsewhere before."""
        approval_id = request.approval_id
        if approval_id in self._decided:
            return self._decided[approval_id]
        approvals = self._engine.approvals
        current = await approvals.get(approval_id)
        is_plain = decision is True or (isinstance(decision, Approval) and decision.allowed and not decision.arguments)
        if decision is not None and (current.state == "pending" or (current.state == "approved" and not is_plain)):
            current = self._decided[approval_id] = await approvals.record_decision(approval_id, decision)
        return current

    async def decide_extension(self, request: ApprovalRequest, decision: Approval | bool | None) -> str | None:
        """Extend a budget as a person has decided. Return why the run must stop, if the person refused.

        Raises LookupError while the request is pending.
        """
        approval = Approval(allowed=decision) if isinstance(decision, bool) else decision
        return await self._engine.costs.apply_decision(self._budget.payer, request, approval)

    async def match_replies(
        self, answer: Answers, decisions: ApprovalDecisions
    ) -> tuple[dict[str, HumanReply], str | None]:
        """Return the replies to what the run waits for, by call id, and why the run must stop if a person wants that.

        Budgets are extended. A budget that is still spent is asked about again when the model is needed.
        """
        run, refusal = self._run, None
        replies: dict[str, HumanReply] = {}
        if answer is not None:
            answers = dict.fromkeys([*run.questions][:1], answer) if isinstance(answer, str) else answer
            replies |= {call_id: text for call_id, text in answers.items() if call_id in run.questions}
        for call_id, request in list(run.approvals.items()):
            decision = decisions.get(call_id) if isinstance(decisions, Mapping) else decisions
            if is_extension_request(request):
                del run.approvals[call_id]
                with suppress(LookupError):
                    refusal = await self.decide_extension(request, decision) or refusal
            elif (decided := await self.decide(request, decision)).state != "pending":
                replies[call_id] = decided
        return replies, refusal


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
