"""The HTTP API of tools: listing and calling them, records of calls, statistics, limits and artifacts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool
from starlette.requests import Request
from starlette.responses import Response

from ferrule.agent.run import RUN_PREFIX
from ferrule.core.call import DEFAULT_TIMEOUT, Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import encode_json
from ferrule.core.permission import effect_tier
from ferrule.core.spec import MCPServerSpec, Tool, ToolCapability
from ferrule.errors import (
    APPROVAL_REQUIRED,
    EXECUTOR_NOT_FOUND,
    PERMISSION_DENIED,
    REJECTED,
    TOOL_NOT_FOUND,
    VALIDATION_ERROR,
    FerruleError,
    ToolNotFound,
)
from ferrule.server.access import Client
from ferrule.server.mcp import execute_named, make_mcp_result
from ferrule.server.mcp.calls_without_sdk import LONG_NUMBER
from ferrule.server.problems import Problem, json_response, problem_of_error
from ferrule.server.services import (
    AdminClient,
    CallingClient,
    ReadingClient,
    Services,
    ServicesOfApp,
    encode_event,
    event_stream,
    get_client,
    get_services,
    stream_of_task,
)
from ferrule.store.queries import CallFilter, collect_series, find_oldest_call
from ferrule.store.record import Status, ToolCallRecord

router = APIRouter(prefix="/v1")

CALLER_HTTP: Final = "http"
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


def _parse_iso_time(value: Any) -> Any:
    """A number would be taken as seconds since 1970, although the API says nothing of it."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value


Moment = Annotated[datetime, BeforeValidator(_parse_iso_time)]
Limit = Annotated[int, Query(ge=1, le=1_000)]
ConversationId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,100}$")]


# Listing


@router.get("/tools", tags=["tools"])
async def list_tools(
    services: ServicesOfApp,
    client: ReadingClient,
    query: Annotated[str | None, Query(description="Only tools that match these words, best first.")] = None,
    limit: Limit = 1_000,
) -> Response:
    """List the tools that the client may call, with those that are not set up."""
    library = services.library
    permissions = services.permissions(client)
    snapshot = library.engine.registry.snapshot()
    if query:
        await library.index.prepare(query)
        tools = [hit.tool for hit in library.index.search(query, limit, is_visible=permissions.may_find)]
    else:
        tools = [tool for tool in snapshot if permissions.may_use(tool)][:limit]
    unavailable = await library.get_unavailable_tools()
    return json_response({"tools": [_describe_tool(tool, services, client, unavailable) for tool in tools]})


