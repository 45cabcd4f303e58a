"""A library's tools for the OpenAI Agents SDK: `Agent(name=…, tools=as_function_tools(library))`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from ferrule.adapters.door import Door
from ferrule.adapters.parts import data_url, shown_parts, text_of_part
from ferrule.call import ToolExecutionResult
from ferrule.content import Content, Image
from ferrule.errors import MissingExtra
from ferrule.library import UnifiedToolLibrary

try:
    from agents import FunctionTool, Tool, ToolOutputImage, ToolOutputText
    from agents.tool_context import ToolContext
except ModuleNotFoundError as error:
    raise MissingExtra("openai-agents", "openai-agents") from error


def as_function_tools(library: UnifiedToolLibrary, tools: Sequence[str] | None = None) -> list[Tool]:
    """Every action of the library's tools, or of those named, as a function tool.

    The context of an agent's run is `variables["context"]` of the calls' contexts.
    """
    door = Door(library, tools, framework="openai-agents")
    return [
        FunctionTool(
            name=schema["name"],
            description=schema["description"],
            params_json_schema=schema["parameters"],
            on_invoke_tool=partial(_call, door, schema["name"]),
            strict_json_schema=False,
        )
        for schema in door.schemas()
    ]


async def _call(door: Door, name: str, ctx: ToolContext[Any], written: str) -> Any:
    try:
        arguments = json.loads(written or "{}")
    except ValueError as error:
        return f"The arguments of {name!r} are no JSON ({error}). Write them as one JSON object."
    group = None if ctx.run_config is None else ctx.run_config.group_id
    # All calls of a run share its usage, and nothing else that could be told from other runs'.
    context = door.context(run=ctx.usage, conversation_id=group, context=ctx.context)
    return _settled(await door.call(name, arguments, context))


def _settled(result: ToolExecutionResult) -> Any:
    parts = shown_parts(result) if result.is_success else []
    return [_shown(part) for part in parts] if parts else result.text


def _shown(part: Content) -> Any:
    if isinstance(part, Image):
        return ToolOutputImage(image_url=data_url(part))
    return ToolOutputText(text=text_of_part(part))
