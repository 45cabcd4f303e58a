"""Makes calls for other servers of the store, of MCP servers whose processes this one has.

Only a server that knows this one's secret, which is in the store, can ask for it. It has decided about the call and
records it; here, only the executor is run.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ferrule.core.call import Progress, ToolExecutor
from ferrule.core.spec import Tool
from ferrule.engine import ToolEngine
from ferrule.engine.resilience import to_call_error
from ferrule.errors import ExecutionFailed
from ferrule.kinds.mcp.relay import current_request
from ferrule.server.access import LimitedBody
from ferrule.server.asgi import SendEvent, read_body, stream_of_task
from ferrule.server.fleet import ServerFleet
from ferrule.server.mcp.forwarding import RequestForwarder
from ferrule.server.peer_calls import ANSWERS_PATH, CALLS_PATH, GONE_STATUS, NOT_OWNER_STATUS, SERVER_HEADER
from ferrule.server.peer_connections import ServerConnections
from ferrule.server.peer_messages import (
    decode_invocation,
    decode_message,
    decode_reply,
    encode_message,
    encode_outcome,
    encode_question,
)
from ferrule.server.problems import Problem, problem_of_error
from ferrule.server.stateful_servers import ProcessOwners, is_stateful

logger = logging.getLogger("ferrule.server")

MAX_MESSAGE_SIZE: Final = 256 * 1024 * 1024
"""Bytes; what clients and models may send is limited before."""


@dataclass(eq=False, kw_only=True)
class ForwardedRequest:
    """The request of an MCP client of another server, for which that server lets this one make a call."""

    client_key: str
    uses_older_protocol: bool
    capabilities: Mapping[str, Any]
    meta: Mapping[str, Any]
    log_level: str | None
    send: Callable[[dict[str, Any]], None]
    headers: Mapping[str, str] = field(default_factory=dict)
    """None: only servers that run elsewhere get them, and those have no process."""
    questions: dict[int, tuple[Any, asyncio.Future[Any]]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=itertools.count)

    async def ask(self, key: str, request: Any) -> Any:
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self.questions[number] = request, future
        self.send({"question": encode_question(request), "key": key, "number": number})
        try:
            return decode_reply(request, await future)
        finally:
            del self.questions[number]

    async def send_log(self, params: Any) -> None:
        self.send({"log": params.model_dump(mode="json", by_alias=True, exclude_unset=True)})


class PeerRequests:
    """In front of the application: answers other servers, whose requests no client can make."""

    def __init__(
        self,
        app: ASGIApp,
        engine: ToolEngine,
        fleet: ServerFleet,
        connections: ServerConnections,
        owners: ProcessOwners,
        executors: Mapping[str, ToolExecutor],
    ) -> None:
        self._app, self._engine, self._fleet, self._owners = app, engine, fleet, owners
        self._executors, self._forwarder = executors, RequestForwarder(connections)
        self._requests: dict[str, ForwardedRequest] = {}
        """Of the calls that run, by their ids."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in (CALLS_PATH, ANSWERS_PATH):
            await self._app(scope, receive, send)
            return
        try:
            response = await self._answer(scope, LimitedBody(receive, MAX_MESSAGE_SIZE).receive, send)
        except Exception as error:
            problem = problem_of_error(error)
            if problem.status == 500:
                logger.error("path=<%s> | the request of another server failed", scope["path"], exc_info=error)
            response = problem.to_response()
        if response is not None:
            await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """None when another worker has answered."""
        headers = dict(scope["headers"])
        server_id = headers.get(SERVER_HEADER, b"").decode("latin-1")
        secret = headers.get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ")
        if scope["method"] != "POST" or not await self._fleet.is_secret_of(server_id, secret):
            raise Problem(401, "Only servers of the same store can make this request.")
        if server_id != self._fleet.server_id:
            rest = await self._forwarder.forward_to(server_id, scope["headers"], scope, receive, send)
            return None if rest is None else Response(status_code=GONE_STATUS)
        message = decode_message(await read_body(receive))
        if scope["path"] == ANSWERS_PATH:
            return self._deliver_answer(message)
        if not self._owners.is_own(await self._owners.find(message["tool_id"])):
            return Response(status_code=NOT_OWNER_STATUS)
        lines = stream_of_task(partial(self._make_call, message))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    def _deliver_answer(self, message: dict[str, Any]) -> Response:
        request = self._requests.get(message["call_id"])
        _, future = (None, None) if request is None else request.questions.get(message["number"], (None, None))
        if future is not None and not future.done():
            future.set_result(message)
        return Response(status_code=204)

    async def _make_call(self, message: dict[str, Any], send_line: SendEvent) -> None:
        """Send what happens during the call, and then its outcome. When the other server leaves, it is cancelled."""

        def send(values: dict[str, Any]) -> None:
            send_line(encode_message(values) + b"\n", is_progress="progress" in values or "log" in values)

        def report(progress: Progress) -> None:
            send({"progress": asdict(progress)})

        request, call_id, client = None, message["call_id"], message["client"]
        try:
            if client is not None:
                request = ForwardedRequest(client_key=client.pop("key"), send=send, **client)
                self._requests[call_id] = request
                current_request.set(request)  # in the context of this task alone
            executor = self._executors[message["executor"]]
            output = await executor.execute(decode_invocation(message, self._find_tool(message["tool_id"]), report))
            outcome = encode_outcome(output)
        except Exception as error:
            outcome = encode_outcome(to_call_error(error))
        finally:
            if request is not None and self._requests.get(call_id) is request:  # and not of a further attempt
                del self._requests[call_id]
        send(outcome)

    def _find_tool(self, tool_id: str) -> Tool:
        for tool in self._engine.registry:
            if tool.id == tool_id and is_stateful(tool):
                return tool
        raise ExecutionFailed(
            f"The server that has the process of {tool_id!r} does not have it in its mcp.json any more. Give all "
            "servers the same configuration."
        )
