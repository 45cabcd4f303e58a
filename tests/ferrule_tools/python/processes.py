"""Finding processes of scripts that are still running on this machine."""

import os
from contextlib import suppress
from pathlib import Path


def processes_with(argument: str) -> list[int]:
    """The processes that have this text in their command line, and are not zombies."""
    processes = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdecimal() and argument.encode() in (path / "cmdline").read_bytes():
                processes.append(int(path.name))
    return processes


def children(name: str) -> list[int]:
    """Our own child processes of a name."""
    processes = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdecimal():
                before, _, rest = (path / "stat").read_text().rpartition(")")
                if before.endswith(f"({name}") and rest.split()[1] == str(os.getpid()) and rest.split()[0] != "Z":
                    processes.append(int(path.name))
    return processes
