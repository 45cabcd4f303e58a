"""What a server lists about itself and its actions, the tool made from that, and the listings on disk."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrule.core.content import encode_json
from ferrule.core.spec import Effects, Limits, MCPServerSpec, Tool, ToolCapability
from ferrule.kinds.mcp.config import MAX_ACTIONS, McpServerConfig, config_of_spec
from ferrule.kinds.mcp.listing_checks import ENTRIES_KEY, PageEntries, run_in_thread_if_many
from ferrule.store.location import atomic_write, user_cache_directory

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from mcp.types import ListToolsResult

logger = logging.getLogger("ferrule.mcp")

HANDLER: Final = "mcp"
SOURCE: Final = "mcps"
CACHE_FORMAT: Final = 5
MAX_UNUSED_ENTRIES: Final = 1_000
"""Of one server: actions that cannot be used, or are listed again, and empty pages. After that it is asked no more."""
ASSUMED_EFFECTS: Final = Effects(destructive=True, open_world=True)
"""Of an action about which nothing is claimed, or nothing that may be believed: the defaults of the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerListing:
    """What a server says about itself, and its actions."""

    capabilities: tuple[ToolCapability, ...] = ()
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Actions that cannot be used, each with the reason."""
    server_name: str = ""
    server_version: str = ""
    protocol_version: str = ""
    instructions: str = ""
    """How to use the server, in its own words."""
    offers: tuple[str, ...] = ()
    """What it has besides actions: `prompts`, `resources`, `completions`, `logging`."""
    ttl: float | None = None
    """Seconds the listing stays valid, if the server says so."""


# Asking a server


async def list_actions(
    session: ClientSession, max_actions: int = MAX_ACTIONS, hide: Callable[[str], str] = str
) -> ServerListing:
    """Ask a server for all its actions, page by page. `hide` removes secrets from texts."""
    from mcp.types import PaginatedRequestParams

    actions: dict[str, ToolCapability] = {}
    unavailable: dict[str, str] = {}
    cursor: str | None = None
    used_cursors: set[int] = set()  # a server may return the same cursor for ever; only hashes, for they may be long
    ttl = unused = 0
    while hash(cursor) not in used_cursors and len(actions) < max_actions and unused < MAX_UNUSED_ENTRIES:
        used_cursors.add(hash(cursor))
        page = await _list_page(session, None if cursor is None else PaginatedRequestParams(cursor=cursor))
        if page is None:
            break
        unused += max(1, len(_entries_of(page))) + len(actions)
        for capability, problem in await run_in_thread_if_many(
            len(_entries_of(page)), partial(_convert_page, hide), page
        ):
            if capability.name in actions:
                logger.warning("action=<%s> | listed twice, the first one is used", capability.name)
            elif problem:
                unavailable[capability.name] = problem
            elif len(actions) < max_actions:
                actions[capability.name] = capability
        unused -= len(actions)
        ttl = page.ttl_ms
        if not page.next_cursor:
            break
        cursor = page.next_cursor
    if len(actions) == max_actions or unused >= MAX_UNUSED_ENTRIES:
        logger.warning("actions=<%d> | the server may list more, which are ignored", len(actions))
    info = session.server_info
    return ServerListing(
        capabilities=tuple(actions.values()),
        unavailable={name: reason for name, reason in unavailable.items() if name not in actions},
        server_name=(info.title or info.name) if info is not None else "",
        server_version=info.version if info is not None else "",
        protocol_version=session.protocol_version or "",
        instructions=hide(session.instructions or ""),
        offers=_read_offers(session.server_capabilities),
        ttl=ttl / 1000 if ttl else None,
    )


def _read_offers(capabilities: Any) -> tuple[str, ...]:
    names = ("prompts", "resources", "completions", "logging")
    return tuple(name for name in names if getattr(capabilities, name, None) is not None)


def _convert_page(hide: Callable[[str], str], page: ListToolsResult) -> list[tuple[ToolCapability, str]]:
    """The actions of a page, as `listing_checks` has read them, each with the reason why it cannot be used."""
    accepted = {tool.name for tool in page.tools}  # of those with headers: the SDK removes wrong ones
    entries = _entries_of(page)
    usable = [each for each in entries if not each["headers"] or each["name"] in accepted]
    return [(convert_entry(each, hide), each.get("unavailable", "")) for each in usable]


def _entries_of(page: ListToolsResult) -> Sequence[Mapping[str, Any]]:
    page_entries = (page.meta or {}).get(ENTRIES_KEY)
    return page_entries.entries if isinstance(page_entries, PageEntries) else ()


def convert_entry(entry: Mapping[str, Any], hide: Callable[[str], str] = str) -> ToolCapability:
    """An entry of a listing as an action."""
    annotations = entry.get("annotations", {})
    title = entry.get("title") or annotations.get("title")
    return ToolCapability(
        name=entry["name"],
        description=hide(entry.get("description") or (title if isinstance(title, str) else "")),
        parameters=_normalize_parameters(entry["inputSchema"]),
        fills_defaults=False,
        output=entry.get("outputSchema"),
        annotations=annotations,
        listing=_unused_fields(entry),
    )


def _unused_fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What an action has no field for, and the schema where it was changed to be usable."""
    unused = {key: entry[key] for key in ("title", "icons", "_meta", "execution") if key in entry}
    if not entry.get("description"):  # instead of which models get something else
        unused["description"] = entry.get("description")
    if _normalize_parameters(entry["inputSchema"]) != entry["inputSchema"]:
        unused["inputSchema"] = entry["inputSchema"]
    return unused


