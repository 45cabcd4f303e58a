"""A library's tools for pydantic-ai: `Agent(model, toolsets=[FerruleToolset(library)])`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrule.adapters.door import Door
from ferrule.adapters.parts import shown_parts, text_of_part
from ferrule.call import ToolExecutionResult
from ferrule.content import Audio, Content, Image
from ferrule.errors import VALIDATION_ERROR, MissingExtra
from ferrule.library import UnifiedToolLibrary
from ferrule.sources.toolset import tools_of_toolset

try:
    from pydantic_ai import AbstractToolset, BinaryContent, ModelRetry, RunContext, ToolDefinition, ToolReturn
    from pydantic_ai.exceptions import ToolFailed
    from pydantic_ai.toolsets import ToolsetTool
    from pydantic_core import SchemaValidator, core_schema
except ModuleNotFoundError as error:
    raise MissingExtra("pydantic-ai-slim", "pydantic-ai") from error

__all__ = ["FerruleToolset", "tools_of_toolset"]

# The engine checks arguments, and says more about what is wrong with them.
_ANYTHING = SchemaValidator(core_schema.any_schema())


class FerruleToolset(AbstractToolset[Any]):
    """Every action of a library's tools, or of those named, as they are at each step of a run.

    An agent's `deps` are `variables["deps"]` of the calls' contexts.
    """

    def __init__(
        self, library: UnifiedToolLibrary, tools: Sequence[str] | None = None, *, id: str | None = None
    ) -> None:
        self._door = Door(library, tools, framework="pydantic-ai")
        self._id = id

    @property
    def id(self) -> str | None:
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {
            schema["name"]: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=schema["name"],
                    description=schema["description"],
                    parameters_json_schema=schema["parameters"],
                    strict=False,
                ),
                max_retries=ctx.max_retries,
                args_validator=_ANYTHING,
            )
            for schema in self._door.schemas()
        }

    async def call_tool(self, name: str, tool_args: Any, ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        context = self._door.context(run=ctx.run_id or ctx.usage, conversation_id=ctx.conversation_id, deps=ctx.deps)
        return _settled(await self._door.call(name, tool_args, context))


def _settled(result: ToolExecutionResult) -> Any:
    if not result.is_success:
        mend = result.error_type == VALIDATION_ERROR or result.metadata.get("advice") == "change_arguments"
        raise ModelRetry(result.text) if mend else ToolFailed(result.text)
    parts = shown_parts(result)
    value = [_shown(part) for part in parts] if parts else _value(result)
    return ToolReturn(value, metadata={"call_id": result.call_id, **result.metadata})


def _value(result: ToolExecutionResult) -> Any:
    return result.output["result"] if set(result.output) == {"result"} else result.output


def _shown(part: Content) -> Any:
    if isinstance(part, (Image, Audio)):
        return BinaryContent(part.data, media_type=part.mime_type)
    return text_of_part(part)