@router.get("/tools/{name}", tags=["tools"])
async def show_tool(name: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """Describe a tool with the parameters of each action."""
    tool = _find_tool(name, services, client)
    unavailable = await services.library.get_unavailable_tools()
    return json_response(_describe_tool(tool, services, client, unavailable, with_schemas=True))


@router.get("/tools/{name}/schema", tags=["tools"])
async def show_schemas(name: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """The actions of a tool as function schemas for model APIs."""
    tool = _find_tool(name, services, client)
    permissions = services.permissions(client)
    actions = services.library.descriptions.actions_by_name([tool])
    permitted = [action.openai_schema for action in actions if permissions.may_call(tool, action.capability)]
    return json_response({"schemas": permitted})


class ToolChange(BaseModel):
    """A change of a tool on this server, until it is restarted."""

    model_config = ConfigDict(extra="forbid")
    enabled: StrictBool


@router.patch("/tools/{name}", tags=["tools"])
async def change_tool(name: str, change: ToolChange, services: ServicesOfApp, client: AdminClient) -> Response:
    """Enable or disable a tool on this server."""
    registry = services.library.engine.registry
    if name not in registry:
        raise Problem(404, f"There is no tool {name!r}.")
    if not client.sees_all_tenants:
        raise Problem(403, "All tenants use the same tools: changing one needs an admin without a tenant.")
    (registry.enable if change.enabled else registry.disable)(name)
    await services.audit.write(client.principal, "enable_tool" if change.enabled else "disable_tool", name)
    return json_response({"tool_id": name, "enabled": change.enabled})


class RegisteredMcpServer(BaseModel):
    """An MCP server that is reached by an address. Programs are started by `mcp.json` alone."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    url: Annotated[str, Field(pattern=r"^(https?|wss?)://[^${}]+$", max_length=2_000)]
    headers: dict[str, Annotated[str, Field(pattern=r"^[^${}\r\n]*$")]] = {}
    description: str = ""


class OpenApiDocumentEntry(BaseModel):
    """An API that an OpenAPI document describes."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    source: Annotated[str, Field(pattern=r"^https?://", max_length=2_000)] | dict[str, Any]
    """The address of the document, or the document."""
    server: Annotated[str, Field(pattern=r"^https?://", max_length=2_000)] | None = None
    operations: list[str] | None = None
    """The only ones to offer."""


class McpServerRegistration(BaseModel):
    """An MCP server to add on this server, until it is restarted."""

    model_config = ConfigDict(extra="forbid")
    mcp: RegisteredMcpServer


class OpenApiRegistration(BaseModel):
    """An API to add on this server, until it is restarted."""

    model_config = ConfigDict(extra="forbid")
    openapi: OpenApiDocumentEntry


@router.post("/tools", tags=["tools"], status_code=201)
async def register_tool(
    entry: McpServerRegistration | OpenApiRegistration, services: ServicesOfApp, client: AdminClient
) -> Response:
    """Add an MCP server or an API."""
    if not client.sees_all_tenants:
        raise Problem(403, "All tenants use the same tools: adding one needs an admin without a tenant.")
    name = entry.mcp.name if isinstance(entry, McpServerRegistration) else entry.openapi.name
    if name in services.library.engine.registry:
        raise Problem(409, f"There is already a tool {name!r}.")
    if isinstance(entry, McpServerRegistration):
        spec = MCPServerSpec(
            tool_id=name,
            description=entry.mcp.description,
            endpoint=entry.mcp.url,
            connection_params={"headers": entry.mcp.headers},
        )
        result = await services.library.register_mcp_server(spec)
    else:
        document = entry.openapi
        source = document.source if isinstance(document.source, str) else encode_json(document.source).decode()
        options = {"name": name, "server": document.server, "operations": document.operations}
        result = await services.library.register_openapi(source, **options)
    if not result.success:
        raise Problem(422, result.error or "The tool could not be added.")
    await services.audit.write(client.principal, "register_tool", name)
    return json_response({"tool_id": result.tool_id}, 201)


def _find_tool(name: str, services: Services, client: Client) -> Tool:
    try:
        return services.permissions(client).find_tool(services.library.engine.registry.snapshot(), name)
    except ToolNotFound as error:
        raise Problem(404, str(error)) from None


def _describe_tool(
    tool: Tool,
    services: Services,
    client: Client,
    unavailable: Mapping[str, str],
    *,
    with_schemas: bool = False,
) -> dict[str, Any]:
    permissions, spec = services.permissions(client), tool.spec
    permitted = [c for c in spec.capabilities if permissions.may_call(tool, c)]
    return {
        "tool_id": tool.id,
        "name": spec.name,
        "description": spec.description,
        "tool_type": spec.tool_type.value,
        "source": tool.source,
        "tags": sorted(spec.tags),
        "needs": unavailable.get(tool.id),
        "actions": [_describe_action(tool, c, services, client, with_schema=with_schemas) for c in permitted],
    }


def _describe_action(
    tool: Tool, capability: ToolCapability, services: Services, client: Client, *, with_schema: bool
) -> dict[str, Any]:
    decision = services.permissions(client).decide(tool, capability)
    described: dict[str, Any] = {
        "name": capability.name,
        "model_name": tool.spec.model_name(capability),
        "description": capability.description,
        "effect": effect_tier(tool.spec.effects_of(capability)),
        "needs_approval": decision.verdict == "ask",
    }
    if with_schema:
        described |= {"parameters": capability.schema, "secrets": sorted(capability.secret_names)}
    return described


# Calling


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


async def call_tool(request: Request) -> Response:
    """Call a tool. A plain Starlette route, because FastAPI's layers take longer than the call."""
    services, client = get_services(request), get_client(request)
    client.require("call")
    call = _read_call(await request.body())
    name = request.path_params["name"]
    if call.stream:
        return event_stream(_stream_call(services, client, name, call), request)

    async def respond() -> Response:
        async with client.calls.slot():
            return _make_response(await _execute(services, client, name, call))

    calls = [(name, call.action, call.arguments)]
    return await services.respond_once(request, client, [name, call.model_dump()], respond, calls)


@router.post("/calls", tags=["calls"])
async def call_batch(request: Request, batch: BatchRequest, services: ServicesOfApp, client: CallingClient) -> Response:
    """Make several calls, as many of them concurrently as there are slots; their results have the same order."""

    async def execute(each: NamedCall) -> ToolExecutionResult:
        call = CallRequest(arguments=each.arguments, action=each.action, timeout=batch.timeout)
        async with slots:
            return await _execute(services, client, each.tool, call)

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


def _read_call(body: bytes) -> CallRequest:
    """The body of a call, checked by hand in the usual case, which has only arguments."""
    try:
        values = _parse_json(body) if body else {}
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"The body is not JSON: {error}.") from None
    if isinstance(values, dict) and values.keys() <= {"arguments"} and isinstance(values.get("arguments", {}), dict):
        return CallRequest.model_construct(
            arguments=values.get("arguments", {}),
            action=None,
            timeout=None,
            approval_id=None,
            conversation_id=None,
            stream=False,
        )
    from pydantic import ValidationError

    try:
        return CallRequest.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors()[:5])
        hint = "" if isinstance(values, dict) and "arguments" in values else ' Write {"arguments": {…}}.'
        raise Problem(422, f"The request is not valid: {problems}.{hint}") from None


async def _execute(
    services: Services,
    client: Client,
    name: str,
    call: CallRequest,
    on_progress: Callable[[Progress], None] | None = None,
) -> ToolExecutionResult:
    library, conversation_id = services.library, call.conversation_id
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
        approval_id=call.approval_id,
        timeout=DEFAULT_TIMEOUT if call.timeout is None else call.timeout,
    )
    return await execute_named(library, name, call.arguments, context, action=call.action, on_progress=on_progress)


