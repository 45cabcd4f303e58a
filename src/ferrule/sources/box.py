"""Everything that can be registered in one go: a tool, a thing that is one, or a box of them."""

from __future__ import annotations

from typing import Any

from ferrule.sources.foreign import contents_of
from ferrule.sources.function import tool_of
from ferrule.spec import Tool


def tools_in(thing: Any) -> list[Tool]:
    """The tools that a thing is or holds: lists and other frameworks' boxes are opened."""
    if isinstance(thing, Tool):
        return [thing]
    contents = contents_of(thing)
    if contents is None:
        return [tool_of(thing)]
    return [tool for each in contents for tool in tools_in(each)]
