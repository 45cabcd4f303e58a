"""The HTTP API of calls: one, streamed or not, and batches.

A single call is answered by a plain ASGI application, because FastAPI's layers take longer than the call.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ferrule.agent.run import RUN_PREFIX
from ferrule.core.call import DEFAULT_TIMEOUT, Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import LONG_NUMBER
from ferrule.errors import (
    APPROVAL_REQUIRED,
    EXECUTOR_NOT_FOUND,
    PERMISSION_DENIED,
    REJECTED,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    FerruleError,
)
from ferrule.server.authentication import Client
from ferrule.server.mcp import execute_named, make_content_blocks
from ferrule.server.messages import encode_answer, read_body, send_json
from ferrule.server.problems import Problem, json_response, problem_of_error
from ferrule.server.services import (
    CallingClient,
    SendEvent,
    Services,
    ServicesOfApp,
    encode_event,
    event_stream,
    stream_of_task,
)
from ferrule.server.stateful_servers import UNREACHABLE

logger = logging.getLogger("ferrule.server")
router = APIRouter(prefix="/v1")

CALLER_HTTP: Final = "http"
CALL_PREFIX: Final = "/v1/tools/"
CALL_SUFFIX: Final = "/call"
MAX_CALL_TIMEOUT: Final = 3_600.0
MAX_BATCH: Final = 1_000
_STATUS_OF_ERROR: Final = {
    TOOL_NOT_FOUND: 404,
    EXECUTOR_NOT_FOUND: 404,
    VALIDATION_ERROR: 422,
    PERMISSION_DENIED: 403,
    APPROVAL_REQUIRED: 428,
    REJECTED: 429,
}
"""Of calls that were not made. A call that was made and failed is answered with 200 and its result."""

ConversationId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,100}$")]


class CallRequest(BaseModel):
    """One call."""

    model_config = ConfigDict(extra="forbid")
    arguments: dict[str, Any] = {}
    action: str | None = None
    timeout: Annotated[float | None, Field(gt=0, le=MAX_CALL_TIMEOUT)] = None
    approval_id: str | None = None
    """Of a call that was answered `approval_required` before and is approved now."""
    conversation_id: ConversationId | None = None
    stream: StrictBool = False
    """Answer with server-sent events: `progress` for each report of the tool, and `result` at the end."""


class NamedCall(BaseModel):
    """One call of a batch."""

    model_config = ConfigDict(extra="forbid")
    tool: str
    action: str | None = None
    arguments: dict[str, Any] = {}


class BatchRequest(BaseModel):
    """Several calls."""

    model_config = ConfigDict(extra="forbid")
    calls: Annotated[list[NamedCall], Field(min_length=1, max_length=MAX_BATCH)]
    timeout: Annotated[float | None, Field(gt=0, le=MAX_CALL_TIMEOUT)] = None


_PLAIN_CALL: Final = CallRequest()
"""A call with nothing but arguments."""


class ToolCallApp:
    """Answers `POST /v1/tools/{name}/call`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def find_name(self, path: str) -> str | None:
        """The name of the tool that a path is for; None for other paths."""
        if not (path.startswith(CALL_PREFIX) and path.endswith(CALL_SUFFIX)):
            return None
        name = path[len(CALL_PREFIX) : -len(CALL_SUFFIX)]
        return None if "/" in name else name or None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope, receive)
        except Exception as error:
            problem = problem_of_error(error)
            if problem.status == 500:
                logger.error("path=<%s> | the request failed", scope["path"], exc_info=error)
            answer = problem.to_response()
        if isinstance(answer, bytes):
            await send_json(send, 200, answer)
        else:
            await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response | bytes:
        """The response, or the body of a usual one."""
        client: Client = scope["state"]["client"]
        client.require("call")
        name = self.find_name(scope["path"]) or ""
        arguments, options = _read_call(await read_body(receive))
        if options.stream:
            return event_stream(_stream_call(self._services, client, name, arguments, options), Request(scope))

        async def respond() -> Response:
            return _make_response(await self._call(client, name, arguments, options))

        if any(header == b"idempotency-key" for header, _ in scope["headers"]):
            content = [name, {**options.model_dump(), "arguments": arguments}]
            calls = [(name, options.action, arguments)]
            return await self._services.respond_once(Request(scope), client, content, respond, calls)
        result = await self._call(client, name, arguments, options)
        return encode_answer(describe_result(result)) if result.is_success else _make_response(result)

    async def _call(
        self, client: Client, name: str, arguments: dict[str, Any], options: CallRequest
    ) -> ToolExecutionResult:
        if not client.calls.is_limited:  # a context manager takes a while
            return await _execute(self._services, client, name, arguments, options)
        async with client.calls.slot():
            return await _execute(self._services, client, name, arguments, options)


