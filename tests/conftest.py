"""Async tests are plain `async def` functions, run by anyio's pytest plugin on asyncio."""

import logging
import os
from collections.abc import Iterator

import pytest

pytest_plugins = ["tests.support.tiers", "tests.support.cpu_time", "tests.support.postgres", "tests.support.watchdog"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def user_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Which folders are trusted is recorded for these tests only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "FERRULE_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
        patch.setitem(os.environ, "FERRULE_LOCAL_SERVERS", "off")  # a server of the developer must not answer
        yield


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    """A command that is called in this process sets levels and handlers, which later tests must not see."""
    root, ours = logging.getLogger(), logging.getLogger("ferrule")
    before = root.level, ours.level, root.handlers[:]
    yield
    root.level, ours.level, root.handlers[:] = before
    logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]  # each logger remembers what it logs
