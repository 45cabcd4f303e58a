"""Questions that an MCP server asks the user in the middle of a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ferrule.core.json_schema import properties_of
from ferrule.errors import CallCancelled

if TYPE_CHECKING:
    from mcp.client.session import ElicitationFnT

logger = logging.getLogger("ferrule.mcp")

MAX_WAITING: Final = 8
"""Questions of one server that may wait for an earlier one; further ones are cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elicitation:
    """A question that a server asks the user."""

    tool_id: str
    message: str
    schema: dict[str, Any] | None = None
    """The JSON Schema of the answer: an object with plain values."""
    url: str | None = None
    """A page the user should open, instead of answering here."""
    turn: asyncio.Lock | None = field(default=None, repr=False, compare=False)
    """Held while the user is asked: of one server, a user can answer one question at a time."""
    request: Any = field(default=None, repr=False, compare=False)
    """The request of the MCP server, where it is passed on as it is to the MCP client that made the call."""
    key: str = "question"
    """What the server calls it, among the questions it asks together."""


class ClientReply(dict[str, Any]):
    """An answer of an MCP client, with its `result` in the protocol's terms, which is passed on as it is."""

    def __init__(self, result: Any) -> None:
        content = getattr(result, "content", None)
        super().__init__(content if isinstance(content, dict) else {})
        self.result = result


OnElicit: TypeAlias = Callable[[Elicitation], Awaitable[dict[str, Any] | None]]
"""Asks the user: returns the answer (an empty one when a page was opened), or None when the user declines.
Fields that the answer lacks get the default in the schema.

Raises `CallCancelled` when the user did neither.
"""


def elicitation_callback(tool_id: str, on_elicit: OnElicit) -> ElicitationFnT:
    """Return the callback for the MCP SDK that asks through `on_elicit`."""
    from mcp.types import ElicitRequestURLParams, ElicitResult

    turn = asyncio.Lock()
    waiting = 0

    async def ask(context: Any, params: Any) -> ElicitResult:
        nonlocal waiting
        if waiting > MAX_WAITING:
            logger.warning("tool=<%s> | too many questions are waiting: this one is cancelled", tool_id)
            return ElicitResult(action="cancel")
        schema = None if isinstance(params, ElicitRequestURLParams) else dict(params.requested_schema)
        url = params.url if isinstance(params, ElicitRequestURLParams) else None
        question = Elicitation(tool_id=tool_id, message=params.message, schema=schema, url=url, turn=turn)
        waiting += 1
        try:
            content = await on_elicit(question)
        except CallCancelled:
            return ElicitResult(action="cancel")
        except Exception:
            logger.exception("tool=<%s> | asking the user failed: the question is cancelled", tool_id)
            return ElicitResult(action="cancel")
        finally:
            waiting -= 1
        if content is None:
            return ElicitResult(action="decline")
        if question.url:
            return ElicitResult(action="accept")
        fields = properties_of(question.schema or {})
        defaults = {n: each["default"] for n, each in fields.items() if isinstance(each, dict) and "default" in each}
        return ElicitResult(action="accept", content={**defaults, **content})

    return ask
