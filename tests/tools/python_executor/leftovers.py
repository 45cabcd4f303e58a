"""What is left of scripts on this machine."""

import os
import time
from contextlib import suppress
from pathlib import Path


def processes_with(words: str) -> list[int]:
    """The processes that have these words in their command lines, and are no zombies."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdecimal() and words.encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def children(name: str) -> list[int]:
    """Our own child processes of a name."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdecimal():
                said, _, rest = (path / "stat").read_text().rpartition(")")
                if said.endswith(f"({name}") and rest.split()[1] == str(os.getpid()) and rest.split()[0] != "Z":
                    found.append(int(path.name))
    return found


def gone(found) -> bool:
    """Whether what is found is gone, now or in a moment."""
    until = time.monotonic() + 2
    while found() and time.monotonic() < until:
        time.sleep(0.01)
    return not found()
