"""Namespaces around a script, made by bubblewrap: no network, no other processes, no files but a Python's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ferrule.tools.python_executor.interpreter import SYSTEM_FILES, SYSTEM_FOLDERS, Interpreter

FOLDER: Final = "/tmp"
"""Where a script stands: empty, its own, and gone with it."""
_AS_ROOT: Final = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
"""What it takes to become nobody, which the runner does first of all."""
_SHARED_MEMORY: Final = 16_000_000


def wrapped(bubblewrap: str, interpreter: Interpreter, *, files: int, is_root: bool) -> list[str]:
    """The command that runs a Python with walls around it; `files` are the bytes it may write."""
    return [
        bubblewrap,
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        # Root needs no namespace of users, in which it would stay root for the kernel's count of processes.
        *(_AS_ROOT if is_root else ("--unshare-user",)),
        # The runner's keeper is the first process in there: with it the kernel ends all others.
        *("--as-pid-1", "--die-with-parent"),
        *_system(),
        *_bound(interpreter.places),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "1777", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"),
        *("--perms", "1777", "--size", str(files), "--tmpfs", FOLDER),
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", FOLDER, "--"),
        *interpreter.command,
    ]


def _system() -> Iterator[str]:
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            yield from ("--symlink", os.readlink(folder), folder)
        elif os.path.isdir(folder):
            yield from ("--ro-bind", folder, folder)
    yield from ("--perms", "0755", "--dir", "/etc")
    for file in SYSTEM_FILES:
        yield from ("--ro-bind-try", file, file)


def _bound(places: Sequence[str]) -> Iterator[str]:
    made: set[Path] = set()
    for place in map(Path, places):
        for parent in reversed(place.parents[:-1]):
            if parent not in made:  # else only root could go through it
                made.add(parent)
                yield from ("--perms", "0755", "--dir", str(parent))
        if place.is_symlink():
            yield from ("--symlink", os.readlink(place), str(place))
        else:
            yield from ("--ro-bind", str(place), str(place))
