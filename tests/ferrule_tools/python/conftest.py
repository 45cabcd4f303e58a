"""A full Python that can be run on this machine."""

import sys
from functools import cache

import pytest

from ferrule_tools.python import PythonExecutorConfig
from ferrule_tools.python.bubblewrap import Bubblewrap, find_bubblewrap

INTERPRETERS = (sys.executable, "/usr/bin/python3")
"""Our own Python may be in a folder that other users cannot read; then the system's is used."""


@cache
def find_usable_bubblewrap() -> Bubblewrap | str:
    """Bubblewrap with the first Python that runs in it; or what it needs."""
    bubblewrap: Bubblewrap | str = ""
    for interpreter in INTERPRETERS:
        bubblewrap = find_bubblewrap(
            PythonExecutorConfig(
                full=True,
                interpreter=interpreter,
                seconds=20.0,
                memory_mb=300,
                processes=12,
                files_mb=4,
                printed_bytes=20_000,
            )
        )
        if isinstance(bubblewrap, Bubblewrap):
            break
    return bubblewrap


@pytest.fixture
def bubblewrap() -> Bubblewrap:
    usable = find_usable_bubblewrap()
    if isinstance(usable, str):
        pytest.skip(f"bubblewrap cannot be used here: it needs {usable} (make services installs it)")
    return usable
