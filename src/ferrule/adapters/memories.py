"""What the runs of another framework's agent have lived through, one memory for each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from ferrule.memory import RunMemory

REMEMBERED = 256
"""Runs; those not heard of for longest are forgotten first."""


class Memories:
    """Gives each run its memory. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Any, tuple[object, RunMemory]] = OrderedDict()

    def of(self, run: object) -> RunMemory:
        """The memory of a run, which is told by a text, or by an object that is the same for all its calls."""
        key = run if isinstance(run, str) else id(run)
        with self._lock:
            if key not in self._kept:
                # The object is kept too: another one could get its id.
                self._kept[key] = (run, RunMemory())
                if len(self._kept) > REMEMBERED:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key][1]
