"""Retries of single requests where that is safe and may help.

The engine retries a tool when the whole tool may be repeated. Where that depends on the method of each request, the
tool retries by itself: after a broken connection, or when the server is busy, after as long as the server asks to
wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from ferrule.core.aio import backoff_delay
from ferrule.core.call import DefaultTimeout, ToolExecutionContext
from ferrule.errors import Retry, TimedOut, Transient, TransportFault
from ferrule.http.client import HttpResponse

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""Methods that may be repeated without a further effect."""
BUSY_STATUSES: Final = frozenset({429, 502, 503, 504})
"""After these the same request may succeed later."""
MAX_ATTEMPTS: Final = 3
FIRST_RETRY_DELAY = 0.2
"""Seconds before the second attempt where the server names none; they double with each further attempt."""


async def send_with_retries(
    send: Callable[[], Awaitable[HttpResponse]], *, what: str, attempts: int, timeout: float | None
) -> HttpResponse:
    """Return the last response of up to `attempts` attempts, all within `timeout` seconds; raises the last fault."""
    try:
        async with asyncio.timeout(timeout) as limit:
            for attempt in range(1, attempts + 1):
                is_final = attempt == attempts
                delay = backoff_delay(attempt, first=FIRST_RETRY_DELAY, longest=math.inf)
                try:
                    response = await send()
                except TransportFault as fault:
                    if is_final or fault.details.get("unknown_host") or _is_past_deadline(delay, limit.when()):
                        raise
                else:
                    requested = parse_retry_after(response.headers)
                    delay = delay if requested is None else requested
                    is_busy = response.status_code in BUSY_STATUSES
                    if is_final or not is_busy or _is_past_deadline(delay, limit.when()):
                        return response
                await asyncio.sleep(delay)
    except TimeoutError:
        raise TimedOut(f"{what} took longer than {timeout:g} seconds.") from None
    raise AssertionError("the last attempt returns or raises")


def request_timeout(context: ToolExecutionContext, configured: float | None) -> float | None:
    """Return the seconds a request may take: those of the tool, or fewer if the caller allows fewer."""
    if isinstance(context.timeout, DefaultTimeout):
        return configured
    return context.timeout if configured is None else min(configured, context.timeout)


def retry_details(headers: Mapping[str, str]) -> dict[str, float]:
    """Return the `retry_after` of a `CallError`, if a server asks to wait."""
    wait = parse_retry_after(headers)
    return {} if wait is None else {"retry_after": wait}


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait: a number, a date, or milliseconds as OpenAI sends them."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            seconds = float(value if value.isascii() else "") * unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError):
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def convert_host_fault(fault: TransportFault) -> Retry | Transient:
    """Return an error that leaves the tool's circuit closed: the tool reaches other hosts too."""
    outcome = {"outcome": fault.details["outcome"]} if "outcome" in fault.details else {}
    return Retry(str(fault)) if fault.details.get("unknown_host") else Transient(str(fault), **outcome)


def _is_past_deadline(delay: float, deadline: float | None) -> bool:
    return deadline is not None and asyncio.get_running_loop().time() + delay >= deadline
