"""A sync tool that does its work late, in a module so that a worker process can import it."""

import os
import time
from pathlib import Path

from ferrule import tool


@tool(read_only=True, tags=["lookup"], metadata={"strategy": "best"})
def write_late(path: str) -> str:
    """Note the id of this process, wait until it is allowed, then write a file."""
    Path(path + ".pid").write_text(str(os.getpid()))
    while not Path(path + ".allowed").exists():
        time.sleep(0.01)  # between two looks
    Path(path).write_text("too late")
    return "late"
