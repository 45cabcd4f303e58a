"""Reading resources and getting prompts of MCP servers as calls: with policy, slots, timeouts, approvals and records.

To the engine they are two more actions of a server, `files__resources` and `files__prompts`, which are listed nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ferrule.core.call import CALLER_CONVERSATION_AGENT, Invocation, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import Output
from ferrule.core.permission import CallPolicy, Principal
from ferrule.core.spec import Effects, Tool, ToolCapability
from ferrule.errors import ExecutionFailed
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.library.library import UnifiedToolLibrary
from ferrule.server.mcp.calls import ANSWER_TIMEOUT

REQUEST_HANDLER: Final = "mcp_request"
_READING: Final = Effects(read_only=True, open_world=True)
_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
RESOURCES: Final = ToolCapability(
    name="resources",
    description="Read a resource.",
    parameters={"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
    effects=_READING,
)
PROMPTS: Final = ToolCapability(
    name="prompts",
    description="Get a prompt.",
    parameters={
        "type": "object",
        "properties": {"name": {"type": "string"}, "arguments": _TEXTS},
        "required": ["name"],
    },
    effects=_READING,
)


class ServerRequests:
    """Makes such calls for the clients of one MCP server of ours."""

    def __init__(self, library: UnifiedToolLibrary, policy: CallPolicy | None) -> None:
        self._engine, self._policy = library.engine, policy
        self._tools: dict[str, tuple[Tool, Tool]] = {}
        """The servers, and each with the actions of this module."""
        self._engine.register_executor(REQUEST_HANDLER, RequestExecutor(self._engine.mcp))

    def make_context(self, principal: Principal, conversation_id: str) -> ToolExecutionContext:
        return ToolExecutionContext(
            caller_id=principal.name,
            caller_type=CALLER_CONVERSATION_AGENT,
            conversation_id=conversation_id,
            principal=principal,
            policy=self._policy,
        )

    async def execute(
        self, tool: Tool, action: ToolCapability, params: Mapping[str, Any], context: ToolExecutionContext
    ) -> ToolExecutionResult:
        return await self._engine.execute_candidate(self._find_tool(tool), action.name, params, context)

    def _find_tool(self, tool: Tool) -> Tool:
        original, derived = self._tools.get(tool.id, (None, tool))
        if original is not tool:
            spec = replace(tool.spec, capabilities=[RESOURCES, PROMPTS])
            derived = replace(tool, spec=spec, handler=REQUEST_HANDLER)
            self._tools[tool.id] = tool, derived
        return derived


def unwrap_answer(result: ToolExecutionResult) -> Any:
    """What the server answered; MCPError as it answered, or because the request was not allowed or failed."""
    from mcp.shared.exceptions import MCPError
    from mcp.types import INTERNAL_ERROR

    if result.is_success:
        return result.original
    if isinstance(result.original, MCPError):
        raise result.original
    raise MCPError(code=INTERNAL_ERROR, message=result.error or "The request failed.")


class RequestExecutor:
    """Asks the server of a tool."""

    def __init__(self, mcp: McpExecutor) -> None:
        self._mcp = mcp

    async def execute(self, invocation: Invocation, /) -> Output:
        from mcp.shared.exceptions import MCPError

        params = invocation.params

        async def ask(client: Any) -> Any:
            if invocation.capability.name == RESOURCES.name:
                return await client.read_resource(params["uri"])
            return await client.get_prompt(params["name"], params.get("arguments"))

        account = invocation.context.principal.account
        try:
            answer = await self._mcp.request(
                invocation.tool, lambda connection: connection.request(ask), account, timeout=ANSWER_TIMEOUT
            )
        except MCPError as error:
            failure = ExecutionFailed(f"{invocation.tool.id!r} answered with an error: {error.message}")
            failure.original = error
            raise failure from None
        return Output(data=answer.model_dump(mode="json", by_alias=True, exclude_none=True), original=answer)