def _make_response(result: ToolExecutionResult) -> Response:
    status = 200 if result.is_success else _STATUS_OF_ERROR.get(result.error_type or "", 200)
    content = describe_result(result)
    if status == 200:
        return json_response(content)
    headers = {"Retry-After": "1"} if status == 429 else None
    problem = Problem(status, result.error or "The call was not made.", headers=headers, **content)
    return problem.to_response()


def describe_result(result: ToolExecutionResult) -> dict[str, Any]:
    """The fields of a result, with images, audio and resources as MCP content blocks."""
    described = result.to_dict()
    if result.content:
        blocks = make_mcp_result(result).content
        described["content"] = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks]
    return described


async def _stream_call(services: Services, client: Client, name: str, call: CallRequest) -> AsyncIterator[bytes]:
    async def work(send: Callable[[bytes], None]) -> None:
        def report(progress: Progress) -> None:
            values = {"fraction": progress.fraction, "message": progress.message, "data": progress.data}
            send(encode_event("progress", values))

        try:
            async with client.calls.slot():
                result = await _execute(services, client, name, call, report)
        except (Problem, FerruleError) as error:
            problem = problem_of_error(error)
            send(encode_event("error", {"status": problem.status, "detail": problem.detail}))
        else:
            send(encode_event("result", describe_result(result)))

    async with stream_of_task(work) as events:
        async for event in events:
            yield event


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
    records = await services.library.engine.query_call_records(
        tool_name=tool,
        status=status,
        error_type=error_type,
        conversation_id=conversation_id,
        principal=principal,
        caller_type=caller,
        rule=rule,
        tenant=visibility.tenant,
        visible=visibility.calls,
        since=since,
        until=until,
        text=text,
        after=after,
        limit=limit,
    )
    describe = _summarize_call_record if brief else visibility.describe_call
    return json_response({"calls": list(map(describe, records))})


@router.get("/calls/{call_id}", tags=["calls"])
async def show_call(call_id: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """The record of a call."""
    record = await _find_record(call_id, services, client)
    return json_response(services.visibility(client).describe_call(record))


@router.post("/calls/{call_id}/cancel", tags=["calls"])
async def cancel_call(call_id: str, services: ServicesOfApp, client: CallingClient) -> Response:
    """Stop a call that runs on any server of the store. Its client gets a result with the error `cancelled`."""
    await _find_record(call_id, services, client)
    if not await services.fleet.cancel_call(call_id):
        raise Problem(409, f"The call {call_id!r} does not run.")
    return json_response({"call_id": call_id, "cancelled": True})


@router.get("/calls/{call_id}/artifact", tags=["calls"])
async def get_artifact(call_id: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """The whole output of a call whose result was cut."""
    record = await _find_record(call_id, services, client)
    if record.artifact_id is None:
        raise Problem(404, f"The call {call_id!r} has no artifact: its record contains its whole result.")
    try:
        content = await asyncio.to_thread(services.library.engine.get_artifact, record.artifact_id)
    except FileNotFoundError:
        raise Problem(404, f"The artifact of the call {call_id!r} was deleted.") from None
    return Response(content, media_type="application/octet-stream")


@router.get("/stats", tags=["calls"])
async def get_statistics(
    services: ServicesOfApp, client: ReadingClient, since: Moment | None = None, tool: str | None = None
) -> Response:
    """Counts, error rates and times of calls, in total and by tool."""
    store, visibility = services.library.engine.store, services.visibility(client)
    statistics = await store.get_call_statistics(
        since=since, tool_name=tool, tenant=visibility.tenant, visible=visibility.calls
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
    """Calls, failures, rejections and times over time, in equal parts: since a time, or since the oldest call."""
    store, visibility = services.library.engine.store, services.visibility(client)
    conditions = CallFilter(
        tool_name=tool,
        status=status,
        principal=principal,
        caller_type=caller,
        text=text,
        tenant=visibility.tenant,
        visible=visibility.calls,
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
    """The slots and queues of this server, now and for each bucket over the last minutes."""
    concurrency = services.library.engine.concurrency
    described = asdict(concurrency.get_metrics())
    if client.sees_all_tenants:  # the names of buckets and their load are about all tenants
        described |= {"buckets": concurrency.get_bucket_metrics(), "samples": services.limit_samples.describe()}
    return json_response(described)


def _summarize_call_record(record: ToolCallRecord) -> dict[str, Any]:
    """A record in a long list: what is shown only of one call is left out."""
    described = record.to_dict()
    for name in ("params", "result", "metadata", "fingerprint"):
        del described[name]
    return described


async def _find_record(call_id: str, services: Services, client: Client) -> ToolCallRecord:
    record = await services.library.engine.store.get_call_record(call_id)
    if record is None or not services.visibility(client).shows_call(record):
        raise Problem(404, f"There is no call {call_id!r}.")
    return record
