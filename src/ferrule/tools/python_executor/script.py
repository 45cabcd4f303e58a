"""The values of one run of a script: what is to run, and what came of it."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from ferrule.errors import Retry

LONGEST: Final = 200_000
"""Characters of a script."""

HowItFailed: TypeAlias = Literal["raised", "timeout", "memory", "printed", "result", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script and the variables it finds."""

    code: str
    inputs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.code.strip():
            raise Retry("`code` is empty: write the Python to run.")
        if len(self.code) > LONGEST:
            raise Retry(f"`code` has {len(self.code):,} characters, more than {LONGEST:,}: give data in `inputs`.")
        for name in self.inputs:
            if not name.isidentifier() or keyword.iskeyword(name):
                raise Retry(f"`inputs` has {name[:60]!r}, which is no name of a variable: write one like order_ids.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Where a script was when it failed."""

    number: int
    function: str
    """Empty outside of functions."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a script came to no end."""

    how: HowItFailed
    message: str
    """As Python says it: `ZeroDivisionError: division by zero`; or a sentence of ours."""
    lines: Sequence[Line] = ()
    """From the outermost to the innermost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of a script."""

    value: Any = None
    """Of its last expression, as plain JSON."""
    printed: str = ""
    failure: Failure | None = None
