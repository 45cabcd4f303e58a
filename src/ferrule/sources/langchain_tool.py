"""LangChain tools: `@tool` functions, `StructuredTool`, and every other `BaseTool`."""

from __future__ import annotations

from typing import Any

from ferrule.errors import SpecError
from ferrule.executors.foreign.langchain import call_langchain_tool, injected_arguments, run_langchain_tool
from ferrule.executors.function.reference import OnObject
from ferrule.sources.foreign_tool import ForeignTool, untitled
from ferrule.sources.tool_options import ToolOptions
from ferrule.spec import JsonSchema


def read_langchain_tool(tool: Any) -> ForeignTool:
    """What a tool says about itself; SpecError for one that wants what only its own agent has."""
    _refuse_injected(tool)
    function = _function_of(tool)
    run = call_langchain_tool if _is_async(tool) else run_langchain_tool
    metadata = {"framework": "langchain", **(tool.metadata or {})}
    if tool.return_direct:
        metadata["return_direct"] = True
    return ForeignTool(
        name=tool.name,
        description=tool.description,
        parameters=_parameters(tool),
        output=None,
        options=ToolOptions(tags=tuple(tool.tags or ()), metadata=metadata),
        call=OnObject(run, tool, made_from=function),
        made_from=function or type(tool),
    )


def _function_of(tool: Any) -> Any:
    """The function a tool is nothing more than; None for tools with a class of their own."""
    from langchain_core.tools import StructuredTool, Tool

    return (tool.coroutine or tool.func) if type(tool) in (StructuredTool, Tool) else None


def _is_async(tool: Any) -> bool:
    from langchain_core.tools import BaseTool

    if hasattr(tool, "coroutine"):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun


def _parameters(tool: Any) -> JsonSchema:
    from langchain_core.tools import Tool
    from langchain_core.utils.pydantic import model_json_schema

    if isinstance(tool, Tool) and tool.args_schema is None:  # takes one text, whatever it is called
        return {"type": "object", "properties": {"tool_input": {"type": "string"}}, "required": ["tool_input"]}
    said = tool.tool_call_schema
    schema = untitled(said if isinstance(said, dict) else model_json_schema(said))
    return {"type": "object", "properties": {}, **{k: v for k, v in schema.items() if k != "description"}}


def _refuse_injected(tool: Any) -> None:
    from langchain_core.tools import InjectedToolCallId

    for name, field in injected_arguments(tool).items():
        marks = (field.annotation, *field.metadata)
        is_call_id = any(mark is InjectedToolCallId or isinstance(mark, InjectedToolCallId) for mark in marks)
        if field.is_required() and not is_call_id:
            raise SpecError(
                f"LangChain tool {tool.name!r}: its argument {name!r} is filled in by LangChain's own agent, which "
                "does not run it here. Give it a default, or wrap the tool in a function that fills it in."
            )
