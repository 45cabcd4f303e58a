"""Our tools for clients elsewhere."""

from ferrule.server.mcp import McpFace

__all__ = ["McpFace"]
