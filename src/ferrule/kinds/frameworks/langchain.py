"""LangChain tools: `@tool` functions, `StructuredTool`, and every other `BaseTool`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ferrule.core.call import ToolExecutionContext, current_invocation
from ferrule.core.content import Content, Output, Resource, Text, as_text
from ferrule.core.spec import JsonSchema
from ferrule.errors import ExecutionFailed, SpecError, error_text
from ferrule.kinds.frameworks.foreign_tool import (
    ForeignTool,
    convert_validation_error,
    make_part_from_base64,
    make_part_from_url,
    remove_titles,
)
from ferrule.kinds.function.decorator import ToolOptions
from ferrule.process.function_reference import ObjectFunction

ARTIFACT_URI = "langchain:artifact"
"""The URI of the part that holds a tool's artifact."""


def read_langchain_tool(tool: Any) -> ForeignTool:
    """Read a tool. Raises SpecError for a tool that needs values which only LangChain's own agent has."""
    from langchain_core.tools import BaseTool, StructuredTool, Tool

    _refuse_injected_arguments(tool)
    # None for tools with another class.
    function = (tool.coroutine or tool.func) if type(tool) in (StructuredTool, Tool) else None
    has_coroutine = getattr(tool, "coroutine", None) is not None
    is_async = has_coroutine if hasattr(tool, "coroutine") else type(tool)._arun is not BaseTool._arun
    call = call_langchain_tool_async if is_async else call_langchain_tool_sync
    metadata = {"framework": "langchain", **(tool.metadata or {})}
    if tool.return_direct:
        metadata["return_direct"] = True
    return ForeignTool(
        name=tool.name,
        description=tool.description,
        parameters=_read_parameters(tool),
        output=None,
        options=ToolOptions(tags=tuple(tool.tags or ()), metadata=metadata),
        call=ObjectFunction(call, tool, source_function=function),
        source_function=function or type(tool),
    )


def _read_parameters(tool: Any) -> JsonSchema:
    from langchain_core.tools import Tool
    from langchain_core.utils.pydantic import model_json_schema

    if isinstance(tool, Tool) and tool.args_schema is None:  # takes one text, whatever its name
        return {"type": "object", "properties": {"tool_input": {"type": "string"}}, "required": ["tool_input"]}
    model = tool.tool_call_schema
    schema = remove_titles(model if isinstance(model, dict) else model_json_schema(model))
    return {"type": "object", "properties": {}, **{k: v for k, v in schema.items() if k != "description"}}


def _refuse_injected_arguments(tool: Any) -> None:
    from langchain_core.tools import InjectedToolCallId

    for name, field in _injected_arguments(tool).items():
        markers = (field.annotation, *field.metadata)
        is_call_id = any(mark is InjectedToolCallId or isinstance(mark, InjectedToolCallId) for mark in markers)
        if field.is_required() and not is_call_id:
            raise SpecError(
                f"LangChain tool {tool.name!r}: its argument {name!r} is injected by LangChain's own agent, which "
                "does not run it here. Give it a default, or wrap the tool in a function that provides the value."
            )


def _injected_arguments(tool: Any) -> dict[str, Any]:
    """Return the fields of arguments that a model does not provide, by name."""
    if isinstance(tool.args_schema, dict):
        return {}
    visible = getattr(tool.tool_call_schema, "model_fields", {})
    fields = getattr(tool.get_input_schema(), "model_fields", {})
    return {name: field for name, field in fields.items() if name not in visible}


# Calls. A tool that handles its own errors, or returns more than its content, is called with a whole tool call: it then
# returns a message that says whether it failed and contains its artifact. Others return their value as it is.


def call_langchain_tool_sync(tool: Any, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    with _translate_errors():
        return _convert_result(tool.invoke(_make_tool_input(tool, arguments), _context.variables.get("config")))


async def call_langchain_tool_async(tool: Any, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    with _translate_errors():
        return _convert_result(await tool.ainvoke(_make_tool_input(tool, arguments), _context.variables.get("config")))


def _make_tool_input(tool: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    handles_errors = tool.handle_tool_error or tool.handle_validation_error
    if not handles_errors and tool.response_format == "content" and not _injected_arguments(tool):
        return arguments
    call_id = current_invocation("A LangChain tool").call_id
    return {"type": "tool_call", "id": call_id, "name": tool.name, "args": arguments}


def _convert_result(result: Any) -> Any:
    from langchain_core.messages import ToolMessage

    if not isinstance(result, ToolMessage):
        return _convert_content(result)
    if result.status == "error":
        raise ExecutionFailed(result.text or "The tool failed without a message.")
    output = Output.of(_convert_content(result.content))
    if result.artifact is None:
        return output
    artifact = Resource(uri=ARTIFACT_URI, text=as_text(result.artifact), mime_type="application/json")
    return Output(data=output.data, parts=(*output.parts, artifact))


def _convert_content(content: Any) -> Any:
    """Convert blocks of a message to parts. Return anything else unchanged."""
    blocks = content if isinstance(content, list) else ()
    if not any(isinstance(block, dict) and block.get("type") in ("image", "image_url", "audio") for block in blocks):
        return content
    return [_convert_block(block) for block in blocks]


def _convert_block(block: Any) -> Content:
    kind = block.get("type") if isinstance(block, dict) else None
    part: Content | None = None
    if kind == "image_url":
        image = block.get("image_url")
        part = make_part_from_url(str(image.get("url", "") if isinstance(image, dict) else image))
    elif kind in ("image", "audio", "file"):
        mime_type = block.get("mime_type") or {"image": "image/png", "audio": "audio/wav"}.get(kind, "")
        data = block.get("base64") or block.get("data")
        if isinstance(data, str):
            part = make_part_from_base64(data, mime_type)
        elif isinstance(block.get("url"), str):
            part = make_part_from_url(block["url"], block.get("mime_type"))
    elif kind == "text":
        part = Text(text=str(block.get("text", "")))
    return part or Text(text=as_text(block))


@contextmanager
def _translate_errors() -> Iterator[None]:
    from langchain_core.tools import ToolException
    from pydantic import ValidationError

    try:
        yield
    except ToolException as error:
        raise ExecutionFailed(error_text(error) or "ToolException") from error
    except ValidationError as error:
        raise convert_validation_error(error) from error
