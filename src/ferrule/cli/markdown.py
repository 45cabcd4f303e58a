"""Markdown at a terminal. A model's text arrives in pieces and is shown block by block; a blank line ends a block."""

from __future__ import annotations

import io
import re
import shutil
from typing import Final

from ferrule.cli.terminal import show_control_characters
from ferrule.core.patterns import lazy_pattern

_FENCE: Final = lazy_pattern(r"\s*(?:```|~~~)")
_MARKUP: Final = lazy_pattern(
    r"^\s{0,3}(?:#{1,6} |[-*+] |\d+[.)] |> |```|~~~|\|.*\|\s*$)|\*\*\S|(?<!\w)__\S|`[^`\n]+`|\]\(\S+\)", re.MULTILINE
)
"""What is worth rendering: other text is printed as it is, so that its line ends stay."""


def render_markdown(text: str) -> str:
    """The text for a terminal, ending with a line end; plain text is not changed."""
    text = show_control_characters(text)
    if not _MARKUP.search(text):
        return text if text.endswith("\n") else f"{text}\n"
    from rich.console import Console
    from rich.markdown import Markdown

    output = io.StringIO()
    width = shutil.get_terminal_size().columns
    console = Console(file=output, force_terminal=True, width=width, highlight=False)
    console.print(Markdown(text, hyperlinks=False))  # without hyperlinks, the target of a link is shown beside it
    return "\n".join(line.rstrip() for line in output.getvalue().strip("\n").split("\n")) + "\n"


class MarkdownStream:
    """Renders a text that arrives in pieces."""

    def __init__(self) -> None:
        self._pending = ""

    def add(self, piece: str) -> str:
        """What can be shown now: the blocks that are complete."""
        self._pending += piece
        if "\n" not in piece:
            return ""
        end = _end_of_complete_blocks(self._pending)
        complete, self._pending = self._pending[:end], self._pending[end:]
        return f"{render_markdown(complete.strip(chr(10)))}\n" if complete.strip() else ""

    def flush(self) -> str:
        """The rest, when the text has ended."""
        rest, self._pending = self._pending.strip("\n"), ""
        return render_markdown(rest) if rest.strip() else ""


def _end_of_complete_blocks(text: str) -> int:
    """Where the last blank line ends that is in no block of code."""
    in_code, end, position = False, 0, 0
    for line in text.splitlines(keepends=True):
        position += len(line)
        if _FENCE.match(line):
            in_code = not in_code
        elif not in_code and line.endswith("\n") and not line.strip():
            end = position
    return end
