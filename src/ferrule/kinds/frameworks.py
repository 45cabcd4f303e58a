"""Tools of other frameworks as tools of Ferrule: read from their objects, called the way their framework does.

Function tools of the OpenAI Agents SDK, every `BaseTool` of LangChain, and the tools and toolsets of pydantic-ai. A
framework is imported when one of its tools is read or called.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from ferrule.core.call import ToolExecutionContext, ValidationError, current_invocation
from ferrule.core.content import Audio, Content, Image, Output, Resource, Text, as_text, encode_json
from ferrule.core.spec import JsonSchema
from ferrule.errors import ExecutionFailed, InvalidArguments, NeedsApproval, Refuse, Retry, SpecError, error_text
from ferrule.kinds.function.decorator import ToolKeywords, read_options
from ferrule.process.function_reference import ObjectFunction

_KEYWORDS_WITH_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTool:
    """All that is needed to make a tool of Ferrule from a tool of another framework."""

    name: str
    description: str
    parameters: JsonSchema
    output: JsonSchema | None
    options: ToolKeywords
    call: ObjectFunction
    """Calls the tool as its framework would."""
    source_function: Callable[..., Any] | type
    """The function or class that implements the tool."""


def remove_titles(schema: Mapping[str, Any]) -> JsonSchema:
    """Remove the titles that pydantic derives from names: they cost tokens and tell a model nothing."""
    result: JsonSchema = {}
    for keyword, value in schema.items():
        if keyword in _KEYWORDS_WITH_NAMED_SCHEMAS and isinstance(value, Mapping):
            result[keyword] = {name: _remove_titles_if_schema(each) for name, each in value.items()}
        elif isinstance(value, Mapping) and keyword not in ("default", "const"):
            result[keyword] = remove_titles(value)
        elif isinstance(value, list) and keyword not in ("default", "enum", "examples", "required"):
            result[keyword] = [_remove_titles_if_schema(each) for each in value]
        elif keyword != "title":
            result[keyword] = value
    return result


def _remove_titles_if_schema(value: Any) -> Any:
    return remove_titles(value) if isinstance(value, Mapping) else value


def _require_approval(name: str, is_needed: bool, context: ToolExecutionContext) -> None:
    if is_needed and not context.is_approved:
        raise NeedsApproval(f"Tool {name!r} runs only when a person has approved the call.")


def convert_validation_error(error: Any) -> InvalidArguments:
    """Convert a pydantic `ValidationError` to `InvalidArguments`, without the values: a value may be secret."""
    errors = [
        ValidationError(
            path=".".join(map(str, detail["loc"])),
            message=f"{detail['msg']}.",
            expected=detail["type"],
            received=None,
            code=detail["type"],
        )
        for detail in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return InvalidArguments(" ".join(map(str, errors)), [each.to_dict() for each in errors])


# Images, sounds and files that other frameworks write as base64 or as URLs


def _convert_parts(value: Any, is_part: Callable[[Any], bool], convert: Callable[[Any], Content]) -> Any:
    """Convert a part, or a list that contains one. Return anything else unchanged."""
    if is_part(value):
        return convert(value)
    if isinstance(value, (list, tuple)) and any(map(is_part, value)):
        return [convert(item) for item in value]
    return value


def make_part_from_bytes(data: bytes, mime_type: str) -> Content:
    if mime_type.startswith("image/"):
        return Image(data=data, mime_type=mime_type)
    if mime_type.startswith("audio/"):
        return Audio(data=data, mime_type=mime_type)
    return Resource(uri=f"data:{mime_type}", data=data, mime_type=mime_type)


def make_part_from_base64(text: str, mime_type: str) -> Content | None:
    """Return the part for bytes in base64; None when the text is not base64."""
    try:
        return make_part_from_bytes(base64.b64decode(text, validate=True), mime_type)
    except binascii.Error:
        return None


def make_part_from_url(url: str, mime_type: str | None = None) -> Content:
    """Return the part for a URL, which may contain the data itself (`data:image/png;base64,…`)."""
    head, comma, body = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        part = make_part_from_base64(body, head.removeprefix("data:").removesuffix(";base64") or "text/plain")
        if part is not None:
            return part
    return Resource(uri=url, mime_type=mime_type)


# Sync tools with an async interface. Frameworks await a sync function by running it in a thread, which cannot be ended:
# a call that timed out would continue in it. Here nothing else runs on the event loop, so the function can run in the
# thread that awaits it, in a worker process that can be killed.


class SameThreadExecutor(ThreadPoolExecutor):
    """Runs a function immediately, in the thread that submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)  # like a thread without an event loop, where `asyncio.run` may be called
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        finally:
            asyncio._set_running_loop(loop)
        return future


