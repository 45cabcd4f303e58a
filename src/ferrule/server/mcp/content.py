"""The tools that an MCP client is shown, under which names, and their results, in the types of MCP."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ferrule.catalog.model_schemas import NamedAction
from ferrule.core.call import ToolExecutionResult
from ferrule.core.content import (
    Audio,
    Content,
    Image,
    Resource,
    Text,
    encode_json,
    is_nested_deeper,
    plain_json,
    replace_surrogates,
)
from ferrule.core.names import model_name
from ferrule.core.permission import CallPolicy, Principal
from ferrule.core.spec import Tool, ToolType
from ferrule.errors import FerruleError, InvalidArguments, ToolNotFound
from ferrule.kinds.mcp.listing import HANDLER, find_changed_parts
from ferrule.kinds.mcp.relay import FIRST_MODERN_VERSION
from ferrule.kinds.mcp.results import ProtocolError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.policy.policy import Policy

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ToolAnnotations
    from mcp.types import Tool as McpTool

T = TypeVar("T")

_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
"""Names the server of one connection, so it is not passed on to the next."""
CHANGED_KEY: Final = "ferrule/changed"
"""In the `_meta` of a tool: what its server has changed, and the client does not get before a person accepts it."""
MAX_DEPTH: Final = 100
"""Results that are nested deeper are sent as text only: the SDK refuses to write them."""
HIDDEN_TOOLS: Final = frozenset({"finish_task", "ask_user", "get_conversation_history", "echo"})
"""For Ferrule's own agents; a client has its own ways. They are offered only where the selection names them."""
META_TOOLS: Final = frozenset({"search_tools", "call_tool"})
MAX_HITS: Final = 50
MAX_KNOWN_PRINCIPALS: Final = 256
_SEARCH_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "what the tool should do, in a few words"},
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_HITS, "default": 10},
    },
    "required": ["query"],
}
_CALL_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "the name of the tool, as search_tools gave it"},
        "arguments": {"type": "object", "description": "what its inputSchema asks for"},
    },
    "required": ["name"],
}


