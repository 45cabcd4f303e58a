"""Failures after which nobody knows whether the message was sent."""

from __future__ import annotations

from typing import Final

from ferrule.errors import CallError

DOUBT: Final = "The message may have been sent: find out before you send it again."


def in_doubt(failure: CallError) -> CallError:
    """The same failure, told so that nobody sends twice."""
    return type(failure)(f"{failure} {DOUBT}", **{**failure.details, "outcome": "unknown"})
