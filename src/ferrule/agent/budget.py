"""What a run may use, and how much of it is used. Everything that a run does asks the same budget."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from ferrule.core.events import RunEvents, ToolEngineEventType
from ferrule.core.messages import Usage
from ferrule.core.model import Model, ModelReply, ModelRequest, ModelWrapper, TextSink
from ferrule.core.permission import LOCAL_USER, Principal
from ferrule.engine import ToolEngine
from ferrule.errors import BudgetSpent, ModelError, ReplyTimeout, SetupError
from ferrule.models.reply_checks import check_reply
from ferrule.policy.approvals import ApprovalRequest, Question
from ferrule.policy.budgets import CostControl, Payer, RunCosts, estimate_usage

HumanRequest: TypeAlias = ApprovalRequest | Question


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """The limits at which an unfinished run is stopped. None means no limit."""

    turns: int | None = 20
    calls: int | None = 100
    calls_per_turn: int = 32
    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    """In the unit of `price`; calls of paid tools count too."""
    price: Callable[[Usage], float] | None = None
    max_retries: int = 3
    """After this many failures of one tool, other tools are suggested to the model."""
    priority: int = 0
    """Of its calls, where the limits have the strategy `priority`: the higher goes first."""

    def __post_init__(self) -> None:
        for name in ("turns", "calls", "calls_per_turn", "tokens", "seconds", "cost", "max_retries"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SetupError(f"The limit {name} must be more than 0, not {value!r}; None means no limit.")
        if self.cost is not None and self.price is None:
            raise SetupError("A limit on cost needs a price: a function from a Usage to its cost.")


class RunBudget:
    """The limits of a run and how much of them is used."""

    current: ClassVar[ContextVar[RunBudget | None]] = ContextVar("ferrule_run_budget", default=None)
    """The budget of the run whose model is asked at the moment."""

    def __init__(
        self,
        limits: RunLimits | None = None,
        *,
        usage: Usage | None = None,
        calls: int = 0,
        seconds: float = 0.0,
        run_costs: RunCosts | None = None,
    ) -> None:
        """`usage`, `calls`, `seconds` and `run_costs` are what the run used before it was resumed."""
        self.limits = limits or RunLimits()
        self.usage, self.calls, self.run_costs = usage or Usage(), calls, run_costs or RunCosts()
        self.reply_cost: float | None = None
        """What the last reply of the model cost; None if it has no price."""
        self.payer = Payer(principal=LOCAL_USER)
        self.costs: CostControl | None = None
        self.events: RunEvents | None = None
        """Where the requests to models are reported."""
        self._started = time.monotonic() - seconds
        self._timers: set[asyncio.Timeout] = set()

    def attach(self, engine: ToolEngine, principal: Principal, run_id: str) -> RunEvents:
        """Report and pay what the models of a run do; returns where it is reported."""
        self.events = RunEvents(engine.events, principal, run_id)
        self.payer, self.costs = Payer(principal=principal, run_id=run_id), engine.costs
        engine.costs.follow_run(run_id, self.run_costs)
        return self.events

    @property
    def seconds(self) -> float:
        """Return how much time was used, without what was excluded."""
        return time.monotonic() - self._started

    @property
    def seconds_left(self) -> float | None:
        """Never 0, because some functions take a timeout of 0 as no timeout; None without a limit."""
        seconds = self.limits.seconds
        return None if seconds is None else max(0.001, seconds - self.seconds)

    def exclude_time(self, seconds: float) -> None:
        """Let time not count: the run waits for a server that is down or refuses more requests for now."""
        self._started += seconds
        for timer in self._timers:
            if (when := timer.when()) is not None:
                timer.reschedule(when + seconds)

    @asynccontextmanager
    async def limit_time(self) -> AsyncIterator[asyncio.Timeout]:
        """Wait for a model no longer than the run may take; TimeoutError after that."""
        token = self.current.set(self)
        try:
            async with asyncio.timeout(self.seconds_left) as timer:
                self._timers.add(timer)
                try:
                    yield timer
                finally:
                    self._timers.discard(timer)
        finally:
            self.current.reset(token)

    def find_reached_limit(self, *, turns: int = 0, calls: int = 0) -> str | None:
        """Return a text that says which limit the run has reached, or None if it may continue."""
        limits, tokens, seconds = self.limits, self.usage.total_tokens, self.seconds
        if limits.turns is not None and turns >= limits.turns:
            return f"it took {turns} turns (limit {limits.turns})"
        if limits.calls is not None and calls >= limits.calls:
            return f"it made {calls} calls (limit {limits.calls})"
        if limits.tokens is not None and tokens >= limits.tokens:
            return f"it used {tokens} tokens (limit {limits.tokens})"
        if limits.seconds is not None and seconds >= limits.seconds:
            return f"it took {seconds:.0f} s (limit {limits.seconds:g} s)"
        if limits.cost is not None and limits.price is not None:
            cost = limits.price(self.usage) + (self.run_costs.tools or 0.0)
            return f"it cost {cost:.4g} (limit {limits.cost:g})" if cost >= limits.cost else None
        return None


class NeedsPerson(Exception):
    """A run cannot continue until a person has replied. Not an error of the model or the tool."""

    def __init__(self, request: HumanRequest) -> None:
        super().__init__(request.call_id)
        self.request = request


class BudgetedModel(ModelWrapper):
    """A model as one run uses it: its replies are checked, counted, and awaited no longer than the run may take."""

    def __init__(self, model: Model, budget: RunBudget, *, asks_for_more: bool = False) -> None:
        """With `asks_for_more`, the model raises NeedsPerson with a request when a budget that asks is spent."""
        super().__init__(model)
        self._budget, self._asks_for_more = budget, asks_for_more

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        if (limit := self._budget.find_reached_limit()) is not None:
            raise ModelError(f"the model {self.name!r} was not asked: {limit}")
        if self._budget.events is None or self._budget.costs is None:  # it is attached to no run
            return await self._generate_in_time(request, on_text)
        types = ToolEngineEventType.MODEL_STARTED, ToolEngineEventType.MODEL_ENDED
        try:
            with self._budget.events.emit_start_and_end(*types, model=self.name, request=request) as data:
                reply = data["reply"] = await self._pay_and_generate(self._budget.costs, request, on_text)
                data["cost"] = self._budget.reply_cost
            return reply
        except BudgetSpent as spent:
            if not self._asks_for_more or not spent.must_ask:
                raise
            extension = await self._budget.costs.request_extension(self._budget.payer, spent)
        raise NeedsPerson(extension)

    async def _pay_and_generate(
        self, costs: CostControl, request: ModelRequest, on_text: TextSink | None
    ) -> ModelReply:
        budget, payer, started = self._budget, self._budget.payer, time.monotonic()
        payment = await costs.pay_for_request(payer, self.name, request)
        usage, is_estimated = Usage(), False
        try:
            reply = await self._generate_in_time(request, on_text)
            usage = reply.usage
        except (asyncio.CancelledError, ReplyTimeout):  # the model has worked on it, and did not say how much
            usage, is_estimated = estimate_usage(request), True
            raise
        finally:
            seconds = time.monotonic() - started
            budget.reply_cost = await costs.record_reply(
                payer, self.name, payment, usage, seconds, is_estimated=is_estimated
            )
        return reply

    async def _generate_in_time(self, request: ModelRequest, on_text: TextSink | None) -> ModelReply:
        try:
            async with self._budget.limit_time() as timer:
                reply = await self.model.generate(request, on_text)
        except TimeoutError:
            reason = "within the time limit of the run" if timer.expired() else "in time"
            raise ReplyTimeout(f"the model {self.name!r} did not reply {reason}") from None
        reply = check_reply(reply, request, model=self.name)
        self._budget.usage += reply.usage
        return reply
