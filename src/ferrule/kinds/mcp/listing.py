"""What a server lists about itself and its actions, the tool made from that, and the listings on disk.

The SDK rejects a whole page when one entry is malformed, and checks results against the server's schemas with code that
a hostile schema can occupy without end. So the entries of a page are taken out before the SDK reads them
(`extract_entries`) and read here one by one. An entry that cannot be used hides that action only. The SDK checks no
results; `OutputChecks` does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrule.core.content import encode_json
from ferrule.core.json_schema import JsonSchema
from ferrule.core.schema_limits import BoundedValidator
from ferrule.core.spec import Effects, MCPServerSpec, Tool, ToolCapability
from ferrule.errors import ExecutionFailed, SpecError
from ferrule.kinds.mcp.config import MAX_ACTIONS, McpServerConfig, config_of_spec
from ferrule.process.checks import is_valid_value
from ferrule.store.location import atomic_write, user_cache_directory

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from mcp.shared.message import SessionMessage
    from mcp.types import CallToolResult, ListToolsResult

logger = logging.getLogger("ferrule.mcp")

HANDLER: Final = "mcp"
SOURCE: Final = "mcps"
CACHE_FORMAT: Final = 5
MAX_UNUSED_ENTRIES: Final = 1_000
"""Of one server: actions that cannot be used, or are listed again, and empty pages. After that it is asked no more."""
MAX_ENTRIES_ON_LOOP: Final = 20
"""Entries of a page that are read on the event loop; a longer page is read in a thread."""
ASSUMED_EFFECTS: Final = Effects(destructive=True, open_world=True)
"""Of an action about which nothing is claimed, or nothing that may be believed: the defaults of the protocol."""
_ENTRIES_KEY: Final = "ferrule.entries"
"""The key in the `_meta` of a page that holds its entries as JSON text. A value from the server is replaced."""
_HEADER_KEY: Final = "x-mcp-header"
"""In a schema: the SDK also sends the argument as an HTTP header."""
_PASSED_ON: Final[dict[str, type]] = {"title": str, "icons": list, "_meta": dict, "execution": dict}
"""Not used here, but shown to the clients of a server that offers the action again."""


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


async def extract_entries(message: SessionMessage, max_actions: int) -> None:
    """Move the entries of a listing into its `_meta`, where the SDK does not check them. Skip other messages."""
    result = getattr(message.message, "result", None)
    tools = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(result, dict) or not isinstance(tools, list):
        return
    tools = tools[:max_actions]
    is_short = len(tools) <= MAX_ENTRIES_ON_LOOP
    text, result["tools"] = _pack_entries(tools) if is_short else await asyncio.to_thread(_pack_entries, tools)
    meta = result.get("_meta")
    result["_meta"] = {**(meta if isinstance(meta, dict) else {}), _ENTRIES_KEY: text}


def _pack_entries(tools: list[Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the entries as JSON text, and the entries with headers, which the SDK needs."""
    with_headers = []
    for entry in tools:
        schema = entry.get("inputSchema") if isinstance(entry, dict) else None
        if not isinstance(schema, dict) or _HEADER_KEY not in str(schema) or _find_problem_of_parameters(schema):
            continue
        if isinstance(entry.get("name"), str):
            with_headers.append({"name": entry["name"], "inputSchema": {"type": "object", **schema}})
    try:
        return json.dumps(tools), with_headers
    except RecursionError:
        logger.warning("entries=<%d> | nested too deep, the page is ignored", len(tools))
        return "[]", []


async def list_actions(
    session: ClientSession, max_actions: int = MAX_ACTIONS, hide: Callable[[str], str] = str
) -> ServerListing:
    """Ask a server for all its actions, page by page. `hide` removes secrets from texts."""
    from mcp.shared.exceptions import MCPError
    from mcp.types import METHOD_NOT_FOUND, PaginatedRequestParams

    actions: dict[str, ToolCapability] = {}
    unavailable: dict[str, str] = {}
    cursor: str | None = None
    used_cursors: set[int] = set()  # a server may repeat a cursor without end; only hashes, because cursors may be long
    ttl = unused = 0
    while hash(cursor) not in used_cursors and len(actions) < max_actions and unused < MAX_UNUSED_ENTRIES:
        used_cursors.add(hash(cursor))
        try:
            page = await session.list_tools(params=None if cursor is None else PaginatedRequestParams(cursor=cursor))
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:  # a server that has only resources or prompts
                break
            raise
        entries = await asyncio.to_thread(_read_page, page, hide)
        unused += max(1, len(entries)) + len(actions)
        for capability, problem in entries:
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
    info, offers = session.server_info, ("prompts", "resources", "completions", "logging")
    return ServerListing(
        capabilities=tuple(actions.values()),
        unavailable={name: reason for name, reason in unavailable.items() if name not in actions},
        server_name=(info.title or info.name) if info is not None else "",
        server_version=info.version if info is not None else "",
        protocol_version=session.protocol_version or "",
        instructions=hide(session.instructions or ""),
        offers=tuple(name for name in offers if getattr(session.server_capabilities, name, None) is not None),
        ttl=ttl / 1000 if ttl else None,
    )