def run_in_this_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end; what it would run in other threads runs in this one."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(SameThreadExecutor())
        return runner.run(coroutine)


# LangChain

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
        options={"tags": tuple(tool.tags or ()), "metadata": metadata},
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
    if isinstance(tool.args_schema, dict):
        return {}
    visible = getattr(tool.tool_call_schema, "model_fields", {})
    fields = getattr(tool.get_input_schema(), "model_fields", {})
    return {name: field for name, field in fields.items() if name not in visible}


# Calls. A tool that handles its own errors, or returns more than its content, is called with a whole tool call: it then
# returns a message that says whether it failed and contains its artifact. Others return their value as it is.


def call_langchain_tool_sync(tool: Any, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    with _translate_langchain_errors():
        return _convert_langchain_result(
            tool.invoke(_make_tool_input(tool, arguments), _context.variables.get("config"))
        )


async def call_langchain_tool_async(tool: Any, /, *, _context: ToolExecutionContext, **arguments: Any) -> Any:
    with _translate_langchain_errors():
        return _convert_langchain_result(
            await tool.ainvoke(_make_tool_input(tool, arguments), _context.variables.get("config"))
        )


def _make_tool_input(tool: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    handles_errors = tool.handle_tool_error or tool.handle_validation_error
    if not handles_errors and tool.response_format == "content" and not _injected_arguments(tool):
        return arguments
    call_id = current_invocation("A LangChain tool").call_id
    return {"type": "tool_call", "id": call_id, "name": tool.name, "args": arguments}


def _convert_langchain_result(result: Any) -> Any:
    from langchain_core.messages import ToolMessage

    if not isinstance(result, ToolMessage):
        return _convert_blocks(result)
    if result.status == "error":
        raise ExecutionFailed(result.text or "The tool failed without a message.")
    output = Output.of(_convert_blocks(result.content))
    if result.artifact is None:
        return output
    artifact = Resource(uri=ARTIFACT_URI, text=as_text(result.artifact), mime_type="application/json")
    return Output(data=output.data, parts=(*output.parts, artifact))


def _convert_blocks(content: Any) -> Any:
    def is_media(block: Any) -> bool:
        return isinstance(block, dict) and block.get("type") in ("image", "image_url", "audio")

    return _convert_parts(content, is_media, _convert_block) if isinstance(content, list) else content


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
def _translate_langchain_errors() -> Iterator[None]:
    from langchain_core.tools import ToolException
    from pydantic import ValidationError

    try:
        yield
    except ToolException as error:
        raise ExecutionFailed(error_text(error) or "ToolException") from error
    except ValidationError as error:
        raise convert_validation_error(error) from error


# The OpenAI Agents SDK


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
        options=read_options(
            tool.name, {"timeout": tool.timeout_seconds, "enabled": tool.is_enabled, "metadata": metadata}
        ),
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
    needs_approval = not _context.is_approved and tool.needs_approval
    if callable(needs_approval):
        needs_approval = needs_approval(context, arguments, call_id)
        needs_approval = await needs_approval if inspect.isawaitable(needs_approval) else needs_approval
    _require_approval(tool.name, needs_approval, _context)
    raising_tool = set_function_tool_failure_error_function(copy.copy(tool), None)
    try:
        return _convert_outputs(await raising_tool.on_invoke_tool(context, json_arguments))
    except ModelBehaviorError as error:
        raise InvalidArguments(str(error)) from error
    except Exception as error:
        text = await _custom_error_text(tool, context, error)
        if text is None:
            raise
        raise ExecutionFailed(text) from error


async def _custom_error_text(tool: Any, context: Any, error: Exception) -> str | None:
    """Return the text of the tool's own error function; None when it has none."""
    from agents.tool import default_tool_error_function, resolve_function_tool_failure_error_function

    describe = resolve_function_tool_failure_error_function(tool, context)
    if describe is None or describe is default_tool_error_function:
        return None
    text = describe(context, error)
    return str(await text if inspect.isawaitable(text) else text)


def _convert_outputs(value: Any) -> Any:
    from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText

    def is_output(item: Any) -> bool:
        return isinstance(item, (ToolOutputText, ToolOutputImage, ToolOutputFileContent))

    def convert(item: Any) -> Content:
        if not is_output(item):
            return Text(text=as_text(item))
        if item.type == "text":
            return Text(text=item.text)
        if item.type == "image":
            return make_part_from_url(item.image_url or f"openai-file:{item.file_id}", "image/*")
        if item.file_data is not None:
            part = make_part_from_base64(item.file_data, "application/octet-stream")
            return part or make_part_from_url(item.file_data)
        return Resource(uri=item.file_url or f"openai-file:{item.file_id}")

    return _convert_parts(value, is_output, convert)


# pydantic-ai

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
    call = call_pydantic_ai_tool_async if getattr(tool, "is_async", True) else call_pydantic_ai_tool_sync
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
        options=read_options(definition.name, {"timeout": definition.timeout, "metadata": metadata}),
        call=call,
        source_function=source_function,
    )


# Calls. A tool that takes a `RunContext` gets one with what is known about the call. Its `deps` are `variables["deps"]`
# of the call's context, or those the toolset was listed with. It has no model: a tool that uses one fails.


def call_pydantic_ai_tool_sync(
    tool: Any, toolset: Any = None, deps: Any = None, /, *, _context: ToolExecutionContext, **arguments: Any
) -> Any:
    from pydantic_ai import Agent

    with Agent.using_thread_executor(SameThreadExecutor()):
        return run_in_this_thread(call_pydantic_ai_tool_async(tool, toolset, deps, _context=_context, **arguments))


async def call_pydantic_ai_tool_async(
    tool: Any, toolset: Any = None, deps: Any = None, /, *, _context: ToolExecutionContext, **arguments: Any
) -> Any:
    """Call a `Tool`, or a tool that a toolset has listed."""
    name = tool.tool_def.name
    _require_approval(name, tool.tool_def.kind == "unapproved", _context)
    context = make_run_context(name, deps, _context)
    schema_validator = tool.function_schema.validator if toolset is None else tool.args_validator
    check_arguments = tool.args_validator if toolset is None else tool.args_validator_func
    with _translate_pydantic_ai_errors():
        validated = schema_validator.validate_python(arguments)
        if check_arguments is not None:
            result = check_arguments(context, **validated)
            if inspect.isawaitable(result):
                await result
        if toolset is None:
            return _convert_tool_return(await tool.function_schema.call(validated, context))
        return _convert_tool_return(await toolset.call_tool(name, validated, context, tool))


def make_run_context(name: str | None, deps: Any, context: ToolExecutionContext) -> Any:
    """Make a `RunContext` without an agent."""
    from pydantic_ai import RunContext
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import RunUsage

    def refuse_model_use(messages: Any, info: Any) -> NoReturn:
        raise ExecutionFailed("This tool uses the model of its agent, but Ferrule calls it without an agent.")

    call_id = None if name is None else current_invocation("A pydantic-ai tool").call_id
    return RunContext(
        deps=context.variables.get("deps", deps),
        model=FunctionModel(refuse_model_use),
        usage=RunUsage(),
        tool_name=name,
        tool_call_id=call_id,
        tool_call_approved=context.is_approved,
        conversation_id=context.conversation_id,
    )


def _convert_tool_return(value: Any) -> Any:
    from pydantic_ai import BinaryContent, ToolReturn
    from pydantic_ai.messages import FileUrl

    def is_media(item: Any) -> bool:
        return isinstance(item, (BinaryContent, FileUrl))

    def convert(item: Any) -> Content:
        if isinstance(item, BinaryContent):
            return make_part_from_bytes(item.data, item.media_type)
        return make_part_from_url(item.url) if isinstance(item, FileUrl) else Text(text=as_text(item))

    if not isinstance(value, ToolReturn):
        return _convert_parts(value, is_media, convert)
    output = Output.of(_convert_parts(value.return_value, is_media, convert))
    parts = list(output.parts)
    if value.content is not None:
        contents = [value.content] if isinstance(value.content, str) else value.content
        parts += [convert(each) for each in contents]
    if value.metadata is not None:
        parts.append(Resource(uri=METADATA_URI, text=as_text(value.metadata), mime_type="application/json"))
    return Output(data=output.data, parts=tuple(parts))


@contextmanager
def _translate_pydantic_ai_errors() -> Iterator[None]:
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
