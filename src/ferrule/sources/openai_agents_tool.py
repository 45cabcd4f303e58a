"""Function tools of the OpenAI Agents SDK."""

from __future__ import annotations

import inspect
from typing import Any

from ferrule.errors import SpecError
from ferrule.executors.foreign.openai_agents import call_function_tool, run_function_tool
from ferrule.executors.function.reference import OnObject
from ferrule.sources.foreign_tool import ForeignTool, untitled
from ferrule.sources.tool_options import ToolOptions


def read_function_tool(tool: Any) -> ForeignTool:
    """What a tool says about itself; SpecError for one that is guarded by what only the SDK's own runner does."""
    if tool.tool_input_guardrails or tool.tool_output_guardrails:
        raise SpecError(
            f"Function tool {tool.name!r} has guardrails, which only its own runner obeys: check in the tool"
        )
    if callable(tool.is_enabled):
        raise SpecError(f"Function tool {tool.name!r} is enabled run by run: let is_enabled be True or False")
    function = getattr(tool, "__wrapped__", None)
    # The SDK would run a sync function in a thread, where nothing can end it.
    is_sync = function is not None and not inspect.iscoroutinefunction(function)
    metadata: dict[str, Any] = {"framework": "openai-agents"}
    if tool.needs_approval:
        metadata["needs_approval"] = True
    return ForeignTool(
        name=tool.name,
        description=tool.description,
        parameters=untitled(tool.params_json_schema),
        output=tool.output_json_schema,
        options=ToolOptions(timeout=tool.timeout_seconds, enabled=tool.is_enabled, metadata=metadata),
        call=OnObject(run_function_tool if is_sync else call_function_tool, tool, made_from=function),
        made_from=function or type(tool),
    )
