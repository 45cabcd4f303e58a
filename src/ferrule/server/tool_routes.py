"""The HTTP API of tools and of the MCP servers among them: listing, adding, and accepting what a server has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field, StrictBool
from starlette.responses import Response

from ferrule.core.content import encode_json
from ferrule.core.permission import effect_tier
from ferrule.core.spec import MCPServerSpec, Tool, ToolCapability, listing_order
from ferrule.errors import SetupError, ToolNotFound
from ferrule.kinds.mcp.executor import config_of_tool
from ferrule.kinds.mcp.listing import HANDLER, listed_instructions
from ferrule.kinds.mcp.pins import (
    INSTRUCTIONS,
    PinnedText,
    ServerPins,
    find_changes,
    find_instructions_changes,
    read_pins,
    write_pins,
)
from ferrule.server.authentication import Client
from ferrule.server.responses import Problem, json_response
from ferrule.server.services import AdminClient, Limit, ReadingClient, RequestBody, Services, ServicesOfApp

router = APIRouter(prefix="/v1")


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
    """Return the actions of a tool as function schemas for model APIs."""
    tool = await _find_tool(name, services, client)
    permissions = services.permissions(client)
    actions = services.library.descriptions.actions_by_name([tool])
    permitted = [action.openai_schema for action in actions if permissions.may_call(tool, action.capability)]
    return json_response({"schemas": permitted})


class ToolChange(RequestBody):
    """A change of a tool on this server, until it is restarted."""

    enabled: StrictBool


@router.patch("/tools/{name}", tags=["tools"])
async def change_tool(name: str, change: ToolChange, services: ServicesOfApp, client: AdminClient) -> Response:
    """Enable or disable a tool on this server."""
    registry = services.engine.registry
    if name not in registry:
        raise Problem(404, f"There is no tool {name!r}.")
    if not client.sees_all_tenants:
        raise Problem(403, "All tenants use the same tools: changing one needs an admin without a tenant.")
    (registry.enable if change.enabled else registry.disable)(name)
    await services.audit.write(client.principal, "enable_tool" if change.enabled else "disable_tool", name)
    return json_response({"tool_id": name, "enabled": change.enabled})


class RegisteredMcpServer(RequestBody):
    """An MCP server that is reached by an address. Programs are started by `mcp.json` alone."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    url: Annotated[str, Field(pattern=r"^(https?|wss?)://[^${}]+$", max_length=2_000)]
    headers: dict[str, Annotated[str, Field(pattern=r"^[^${}\r\n]*$")]] = {}
    description: str = ""


