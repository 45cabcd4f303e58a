"""Servers for the tests, and engines that use them."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from ferrule import ToolEngine, ToolEngineConfig
from ferrule.executors.mcp.config import Kind, McpServerConfig
from ferrule.executors.mcp.executor import McpExecutor
from ferrule.sources.mcp_tool import tool_of_server, with_listing
from ferrule.spec import Tool

HERE = Path(__file__).parent
SDK_SERVER, ROUGH_SERVER = HERE / "server.py", HERE / "rough_server.py"


def program(script: Path, *arguments: Any, **more: Any) -> McpServerConfig:
    """A server started by us."""
    return McpServerConfig(command=sys.executable, args=(str(script), *map(str, arguments)), **more)


def rough(*arguments: Any, **more: Any) -> McpServerConfig:
    return program(ROUGH_SERVER, *arguments, **more)


def tool(config: McpServerConfig, name: str = "server") -> Tool:
    return tool_of_server(name, config, origin="mcp.json:1", listing=None)


@contextlib.asynccontextmanager
async def engine_for(config: McpServerConfig, **options: Any) -> AsyncIterator[ToolEngine]:
    """An engine that knows the actions of one server, under the name `server`."""
    executor = McpExecutor(**options)
    engine = ToolEngine(ToolEngineConfig(tools_directory="no-such-folder", builtin_tools=False))
    engine.register_executor("mcp", executor)
    async with engine:
        engine.register(with_listing(tool(config), await executor.connect(tool(config))))
        yield engine


@contextlib.asynccontextmanager
async def executor_for(**options: Any) -> AsyncIterator[McpExecutor]:
    executor = McpExecutor(**options)
    try:
        yield executor
    finally:
        await executor.aclose()


async def eventually(happened: Callable[[], bool], within: float = 10.0) -> None:
    async with asyncio.timeout(within):
        while not happened():
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def listening(script: Path, *arguments: str) -> Iterator[str]:
    """A server that is told its port as its last argument; gives the beginning of its addresses."""
    port = free_port()
    with subprocess.Popen([sys.executable, str(script), *arguments, str(port)]) as process:
        try:
            wait_for(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@contextlib.contextmanager
def serving(kind: Kind, *arguments: str, port: int | None = None) -> Iterator[str]:
    """A server on the SDK that listens on a port of this machine; gives its address."""
    port = port or free_port()
    with subprocess.Popen([sys.executable, str(SDK_SERVER), kind, "--port", str(port), *arguments]) as process:
        try:
            wait_for(port, process)
            yield {"ws": f"ws://127.0.0.1:{port}", "sse": f"http://127.0.0.1:{port}/sse"}.get(
                kind, f"http://127.0.0.1:{port}/mcp"
            )
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, "the server ended"
        time.sleep(0.05)
    raise AssertionError("the server did not start")
