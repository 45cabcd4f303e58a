"""A browser takes seconds to start, so the tests of a module share one, and the event loop it lives in."""

import asyncio
import inspect
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from ferrule_tools.browser.chromium import CHROMIUM_PROGRAMS, CHROMIUM_VARIABLE

PATIENT_TIMEOUTS = (
    "navigator.CALL_TIMEOUT",
    "navigator.ACTION_TIMEOUT",
    "navigator.MAX_WAIT",
    "page.LOAD_TIMEOUT",
    "page.NEW_PAGE_TIMEOUT",
    "chromium.CONNECT_TIMEOUT",
)
"""What is there comes in the end, however busy the machine is; tests that wait for what never comes shorten them."""
SECONDS = 120.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    runner = pyfuncitem.funcargs.get("runner")
    if not isinstance(runner, asyncio.Runner) or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    runner.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of all tests of a module that use it, directly or through another fixture."""
    if find_spec("playwright") is None:
        pytest.skip('playwright is not installed: pip install "ferrule[browser]"')
    if not os.environ.get(CHROMIUM_VARIABLE) and not any(map(shutil.which, CHROMIUM_PROGRAMS)):
        pytest.skip(f"there is no Chromium: install chromium, or say in {CHROMIUM_VARIABLE} where it is")
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        for timeout in PATIENT_TIMEOUTS:
            patch.setattr(f"ferrule_tools.browser.{timeout}", SECONDS)
        yield runner
