"""Lets another server make a call, and passes on what happens meanwhile: progress, log messages, questions."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx

from ferrule.core.aio import TaskScope
from ferrule.core.call import Invocation, Progress
from ferrule.core.content import Output
from ferrule.engine import ToolEngine
from ferrule.http.client import trace_headers
from ferrule.kinds.mcp.relay import ServerRequestCallbacks, ask_client, current_request
from ferrule.kinds.mcp.results import describe_cause, make_connection_error
from ferrule.server.fleet import ServerFleet
from ferrule.server.peer_connections import ServerConnections, ServerGone, ServerOutOfReach
from ferrule.server.peer_messages import (
    decode_message,
    decode_outcome,
    decode_question,
    encode_invocation,
    encode_message,
    encode_reply,
)

logger = logging.getLogger("ferrule.server")

CALLS_PATH: Final = "/internal/calls"
ANSWERS_PATH: Final = "/internal/answers"
SERVER_HEADER: Final = b"ferrule-server"
"""Which server a request is for."""
NOT_OWNER_STATUS: Final = 409
GONE_STATUS: Final = 410


class NotOwner(Exception):
    """The other server does not have the process, and has made no call."""


class CallForwarder:
    """Sends calls to other servers."""

    def __init__(self, engine: ToolEngine, fleet: ServerFleet, connections: ServerConnections) -> None:
        self._engine, self._fleet, self._connections = engine, fleet, connections

    async def execute(self, server_id: str, executor: str, invocation: Invocation) -> Output:
        """Let a server make a call. When this is cancelled, the other server cancels the call too.

        ServerGone, NotOwner or ServerOutOfReach: it was not made.
        """
        request = current_request.get()
        client_key = "" if request is None else f"{self._fleet.server_id}-{hash(request.client_key)}"
        body = encode_message(encode_invocation(executor, invocation, request, client_key))
        outcome, reason = None, "it stopped"
        try:
            response = await self._post(server_id, CALLS_PATH, body)
            try:
                await self._check_status(server_id, response)
                async with TaskScope() as questions:
                    async for line in _read_lines(response):  # to the end, so that the connection is used again
                        message = decode_message(line)
                        if "answer" in message or "error" in message:
                            outcome = message
                        else:
                            await self._pass_on(server_id, invocation, message, questions)
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            reason = describe_cause(error)
        if outcome is not None:
            return decode_outcome(outcome)
        effects = invocation.tool.spec.effects_of(invocation.capability)
        name = f"{invocation.tool.id} on another server"
        raise make_connection_error(name, invocation.capability.name, reason, repeatable=effects.repeatable)

    async def _post(self, server_id: str, path: str, body: bytes) -> httpx.Response:
        address = await self._fleet.find_address(server_id)
        if address is None:
            raise ServerGone
        headers = [(name.encode(), value.encode()) for name, value in trace_headers.get().items()]
        headers += [(b"content-type", b"application/json"), (SERVER_HEADER, server_id.encode())]
        headers += [(b"authorization", f"Bearer {address.secret}".encode())]
        return await self._connections.send(server_id, "POST", path, headers, body)

    async def _check_status(self, server_id: str, response: httpx.Response) -> None:
        if response.status_code == 200:
            return
        if response.status_code == NOT_OWNER_STATUS:
            raise NotOwner
        self._fleet.forget(server_id)  # is it still there? what is at its address may be another one now
        if response.status_code == GONE_STATUS or await self._fleet.find_address(server_id) is None:
            raise ServerGone
        raise ServerOutOfReach(f"at its address, a request is answered with the HTTP status {response.status_code}")

    async def _pass_on(
        self, server_id: str, invocation: Invocation, message: dict[str, Any], questions: TaskScope
    ) -> None:
        request = current_request.get()
        if "progress" in message:
            invocation.report(Progress(**message["progress"]))
        elif "log" in message and request is not None:
            from mcp.types import LoggingMessageNotificationParams

            await request.send_log(LoggingMessageNotificationParams.model_validate(message["log"]))
        elif "question" in message:
            questions.start(self._answer_question(server_id, invocation, message))

    async def _answer_question(self, server_id: str, invocation: Invocation, message: dict[str, Any]) -> None:
        """Ask the client of the call, as if its server ran here, and send what it answers."""
        from mcp.types import INVALID_REQUEST, ErrorData

        callbacks = ServerRequestCallbacks(invocation.tool.id, self._engine.on_elicit or ask_client)
        try:
            question = decode_question(message["question"])
        except (KeyError, ValueError) as error:
            reply = ErrorData(code=INVALID_REQUEST, message=f"The question could not be passed on: {error}")
        else:
            reply = await callbacks.pass_on(message["key"], question, "asks the client")
        body = {"call_id": invocation.call_id, "number": message["number"], **encode_reply(reply)}
        try:
            response = await self._post(server_id, ANSWERS_PATH, encode_message(body))
            await response.aread()
            if response.status_code != 204:
                logger.warning(
                    "server=<%s>, status=<%d> | an answer of a client was not accepted", server_id, response.status_code
                )
        except (httpx.TransportError, ServerGone, ServerOutOfReach) as error:  # the call itself reports that
            logger.info("server=<%s>, error=<%r> | an answer could not be sent", server_id, error)


async def _read_lines(response: httpx.Response) -> AsyncIterator[bytes]:
    parts: list[bytes] = []
    async for chunk in response.aiter_raw():
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            yield b"".join((*parts, part))
            parts.clear()
        parts.append(rest)