@router.post("/calls", tags=["calls"])
async def call_batch(request: Request, batch: BatchRequest, services: ServicesOfApp, client: CallingClient) -> Response:
    """Make several calls, as many of them concurrently as there are slots; their results have the same order."""

    async def execute(each: NamedCall) -> ToolExecutionResult:
        options = CallRequest(action=each.action, timeout=batch.timeout)
        async with slots:
            return await _execute(services, client, each.tool, each.arguments, options)

    slots = asyncio.Semaphore()

    async def respond() -> Response:
        nonlocal slots
        async with client.calls.slot(len(batch.calls)) as concurrent:
            slots = asyncio.Semaphore(concurrent)
            results = await asyncio.gather(*map(execute, batch.calls))
        return json_response({"results": [describe_result(result) for result in results]})

    calls = ((each.tool, each.action, each.arguments) for each in batch.calls)
    return await services.respond_once(request, client, batch.model_dump(), respond, calls)


def _parse_json(body: bytes) -> Any:
    if not LONG_NUMBER.search(body):
        return orjson.loads(body)

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    return json.loads(body, parse_constant=refuse)  # orjson makes floats of whole numbers beyond 64 bits


def _read_call(body: bytes) -> tuple[dict[str, Any], CallRequest]:
    """The arguments and the rest of a call; checked by hand in the usual case, which has only arguments."""
    try:
        values = _parse_json(body) if body else {}
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"The body is not JSON: {error}.") from None
    if isinstance(values, dict) and values.keys() <= {"arguments"}:
        arguments = values.get("arguments", {})
        if isinstance(arguments, dict):
            return arguments, _PLAIN_CALL
    if not isinstance(values, dict):
        raise Problem(422, 'The body of a call is an object: write {"arguments": {…}}.')
    try:
        request = CallRequest.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        hint = "" if "arguments" in values else ' Write {"arguments": {…}}.'
        raise Problem(422, f"The request is not valid: {problems}.{hint}") from None
    return request.arguments, request


async def _execute(
    services: Services,
    client: Client,
    name: str,
    arguments: dict[str, Any],
    options: CallRequest,
    on_progress: Callable[[Progress], None] | None = None,
) -> ToolExecutionResult:
    library, conversation_id = services.library, options.conversation_id
    if conversation_id is not None:
        if await library.engine.store.read_entries(RUN_PREFIX + conversation_id):
            raise Problem(422, f"{conversation_id!r} is a run, not a conversation: only its agent can add calls to it.")
        conversation_id = client.add_tenant(conversation_id)
    context = ToolExecutionContext(
        caller_id=client.name,
        caller_type=CALLER_HTTP,
        conversation_id=conversation_id,
        principal=client.principal,
        policy=services.policy,
        approval_id=options.approval_id,
        timeout=DEFAULT_TIMEOUT if options.timeout is None else options.timeout,
    )
    return await execute_named(library, name, arguments, context, action=options.action, on_progress=on_progress)


def _make_response(result: ToolExecutionResult) -> Response:
    status = 200 if result.is_success else _STATUS_OF_ERROR.get(result.error_type or "", 200)
    if status == 429 and result.metadata.get("reason") in (UNREACHABLE, "store"):
        status = 503
    content = describe_result(result)
    if status == 200:
        return json_response(content)
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    problem = Problem(status, result.error or "The call was not made.", headers=headers, **content)
    return problem.to_response()


def describe_result(result: ToolExecutionResult) -> dict[str, Any]:
    """The fields of a result, with images, audio and resources as MCP content blocks."""
    described = result.to_dict()
    if result.content:
        described["content"] = make_content_blocks(result)
    return described


def _stream_call(
    services: Services, client: Client, name: str, arguments: dict[str, Any], options: CallRequest
) -> AsyncIterator[bytes]:
    async def work(send: SendEvent) -> None:
        def report(progress: Progress) -> None:
            values = {"fraction": progress.fraction, "message": progress.message, "data": progress.data}
            send(encode_event("progress", values), is_progress=True)

        try:
            async with client.calls.slot():
                result = await _execute(services, client, name, arguments, options, report)
        except (Problem, FerruleError) as error:
            problem = problem_of_error(error)
            send(encode_event("error", {"status": problem.status, "detail": problem.detail}))
        else:
            send(encode_event("result", describe_result(result)))

    return stream_of_task(work)
