"""Budgets: what calls and models' replies cost, and which amount stops them or makes them ask.

Before a paid call or a request to a paid model, its price is taken from every budget that applies (for a model an
estimate, because its reply is not known yet); afterwards the difference from the real cost is corrected. Taking is one
transaction in the store, so a budget holds for all processes together. A process that is killed in between has spent
what it took. What no budget is for costs no round trip.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias, get_args
from weakref import WeakValueDictionary

from ferrule.core.messages import Usage
from ferrule.core.model import ModelRequest
from ferrule.core.permission import Principal
from ferrule.core.prices import ModelPrice, PriceList
from ferrule.core.spec import ToolCapability, ToolSpec
from ferrule.errors import BudgetSpent, Rejected, SetupError, StoreError, error_text
from ferrule.policy.approvals import Approval, ApprovalRequest, Approvals, CallBinding, digest_of_arguments
from ferrule.policy.policy import matches_principal
from ferrule.store import ToolKnowledgeStore
from ferrule.store.escapes import escape_text
from ferrule.store.spending import (
    BudgetState,
    Charge,
    ModelReplyRecord,
    correct_spending,
    extend_budget,
    list_spending,
    spend,
    usage_stream,
)
from ferrule.texts.shorten import estimate_tokens

logger = logging.getLogger("ferrule.policy")

Period: TypeAlias = Literal["hour", "day", "month", "total"]
Scope: TypeAlias = Literal["all", "tenant", "principal", "run"]
_PERIOD_FORMATS: Final = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m", "total": ""}
EXPECTED_OUTPUT_TOKENS: Final = 500
"""Of a reply, until it is there; a smaller `max_tokens` of the request counts instead."""
BUDGET_TOOL: Final = "budget"
"""The tool in requests for approval that are about a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that may be spent in a period."""

    name: str
    amount: float
    """In the currency of the price list."""
    period: Period = "month"
    """Of UTC."""
    per: Scope = "all"
    """Whether everybody shares the amount, or each tenant, principal or run has it."""
    principals: tuple[str, ...] = ()
    """For whom it is: `agent`, `token:ci`, `role:caller`, `tenant:acme`, patterns; none: for everybody."""
    then: Literal["stop", "ask"] = "stop"
    """What happens to what it does not pay for: it is not done, or a person is asked."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "principals", tuple(self.principals))
        if not self.name.strip():
            raise SetupError("A budget needs a name.")
        if not 0 <= self.amount < float("inf"):
            raise SetupError(f"The amount of the budget {self.name!r} must be 0 or more, not {self.amount!r}.")
        for field, kinds in (("period", Period), ("per", Scope), ("then", Literal["stop", "ask"])):
            if getattr(self, field) not in get_args(kinds):
                choices = ", ".join(get_args(kinds))
                raise SetupError(
                    f"{field} of the budget {self.name!r} must be one of {choices}, not {getattr(self, field)!r}."
                )

    def find_charge(self, principal: Principal, run_id: str, now: float) -> Charge | None:
        """Return which amount pays for what a principal does; None if the budget is for others."""
        if self.principals and not any(matches_principal(principal, pattern) for pattern in self.principals):
            return None
        if self.per == "run" and not run_id:
            return None
        scopes = {
            "all": "",
            "tenant": principal.tenant,
            "principal": f"{principal.tenant}/{principal.label}",
            "run": run_id,
        }
        period = "" if self.per == "run" else datetime.fromtimestamp(now, UTC).strftime(_PERIOD_FORMATS[self.period])
        return Charge(budget=self.name, scope=scopes[self.per], period=period, limit=self.amount)

    def explain(self, charge: Charge) -> str:
        """Return a sentence that says that the budget does not pay for more."""
        whose = "" if self.per == "all" else f" of the {self.per} {charge.scope or '(none)'!r}"
        when = f" for {charge.period}" if charge.period else ""
        return f"The budget {self.name!r} of {self.amount:g}{whose}{when} does not pay for more."


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """What was taken from budgets in advance."""

    charges: tuple[Charge, ...]
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Payer:
    """On whose account something is done."""

    principal: Principal
    run_id: str = ""


