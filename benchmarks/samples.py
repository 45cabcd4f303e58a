"""The tools everybody runs: they do next to nothing, so that what is measured is the way to them."""

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
ANSWER = "777777"
NAP_SECONDS = 0.010
REST_SECONDS = 0.200
MOST_AT_ONCE = 100


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


class Sleepers:
    """Counts who sleeps at the same time, to see that a limit is kept."""

    def __init__(self) -> None:
        self.now = self.most = self.total = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.total += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self.now -= 1


SLEEPERS = Sleepers()


async def nap(a: int, b: int) -> int:
    """Sleep for ten milliseconds, then add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    with SLEEPERS:
        await asyncio.sleep(NAP_SECONDS)
    return a + b


def nap_sync(a: int, b: int) -> int:
    """Sleep for ten milliseconds, then add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    with SLEEPERS:
        time.sleep(NAP_SECONDS)
    return a + b


async def rest(a: int, b: int) -> int:
    """Sleep for 200 milliseconds, then add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    with SLEEPERS:
        await asyncio.sleep(REST_SECONDS)
    return a + b


class Tally:
    """Counts how often a tool was executed."""

    def __init__(self) -> None:
        self.total = 0


STEPS, FAILURES = Tally(), Tally()
FAILING = {"selector": "a.social-count"}


async def step(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    STEPS.total += 1
    return a + b


def step_sync(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    STEPS.total += 1
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
    FAILURES.total += 1
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
    "invoice",
    "customer",
    "ticket",
    "calendar",
    "message",
    "repository",
    "deployment",
    "metric",
    "page",
    "contact",
)


def write_functions(number: int, path: Path, *, sync: bool) -> None:
    """A module of different functions with three typed, described parameters each, compiled."""
    text = ""
    for i in range(number):
        verb, noun = _VERBS[i % 10], _NOUNS[i // 10 % 10]
        define, name = "def" if sync else "async def", f"{verb.lower()}_{noun}_{i}"
        text += _FUNCTION.format(define=define, name=name, verb=verb, noun=noun, number=i)
    path.write_text(text, encoding="utf-8")
    py_compile.compile(str(path), doraise=True)


def load_functions(path: Path) -> list[Callable[..., Any]]:
    """They come from a file because some registries read their source."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [value for value in vars(module).values() if isfunction(value)]


def make_functions(number: int, directory: Path, *, sync: bool = False) -> list[Callable[..., Any]]:
    # Compiling leaves much free memory behind, in which a registry could grow unseen: so another process does it.
    path = directory / f"functions_{number}.py"
    write = f"from benchmarks.samples import *; write_functions({number}, Path({str(path)!r}), sync={sync})"
    subprocess.run([sys.executable, "-c", write], check=True)
    return load_functions(path)
