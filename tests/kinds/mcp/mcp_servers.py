"""Servers for the tests, and engines that use them."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from ferrule import ToolEngine, ToolEngineConfig
from ferrule.core.spec import Tool
from ferrule.kinds.mcp.config import McpServerConfig, TransportKind
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.listing import apply_listing, make_server_tool
from tests.support.ports import reserved_port
from tests.support.processes import ROOT, PythonProcess
from tests.support.waiting import until_sync

HERE = Path(__file__).parent
SDK_SERVER, RAW_SERVER = HERE / "sdk_server.py", HERE / "raw_server.py"


def program(script: Path, *arguments: Any, python: Sequence[str] = (sys.executable,), **more: Any) -> McpServerConfig:
    """A server started by us; `python` may be the command of `forwarded_python`."""
    return McpServerConfig(command=python[0], args=(*python[1:], str(script), *map(str, arguments)), **more)


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
    with reserved_port() as port, _running(port, str(script), *arguments, str(port)):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def serving(kind: TransportKind, *arguments: str, port: int | None = None) -> Iterator[str]:
    """A server on the SDK that listens on a port of this machine, which may be a reserved one; gives its address."""
    with contextlib.ExitStack() as stack:
        port = port or stack.enter_context(reserved_port())
        stack.enter_context(_running(port, str(SDK_SERVER), kind, "--port", str(port), *arguments))
        yield {"ws": f"ws://127.0.0.1:{port}", "sse": f"http://127.0.0.1:{port}/sse"}.get(
            kind, f"http://127.0.0.1:{port}/mcp"
        )


@contextlib.contextmanager
def _running(port: int, *arguments: str) -> Iterator[None]:
    assert sys.__stderr__ is not None
    with open(os.devnull, "r+b") as nothing:
        process = PythonProcess(*arguments, cwd=ROOT, stdin=nothing, stdout=nothing, stderr=sys.__stderr__)
    try:
        wait_for(port, process)
        yield
    finally:
        process.kill()
        process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes] | PythonProcess) -> None:
    def answers() -> bool:
        assert process.poll() is None, "the server ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    until_sync(answers)
