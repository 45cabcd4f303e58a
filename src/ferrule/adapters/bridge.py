"""Calls to a library from any thread, with any event loop or none.

A library's connections and workers belong to the event loop it was opened on, so every call is made there: directly
when the caller runs on that loop, handed over otherwise. A library that has not been opened is opened in a thread.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, Self

from ferrule.core.call import CALLER_CONVERSATION_AGENT, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import Audio, Content, Image, Resource, Text, as_text, describe_part
from ferrule.core.names import ACTION_SEPARATOR, did_you_mean
from ferrule.core.permission import Principal
from ferrule.errors import APPROVAL_REQUIRED, SetupError, ToolNotFound
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory import RunMemory

MAX_RUN_MEMORIES: Final = 256
"""How many runs have a memory. The least recently used memories are dropped first."""

_open_lock = threading.Lock()


class LibraryBridge:
    """The tools of a library, all or some of them, for one agent of another framework."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        tools: Sequence[str] | None,
        *,
        framework: str,
        memory: bool = False,
        principal: Principal | None = None,
    ) -> None:
        """With `memory`, a call that is known to fail is not made again in the same run.

        `principal` makes the calls; by default an agent, because a model of the framework chooses them.
        """
        self._library, self._tools, self._framework = library, tools, framework
        principal = principal or Principal(kind="agent", name=framework)
        self._principal = principal if tools is None else principal.restricted_to(tools)
        self._memories = RunMemories() if memory else None

    def schemas(self) -> list[dict[str, Any]]:
        """Name, description and parameters of what models may call now; SetupError for a tool that does not exist."""
        registry = self._library.engine.registry
        for tool in self._tools or ():
            try:
                registry.find(tool) if ACTION_SEPARATOR in tool else registry.find_tool(tool)
            except ToolNotFound:
                names = registry.snapshot().by_id
                raise SetupError(f"The library has no tool {tool!r}.{did_you_mean(tool, names)}") from None
        return [schema["function"] for schema in self._library.schemas(principal=self._principal)]

    def context(self, *, run: object, conversation_id: str | None, **variables: Any) -> ToolExecutionContext:
        """Return the context of a call in a run, identified by a text or by an object that the calls of a run share."""
        return ToolExecutionContext(
            caller_id=self._framework,
            caller_type=CALLER_CONVERSATION_AGENT,
            conversation_id=conversation_id,
            variables=variables,
            principal=self._principal,
            memory=None if self._memories is None else self._memories.of(run),
        )

    async def call(
        self,
        name: str,
        arguments: Any,
        context: ToolExecutionContext,
        *,
        is_approved: bool = False,
        approval_id: str | None = None,
    ) -> ToolExecutionResult:
        """Make a call. `is_approved`: a user of the framework has approved it there, or else what `approval_id` names.

        An approval of a call is none of the calls that its tool makes.
        """
        loop = self._library.engine.loop
        if loop is None:
            loop = await asyncio.to_thread(self._open)
        call = self._execute(name, arguments, context, is_approved, approval_id)
        if loop is asyncio.get_running_loop() or not loop.is_running():
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))

    def call_and_wait(
        self, name: str, arguments: Any, context: ToolExecutionContext, *, approval_id: str | None = None
    ) -> ToolExecutionResult:
        """Like `call`, for callers that cannot await."""
        loop = self._open()
        if not loop.is_running():
            raise SetupError(f"Tool {name!r} cannot be called: the event loop its library was opened on has ended.")
        if loop is _running_loop():
            raise SetupError(
                f"Tool {name!r} was called without await on the event loop that must run it, which would wait for "
                "itself. Use the async call (ainvoke, run), or make this call in another thread."
            )
        call = asyncio.run_coroutine_threadsafe(self._execute(name, arguments, context, False, approval_id), loop)
        try:
            return call.result()
        except BaseException:
            call.cancel()  # this thread may have been interrupted while the call still runs
            raise

    def needs_approval(self, name: str, arguments: Mapping[str, Any] | None = None) -> bool:
        """Return whether the policy asks a person about a call; without arguments, whether it may ask about one."""
        try:
            tool, capability = self._library.engine.registry.find(name)
        except ToolNotFound:
            return False
        decision = self._library.engine.permissions(self._principal).decide(tool, capability, arguments)
        return decision.verdict == "ask" or (arguments is None and decision.depends_on_arguments)

    async def _execute(
        self, name: str, arguments: Any, context: ToolExecutionContext, is_approved: bool, approval_id: str | None
    ) -> ToolExecutionResult:
        approvals = self._library.engine.approvals
        result = await self._library.execute_tool(name, None, arguments, context=context)
        if not (is_approved or approval_id) or result.error_type != APPROVAL_REQUIRED:
            return result
        request = await approvals.get(result.metadata["approval_id"])
        if not (request.approval_id == approval_id or (is_approved and request.principal == self._principal.identity)):
            return result  # a tool makes another call now than the one that was shown
        await approvals.record_decision(request.approval_id, True, by=f"a user of {self._framework}")
        return await self._library.execute_tool(
            name, None, arguments, context=replace(context, approval_id=request.approval_id)
        )

    def _open(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that the library is open on. Opens the library in a thread if necessary."""
        with _open_lock:
            if self._library.engine.loop is None:
                # The thread ends with the program and does not close the library; no record is lost.
                LibraryThread(self._library).start()
        loop = self._library.engine.loop
        assert loop is not None
        return loop


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class LibraryThread:
    """A library opened on its own event loop in a thread, for programs without an event loop.

    `with LibraryThread(library): …` closes it at the end.
    """

    def __init__(self, library: UnifiedToolLibrary) -> None:
        self._library = library
        self._opened: Future[None] = Future()
        # A daemon thread, so that a program that forgets to stop it can still end.
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="ferrule-library", daemon=True)

    def start(self) -> None:
        """Wait until the library is open. Raises the error that prevented it."""
        self._thread.start()
        self._opened.result()

    def stop(self) -> None:
        """Close the library and end the thread. May be called more than once."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._library:
                self._opened.set_result(None)
                await self._stop.wait()
        except BaseException as error:  # `start` raises it in the thread of the caller
            if self._opened.done():
                raise
            self._opened.set_exception(error)


class RunMemories:
    """The memories of the runs of another framework's agent. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memories: OrderedDict[Any, tuple[object, RunMemory]] = OrderedDict()

    def of(self, run: object) -> RunMemory:
        """Return the memory of a run, identified by a text, or by an object that is the same for all its calls."""
        key = run if isinstance(run, str) else id(run)
        with self._lock:
            if key not in self._memories:
                # The object is stored too, so that its id is not given to another object.
                self._memories[key] = (run, RunMemory())
                if len(self._memories) > MAX_RUN_MEMORIES:
                    self._memories.popitem(last=False)
            self._memories.move_to_end(key)
            return self._memories[key][1]


# The parts of a result, for frameworks that can show some of them to a model


def select_visible_parts(result: ToolExecutionResult) -> list[Content]:
    """Return what a model should see of a result with more than text: the text first, unless it only lists parts."""
    is_parts_only = set(result.output) == {"content"}
    kinds = (Image, Audio, Text, Resource) if is_parts_only else (Image, Audio)
    parts = [part for part in result.content if isinstance(part, kinds)]
    return parts if is_parts_only or not parts else [Text(text=result.text), *parts]


def convert_part_to_text(part: Content) -> str:
    """Return a part as text, for a model that cannot see it."""
    return part.text if isinstance(part, Text) else as_text(describe_part(part))


def encode_base64(part: Image | Audio) -> str:
    return base64.b64encode(part.data).decode()
