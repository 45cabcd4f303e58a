"""Calling pydantic-ai tools: functions, and tools of any toolset.

A tool that wants a `RunContext` gets one with what is known about the call. Its `deps` are `variables["deps"]` of the
call's context, else those the toolset was read with. There is no model in it: a tool that asks one is told so.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ferrule.call import ToolExecutionContext, running_invocation
from ferrule.content import Content, Output, Resource, Text, as_text
from ferrule.errors import ExecutionFailed, NeedsApproval, Refuse, Retry
from ferrule.executors.foreign.media import part_of_address, part_of_bytes
from ferrule.executors.foreign.own_loop import SameThread, run_in_this_thread
from ferrule.executors.foreign.refusals import invalid_arguments

METADATA = "pydantic-ai:metadata"
"""The address of the part that holds what a tool says to the application only."""


def run_pydantic_ai_tool(tool: Any, deps: Any = None, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    from pydantic_ai import Agent

    with Agent.using_thread_executor(SameThread()):
        return run_in_this_thread(call_pydantic_ai_tool(tool, deps, _context=_context, **arguments))


async def call_pydantic_ai_tool(
    tool: Any, deps: Any = None, /, *, _context: ToolExecutionContext, **arguments: Any
) -> Any:
    if tool.requires_approval and not _context.approved:
        raise _needs_approval(tool.name)
    context = run_context(tool.name, deps, _context)
    with _our_failures():
        checked = tool.function_schema.validator.validate_python(arguments)
        await _ask(tool.args_validator, context, checked)
        return _settled(await tool.function_schema.call(checked, context))


def run_toolset_tool(tool: Any, toolset: Any, deps: Any, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    from pydantic_ai import Agent

    with Agent.using_thread_executor(SameThread()):
        return run_in_this_thread(call_toolset_tool(tool, toolset, deps, _context=_context, **arguments))


async def call_toolset_tool(
    tool: Any, toolset: Any, deps: Any, /, *, _context: ToolExecutionContext, **arguments: Any
) -> Any:
    name = tool.tool_def.name
    if tool.tool_def.kind == "unapproved" and not _context.approved:
        raise _needs_approval(name)
    context = run_context(name, deps, _context)
    with _our_failures():
        checked = tool.args_validator.validate_python(arguments)
        await _ask(tool.args_validator_func, context, checked)
        return _settled(await toolset.call_tool(name, checked, context, tool))


def run_context(name: str | None, deps: Any, context: ToolExecutionContext) -> Any:
    """What stands for an agent's run."""
    from pydantic_ai import RunContext
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import RunUsage

    call_id = None if name is None else running_invocation("A pydantic-ai tool").call_id
    return RunContext(
        deps=context.variables.get("deps", deps),
        model=FunctionModel(_no_model),
        usage=RunUsage(),
        tool_name=name,
        tool_call_id=call_id,
        tool_call_approved=context.approved,
        conversation_id=context.conversation_id,
    )


def _no_model(messages: Any, info: Any) -> NoReturn:
    raise ExecutionFailed(
        "This tool asks the model of its agent, but there is none: Ferrule calls it without an agent."
    )


async def _ask(validator: Any, context: Any, checked: dict[str, Any]) -> None:
    if validator is not None:
        answer = validator(context, **checked)
        if inspect.isawaitable(answer):
            await answer


def _needs_approval(name: str) -> NeedsApproval:
    return NeedsApproval(f"Tool {name!r} runs only when a person has approved the call.")


def _settled(value: Any) -> Any:
    from pydantic_ai import ToolReturn

    if not isinstance(value, ToolReturn):
        return _content(value)
    output = Output.of(_content(value.return_value))
    parts = list(output.parts)
    if value.content is not None:
        said = [value.content] if isinstance(value.content, str) else value.content
        parts += [_part(each) for each in said]
    if value.metadata is not None:
        parts.append(Resource(uri=METADATA, text=as_text(value.metadata), mime_type="application/json"))
    return Output(data=output.data, parts=tuple(parts))


def _content(value: Any) -> Any:
    from pydantic_ai import BinaryContent
    from pydantic_ai.messages import FileUrl

    media = (BinaryContent, FileUrl)
    if isinstance(value, media):
        return _part(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, media) for item in value):
        return [_part(item) for item in value]
    return value


def _part(value: Any) -> Content:
    from pydantic_ai import BinaryContent
    from pydantic_ai.messages import FileUrl

    if isinstance(value, BinaryContent):
        return part_of_bytes(value.data, value.media_type)
    if isinstance(value, FileUrl):
        return part_of_address(value.url)
    return Text(text=as_text(value))


@contextmanager
def _our_failures() -> Iterator[None]:
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
        raise Refuse("The tool leaves this call to somebody else, and gives no result here.") from error
    except ValidationError as error:
        raise invalid_arguments(error) from error
