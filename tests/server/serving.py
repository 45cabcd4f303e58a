"""A real `ferrule serve` process for tests, and its clients."""

import json
import os
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.ports import reserved_port
from tests.support.processes import PythonProcess, run_python
from tests.support.waiting import until_sync

TOOLS = '''
import asyncio
from ferrule import ToolExecutionContext, tool

@tool(read_only=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@tool
def note(text: str) -> str:
    """Write a note."""
    with open("notes.txt", "a") as file:
        file.write(text + "\\n")
    return "noted"

@tool(destructive=True)
def wipe(path: str) -> str:
    """Delete everything under a path."""
    with open("wiped.txt", "a") as file:
        file.write(path + "\\n")
    return "wiped " + path

@tool(read_only=True)
def fail() -> str:
    """Always fails."""
    raise RuntimeError("no luck")

@tool(read_only=True)
async def count(to: int, context: ToolExecutionContext) -> str:
    """Count and report each number."""
    for number in range(to):
        context.progress(number / to, f"number {number}")
        await asyncio.sleep(0)  # lets what was reported be sent
    return "done"

@tool(read_only=True, timeout=600)
async def wait_for(path: str) -> str:
    """Wait until a file exists."""
    import os
    open(path + ".started", "w").close()
    try:
        while not os.path.exists(path):
            await asyncio.sleep(0.01)  # looks again
    except asyncio.CancelledError:
        open(path + ".cancelled", "w").close()
        raise
    return "found"
'''
CONFIG = """
[engine]
builtin_tools = true
tools_directory = "tools"

[store]
url = "{store}"

[agent]
model = "offline"

{more}
"""
MCP_HEADERS = {"mcp-protocol-version": "2026-07-28", "accept": "application/json, text/event-stream"}
MCP_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Project:
    """A folder with tools and a store."""

    def __init__(self, folder: Path, *, store: str = "sqlite:///calls.db", more: str = "") -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        """Variables of its processes, besides those of this one."""
        (folder / "tools").mkdir()
        (folder / "tools" / "own.py").write_text(TOOLS)
        (folder / "ferrule.toml").write_text(CONFIG.format(store=store, more=more))

    def ferrule(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = ["-m", "ferrule", "--config", str(self.folder / "ferrule.toml"), *arguments]
        return run_python(*command, cwd=self.folder, **options)

    def create_token(self, name: str, *options: str) -> str:
        created = self.ferrule("tokens", "new", name, *options, "--json")
        assert created.returncode == 0, created.stderr
        return str(json.loads(created.stdout)["token"])

    @contextmanager
    def serve(
        self,
        *options: str,
        port: int | None = None,
        trusted: ssl.SSLContext | None = None,
        program: Sequence[str] = ("-m", "ferrule"),
    ) -> Iterator["RunningServer"]:
        """`trusted` says which certificates a server with HTTPS may have, `program` how the command is started."""
        if port is None:
            with reserved_port() as port, self.serve(*options, port=port, trusted=trusted, program=program) as server:
                yield server
            return
        scheme = "http" if trusted is None else "https"
        command = [*program, "--config", str(self.folder / "ferrule.toml")]
        command += ["serve", "--port", str(port), *options]
        log_path = self.folder / f"server-{port}.log"
        environment = {**os.environ, **self.environment}
        with log_path.open("w") as log, open(os.devnull) as nothing:
            process = PythonProcess(*command, cwd=self.folder, stdin=nothing, stdout=log, stderr=log, env=environment)
        server = RunningServer(f"{scheme}://127.0.0.1:{port}", process, log_path, trusted)
        try:
            until_sync(server.is_ready, seconds=120)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(120)
            finally:
                process.kill()


class RunningServer:
    """The process of a server."""

    def __init__(self, url: str, process: PythonProcess, log_path: Path, trusted: ssl.SSLContext | None = None) -> None:
        self.url, self.process, self._log_path = url, process, log_path
        self._verify = trusted or False  # without HTTPS, no client has to read the certificates of the system

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log
        if "serving on" not in self.log:
            return False
        try:
            return httpx.get(f"{self.url}/readyz", timeout=60, verify=self._verify).status_code == 200
        except httpx.TransportError:
            return False

    def client(self, token: str | None = None, **options: Any) -> httpx.Client:
        headers = {**({} if token is None else {"Authorization": f"Bearer {token}"}), **options.pop("headers", {})}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=self._verify, **options)


def call(http: httpx.Client, tool: str, arguments: dict[str, Any] | None = None, **more: object) -> httpx.Response:
    return http.post(f"/v1/tools/{tool}/call", json={"arguments": arguments or {}, **more})


def mcp_call(name: str, arguments: dict[str, Any], **meta: object) -> dict[str, Any]:
    """What `httpx` needs to call a tool over MCP by the newer protocol, besides the address."""
    params = {"name": name, "arguments": arguments, "_meta": {**MCP_META, **meta}}
    headers = {**MCP_HEADERS, "mcp-method": "tools/call", "mcp-name": name}
    return {"json": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, "headers": headers}


def read_events(text: str) -> list[tuple[str, Any]]:
    """The events of a stream."""
    events = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "data" in lines:
            data = lines["data"]
            events.append((lines.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return events
