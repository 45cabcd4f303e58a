"""Times as options take them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ferrule.errors import SetupError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_since(since: str | None, option: str = "--since") -> datetime | None:
    """`2h` ago, or a date and time."""
    if since is None:
        return None
    if since[:-1].isdigit() and since[-1] in _UNITS:
        return datetime.now(UTC) - timedelta(**{_UNITS[since[-1]]: int(since[:-1])})
    try:
        start = datetime.fromisoformat(since)
    except ValueError:
        raise SetupError(f"{option} takes 10m, 2h, 7d or a date such as 2026-01-31, not {since!r}.") from None
    return start.astimezone() if start.tzinfo is None else start
