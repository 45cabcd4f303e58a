"""The HTTP API of calls: one, streamed or not, and batches; their records, statistics, limits and artifacts.

A single call is answered by a plain ASGI application, because FastAPI's layers take longer than the call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Query
from pydantic import Field, StrictBool, ValidationError
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
)
from ferrule.server.authentication import Client
from ferrule.server.mcp import execute_named, make_content_blocks
from ferrule.server.responses import (
    Problem,
    SendEvent,
    encode_body,
    encode_event,
    event_stream,
    handle_error,
    json_response,
    read_body,
    send_json,
    stream_of_task,
)
from ferrule.server.services import CallingClient, Limit, Moment, ReadingClient, RequestBody, Services, ServicesOfApp
from ferrule.server.stateful_servers import UNREACHABLE
from ferrule.store.queries import CallFilter
from ferrule.store.record import Status, ToolCallRecord
from ferrule.store.statistics import collect_series, find_oldest_call

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


class CallRequest(RequestBody):
    """One call."""

    arguments: dict[str, Any] = {}
    action: str | None = None
    timeout: Annotated[float | None, Field(gt=0, le=MAX_CALL_TIMEOUT)] = None
    approval_id: str | None = None
    """Of a call that was answered `approval_required` before and is approved now."""
    conversation_id: ConversationId | None = None
    stream: StrictBool = False
    """Answer with server-sent events: `progress` for each report of the tool, and `result` at the end."""


class NamedCall(RequestBody):
    """One call of a batch."""

    tool: str
    action: str | None = None
    arguments: dict[str, Any] = {}


class BatchRequest(RequestBody):
    """Several calls."""

    calls: Annotated[list[NamedCall], Field(min_length=1, max_length=MAX_BATCH)]
    timeout: Annotated[float | None, Field(gt=0, le=MAX_CALL_TIMEOUT)] = None


_PLAIN_CALL: Final = CallRequest()
"""A call with nothing but arguments."""


class ToolCallApp:
    """Answers `POST /v1/tools/{name}/call`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def find_name(self, path: str) -> str | None:
        """Return the name of the tool that a path is for; None for other paths."""
        if not (path.startswith(CALL_PREFIX) and path.endswith(CALL_SUFFIX)):
            return None
        name = path[len(CALL_PREFIX) : -len(CALL_SUFFIX)]
        return None if "/" in name else name or None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope, receive)
        except Exception as error:
            answer = await handle_error(Request(scope), error)
        if isinstance(answer, bytes):
            await send_json(send, 200, answer)
        else:
            await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response | bytes:
        """Return the response, or the body of a usual one."""
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
            return await self._services.idempotent_requests.respond(Request(scope), client, content, respond, calls)
        result = await self._call(client, name, arguments, options)
        return encode_body(describe_result(result)) if result.is_success else _make_response(result)

    async def _call(
        self, client: Client, name: str, arguments: dict[str, Any], options: CallRequest
    ) -> ToolExecutionResult:
        if not client.calls.is_limited:  # a context manager takes a while
            return await _execute(self._services, client, name, arguments, options)
        async with client.calls.slot():
            return await _execute(self._services, client, name, arguments, options)


def _parse_json(body: bytes) -> Any:
    if not LONG_NUMBER.search(body):
        return orjson.loads(body)

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    return json.loads(body, parse_constant=refuse)  # orjson makes floats of whole numbers beyond 64 bits


def _read_call(body: bytes) -> tuple[dict[str, Any], CallRequest]:
    """Return the arguments and the rest of a call; checked by hand in the usual case, which has only arguments."""
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
    """Return the fields of a result, with images, audio and resources as MCP content blocks."""
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

        async with client.calls.slot():
            result = await _execute(services, client, name, arguments, options, report)
        send(encode_event("result", describe_result(result)))

    return stream_of_task(work)


# Records


@router.get("/calls", tags=["calls"])
async def list_calls(
    services: ServicesOfApp,
    client: ReadingClient,
    tool: str | None = None,
    status: Status | None = None,
    error_type: str | None = None,
    conversation_id: str | None = None,
    principal: str | None = None,
    caller: Annotated[str | None, Query(description="What made the calls: agent, http, mcp, workflow …")] = None,
    rule: Annotated[str | None, Query(description="The rule of the policy that decided; for administrators.")] = None,
    since: Moment | None = None,
    until: Moment | None = None,
    text: str | None = None,
    after: Annotated[str | None, Query(description="The last record of the page before.")] = None,
    brief: Annotated[bool, Query(description="Without arguments, results and metadata.")] = False,
    limit: Limit = 100,
) -> Response:
    """List the records of calls, the newest first."""
    visibility = services.visibility(client)
    if rule is not None:
        client.require("administer")
    if after is not None:
        await _find_record(after, services, client)
    records = await services.engine.query_call_records(
        tool_name=tool,
        status=status,
        error_type=error_type,
        conversation_id=conversation_id,
        principal=principal,
        caller_type=caller,
        rule=rule,
        tenant=visibility.tenant,
        principals=visibility.principals,
        since=since,
        until=until,
        text=text,
        after=after,
        limit=limit,
    )
    calls = [record.to_dict() for record in records]
    for call in calls if brief else ():
        for name in ("params", "result", "metadata", "fingerprint"):
            del call[name]
    return json_response({"calls": calls})


