"""A library's tools for clients of MCP: every call through the same door as any other.

A client that goes away, or cancels, ends its calls. What a tool asks the user is asked by the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from ferrule.call import CALLER_CONVERSATION_AGENT, ToolExecutionContext, ToolExecutionResult
from ferrule.describe.schemas import NamedAction, actions_by_name
from ferrule.errors import SetupError, ToolNotFound
from ferrule.events import ToolEngineEvent, ToolEngineEventType
from ferrule.library import UnifiedToolLibrary
from ferrule.memory import RunMemory
from ferrule.memory.failure_class import POLICIES, FailureClass, FailureClassifier, FailurePolicy
from ferrule.names import did_you_mean
from ferrule.server.mcp_asking import Asking, Client
from ferrule.server.mcp_values import result_of, tool_of
from ferrule.spec import Effects

if TYPE_CHECKING:
    from mcp.server import Server

logger = logging.getLogger("ferrule.server")

CHANGES: Final = frozenset(
    {ToolEngineEventType.TOOL_ADDED, ToolEngineEventType.TOOL_UPDATED, ToolEngineEventType.TOOL_REMOVED}
)


REST: Final = 60.0
"""Seconds after which a call that failed may be made again, doubled each time: nobody tells us that a user wants it."""


class McpFace:
    """Serves a library. To let its tools ask users, open the library with `on_elicit=ask_the_client`."""

    def __init__(
        self, library: UnifiedToolLibrary, *, tools: Collection[str] | None = None, name: str = "ferrule"
    ) -> None:
        """`tools` are the only ones that clients see and may call."""
        self._library, self._name = library, name
        self._tools = None if tools is None else frozenset(tools)
        self._conversation = uuid4().hex[:16]
        self._memory = RunMemory(classifier=FailureClassifier(policies=_resting()))
        self._session: Any = None
        """The client's, to tell it of changes."""
        self._asking = Asking()
        self._sending: set[asyncio.Task[None]] = set()

    async def serve_stdio(self) -> None:
        """Serve the client that started this process, until it goes away."""
        from mcp.server import NotificationOptions
        from mcp.server.stdio import stdio_server

        self._check()
        stop = self._library.engine.subscribe(self._tell_of_changes, lambda event: event.event_type in CHANGES)
        server = self.server()
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        try:
            async with stdio_server() as (reading, writing):
                await server.run(reading, writing, options)
        finally:
            stop()
            await self._asking.aclose()

    def server(self) -> Server[Any]:
        """The server of the SDK, for other transports. What one client's calls came to is remembered for all of it."""
        from mcp.server import Server

        from ferrule import __version__

        return Server(self._name, version=__version__, on_list_tools=self._list, on_call_tool=self._call)

    async def _list(self, context: Any, params: Any) -> Any:
        from mcp.types import ListToolsResult

        self._session = context.session
        snapshot = self._library.engine.registry.snapshot()
        found = [tool for tool_id in snapshot.by_id if (tool := snapshot.get(tool_id)) and self._may_use(tool_id)]
        return ListToolsResult(tools=[tool_of(action, self._effects(action)) for action in actions_by_name(found)])

    async def _call(self, context: Any, params: Any) -> Any:
        if params.request_state is not None:
            return await self._asking.go_on(params)
        calling = partial(self._execute, params.name, params.arguments or {})
        return await self._asking.while_asking(calling, Client(context.session, context.request_id), result_of)

    async def _execute(self, name: str, arguments: dict[str, Any]) -> ToolExecutionResult:
        context = ToolExecutionContext(
            caller_id="mcp",
            caller_type=CALLER_CONVERSATION_AGENT,
            conversation_id=self._conversation,
            allowed_tools=self._tools,
            memory=self._memory,
        )
        engine = self._library.engine
        try:
            tool, capability = engine.registry.find(name)
        except ToolNotFound:  # unless a server is just about to list it
            await engine.discovered()
            tool, capability = engine.registry.find(name)
        if not self._may_use(tool.id):
            return engine.refuse(name, arguments, context, f"The tool {name!r} is not offered here.")
        # By its action too: without one the hub takes actions of that name for it, which clients were not shown.
        return await self._library.execute_tool(tool.id, capability.name, arguments, context=context)

    def _effects(self, action: NamedAction) -> Effects:
        """What a call may do, whichever of the tools of that name does it."""
        found = self._library.hub.find_by_name(action.spec.tool_id, action.capability.name)
        effects = [action.spec.effects_of(action.capability), *(one.effects for one in found)]
        return Effects(
            read_only=all(one.read_only for one in effects),
            idempotent=all(one.repeatable for one in effects),
            destructive=any(one.destructive for one in effects),
        )

    def _may_use(self, tool_id: str) -> bool:
        return self._tools is None or tool_id in self._tools

    def _check(self) -> None:
        """SetupError for a tool that nobody has."""
        known = self._library.engine.registry.snapshot().by_id
        for name in self._tools or ():
            if name not in known:
                raise SetupError(f"The library has no tool {name!r}.{did_you_mean(name, known)}")

    def _tell_of_changes(self, event: ToolEngineEvent) -> None:
        if self._session is not None:
            task = asyncio.ensure_future(_tell(self._session))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)


def _resting() -> dict[FailureClass, FailurePolicy]:
    return {kind: replace(policy, rest=policy.rest or REST) for kind, policy in POLICIES.items()}


async def _tell(session: Any) -> None:
    try:
        await session.send_tool_list_changed()
    except Exception as error:  # it is only news: the client may be gone, or speak the protocol that sends none unasked
        logger.debug("error=<%s> | a client could not be told of changes", error)
