"""Servers other people wrote, where they are installed."""

import shutil

import pytest

from ferrule.executors.mcp.config import McpServerConfig
from tests.mcp_servers.making import engine_for

TIME = shutil.which("mcp-server-time")


@pytest.mark.skipif(TIME is None, reason="not installed: uv tool install mcp-server-time")
async def test_the_reference_time_server_converts_a_time():
    wanted = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    async with engine_for(McpServerConfig(command=TIME, args=("--local-timezone=UTC",))) as engine:
        result = await engine.execute("server", wanted, action="convert_time")
        wrong = await engine.execute("server", {**wanted, "time": "noon"}, action="convert_time")
    assert result.is_success and "Asia/Tokyo" in result.text
    assert not wrong.is_success and "time" in (wrong.error or "").lower()