@router.get("/calls/{call_id}", tags=["calls"])
async def show_call(call_id: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """Return the record of a call."""
    return json_response((await _find_record(call_id, services, client)).to_dict())


@router.post("/calls/{call_id}/cancel", tags=["calls"])
async def cancel_call(call_id: str, services: ServicesOfApp, client: CallingClient) -> Response:
    """Stop a call that runs on any server of the store. Its client gets a result with the error `cancelled`."""
    await _find_record(call_id, services, client)
    if not await services.fleet.cancel_call(call_id):
        raise Problem(409, f"The call {call_id!r} does not run.")
    return json_response({"call_id": call_id, "cancelled": True})


@router.get("/calls/{call_id}/artifact", tags=["calls"])
async def get_artifact(call_id: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """Return the whole output of a call whose result was cut."""
    record = await _find_record(call_id, services, client)
    if record.artifact_id is None:
        raise Problem(404, f"The call {call_id!r} has no artifact: its record contains its whole result.")
    try:
        content = await asyncio.to_thread(services.engine.get_artifact, record.artifact_id)
    except FileNotFoundError:
        raise Problem(404, f"The artifact of the call {call_id!r} was deleted.") from None
    return Response(content, media_type="application/octet-stream")


@router.get("/stats", tags=["calls"])
async def get_statistics(
    services: ServicesOfApp, client: ReadingClient, since: Moment | None = None, tool: str | None = None
) -> Response:
    """Return counts, error rates and times of calls, in total and by tool."""
    store, visibility = services.store, services.visibility(client)
    statistics = await store.get_call_statistics(
        since=since, tool_name=tool, tenant=visibility.tenant, principals=visibility.principals
    )
    return json_response(statistics.to_dict())


@router.get("/stats/series", tags=["calls"])
async def get_series(
    services: ServicesOfApp,
    client: ReadingClient,
    tool: str | None = None,
    status: Status | None = None,
    principal: str | None = None,
    caller: str | None = None,
    text: str | None = None,
    since: Moment | None = None,
    parts: Annotated[int, Query(ge=1, le=500)] = 60,
) -> Response:
    """Return calls, failures, rejections and times in equal parts of the time since a moment or the oldest call."""
    store, visibility = services.store, services.visibility(client)
    conditions = CallFilter(
        tool_name=tool,
        status=status,
        principal=principal,
        caller_type=caller,
        text=text,
        tenant=visibility.tenant,
        principals=visibility.principals,
    )
    start, end = since and since.astimezone(UTC), datetime.now(UTC)
    if start is None:
        oldest = await store.query(find_oldest_call)
        # A little earlier: a time of a `datetime` is rounded, and might be after the call.
        start = end - timedelta(hours=1) if oldest is None else datetime.fromtimestamp(oldest - 0.001, UTC)
    if start >= end:
        raise Problem(422, "`since` is in the future.")
    intervals = await store.query(collect_series, conditions, start, end, parts)
    return json_response({"intervals": [asdict(each) for each in intervals]})


@router.get("/limits", tags=["calls"])
async def get_limits(services: ServicesOfApp, client: ReadingClient) -> Response:
    """Return the slots and queues of this server, now and for each bucket over the last minutes."""
    concurrency = services.engine.concurrency
    described = asdict(concurrency.get_metrics())
    if client.sees_all_tenants:  # the names of buckets and their load are about all tenants
        described |= {"buckets": concurrency.get_bucket_metrics(), "samples": services.limit_samples.describe()}
    return json_response(described)


async def _find_record(call_id: str, services: Services, client: Client) -> ToolCallRecord:
    record = await services.store.get_call_record(call_id)
    if record is None or not services.visibility(client).shows_call(record):
        raise Problem(404, f"There is no call {call_id!r}.")
    return record


# Batches


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
    return await services.idempotent_requests.respond(request, client, batch.model_dump(), respond, calls)
