"""Which tools a script may call, and by which names.

A script is written by a model, so it may do no more than the model may. Only tools that its caller may use are there;
of these only those that change nothing, unless the configuration names others; and never one about which a person
would have to be asked: nobody could be asked in the middle of a script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

from ferrule.call import ToolExecutionContext
from ferrule.errors import PermissionDenied, ToolNotFound
from ferrule.names import did_you_mean
from ferrule.registry import ToolRegistry
from ferrule.spec import Tool, ToolCapability

NAME: Final = "python_executor"
_NEVER: Final = frozenset({NAME, "call_tool", "ask_user", "finish_task"})
"""Not itself, not what would call for it what it may not, and not what steers the run that it is a part of."""
_NO_LETTER: Final = re.compile(r"\W", re.ASCII)


class Reach:
    """The tools that the script of one call may call."""

    def __init__(
        self, registry: ToolRegistry | None, context: ToolExecutionContext, named: Sequence[str] | None
    ) -> None:
        """`named` are the tools it may call, whatever they do; None: all that change nothing."""
        self._registry, self._context, self._named = registry, context, named

    def find(self, function: str) -> tuple[Tool, ToolCapability]:
        """The tool of a function; an error that a script may catch says why there is none."""
        found = self._functions.get(function)
        if found is None:
            near = did_you_mean(function, self.names())
            raise ToolNotFound(f"name {function!r} is not defined.{near}")
        refused = self._why_not(*found)
        if refused is not None:
            raise PermissionDenied(refused)
        return found

    def has(self, function: str) -> bool:
        return function in self._functions

    def names(self) -> list[str]:
        """Of the functions that can be called."""
        return sorted(name for name, found in self._functions.items() if self._why_not(*found) is None)

    @cached_property
    def _functions(self) -> dict[str, tuple[Tool, ToolCapability]]:
        """Every tool of the caller, by the name that models know; where Python allows no such name, by the nearest."""
        exact: dict[str, tuple[Tool, ToolCapability]] = {}
        nearest: dict[str, tuple[Tool, ToolCapability]] = {}
        snapshot = self._registry.snapshot() if self._registry is not None else None
        for tool in filter(None, map(snapshot.get, snapshot.by_id) if snapshot is not None else ()):
            for capability in tool.spec.capabilities:
                name = tool.spec.model_name(capability)
                if not self._is_the_callers(tool, name):
                    continue
                if name.isidentifier():
                    exact.setdefault(name, (tool, capability))
                else:
                    nearest.setdefault(_identifier(name), (tool, capability))
        return nearest | exact

    def _is_the_callers(self, tool: Tool, name: str) -> bool:
        allowed = self._context.allowed_tools
        return tool.id not in _NEVER and (allowed is None or tool.id in allowed or name in allowed)

    def _why_not(self, tool: Tool, capability: ToolCapability) -> str | None:
        """Why a script may not call a tool that its caller may call; None when it may."""
        name = tool.spec.model_name(capability)
        verdict = "allow" if self._context.policy is None else self._context.policy.verdict(tool, capability)
        if verdict == "deny":
            return f"{name} may not be called here."
        if verdict == "ask":
            return f"{name} may only be called when the user agrees: call it by itself, not in a script."
        if self._named is None:
            if tool.spec.effects_of(capability).read_only:
                return None
            return f"{name} may change something, so no script may call it: call it by itself."
        if any(fnmatchcase(known, pattern) for pattern in self._named for known in (name, tool.id)):
            return None
        return f"{name} is not among the tools that scripts may call: call it by itself."


def _identifier(name: str) -> str:
    written = _NO_LETTER.sub("_", name)
    return f"_{written}" if written[:1].isdigit() else written
