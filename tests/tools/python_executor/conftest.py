"""Full Pythons that can be run on this machine."""

import sys
from functools import cache

import pytest

from ferrule.tools.python_executor import PythonExecutorConfig
from ferrule.tools.python_executor.isolation import Isolation, find_isolation

INTERPRETERS = (sys.executable, "/usr/bin/python3")
"""Where our own stands in a folder that is closed to others, limits need another one."""


@cache
def found(isolation: str) -> Isolation | str:
    """The isolation, with the first Python that runs in it; or what it needs."""
    tried: Isolation | str = ""
    for interpreter in INTERPRETERS:
        tried = find_isolation(
            PythonExecutorConfig(
                full=True,
                isolation=isolation,
                interpreter=interpreter,
                seconds=5.0,
                memory_mb=300,
                processes=12,
                files_mb=4,
                printed_bytes=20_000,
            )
        )
        if isinstance(tried, Isolation):
            break
    return tried


def usable(isolation: str) -> Isolation:
    there = found(isolation)
    if isinstance(there, str):
        pytest.skip(f"{isolation} cannot be used here: it needs {there} (scripts/setup.sh --with-services installs it)")
    return there


@pytest.fixture(params=["bubblewrap", "limits"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    return usable(request.param)


@pytest.fixture
def walls() -> Isolation:
    return usable("bubblewrap")


@pytest.fixture
def limits() -> Isolation:
    return usable("limits")
