"""What a run asks people: an answer, the approval of a call, or more money for its model.

The person at hand is asked first, one request at a time. Without a reply the run waits, and is resumed with the replies
that people have given in the meantime.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
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

        A request without a reply is not repeated. A call that needs another approval asks again, up to a limit. The
        time that the person takes does not count.
        """
        started, replies = time.monotonic(), dict[str, Any]()
        requests: dict[str, HumanRequest] = {**self._run.questions, **self._run.approvals}
        for key, request in requests.items():
            # A budget may be exceeded often in a long run, and each time the request is another one.
            subject = (
                request.approval_id if isinstance(request, ApprovalRequest) and is_extension_request(request) else key
            )
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
        replies = await self._apply({**answers, **approvals})
        run.approvals = {key: each for key, each in run.approvals.items() if not is_extension_request(each)}
        return replies

    async def _apply(self, values: Mapping[str, Any]) -> tuple[dict[str, HumanReply], str | None]:
        """Record decisions, and return the replies to what the run waits for: these, or given elsewhere before."""
        run, refusal = self._run, None
        replies: dict[str, HumanReply] = {key: values[key] for key in run.questions if isinstance(values.get(key), str)}
        for key, request in list(run.approvals.items()):
            if is_extension_request(request):
                with suppress(LookupError):  # it is pending
                    refusal = await self._decide_extension(request, values.get(key)) or refusal
                    del run.approvals[key]
            elif (decided := await self._decide(request, values.get(key))).state != "pending":
                replies[key] = decided
        return replies, refusal

    async def _ask(self, request: HumanRequest) -> Any:
        """Return the reply of the person, or None without a person or a reply, or if asking fails."""
        if self._person is None:
            return None
        try:
            if isinstance(request, Question):
                return await ask_for_answer(self._person, request)
            return await ask_for_approval(self._person, request)
        except SetupError:
            raise
        except Exception:
            logger.exception("run=<%s> | the person could not be asked, so the run waits", self._run.id)
            return None

    async def _decide(self, request: ApprovalRequest, decision: Approval | bool | None) -> ApprovalRequest:
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

    async def _decide_extension(self, request: ApprovalRequest, decision: Approval | bool | None) -> str | None:
        """Extend a budget as a person has decided. Return why the run must stop, if the person refused.

        Raises LookupError while the request is pending.
        """
        approval = Approval(allowed=decision) if isinstance(decision, bool) else decision
        return await self._engine.costs.apply_decision(self._budget.payer, request, approval)


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
