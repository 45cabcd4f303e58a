"""The server of the SDK whose requests an `McpServer` answers.

This is a separate module, because the SDK takes a second to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.server import NotificationOptions, Server
from mcp.types import NotificationParams, SetLevelRequestParams

from ferrule.server.mcp.resources_and_prompts import ResourcesAndPrompts

if TYPE_CHECKING:
    from ferrule.server.mcp.server import McpServer


def make_sdk_server(name: str, mcp_server: McpServer, resources_and_prompts: ResourcesAndPrompts) -> Server[Any]:
    from ferrule import __version__

    server = GatewayServer(
        name,
        version=__version__,
        get_tool_input_schema=mcp_server.find_schema,
        on_list_tools=mcp_server.list_tools,
        on_call_tool=mcp_server.call_tool,
        on_list_resources=mcp_server.list_resources,
        on_list_resource_templates=mcp_server.list_templates,
        on_read_resource=mcp_server.read_resource,
        on_subscribe_resource=mcp_server.subscribe_resource,
        on_unsubscribe_resource=mcp_server.unsubscribe_resource,
        on_subscriptions_listen=mcp_server.listen,
        on_list_prompts=mcp_server.list_prompts,
        on_get_prompt=mcp_server.get_prompt,
        on_completion=mcp_server.complete,
    )
    server.add_notification_handler("notifications/roots/list_changed", NotificationParams, mcp_server.on_roots_changed)
    # Not as an argument: the SDK warns that the newer protocol has no such request.
    server.add_request_handler("logging/setLevel", SetLevelRequestParams, mcp_server.set_log_level)
    server.resources_and_prompts = resources_and_prompts

    async def watch_connections(ctx: Any, call_next: Any) -> Any:
        """Remember the clients of the older protocol, which are told of changes, and add the servers' instructions."""
        result = await call_next(ctx)
        if ctx.method == "initialize":
            mcp_server.on_initialized(ctx)
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            instructions = await mcp_server.join_instructions(ctx)
            if instructions:
                result = {**result, "instructions": instructions}
        return result

    server.middleware.append(watch_connections)
    return server


class GatewayServer(Server[Any]):
    """Declares what there is: clients are not offered resources if no server has any."""

    resources_and_prompts: ResourcesAndPrompts

    def get_capabilities(
        self, notification_options: NotificationOptions | None = None, *args: Any, **options: Any
    ) -> Any:
        changes = NotificationOptions(tools_changed=True, prompts_changed=True, resources_changed=True)
        capabilities = super().get_capabilities(changes, *args, **options)
        kinds = ("resources", "prompts", "completions", "logging")
        absent = {kind: None for kind in kinds if not self.resources_and_prompts.has_any(kind)}
        return capabilities.model_copy(update=absent)
