"""Async tests are plain `async def` functions, run by anyio's pytest plugin on asyncio."""

import os
from collections.abc import Iterator

import hypothesis
import pytest

# No test depends on the speed of the machine.
hypothesis.settings.register_profile("ferrule", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("ferrule")


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
