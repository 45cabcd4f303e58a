"""Calling function tools of the OpenAI Agents SDK.

The SDK turns an exception of a tool into a text for the model. Here the call must fail; the text of a tool that has
words of its own for failures is kept. The tool's `context` is `variables["context"]` of the call's context.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

from ferrule.call import ToolExecutionContext, running_invocation
from ferrule.content import Content, Resource, Text, as_text, encode_json
from ferrule.errors import ExecutionFailed, InvalidArguments, NeedsApproval
from ferrule.executors.foreign.media import part_of_address, part_of_base64
from ferrule.executors.foreign.own_loop import run_in_this_thread


def run_function_tool(tool: Any, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    return run_in_this_thread(call_function_tool(tool, _context=_context, **arguments))


async def call_function_tool(tool: Any, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    from agents.exceptions import ModelBehaviorError
    from agents.tool import set_function_tool_failure_error_function
    from agents.tool_context import ToolContext

    call_id, written = running_invocation("A function tool").call_id, encode_json(arguments).decode()
    context = ToolContext(
        _context.variables.get("context"), tool_name=tool.name, tool_call_id=call_id, tool_arguments=written
    )
    if not _context.approved and await _needs_approval(tool, context, arguments, call_id):
        raise NeedsApproval(f"Tool {tool.name!r} runs only when a person has approved the call.")
    raising = set_function_tool_failure_error_function(copy.copy(tool), None)
    try:
        return _content(await raising.on_invoke_tool(context, written))
    except ModelBehaviorError as error:
        raise InvalidArguments(str(error)) from error
    except Exception as error:
        text = await _own_words(tool, context, error)
        if text is None:
            raise
        raise ExecutionFailed(text) from error


async def _needs_approval(tool: Any, context: Any, arguments: dict[str, Any], call_id: str) -> bool:
    needed = tool.needs_approval
    if callable(needed):
        needed = needed(context, arguments, call_id)
    return bool(await needed if inspect.isawaitable(needed) else needed)


async def _own_words(tool: Any, context: Any, error: Exception) -> str | None:
    """What the tool's author wants to be said about a failure."""
    from agents.tool import default_tool_error_function, resolve_function_tool_failure_error_function

    say = resolve_function_tool_failure_error_function(tool, context)
    if say is None or say is default_tool_error_function:
        return None
    text = say(context, error)
    return str(await text if inspect.isawaitable(text) else text)


def _content(value: Any) -> Any:
    from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText

    outputs = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
    if isinstance(value, outputs):
        return _part(value)
    if isinstance(value, list) and any(isinstance(item, outputs) for item in value):
        return [_part(item) if isinstance(item, outputs) else Text(text=as_text(item)) for item in value]
    return value


def _part(value: Any) -> Content:
    if value.type == "text":
        return Text(text=value.text)
    if value.type == "image":
        return part_of_address(value.image_url or f"openai-file:{value.file_id}", "image/*")
    if value.file_data is not None:
        part = part_of_base64(value.file_data, "application/octet-stream")
        return part or part_of_address(value.file_data)
    return Resource(uri=value.file_url or f"openai-file:{value.file_id}")