def _read_page(page: ListToolsResult, hide: Callable[[str], str]) -> list[tuple[ToolCapability, str]]:
    """Return the actions of a page, each with the reason why it cannot be used."""
    entries = json.loads((page.meta or {}).get(_ENTRIES_KEY, "[]"))
    accepted = {tool.name for tool in page.tools}  # of the entries with headers: the SDK removes wrong ones
    actions = [read_entry(entry, number, hide) for number, entry in enumerate(entries, 1)]
    return [
        (action, problem)
        for action, problem in actions
        if action.name in accepted or problem or _HEADER_KEY not in str(action.parameters)
    ]


def read_entry(entry: Any, number: int, hide: Callable[[str], str] = str) -> tuple[ToolCapability, str]:
    """Return an entry of a listing as an action, and the reason why the action cannot be used, if there is one."""
    entry = entry if isinstance(entry, dict) else {}
    name = entry.get("name")
    if isinstance(name, str) and name:
        problem = _find_problem_of_parameters(entry.get("inputSchema"))
    else:
        name, problem = f"number {number}", "it has no name"
    schema = {"type": "object", **({} if problem else entry["inputSchema"])}
    parameters = schema
    if not schema.keys() & {"properties", "$ref", "allOf", "anyOf", "oneOf", "additionalProperties"}:
        parameters = {**schema, "additionalProperties": True}  # a schema that describes no arguments allows any
    output = entry.get("outputSchema")
    if output is not None and (output_problem := _find_problem(output, "outputSchema")):
        logger.warning("action=<%s> | its results are not checked: %s", name, output_problem)
        output = None
    annotations = entry["annotations"] if isinstance(entry.get("annotations"), dict) else {}
    unused = {key: entry[key] for key, kind in _PASSED_ON.items() if isinstance(entry.get(key), kind)}
    title = unused.get("title") or annotations.get("title")
    description = entry["description"] if isinstance(entry.get("description"), str) else None
    if not description:  # instead of which models get something else
        unused["description"] = description
    if parameters is not schema:
        unused["inputSchema"] = schema
    capability = ToolCapability(
        name=name,
        description=hide(description or (title if isinstance(title, str) else "")),
        parameters=parameters,
        fills_defaults=False,
        output=output,
        annotations=annotations,
        listing=unused,
    )
    return capability, problem


def _find_problem_of_parameters(schema: Any) -> str:
    if isinstance(schema, dict) and schema.get("type", "object") != "object":
        return f'its inputSchema has the type {str(schema["type"])[:50]!r} instead of "object"'
    return _find_problem(schema, "inputSchema")


def _find_problem(schema: Any, key: str) -> str:
    """Return why a schema cannot be used, or an empty text."""
    if not isinstance(schema, dict):
        return f"its {key} is not an object"
    try:
        BoundedValidator(schema)
    except SpecError as error:
        return f"its {key} cannot be used: {error}"
    except ValueError as error:
        return f"its {key} is not a valid JSON Schema: {str(error).partition(chr(10))[0][:200]}"
    return ""


def read_claimed_effects(annotations: Mapping[str, Any]) -> Effects:
    """Return the effects that a server claims. What the server does not mention has the default of the protocol."""
    read_only = annotations.get("readOnlyHint") is True
    return Effects(
        read_only=read_only,
        idempotent=annotations.get("idempotentHint") is True,
        destructive=not read_only and annotations.get("destructiveHint") is not False,
        open_world=annotations.get("openWorldHint") is not False,
    )


# The tool of a server


def make_server_tool(name: str, config: McpServerConfig, *, origin: str, listing: ServerListing | None) -> Tool:
    """Make the tool for an entry of a file, with the actions that the server listed last time, if it ever did."""
    spec = MCPServerSpec(
        tool_id=name,
        description=f"The MCP server {name!r}. It has not listed its actions yet: it does when it is first connected.",
        enabled=not config.disabled,
        tags=list(config.tags),
        limits=config.limits_of(),
        endpoint="" if config.url is None else config.location,
        server_config=config.public_summary(),
        metadata={"listed": False, "config_digest": config.digest},
    )
    tool = Tool(spec=spec, handler=HANDLER, target=config, source=SOURCE, origin=origin)
    return tool if listing is None else apply_listing(tool, listing)