class ToolNames:
    """The tools of a library that clients are shown, by the names they are shown under."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        policy: CallPolicy | None,
        tools: frozenset[str] | None,
        *,
        has_plain_names: bool,
        is_search: bool,
    ) -> None:
        """`has_plain_names`: actions of MCP servers have their own names, where these are unique.

        `is_search`: clients are shown two tools that find and call the others.
        """
        self._library, self._policy, self._tools = library, policy, tools
        self._has_plain_names, self.is_search = has_plain_names, is_search
        self._version = -1
        self._actions: dict[Principal, dict[str, NamedAction]] = {}
        self._listed: dict[Principal, list[McpTool]] = {}
        self._results: dict[tuple[Principal, str], tuple[list[McpTool], dict[str, Any]]] = {}
        """What `tools/list` is answered with, by version of the protocol, and the tools it was made of."""

    def list_tools(self, principal: Principal) -> list[McpTool]:
        if self.is_search:
            return _make_meta_tools()
        actions = self._offered_actions(principal)
        listed = self._listed.get(principal)
        if listed is None:
            listed = [make_mcp_tool(action, self._annotations(action)) for action in actions.values()]
            if principal in self._actions:
                self._listed[principal] = listed
        return listed

    def describe_tools(self, principal: Principal, version: str) -> dict[str, Any]:
        """Return the result of `tools/list` as JSON, in a version of the protocol; not to be changed."""
        from mcp.types import ListToolsResult
        from mcp_types.methods import serialize_server_result

        tools = self.list_tools(principal)
        is_older = version < FIRST_MODERN_VERSION
        earlier, result = self._results.get((principal, version), (None, {}))
        if earlier is not tools:
            fitting = fit_to_older_protocol(tools) if is_older else tools
            described = ListToolsResult(tools=fitting).model_dump(mode="json", by_alias=True, exclude_none=True)
            result = serialize_server_result("tools/list", version, described)
            if principal in self._listed:
                self._results[principal, version] = tools, result
        return result

    def resolve(self, principal: Principal, name: str) -> tuple[str, str | None]:
        """Return the tool and the action that a name stands for. Raises ToolNotFound for what is not offered."""
        if self._has_plain_names and (action := self._offered_actions(principal).get(name)) is not None:
            return action.spec.tool_id, action.capability.name
        try:
            tool_id = self._library.engine.registry.find(name, None)[0].id
        except ToolNotFound:
            return name, None
        if not self._is_offered(tool_id):
            raise ToolNotFound(f"There is no tool {name!r} here.")
        return name, None

    def find_schema(self, principal: Principal, name: str) -> Mapping[str, Any] | None:
        action = self._offered_actions(principal).get(name)
        return None if action is None else action.capability.schema_or_empty

    def is_plain(self, principal: Principal, name: str) -> bool:
        """Return whether a tool is offered none of whose arguments is repeated in a header, which the SDK compares."""
        action = self._offered_actions(principal).get(name)
        return action is not None and not action.capability.has_header_parameters

    async def search(self, principal: Principal, arguments: Mapping[str, Any]) -> CallToolResult:
        """Return the tools that fit a text best, with what is needed to call them."""
        from mcp.types import CallToolResult, TextContent

        query, limit = arguments.get("query"), arguments.get("limit", 10)
        if not isinstance(query, str) or not isinstance(limit, int):
            raise InvalidArguments('search_tools needs a "query": what the tool should do, in a few words.')
        offered = {(a.spec.tool_id, a.capability.name): a for a in self._offered_actions(principal).values()}

        def find(tool: Tool, action: str | None) -> NamedAction | None:
            capability = tool.spec.capability(action)
            return None if capability is None else offered.get((tool.id, capability.name))

        index = self._library.index
        await index.prepare(query)
        hits = []
        for hit in index.search_actions(
            query, max(1, min(limit, MAX_HITS)), is_visible=lambda tool, action: find(tool, action) is not None
        ):
            if (action := find(hit.tool, hit.action)) is not None:
                described = make_mcp_tool(action, self._annotations(action))
                hits.append(described.model_dump(mode="json", by_alias=True, exclude_none=True))
        text = encode_json(hits).decode()
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content={"tools": hits})

    def join_instructions(self, principal: Principal) -> str | None:
        """Return what the servers behind this one say about their use, and the user has accepted."""
        servers = dict.fromkeys(action.spec.tool_id for action in self._offered_actions(principal).values())
        registry = self._library.engine.registry
        texts = {
            tool.id: str(tool.spec.metadata["instructions"])
            for tool in registry
            if tool.id in servers and tool.handler == HANDLER and tool.spec.metadata.get("instructions")
        }
        if len(texts) == 1 and len(servers) == 1:
            return next(iter(texts.values()))
        return "\n\n".join(f"# {name}\n{text}" for name, text in texts.items()) or None

    def _is_offered(self, tool_id: str) -> bool:
        return tool_id not in HIDDEN_TOOLS or tool_id in (self._tools or ())

    def _offered_actions(self, principal: Principal) -> dict[str, NamedAction]:
        engine = self._library.engine
        snapshot = engine.registry.snapshot()
        if snapshot.version != self._version:
            self._version, self._actions, self._listed, self._results = snapshot.version, {}, {}, {}
        actions_before = self._actions.get(principal)
        if actions_before is not None:
            return actions_before
        permissions = engine.permissions(principal, self._policy)
        selected = self._library.select_actions(permissions)
        actions = [action for action in selected if self._is_offered(action.spec.tool_id)]
        own_names = Counter(action.capability.name if is_of_server(action) else action.name for action in actions)
        offered: dict[str, NamedAction] = {}
        for action in actions:
            if is_of_server(action):
                own_name = action.capability.name
                is_plain = self._has_plain_names and own_names[own_name] == 1
                name = own_name if is_plain else model_name(action.spec.tool_id, own_name)
                action = NamedAction(name=name, spec=action.spec, capability=action.capability)
            offered.setdefault(action.name, action)
        if type(permissions.policy) is Policy and len(self._actions) < MAX_KNOWN_PRINCIPALS:
            self._actions[principal] = offered
        return offered

    def _annotations(self, action: NamedAction) -> ToolAnnotations | None:
        """Describe what a call may do, over all tools of that name that might execute it."""
        from mcp.types import ToolAnnotations

        candidates = self._library.hub.find_by_name(action.spec.tool_id, action.capability.name)
        if is_of_server(action) and len(candidates) <= 1:  # passed on as they are
            annotations = action.capability.annotations
            return ToolAnnotations.model_validate(annotations) if annotations else None
        effects = [action.spec.effects_of(action.capability), *(candidate.effects for candidate in candidates)]
        # A hint is sent only when it is certain: without one a client must assume the worst.
        return ToolAnnotations(
            read_only_hint=all(each.read_only for each in effects) or None,
            destructive_hint=any(each.destructive for each in effects) or None,
            idempotent_hint=all(each.repeatable for each in effects) or None,
        )


def fit_to_older_protocol(tools: list[McpTool]) -> list[McpTool]:
    """Remove output schemas of lists and single values, which the older protocol does not know."""
    return [
        tool
        if tool.output_schema is None or tool.output_schema.get("type") == "object"
        else tool.model_copy(update={"output_schema": None})
        for tool in tools
    ]


def _make_meta_tools() -> list[McpTool]:
    from mcp.types import Tool as McpTool
    from mcp.types import ToolAnnotations

    return [
        McpTool(
            name="search_tools",
            description="Find tools by what they do. Call what you find with call_tool.",
            input_schema=_SEARCH_SCHEMA,
            annotations=ToolAnnotations(read_only_hint=True),
        ),
        McpTool(name="call_tool", description="Call a tool that search_tools found.", input_schema=_CALL_SCHEMA),
    ]


def make_mcp_tool(action: NamedAction, annotations: ToolAnnotations | None) -> McpTool:
    from mcp.types import Tool as McpTool

    capability, listing = action.capability, action.capability.listing
    if changed_parts := find_changed_parts(capability):
        listing = {**listing, "_meta": {**listing.get("_meta", {}), CHANGED_KEY: changed_parts}}
    is_named = action.spec.name != action.spec.tool_id
    title = listing.get("title") or (action.spec.name if is_named else None)
    return McpTool.model_validate(
        {
            **{key: listing[key] for key in ("icons", "_meta", "execution") if key in listing},
            "name": action.name,
            "title": None if title is None else replace_surrogates(title),
            "description": replace_surrogates(action.description),
            **({"description": listing["description"]} if "description" in listing else {}),
            "inputSchema": plain_json(listing.get("inputSchema", capability.schema)),
            "outputSchema": plain_json(capability.output) if is_of_server(action) else None,
            "annotations": annotations,
        }
    )


def is_of_server(action: NamedAction) -> bool:
    """Return whether results of an action are passed on as the server returns them, to match its output schema."""
    return action.spec.tool_type is ToolType.MCP_SERVER


# Results


def make_mcp_result(result: ToolExecutionResult | FerruleError) -> CallToolResult | dict[str, Any]:
    """Return the result of a call: what an MCP server returned, unchanged, or else the JSON of a result.

    A failure is a result for the model to read; an error of the protocol by a server is raised as MCPError.
    """
    if isinstance(result, ToolExecutionResult) and result.original is not None:
        from mcp.types import CallToolResult

        if isinstance(result.original, CallToolResult):
            return without_server_info(result.original)
        if isinstance(result.original, ProtocolError):
            from mcp.shared.exceptions import MCPError

            raise MCPError(code=result.original.code, message=result.original.message, data=result.original.data)
    if isinstance(result, FerruleError) or not result.is_success:
        message = str(result) if isinstance(result, FerruleError) else result.error or "The call failed."
        return {"content": [_make_text_block(message)], "isError": True}
    described: dict[str, Any] = {"content": make_content_blocks(result), "isError": False}
    if not _has_only_parts(result) and not is_nested_deeper(result.output, MAX_DEPTH):
        described["structuredContent"] = plain_json(result.output)
    return described


def fit_result_to_older_protocol(result: CallToolResult | dict[str, Any]) -> CallToolResult | dict[str, Any]:
    """Return a result whose structured content is an object, if it has any: the older protocol knows no other."""
    if isinstance(result, dict) or isinstance(result.structured_content, dict | None):
        return result
    return result.model_copy(update={"structured_content": None})


def make_content_blocks(result: ToolExecutionResult) -> list[dict[str, Any]]:
    """Return the content of a result as JSON: its parts, after its text unless it has only parts."""
    if not result.content:
        return [_make_text_block(result.text)]
    has_only_parts = _has_only_parts(result)
    parts = [part for part in result.content if has_only_parts or not isinstance(part, Text)]
    blocks = [_make_content_block(part) for part in parts]
    return blocks if has_only_parts else [_make_text_block(result.text), *blocks]


def _has_only_parts(result: ToolExecutionResult) -> bool:
    return bool(result.content) and set(result.output) == {"content"}


def _make_text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": replace_surrogates(text)}


def without_server_info(result: T) -> T:
    """Return a result without the name of the server that made it: to the client, that is this one."""
    meta: dict[str, Any] | None = getattr(result, "meta", None)
    if meta is None or _SERVER_INFO not in meta:
        return result
    others = {key: value for key, value in meta.items() if key != _SERVER_INFO}
    return result.model_copy(update={"meta": others or None})  # type: ignore[attr-defined, no-any-return]


def _make_content_block(part: Content) -> dict[str, Any]:
    match part:
        case Text():
            return _make_text_block(part.text)
        case Image() | Audio():
            kind = "image" if isinstance(part, Image) else "audio"
            return {"type": kind, "data": _encode_base64(part.data), "mimeType": part.mime_type}
        case Resource():
            uri = replace_surrogates(part.uri)
            described = {"uri": uri} if part.mime_type is None else {"uri": uri, "mimeType": part.mime_type}
            if part.text is not None:
                return {"type": "resource", "resource": {**described, "text": replace_surrogates(part.text)}}
            if part.data is not None:
                return {"type": "resource", "resource": {**described, "blob": _encode_base64(part.data)}}
            return {"type": "resource_link", "name": uri, **described}


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
