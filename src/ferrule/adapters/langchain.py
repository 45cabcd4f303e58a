"""A library's tools for LangChain and LangGraph: `tools = as_langchain_tools(library)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import PrivateAttr

from ferrule.adapters.door import Door
from ferrule.adapters.parts import base64_of, shown_parts, text_of_part
from ferrule.call import ToolExecutionContext, ToolExecutionResult
from ferrule.content import Content, Image
from ferrule.errors import MissingExtra
from ferrule.library import UnifiedToolLibrary

try:
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import BaseTool, ToolException
except ModuleNotFoundError as error:
    raise MissingExtra("langchain-core", "langchain") from error


def as_langchain_tools(library: UnifiedToolLibrary, tools: Sequence[str] | None = None) -> list[BaseTool]:
    """Every action of the library's tools, or of those named, as a LangChain tool.

    Their calls are one run, with one memory, unless the caller's `config` names a `thread_id`.
    """
    door = Door(library, tools, framework="langchain")
    return [FerruleTool.of(door, schema) for schema in door.schemas()]


class FerruleTool(BaseTool):
    """A tool of a library. Its artifact is the whole `ToolExecutionResult`."""

    handle_tool_error: Any = True
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    _door: Door = PrivateAttr()

    @classmethod
    def of(cls, door: Door, schema: dict[str, Any]) -> FerruleTool:
        made = cls(name=schema["name"], description=schema["description"], args_schema=schema["parameters"])
        made._door = door
        return made

    def _run(self, /, *, _config: RunnableConfig, **arguments: Any) -> tuple[Any, ToolExecutionResult]:
        return _settled(self._door.call_and_wait(self.name, arguments, self._context(_config)))

    async def _arun(self, /, *, _config: RunnableConfig, **arguments: Any) -> tuple[Any, ToolExecutionResult]:
        return _settled(await self._door.call(self.name, arguments, self._context(_config)))

    def _context(self, config: RunnableConfig) -> ToolExecutionContext:
        thread = config.get("configurable", {}).get("thread_id")
        run = self._door if thread is None else str(thread)
        return self._door.context(run=run, conversation_id=None if thread is None else str(thread), config=config)


def _settled(result: ToolExecutionResult) -> tuple[Any, ToolExecutionResult]:
    if not result.is_success:
        raise ToolException(result.text)
    parts = shown_parts(result)
    return [_block(part) for part in parts] if parts else result.text, result


def _block(part: Content) -> dict[str, Any]:
    if isinstance(part, Image):
        return {"type": "image", "base64": base64_of(part), "mime_type": part.mime_type}
    return {"type": "text", "text": text_of_part(part)}