def make_tool_of_server_spec(spec: MCPServerSpec) -> Tool:
    """Make the tool for a server that a program describes. Raises SpecError if its address or program is missing."""
    config = config_of_spec(spec)
    path = config.env.get("PATH") or os.environ.get("PATH", "")
    program = os.path.join(config.cwd or "", config.command or "") if "/" in (config.command or "") else config.command
    if program and "$" not in program + path and shutil.which(program, path=path) is None:
        raise SpecError(
            f"MCP server {spec.tool_id!r}: the program {config.command!r} was not found: "
            "install it, or write its full path"
        )
    if spec.effects == Effects():  # nothing is promised, and a server that promises nothing may do anything
        spec = replace(spec, effects=ASSUMED_EFFECTS)
    if spec.limits.max_timeout is None:
        spec = replace(spec, limits=replace(spec.limits, max_timeout=config.limits_of().max_timeout))
    if not spec.capabilities:  # the server is asked for them
        spec = replace(spec, metadata={**spec.metadata, "listed": False})
    return Tool(spec=spec, handler=HANDLER, target=config, source=SOURCE, origin=config.location)


def apply_listing(tool: Tool, listing: ServerListing) -> Tool:
    """Return the tool with the actions its server lists. What a program declared about actions is kept."""
    config = _config_of(tool)
    declared = {capability.name: capability for capability in tool.spec.capabilities}
    changes: dict[str, Any] = {
        "capabilities": [_merge(action, config, declared.get(action.name)) for action in listing.capabilities],
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
    """Return the instructions of a server, which the user may not have accepted."""
    return str(tool.spec.metadata.get("listed_instructions", ""))


def with_instructions(tool: Tool, text: str) -> Tool:
    """Return the tool of a server with the instructions that models and clients get."""
    spec = tool.spec
    # Without instructions not by the name that the server gives itself: no person has accepted that name.
    description = (text or f"The MCP server {tool.id!r}.") if _is_from_file(tool) else spec.description
    if spec.metadata.get("instructions") == text and spec.description == description:
        return tool
    metadata = {**spec.metadata, "instructions": text}
    return replace(tool, spec=replace(spec, description=description, metadata=metadata))


def _is_from_file(tool: Tool) -> bool:
    """Return whether an entry of a file describes the server. Such an entry has no description."""
    return "config_digest" in tool.spec.metadata


def pinned_parts(action: ToolCapability) -> dict[str, Any]:
    """Return what the user accepts of an action: everything from its server that models or clients get."""
    return {name: getattr(action, name) for name in ("description", "parameters", "output", "annotations", "listing")}


def with_accepted_parts(tool: Tool, listed: ToolCapability, parts: Mapping[str, Any], changes: str) -> ToolCapability:
    """Return an action as the user accepted it, with what the server lists instead, and how that differs."""
    effects = _choose_effects(parts["annotations"], _config_of(tool))
    return replace(listed, **parts, effects=effects, changes=changes, listed=listed)


def find_changed_parts(action: ToolCapability) -> list[str]:
    """Return what a server has changed in an accepted action, by the names of the protocol."""
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


def _merge(action: ToolCapability, config: McpServerConfig, declared: ToolCapability | None) -> ToolCapability:
    """Return a listed action with what its server's entry and a program say about it."""
    action = replace(
        action,
        effects=_choose_effects(action.annotations, config),
        auto_approve=not config.auto_approve.isdisjoint((action.name, "*")),
        tags=list(config.action_tags.get(action.name, ())),
        limits=config.limits_of(action.name) if action.name in config.action_max_timeouts else action.limits,
    )
    if declared is None:
        return action
    return replace(
        action,
        description=action.description or declared.description,
        examples=declared.examples,
        category=declared.category,
        tags=declared.tags or action.tags,
        limits=declared.limits or action.limits,
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
            if document.pop("format") != CACHE_FORMAT:
                return None
            for values in document["capabilities"]:
                effects = values["effects"]
                values |= {"effects": None if effects is None else Effects(**effects), "limits": None}
            capabilities = tuple(ToolCapability(**values) for values in document["capabilities"])
            return ServerListing(**{**document, "capabilities": capabilities, "offers": tuple(document["offers"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
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


# Results


class OutputChecks:
    """Checks of the structured content of results against what the actions declare."""

    def __init__(self) -> None:
        self._validators: dict[str, tuple[JsonSchema, BoundedValidator]] = {}

    async def check(self, capability: ToolCapability, result: CallToolResult) -> None:
        """Raise ExecutionFailed for a result that is not what the action declares."""
        schema, content = capability.output, result.structured_content
        if schema is None or result.is_error:
            return
        if content is None:
            raise ExecutionFailed("it declares an output schema but returned no structured content")
        entry = self._validators.get(capability.name)
        if entry is None or entry[0] is not schema:
            try:
                entry = schema, BoundedValidator(schema)
            except (SpecError, ValueError):  # declared in a program, or stored by an earlier version
                return
            self._validators[capability.name] = entry
        checks = entry[1]
        is_short = checks.permits(content)
        if checks.is_valid(content) if is_short else await is_valid_value(schema, content):
            return
        can_explain = is_short and checks.cost.permits_explanation(content)
        reason = next(checks.validator.iter_errors(content)).message[:300] if can_explain else ""
        raise ExecutionFailed(f"its structured content does not match its output schema: {reason}".rstrip(": "))
