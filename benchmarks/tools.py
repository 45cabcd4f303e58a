"""The tools that every contestant calls. They do almost nothing, so that the cost of calling them is measured."""

import asyncio
import importlib.util
import py_compile
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from typing import Any

ARGUMENTS = {"a": 123456, "b": 654321}
EXPECTED_SUM = "777777"
SHORT_WAIT_SECONDS = 0.010
LONG_WAIT_SECONDS = 0.200
MAX_CONCURRENT = 100


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def add_sync(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


class ConcurrencyCounter:
    """Counts the calls that run at the same time, to check that a limit is respected."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self.reset()

    def reset(self) -> None:
        self.peak = self.total = 0

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1
            self.total += 1
            self.peak = max(self.peak, self._running)

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._running -= 1


CONCURRENCY = ConcurrencyCounter()


async def short_wait(a: int, b: int) -> int:
    """Sleep for ten milliseconds, then add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    with CONCURRENCY:
        await asyncio.sleep(SHORT_WAIT_SECONDS)
    return a + b


def short_wait_sync(a: int, b: int) -> int:
    """Sleep for ten milliseconds, then add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    with CONCURRENCY:
        time.sleep(SHORT_WAIT_SECONDS)
    return a + b


async def long_wait(a: int, b: int) -> int:
    """Sleep for 200 milliseconds, then add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    with CONCURRENCY:
        await asyncio.sleep(LONG_WAIT_SECONDS)
    return a + b


class CallCounter:
    """Counts how often a tool was executed."""

    def __init__(self) -> None:
        self.total = 0


STEP_CALLS, FAILING_CALLS = CallCounter(), CallCounter()
FAILING_ARGUMENTS = {"selector": "a.social-count"}


async def step(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    STEP_CALLS.total += 1
    return a + b


def step_sync(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    STEP_CALLS.total += 1
    return a + b


async def read_count(selector: str) -> str:
    """Read a number from the page.

    Args:
        selector: A CSS selector.
    """
    return read_count_sync(selector)


def read_count_sync(selector: str) -> str:
    """Read a number from the page.

    Args:
        selector: A CSS selector.
    """
    FAILING_CALLS.total += 1
    raise ValueError(f"Selector {selector!r} not found")


_FUNCTION = '''
{define} {name}(query: str, limit: int = 10, verbose: bool = False) -> str:
    """{verb} {noun} number {number} of the workspace.

    Args:
        query: What to look for in the {noun}.
        limit: How many rows to return at most.
        verbose: Whether to add details.
    """
    return query
'''
_VERBS = ("Fetch", "List", "Create", "Update", "Delete", "Search", "Export", "Import", "Share", "Archive")
_NOUNS = (
    *("invoice", "customer", "ticket", "calendar", "message"),
    *("repository", "deployment", "metric", "page", "contact"),
)


def write_functions(number: int, path: Path, *, sync: bool) -> None:
    """Write and compile a module of distinct functions, each with three typed and documented parameters."""
    text = ""
    for i in range(number):
        verb, noun = _VERBS[i % 10], _NOUNS[i // 10 % 10]
        define, name = "def" if sync else "async def", f"{verb.lower()}_{noun}_{i}"
        text += _FUNCTION.format(define=define, name=name, verb=verb, noun=noun, number=i)
    path.write_text(text, encoding="utf-8")
    py_compile.compile(str(path), doraise=True)


def load_functions(path: Path) -> list[Callable[..., Any]]:
    """Load them from a file, because some frameworks read the source of a function."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [value for value in vars(module).values() if isfunction(value)]


def make_functions(number: int, directory: Path, *, sync: bool = False) -> list[Callable[..., Any]]:
    # Compiling frees much memory in this process, which would hide the growth of a registry: another process does it.
    path = directory / f"functions_{number}.py"
    write = f"from benchmarks.tools import *; write_functions({number}, Path({str(path)!r}), sync={sync})"
    subprocess.run([sys.executable, "-c", write], check=True)
    return load_functions(path)
