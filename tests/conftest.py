"""Async tests are plain `async def` functions, run by anyio's pytest plugin on asyncio."""

import os
from collections.abc import Iterator

import hypothesis
import pytest

# No test depends on the speed of the machine.
hypothesis.settings.register_profile("ferrule", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("ferrule")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests begin first: one that began last would leave the other processes without work."""
    slow = {item.path for item in items if any(map(item.get_closest_marker, ("slow", "timeout")))}
    items.sort(key=lambda item: item.path not in slow)


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
