"""An MCP server of mcp.json becomes a tool; its calls have the same checks, limits and records as all others."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from ferrule import ToolEngineConfig, UnifiedToolLibrary

SERVER = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("words")

@server.tool()
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())

server.run()
'''


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server, servers = Path(folder, "words.py"), Path(folder, "mcp.json")
        server.write_text(SERVER)
        servers.write_text(json.dumps({"mcpServers": {"words": {"command": sys.executable, "args": [str(server)]}}}))
        async with UnifiedToolLibrary(config=ToolEngineConfig(mcp_file=str(servers))) as library:
            result = await library.execute("words__count_words", {"text": "four words are here"})
            print(result.output)


if __name__ == "__main__":
    asyncio.run(main())
