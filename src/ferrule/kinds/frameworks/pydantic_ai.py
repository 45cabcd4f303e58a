"""pydantic-ai tools: `Tool` objects, and the tools of any toolset."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

from ferrule.core.call import ToolExecutionContext, current_invocation
from ferrule.core.content import Content, Output, Resource, Text, as_text
from ferrule.errors import ExecutionFailed, NeedsApproval, Refuse, Retry, SpecError
from ferrule.kinds.frameworks.foreign_tool import (
    ForeignTool,
    SameThreadExecutor,
    convert_validation_error,
    make_part_from_bytes,
    make_part_from_url,
    remove_titles,
    run_in_this_thread,
)
from ferrule.kinds.function.decorator import ToolOptions
from ferrule.process.function_reference import ObjectFunction

METADATA_URI = "pydantic-ai:metadata"
"""The URI of the part that holds what a tool returns for the application only."""


def read_pydantic_ai_tool(tool: Any) -> ForeignTool:
    """Read a tool. Raises SpecError for a tool that can be listed only with await."""
    if tool.prepare is not None:
        raise SpecError(
            f"pydantic-ai tool {tool.name!r} has a prepare function, which must be awaited: put the tool into a "
            "toolset and use library.register(*await tools_of_toolset(toolset)), from ferrule.adapters.pydantic_ai"
        )
    call = call_pydantic_ai_tool_async if tool.function_schema.is_async else call_pydantic_ai_tool_sync
    return _read_definition(tool.tool_def, ObjectFunction(call, tool, source_function=tool.function), tool.function)


def list_function_toolset(toolset: Any) -> Iterable[Any]:
    """Return the tools of a `FunctionToolset`. The timeout of the toolset applies to tools without a timeout."""
    tools = [copy.copy(tool) for tool in toolset.tools.values()]
    for tool in tools:
        tool.timeout = toolset.timeout if tool.timeout is None else tool.timeout
    return tools


def read_toolset_tool(toolset: Any, tool: Any, deps: Any) -> ForeignTool:
    """Read a tool that a toolset has listed for an agent with these `deps`."""
    # The tools of a FunctionToolset say whether they are async; others always are.
    call = call_toolset_tool_async if getattr(tool, "is_async", True) else call_toolset_tool_sync
    timeout = tool.tool_def.timeout or getattr(tool.toolset, "timeout", None)
    function = ObjectFunction(call, tool, toolset, deps, source_function=None)
    return _read_definition(replace(tool.tool_def, timeout=timeout), function, type(toolset))


def _read_definition(definition: Any, call: ObjectFunction, source_function: Any) -> ForeignTool:
    if definition.kind == "external":
        raise SpecError(f"pydantic-ai tool {definition.name!r} is external: it cannot be called here")
    metadata = {"framework": "pydantic-ai", **(definition.metadata or {})}
    if definition.kind == "unapproved":
        metadata["requires_approval"] = True
    return ForeignTool(
        name=definition.name,
        description=definition.description or "",
        parameters=remove_titles(definition.parameters_json_schema),
        output=remove_titles(definition.return_schema) if definition.return_schema else None,
        options=ToolOptions(timeout=definition.timeout, metadata=metadata),
        call=call,
        source_function=source_function,
    )


# Calls. A tool that takes a `RunContext` gets one with what is known about the call. Its `deps` are `variables["deps"]`
# of the call's context, or those the toolset was listed with. It has no model: a tool that uses one fails.


def call_pydantic_ai_tool_sync(
    tool: Any, deps: Any = None, /, *, _context: ToolExecutionContext, **arguments: Any
) -> Any:
    from pydantic_ai import Agent

    with Agent.using_thread_executor(SameThreadExecutor()):
        return run_in_this_thread(call_pydantic_ai_tool_async(tool, deps, _context=_context, **arguments))


async def call_pydantic_ai_tool_async(
    tool: Any, deps: Any = None, /, *, _context: ToolExecutionContext, **arguments: Any
) -> Any:
    if tool.requires_approval and not _context.is_approved:
        raise _make_approval_error(tool.name)
    context = make_run_context(tool.name, deps, _context)
    with _translate_errors():
        validated = tool.function_schema.validator.validate_python(arguments)
        await _run_argument_validator(tool.args_validator, context, validated)
        return _convert_result(await tool.function_schema.call(validated, context))


def call_toolset_tool_sync(
    tool: Any, toolset: Any, deps: Any, /, *, _context: ToolExecutionContext, **arguments: Any
) -> Any:
    from pydantic_ai import Agent

    with Agent.using_thread_executor(SameThreadExecutor()):
        return run_in_this_thread(call_toolset_tool_async(tool, toolset, deps, _context=_context, **arguments))


async def call_toolset_tool_async(
    tool: Any, toolset: Any, deps: Any, /, *, _context: ToolExecutionContext, **arguments: Any
) -> Any:
    name = tool.tool_def.name
    if tool.tool_def.kind == "unapproved" and not _context.is_approved:
        raise _make_approval_error(name)
    context = make_run_context(name, deps, _context)
    with _translate_errors():
        validated = tool.args_validator.validate_python(arguments)
        await _run_argument_validator(tool.args_validator_func, context, validated)
        return _convert_result(await toolset.call_tool(name, validated, context, tool))


def make_run_context(name: str | None, deps: Any, context: ToolExecutionContext) -> Any:
    """Make a `RunContext` without an agent."""
    from pydantic_ai import RunContext
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import RunUsage

    call_id = None if name is None else current_invocation("A pydantic-ai tool").call_id
    return RunContext(
        deps=context.variables.get("deps", deps),
        model=FunctionModel(_refuse_model_use),
        usage=RunUsage(),
        tool_name=name,
        tool_call_id=call_id,
        tool_call_approved=context.is_approved,
        conversation_id=context.conversation_id,
    )


def _refuse_model_use(messages: Any, info: Any) -> NoReturn:
    raise ExecutionFailed("This tool uses the model of its agent, but Ferrule calls it without an agent.")


async def _run_argument_validator(validator: Any, context: Any, arguments: dict[str, Any]) -> None:
    if validator is not None:
        result = validator(context, **arguments)
        if inspect.isawaitable(result):
            await result


def _make_approval_error(name: str) -> NeedsApproval:
    return NeedsApproval(f"Tool {name!r} runs only when a person has approved the call.")


def _convert_result(value: Any) -> Any:
    from pydantic_ai import ToolReturn

    if not isinstance(value, ToolReturn):
        return _convert_content(value)
    output = Output.of(_convert_content(value.return_value))
    parts = list(output.parts)
    if value.content is not None:
        contents = [value.content] if isinstance(value.content, str) else value.content
        parts += [_convert_item(each) for each in contents]
    if value.metadata is not None:
        parts.append(Resource(uri=METADATA_URI, text=as_text(value.metadata), mime_type="application/json"))
    return Output(data=output.data, parts=tuple(parts))


def _convert_content(value: Any) -> Any:
    from pydantic_ai import BinaryContent
    from pydantic_ai.messages import FileUrl

    media = (BinaryContent, FileUrl)
    if isinstance(value, media):
        return _convert_item(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, media) for item in value):
        return [_convert_item(item) for item in value]
    return value


def _convert_item(value: Any) -> Content:
    from pydantic_ai import BinaryContent
    from pydantic_ai.messages import FileUrl

    if isinstance(value, BinaryContent):
        return make_part_from_bytes(value.data, value.media_type)
    if isinstance(value, FileUrl):
        return make_part_from_url(value.url)
    return Text(text=as_text(value))


@contextmanager
def _translate_errors() -> Iterator[None]:
    from pydantic import ValidationError
    from pydantic_ai import ApprovalRequired, CallDeferred, ModelRetry
    from pydantic_ai.exceptions import ToolFailed

    try:
        yield
    except ModelRetry as error:
        raise Retry(error.message) from error
    except ToolFailed as error:
        raise ExecutionFailed(error.message, advice="give_up") from error
    except ApprovalRequired as error:
        raise NeedsApproval("A person must approve this call first.") from error
    except CallDeferred as error:
        raise Refuse("The tool defers this call to another process and returns no result here.") from error
    except ValidationError as error:
        raise convert_validation_error(error) from error
