"""What a server says beside the protocol, in the log under `ferrule.mcp.<name>`.

A server may write as much as it likes: all of it is read, so that it never waits for us; so many lines a second are
logged, the rest is counted; the last of it is kept for messages about the server's end.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final

LINES_PER_SECOND: Final = 100
LONGEST_LINE: Final = 2_000
TAIL: Final = 2_000

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "emergency": logging.CRITICAL,
}


# What would begin a line of its own, or move the cursor of whoever reads the log in a terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


class ServerLog:
    """The log of one server. What `hide` takes out of a text is seen by nobody."""

    def __init__(self, name: str, hide: Callable[[str], str] = str) -> None:
        self._logger = logging.getLogger(f"ferrule.mcp.{name}")
        self._hide = hide
        self._begun = b""
        self._tail = b""
        self._second = 0.0
        self._room = LINES_PER_SECOND
        self._left_out = 0

    @property
    def tail(self) -> str:
        """The last it said on standard error."""
        return self._hide(self._tail.decode("utf-8", "replace").strip())

    def feed(self, data: bytes) -> None:
        """A piece of its standard error."""
        self._tail = (self._tail + data[-TAIL:])[-TAIL:]
        self._refill()
        if self._room <= 0:  # not even cut into lines: that is what takes the time
            self._left_out += data.count(b"\n")
            self._begun = b""
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines[: self._room]:
            self._write(logging.INFO, "stderr", line.decode("utf-8", "replace"))
        self._left_out += max(0, len(lines) - self._room)
        self._room -= len(lines)
        self._begun = self._begun[:LONGEST_LINE]

    def end(self) -> None:
        """Its standard error was closed."""
        if self._begun:
            self._write(logging.INFO, "stderr", self._begun.decode("utf-8", "replace"))
            self._begun = b""
        self._say_what_was_left_out()

    def message(self, level: str, text: str) -> None:
        """A message it sent by the protocol, or about what it sent."""
        self._refill()
        if self._room <= 0:
            self._left_out += 1
            return
        self._room -= 1
        self._write(_LEVELS.get(level, logging.INFO), "log", text)

    def _refill(self) -> None:
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._room = now, LINES_PER_SECOND
            self._say_what_was_left_out()

    def _say_what_was_left_out(self) -> None:
        if self._left_out:
            self._logger.info("lines=<%d> | left out: it writes too much", self._left_out)
            self._left_out = 0

    def _write(self, level: int, kind: str, text: str) -> None:
        if text.strip():
            shown = _CONTROL.sub(_escaped, self._hide(text.rstrip())[:LONGEST_LINE])
            self._logger.log(level, "%s: %s", kind, shown)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
