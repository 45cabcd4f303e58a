"""Server processes whose processor time and memory are measured."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TOOL = '''
from ferrule import tool

@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
'''
SETTINGS = {
    "engine": {"tools_directory": "tools"},
    "store": {"url": "sqlite:///calls.db"},
    "agent": {"model": "offline"},
    "limits": {"max_concurrent": 1_000, "queue_size": 10_000},
}


class MeasuredServer:
    """A server process and its port."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def processor_seconds(self) -> float:
        return processor_seconds(self.process.pid)

    def memory(self) -> int:
        """Bytes in memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int, *, with_children: bool = False) -> float:
    """Of all threads of a process; the file `stat` would say it in steps of 10 ms only."""
    total = 0.0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has just ended
            total += int((thread / "schedstat").read_text().split()[0]) / 1e9
            if with_children:
                children = (thread / "children").read_text().split()
                total += sum(processor_seconds(int(child), with_children=True) for child in children)
    return total


@contextmanager
def run_server(command: list[str], port: int, folder: Path) -> Iterator[MeasuredServer]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    try:
        _wait_until_open(port, process)
        yield MeasuredServer(process, port)
    finally:
        process.terminate()
        process.wait(60)


def make_project(folder: Path) -> Path:
    """A project with one tool."""
    (folder / "tools").mkdir()
    (folder / "tools" / "add.py").write_text(TOOL)
    lines = [
        f"[{section}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
        for section, values in SETTINGS.items()
    ]
    (folder / "ferrule.toml").write_text("\n".join(lines))
    return folder


def serve_command() -> list[str]:
    """Without its port."""
    return [sys.executable, "-m", "ferrule", "--config", "ferrule.toml", "serve"]


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("The server did not start.")
