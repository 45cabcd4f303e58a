"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")


class LazyPattern:
    """Stands for a compiled pattern. The first use of a method compiles it, and keeps the compiled pattern's methods
    as attributes, so that later uses cost as much as those of a pattern of `re`.
    """

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        compiled = re.compile(self.pattern, self._flags)
        self.__dict__.update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern that is compiled when it is first used.

    A program uses few of the hundreds that it imports, and compiling them all took a third of the time of
    `ferrule call`.
    """
    return cast("re.Pattern[AnyStr]", LazyPattern(pattern, flags))
