"""The stores whose leases are tested: those that several processes can share."""

from pathlib import Path

import pytest

from tests.store.conftest import postgres_cluster, postgres_url

__all__ = ["postgres_cluster", "postgres_url", "shared_store_url"]


@pytest.fixture(params=["sqlite", "postgres"])
def shared_store_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/calls.db"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return str(request.getfixturevalue("postgres_url"))
