"""The HTTP API of the MCP servers that are tools here: how they are doing, and what of them was accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from ferrule.core.spec import Tool, ToolCapability
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
from ferrule.server.problems import Problem, json_response
from ferrule.server.services import AdminClient, ReadingClient, Services, ServicesOfApp

router = APIRouter(prefix="/v1", tags=["tools"])


@router.get("/servers")
async def list_servers(services: ServicesOfApp, client: ReadingClient) -> Response:
    """List the MCP servers of which the client may use an action; for administrators, also those that failed."""
    servers = [tool for tool in services.library.engine.registry if _is_visible(tool, services, client)]
    return json_response({"servers": [await _describe_server(tool, services, client) for tool in servers]})


@router.get("/servers/{name}")
async def show_server(name: str, services: ServicesOfApp, client: ReadingClient) -> Response:
    """How an MCP server is doing, with what it has changed since its actions were accepted.

    Its log, its address and the pinned texts are for administrators of all tenants.
    """
    tool, store = _find_server(name, services, client), services.library.engine.store
    described = await _describe_server(tool, services, client)
    if _may_administer(client):
        pins = await read_pins(store, tool.id)
        described |= {
            "log": list(services.library.engine.mcp.describe_state(tool.id).log),
            "location": config_of_tool(tool).location,
            "is_pinned": pins.is_known,
            "pins": [
                {"action": action, "text": store.redaction.redact_text(pin.text)}
                for action, pin in sorted(_collect_texts(pins).items())
            ],
            "removed": sorted(pins.actions.keys() - {each.name for each in tool.spec.capabilities}),
        }
    return json_response(described)


async def _describe_server(tool: Tool, services: Services, client: Client) -> dict[str, Any]:
    engine, permissions = services.library.engine, services.permissions(client)
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


def _collect_texts(pins: ServerPins) -> dict[str, PinnedText]:
    if pins.instructions is None or not pins.instructions.text:
        return dict(pins.actions)
    return {INSTRUCTIONS: pins.instructions, **pins.actions}


def _names_of_parts(tool: Tool, capabilities: Sequence[ToolCapability]) -> list[str]:
    """The names of what can be accepted of a server: nothing while it has not been listed."""
    return [INSTRUCTIONS, *(each.name for each in capabilities)] if tool.spec.metadata.get("listed") else []


def _find_diffs(tool: Tool, names: Sequence[str], pins: ServerPins) -> dict[str, str]:
    """How what has these names differs from what was accepted: actions, and the instructions under an empty name."""
    diffs = {each.name: find_changes(tool.id, each, pins) for each in tool.spec.capabilities if each.name in names}
    if INSTRUCTIONS in names:
        diffs[INSTRUCTIONS] = find_instructions_changes(tool.id, listed_instructions(tool), pins)
    return diffs


class Acceptance(BaseModel):
    """What is accepted of a server."""

    model_config = ConfigDict(extra="forbid")
    action: str | None = None
    """An empty text: the instructions of the server. None: these and all its actions, as they are now."""
    diff: str | None = None
    """What was shown of the action: it is accepted only if that is still what has changed."""


@router.post("/servers/{name}/accept")
async def accept_changes(name: str, body: Acceptance, services: ServicesOfApp, client: AdminClient) -> Response:
    """Accept what a server has changed, so that models and clients get it."""
    if not client.sees_all_tenants:
        raise Problem(403, "All tenants use the same servers: accepting changes needs an admin without a tenant.")
    tool, store = _find_server(name, services, client), services.library.engine.store
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
    tools = services.library.engine.registry.candidates(name)
    tool = next((each for each in tools if _is_visible(each, services, client)), None)
    if tool is None:
        raise Problem(404, f"There is no MCP server {name!r}.")
    return tool


def _is_visible(tool: Tool, services: Services, client: Client) -> bool:
    return tool.handler == HANDLER and (_may_administer(client) or services.permissions(client).may_use(tool))


def _may_administer(client: Client) -> bool:
    return client.may("administer") and client.sees_all_tenants
