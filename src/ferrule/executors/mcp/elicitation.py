"""A server that asks its user something in the middle of a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ferrule.errors import Stopped

if TYPE_CHECKING:
    from mcp.client.session import ElicitationFnT

logger = logging.getLogger("ferrule.mcp")

MOST_WAITING: Final = 8
"""Questions of one server that may wait for the one before; more are not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elicitation:
    """The question."""

    tool_id: str
    message: str
    schema: dict[str, Any] | None = None
    """What the answer must look like: an object with plain values."""
    url: str | None = None
    """A page the user should open, instead of answering here."""


OnElicit: TypeAlias = Callable[[Elicitation], Awaitable[dict[str, Any] | None]]
"""Asks the user: gives the answer (an empty one when a page was opened), or None when the user declines.

`Stopped` says that the user did neither, but turned away.
"""


def answering(tool_id: str, on_elicit: OnElicit) -> ElicitationFnT:
    """The SDK's kind of callback."""
    from mcp.types import ElicitRequestURLParams, ElicitResult

    turn = asyncio.Lock()
    waiting = 0

    async def ask(context: Any, params: Any) -> ElicitResult:
        nonlocal waiting
        if waiting > MOST_WAITING:
            logger.warning("tool=<%s> | it asks too much at once, which counts as cancelled", tool_id)
            return ElicitResult(action="cancel")
        waiting += 1
        try:
            async with turn:  # a user can answer one question at a time
                return await answer(params)
        finally:
            waiting -= 1

    async def answer(params: Any) -> ElicitResult:
        if isinstance(params, ElicitRequestURLParams):
            question = Elicitation(tool_id=tool_id, message=params.message, url=params.url)
        else:
            question = Elicitation(tool_id=tool_id, message=params.message, schema=dict(params.requested_schema))
        try:
            said = await on_elicit(question)
        except Stopped:
            return ElicitResult(action="cancel")
        except Exception:
            logger.exception("tool=<%s> | asking the user failed, which counts as cancelled", tool_id)
            return ElicitResult(action="cancel")
        if said is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=None if question.url else said)

    return ask
