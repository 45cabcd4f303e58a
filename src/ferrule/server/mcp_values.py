"""Our values as those of MCP."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from ferrule.call import ToolExecutionResult
from ferrule.content import Audio, Content, Image, Resource, Text, as_text
from ferrule.describe.schemas import NamedAction
from ferrule.errors import FerruleError

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock
    from mcp.types import Tool as McpTool


def tool_of(action: NamedAction) -> McpTool:
    from mcp.types import Tool as McpTool
    from mcp.types import ToolAnnotations

    effects = action.spec.effects_of(action.capability)
    return McpTool(
        name=action.name,
        title=action.spec.name if action.spec.name != action.spec.tool_id else None,
        description=action.description,
        input_schema=action.capability.schema,
        annotations=ToolAnnotations(
            read_only_hint=effects.read_only,
            destructive_hint=effects.destructive,
            idempotent_hint=effects.repeatable,
        ),
    )


def result_of(result: ToolExecutionResult | FerruleError) -> CallToolResult:
    """What came of a call. A failure is for the model to read, not an error of the protocol."""
    from mcp.types import CallToolResult, TextContent

    if isinstance(result, FerruleError):
        return CallToolResult(content=[TextContent(type="text", text=str(result))], is_error=True)
    if not result.is_success:
        return CallToolResult(content=[TextContent(type="text", text=result.error or "It failed.")], is_error=True)
    listed = set(result.output) == {"content"} and bool(result.content)
    seen = [_block(part) for part in result.content if listed or not isinstance(part, Text)]
    text = [] if listed else [TextContent(type="text", text=result.text)]
    return CallToolResult(content=[*text, *seen], structured_content=None if listed else result.output)


def _block(part: Content) -> ContentBlock:
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
            return TextContent(type="text", text=part.text)
        case Image():
            return ImageContent(type="image", data=_base64(part.data), mime_type=part.mime_type)
        case Audio():
            return AudioContent(type="audio", data=_base64(part.data), mime_type=part.mime_type)
        case Resource(text=str() as text):
            held: Any = TextResourceContents(uri=part.uri, text=text, mime_type=part.mime_type)
            return EmbeddedResource(type="resource", resource=held)
        case Resource(data=bytes() as data):
            held = BlobResourceContents(uri=part.uri, blob=_base64(data), mime_type=part.mime_type)
            return EmbeddedResource(type="resource", resource=held)
        case Resource():
            return ResourceLink(type="resource_link", name=part.uri, uri=part.uri, mime_type=part.mime_type)
    return TextContent(type="text", text=as_text(part))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
