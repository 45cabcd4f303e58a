"""What a contestant hands over to be measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to do what a benchmark asks for."""

    do: Callable[[], Awaitable[Any]]
    settle: Callable[[], Awaitable[Any]] | None = None
    """Finishes work `do` left to the background. Its time counts as CPU time; the caller does not wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """A way to take in many functions and then call one of them."""

    register: Callable[[list[Callable[..., Any]]], Any]
    first_call: Callable[[Any, str, dict[str, Any]], Awaitable[Any]]
    """Given what `register` returned, a name and arguments."""
    sync: bool = False
    """Whether only sync functions are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """An agent with a model that answers at once, ready to run again and again."""

    run: Callable[[int], Awaitable[Any]]
    """Let it make so many turns, each with one call of the tool, and answer."""
    settle: Callable[[], Awaitable[Any]] | None = None
    """As in `Way`."""


Together: TypeAlias = Callable[[int], Awaitable[float]]
"""Lets so many calls of a tool that rests be made at once; gives the seconds that went into planning them."""

Insist: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs an agent, as it comes, whose model asks for one failing call again and again; gives its answer."""
