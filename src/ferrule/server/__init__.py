"""Serves the tools of a library to other programs."""

from ferrule.server.mcp import McpServer

__all__ = ["McpServer"]
