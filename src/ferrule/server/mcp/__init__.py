"""Serves a library to MCP clients, and passes on what MCP servers behind it offer."""

from ferrule.kinds.mcp.relay import ask_client
from ferrule.server.mcp.content import HIDDEN_TOOLS, make_content_blocks
from ferrule.server.mcp.server import McpServer, execute_named, serve_stdio

__all__ = ["HIDDEN_TOOLS", "McpServer", "ask_client", "execute_named", "make_content_blocks", "serve_stdio"]
