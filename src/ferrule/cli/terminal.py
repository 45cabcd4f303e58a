"""Printing what others have written: a terminal obeys control characters, so it is never sent any."""

from __future__ import annotations

import logging
import re
import sys

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])|\x9b[0-?]*[ -/]*[@-~]")
"""What sets colours, titles and places: servers write it into their logs for terminals of their own."""
_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_VISIBLE = {**_PICTURES, 0x7F: 0x2421, **dict.fromkeys(range(0x80, 0xA0), 0xFFFD)}


def visible(text: str) -> str:
    """The text with a picture in the place of each control character, but for line ends and tabs."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def without_sequences(text: str) -> str:
    """The words of a text that was written for a terminal."""
    return visible(_SEQUENCE.sub("", text))


class PlainFormatter(logging.Formatter):
    """Log lines without anything a terminal would obey: what servers and tools say is in them."""

    def format(self, record: logging.LogRecord) -> str:
        return without_sequences(super().format(record))


def say(text: object) -> None:
    """A line for standard output: as it is for programs, harmless for terminals."""
    print(visible(str(text)) if sys.stdout.isatty() else text)


def complain(message: object) -> None:
    """A line for standard error."""
    print(visible(str(message)) if sys.stderr.isatty() else message, file=sys.stderr)
