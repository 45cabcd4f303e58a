"""A full Python that can be run on this machine."""

import sys
from collections.abc import Iterator
from functools import cache

import pytest

from ferrule_tools.python import PythonExecutorConfig
from ferrule_tools.python.bubblewrap import Bubblewrap, find_bubblewrap

PATIENCE = 120.0
"""Seconds for what ends by itself, however busy the machine is."""
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
                seconds=PATIENCE,
                memory_mb=300,
                processes=12,
                files_mb=4,
                printed_bytes=20_000,
            )
        )
        if isinstance(bubblewrap, Bubblewrap):
            break
    return bubblewrap


@pytest.fixture(autouse=True, scope="session")
def patient_trial() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ferrule_tools.python.bubblewrap._TRIAL_TIMEOUT", PATIENCE)
        yield


@pytest.fixture
def bubblewrap() -> Bubblewrap:
    usable = find_usable_bubblewrap()
    if isinstance(usable, str):
        pytest.skip(f"bubblewrap cannot be used here: it needs {usable} (make services installs it)")
    return usable
