"""What a scenario is given, what it returns, and what several scenarios need."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Figure: TypeAlias = int | float | str

MAX_FAILURES_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How long and how much a scenario runs."""

    seconds: float
    """For scenarios that repeat something: about how long."""
    fraction: float
    """For scenarios that count: this part of the full number. 1 is the full run of ten minutes."""
    seed: int
    folder: Path
    """An empty folder for its files."""

    def count(self, full: int, minimum: int) -> int:
        return max(minimum, round(full * self.fraction))


@dataclass(slots=True)
class Outcome:
    """The figures of a scenario, and which promises it saw broken."""

    figures: dict[str, Figure] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def check(self, is_true: object, failure: str) -> None:
        if not is_true:
            self.failures.append(failure)

    def check_none(self, things: Any, failure: str) -> None:
        """That there are no such things: the failure counts them and shows some."""
        if things := list(things):
            self.failures.append(f"{len(things)} {failure}, such as {things[:3]}")

    def to_dict(self) -> dict[str, Any]:
        return {"figures": self.figures, "failures": self.failures[:MAX_FAILURES_SHOWN]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One way in which things go wrong, and what is promised nevertheless."""

    name: str
    title: str
    promise: str
    function: str
    """Where it is: `module:function`. It is imported in the scenario's own process."""
    seconds: float
    """Of a full run."""

    def load_function(self) -> Callable[[Load], Outcome]:
        from importlib import import_module

        module, _, name = self.function.partition(":")
        function: Callable[[Load], Outcome] = getattr(import_module(module), name)
        return function


def resident_megabytes() -> float:
    """The memory of this process now, on Linux."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def child_pids() -> set[int]:
    """The processes that this one has started and that still exist, zombies excluded."""
    children = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            children.add(int(status.parent.name))
    return children


def append_line(path: str | Path, line: str) -> None:
    """One write to a file that several processes append to; it is never mixed with another one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def duplicates(items: list[str]) -> list[str]:
    seen: set[str] = set()
    return [item for item in items if item in seen or seen.add(item)]  # type: ignore[func-returns-value]
