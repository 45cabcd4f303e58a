"""Calls of a server on standard input and output, without the SDK's dispatcher.

For each request the dispatcher makes memory streams, a cancel scope, a tracing span and several models. A call needs
one line and one future: what the session sends as `tools/call` is written here, and its progress and its answer are
taken out of the server's lines. Every other message goes to the dispatcher, and so does a call that is part of a
trace, because the dispatcher passes the trace on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ferrule.kinds.mcp.relay import add_client_details
from ferrule.kinds.mcp.results import CONNECTION_CLOSED

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import ErrorData

logger = logging.getLogger("ferrule.mcp")

FIRST_ID: Final = 1_000_000_000
"""The dispatcher counts its own requests from 1."""


class SentCall:
    """A call that is not answered yet."""

    def __init__(self, on_progress: Callable[..., Awaitable[None]] | None) -> None:
        self.on_progress = on_progress
        self.answer: asyncio.Future[dict[str, Any] | ErrorData] = asyncio.get_running_loop().create_future()


class LineCalls:
    """The calls of one session. `write(text, is_urgent)` raises ConnectionError when the server cannot be reached."""

    def __init__(self, write: Callable[[str, bool], Awaitable[None]]) -> None:
        self._write = write
        self._ids = count(FIRST_ID)
        self._calls: dict[int, SentCall] = {}
        self._reports: set[asyncio.Task[None]] = set()
        self._has_ended = False

    def serve(self, session: ClientSession) -> None:
        """Send the calls of a session from now on."""
        from opentelemetry.context import get_current

        dispatcher: Any = getattr(session, "_dispatcher", None)
        if not hasattr(dispatcher, "send_raw_request"):
            logger.info("this version of the MCP SDK sends the calls itself, which takes longer")
            return
        send_by_dispatcher: Callable[..., Awaitable[dict[str, Any]]] = dispatcher.send_raw_request

        async def send_raw_request(
            method: str, params: Mapping[str, Any] | None, opts: Any = None, **details: Any
        ) -> dict[str, Any]:
            if method == "tools/call" and params is not None and not get_current() and not opts.get("timeout"):
                return await self._send(dict(params), opts.get("on_progress"))
            return await send_by_dispatcher(method, params, opts, **details)

        dispatcher.send_raw_request = send_raw_request

    async def _send(self, params: dict[str, Any], on_progress: Callable[..., Awaitable[None]] | None) -> dict[str, Any]:
        """The result of a call; MCPError as the server answers, or when the connection has ended."""
        from mcp.shared.exceptions import MCPError
        from pydantic_core import to_json

        request_id = next(self._ids)
        if on_progress is not None:
            params["_meta"] = {**params.get("_meta", {}), "progressToken": request_id}
        add_client_details(params)
        request = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
        call = self._calls[request_id] = SentCall(on_progress)
        try:
            if self._has_ended:
                raise ConnectionError
            await self._write(to_json(request).decode(), False)
            answer = await call.answer
        except ConnectionError:
            raise MCPError(code=CONNECTION_CLOSED, message="Connection closed") from None
        except asyncio.CancelledError:
            await self._cancel(request_id)
            raise
        finally:
            del self._calls[request_id]
        if isinstance(answer, dict):
            return answer
        raise MCPError(code=answer.code, message=answer.message, data=answer.data)

    async def _cancel(self, request_id: int) -> None:
        from pydantic_core import to_json

        params = {"requestId": request_id, "reason": "caller cancelled"}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        with suppress(ConnectionError):
            await self._write(to_json(message).decode(), True)

    def find_delivery(self, message: Any) -> Callable[[], None] | None:
        """What to do with a message that answers one of these calls or reports its progress; None for others."""
        if not self._calls or not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return None
        if "method" not in message:
            call = self._find(message.get("id"))
            answer = None if call is None else _read_answer(message)
            return None if call is None or answer is None else partial(_set_answer, call, answer)
        params = message.get("params")
        if message["method"] != "notifications/progress" or not isinstance(params, dict):
            return None
        call = self._find(params.get("progressToken"))
        if call is None or call.on_progress is None or not _is_number(params.get("progress")):
            return None
        return partial(self._report, call, params)

    def end(self) -> None:
        """No more messages will come."""
        self._has_ended = True
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(ConnectionError())

    def _find(self, request_id: Any) -> SentCall | None:
        if isinstance(request_id, str) and request_id.isdecimal():  # some servers answer with a text
            request_id = int(request_id[:20])
        return self._calls.get(request_id) if isinstance(request_id, int) else None

    def _report(self, call: SentCall, params: dict[str, Any]) -> None:
        assert call.on_progress is not None
        total, text = params.get("total", ""), params.get("message")
        report = call.on_progress(
            float(params["progress"]),
            float(total) if _is_number(total) else None,
            text if isinstance(text, str) else None,
        )
        task = asyncio.ensure_future(report)
        self._reports.add(task)
        task.add_done_callback(self._forget_report)

    def _forget_report(self, task: asyncio.Task[None]) -> None:
        self._reports.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a progress report could not be passed on", exc_info=error)


def _read_answer(message: dict[str, Any]) -> dict[str, Any] | ErrorData | None:
    """The result or the error of an answer; None if it has neither."""
    from mcp.types import ErrorData

    result = message.get("result")
    if isinstance(result, dict):
        return result
    try:
        return ErrorData.model_validate(message.get("error"), by_name=False)
    except ValueError:
        return None


def _set_answer(call: SentCall, answer: dict[str, Any] | ErrorData) -> None:
    if not call.answer.done():
        call.answer.set_result(answer)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