async def _list_page(session: ClientSession, params: Any) -> Any:
    from mcp.shared.exceptions import MCPError
    from mcp.types import METHOD_NOT_FOUND

    try:
        return await session.list_tools(params=params)
    except MCPError as error:
        if error.code == METHOD_NOT_FOUND:  # a server that has only resources or prompts
            return None
        raise


def _normalize_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    if not schema.keys() & {"properties", "$ref", "allOf", "anyOf", "oneOf", "additionalProperties"}:
        schema = {**schema, "additionalProperties": True}  # a schema that describes no arguments allows any
    # Without a type it would be read as our short notation of parameters.
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


def read_claimed_effects(annotations: Mapping[str, Any]) -> Effects:
    """The effects that a server claims. What it does not mention has the default of the protocol."""
    read_only = annotations.get("readOnlyHint") is True
    return Effects(
        read_only=read_only,
        idempotent=annotations.get("idempotentHint") is True,
        destructive=not read_only and annotations.get("destructiveHint") is not False,
        open_world=annotations.get("openWorldHint") is not False,
    )


# The tool of a server


def make_server_tool(name: str, config: McpServerConfig, *, origin: str, listing: ServerListing | None) -> Tool:
    """The tool for an entry of a file, with the actions that the server listed last time, if it ever did."""
    spec = MCPServerSpec(
        tool_id=name,
        description=f"The MCP server {name!r}. It has not listed its actions yet: it does when it is first connected.",
        enabled=not config.disabled,
        tags=list(config.tags),
        limits=Limits(timeout=config.timeout),
        endpoint="" if config.url is None else config.location,
        server_config=config.public_summary(),
        metadata={"listed": False, "config_digest": config.digest},
    )
    tool = Tool(spec=spec, handler=HANDLER, target=config, source=SOURCE, origin=origin)
    return tool if listing is None else apply_listing(tool, listing)


def make_tool_of_server_spec(spec: MCPServerSpec) -> Tool:
    """The tool for a server that a program describes; SpecError when it does not say how to reach it."""
    config = config_of_spec(spec)
    if spec.effects == Effects():  # nothing is promised, and a server that promises nothing may do anything
        spec = replace(spec, effects=ASSUMED_EFFECTS)
    if not spec.capabilities:  # the server is asked for them
        spec = replace(spec, metadata={**spec.metadata, "listed": False})
    return Tool(spec=spec, handler=HANDLER, target=config, source=SOURCE, origin=config.location)


def apply_listing(tool: Tool, listing: ServerListing) -> Tool:
    """The tool with the actions its server lists; what a program declared about them and the tool is kept."""
    config = _config_of(tool)
    declared = {capability.name: capability for capability in tool.spec.capabilities}
    changes: dict[str, Any] = {
        "capabilities": [
            _merge_declared(_with_entry_settings(action, config), declared.get(action.name))
            for action in listing.capabilities
        ],
        "unavailable_actions": dict(listing.unavailable),
        "metadata": {
            **tool.spec.metadata,
            "listed": True,
            "protocol_version": listing.protocol_version,
            "offers": list(listing.offers),
            "listed_instructions": listing.instructions,
        },
    }
    if _is_from_file(tool):
        changes["version"] = listing.server_version or tool.spec.version
    return with_instructions(replace(tool, spec=replace(tool.spec, **changes)), listing.instructions)


def listed_instructions(tool: Tool) -> str:
    """How to use a server in its own words, which the user may not have accepted."""
    return str(tool.spec.metadata.get("listed_instructions", ""))


