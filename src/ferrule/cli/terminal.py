"""Reading from and writing to the terminal: lines, questions of tools, progress."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallCancelled

if TYPE_CHECKING:
    from ferrule.core.call import Progress  # takes longer to import than all of this module

# A terminal obeys control characters, so text from tools and models is printed without them.

_ESCAPE_SEQUENCE = lazy_pattern(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])|\x9b[0-?]*[ -/]*[@-~]"
)
"""Escape sequences that set colours, titles and positions, as servers write them into their logs."""
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_DISGUISES = (0x61C, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF)
"""Characters that show text in another order, on another line, or not at all."""
_HIDDEN_LETTERS = range(0xE0000, 0xE0080)
_VISIBLE_SYMBOLS: dict[int, int | str] = {
    **_CONTROL_PICTURES,
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **{code: f"\\u{code:04x}" for code in _DISGUISES},
    **{code: f"\\U{code:08x}" for code in _HIDDEN_LETTERS},
}


def show_control_characters(text: str) -> str:
    """The text with a visible symbol for each control character except line ends and tabs.

    Nothing can be disguised: characters that show text in another order or not at all are written as escapes.
    """
    return text.replace("\r\n", "\n").translate(_VISIBLE_SYMBOLS)


def indent_lines(text: str) -> str:
    """A text of somebody else, none of whose lines can be taken for one of ours."""
    return "\n    ".join(text.splitlines())


def remove_escape_sequences(text: str) -> str:
    """The text without escape sequences."""
    return show_control_characters(_ESCAPE_SEQUENCE.sub("", text))


class PlainFormatter(logging.Formatter):
    """Log lines without control sequences: they may contain output of servers and tools."""

    def format(self, record: logging.LogRecord) -> str:
        return remove_escape_sequences("\n".join(_indent_continuation(super().format(record))))


_LOG_FIELDS = lazy_pattern(r"(?P<fields>\w+=<.*>) \| (?P<message>.*)", re.DOTALL)
_LOG_FIELD = lazy_pattern(r"(\w+)=<(.*?)>(?=, \w+=<|\Z)", re.DOTALL)


class WarningFormatter(PlainFormatter):
    """Warnings as sentences: what happened, then what it is about, without the notation of log fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        match = _LOG_FIELDS.fullmatch(line)
        if match is None:
            return f"ferrule: {line}"
        fields = dict(_LOG_FIELD.findall(match["fields"]))
        error = fields.pop("error", "").rstrip(".")
        about = ", ".join(f"{name} {value}" for name, value in fields.items())
        return f"ferrule: {f'{error}: ' if error else ''}{match['message']} ({about})"


def echo(text: object) -> None:
    """Print a line to standard output; control characters are made visible on a terminal."""
    print(show_control_characters(str(text)) if sys.stdout.isatty() else text)


def print_error(message: object) -> None:
    """Print a message to standard error.

    Lines after the first one are indented: a text of somebody else inside the message cannot look like a message.
    """
    text = "\n".join(_indent_continuation(str(message)))
    print(show_control_characters(text) if sys.stderr.isatty() else text, file=sys.stderr)


def _indent_continuation(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines()):
        yield line if number == 0 or line[:1].isspace() else f"    {line}"


EXIT_CLOSED_PIPE = 141
"""What a shell reports for `cat` and `git` when the reader of their output is gone: 128 and the number of SIGPIPE."""


def exit_without_output(error: OSError) -> NoReturn:
    """End because standard output cannot be written: silently if its reader is gone, else with the reason."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python prints an error at exit
    if isinstance(error, BrokenPipeError):
        raise SystemExit(EXIT_CLOSED_PIPE)
    print_error(f"ferrule: The output cannot be written: {error.strerror}.")
    raise SystemExit(1)


async def read_line(prompt: str) -> str:
    """One line that the user types. Waiting for it can be cancelled."""
    # One reader at a time: if two waited for the same input, only one would be woken.
    async with _reader_locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await _read_line_once(prompt)


_reader_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def _read_line_once(prompt: str) -> str:
    print(show_control_characters(prompt), end="", file=sys.stderr, flush=True)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), readable.set)
    try:
        await readable.wait()
        data = os.read(sys.stdin.fileno(), 65536)  # a terminal delivers one line per read
    finally:
        loop.remove_reader(sys.stdin.fileno())
    if not data:
        print_error("")
        raise CallCancelled("The question was not answered.")
    return data.decode("utf-8", "replace").strip()


# ---- progress of a long call


class ProgressLine:
    """A line that shows that a long call is running; nothing when standard error is not a terminal."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled and sys.stderr.isatty()
        self._status: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> ProgressLine:
        if self._enabled:
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.update("running …")
            self._start_soon()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()
        self._status = None

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Remove the line while something else uses the terminal."""
        self._stop()
        yield
        self._start_soon()

    def _start_soon(self) -> None:
        if self._status is not None:  # most calls end before a person could read anything
            self._timer = asyncio.get_running_loop().call_later(0.5, self._status.start)

    def _stop(self) -> None:
        if self._status is not None and self._timer is not None:
            self._timer.cancel()
            self._status.stop()

    def progress(self, progress: Progress) -> None:
        if self._status is None:
            return
        share = "" if progress.fraction is None else f"{progress.fraction:4.0%} "
        words = progress.message or (str(progress.data) if progress.data is not None else "")
        from rich.text import Text

        self._status.update(Text(show_control_characters(f"{share}{words}".strip() or "running …")))
