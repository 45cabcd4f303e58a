"""Async tests are plain `async def` functions, run by anyio's pytest plugin on asyncio."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["tests.support.cpu_time", "tests.support.tiers", "tests.support.postgres", "tests.support.watchdog"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def user_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Settings, records and cached listings are those of this process: other processes run tests at the same time."""
    cache = tmp_path_factory.mktemp("cache")
    users_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in users_cache.iterdir() if users_cache.is_dir() else ():
        if folder.name != "ferrule":  # packages and fonts, which other programs would load or list again
            (cache / folder.name).symlink_to(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_CACHE_HOME", str(cache))
        patch.setitem(os.environ, "XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
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
