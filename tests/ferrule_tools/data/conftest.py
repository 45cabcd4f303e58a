"""DuckDB takes much memory: it is loaded when it is used, and the tests of a module stay in one process."""

from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def duckdb() -> Any:
    return pytest.importorskip("duckdb", reason='duckdb is not installed: pip install "ferrule[data]"')
