"""What a tool asks the user in the middle of a call, asked through the client.

Older clients are asked while their request waits. By the newer protocol the request is answered with the question, and
made again with what the user said: meanwhile the call stands still here, under a token that the client brings back.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ferrule.call import ToolExecutionResult
from ferrule.content import plain_json, whole_text
from ferrule.errors import CallError, FerruleError, Stopped
from ferrule.executors.mcp.elicitation import Elicitation

PATIENCE: Final = 600.0
"""Seconds a call stands still for its client to come back."""
MOST_STANDING: Final = 100
_KEY: Final = "question"
_NO_FIELDS: Final[dict[str, Any]] = {"type": "object", "properties": {}}

Shown = Callable[[ToolExecutionResult | FerruleError], Any]


@dataclass(frozen=True, slots=True)
class Client:
    """Who made a call, and by which request."""

    session: Any
    request_id: Any

    @property
    def can_be_asked(self) -> bool:
        capabilities = self.session.client_capabilities
        return capabilities is not None and capabilities.elicitation is not None

    async def ask(self, question: Elicitation) -> Any:
        """Over the way that the request came, which is the only one that is surely open."""
        if question.url is not None:
            token = secrets.token_urlsafe(12)
            return await self.session.elicit_url(question.message, question.url, token, self.request_id)
        return await self.session.elicit_form(question.message, question.schema or _NO_FIELDS, self.request_id)


@dataclass(slots=True, eq=False)
class _Standing:
    """A call that asks, and how far the asking is."""

    client: Client
    shown: Shown
    task: asyncio.Task[ToolExecutionResult]
    asked: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    said: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    async def ask(self, question: Elicitation) -> Any:
        if self.client.session.can_send_request:
            return await self.client.ask(question)
        self.asked.put_nowait(question)
        return await self.said.get()


_call: ContextVar[_Standing | None] = ContextVar("ferrule_mcp_call", default=None)


async def ask_the_client(question: Elicitation) -> dict[str, Any] | None:
    """Asks the user of the client whose call is running; None where nobody can be asked."""
    call = _call.get()
    if call is None or not call.client.can_be_asked:
        raise CallError("The client of this call cannot ask its user. Go on with what is known.")
    question = replace(question, message=whole_text(question.message), schema=plain_json(question.schema))
    asking = asyncio.ensure_future(call.ask(question))
    try:
        await asyncio.wait({asking, call.task}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asking.cancel()  # nobody waits for the answer to a call that has ended
    if not asking.done():
        raise Stopped("The call that asked has ended.")
    answer = asking.result()
    if getattr(answer, "action", "cancel") == "cancel":  # also where the client brought nothing, or something else
        raise Stopped("The user did not answer.")
    return dict(answer.content or {}) if answer.action == "accept" else None


class Asking:
    """The calls that wait for their clients."""

    def __init__(self) -> None:
        self._standing: dict[str, _Standing] = {}

    async def while_asking(
        self, make: Callable[[], Coroutine[Any, Any, ToolExecutionResult]], client: Client, shown: Shown
    ) -> Any:
        """Make a call; gives its result, or the question it asks."""

        async def run() -> ToolExecutionResult:
            _call.set(call)
            return await make()

        call = _Standing(client=client, shown=shown, task=asyncio.create_task(run()))
        return await self._next(call)

    async def go_on(self, params: Any) -> Any:
        """Go on with a call that has asked."""
        call = self._standing.pop(params.request_state, None)
        if call is None:
            from mcp.types import CallToolResult, TextContent

            said = "This call waited too long for its answer and has ended. Make it again."
            return CallToolResult(content=[TextContent(type="text", text=said)], is_error=True)
        call.said.put_nowait((params.input_responses or {}).get(_KEY))
        return await self._next(call)

    async def aclose(self) -> None:
        for token in list(self._standing):
            self._end(token)

    async def _next(self, call: _Standing) -> Any:
        asked = asyncio.ensure_future(call.asked.get())
        try:
            await asyncio.wait({call.task, asked}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            call.task.cancel()
            await asyncio.wait({call.task})
            raise
        finally:
            asked.cancel()
        if not call.task.done():
            return self._let_stand(call, asked.result())
        try:
            return call.shown(call.task.result())
        except FerruleError as error:
            return call.shown(error)

    def _let_stand(self, call: _Standing, question: Elicitation) -> Any:
        from mcp.types import InputRequiredResult

        if len(self._standing) >= MOST_STANDING:
            self._end(next(iter(self._standing)))
        token = secrets.token_urlsafe(24)
        self._standing[token] = call
        asyncio.get_running_loop().call_later(PATIENCE, self._end, token)
        return InputRequiredResult(input_requests={_KEY: _request(question)}, request_state=token)

    def _end(self, token: str) -> None:
        call = self._standing.pop(token, None)
        if call is not None:
            call.task.cancel()


def _request(question: Elicitation) -> Any:
    from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitRequestURLParams

    if question.url is not None:
        return ElicitRequest(
            params=ElicitRequestURLParams(
                message=question.message, url=question.url, elicitation_id=secrets.token_urlsafe(12)
            )
        )
    schema = question.schema or _NO_FIELDS
    return ElicitRequest(params=ElicitRequestFormParams(message=question.message, requested_schema=schema))
