"""A pytest plugin: a test that hangs, even while it ends, is named with the stacks of its threads, and fails.

pytest-timeout raises an exception in the test, once. Code that waits while the exception passes (an event loop for
tasks that do not end, an executor for its threads) waits for ever, and so would the whole run. Here the process ends
instead, and pytest-xdist reports the test as failed and goes on with another process.
"""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

EXTRA_SECONDS = 60.0
"""How long a test may still go on after its timeout."""
INTERVAL = 1.0


def pytest_configure(config: pytest.Config) -> None:
    timeout = float(config.getini("timeout") or 0)
    if timeout and not config.getoption("usepdb"):
        config.pluginmanager.register(_Watchdog(timeout + EXTRA_SECONDS))


class _Watchdog:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: tuple[str, float] | None = None
        self._stderr = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)  # tests replace and capture it
        threading.Thread(target=self._watch, name="watchdog of the tests", daemon=True).start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._watched = (item.nodeid, time.monotonic())
        try:
            return (yield)
        finally:
            self._watched = None

    def _watch(self) -> None:
        while True:
            time.sleep(INTERVAL)
            if (watched := self._watched) is not None and time.monotonic() - watched[1] > self._seconds:
                os.write(self._stderr, f"\n{watched[0]} did not end within {self._seconds:.0f} s:\n".encode())
                faulthandler.dump_traceback(self._stderr)
                os._exit(1)
