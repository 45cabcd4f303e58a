"""An MCP server whose action returns the result that it is given: python mirror_server.py [stdio|http PORT]"""

import sys
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult

server = MCPServer("mirror", log_level="ERROR")


@server.tool()
def reply(result: dict[str, Any]) -> CallToolResult:
    """Return this result."""
    return CallToolResult.model_validate(result)


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[2]))
