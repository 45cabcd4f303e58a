"""A server that asks its user something in the middle of a call."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from mcp.client.session import ElicitationFnT

logger = logging.getLogger("ferrule.mcp")


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
"""Asks the user: gives the answer (an empty one when a page was opened), or None when the user declines."""


def answering(tool_id: str, on_elicit: OnElicit) -> ElicitationFnT:
    """The SDK's kind of callback."""
    from mcp.types import ElicitRequestURLParams, ElicitResult

    async def ask(context: Any, params: Any) -> ElicitResult:
        if isinstance(params, ElicitRequestURLParams):
            question = Elicitation(tool_id=tool_id, message=params.message, url=params.url)
        else:
            question = Elicitation(tool_id=tool_id, message=params.message, schema=dict(params.requested_schema))
        try:
            answer = await on_elicit(question)
        except Exception:
            logger.exception("tool=<%s> | asking the user failed, which counts as cancelled", tool_id)
            return ElicitResult(action="cancel")
        if answer is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=None if question.url else answer)

    return ask
