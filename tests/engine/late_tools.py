"""Sync tools that are too slow, in a module so that worker processes can import them."""

import os
import subprocess
import time
from pathlib import Path

from ferrule import tool


@tool
def write_when_allowed(folder: str, name: str) -> str:
    """Note the id of this process, wait for a file `allowed`, then write another one."""
    Path(folder, f"{name}.pid").write_text(str(os.getpid()))
    while not Path(folder, "allowed").exists():
        time.sleep(0.01)  # between two looks
    Path(folder, f"{name}.late").touch()
    return "written"


@tool
def start_child(path: str, seconds: int) -> None:
    """Start a process, note its id, and wait for it."""
    child = subprocess.Popen(["sleep", str(seconds)])
    Path(path).write_text(str(child.pid))
    child.wait()
