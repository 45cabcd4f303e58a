"""Function tools of the OpenAI Agents SDK."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from ferrule.core.call import ToolExecutionContext, current_invocation
from ferrule.core.content import Content, Resource, Text, as_text, encode_json
from ferrule.errors import ExecutionFailed, InvalidArguments, NeedsApproval, SpecError
from ferrule.kinds.frameworks.foreign_tool import (
    ForeignTool,
    make_part_from_base64,
    make_part_from_url,
    remove_titles,
    run_in_this_thread,
)
from ferrule.kinds.function.decorator import ToolOptions
from ferrule.process.function_reference import ObjectFunction


def read_function_tool(tool: Any) -> ForeignTool:
    """Read a tool. Raises SpecError for a tool with checks that only the SDK's own runner makes."""
    if tool.tool_input_guardrails or tool.tool_output_guardrails:
        raise SpecError(
            f"Function tool {tool.name!r} has guardrails, which only its own runner applies: check in the tool instead"
        )
    if callable(tool.is_enabled):
        raise SpecError(f"Function tool {tool.name!r} is enabled by a function: set is_enabled to True or False")
    function = getattr(tool, "__wrapped__", None)
    # The SDK would run a sync function in a thread, which cannot be ended.
    is_sync = function is not None and not inspect.iscoroutinefunction(function)
    metadata: dict[str, Any] = {"framework": "openai-agents"}
    if tool.needs_approval:
        metadata["needs_approval"] = True
    return ForeignTool(
        name=tool.name,
        description=tool.description,
        parameters=remove_titles(tool.params_json_schema),
        output=tool.output_json_schema,
        options=ToolOptions(timeout=tool.timeout_seconds, enabled=tool.is_enabled, metadata=metadata),
        call=ObjectFunction(
            call_function_tool_sync if is_sync else call_function_tool_async, tool, source_function=function
        ),
        source_function=function or type(tool),
    )


# Calls. The SDK turns an exception of a tool into a text for the model. Here the call must fail; the text is used when
# the tool has its own error function. The tool's `context` is `variables["context"]` of the call's context.


def call_function_tool_sync(tool: Any, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    return run_in_this_thread(call_function_tool_async(tool, _context=_context, **arguments))


async def call_function_tool_async(tool: Any, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    from agents.exceptions import ModelBehaviorError
    from agents.tool import set_function_tool_failure_error_function
    from agents.tool_context import ToolContext

    call_id, json_arguments = current_invocation("A function tool").call_id, encode_json(arguments).decode()
    context = ToolContext(
        _context.variables.get("context"), tool_name=tool.name, tool_call_id=call_id, tool_arguments=json_arguments
    )
    if not _context.is_approved and await _needs_approval(tool, context, arguments, call_id):
        raise NeedsApproval(f"Tool {tool.name!r} runs only when a person has approved the call.")
    raising_tool = set_function_tool_failure_error_function(copy.copy(tool), None)
    try:
        return _convert_result(await raising_tool.on_invoke_tool(context, json_arguments))
    except ModelBehaviorError as error:
        raise InvalidArguments(str(error)) from error
    except Exception as error:
        text = await _custom_error_text(tool, context, error)
        if text is None:
            raise
        raise ExecutionFailed(text) from error


async def _needs_approval(tool: Any, context: Any, arguments: dict[str, Any], call_id: str) -> bool:
    needed = tool.needs_approval
    if callable(needed):
        needed = needed(context, arguments, call_id)
    return bool(await needed if inspect.isawaitable(needed) else needed)


async def _custom_error_text(tool: Any, context: Any, error: Exception) -> str | None:
    """Return the text of the tool's own error function; None when it has none."""
    from agents.tool import default_tool_error_function, resolve_function_tool_failure_error_function

    describe = resolve_function_tool_failure_error_function(tool, context)
    if describe is None or describe is default_tool_error_function:
        return None
    text = describe(context, error)
    return str(await text if inspect.isawaitable(text) else text)


def _convert_result(value: Any) -> Any:
    from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText

    outputs = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
    if isinstance(value, outputs):
        return _convert_output(value)
    if isinstance(value, list) and any(isinstance(item, outputs) for item in value):
        return [_convert_output(item) if isinstance(item, outputs) else Text(text=as_text(item)) for item in value]
    return value


def _convert_output(value: Any) -> Content:
    if value.type == "text":
        return Text(text=value.text)
    if value.type == "image":
        return make_part_from_url(value.image_url or f"openai-file:{value.file_id}", "image/*")
    if value.file_data is not None:
        part = make_part_from_base64(value.file_data, "application/octet-stream")
        return part or make_part_from_url(value.file_data)
    return Resource(uri=value.file_url or f"openai-file:{value.file_id}")
