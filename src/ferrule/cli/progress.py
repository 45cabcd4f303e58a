"""One line on standard error that shows a long call is alive."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ferrule.call import Progress
from ferrule.cli.terminal import visible


class ProgressLine:
    """Nothing is shown when standard error is no terminal."""

    def __init__(self, *, enabled: bool) -> None:
        self._shown = enabled and sys.stderr.isatty()
        self._status: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> ProgressLine:
        if self._shown:
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
        """Leave the terminal to somebody else."""
        self._stop()
        yield
        self._start_soon()

    def _start_soon(self) -> None:
        if self._status is not None:  # most calls are over before anybody could read a word
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

        self._status.update(Text(visible(f"{share}{words}".strip() or "running …")))
