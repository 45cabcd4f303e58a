"""How many calls the clients of the server may make: per token, and per tenant for all its tokens together.

The limits hold on each server, or with `[limits] shared = true` on all servers of the store together. Then slots and
starts are leased like slots of buckets (see `ferrule.concurrency.fleet`): a call for which a slot is leased asks no
database. A call for which other servers have the slots waits a moment, until they have given back what they do not use.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from ferrule.concurrency import ConcurrencyConfig, Slot, ToolConcurrencyController
from ferrule.concurrency.fleet import renew_in
from ferrule.errors import Rejected
from ferrule.server.tokens import AccessToken
from ferrule.store import ToolKnowledgeStore

SLOT_TIMEOUT: Final = 2.0
"""Seconds that a call waits for slots of other servers, which give back unused ones sooner."""
MAX_CALLS: Final = 1_000_000
"""More than any server runs: only the limits of tokens and tenants count."""
EACH_TENANT: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAllowance:
    """How many calls a token or a tenant may make. None means no limit."""

    holder: str
    """Whose it is, in messages: `This token`."""
    per_minute: float | None = None
    max_concurrent: int | None = None


class CallLimit:
    """Keeps calls within an allowance: on this server, or with a controller that leases on all servers together."""

    def __init__(self, allowance: CallAllowance, key: str, controller: ToolConcurrencyController | None) -> None:
        self._allowance, self._controller = allowance, controller
        self._bucket, self._rate_bucket = key, f"{key}/minute"
        self._running = 0
        self._credit, self._updated_at = max(1.0, allowance.per_minute or 0.0), time.monotonic()
        """Calls that may start now, on this server."""
        if controller is not None and allowance.max_concurrent is not None:
            controller.add_bucket(self._bucket, slots=allowance.max_concurrent)
        if controller is not None and allowance.per_minute is not None:
            controller.add_bucket(self._rate_bucket, calls_per_minute=max(1, int(allowance.per_minute)))

    @asynccontextmanager
    async def slot(self, calls: int, most: int, /) -> AsyncIterator[int]:
        """Count some calls while they run, and yield how many may run concurrently, at most `most`.

        Raises Rejected when there are too many.
        """
        limit, controller = self._allowance.max_concurrent, self._controller
        slots, leased = most if limit is None else min(most, limit - self._running), list[Slot]()
        if slots < 1:
            raise Rejected(
                f"{self._allowance.holder} has {self._running} calls running, which is its limit. Wait until one has "
                "ended.",
                retry_after=1,
            )
        if controller is not None and limit is not None:
            leased = await self._lease(controller, slots)
            slots = len(leased)
        self._running += slots
        try:
            if self._allowance.per_minute is not None and controller is not None:
                await self._lease_starts(controller, self._allowance.per_minute, calls)
            elif self._allowance.per_minute is not None:
                self._count_starts(self._allowance.per_minute, calls)
            yield slots
        finally:
            self._running -= slots
            if controller is not None:
                for slot in leased:
                    controller.release(slot)

    async def _lease(self, controller: ToolConcurrencyController, most: int) -> list[Slot]:
        try:
            leased = [await controller.acquire_separately(self._bucket)]
        except Rejected:
            raise Rejected(
                f"{self._allowance.holder} may have {self._allowance.max_concurrent} calls running on all servers "
                f"together, and none of these was free within {SLOT_TIMEOUT:g} s. Wait until one has ended.",
                retry_after=1,
            ) from None
        while len(leased) < most and (slot := controller.try_acquire_separately(self._bucket)) is not None:
            leased.append(slot)
        return leased

    def _count_starts(self, rate: float, calls: int) -> None:
        now, burst = time.monotonic(), max(1.0, rate)
        credit = self._credit + (now - self._updated_at) * rate / 60
        self._updated_at, self._credit = now, min(burst, credit)
        if self._credit < calls:
            seconds = int((calls - self._credit) * 60 / rate) + 1
            raise self._make_rejection(seconds, None if calls <= burst else calls)
        self._credit -= calls

    async def _lease_starts(self, controller: ToolConcurrencyController, rate: float, calls: int) -> None:
        if calls > max(1, int(rate)):
            raise self._make_rejection(60, calls)
        while calls and (slot := controller.try_acquire_separately(self._rate_bucket)) is not None:
            controller.release(slot)
            calls -= 1

        async def start_one() -> None:
            controller.release(await controller.acquire_separately(self._rate_bucket))

        for outcome in await asyncio.gather(*(start_one() for _ in range(calls)), return_exceptions=True):
            if isinstance(outcome, Rejected):
                seconds = int(outcome.details.get("retry_after", SLOT_TIMEOUT)) + 1
                raise self._make_rejection(seconds, None) from None
            if outcome is not None:
                raise outcome

    def _make_rejection(self, seconds: int, calls: int | None) -> Rejected:
        """Make the error; `calls` is the number in one request, if it is more than ever fits."""
        advice = (
            f"Try again in {seconds} s." if calls is None else f"Send fewer than these {calls} calls in one request."
        )
        return Rejected(
            f"{self._allowance.holder} may make {self._allowance.per_minute:g} calls a minute. {advice}",
            retry_after=seconds,
        )


class ClientCalls:
    """The calls of one client, which take from the limits of its token and of its tenant."""

    def __init__(self, *limits: CallLimit) -> None:
        self._limits = limits

    @property
    def is_limited(self) -> bool:
        return bool(self._limits)

    @asynccontextmanager
    async def slot(self, calls: int = 1) -> AsyncIterator[int]:
        """Count some calls while they run, and yield how many may run concurrently. Raises Rejected for too many."""
        if not self._limits:
            yield calls
            return
        async with AsyncExitStack() as stack:
            concurrent = calls
            for limit in self._limits:
                concurrent = await stack.enter_async_context(limit.slot(calls, concurrent))
            yield concurrent


class CallLimits:
    """The limits of all clients of a server."""

    def __init__(
        self, store: ToolKnowledgeStore, config: ConcurrencyConfig, tenants: Mapping[str, CallAllowance] | None = None
    ) -> None:
        """`config` says whether limits are shared. `tenants` by name; `*` is for each tenant without an entry."""
        self._store, self._tenants = store, tenants or {}
        self._controller: ToolConcurrencyController | None = None
        if config.shared:
            self._controller = ToolConcurrencyController(
                ConcurrencyConfig(
                    max_concurrent=MAX_CALLS,
                    queue_size=MAX_CALLS,
                    default_timeout=SLOT_TIMEOUT,
                    shared=True,
                    lease_seconds=config.lease_seconds,
                )
            )
        self._limits: dict[str, CallLimit] = {}

    async def aclose(self) -> None:
        if self._controller is not None:
            await self._controller.leave_fleet()

    def find(self, token: AccessToken) -> ClientCalls:
        """Find the limits of a token, which its sessions share, and of its tenant."""
        own = CallAllowance(holder="This token", per_minute=token.calls_per_minute, max_concurrent=token.max_concurrent)
        allowances = {f"token:{token.root_id}": own}
        if token.tenant and (allowance := self._tenants.get(token.tenant) or self._tenants.get(EACH_TENANT)):
            allowances[f"tenant:{token.tenant}"] = allowance
        limited = {
            key: each
            for key, each in allowances.items()
            if each.per_minute is not None or each.max_concurrent is not None
        }
        for key, allowance in limited.items():
            if key not in self._limits:
                self._limits[key] = CallLimit(allowance, key, self._controller)
        if limited and self._controller is not None:
            self._controller.join_fleet(renew_in(self._store))
        return ClientCalls(*(self._limits[key] for key in limited))
