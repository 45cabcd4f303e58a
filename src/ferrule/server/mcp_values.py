"""Our values as those of MCP."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from ferrule.call import ToolExecutionResult
from ferrule.content import Audio, Content, Image, Resource, Text, as_text, is_deep, plain_json, whole_text
from ferrule.describe.schemas import NamedAction
from ferrule.errors import FerruleError
from ferrule.spec import Effects

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock
    from mcp.types import Tool as McpTool

DEEPEST: Final = 100
"""What is nested deeper is told as text alone: the SDK refuses to write it."""


def tool_of(action: NamedAction, effects: Effects) -> McpTool:
    from mcp.types import Tool as McpTool
    from mcp.types import ToolAnnotations

    return McpTool(
        name=action.name,
        title=whole_text(action.spec.name) if action.spec.name != action.spec.tool_id else None,
        description=whole_text(action.description),
        input_schema=plain_json(action.capability.schema),
        # Only what it promises: MCP takes silence for the worst, and so should who knows no better.
        annotations=ToolAnnotations(
            read_only_hint=effects.read_only or None,
            destructive_hint=effects.destructive or None,
            idempotent_hint=effects.repeatable or None,
        ),
    )


def result_of(result: ToolExecutionResult | FerruleError) -> CallToolResult:
    """What came of a call. A failure is for the model to read, not an error of the protocol."""
    from mcp.types import CallToolResult, TextContent

    if isinstance(result, FerruleError) or not result.is_success:
        said = str(result) if isinstance(result, FerruleError) else result.error or "It failed."
        return CallToolResult(content=[TextContent(type="text", text=whole_text(said))], is_error=True)
    listed = set(result.output) == {"content"} and bool(result.content)
    seen = [_block(part) for part in result.content if listed or not isinstance(part, Text)]
    text = [] if listed else [TextContent(type="text", text=whole_text(result.text))]
    structured = None if listed or is_deep(result.output, DEEPEST) else plain_json(result.output)
    return CallToolResult(content=[*text, *seen], structured_content=structured)


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
            return TextContent(type="text", text=whole_text(part.text))
        case Image():
            return ImageContent(type="image", data=_base64(part.data), mime_type=part.mime_type)
        case Audio():
            return AudioContent(type="audio", data=_base64(part.data), mime_type=part.mime_type)
        case Resource(text=str() as text):
            held: Any = TextResourceContents(uri=whole_text(part.uri), text=whole_text(text), mime_type=part.mime_type)
            return EmbeddedResource(type="resource", resource=held)
        case Resource(data=bytes() as data):
            held = BlobResourceContents(uri=whole_text(part.uri), blob=_base64(data), mime_type=part.mime_type)
            return EmbeddedResource(type="resource", resource=held)
        case Resource():
            uri = whole_text(part.uri)
            return ResourceLink(type="resource_link", name=uri, uri=uri, mime_type=part.mime_type)
    return TextContent(type="text", text=whole_text(as_text(part)))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
