"""What a call of one operation needs to know, told by the document when it was read.

No secret is in here: credentials name the variables of the environment that hold them when a call is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Place: TypeAlias = Literal["path", "query", "header", "cookie"]
Style: TypeAlias = Literal["simple", "label", "matrix", "form", "space", "tab", "pipe", "deep", "json"]
"""How lists and objects are written as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A parameter of an operation."""

    argument: str
    """What callers call it."""
    name: str
    """What the server calls it."""
    place: Place
    style: Style
    explode: bool
    """Each item of a list, each member of an object, on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    argument: str
    media_type: str
    files: frozenset[str] = frozenset()
    """Fields of a form that are sent as files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Where a secret comes from and where it goes."""

    variable: str
    """Of the environment."""
    place: Place
    name: str
    """Of the header, the query entry or the cookie."""
    prefix: str = ""
    """`Bearer ` …"""
    is_basic: bool = False
    """The variable holds `user:password`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    method: str
    server: str
    """A URL without a slash at its end."""
    path: str
    """With `{name}` where an argument stands."""
    arguments: tuple[Argument, ...] = ()
    body: Body | None = None
    security: tuple[tuple[Credential, ...], ...] = ()
    """Alternatives, each with all it takes; none at all: nobody asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The target of an API's tool."""

    operations: Mapping[str, Operation]
    """By action."""
