"""The result of a call of a server, as our kind of output."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from ferrule.content import Audio, Content, Image, Output, Resource, Text, as_text
from ferrule.errors import ExecutionFailed

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock


def output_of(result: CallToolResult) -> Output:
    """What the action gave back; ExecutionFailed when the server says that it failed.

    Structured content is the data. Text beside it is left out when it says the same once more, as the protocol
    wants servers to do; everything else comes along as parts.
    """
    parts = [_part(block) for block in result.content]
    if result.is_error:
        said = _said(parts) or as_text(result.structured_content or "")
        raise ExecutionFailed(said or "the server says only that the call failed.")
    structured = result.structured_content
    if structured is not None:
        data = structured if isinstance(structured, dict) else {"result": structured}
        kept = tuple(p for p in parts if not (isinstance(p, Text) and _says_the_same(p.text, structured)))
        return Output(data=data, parts=kept)
    if all(isinstance(part, Text) for part in parts):
        return Output(data={"result": _said(parts)})
    return Output.of(parts)


def _said(parts: list[Content]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def _says_the_same(text: str, structured: Any) -> bool:
    """Whether a text is the structured content, its only value, or an item of that, once more."""
    said = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        [value] = structured.values()
        # A list is often given as one text for each item.
        said += [value, *value] if isinstance(value, list) else [value]
    if any(text == as_text(each) for each in said):
        return True
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return read in said


def _part(block: ContentBlock) -> Content:
    if block.type == "text":
        return Text(text=block.text)
    if block.type == "image":
        return Image(data=_bytes(block.data), mime_type=block.mime_type)
    if block.type == "audio":
        return Audio(data=_bytes(block.data), mime_type=block.mime_type)
    if block.type == "resource_link":
        return Resource(uri=str(block.uri), mime_type=block.mime_type)
    held = block.resource
    data = _bytes(held.blob) if hasattr(held, "blob") else None
    return Resource(uri=str(held.uri), text=getattr(held, "text", None), data=data, mime_type=held.mime_type)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ExecutionFailed("the server sent an image, a sound or a file that is not base64.") from None
