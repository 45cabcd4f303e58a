"""The server of the benchmark `mcp`: with the official SDK, or (`raw`) without."""

import json
import sys


def serve() -> None:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("adder", log_level="ERROR")

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Add two integers."""
        return a + b

    server.run("stdio")


def serve_without_sdk() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if message["method"] != "tools/call":
            continue
        arguments = message["params"]["arguments"]
        total = arguments["a"] + arguments["b"]
        result = {"content": [{"type": "text", "text": str(total)}], "structuredContent": {"result": total}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    serve_without_sdk() if sys.argv[1:] == ["raw"] else serve()
