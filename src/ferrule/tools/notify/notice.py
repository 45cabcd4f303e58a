"""What people are told: one message, as every channel gets it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

from ferrule.describe.sentences import first_sentence, on_one_line
from ferrule.errors import Retry

Level: TypeAlias = Literal["info", "warning", "error"]

LONGEST: Final = 10_000
"""Characters of a message."""
LONGEST_TITLE: Final = 200

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message that any channel can carry: no control characters, and a title of one line."""

    message: str
    title: str
    level: Level
    at: datetime

    @classmethod
    def of(cls, message: str, title: str | None, level: Level) -> Notice:
        text = _plain(message).strip()
        if not text:
            raise Retry("The message is empty: say in it what people shall know.")
        if len(text) > LONGEST:
            raise Retry(f"The message has {len(text):,} characters; {LONGEST:,} is the most. Say it in fewer words.")
        said = on_one_line(_plain(title or ""))
        if len(said) > LONGEST_TITLE:
            raise Retry(
                f"The title has {len(said):,} characters; {LONGEST_TITLE} is the most. Put them in the message."
            )
        return cls(message=text, title=said, level=level, at=datetime.now(UTC))

    @property
    def mark(self) -> str:
        """How the level shows; information needs no mark."""
        return "" if self.level == "info" else f"[{self.level.upper()}] "

    @property
    def subject(self) -> str:
        """One line that says what it is about."""
        return self.mark + (self.title or first_sentence(self.message))

    @property
    def text(self) -> str:
        """All of it, for those who get a text and nothing else."""
        return f"{self.mark}{self.title}\n{self.message}" if self.title else f"{self.mark}{self.message}"


def _plain(text: str) -> str:
    """Without what no channel can carry: halves of characters, and control characters but tabs and line ends."""
    text = text.encode("utf-8", "replace").decode()
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
