"""The HTTP API of tools: listing and calling them, records of calls, statistics, limits and artifacts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool
from starlette.responses import Response

from ferrule.core.content import encode_json
from ferrule.core.permission import effect_tier
from ferrule.core.spec import MCPServerSpec, Tool, ToolCapability, listing_order
from ferrule.errors import (
    ToolNotFound,
)
from ferrule.server.authentication import Client
from ferrule.server.problems import Problem, json_response
from ferrule.server.services import (
    AdminClient,
    CallingClient,
    ReadingClient,
    Services,
    ServicesOfApp,
)
from ferrule.store.queries import CallFilter
from ferrule.store.record import Status, ToolCallRecord
from ferrule.store.statistics import collect_series, find_oldest_call

router = APIRouter(prefix="/v1")


def _parse_iso_time(value: Any) -> Any:
    """A number would be taken as seconds since 1970, although the API says nothing of it."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value


Moment = Annotated[datetime, BeforeValidator(_parse_iso_time)]
Limit = Annotated[int, Query(ge=1, le=1_000)]


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
    await library.engine.wait_for_pins()
    permissions = services.permissions(client)
    snapshot = library.engine.registry.snapshot()
    if query:
        await library.index.prepare(query)
        tools = [hit.tool for hit in library.index.search(query, limit, is_visible=permissions.may_find)]
    else:
        tools = sorted(filter(permissions.may_use, snapshot), key=listing_order)[:limit]
    unavailable = await library.get_unavailable_tools()
    return json_response({"tools": [_describe_tool(tool, services, client, unavailable) for tool in tools]})


@router.get("/tools/{name}", tags=["tools"])
async def show_tool(name: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """Describe a tool with the parameters of each action."""
    tool = await _find_tool(name, services, client)
    unavailable = await services.library.get_unavailable_tools()
    return json_response(_describe_tool(tool, services, client, unavailable, with_schemas=True))


@router.get("/tools/{name}/schema", tags=["tools"])
async def show_schemas(name: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """The actions of a tool as function schemas for model APIs."""
    tool = await _find_tool(name, services, client)
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


async def _find_tool(name: str, services: Services, client: Client) -> Tool:
    await services.library.engine.wait_for_pins()
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
        principals=visibility.principals,
        since=since,
        until=until,
        text=text,
        after=after,
        limit=limit,
    )
    describe = _summarize_call_record if brief else ToolCallRecord.to_dict
    return json_response({"calls": list(map(describe, records))})


@router.get("/calls/{call_id}", tags=["calls"])
async def show_call(call_id: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """The record of a call."""
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
    """Calls, failures, rejections and times over time, in equal parts: since a time, or since the oldest call."""
    store, visibility = services.library.engine.store, services.visibility(client)
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
