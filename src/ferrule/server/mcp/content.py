"""Tools and results in the types of MCP."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ferrule.catalog.model_schemas import NamedAction
from ferrule.core.call import ToolExecutionResult
from ferrule.core.content import (
    Audio,
    Content,
    Image,
    Resource,
    Text,
    as_text,
    is_nested_deeper,
    plain_json,
    replace_surrogates,
)
from ferrule.core.spec import ToolType
from ferrule.errors import FerruleError
from ferrule.kinds.mcp.listing import find_changed_parts
from ferrule.kinds.mcp.results import ProtocolError

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock, ToolAnnotations
    from mcp.types import Tool as McpTool

T = TypeVar("T")

_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
"""Names the server of one connection, so it is not passed on to the next."""
CHANGED_KEY: Final = "ferrule/changed"
"""In the `_meta` of a tool: what its server has changed, and the client does not get before a person accepts it."""
MAX_DEPTH: Final = 100
"""Results that are nested deeper are sent as text only: the SDK refuses to write them."""


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
    blocks = [_make_content_block(part).model_dump(mode="json", by_alias=True, exclude_none=True) for part in parts]
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


def _make_content_block(part: Content) -> ContentBlock:
    from mcp.types import (
        AudioContent,
        BlobResourceContents,
        EmbeddedResource,
        ImageContent,
        ResourceLink,
        TextContent,
        TextResourceContents,
    )

    match part:
        case Text():
            return TextContent(type="text", text=replace_surrogates(part.text))
        case Image():
            return ImageContent(type="image", data=_encode_base64(part.data), mime_type=part.mime_type)
        case Audio():
            return AudioContent(type="audio", data=_encode_base64(part.data), mime_type=part.mime_type)
        case Resource(text=str() as text):
            resource: Any = TextResourceContents(
                uri=replace_surrogates(part.uri), text=replace_surrogates(text), mime_type=part.mime_type
            )
            return EmbeddedResource(type="resource", resource=resource)
        case Resource(data=bytes() as data):
            resource = BlobResourceContents(
                uri=replace_surrogates(part.uri), blob=_encode_base64(data), mime_type=part.mime_type
            )
            return EmbeddedResource(type="resource", resource=resource)
        case Resource():
            uri = replace_surrogates(part.uri)
            return ResourceLink(type="resource_link", name=uri, uri=uri, mime_type=part.mime_type)
    return TextContent(type="text", text=replace_surrogates(as_text(part)))


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
