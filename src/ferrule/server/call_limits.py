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
from typing import Final, TypeAlias

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


class ServerCallLimit:
    """A limit that holds on this server."""

    def __init__(self, allowance: CallAllowance) -> None:
        self._allowance = allowance
        self._running = 0
        self._credit = -1.0
        self._updated_at = 0.0

    @asynccontextmanager
    async def slot(self, calls: int, most: int, /) -> AsyncIterator[int]:
        """Count some calls while they run, and yield how many may run concurrently, at most `most`.

        Raises Rejected when there are too many.
        """
        limit = self._allowance.max_concurrent
        slots = most if limit is None else min(most, limit - self._running)
        if slots < 1:
            raise _too_many_running(self._allowance, self._running)
        self._count_against_rate(calls)
        self._running += slots
        try:
            yield slots
        finally:
            self._running -= slots

    def _count_against_rate(self, calls: int) -> None:
        rate = self._allowance.per_minute
        if rate is None:
            return
        now, burst = time.monotonic(), max(1.0, rate)
        credit = burst if self._credit < 0 else self._credit + (now - self._updated_at) * rate / 60
        self._updated_at, self._credit = now, min(burst, credit)
        if self._credit < calls:
            seconds = int((calls - self._credit) * 60 / rate) + 1
            raise _too_many_a_minute(self._allowance, seconds, None if calls <= burst else calls)
        self._credit -= calls


class FleetCallLimit:
    """A limit that holds on all servers of the store together."""

    def __init__(self, allowance: CallAllowance, key: str, controller: ToolConcurrencyController) -> None:
        self._allowance, self._controller = allowance, controller
        self._bucket, self._rate_bucket = key, f"{key}/minute"
        self._rate = None if allowance.per_minute is None else max(1, int(allowance.per_minute))
        self._running = 0
        if allowance.max_concurrent is not None:
            controller.add_bucket(self._bucket, slots=allowance.max_concurrent)
        if self._rate is not None:
            controller.add_bucket(self._rate_bucket, calls_per_minute=self._rate)

    @asynccontextmanager
    async def slot(self, calls: int, most: int, /) -> AsyncIterator[int]:
        """Do the same as `ServerCallLimit.slot`."""
        limit, controller = self._allowance.max_concurrent, self._controller
        if limit is not None and self._running >= limit:
            raise _too_many_running(self._allowance, self._running)
        slots = [] if limit is None else [await self._wait_for_slot()]
        try:
            while slots and len(slots) < most and (slot := controller.try_acquire_separately(self._bucket)) is not None:
                slots.append(slot)
            self._running += len(slots)
            try:
                await self._count_against_rate(calls)
                yield len(slots) or most
            finally:
                self._running -= len(slots)
        finally:
            for slot in slots:
                controller.release(slot)

    async def _wait_for_slot(self) -> Slot:
        try:
            return await self._controller.acquire_separately(self._bucket)
        except Rejected:
            raise Rejected(
                f"{self._allowance.holder} may have {self._allowance.max_concurrent} calls running on all servers "
                f"together, and none of these was free within {SLOT_TIMEOUT:g} s. Wait until one has ended.",
                retry_after=1,
            ) from None

    async def _count_against_rate(self, calls: int) -> None:
        if self._rate is None:
            return
        if calls > self._rate:
            raise _too_many_a_minute(self._allowance, 60, calls)
        while calls and (slot := self._controller.try_acquire_separately(self._rate_bucket)) is not None:
            self._controller.release(slot)
            calls -= 1

        async def start_one() -> None:
            self._controller.release(await self._controller.acquire_separately(self._rate_bucket))

        for outcome in await asyncio.gather(*(start_one() for _ in range(calls)), return_exceptions=True):
            if isinstance(outcome, Rejected):
                seconds = int(outcome.details.get("retry_after", SLOT_TIMEOUT)) + 1
                raise _too_many_a_minute(self._allowance, seconds, None) from None
            if outcome is not None:
                raise outcome


CallLimit: TypeAlias = ServerCallLimit | FleetCallLimit


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
            if key in self._limits:
                continue
            if self._controller is None:
                self._limits[key] = ServerCallLimit(allowance)
            else:
                self._controller.join_fleet(renew_in(self._store))
                self._limits[key] = FleetCallLimit(allowance, key, self._controller)
        return ClientCalls(*(self._limits[key] for key in limited))


def _too_many_running(allowance: CallAllowance, running: int) -> Rejected:
    return Rejected(
        f"{allowance.holder} has {running} calls running, which is its limit. Wait until one has ended.", retry_after=1
    )


def _too_many_a_minute(allowance: CallAllowance, seconds: int, calls: int | None) -> Rejected:
    """Make the error; `calls` is the number in one request, if it is more than ever fits."""
    advice = f"Try again in {seconds} s." if calls is None else f"Send fewer than these {calls} calls in one request."
    return Rejected(
        f"{allowance.holder} may make {allowance.per_minute:g} calls a minute. {advice}", retry_after=seconds
    )
