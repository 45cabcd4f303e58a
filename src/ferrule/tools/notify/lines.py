"""Writing notices down: one line of JSON each, at the end of a file or by the logger `ferrule.notify`."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Any, Final

from ferrule.content import encode_json
from ferrule.errors import ExecutionFailed
from ferrule.tools.files.workspace import Parts, Workspace, shown, told
from ferrule.tools.notify.config import ChannelConfig
from ferrule.tools.notify.notice import Notice

logger = logging.getLogger("ferrule.notify")

_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Lines:
    """A channel of kind `log`."""

    def __init__(self, name: str, config: ChannelConfig, root: Path) -> None:
        self._name, self._path, self._root = name, config.path, root

    async def send(self, notice: Notice, seconds: float) -> dict[str, Any]:
        line = encode_json(
            {
                "time": notice.at.isoformat(timespec="milliseconds"),
                "level": notice.level,
                "channel": self._name,
                "title": notice.title,
                "message": notice.message,
            }
        )
        if not self._path:
            _log(_LEVELS[notice.level], line.decode())
            return {}
        workspace = Workspace.at(self._root)
        parts = workspace.file_parts(self._path)
        _append(workspace, parts, line + b"\n")
        return {"path": shown(parts)}


def _log(level: int, line: str) -> None:
    if not (logger.isEnabledFor(level) and (logger.hasHandlers() or _is_last_resort(level))):
        raise ExecutionFailed(
            f"Nobody listens to the logger 'ferrule.notify' at level {logging.getLevelName(level)}: set up logging, or "
            "give the channel a path in the configuration. Nothing was written."
        )
    logger.log(level, "%s", line)


def _is_last_resort(level: int) -> bool:
    """What Python does where nobody has set up logging: what is important goes to the standard error."""
    return logging.lastResort is not None and level >= logging.lastResort.level


def _append(workspace: Workspace, parts: Parts, line: bytes) -> None:
    """Add a line in one go, so that lines of others who write at the same time stay whole too."""
    with workspace.folder(parts[:-1], create=True) as folder, told(parts):
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.open(parts[-1], flags, 0o600, dir_fd=folder)
        try:
            _require_own_file(opened, parts)
            # A line that a full disk once cut short must not spoil this one.
            before = b"" if _ends_a_line(opened) else b"\n"
            if os.write(opened, before + line) != len(before + line):
                raise ExecutionFailed(f"{shown(parts)!r} took only a part of the line: is the disk full?")
        finally:
            os.close(opened)


def _require_own_file(opened: int, parts: Parts) -> None:
    found = os.fstat(opened)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise ExecutionFailed(f"{shown(parts)!r} is no file of its own: nothing was written. Set another path.")


def _ends_a_line(opened: int) -> bool:
    size = os.fstat(opened).st_size
    return size == 0 or os.pread(opened, 1, size - 1) == b"\n"
