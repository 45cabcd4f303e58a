"""Work that only a timeout ends, in a process or a thread that a test can find."""

import os
import threading
import time
from pathlib import Path


def wait_without_end(path: str) -> None:
    """Write the number of this process, and wait."""
    unfinished = Path(path + ".unfinished")
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(path)
    while True:
        time.sleep(0.01)  # a thread is stopped between two instructions


def pid_of(path: Path) -> int:
    return int(path.read_text())


def thread_has_ended(tool_id: str) -> bool:
    return not any(thread.name == f"ferrule-{tool_id}" for thread in threading.enumerate())
