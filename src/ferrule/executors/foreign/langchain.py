"""Calling LangChain tools.

A tool that handles its own errors, or has more to say than its content, is called with a whole tool call: it then
answers with a message that says whether it failed, and carries its artifact. Others give their value as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ferrule.call import ToolExecutionContext, running_invocation
from ferrule.content import Content, Output, Resource, Text, as_text
from ferrule.errors import ExecutionFailed, text_of
from ferrule.executors.foreign.media import part_of_address, part_of_base64
from ferrule.executors.foreign.refusals import invalid_arguments

ARTIFACT = "langchain:artifact"
"""The address of the part that holds a tool's artifact."""


def run_langchain_tool(tool: Any, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    with _our_failures():
        return _settled(tool.invoke(_input(tool, arguments), _context.variables.get("config")))


async def call_langchain_tool(tool: Any, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    with _our_failures():
        return _settled(await tool.ainvoke(_input(tool, arguments), _context.variables.get("config")))


def injected_arguments(tool: Any) -> dict[str, Any]:
    """The fields of arguments that no model gives, by name."""
    if isinstance(tool.args_schema, dict):
        return {}
    asked = getattr(tool.tool_call_schema, "model_fields", {})
    return {name: field for name, field in _fields(tool.get_input_schema()).items() if name not in asked}


def _fields(model: Any) -> dict[str, Any]:
    return dict(getattr(model, "model_fields", ()))


def _input(tool: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    handles = tool.handle_tool_error or tool.handle_validation_error
    if not handles and tool.response_format == "content" and not injected_arguments(tool):
        return arguments
    call_id = running_invocation("A LangChain tool").call_id
    return {"type": "tool_call", "id": call_id, "name": tool.name, "args": arguments}


def _settled(answer: Any) -> Any:
    from langchain_core.messages import ToolMessage

    if not isinstance(answer, ToolMessage):
        return _content(answer)
    if answer.status == "error":
        raise ExecutionFailed(answer.text or "The tool failed, and does not say why.")
    output = Output.of(_content(answer.content))
    if answer.artifact is None:
        return output
    artifact = Resource(uri=ARTIFACT, text=as_text(answer.artifact), mime_type="application/json")
    return Output(data=output.data, parts=(*output.parts, artifact))


def _content(content: Any) -> Any:
    """Blocks of a message as parts; anything else as it is."""
    blocks = content if isinstance(content, list) else ()
    if not any(isinstance(block, dict) and block.get("type") in ("image", "image_url", "audio") for block in blocks):
        return content
    return [_part(block) for block in blocks]


def _part(block: Any) -> Content:
    kind = block.get("type") if isinstance(block, dict) else None
    part: Content | None = None
    if kind == "image_url":
        said = block.get("image_url")
        part = part_of_address(str(said.get("url", "") if isinstance(said, dict) else said))
    elif kind in ("image", "audio", "file"):
        mime_type = block.get("mime_type") or {"image": "image/png", "audio": "audio/wav"}.get(kind, "")
        data = block.get("base64") or block.get("data")
        if isinstance(data, str):
            part = part_of_base64(data, mime_type)
        elif isinstance(block.get("url"), str):
            part = part_of_address(block["url"], block.get("mime_type"))
    elif kind == "text":
        part = Text(text=str(block.get("text", "")))
    return part or Text(text=as_text(block))


@contextmanager
def _our_failures() -> Iterator[None]:
    from langchain_core.tools import ToolException
    from pydantic import ValidationError

    try:
        yield
    except ToolException as error:
        raise ExecutionFailed(text_of(error) or "ToolException") from error
    except ValidationError as error:
        raise invalid_arguments(error) from error
