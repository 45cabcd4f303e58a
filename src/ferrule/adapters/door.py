"""The way into a library for callers in any thread, on any event loop or none.

A library's connections and workers belong to the event loop it was opened on, so every call is made there: at once
when the caller is there too, handed over when it is elsewhere. A library that nobody has opened is opened in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from ferrule.adapters.library_thread import LibraryThread
from ferrule.adapters.memories import Memories
from ferrule.call import CALLER_CONVERSATION_AGENT, ToolExecutionContext, ToolExecutionResult
from ferrule.errors import SetupError, ToolNotFound
from ferrule.library import UnifiedToolLibrary
from ferrule.names import did_you_mean

_opening = threading.Lock()


class Door:
    """The tools of a library, all of them or those named, for one agent of another framework."""

    def __init__(self, library: UnifiedToolLibrary, tools: Sequence[str] | None, *, framework: str) -> None:
        self._library, self._tools, self._framework = library, tools, framework
        self._memories = Memories()

    def schemas(self) -> list[dict[str, Any]]:
        """Name, description and parameters of what models may call now; SetupError for a tool that is not there."""
        schemas = {schema["function"]["name"]: schema["function"] for schema in self._library.schemas()}
        if self._tools is None:
            return list(schemas.values())
        wanted = {name for tool in self._tools for name in self._model_names(tool, schemas)}
        return [schema for name, schema in schemas.items() if name in wanted]

    def context(self, *, run: object, conversation_id: str | None, **variables: Any) -> ToolExecutionContext:
        """The context of a call in a run, which is told from others by a text or by being the same object."""
        return ToolExecutionContext(
            caller_id=self._framework,
            caller_type=CALLER_CONVERSATION_AGENT,
            conversation_id=conversation_id,
            variables=variables,
            memory=self._memories.of(run),
        )

    async def call(self, name: str, arguments: Any, context: ToolExecutionContext) -> ToolExecutionResult:
        home = await asyncio.to_thread(self._open) if self._library.engine.loop is None else self._library.engine.loop
        making = self._library.execute_tool(name, None, arguments, context=context)
        if home is asyncio.get_running_loop() or not home.is_running():
            return await making
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(making, home))

    def call_and_wait(self, name: str, arguments: Any, context: ToolExecutionContext) -> ToolExecutionResult:
        """The same for callers that cannot await."""
        home = self._home(name)
        call = asyncio.run_coroutine_threadsafe(
            self._library.execute_tool(name, None, arguments, context=context), home
        )
        try:
            return call.result()
        except BaseException:
            call.cancel()  # we may have been interrupted while it still runs
            raise

    def _home(self, name: str) -> asyncio.AbstractEventLoop:
        home = self._open()
        if not home.is_running():
            raise SetupError(f"Tool {name!r} cannot be called: the event loop its library was opened on has ended.")
        if home is _running_loop():
            raise SetupError(
                f"Tool {name!r} was called without await on the event loop that must run it, which then waits for "
                "itself. Use the async call (ainvoke, run), or make this call in another thread."
            )
        return home

    def _open(self) -> asyncio.AbstractEventLoop:
        """The loop the library is open on; it is opened in a thread if nobody has done it."""
        with _opening:
            if self._library.engine.loop is None:
                # It ends with the program, like one that is killed: no record is lost by that.
                LibraryThread(self._library).start()
        home = self._library.engine.loop
        assert home is not None
        return home

    def _model_names(self, tool: str, schemas: dict[str, Any]) -> list[str]:
        if tool in schemas:
            return [tool]
        try:
            spec = self._library.engine.registry.find_tool(tool).spec
        except ToolNotFound:
            raise SetupError(f"The library has no tool {tool!r}.{did_you_mean(tool, schemas)}") from None
        return [spec.model_name(capability) for capability in spec.capabilities]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
