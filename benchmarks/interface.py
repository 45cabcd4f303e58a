"""What a contestant provides to be measured, how much of it is run, and the shape of the results."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

Sample: TypeAlias = dict[str, Any]
"""Figures by name. Most are numbers, `ending` is a text."""
SamplesByVariant: TypeAlias = dict[str, list[Sample]]
"""A contestant may do the same job in several variants, such as with and without a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How much is run for one measurement."""

    samples: int = 3
    seconds: float = 0.2
    """Approximate duration of one sample of a repeated operation."""
    calls: int = 1_000
    """Calls in one batch under a concurrency limit."""
    functions: int = 10_000
    """Functions to register as tools."""
    extra_tools: int = 1_000
    """Tools that an agent has besides the one it uses."""
    max_model_calls: int = 1_200
    """A run whose model repeats a failing call is stopped after this many model calls."""
    memory_calls: int = 10_000
    """Calls made with a failure memory and without."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation, measured by running it many times."""

    run: Callable[[], Awaitable[Any]]
    flush: Callable[[], Awaitable[Any]] | None = None
    """Completes background work that `run` started. It counts as CPU time, but not as time the caller waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Registers many functions and then calls one of them."""

    register: Callable[[list[Callable[..., Any]]], Any]
    first_call: Callable[[Any, str, dict[str, Any]], Awaitable[Any]]
    """Receives the return value of `register`, the name of a tool and its arguments."""
    sync: bool = False
    """Whether only sync functions can be registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLoop:
    """An agent that can be run repeatedly; its model replies without delay."""

    run: Callable[[int], Awaitable[Any]]
    """Run the agent for this many turns, with one tool call each, and return its answer."""
    flush: Callable[[], Awaitable[Any]] | None = None
    """See `Operation.flush`."""


ParallelSteps: TypeAlias = Callable[[int], Awaitable[float]]
"""Runs this many calls of `long_wait` concurrently; returns the seconds spent on planning them."""

AgentRun: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs an agent with default settings whose model repeats one failing call; returns its answer."""
