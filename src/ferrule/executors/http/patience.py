"""Sending a request again where that does no harm and may help.

An engine tries a tool again when the whole tool may be repeated. Where that depends on the method of each request, the
tool does it itself: the connection broke, or the server said that it is busy, after as long as it asked us to wait.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from ferrule.call import DefaultTimeout, ToolExecutionContext
from ferrule.errors import Retry, TimedOut, Transient, TransportFault
from ferrule.executors.http.guarded_client import Response

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""Methods of which twice is the same as once."""
BUSY: Final = frozenset({429, 502, 503, 504})
"""Statuses after which the same request may succeed."""
TRIES: Final = 3
FIRST_DELAY = 0.2
"""Seconds before the second try, where the server does not say; twice as many before the next."""


async def send_patiently(
    send: Callable[[], Awaitable[Response]], *, what: str, tries: int, seconds: float | None
) -> Response:
    """What came of a request that is tried so often, all within so many seconds: the last response, or the fault."""
    try:
        async with asyncio.timeout(seconds) as limit:
            for done in range(1, tries + 1):
                fault, response = await _try(send)
                if response is not None and response.status_code not in BUSY:
                    return response
                wait = _delay(response, done)
                is_over = done == tries or (fault is not None and fault.details.get("unknown_host"))
                if is_over or _comes_too_late(wait, limit.when()):
                    break
                await asyncio.sleep(wait)
    except TimeoutError:
        raise TimedOut(f"{what} took longer than {seconds:g} seconds.") from None
    if response is None:
        assert fault is not None
        raise fault
    return response


def seconds_for(context: ToolExecutionContext, own: float | None) -> float | None:
    """How long a request may take: as long as its tool says, or less if the caller allows less."""
    if isinstance(context.timeout, DefaultTimeout):
        return own
    return context.timeout if own is None else min(own, context.timeout)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks us to wait: it says a number, or a date."""
    said = headers.get("retry-after", "").strip()
    if said.isascii() and said.isdecimal():
        return float(said[:9])
    try:
        at = parsedate_to_datetime(said)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def fault_of_host(fault: TransportFault) -> Retry | Transient:
    """What a fault means for a tool that reaches many hosts: one that cannot be reached must not count against it."""
    outcome = {"outcome": fault.details["outcome"]} if "outcome" in fault.details else {}
    return Retry(str(fault)) if fault.details.get("unknown_host") else Transient(str(fault), **outcome)


async def _try(send: Callable[[], Awaitable[Response]]) -> tuple[TransportFault | None, Response | None]:
    try:
        return None, await send()
    except TransportFault as fault:
        return fault, None


def _delay(response: Response | None, done: int) -> float:
    asked = None if response is None else retry_after(response.headers)
    return FIRST_DELAY * 2.0 ** (done - 1) * (0.5 + random.random() / 2) if asked is None else asked


def _comes_too_late(wait: float, when: float | None) -> bool:
    return when is not None and asyncio.get_running_loop().time() + wait >= when
