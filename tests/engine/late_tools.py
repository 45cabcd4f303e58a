"""Sync tools that are too slow, in a module so that worker processes can import them."""

import subprocess
import time
from pathlib import Path

from ferrule import tool


@tool
def write_late(path: str, wait: float) -> str:
    """Wait, then write a file."""
    time.sleep(wait)
    Path(path).write_text("too late")
    return "written"


@tool
def start_child(path: str) -> None:
    """Start a process, note its id, and wait for it."""
    child = subprocess.Popen(["sleep", "60"])
    Path(path).write_text(str(child.pid))
    child.wait()
