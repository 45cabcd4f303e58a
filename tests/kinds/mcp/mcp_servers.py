"""Servers for the tests, and engines that use them."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from ferrule import ToolEngine, ToolEngineConfig
from ferrule.core.spec import Tool
from ferrule.kinds.mcp.config import McpServerConfig, TransportKind
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.listing import apply_listing, make_server_tool
from tests.support.waiting import until_sync

HERE = Path(__file__).parent
SDK_SERVER, RAW_SERVER = HERE / "sdk_server.py", HERE / "raw_server.py"


def program(script: Path, *arguments: Any, **more: Any) -> McpServerConfig:
    """A server started by us."""
    return McpServerConfig(command=sys.executable, args=(str(script), *map(str, arguments)), **more)


def rough(*arguments: Any, **more: Any) -> McpServerConfig:
    return program(RAW_SERVER, *arguments, **more)


def tool(config: McpServerConfig, name: str = "server") -> Tool:
    return make_server_tool(name, config, origin="mcp.json:1", listing=None)


@contextlib.asynccontextmanager
async def engine_for(config: McpServerConfig, **options: Any) -> AsyncIterator[ToolEngine]:
    """An engine that knows the actions of one server, under the name `server`."""
    engine = ToolEngine(
        ToolEngineConfig(tools_directory="no-such-folder", builtin_tools=False),
        on_elicit=options.pop("on_elicit", None),
    )
    executor = McpExecutor(**options, on_elicit=engine.on_elicit)
    engine.register_executor("mcp", executor)
    async with engine:
        engine.register(apply_listing(tool(config), await executor.connect(tool(config))))
        yield engine


@contextlib.asynccontextmanager
async def executor_for(**options: Any) -> AsyncIterator[McpExecutor]:
    executor = McpExecutor(**options)
    try:
        yield executor
    finally:
        await executor.aclose()


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
def serving(kind: TransportKind, *arguments: str, port: int | None = None) -> Iterator[str]:
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
    def answers() -> bool:
        assert process.poll() is None, "the server ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    until_sync(answers)
