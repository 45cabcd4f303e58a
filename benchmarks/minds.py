"""What the models of the agents think: next to nothing, and at once."""

import time
from itertools import count
from typing import Any, TypeAlias

from benchmarks.samples import ARGUMENTS, FAILING

Wish: TypeAlias = tuple[str, dict[str, Any]]
"""The name of a tool and arguments for it."""

DONE = "done"
LONGEST = 20.0
"""Seconds of CPU time after which nobody waits any longer for a stubborn model's run to end."""


class Script:
    """So many calls of one tool, one after the other; then an answer."""

    def __init__(self, tool: str = "step") -> None:
        self._tool, self._left, self._ids = tool, 0, count(1)

    def begin(self, turns: int) -> None:
        self._left = turns

    def wish(self) -> Wish | None:
        """The next call; None when it is done."""
        if not self._left:
            return None
        self._left -= 1
        return self._tool, dict(ARGUMENTS)

    def new_id(self) -> str:
        return f"c{next(self._ids)}"


class Enough(BaseException):
    """A run that would go on for ever is ended from outside. No framework may take it for a failure of its model."""


class Stubborn:
    """The same failing call, whatever it is told."""

    def __init__(self, tool: str, most: int) -> None:
        self._tool, self._most, self._ids = tool, most, count(1)
        self.begin()

    def begin(self) -> None:
        self.asked, self.had_enough, self._since = 0, False, time.process_time()

    def wish(self) -> Wish:
        if self.asked >= self._most or time.process_time() > self._since + LONGEST:
            self.had_enough = True
            raise Enough
        self.asked += 1
        return self._tool, dict(FAILING)

    def new_id(self) -> str:
        return f"c{next(self._ids)}"