@dataclass(slots=True, weakref_slot=True, kw_only=True)
class RunCosts:
    """What a run has cost so far. None means that nothing of the kind had a price."""

    models: float | None = None
    """All replies that the run asked for, also those that its tools asked for."""
    tools: float | None = None
    """All calls, also those that tools made, and those of candidates that did not answer."""

    @property
    def total(self) -> float | None:
        costs = [cost for cost in (self.models, self.tools) if cost is not None]
        return sum(costs) if costs else None

    def to_dict(self) -> dict[str, float | None]:
        return {"models": self.models, "tools": self.tools}


class CostControl:
    """Prices what is done, and holds it to the budgets."""

    def __init__(
        self,
        store: ToolKnowledgeStore,
        approvals: Approvals,
        prices: PriceList | None = None,
        budgets: Sequence[Budget] = (),
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._approvals, self._clock = store, approvals, clock
        self.prices = prices or PriceList()
        self.budgets = {budget.name: budget for budget in budgets}
        if len(self.budgets) != len(budgets):
            raise SetupError("Two budgets have the same name.")
        self._prices_of_models: dict[str, ModelPrice | None] = {}
        """As the price list says; kept, because it is asked before and after every reply."""
        self._costs_of_runs: WeakValueDictionary[str, RunCosts] = WeakValueDictionary()

    def follow_run(self, run_id: str, costs: RunCosts) -> None:
        """Add what the run costs from now on, as long as somebody else keeps `costs`."""
        self._costs_of_runs[run_id] = costs

    # Tools

    def price_of(self, spec: ToolSpec, capability: ToolCapability) -> float:
        """Return what one call costs; 0 for a tool without a price."""
        return self.prices.price_of_call(spec, capability)

    async def pay_for_call(self, payer: Payer, tool_name: str, price: float, *, is_approved: bool) -> Payment | str:
        """Take the price of a call; or why a person must approve it. Rejected if a budget does not pay for it.

        An approved call may exceed the budgets that ask, and no others.
        """
        result = await self._take(payer, price, is_approved=is_approved)
        if isinstance(result, Payment):
            return result
        budget, charge = result
        if budget.then == "ask":
            return f"{budget.explain(charge)} A call of {tool_name} costs {price:g}."
        raise Rejected(
            f"{tool_name!r} was not called: {budget.explain(charge)} A call costs {price:g}. {_hint(budget)}",
            reason="budget",
            budget=budget.name,
        )

    def record_call(self, payer: Payer, cost: float) -> None:
        """Add the cost of a call to those of its run."""
        if (costs := self._costs_of_runs.get(payer.run_id)) is not None:
            costs.tools = (costs.tools or 0.0) + cost

    async def correct(self, payment: Payment, cost: float) -> None:
        """Say what something really cost."""
        difference = cost - payment.amount
        if payment.charges and abs(difference) > 1e-12:
            try:
                await self._store.query(correct_spending, payment.charges, difference)
            except StoreError as error:
                logger.warning("difference=<%g> | spending could not be corrected: %s", difference, error_text(error))

    # Models

    def find_model_price(self, model: str) -> ModelPrice | None:
        if model not in self._prices_of_models:
            self._prices_of_models[model] = self.prices.find_model_price(model)
        return self._prices_of_models[model]

    async def pay_for_request(self, payer: Payer, model: str, request: ModelRequest) -> Payment:
        """Take what a request will probably cost; BudgetSpent if a budget does not pay for it."""
        price = self.find_model_price(model)
        if price is None or not self.budgets:
            return Payment(charges=(), amount=0.0)
        amount = price.cost_of(estimate_usage(request))
        if amount <= 0:
            return Payment(charges=(), amount=0.0)
        result = await self._take(payer, amount)
        if isinstance(result, Payment):
            return result
        budget, charge = result
        raise BudgetSpent(
            f"the model {model!r} was not asked: {budget.explain(charge)} {_hint(budget)}",
            charge=charge,
            must_ask=budget.then == "ask",
        )

    async def record_reply(
        self, payer: Payer, model: str, payment: Payment, usage: Usage, seconds: float, *, is_estimated: bool = False
    ) -> float | None:
        """Record what a reply cost, and correct what was taken for it; None if the model has no price.

        `is_estimated` says that the model did not get to say what it used.
        """
        price = self.find_model_price(model)
        cost = None if price is None else price.cost_of(usage)
        if cost is not None and (costs := self._costs_of_runs.get(payer.run_id)) is not None:
            costs.models = (costs.models or 0.0) + cost
        if usage.total_tokens or cost:
            now = self._clock()
            record = ModelReplyRecord(
                model=model,
                run_id=payer.run_id,
                principal=payer.principal.label,
                tenant=payer.principal.tenant,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_tokens,
                cost=cost,
                seconds=round(seconds, 3),
                is_estimated=is_estimated,
            )
            self._store.write_entry(usage_stream(now), self._store.new_record_id(), asdict(record))
        await self.correct(payment, cost or 0.0)
        return cost

    # Asking a person about a budget

    async def request_extension(self, payer: Payer, spent: BudgetSpent) -> ApprovalRequest:
        """Ask a person whether a budget may be exceeded by its amount once more."""
        charge = spent.charge
        return await self._approvals.request(
            self._make_binding(payer, charge),
            call_id=extension_call_id(charge),
            arguments={"amount": self.budgets[charge.budget].amount, "charge": asdict(charge)},
            reason=self.budgets[charge.budget].explain(charge),
        )

    async def apply_decision(self, payer: Payer, request: ApprovalRequest, approval: Approval | None) -> str | None:
        """Return what was decided about a budget: None if it was extended or nothing was decided, else why not.

        Raises LookupError while nobody has decided.
        """
        current = await self._approvals.get(request.approval_id)
        is_open = current.state == "pending" or (current.state == "approved" and approval and not approval.allowed)
        if approval is not None and is_open:
            current = await self._approvals.record_decision(request.approval_id, approval)
        if current.state == "pending":
            raise LookupError(request.approval_id)
        if current.state == "refused":
            return f"{current.reason} A person refused more. {current.decision_reason}".strip()
        charge = Charge(**request.arguments["charge"])
        binding = asdict(self._make_binding(payer, charge))
        if current.state == "approved":
            amount, now = float(request.arguments["amount"]), self._clock()
            await self._store.query(extend_budget, request.approval_id, binding, charge, amount, now)
        return None

    async def list_spending(self) -> list[BudgetState]:
        """Return what was spent of the budgets, the latest first."""
        return await self._store.query(list_spending)

    def _make_binding(self, payer: Payer, charge: Charge) -> CallBinding:
        return CallBinding(
            principal=escape_text(payer.principal.identity),
            tenant=escape_text(payer.principal.tenant),
            run_id=escape_text(payer.run_id),
            tool_id=BUDGET_TOOL,
            action=escape_text(charge.budget),
            fingerprint="",
            digest=digest_of_arguments(json.loads(json.dumps(asdict(charge)))),
        )

    async def _take(self, payer: Payer, amount: float, *, is_approved: bool = False) -> Payment | tuple[Budget, Charge]:
        now = self._clock()
        may_exceed = frozenset(name for name, budget in self.budgets.items() if is_approved and budget.then == "ask")
        charges = tuple(
            charge
            for budget in self.budgets.values()
            if (charge := budget.find_charge(payer.principal, payer.run_id, now)) is not None
        )
        failed = await self._store.query(spend, charges, amount, may_exceed) if charges else None
        if failed is None:
            return Payment(charges=charges, amount=amount)
        return self.budgets[failed.budget], failed


def is_extension_request(request: ApprovalRequest) -> bool:
    """Return whether a request is about a budget and not about a call: tools have fingerprints."""
    return request.tool_id == BUDGET_TOOL and not request.fingerprint


def extension_call_id(charge: Charge) -> str:
    """Return the id under which a run waits for the extension of a budget."""
    return f"{BUDGET_TOOL}:{charge.budget}"


def estimate_usage(request: ModelRequest) -> Usage:
    """Return what a request will probably use, before its reply is there."""
    text = json.dumps([list(request.messages), list(request.tools)], ensure_ascii=False, default=str)
    output = min(request.max_tokens or EXPECTED_OUTPUT_TOKENS, EXPECTED_OUTPUT_TOKENS)
    return Usage(requests=1, input_tokens=estimate_tokens(text), output_tokens=output)


def _hint(budget: Budget) -> str:
    if budget.per == "run":
        return "Raise it in [[budgets]] of ferrule.toml."
    after = {"hour": "the next hour", "day": "the next day", "month": "the next month", "total": ""}[budget.period]
    return f"Wait for {after}, or raise it in [[budgets]]." if after else "Raise it in [[budgets]] of ferrule.toml."
