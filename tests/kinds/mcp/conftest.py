"""For every test here: a cache of its own, and waits of the product that even a busy machine does not exceed."""

from pathlib import Path

import pytest

from ferrule.engine import engine
from ferrule.kinds.mcp import executor, pins, servers

WAITS = [
    (engine, "LISTING_TIMEOUT"),
    (executor, "PING_TIMEOUT"),
    (pins, "READ_TIMEOUT"),
    (servers, "DISCOVERY_TIMEOUT"),
]


@pytest.fixture(autouse=True)
def own_cache_and_long_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module, name in WAITS:
        monkeypatch.setattr(module, name, 600.0)
