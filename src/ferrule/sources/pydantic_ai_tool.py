"""pydantic-ai tools: `Tool` objects, and what a toolset holds or lists."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ferrule.errors import SpecError
from ferrule.executors.foreign.pydantic_ai import (
    call_pydantic_ai_tool,
    call_toolset_tool,
    run_pydantic_ai_tool,
    run_toolset_tool,
)
from ferrule.executors.function.reference import OnObject
from ferrule.sources.foreign_tool import ForeignTool, untitled
from ferrule.sources.tool_options import ToolOptions


def read_pydantic_ai_tool(tool: Any) -> ForeignTool:
    """What a tool says about itself."""
    if tool.prepare is not None:
        raise SpecError(
            f"pydantic-ai tool {tool.name!r} is prepared before it is listed, which takes an await: put it into a "
            "toolset and use library.register(*await tools_of_toolset(toolset)), from ferrule.adapters.pydantic_ai"
        )
    run = call_pydantic_ai_tool if tool.function_schema.is_async else run_pydantic_ai_tool
    call = OnObject(run, tool, made_from=tool.function)
    return _read(tool.tool_def, call, tool.function)


def tools_without_asking(toolset: Any) -> Iterable[Any]:
    """The tools that a `FunctionToolset` holds."""
    return [_under_its_limit(tool, toolset.timeout) for tool in toolset.tools.values()]


def read_listed_tool(toolset: Any, tool: Any, deps: Any) -> ForeignTool:
    """What a toolset says about a tool that it has listed for an agent with these `deps`."""
    # The functions of a FunctionToolset say whether they are async; other tools are.
    run = call_toolset_tool if getattr(tool, "is_async", True) else run_toolset_tool
    call = OnObject(run, tool, toolset, deps, made_from=None)
    timeout = tool.tool_def.timeout or getattr(tool.toolset, "timeout", None)
    return _read(replace(tool.tool_def, timeout=timeout), call, type(toolset))


def _under_its_limit(tool: Any, timeout: float | None) -> Any:
    if timeout is None or tool.timeout is not None:
        return tool
    limited = copy.copy(tool)
    limited.timeout = timeout
    return limited


def _read(said: Any, call: OnObject, made_from: Any) -> ForeignTool:
    if said.kind == "external":
        raise SpecError(f"pydantic-ai tool {said.name!r} is external: its results come from somebody else, not a call")
    metadata = {"framework": "pydantic-ai", **(said.metadata or {})}
    if said.kind == "unapproved":
        metadata["requires_approval"] = True
    return ForeignTool(
        name=said.name,
        description=said.description or "",
        parameters=untitled(said.parameters_json_schema),
        output=untitled(said.return_schema) if said.return_schema else None,
        options=ToolOptions(timeout=said.timeout, metadata=metadata),
        call=call,
        made_from=made_from,
    )
