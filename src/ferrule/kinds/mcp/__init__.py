"""MCP servers: one tool each, whose actions are what the server lists."""