def with_instructions(tool: Tool, text: str) -> Tool:
    """The tool of a server with the instructions that models and clients get."""
    spec = tool.spec
    # Without instructions not by the name that the server gives itself: nobody has accepted that.
    description = (text or f"The MCP server {tool.id!r}.") if _is_from_file(tool) else spec.description
    if spec.metadata.get("instructions") == text and spec.description == description:
        return tool
    metadata = {**spec.metadata, "instructions": text}
    return replace(tool, spec=replace(spec, description=description, metadata=metadata))


def _is_from_file(tool: Tool) -> bool:
    """Whether an entry of a file describes the server; it has no description."""
    return "config_digest" in tool.spec.metadata


def pinned_parts(action: ToolCapability) -> dict[str, Any]:
    """What the user accepts of an action: everything that its server says of it and that models or clients get."""
    return {name: getattr(action, name) for name in ("description", "parameters", "output", "annotations", "listing")}


def with_accepted_parts(tool: Tool, listed: ToolCapability, parts: Mapping[str, Any], changes: str) -> ToolCapability:
    """An action of a server as the user accepted it, with what the server lists instead, and how that differs."""
    effects = _choose_effects(parts["annotations"], _config_of(tool))
    return replace(listed, **parts, effects=effects, changes=changes, listed=listed)


def find_changed_parts(action: ToolCapability) -> list[str]:
    """What a server has changed in an action that is as the user accepted it, by the names of the protocol."""
    if action.listed is None:
        return []
    before, after = ({**parts, **parts["listing"]} for parts in map(pinned_parts, (action, action.listed)))
    names = {"parameters": "inputSchema", "output": "outputSchema"}
    changed = (key for key in {**before, **after} if key != "listing" and before.get(key) != after.get(key))
    return sorted({names.get(key, key) for key in changed})


def _config_of(tool: Tool) -> McpServerConfig:
    return tool.target if isinstance(tool.target, McpServerConfig) else McpServerConfig()


def _choose_effects(annotations: Mapping[str, Any], config: McpServerConfig) -> Effects:
    return read_claimed_effects(annotations) if config.trusted else ASSUMED_EFFECTS


def _with_entry_settings(action: ToolCapability, config: McpServerConfig) -> ToolCapability:
    return replace(
        action,
        effects=_choose_effects(action.annotations, config),
        auto_approve=not config.auto_approve.isdisjoint((action.name, "*")),
        tags=list(config.action_tags.get(action.name, ())),
    )


def _merge_declared(action: ToolCapability, declared: ToolCapability | None) -> ToolCapability:
    if declared is None:
        return action
    return replace(
        action,
        description=action.description or declared.description,
        examples=declared.examples,
        category=declared.category,
        tags=declared.tags or action.tags,
        limits=declared.limits,
    )


# Listings on disk


class ListingCache:
    """What servers listed last time: their actions can be shown without starting them.

    One file for each server and each digest of its entry. A file that cannot be read counts as absent; one that cannot
    be written is logged, and the server is asked again next time.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory if directory is not None else user_cache_directory("mcp")

    def read(self, name: str, digest: str) -> ServerListing | None:
        try:
            document = json.loads(self._path(name, digest).read_bytes())
            return _decode_listing(document) if document["format"] == CACHE_FORMAT else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, name: str, digest: str, listing: ServerListing) -> None:
        path = self._path(name, digest)
        capabilities = [{f.name: getattr(c, f.name) for f in fields(c)} for c in listing.capabilities]
        content = encode_json({"format": CACHE_FORMAT, **asdict(listing), "capabilities": capabilities})
        try:
            if path.exists() and path.read_bytes() == content:
                return
            atomic_write(path, content)
        except OSError as error:
            logger.warning("path=<%s> | the listing of a server could not be written: %s", path, error)

    def _path(self, name: str, digest: str) -> Path:
        return self.directory / f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:40]}-{digest}.json"


def _decode_listing(document: dict[str, Any]) -> ServerListing:
    values = {field.name: document[field.name] for field in fields(ServerListing) if field.name in document}
    capabilities = tuple(map(_decode_capability, document["capabilities"]))
    return ServerListing(**{**values, "capabilities": capabilities, "offers": tuple(document["offers"])})


def _decode_capability(values: dict[str, Any]) -> ToolCapability:
    effects = values.get("effects")
    return ToolCapability(**{**values, "effects": None if effects is None else Effects(**effects), "limits": None})
