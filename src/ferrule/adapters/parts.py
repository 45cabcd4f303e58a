"""The parts of a result, for frameworks that can show some of them to a model."""

from __future__ import annotations

import base64

from ferrule.call import ToolExecutionResult
from ferrule.content import Audio, Content, Image, Resource, Text, as_text, describe_part


def shown_parts(result: ToolExecutionResult) -> list[Content]:
    """What a model should see of a result that is more than text: its text first, unless that only lists the parts."""
    listed = set(result.output) == {"content"}
    seen = [part for part in result.content if isinstance(part, (Image, Audio)) or (listed and _says_something(part))]
    return seen if listed or not seen else [Text(text=result.text), *seen]


def text_of_part(part: Content) -> str:
    """A part in words, for a model that cannot be shown it."""
    return part.text if isinstance(part, Text) else as_text(describe_part(part))


def data_url(part: Image | Audio) -> str:
    return f"data:{part.mime_type};base64,{base64_of(part)}"


def base64_of(part: Image | Audio) -> str:
    return base64.b64encode(part.data).decode()


def _says_something(part: Content) -> bool:
    return isinstance(part, (Text, Resource))