class OpenApiDocumentEntry(RequestBody):
    """An API that an OpenAPI document describes."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    source: Annotated[str, Field(pattern=r"^https?://", max_length=2_000)] | dict[str, Any]
    """The address of the document, or the document."""
    server: Annotated[str, Field(pattern=r"^https?://", max_length=2_000)] | None = None
    operations: list[str] | None = None
    """The only ones to offer."""


class McpServerRegistration(RequestBody):
    """An MCP server to add on this server, until it is restarted."""

    mcp: RegisteredMcpServer


class OpenApiRegistration(RequestBody):
    """An API to add on this server, until it is restarted."""

    openapi: OpenApiDocumentEntry


@router.post("/tools", tags=["tools"], status_code=201)
async def register_tool(
    entry: McpServerRegistration | OpenApiRegistration, services: ServicesOfApp, client: AdminClient
) -> Response:
    """Add an MCP server or an API."""
    if not client.sees_all_tenants:
        raise Problem(403, "All tenants use the same tools: adding one needs an admin without a tenant.")
    name = entry.mcp.name if isinstance(entry, McpServerRegistration) else entry.openapi.name
    if name in services.engine.registry:
        raise Problem(409, f"There is already a tool {name!r}.")
    if isinstance(entry, McpServerRegistration):
        spec = MCPServerSpec(
            tool_id=name,
            description=entry.mcp.description,
            endpoint=entry.mcp.url,
            connection_params={"headers": entry.mcp.headers},
        )
        result = await services.library.register_mcp_server(spec)
        if not result.success:
            raise Problem(422, result.error or "The tool could not be added.")
    else:
        document = entry.openapi
        source = document.source if isinstance(document.source, str) else encode_json(document.source).decode()
        options = {"name": name, "server": document.server, "operations": document.operations}
        try:
            await services.library.register_openapi(source, **options)
        except SetupError as error:
            raise Problem(422, str(error)) from None
    await services.audit.write(client.principal, "register_tool", name)
    return json_response({"tool_id": name}, 201)


async def _find_tool(name: str, services: Services, client: Client) -> Tool:
    await services.engine.wait_for_pins()
    try:
        return services.permissions(client).find_tool(services.engine.registry.snapshot(), name)
    except ToolNotFound as error:
        raise Problem(404, str(error)) from None


def _describe_tool(
    tool: Tool, services: Services, client: Client, unavailable: Mapping[str, str], *, with_schemas: bool = False
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


servers_router = APIRouter(prefix="/v1", tags=["tools"])


@servers_router.get("/servers")
async def list_servers(services: ServicesOfApp, client: ReadingClient) -> Response:
    """List the MCP servers of which the client may use an action; for administrators, also those that failed."""
    servers = [tool for tool in services.engine.registry if _is_visible(tool, services, client)]
    return json_response({"servers": [await _describe_server(tool, services, client) for tool in servers]})


@servers_router.get("/servers/{name}")
async def show_server(name: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """Return how an MCP server is doing, with what it has changed since its actions were accepted.

    Its log, its address and the pinned texts are for administrators of all tenants.
    """
    tool, store = _find_server(name, services, client), services.store
    described = await _describe_server(tool, services, client)
    if _may_administer(client):
        pins = await read_pins(store, tool.id)
        texts: dict[str, PinnedText] = dict(pins.actions)
        if pins.instructions is not None and pins.instructions.text:
            texts[INSTRUCTIONS] = pins.instructions
        described |= {
            "log": list(services.engine.mcp.describe_state(tool.id).log),
            "location": config_of_tool(tool).location,
            "is_pinned": pins.is_known,
            "pins": [
                {"action": action, "text": store.redaction.redact_text(pin.text)}
                for action, pin in sorted(texts.items())
            ],
            "removed": sorted(pins.actions.keys() - {each.name for each in tool.spec.capabilities}),
        }
    return json_response(described)


async def _describe_server(tool: Tool, services: Services, client: Client) -> dict[str, Any]:
    engine, permissions = services.engine, services.permissions(client)
    state = engine.mcp.describe_state(tool.id)
    is_shown = permissions.may_call if not _may_administer(client) else lambda *_: True  # also what is withheld
    capabilities = [each for each in tool.spec.capabilities if is_shown(tool, each)]
    error = state.error or engine.explain_missing_listing(tool.id) or ""
    pins = await read_pins(engine.store, tool.id)  # the engine reads them when the server is first used
    diffs = _find_diffs(tool, _names_of_parts(tool, capabilities), pins)
    return {
        "tool_id": tool.id,
        "state": "disabled" if not tool.spec.enabled else "failed" if error else state.state,
        "error": error if _may_administer(client) else "",
        "is_listed": tool.spec.metadata.get("listed") is not False,
        "protocol_version": tool.spec.metadata.get("protocol_version"),
        "actions": len(capabilities),
        "changes": [{"action": action, "diff": diff} for action, diff in diffs.items() if diff],
    }


def _names_of_parts(tool: Tool, capabilities: Sequence[ToolCapability]) -> list[str]:
    """Return the names of what can be accepted of a server: nothing while it has not been listed."""
    return [INSTRUCTIONS, *(each.name for each in capabilities)] if tool.spec.metadata.get("listed") else []


def _find_diffs(tool: Tool, names: Sequence[str], pins: ServerPins) -> dict[str, str]:
    """Return the differences from what was accepted, by action; an empty name stands for the instructions."""
    diffs = {each.name: find_changes(tool.id, each, pins) for each in tool.spec.capabilities if each.name in names}
    if INSTRUCTIONS in names:
        diffs[INSTRUCTIONS] = find_instructions_changes(tool.id, listed_instructions(tool), pins)
    return diffs


class Acceptance(RequestBody):
    """What is accepted of a server."""

    action: str | None = None
    """An empty text: the instructions of the server. None: these and all its actions, as they are now."""
    diff: str | None = None
    """What was shown of the action: it is accepted only if that is still what has changed."""


@servers_router.post("/servers/{name}/accept")
async def accept_changes(name: str, body: Acceptance, services: ServicesOfApp, client: AdminClient) -> Response:
    """Accept what a server has changed, so that models and clients get it."""
    if not client.sees_all_tenants:
        raise Problem(403, "All tenants use the same servers: accepting changes needs an admin without a tenant.")
    tool, store = _find_server(name, services, client), services.store
    names = [each for each in _names_of_parts(tool, tool.spec.capabilities) if body.action in (None, each)]
    if not names:
        raise Problem(404, f"The server {name!r} lists no action {body.action!r}.")
    pins = await read_pins(store, tool.id)
    if pins.problem:
        raise Problem(503, f"What was accepted of {name!r} cannot be read: {pins.problem}.")
    diffs = _find_diffs(tool, names, pins)
    if body.diff is not None and list(diffs.values()) != [body.diff]:
        subject = f"The action {body.action!r} has" if body.action else "The instructions have"
        raise Problem(409, f"{subject} changed again meanwhile. Look once more.")
    capabilities = [each for each in tool.spec.capabilities if each.name in names]
    instructions = listed_instructions(tool) if INSTRUCTIONS in names else None
    await asyncio.to_thread(write_pins, store, tool.id, capabilities, pins, instructions=instructions)
    await store.flush()
    accepted = [each for each, diff in diffs.items() if diff]
    await services.audit.write(client.principal, "accept_changes", tool.id, actions=accepted)
    return json_response({"tool_id": tool.id, "accepted": accepted})


def _find_server(name: str, services: Services, client: Client) -> Tool:
    tools = services.engine.registry.candidates(name)
    tool = next((each for each in tools if _is_visible(each, services, client)), None)
    if tool is None:
        raise Problem(404, f"There is no MCP server {name!r}.")
    return tool


def _is_visible(tool: Tool, services: Services, client: Client) -> bool:
    return tool.handler == HANDLER and (_may_administer(client) or services.permissions(client).may_use(tool))


def _may_administer(client: Client) -> bool:
    return client.may("administer") and client.sees_all_tenants
