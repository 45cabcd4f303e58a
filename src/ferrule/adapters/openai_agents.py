"""The tools of a library for the OpenAI Agents SDK: `Agent(name=…, tools=as_function_tools(library))`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from ferrule.adapters.bridge import LibraryBridge, convert_part_to_text, encode_base64, select_visible_parts
from ferrule.core.content import Image
from ferrule.core.permission import Principal
from ferrule.errors import MissingExtra
from ferrule.library.library import UnifiedToolLibrary

try:
    from agents import FunctionTool, RunContextWrapper, Tool, ToolOutputImage, ToolOutputText
    from agents.tool_context import ToolContext
except ModuleNotFoundError as error:
    raise MissingExtra("openai-agents", "openai-agents") from error


def as_function_tools(
    library: UnifiedToolLibrary,
    tools: Sequence[str] | None = None,
    *,
    memory: bool = False,
    principal: Principal | None = None,
) -> list[Tool]:
    """Every action of the library's tools, or of those named, as a function tool.

    The context of an agent's run is `variables["context"]` of the calls' contexts. With `memory`, a call that is known
    to fail is not made again in the same run. `principal` makes the calls: by default an agent. A call about which the
    policy asks interrupts the run, which `RunState.approve` continues.
    """
    bridge = LibraryBridge(library, tools, framework="openai-agents", memory=memory, principal=principal)
    return [_make_tool(bridge, **schema) for schema in bridge.schemas()]


def _make_tool(bridge: LibraryBridge, name: str, description: str, parameters: dict[str, Any]) -> FunctionTool:
    return FunctionTool(
        name=name,
        description=description,
        params_json_schema=parameters,
        on_invoke_tool=partial(_call_library_tool, bridge, name),
        strict_json_schema=False,
        needs_approval=partial(_needs_approval, bridge, name) if bridge.needs_approval(name) else False,
    )


async def _needs_approval(
    bridge: LibraryBridge, name: str, ctx: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str
) -> bool:
    return bridge.needs_approval(name, arguments)


async def _call_library_tool(bridge: LibraryBridge, name: str, ctx: ToolContext[Any], json_arguments: str) -> Any:
    try:
        arguments = json.loads(json_arguments or "{}")
    except ValueError as error:
        return f"The arguments of {name!r} are not JSON ({error}). Write them as one JSON object."
    group = None if ctx.run_config is None else ctx.run_config.group_id
    # All calls of a run share its usage object; nothing else distinguishes them from those of other runs.
    context = bridge.context(run=ctx.usage, conversation_id=group, context=ctx.context)
    is_approved = bool(ctx.is_tool_approved(name, ctx.tool_call_id))
    result = await bridge.call(name, arguments, context, is_approved=is_approved)
    content = [
        ToolOutputImage(image_url=f"data:{part.mime_type};base64,{encode_base64(part)}")
        if isinstance(part, Image)
        else ToolOutputText(text=convert_part_to_text(part))
        for part in (select_visible_parts(result) if result.is_success else ())
    ]
    return content or result.text
